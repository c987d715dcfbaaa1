"""What `goqueue pipeline` says before Spark has to start; the rest is in tests/spark/test_pipeline_commands.py."""

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from goqueue import Client
from goqueue.cli.commands.pipeline import Watcher
from goqueue.spark.pipelines.job import JobProgress
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with EmbeddedBroker() as broker, Client(broker.address) as client:
        client.create_topic("orders")
        yield broker.address


def test_all_pipelines_are_listed() -> None:
    shown = run("pipeline", "--help").output.decode()

    for name in ("archive", "replay", "compact", "dead-letters", "journeys", "lag", "stats"):
        assert f" {name} " in shown


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("archive", "nothing", "/tmp/x"), 1, "error topic not found: nothing"),
        (("archive", "orders"), 2, "Missing argument 'DIRECTORY'"),
        (("archive", "orders", "/tmp/x", "--verify", "--merge"), 2, "choose one of --verify, --merge and --continuous"),
        (("archive", "orders", "/tmp/x", "--every", "soon"), 2, "'soon'"),
        (("replay", "nothing", "--topic", "orders"), 1, "error topic not found: nothing"),
        (("replay", "orders", "--topic", "nothing"), 1, "error topic not found: nothing"),
        (("replay", "orders"), 1, "error there is nothing to replay from"),
        (("replay", "orders", "--topic", "orders", "--from", "yesterday"), 2, "'yesterday' is not a time"),
        (("replay", "orders", "--topic", "orders", "--rate", "0"), 2, "'--rate'"),
        (("compact", "--topic", "orders"), 1, "error compact either into a topic or into a directory"),
        (("compact", "--topic", "orders", "--to-topic", "orders"), 1, "error compact a topic into another topic"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, said = fail("pipeline", *arguments, server=server)

    assert found_code == code
    assert complaint in said if code == 2 else said.startswith(complaint)


def test_that_nobody_answers_is_said_before_spark_starts() -> None:
    code, said = fail("pipeline", "archive", "orders", "/tmp/x", server="localhost:1")

    assert code == 1
    assert said.startswith("error cannot reach broker at localhost:1")


def drawn(watcher: Watcher) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(watcher.draw())
    return str(console.file.getvalue()).strip()  # type: ignore[attr-defined]


def test_at_a_terminal_one_sees_how_far_a_job_is() -> None:
    watcher = Watcher("archive")

    before = drawn(watcher)
    watcher(JobProgress("archives", 1_500, 100, 2_000, 3_000_000_000))
    during = drawn(watcher)
    watcher(JobProgress("archives", 2_000, 0, 2_000, 4_000_000_000))
    after = drawn(watcher)

    assert before == "archive: starting Spark"
    assert during.startswith("archive: archives ━━━")
    assert during.endswith("1,500 of 2,000 messages, 500/s, lag 500")
    assert after.endswith("2,000 of 2,000 messages, 500/s")
