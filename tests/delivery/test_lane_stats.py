"""Rates over the last minute, and how long messages wait."""

from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.delivery.lane_stats import LaneStats, Rate
from goqueue.delivery.offsets import span
from goqueue.record import kernel


def records(first_offset: int, count: int, *, stored_ns: int) -> bytearray:
    batch = kernel.encode([b"x"] * count)
    kernel.stamp(batch, first_offset=first_offset, timestamp=stored_ns)
    return batch


def test_a_rate_counts_what_happened_in_the_last_minute() -> None:
    rate = Rate(0)
    for second in range(120):
        rate.add(5, now_ns=second * SECOND)

    assert rate.per_second(119 * SECOND) == 5


def test_a_rate_that_has_just_begun_goes_by_the_time_since_then() -> None:
    rate = Rate(1_000 * SECOND)
    rate.add(10, now_ns=1_000 * SECOND)

    assert rate.per_second(1_000 * SECOND) == 10
    assert rate.per_second(1_004 * SECOND) == 2


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    rate = Rate(0)
    rate.add(600, now_ns=0)

    assert rate.per_second(59 * SECOND) == 10
    assert rate.per_second(60 * SECOND) == 0
    assert rate.per_second(10_000 * SECOND) == 0


def test_a_clock_that_goes_back_loses_nothing() -> None:
    rate = Rate(100 * SECOND)
    rate.add(6, now_ns=110 * SECOND)
    rate.add(6, now_ns=105 * SECOND)

    assert rate.per_second(111 * SECOND) == 1


def test_waits_are_summed_lane_by_lane_and_a_lane_that_never_moved_has_no_rate() -> None:
    first, second = records(0, 3, stored_ns=6 * SECOND), records(3, 2, stored_ns=7 * SECOND)
    stats = LaneStats()
    stats.note_delivered([first, second], BitMap64([4]), wall_ns=7 * SECOND)
    stats.note_done([(2, span(0, 12))], now_ns=100 * SECOND)

    assert (stats.delivered, stats.waited_us(2), stats.waited_us(3)) == ([0, 0, 4, 0, 0], 3_000_000, 0)
    assert stats.served_ns == [None, None, 7 * SECOND, None, None]
    assert (stats.done_per_second(2, 101 * SECOND), stats.done_per_second(0, 101 * SECOND)) == (6, 0)
