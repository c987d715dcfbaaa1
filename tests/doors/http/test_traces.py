"""Traces over HTTP: what is asked, what is answered, and how the trace of a request goes on in messages."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from goqueue.clock import MS, SECOND
from goqueue.errors import NotFound
from goqueue.testing import ManualClock
from goqueue.wire.trace_reports import Span, Trace, TraceQuery, TraceStats
from tests.doors.http.consumers import publish
from tests.doors.http.doors import Answer, OpenDoor

START_NS = 1_704_067_200 * SECOND
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
TRACE = Trace(
    trace_id=TRACE_ID,
    topic="orders",
    partition=0,
    offset=42,
    start_ns=START_NS,
    end_ns=START_NS + 1_500 * MS + 7,
    status="failed",
    span_count=2,
    spans=[
        Span("a" * 16, "publish.received", START_NS, "orders", 0, 42),
        Span(
            "b" * 16,
            "dlq.routed",
            START_NS + 1_500 * MS + 7,
            "orders",
            0,
            42,
            parent_span_id="a" * 16,
            group="billing",
            consumer_id="worker-1",
            duration_ns=0,
            error="boom",
            attributes={"dlq_topic": "orders.dlq", "topic": "not the topic"},
        ),
    ],
)
HEAD = {
    "trace_id": TRACE_ID,
    "topic": "orders",
    "partition": 0,
    "offset": 42,
    "start_time": "2024-01-01T00:00:00.000000000Z",
    "end_time": "2024-01-01T00:00:01.500000007Z",
    "duration_ms": 1500,
    "duration": "1.500000007s",
    "status": "failed",
    "outcome": "error",
}


class KnownTraces:
    """Those of a broker that knows of one trace, whatever happens; and what was asked."""

    def __init__(self, traces: Any) -> None:
        self._traces = traces
        self.asked: list[object] = []

    def recent(self, *, limit: int = 100) -> list[Trace]:
        self.asked.append(limit)
        return [TRACE]

    def search(self, query: TraceQuery) -> list[Trace]:
        self.asked.append(query)
        return [TRACE]

    def get(self, trace_id: str) -> Trace:
        if trace_id != TRACE_ID:
            raise NotFound(f"trace {trace_id}")
        return TRACE

    def stats(self) -> TraceStats:
        return TraceStats(True, 7, 10_000, 3, 0.5, ["jsonl"], 9, 4, 3, 2, 1_500_000, {"orders": 9})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traces, name)


@pytest.fixture
def known(tmp_path: Path, clock: ManualClock) -> Iterator[OpenDoor]:
    """A door in front of a broker that knows one trace, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.broker.traces = KnownTraces(door.broker.traces)  # type: ignore[assignment]
        yield door


def asked(door: OpenDoor) -> TraceQuery:
    """The last search, as the broker saw it."""
    query = door.broker.traces.asked[-1]  # type: ignore[attr-defined]
    assert isinstance(query, TraceQuery)
    return query


def test_traces_are_listed(known: OpenDoor) -> None:
    answer = known.get("/traces")

    assert (answer.status, answer.json) == (200, {"traces": [{**HEAD, "span_count": 2}], "total": 1})
    assert known.get("/v1/traces/?limit=7").status == 200
    assert known.broker.traces.asked == [100, 7]  # type: ignore[attr-defined]


def test_a_trace_is_shown_as_spans_and_as_events(known: OpenDoor) -> None:
    answer = known.get(f"/traces/{TRACE_ID}")

    assert answer.status == 200
    shown = answer.json
    spans, events = shown.pop("spans"), shown.pop("events")
    assert shown == HEAD
    assert spans == [
        {
            "span_id": "a" * 16,
            "event_type": "publish.received",
            "timestamp": "2024-01-01T00:00:00.000000000Z",
            "topic": "orders",
            "partition": 0,
            "offset": 42,
        },
        {
            "span_id": "b" * 16,
            "event_type": "dlq.routed",
            "timestamp": "2024-01-01T00:00:01.500000007Z",
            "topic": "orders",
            "partition": 0,
            "offset": 42,
            "parent_span_id": "a" * 16,
            "consumer_group": "billing",
            "consumer_id": "worker-1",
            "duration_ns": 0,
            "error": "boom",
            "attributes": {"dlq_topic": "orders.dlq", "topic": "not the topic"},
        },
    ]
    assert events == [
        {
            "timestamp": "2024-01-01T00:00:00.000000000Z",
            "event_type": "publish.received",
            "type": "publish.received",
            "details": {"topic": "orders", "partition": 0, "offset": 42},
        },
        {
            "timestamp": "2024-01-01T00:00:01.500000007Z",
            "event_type": "dlq.routed",
            "type": "dlq.routed",
            "details": {
                "dlq_topic": "orders.dlq",
                "topic": "orders",
                "partition": 0,
                "offset": 42,
                "consumer_group": "billing",
                "consumer_id": "worker-1",
                "duration_ns": 0,
                "error": "boom",
            },
        },
    ]


def test_capitals_are_digits_too(known: OpenDoor) -> None:
    assert known.get(f"/traces/{TRACE_ID.upper()}").json["trace_id"] == TRACE_ID


@pytest.mark.parametrize(
    "identity", ["x", TRACE_ID[:-1], TRACE_ID + "0", TRACE_ID[:-1] + "g", "%00" * 32, "é" * 32, "searches"]
)
def test_what_is_no_id_is_refused(known: OpenDoor, identity: str) -> None:
    answer = known.get(f"/traces/{quote(identity, safe='%')}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("invalid trace ID format")
    assert answer.json["details"] == {"path": "trace_id"}


def test_a_trace_that_is_not_there_is_not_found(known: OpenDoor) -> None:
    answer = known.get(f"/traces/{'f' * 32}")

    assert (answer.status, answer.code) == (404, "NOT_FOUND")
    assert answer.json["error"].startswith("trace not found")


def test_traces_are_counted(known: OpenDoor) -> None:
    assert known.get("/traces/stats").json == {
        "enabled": True,
        "spans_in_buffer": 7,
        "buffer_capacity": 10_000,
        "traces_indexed": 3,
        "sampling_rate": 0.5,
        "exporters_enabled": ["jsonl"],
        "traces_total": 9,
        "traces_completed": 4,
        "traces_pending": 3,
        "traces_error": 2,
        "avg_latency": "1.5ms",
        "by_topic": {"orders": 9},
    }


def test_a_search_without_anything_is_for_all(known: OpenDoor) -> None:
    for query in ("", "?topic=&consumer_group=&key=&start=&end=&status=&slower_than="):
        answer = known.get(f"/traces/search{query}")

        assert answer.json == {
            "traces": [{**HEAD, "span_count": 2}],
            "total": 1,
            "query": {
                "topic": "",
                "partition": -1,
                "consumer_group": "",
                "start": "",
                "end": "",
                "status": "",
                "limit": 100,
            },
        }
        assert asked(known) == TraceQuery()


def test_a_search_is_for_all_that_is_given(known: OpenDoor) -> None:
    answer = known.get(
        "/traces/search?topic=orders&partition=2&consumer_group=billing&offset=42&key=k&start=2h%20ago"
        "&end=2024-01-01T00:00:00%2B01:00&status=retrying&slower_than=250ms&limit=1000"
    )

    assert asked(known) == TraceQuery(
        topic="orders",
        partition=2,
        group="billing",
        offset=42,
        key=b"k",
        start_ns=START_NS - 7_200 * SECOND,
        end_ns=START_NS - 3_600 * SECOND,
        status="retrying",
        slower_than_ns=250 * MS,
        limit=1_000,
    )
    assert answer.json["query"] == {
        "topic": "orders",
        "partition": 2,
        "consumer_group": "billing",
        "start": "2023-12-31T22:00:00.000000000Z",
        "end": "2023-12-31T23:00:00.000000000Z",
        "status": "retrying",
        "limit": 1_000,
    }


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("partition=0", TraceQuery(partition=0)),
        ("offset=0", TraceQuery(offset=0)),
        ("key_base64=%2Fw%3D%3D", TraceQuery(key=b"\xff")),
        ("start=2024-01-01T01:00:00+01:00", TraceQuery(start_ns=START_NS)),
        ("end=1704067200", TraceQuery(end_ns=START_NS)),
        ("status=error", TraceQuery(status="error")),
        ("status=pending", TraceQuery(status="pending")),
        ("status=in_progress", TraceQuery(status="in_progress")),
        ("slower_than=1h", TraceQuery(slower_than_ns=3_600 * SECOND)),
        ("limit=1", TraceQuery(limit=1)),
    ],
)
def test_each_may_stand_alone(known: OpenDoor, query: str, wanted: TraceQuery) -> None:
    assert known.get(f"/traces/search?{query}").status == 200
    assert asked(known) == wanted


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/traces?limit=0", "invalid limit"),
        ("/traces?limit=1001", "invalid limit"),
        ("/traces?limit=many", "invalid limit"),
        ("/traces/search?limit=1001", "invalid limit"),
        ("/traces/search?partition=-1", "invalid partition"),
        ("/traces/search?partition=first", "invalid partition"),
        ("/traces/search?offset=-1", "invalid offset"),
        (f"/traces/search?offset={2**63}", "invalid offset"),
        ("/traces/search?start=yesterday", "invalid start"),
        ("/traces/search?end=2024-01-01", "invalid end"),
        ("/traces/search?slower_than=5", "invalid slower_than"),
        ("/traces/search?key=a&key_base64=YQ==", "key and key_base64"),
        ("/traces/search?key_base64=!", "invalid key_base64"),
    ],
)
def test_what_makes_no_sense_is_refused(known: OpenDoor, path: str, words: str) -> None:
    answer = known.get(path)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(words)


def test_a_status_that_is_none_is_refused_with_those_there_are(known: OpenDoor) -> None:
    answer = known.get("/traces/search?status=lost")

    assert (answer.status, answer.code, answer.json["details"]) == (400, "INVALID_REQUEST", {"path": "status"})
    assert answer.json["error"] == (
        "invalid status 'lost': must be one of "
        "in_progress, completed, failed, retrying, delayed, expired, error, pending"
    )


# --- the trace of a request ----------------------------------------------------------------------


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    door.post("/topics", {"name": "orders", "partitions": 1})
    return door


def publish_with(door: OpenDoor, body: Any, *headers: tuple[str, str]) -> Answer:
    """Publish with these headers, each as often as it is given."""
    with door.connection() as connection:
        connection.putrequest("POST", "/topics/orders/messages")
        for name, value in headers:
            connection.putheader(name, value)
        data = json.dumps(body).encode()
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def stored(door: OpenDoor) -> list[dict[str, str]]:
    messages = door.get("/topics/orders/partitions/0/messages?limit=100").json["messages"]
    return [message.get("headers", {}) for message in messages]


def test_the_trace_of_a_request_goes_on_in_its_messages(orders: OpenDoor) -> None:
    messages = [{"value": "a"}, {"value": "b", "headers": {"source": "web"}}, {"value": "c", "delay": "0s"}]

    answer = publish_with(orders, {"messages": messages}, ("Traceparent", TRACEPARENT), ("tracestate", "vendor=1"))

    assert answer.status == 200
    trace = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    assert stored(orders) == [trace, {"source": "web", **trace}, trace]


def test_a_trace_in_the_headers_of_a_message_wins(orders: OpenDoor) -> None:
    own = f"00-{'c' * 32}-{'d' * 16}-00"
    messages = [{"value": "a", "headers": {"traceparent": own}}, {"value": "b"}]

    publish_with(orders, {"messages": messages}, ("traceparent", TRACEPARENT), ("tracestate", "vendor=1"))

    assert stored(orders) == [{"traceparent": own}, {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}]


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "")],
        [("traceparent", "nonsense")],
        [("traceparent", TRACEPARENT.upper())],
        [("traceparent", TRACEPARENT + "-more")],
        [("traceparent", f"ff-{TRACE_ID}-{SPAN_ID}-01")],
        [("traceparent", f"00-{'0' * 32}-{SPAN_ID}-01")],
        [("traceparent", f"00-{TRACE_ID}-{'0' * 16}-01")],
        [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        [("traceparent", "\xff" * 55)],
        [("traceparent", "0" * 5_000)],
        [("tracestate", "vendor=1")],
    ],
)
def test_what_is_no_trace_counts_as_not_said(orders: OpenDoor, headers: list[tuple[str, str]]) -> None:
    answer = publish_with(orders, {"value": "a"}, *headers)

    assert (answer.status, stored(orders)) == (200, [{}])


def test_a_later_version_is_taken_by_what_is_known_of_it(orders: OpenDoor) -> None:
    publish_with(orders, {"value": "a"}, ("traceparent", f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-brings"))

    assert stored(orders) == [{"traceparent": TRACEPARENT}]


def test_states_are_put_together_and_left_out_if_too_long(orders: OpenDoor) -> None:
    publish_with(orders, {"value": "a"}, ("traceparent", TRACEPARENT), ("tracestate", "a=1"), ("tracestate", "b=2"))
    publish_with(orders, {"value": "a"}, ("traceparent", TRACEPARENT), ("tracestate", f"a={'1' * 600}"))

    assert stored(orders) == [{"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"}, {"traceparent": TRACEPARENT}]


def test_a_message_that_is_refused_leaves_the_others_in_the_trace(orders: OpenDoor) -> None:
    answer = publish_with(orders, {"messages": [{}, {"value": "a"}]}, ("traceparent", TRACEPARENT))

    assert answer.json["failed"] == 1
    assert stored(orders) == [{"traceparent": TRACEPARENT}]


# --- the id of a request -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda door, headers: door.request("GET", "/traces/nonsense", headers=headers),
        lambda door, headers: door.request("GET", "/nowhere", headers=headers),
        lambda door, headers: door.request("PUT", "/topics", headers=headers),
        lambda door, headers: door.request("POST", "/topics/nope/messages", {"value": "a"}, headers=headers),
        lambda door, headers: door.request("POST", "/topics/orders/messages", b"{", headers=headers),
        lambda door, headers: door.request("POST", "/topics/orders/messages", {"value": "a"}, headers=headers),
        lambda door, headers: door.request("GET", "/topics", headers=headers),
    ],
)
def test_every_answer_has_the_id_of_its_request(
    orders: OpenDoor, ask: Callable[[OpenDoor, dict[str, str]], Answer]
) -> None:
    assert ask(orders, {"X-Request-ID": "my own/1"}).headers["x-request-id"] == "my own/1"

    made = [ask(orders, headers).headers["x-request-id"] for headers in ({}, {"X-Request-ID": "x" * 129})]
    assert len(set(made)) == 2
    assert all(0 < len(identity) <= 128 for identity in made)


# --- with a broker -------------------------------------------------------------------------------


def test_a_message_is_followed_from_its_publish_on(orders: OpenDoor) -> None:
    publish_with(orders, {"value": "a"}, ("traceparent", TRACEPARENT))

    shown = orders.get(f"/traces/{TRACE_ID}").json

    assert (shown["topic"], shown["partition"], shown["offset"]) == ("orders", 0, 0)
    assert (shown["status"], shown["outcome"]) == ("in_progress", "pending")
    types = [span["event_type"] for span in shown["spans"]]
    assert types == ["publish.received", "publish.partitioned", "publish.persisted"]
    assert [event["type"] for event in shown["events"]] == types


def test_a_message_without_a_trace_is_found_as_well(orders: OpenDoor) -> None:
    publish(orders, "a", key="k")
    publish(orders, "b")

    (listed,) = orders.get("/traces/search?topic=orders&key=k").json["traces"]

    assert (listed["offset"], listed["span_count"]) == (0, 3)
    assert orders.get(f"/traces/{listed['trace_id']}").json["offset"] == 0
    assert [one["offset"] for one in orders.get("/traces?limit=10").json["traces"]] == [1, 0]
    assert [one["offset"] for one in orders.get("/traces/search?offset=1").json["traces"]] == [1]
    assert orders.get("/traces/stats").json["by_topic"] == {"orders": 2}
