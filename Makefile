# make demo | test | quick | check | bench | simulate: each sets up .venv by itself if it is missing, broken or stale.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SIZE   ?= full
SEEDS  ?= 1000

.PHONY: demo test quick check bench simulate format clean
.DEFAULT_GOAL := demo

# Commands run as modules: the scripts in bin/ name their interpreter by its path, and a tree may be moved.

demo: $(READY)
	$(BIN)/python -m goqueue.cli demo

test: $(READY)
	scripts/test $(BIN)/python

# The inner loop: about a minute on two cores.
quick: $(READY)
	scripts/test --quick $(BIN)/python

check: $(READY)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	PYTHON=$(BIN)/python scripts/sanitize

bench: $(READY)
	$(BIN)/python -m benchmarks --size $(SIZE)

# Clusters in virtual time: SEEDS=1000 (how many), SEEDS=41-60 or SEEDS=41, (which); TRANSCRIPT=1 prints what happened.
simulate: $(READY)
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) $(if $(TRANSCRIPT),--transcript)

format: $(READY)
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# The sources say when .ready is stale, scripts/setup when it is not to be trusted: then it is made again at once.
ifneq ($(shell scripts/setup --check $(VENV) && echo ready),ready)
.PHONY: $(READY)
endif

$(READY): pyproject.toml setup.py requirements-dev.txt src/goqueue/record/_kernel.c scripts/setup
	PYTHON='$(PYTHON)' scripts/setup $(VENV)

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/goqueue/record/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
