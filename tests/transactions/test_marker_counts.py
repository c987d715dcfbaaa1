"""Markers are counted, whatever retention takes."""

from hypothesis import given
from hypothesis import strategies as st

from goqueue.transactions.marker_counts import STRETCH, MarkerCounts


@given(
    st.sets(st.integers(0, 5 * STRETCH), max_size=60),
    st.lists(st.integers(0, 5 * STRETCH), max_size=6),
    st.booleans(),
)
def test_the_count_is_that_of_the_markers_that_are_left(markers: set[int], starts: list[int], is_saved: bool) -> None:
    counts = MarkerCounts()
    for offset in markers:
        counts.add(offset)
    start = 0
    for next_start in starts:
        start = max(start, next_start)
        if is_saved:
            counts = MarkerCounts(counts.saved)
        again = counts.drop_below(start)
        counts.add(again.start, len(markers.intersection(again)))

        assert counts.total == sum(offset >= start for offset in markers)
        assert all(counts.saved.values())
        assert len(again) < STRETCH


def test_nothing_is_counted_again_while_the_log_begins_where_it_did() -> None:
    counts = MarkerCounts()
    counts.add(7)

    assert list(counts.drop_below(5)) == list(range(5, STRETCH))
    counts.add(5)
    assert not counts.drop_below(5)
    assert counts.total == 1
