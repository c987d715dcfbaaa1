import pytest

from goqueue.clock import SECOND, Clock
from goqueue.testing import ManualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(start_wall_ns=123)

    assert clock.wall_ns() == clock.wall_ns() == 123
    assert clock.monotonic_ns() == clock.monotonic_ns()


def test_clock_starts_on_the_same_date_in_every_run() -> None:
    assert ManualClock().wall_ns() == ManualClock().wall_ns() == 1_704_067_200 * SECOND


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(start_wall_ns=0)
    started_ns = clock.monotonic_ns()

    clock.advance(1.5)
    clock.advance_ns(7)

    assert clock.wall_ns() == 1_500_000_007
    assert clock.monotonic_ns() - started_ns == 1_500_000_007


def test_advance_rounds_to_the_nearest_nanosecond() -> None:
    clock = ManualClock(start_wall_ns=0)

    clock.advance(0.1)
    clock.advance(0.2)

    assert clock.wall_ns() == 300_000_000


def test_wall_clock_jumps_either_way_without_monotonic_time() -> None:
    clock = ManualClock(start_wall_ns=1000)
    started_ns = clock.monotonic_ns()

    clock.set_wall_ns(5)
    assert clock.wall_ns() == 5
    clock.set_wall_ns(5000)
    assert clock.wall_ns() == 5000

    assert clock.monotonic_ns() == started_ns


def test_time_does_not_pass_backwards() -> None:
    clock = ManualClock()

    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-0.001)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance_ns(-1)
