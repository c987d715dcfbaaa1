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
    """The movement of the lanes of one partition, all groups together."""

    __slots__ = ("_delivered", "_waited_ns", "dequeued", "enqueued")

    def __init__(self, now_ns: int) -> None:
        self.enqueued = [Rate(now_ns) for _ in range(LANE_COUNT)]
        self.dequeued = [Rate(now_ns) for _ in range(LANE_COUNT)]
        self._waited_ns = [0] * LANE_COUNT
        self._delivered = [0] * LANE_COUNT

    def delivered(self, lane: int, count: int, waited_ns: int) -> None:
        """So many messages went out; the first of them was stored that long ago."""
        self._waited_ns[lane] += count * max(0, waited_ns)
        self._delivered[lane] += count

    def average_wait_ns(self, lane: int) -> int:
        """How long messages of the lane wait before they go out."""
        return self._waited_ns[lane] // max(1, self._delivered[lane])
