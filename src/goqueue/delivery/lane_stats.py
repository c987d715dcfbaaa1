"""How lanes have moved: rates over the last minute, and how long messages waited, lane by lane.

Counts are kept per second in a ring of sixty, so a rate is the sum of a minute and nothing has to be forgotten.
"""

from goqueue.clock import SECOND
from goqueue.delivery.lanes import LANE_COUNT

WINDOW_SECONDS = 60


class Rate:
    """How often something happened in the last minute."""

    __slots__ = ("_counts", "_second", "_started")

    def __init__(self, now_ns: int) -> None:
        self._counts = [0] * WINDOW_SECONDS
        self._second = self._started = now_ns // SECOND

    def add(self, count: int, *, now_ns: int) -> None:
        """It happened so many times more."""
        second = now_ns // SECOND
        if second != self._second:
            self._move(second)
        self._counts[self._second % WINDOW_SECONDS] += count

    def per_second(self, now_ns: int) -> float:
        """Over the last minute, or since the start if that is shorter."""
        self._move(now_ns // SECOND)
        return sum(self._counts) / max(1, min(WINDOW_SECONDS, self._second - self._started + 1))

    def _move(self, second: int) -> None:
        passed = second - self._second
        if passed > 0:
            for step in range(min(passed, WINDOW_SECONDS)):
                self._counts[(second - step) % WINDOW_SECONDS] = 0
            self._second = second


class LaneStats:
    """The movement of the lanes of one partition, as one group sees them."""

    __slots__ = ("_dequeued", "_waited_us", "boosts", "delivered", "served_ns")

    def __init__(self) -> None:
        self._dequeued: list[Rate | None] = [None] * LANE_COUNT
        self._waited_us = [0] * LANE_COUNT
        self.delivered = [0] * LANE_COUNT  # for the first time; a wait is over then
        self.boosts = [0] * LANE_COUNT
        self.served_ns: list[int | None] = [None] * LANE_COUNT  # the last delivery, as the calendar shows it

    def served(self, lane: int, wall_ns: int) -> None:
        """Messages of the lane went out, for the first time or again."""
        self.served_ns[lane] = wall_ns

    def waited(self, lane: int, count: int, waited_us: int) -> None:
        """So many messages went out for the first time; they had waited so long, all together."""
        self.delivered[lane] += count
        self._waited_us[lane] += waited_us

    def done(self, lane: int, count: int, *, now_ns: int) -> None:
        """The group is done with so many messages more."""
        rate = self._dequeued[lane]
        if rate is None:
            rate = self._dequeued[lane] = Rate(now_ns)
        rate.add(count, now_ns=now_ns)

    def done_per_second(self, lane: int, now_ns: int) -> float:
        """Over the last minute, or since the first one if that is shorter."""
        rate = self._dequeued[lane]
        return rate.per_second(now_ns) if rate is not None else 0.0

    def waited_us(self, lane: int) -> int:
        """How long those that were delivered have waited, all together."""
        return self._waited_us[lane]
