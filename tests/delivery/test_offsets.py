"""Sets of offsets against sets of Python."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.offsets import between, first_gap, span
from goqueue.record.header import OFFSET_MAX

some = st.sets(st.integers(0, 300), max_size=300)
far = st.sampled_from([0, 65_530, 2**32 - 7, 2**40])


@given(some, st.integers(0, 310), far)
def test_the_first_gap_is_the_first_offset_that_is_missing(offsets: set[int], start: int, base: int) -> None:
    found = first_gap(BitMap64([base + offset for offset in offsets]), base + start)

    assert found - base == next(offset for offset in range(start, 700) if offset not in offsets)


def test_a_long_run_has_its_gap_at_its_end() -> None:
    assert first_gap(span(5, 3_000_000), 5) == 3_000_000
    assert first_gap(span(5, 3_000_000), 4) == 4
    assert first_gap(BitMap64(), 9) == 9


@given(some, st.integers(0, 310), st.integers(0, 310), far)
def test_between_is_what_lies_there(offsets: set[int], start: int, end: int, base: int) -> None:
    found = between(BitMap64([base + offset for offset in offsets]), base + start, base + end)

    assert {offset - base for offset in found} == {offset for offset in offsets if start <= offset < end}


def test_a_range_without_end_costs_nothing() -> None:
    assert list(between(BitMap64([3, 2**40]), 4, OFFSET_MAX)) == [2**40]
    assert list(between(BitMap64([3, 5, 2**40, 2**50]), 4, 2**41)) == [5, 2**40]
    assert not between(BitMap64([3, 2**40, 2**50]), 2**45, 2**49)
    assert not between(BitMap64([3]), 4, OFFSET_MAX)
    assert not between(BitMap64(), 0, OFFSET_MAX)
    assert not span(7, 7)
