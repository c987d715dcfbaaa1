"""Rates over the last minute, and how long messages wait."""

from goqueue.clock import SECOND
from goqueue.delivery.lane_stats import LaneStats, Rate


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


def test_the_wait_is_averaged_over_messages_and_is_never_negative() -> None:
    stats = LaneStats(0)
    stats.delivered(2, 3, 4 * SECOND)
    stats.delivered(2, 1, 0)
    stats.delivered(3, 1, -SECOND)

    assert stats.average_wait_ns(2) == 3 * SECOND
    assert stats.average_wait_ns(3) == 0
    assert stats.average_wait_ns(0) == 0
