"""`goqueue trace`, end to end."""

import json
from collections.abc import Iterator

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed
from tests.client.test_consumer import eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(http=False) as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=1, max_deliveries=1)
        client.publish("orders", "good", key="k", headers={"traceparent": TRACEPARENT})
        client.publish("orders", "bad")
        client.publish("orders", "later", delay="1h")
        with client.consumer("orders", group="billing", member_id="worker-1") as consumer:
            good, bad = consumer.poll(2, "10s")
            good.ack()
            bad.reject(reason="no such customer")
        eventually(lambda: client.trace(("orders", 0, 1)).status == "failed")
        yield broker


@pytest.fixture
def server(broker: EmbeddedBroker) -> str:
    return broker.address


def words(*arguments: str, server: str) -> str:
    return " ".join(succeed("trace", *arguments, server=server).split())


def offsets(server: str, *arguments: str) -> list[int]:
    found = json.loads(succeed("trace", *arguments, "-o", "json", server=server))
    return [one["offset"] for one in found if one["topic"] == "orders"]


def test_a_trace_is_drawn(server: str) -> None:
    shown = succeed("trace", "get", TRACE_ID, server=server)

    lines = [line.split() for line in shown.splitlines()]
    assert ["trace", TRACE_ID] in lines
    assert ["message", "orders-0", "@", "0"] in lines
    assert ["status", "completed"] in lines
    events = [line[2] for line in lines if line and line[0].startswith("+")]
    assert events == [
        "publish.received",
        "publish.partitioned",
        "publish.persisted",
        "consume.fetched",
        "consume.acked",
    ]
    assert "billing / worker-1, attempt 1" in words("get", TRACE_ID, server=server)
    assert "\x1b" not in shown


def test_an_id_may_come_as_it_stands_in_a_header(server: str) -> None:
    shown = words("get", TRACEPARENT, server=server)

    assert shown.startswith(f"trace {TRACE_ID}")
    assert words("get", TRACE_ID.upper(), server=server).startswith(f"trace {TRACE_ID}")


def test_why_a_message_failed_is_said(server: str) -> None:
    shown = words("message", "orders", "0", "1", server=server)

    assert "status failed (error)" in shown
    assert "consume.rejected" in shown
    assert "no such customer" in shown
    assert "dlq.routed" in shown
    assert "to orders.dlq-0 @ 0" in shown


def test_a_message_is_found_by_its_offset(server: str) -> None:
    assert words("message", "orders", "0", "0", server=server).startswith(f"trace {TRACE_ID}")
    assert "status delayed (pending)" in words("message", "orders", "0", "2", server=server)


def test_json_has_the_words_of_http_and_yaml_the_same(server: str) -> None:
    data = json.loads(succeed("trace", "get", TRACE_ID, "-o", "json", server=server))

    assert data == yaml.safe_load(succeed("trace", "get", TRACE_ID, "-o", "yaml", server=server))
    assert list(data) == [
        "trace_id",
        "topic",
        "partition",
        "offset",
        "start_time",
        "end_time",
        "duration_ms",
        "duration",
        "status",
        "outcome",
        "spans",
    ]
    (fetched,) = (span for span in data["spans"] if span["event_type"] == "consume.fetched")
    assert (fetched["consumer_group"], fetched["consumer_id"]) == ("billing", "worker-1")
    assert fetched["attributes"]["attempt"] == "1"
    assert "error" not in fetched


def test_traces_are_listed_in_lines_that_fit(server: str) -> None:
    shown = succeed("trace", "list", server=server)

    lines = [line.split() for line in shown.splitlines()]
    assert [TRACE_ID, "orders-0", "@", "0"] in [line[:4] for line in lines]
    assert max(map(len, shown.splitlines())) <= 80
    assert lines[-1][-1] == "traces"
    assert sorted(offsets(server, "list")) == [0, 1, 2]
    assert len(json.loads(succeed("trace", "list", "-n", "1", "-o", "json", server=server))) == 1
    assert words("list", "-n", "1", server=server).endswith(" 1 trace")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--topic", "orders"], [0, 1, 2]),
        (["-t", "orders", "-p", "0", "--offset", "1"], [1]),
        (["--group", "billing"], [0, 1]),
        (["--key", "k"], [0]),
        (["--status", "completed"], [0]),
        (["--status", "failed"], [1]),
        (["--status", "error"], [1]),
        (["--status", "delayed"], [2]),
        (["--since", "1h ago"], [0, 1, 2]),
        (["--until", "1h ago"], []),
        (["--slower-than", "1h"], []),
        (["--slower-than", "0s", "--topic", "orders", "--status", "pending"], [2]),
        (["--topic", "nothing"], []),
    ],
)
def test_a_search_finds_what_is_like_that(server: str, arguments: list[str], found: list[int]) -> None:
    assert sorted(offsets(server, "search", *arguments)) == found


def test_that_there_is_nothing_is_said(server: str) -> None:
    assert succeed("trace", "search", "--topic", "nothing", server=server) == "no trace matches\n"
    assert succeed("trace", "search", "--topic", "nothing", "-o", "json", server=server) == "[]\n"


def test_stats_count_traces(server: str) -> None:
    counted = json.loads(succeed("trace", "stats", "-o", "json", server=server))
    shown = [line.split() for line in succeed("trace", "stats", server=server).splitlines()]

    assert counted["enabled"] is True
    assert counted["traces_completed"] >= 1
    assert counted["traces_error"] >= 1
    assert counted["by_topic"]["orders"] >= 3
    assert counted["avg_latency"].endswith("s")
    assert ["tracing", "on"] in shown
    assert ["orders", str(counted["by_topic"]["orders"])] in shown


def test_a_reason_cannot_steer_the_terminal(server: str) -> None:
    with Client(server) as client:
        client.create_topic("hostile", partitions=1)
        published = client.publish("hostile", b"1")
        with client.consumer("hostile", group="hostile") as consumer:
            (message,) = consumer.poll(1, "10s")
            message.reject(reason="\x1b[2Jgone [bold]")
        eventually(lambda: client.trace(published).status == "failed")

        output = run("trace", "message", "hostile", "0", "0", server=server).output
        client.delete_topic("hostile")

    assert b"\x1b" not in output
    assert b"\\x1b[2Jgone" in output
    assert b"[bold]" in output


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("get", "f" * 32), 1, "error not found: trace"),
        (("get", "nonsense"), 2, "invalid trace ID format"),
        (("get", TRACE_ID[:-1]), 2, "invalid trace ID format"),
        (("message", "orders", "0", "99"), 1, "error not found: trace of orders-0 @ 99"),
        (("message", "nothing", "0", "0"), 1, "error not found: trace of nothing-0 @ 0"),
        (("message", "orders", "0"), 2, "Missing argument 'OFFSET'"),
        (("message", "orders", "zero", "0"), 2, "should be a valid integer"),
        (("list", "-n", "0"), 2, "'--limit'"),
        (("list", "-n", "1001"), 2, "'--limit'"),
        (("search", "--status", "lost"), 2, "'lost' is not one of"),
        (("search", "--since", "yesterday"), 2, "'yesterday' is not a time"),
        (("search", "--slower-than", "5"), 2, "is not a duration"),
        (("search", "--partition", "-1"), 2, "'--partition'"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("trace", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)
