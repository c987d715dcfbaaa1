"""Spans: the algebra of sets, held against Python's own."""

from hypothesis import given
from hypothesis import strategies as st

from goqueue.spark import spans
from goqueue.spark.spans import Spans

offset_sets = st.sets(st.integers(0, 40))


def of(offsets: set[int]) -> Spans:
    return spans.union((offset, offset + 1) for offset in offsets)


def offsets_of(found: Spans) -> set[int]:
    return {offset for first, end in found for offset in range(first, end)}


@given(offset_sets, offset_sets)
def test_spans_are_sets(one: set[int], other: set[int]) -> None:
    assert spans.union(of(one), of(other)) == of(one | other)
    assert spans.minus(of(one), of(other)) == of(one - other)
    assert spans.within(of(one), of(other)) == of(one & other)
    assert spans.offset_count(of(one)) == len(one)


@given(offset_sets, st.integers(-1, 45), st.integers(0, 45))
def test_spans_are_cut_and_covered(offsets: set[int], count_max: int, gap: int) -> None:
    assert offsets_of(spans.first_of(of(offsets), count_max)) == set(sorted(offsets)[: max(0, count_max)])
    covering = spans.covering(of(offsets), gap)
    assert offsets <= offsets_of(covering)
    assert len(covering) <= len(of(offsets))


@given(offset_sets)
def test_spans_are_text(offsets: set[int]) -> None:
    assert spans.from_text(spans.to_text(of(offsets))) == of(offsets)


def test_text_is_short_and_nothing_else_is_taken_for_it() -> None:
    assert spans.to_text(((10, 11), (17, 20))) == "10,17-19"
    assert spans.from_text("") == ()
    for wrong in ("a", "1,", "2,1", "1,2", "3-2", "1-2-3", "-1", "9" * 20, "1 ,3"):
        assert spans.from_text(wrong) is None
