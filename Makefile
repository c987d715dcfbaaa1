# make demo | test | check | bench: each sets up .venv by itself if it is missing or stale.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SIZE   ?= full

.PHONY: demo test check bench format clean
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/goqueue demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	scripts/sanitize

bench: $(READY)
	$(BIN)/python -m benchmarks --size $(SIZE)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml setup.py requirements-dev.txt src/goqueue/record/_kernel.c scripts/setup
	PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/goqueue/record/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
