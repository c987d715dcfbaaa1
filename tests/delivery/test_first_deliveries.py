"""The first delivery of messages that failed, against a plain table."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.clock import MS, SECOND
from goqueue.delivery.first_deliveries import FirstDeliveries

TIMES = st.sampled_from([0, 1, 999_999_999, SECOND, SECOND + 5 * MS, 9 * SECOND + 1])
OFFSETS = st.frozensets(st.integers(0, 12), max_size=6)


def test_times_are_kept_to_the_nanosecond() -> None:
    first = FirstDeliveries()
    first.note(BitMap64([1, 2]), 5 * SECOND + 123_456_789)
    first.note(BitMap64([3]), 5 * SECOND + 123_456_790)

    assert [first.find(offset) for offset in range(5)] == [
        None,
        5_123_456_789,
        5_123_456_789,
        5_123_456_790,
        None,
    ]
    assert first.times == {5_123_456_789: BitMap64([1, 2]), 5_123_456_790: BitMap64([3])}


@given(st.lists(st.tuples(st.booleans(), OFFSETS, TIMES), max_size=20))
def test_what_is_noted_is_found_until_it_is_forgotten(steps: list[tuple[bool, frozenset[int], int]]) -> None:
    first = FirstDeliveries()
    model: dict[int, int] = {}

    for is_noted, offsets, time_ns in steps:
        if is_noted:
            fresh = offsets - model.keys()  # a message has one first delivery
            first.note(BitMap64(fresh), time_ns)
            model |= dict.fromkeys(fresh, time_ns)
        else:
            first.forget(BitMap64(offsets))
            model = {offset: at_ns for offset, at_ns in model.items() if offset not in offsets}
        again = FirstDeliveries(first.times)
        for offset in range(13):
            assert first.find(offset) == again.find(offset) == model.get(offset)
    first.forget(BitMap64(range(13)))
    assert {time_ns for time_ns, offsets in first.times.items() if offsets} == set()
