"""Every example runs against a broker, can be run again, and prints what it is about."""

import ast
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from goqueue.testing import EmbeddedBroker
from tests.environments import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example as a program; returns the lines that it prints."""

    def run(name: str, *arguments: str) -> list[str]:
        before, sys.argv = sys.argv, [name, *arguments]
        try:
            with environment(GOQUEUE_SERVER=broker.address):
                runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        finally:
            sys.argv = before
        return capsys.readouterr().out.splitlines()

    return run


def test_what_is_published_is_consumed(run: Run) -> None:
    for _ in range(2):
        *_, total = run("produce_and_consume.py")

        assert total == "the ids add up to 500500"


def test_failed_work_is_retried_then_dead_lettered_and_redriven(run: Run) -> None:
    assert run("work_queue.py") == [
        "while the server is down: {'failed': 4, 'sent': 1}",
        "dead letter: TimeoutError: mail server is down",
        "dead letter: ValueError: nobody is no address",
        "when it is up again: {'sent': 1}",
    ]


def test_jobs_run_when_they_are_due(run: Run) -> None:
    for _ in range(2):
        assert run("delayed_jobs.py") == ["done: now, report, soon", "waiting: [b'invoice']"]


def test_every_order_has_one_invoice(run: Run) -> None:
    for _ in range(2):
        assert run("exactly_once.py") == ["500 invoices written"]


def test_the_past_is_processed_again(run: Run) -> None:
    for _ in range(2):
        assert run("replay_from_time.py") == [
            "processed: 5",
            "read again: ['after 0', 'after 1']",
            "processed again: 5",
        ]


def test_a_schema_refuses_messages_and_its_own_replacement(run: Run) -> None:
    refused, incompatible = run("schema_validation.py")

    assert refused == "refused at /weight"
    assert incompatible.startswith("/required")


def test_http_needs_only_the_standard_library(run: Run, broker: EmbeddedBroker) -> None:
    for _ in range(2):
        assert run("http_only.py", broker.http_address) == [f"got {{'id': {number}}}" for number in range(3)]


def test_a_topic_is_a_table(run: Run, broker: EmbeddedBroker, spark: "SparkSession") -> None:
    assert spark.version
    assert run("spark_table.py", broker.address) == ["customer-0 14850", "customer-1 14950", "customer-2 15050"]


def test_every_example_is_run_here_listed_and_says_how_to_start_it() -> None:
    here, listed = Path(__file__).read_text(), (EXAMPLES / "README.md").read_text()

    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.name}"' in here
        assert f"({example.name})" in listed
        assert f"python examples/{example.name}" in (ast.get_docstring(ast.parse(example.read_text())) or "")
