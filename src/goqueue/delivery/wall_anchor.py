"""Jumps of the wall clock, as opposed to the passing of time.

Delays are stored as wall-clock times, so that they survive a restart. While the broker runs they follow the monotonic
clock: an operator or NTP that sets the wall clock must not make a message early or late. So the distance between the
two clocks is remembered, and when it changes, all due times are moved with it.

Both clocks are slewed alike, so the distance changes by steps only. Steps smaller than the tolerance add up until they
are larger.
"""

from typing import NamedTuple

from goqueue.clock import MS

TOLERANCE_NS = 10 * MS
"""The tick of the wheel: no delay is more exact than that."""


class WallAnchor:
    """The distance between the wall clock and the monotonic clock, as last observed."""

    __slots__ = ("shift_ns",)

    def __init__(self, *, now_ns: int, wall_ns: int) -> None:
        self.shift_ns = wall_ns - now_ns

    def jump_ns(self, *, now_ns: int, wall_ns: int) -> int:
        """By how much the wall clock was set since the last observation; 0 if it was not."""
        jump_ns = wall_ns - now_ns - self.shift_ns
        return 0 if -TOLERANCE_NS <= jump_ns <= TOLERANCE_NS else jump_ns


class KnownBehind(NamedTuple):
    """The newest record is later than the wall clock, and delays were corrected by the clock at that time."""

    newest_ns: int
    wall_ns: int


def earliest_now(newest_ns: int, known: KnownBehind | None) -> int:
    """The least that the wall clock shows after a restart, if it was not set back while no broker ran.

    Times of records never go back, so usually it is that of the newest one. If the clock was
    known to be earlier than that, it is the clock at that time, or the time of a newer record.
    """
    return newest_ns if known is None or newest_ns > known.newest_ns else known.wall_ns
