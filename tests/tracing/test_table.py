"""The table: flat rows for files and for Spark, from which the same moments can be read back."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.context import TraceContext
from goqueue.tracing.rows import PUBLISH, EventRow, EventType, Moment, moments
from goqueue.tracing.table import RUNS_MAX, TraceRow, encode_line, lines, read_lines

HERE = TopicPartition("orders", 3)


def row_of(kind: str, offsets: set[int], **facts: object) -> EventRow:
    chosen = BitMap64(offsets)
    first, end = chosen.min(), chosen.max() + 1
    kept = None if end - first == len(chosen) else chosen
    return EventRow(7, kind, 1_000, HERE, first, end, kept, len(chosen), **facts)  # type: ignore[arg-type]


def read_back(row: EventRow, contexts: dict[int, TraceContext] | None = None) -> list[Moment]:
    stored = read_lines([encode_line(line) for line in lines(row, contexts or {})])
    return sorted(
        moment for one, _ in stored for offset in range(one.first, one.end) for moment in moments(one, offset)
    )


@given(
    kind=st.sampled_from([PUBLISH, EventType.FETCHED, EventType.ROUTED, EventType.SCHEDULED, EventType.ACKED]),
    offsets=st.sets(st.integers(0, 40), min_size=1),
    data=st.data(),
)
def test_what_is_written_reads_the_same(kind: str, offsets: set[int], data: st.DataObject) -> None:
    some = st.dictionaries(st.sampled_from(sorted(offsets)), st.integers(2, 4))
    row = row_of(kind, offsets, group="g", member="m", error="e", reason="r", duration_ns=5)
    if kind == PUBLISH:
        row.group = row.member = row.error = row.reason = ""
        row.duration_ns = None
        row.written_ns, row.persisted_ns, row.timestamp_ns = 1_001, data.draw(st.sampled_from([0, 1_005])), 999
        row.origin, row.origin_offsets = TopicPartition("from", 1), data.draw(some)
    elif kind == EventType.FETCHED:
        row.attempts = data.draw(some)
    elif kind == EventType.SCHEDULED:
        row.deliver_at_ns = data.draw(some)
    elif kind == EventType.ROUTED:
        row.dlq_topic, row.dead_letters = (
            "orders.dlq",
            {offset: (0, place) for offset, place in data.draw(some).items()},
        )
    named = data.draw(st.dictionaries(st.sampled_from(sorted(offsets)), st.sampled_from("ab")))
    contexts = {offset: TraceContext(letter * 32, letter * 16, is_sampled=True) for offset, letter in named.items()}

    expected = sorted(moment for offset in offsets for moment in moments(row, offset))

    assert [_comparable(one) for one in read_back(row, contexts)] == [_comparable(one) for one in expected]
    told = {
        offset: one.context
        for one in read_lines([encode_line(line) for line in lines(row, contexts)])
        for offset in range(one.row.first, one.row.end)
    }
    assert told == {offset: contexts.get(offset) for offset in offsets}


def _comparable(moment: Moment) -> tuple[object, ...]:
    return (*moment[:-1], dict(moment.attributes))


def test_a_batch_is_one_line_however_large_it_is() -> None:
    assert len(list(lines(row_of(EventType.ACKED, set(range(10_000)))))) == 1
    publish = row_of(PUBLISH, set(range(10_000)), written_ns=1_001, persisted_ns=1_002)
    assert [line.event_type for line in lines(publish)] == [
        "publish.received",
        "publish.partitioned",
        "publish.persisted",
    ]


def test_what_differs_in_one_message_costs_lines_for_that_one_only() -> None:
    told = list(lines(row_of(EventType.FETCHED, set(range(1_000)), attempts={500: 3})))

    assert [(line.first_offset, line.last_offset, line.attempt) for line in told] == [
        (0, 499, 1),
        (501, 999, 1),
        (500, 500, 3),
    ]


def test_dead_letters_that_follow_one_another_are_one_line() -> None:
    dead_letters = {10: (0, 70), 11: (0, 71), 12: (0, 80), 13: (1, 81)}
    told = list(lines(row_of(EventType.ROUTED, {10, 11, 12, 13}, dead_letters=dead_letters, dlq_topic="d")))

    assert [(line.first_offset, line.count, line.dlq_partition, line.dlq_offset) for line in told] == [
        (10, 2, 0, 70),
        (12, 1, 0, 80),
        (13, 1, 1, 81),
    ]


def test_what_is_scattered_too_far_ends_in_one_line_that_says_how_many_it_means() -> None:
    offsets = set(range(0, 10_000, 2))
    told = list(lines(row_of(EventType.ACKED, offsets)))

    assert len(told) == RUNS_MAX + 1
    assert sum(line.count for line in told) == len(offsets)
    assert (told[-1].first_offset, told[-1].last_offset) == (2 * RUNS_MAX, 9_998)
    read = [one.row.first for one in read_lines([encode_line(line) for line in told])]
    assert read == [2 * number for number in range(RUNS_MAX)]


def test_what_concerns_no_message_has_no_offsets() -> None:
    (started,) = lines(EventRow(1, EventType.REBALANCE_STARTED, 5, TopicPartition("", -1), group="g", reason="join"))
    (assigned,) = lines(EventRow(1, EventType.ASSIGNED, 5, HERE, group="g", member="m"))

    assert (started.topic, started.partition, started.first_offset, started.count) == ("", None, None, 0)
    assert (assigned.topic, assigned.partition, assigned.consumer_id, assigned.count) == ("orders", 3, "m", 0)
    assert list(read_lines([encode_line(started), encode_line(assigned)])) == []


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(value: bytes) -> None:
    assert list(read_lines([value])) == []


def test_unknown_fields_of_a_later_version_are_passed_over() -> None:
    (line,) = lines(row_of(EventType.ACKED, {1}))
    later = msgspec.json.encode({**msgspec.to_builtins(line), "tenant": "x"})

    assert len(list(read_lines([later]))) == 1
    assert set(msgspec.to_builtins(line)) == set(TraceRow.__struct_fields__)
