"""What people and programs see of the reports. The session is the one of the tests, so that Spark starts once."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.client.sync import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, goqueue, run, tidied
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.traces import read_until_told


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(traces_topic=True) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as connected, tidied(connected):
        yield connected


def pipeline(*arguments: str, server: str) -> str:
    """Standard output of a pipeline that has done what it should; how far it is it tells on standard error."""
    outcome = run("pipeline", *arguments, server=server)
    assert outcome.code == 0, outcome.complaint
    return outcome.output.decode()


def rejected(client: Client, topic: str, count: int) -> None:
    client.create_topic(topic, partitions=1)
    client.publish_many(topic, [(f"k{number}", f"order {number}") for number in range(count)])
    with client.consumer(topic, group="billing") as consumer:
        while count:
            batch = consumer.poll(max_messages=500, timeout="5s")
            consumer.reject(batch, reason=f"db {count} down\x1b[31m")
            count -= len(batch)


@pytest.mark.usefixtures("spark")
def test_stats_are_shown_as_tables_and_pictures(broker: EmbeddedBroker, client: Client, tmp_path: Path) -> None:
    client.create_topic("orders", partitions=2)
    client.publish_many("orders", [("hot\x1b[31m", "x" * number) for number in range(10)])
    plot = tmp_path / "orders.png"

    shown = pipeline("stats", "orders", "--plot", str(plot), server=broker.address)
    nothing = pipeline("stats", "orders", "--until", "1h ago", "-o", "json", server=broker.address)

    assert "10 messages" in shown
    assert "hot\\x1b[31m" in shown
    assert "100.0%" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")
    data = json.loads(nothing)
    assert data["sizes"] == []
    assert [row["messages"] for row in data["partition_skew"]] == [0, 0]


@pytest.mark.usefixtures("spark")
def test_lag_is_shown_for_each_group_and_kept(broker: EmbeddedBroker, client: Client, tmp_path: Path) -> None:
    client.create_topic("orders", partitions=1)
    client.publish_many("orders", ["a", "b", "c"])
    client.commit_group("billing", {("orders", 0): 1})

    shown = pipeline("lag", "--over", "1ms", "--write", str(tmp_path / "kept"), server=broker.address)
    (row,) = json.loads(
        pipeline("lag", "billing", "--over", "0s", "--by-partition", "-o", "json", server=broker.address)
    )

    assert "stalled" in shown
    assert sorted(os.listdir(tmp_path / "kept")) == ["lag", "observations"]
    assert (row["group"], row["topic"], row["partition"], row["backlog"]) == ("billing", "orders", 0, 2)
    assert (row["state"], row["consumed_per_s"], row["drained_in_s"]) == ("unknown", None, None)
    assert "nosuch" in fail("pipeline", "lag", "nosuch", server=broker.address)[1]


@pytest.mark.usefixtures("spark")
def test_dead_letters_are_grouped_and_put_back(broker: EmbeddedBroker, client: Client, tmp_path: Path) -> None:
    rejected(client, "orders", 5)
    server = broker.address

    shown = pipeline("dead-letters", "orders", "--plot", str(tmp_path / "dead.html"), server=server)
    chosen = ("dead-letters", "orders.dlq", "--redrive", "value like 'order %' and offset > 0")
    planned = pipeline(*chosen, "--dry-run", server=server)
    done = json.loads(pipeline(*chosen, "-o", "json", server=server))
    again = json.loads(pipeline(*chosen, "-o", "json", server=server))
    code, refused = fail("pipeline", "dead-letters", "orders", "--redrive", "nosuch = 1", server=server)

    assert "db <n> down" in shown
    assert "5 messages are dead-lettered now" in shown
    assert "\x1b[31m" not in shown
    assert "<svg" in (tmp_path / "dead.html").read_text()
    assert "4 messages of orders would be redriven" in planned
    assert done["redrive"] == {
        "dry_run": False,
        "chosen": 4,
        "matched": 4,
        "redriven": 4,
        "skipped_loop": 0,
        "failed": 0,
        "error": "",
        "is_complete": True,
    }
    assert (again["dead"], again["redrive"]["matched"], again["redrive"]["redriven"]) == (1, 0, 0)
    assert (code, "nosuch" in refused, "JVM" in refused) == (1, True, False)


@pytest.mark.usefixtures("spark")
def test_a_topic_without_dead_letters_has_none_and_no_topic_is_an_error(broker: EmbeddedBroker, client: Client) -> None:
    client.create_topic("orders", partitions=1)

    shown = pipeline("dead-letters", "orders", server=broker.address)

    assert "orders has no dead letters" in shown
    assert "nosuch" in fail("pipeline", "dead-letters", "nosuch", server=broker.address)[1]
    assert "nosuch" in fail("pipeline", "stats", "nosuch", server=broker.address)[1]


@pytest.mark.usefixtures("spark")
def test_journeys_are_shown_by_stage(broker: EmbeddedBroker, client: Client, tmp_path: Path) -> None:
    client.create_topic("trips", partitions=1)
    client.publish_many("trips", ["a", "b", "c"])
    with client.consumer("trips", group="billing") as consumer:
        left = 3
        while left:
            batch = consumer.poll(max_messages=10, timeout="5s")
            consumer.ack(batch)
            left -= len(batch)
    read_until_told(client, "consume.acked", 3, topic="trips")
    plot = str(tmp_path / "trips.svg")

    shown = pipeline("journeys", "--topic", "trips", "--plot", plot, server=broker.address)
    nothing = pipeline("journeys", "--topic", "nosuch", server=broker.address)

    assert [stage in shown for stage in ("persist", "wait", "work", "total")] == [True] * 4
    assert "trips-0:2" in shown
    assert "trips: latency by stage" in Path(plot).read_text()
    assert nothing == "no traces match\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("stats", "orders", "--plot", "x.gif"), "must end in .png"),
        (("stats", "orders", "--plot", "/no/such/x.png"), "there is no directory"),
        (("stats", "orders", "--every", "0s"), "too short"),
        (("stats", "orders", "--every", "often"), "not a duration"),
        (("stats", "orders", "--since", "whenever"), "whenever"),
        (("dead-letters", "orders", "--dry-run"), "--redrive"),
        (("dead-letters", "orders", "--rate", "5"), "--redrive"),
        (("lag", "--window", "0s"), "too short"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(arguments: tuple[str, ...], complaint: str) -> None:
    code, said = fail("pipeline", *arguments, server="127.0.0.1:1")

    assert code == 2
    assert complaint in said


def test_help_needs_no_spark() -> None:
    helped = goqueue("pipeline", "dead-letters", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})

    assert helped.returncode == 0
    assert b"pyspark" not in helped.stderr
    assert b"pyarrow" not in helped.stderr
    assert b"matplotlib" not in helped.stderr
