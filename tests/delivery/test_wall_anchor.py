"""What is a jump of the wall clock, and what a restart may believe of it."""

import pytest

from goqueue.clock import SECOND
from goqueue.delivery.wall_anchor import TOLERANCE_NS, KnownBehind, WallAnchor, earliest_now


def test_time_that_passes_on_both_clocks_is_no_jump() -> None:
    anchor = WallAnchor(now_ns=5, wall_ns=1_000 * SECOND)

    assert anchor.jump_ns(now_ns=5 + 10 * SECOND, wall_ns=1_010 * SECOND) == 0


@pytest.mark.parametrize("by", [-60 * SECOND, 60 * SECOND, TOLERANCE_NS + 1, -TOLERANCE_NS - 1])
def test_a_clock_that_was_set_has_jumped(by: int) -> None:
    anchor = WallAnchor(now_ns=5, wall_ns=1_000 * SECOND)

    assert anchor.jump_ns(now_ns=5 + SECOND, wall_ns=1_001 * SECOND + by) == by


def test_small_steps_add_up() -> None:
    anchor = WallAnchor(now_ns=0, wall_ns=0)

    assert anchor.jump_ns(now_ns=0, wall_ns=TOLERANCE_NS) == 0
    assert anchor.jump_ns(now_ns=0, wall_ns=2 * TOLERANCE_NS) == 2 * TOLERANCE_NS


def test_after_a_restart_it_is_as_late_as_the_newest_record_unless_that_is_known_to_be_ahead() -> None:
    assert earliest_now(100, None) == 100
    assert earliest_now(100, KnownBehind(100, 40)) == 40
    assert earliest_now(120, KnownBehind(100, 40)) == 120
