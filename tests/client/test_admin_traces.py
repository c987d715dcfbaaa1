"""Traces, as an application asks for them."""

import asyncio

import pytest

from goqueue import AsyncClient, Client, InvalidRequest, NotFound
from goqueue.wire.trace_reports import Trace
from tests.client.test_consumer import eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def orders(gq: Client) -> Client:
    gq.create_topic("orders", partitions=1, backoff_initial="10ms", max_deliveries=2)
    return gq


def types(trace: Trace) -> list[str]:
    return [span.event_type for span in trace.spans]


PUBLISHED = ["publish.received", "publish.partitioned", "publish.persisted"]


def test_a_message_is_followed_by_what_publish_returned(orders: Client) -> None:
    published = orders.publish("orders", b"1")
    orders.publish("orders", b"2")

    trace = orders.trace(published)

    assert (trace.topic, trace.partition, trace.offset) == ("orders", 0, published.offset)
    assert (trace.status, trace.outcome, trace.span_count) == ("in_progress", "pending", 3)
    assert types(trace) == PUBLISHED


def test_a_message_is_followed_by_itself(orders: Client) -> None:
    orders.publish_many("orders", [b"1", b"2"])
    first, second = orders.read("orders")

    for message in (first, second):
        trace = orders.trace(message)
        assert (trace.trace_id, trace.offset) == (message.trace.trace_id, message.offset)


def test_a_message_is_followed_by_the_trace_of_whoever_published_it(orders: Client) -> None:
    published = orders.publish("orders", b"1", headers={"traceparent": TRACEPARENT})
    (message,) = orders.read("orders")

    assert message.trace.trace_id == TRACE_ID
    found = [orders.trace(which) for which in (TRACE_ID, message, published, ("orders", 0, 0))]
    assert [trace.trace_id for trace in found] == [TRACE_ID] * 4


def test_what_consumers_do_is_in_it(orders: Client) -> None:
    published = orders.publish("orders", b"1")
    with orders.consumer("orders", group="billing", member_id="worker-1") as consumer:
        (message,) = consumer.poll(1, "10s")
        message.nack(reason="busy")
        (message,) = consumer.poll(1, "10s")
        with pytest.raises(ValueError, match="bad"), message:
            raise ValueError("bad")
    eventually(lambda: "dlq.routed" in types(orders.trace(published)))

    trace = orders.trace(message)

    assert [name for name in types(trace) if name.startswith("consume")] == [
        "consume.fetched",
        "consume.nacked",
        "consume.fetched",
        "consume.nacked",
    ]
    assert {span.consumer_id for span in trace.spans if span.group == "billing"} == {"worker-1"}
    assert [span.error for span in trace.spans if span.event_type == "consume.nacked"] == ["busy", "ValueError: bad"]
    assert trace.outcome == "error"


def test_a_copy_among_the_dead_letters_belongs_to_the_same_trace(orders: Client) -> None:
    published = orders.publish("orders", b"1")
    with orders.consumer("orders", group="billing") as consumer:
        (message,) = consumer.poll(1, "10s")
        message.reject(reason="bad")
    eventually(lambda: orders.trace(published).status == "failed")

    (letter,) = orders.read("orders.dlq")

    assert letter.trace.trace_id == message.trace.trace_id
    assert orders.trace(letter).offset == published.offset


def test_recent_traces_come_newest_first_and_without_spans(orders: Client) -> None:
    for number in range(5):
        orders.publish("orders", str(number))

    found = orders.traces(limit=3)

    assert [(trace.offset, trace.span_count, trace.spans) for trace in found] == [(4, 3, []), (3, 3, []), (2, 3, [])]


def test_traces_are_searched(orders: Client) -> None:
    orders.create_topic("payments", partitions=1)
    orders.publish("orders", b"1", key="k")
    orders.publish("payments", b"2", key=b"\xff")
    orders.publish("orders", b"3", delay="1h")

    def found(**wanted: object) -> list[tuple[str, int]]:
        return [(trace.topic, trace.offset) for trace in orders.search_traces(**wanted)]  # type: ignore[arg-type]

    assert found() == [("orders", 1), ("payments", 0), ("orders", 0)]
    assert found(limit=1) == [("orders", 1)]
    assert found(topic="orders", partition=0) == [("orders", 1), ("orders", 0)]
    assert found(key="k") == [("orders", 0)]
    assert found(key=b"\xff") == [("payments", 0)]
    assert found(status="delayed") == [("orders", 1)]
    assert found(status="pending", offset=0) == [("payments", 0), ("orders", 0)]
    assert found(since="1h ago", until="now", topic="payments") == [("payments", 0)]
    assert found(until="1h ago") == []
    assert found(slower_than="1h") == []
    assert found(group="nobody") == []


def test_traces_are_counted(orders: Client) -> None:
    orders.publish("orders", b"1")

    counted = orders.trace_stats()

    assert counted.enabled
    assert counted.traces_total >= 1
    assert counted.by_topic["orders"] >= 1


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ("f" * 32, NotFound),
        (("orders", 0, 99), NotFound),
        (("orders", 9, 0), NotFound),
        (("nothing", 0, 0), NotFound),
        ("nonsense", InvalidRequest),
        ("", InvalidRequest),
        (TRACE_ID.upper(), InvalidRequest),
    ],
)
def test_what_is_not_there_is_said(orders: Client, which: str | tuple[str, int, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        orders.trace(which)


@pytest.mark.parametrize(
    "wanted", [{"status": "lost"}, {"limit": 0}, {"since": "yesterday"}, {"slower_than": "5 moons"}, {"partition": "0"}]
)
def test_what_makes_no_sense_is_refused(orders: Client, wanted: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        orders.search_traces(**wanted)  # type: ignore[arg-type]


def test_the_asynchronous_client_asks_the_same(orders: Client, address: str) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as gq:
            published = await gq.publish("orders", b"1")
            trace = await gq.trace(published)
            assert [one.trace_id for one in await gq.traces(limit=1)] == [trace.trace_id]
            assert [one.trace_id for one in await gq.search_traces(topic="orders")] == [trace.trace_id]
            assert (await gq.trace_stats()).enabled

    asyncio.run(ask())
