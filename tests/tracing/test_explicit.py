"""Messages that name their trace are found by it, as long as they are among the latest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.tracing.context import TraceContext, explicit_context
from goqueue.tracing.explicit import FEW_BYTES, NO_CONTEXTS, ExplicitTraces, contexts_in
from goqueue.tracing.rows import MessageLocation

HERE = TopicPartition("orders", 0)
TRACES = [f"{number:032x}" for number in range(1, 9)]
GOOD = f"00-{TRACES[0]}-b7ad6b7169203331-01"

NAMES = st.sampled_from(["traceparent", "gq-trace", "traceparent2", "xtraceparent", "tracestate", "", "other"])
VALUES = st.sampled_from([GOOD, GOOD.upper(), "", TRACES[1], "x" * 200, f"01-{TRACES[2]}-b7ad6b7169203331-00-more"])
HEADERS = st.one_of(st.none(), st.dictionaries(NAMES, VALUES, max_size=4))


def context(number: int) -> TraceContext:
    return TraceContext(TRACES[number], "", is_sampled=True)


def stamped(headers: list[dict[str, str] | None], value: bytes, *, first_offset: int) -> bytearray:
    records = kernel.encode([value] * len(headers), headers=list(headers))
    kernel.stamp(records, first_offset=first_offset, timestamp=5)
    return records


@pytest.mark.parametrize("value", [b"v", b"traceparent" * 300])
@given(headers=st.lists(HEADERS, min_size=1, max_size=12))
def test_a_batch_names_what_each_of_its_records_names(value: bytes, headers: list[dict[str, str] | None]) -> None:
    records = stamped(headers, value, first_offset=100)
    expected = {}
    for message in kernel.decode(records, HERE, StoredMessage):
        found = explicit_context(message.encoded_headers)
        if found is not None:
            expected[message.offset] = found

    assert contexts_in(memoryview(records), 100) == expected
    assert contexts_in(bytes(records), 100) == expected


def test_records_that_name_nothing_share_one_answer() -> None:
    small = stamped([{"a": "b"}], b"v", first_offset=0)
    large = stamped([{"a": "b"}], b"v" * FEW_BYTES, first_offset=0)

    assert contexts_in(small, 0) is NO_CONTEXTS
    assert contexts_in(large, 0) is NO_CONTEXTS


def test_a_name_that_stands_twice_counts_by_its_last_value() -> None:
    raw = bytearray(
        stamped([{"traceparent": GOOD, "Xraceparent": GOOD.replace(TRACES[0], TRACES[3])}], b"v", first_offset=0)
    )
    doubled = bytes(raw).replace(b"Xraceparent", b"traceparent")
    (message,) = kernel.decode(doubled, HERE, StoredMessage, verify=False)

    found = contexts_in(doubled, 0)
    assert found == {0: explicit_context(message.encoded_headers)}
    assert found[0].trace_id == TRACES[3]


def test_a_trace_has_all_the_messages_that_name_it() -> None:
    known = ExplicitTraces(10)
    known.note(HERE, {1: context(0), 2: context(1), 3: context(0)})

    assert known.places(TRACES[0]) == (MessageLocation("orders", 0, 1), MessageLocation("orders", 0, 3))
    assert known.places(TRACES[5]) == ()
    assert known.context(MessageLocation("orders", 0, 2)) == context(1)
    assert known.context(MessageLocation("orders", 1, 2)) is None
    assert known.of(HERE, BitMap64([0, 2, 3])) == {2: context(1), 3: context(0)}
    assert known.of(TopicPartition("other", 0), BitMap64([2])) == {}
    assert len(known) == 2


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 7)), max_size=60))
def test_the_latest_are_kept_and_all_tables_agree(notes: list[tuple[int, int, int]]) -> None:
    known = ExplicitTraces(10)
    order: list[tuple[MessageLocation, TraceContext]] = []
    for partition, offset, number in notes:
        known.note(TopicPartition("orders", partition), {offset: context(number)})
        place = MessageLocation("orders", partition, offset)
        if place not in [other for other, _ in order]:
            order.append((place, context(number)))
        order = order[-10:]

    for partition in range(3):
        expected = {place.offset: one for place, one in order if place.partition == partition}
        assert known.of(TopicPartition("orders", partition), BitMap64(range(31))) == expected
    for trace_id in TRACES:
        assert known.places(trace_id) == tuple(place for place, one in order if one.trace_id == trace_id)


def test_a_topic_that_is_gone_takes_its_messages_along() -> None:
    known = ExplicitTraces(10)
    known.note(HERE, {1: context(0)})
    known.note(TopicPartition("other", 0), {7: context(0), 8: context(1)})

    known.forget("orders")

    assert known.places(TRACES[0]) == (MessageLocation("other", 0, 7),)
    assert known.of(HERE, BitMap64([1])) == {}
    for number in range(20):
        known.note(HERE, {100 + number: context(2)})
    assert known.places(TRACES[0]) == ()
