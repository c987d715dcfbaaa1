"""Trace statistics over sets of offsets: what is completed, pending or failed, and how long it took."""

from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.counts import TraceCounts
from goqueue.tracing.rows import PUBLISH, EventRow, EventType

HERE = TopicPartition("orders", 0)


def row(kind: str, first: int, end: int, *, group: str = "", time_ns: int = 0) -> EventRow:
    return EventRow(1, kind, time_ns, HERE, first, end, None, end - first, group)


def counted(*rows: EventRow) -> TraceCounts:
    counts = TraceCounts()
    for one in rows:
        counts.add(one)
    return counts


def test_a_message_is_completed_when_every_group_that_got_it_has_acked_it() -> None:
    counts = counted(
        row(PUBLISH, 0, 4),
        row(EventType.FETCHED, 0, 4, group="a"),
        row(EventType.FETCHED, 0, 2, group="b"),
        row(EventType.ACKED, 0, 4, group="a"),
    )

    assert counts.completed(HERE) == BitMap64([2, 3])
    assert counts.pending(HERE) == BitMap64([0, 1])


def test_what_was_dead_lettered_has_failed_until_it_is_acked() -> None:
    counts = counted(row(PUBLISH, 0, 2), row(EventType.ROUTED, 0, 2, group="a"), row(EventType.ACKED, 1, 2, group="a"))

    assert counts.error(HERE) == BitMap64([0])
    assert counts.sum_up() == (2, 1, 1, {"orders": 2})


def test_messages_that_are_left_out_count_nowhere() -> None:
    counts = counted(
        row(PUBLISH, 0, 2), row(EventType.ACKED, 0, 1, group="a"), row(EventType.REJECTED, 1, 2, group="a")
    )

    counts.leave_out(HERE, BitMap64([0, 1]))

    assert counts.sum_up() == (0, 0, 0, {})


def test_latency_goes_from_the_publish_to_the_last_ack() -> None:
    rows = [
        row(PUBLISH, 0, 2, time_ns=100),
        row(EventType.ACKED, 0, 2, group="a", time_ns=150),
        row(EventType.ACKED, 1, 2, group="b", time_ns=300),
    ]

    assert counted(*rows).latency(rows) == (2, 50 + 200)
