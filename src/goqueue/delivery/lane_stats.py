"""Statistics of lanes: rates over the last minute, and how long messages waited.

Counts are kept per second in a ring of sixty, so a rate is the sum of a minute and nothing has to be forgotten.
"""

from collections.abc import Collection, Iterable, Sequence
from operator import sub

from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.delivery.lanes import LANE_COUNT
from goqueue.record import kernel
from goqueue.record.header import Buffer

WINDOW_SECONDS = 60


class Rate:
    """How often something happened in the last minute."""

    __slots__ = ("_counts", "_second", "_started")

    def __init__(self, now_ns: int) -> None:
        self._counts = [0] * WINDOW_SECONDS
        self._second = self._started = now_ns // SECOND

    def add(self, count: int, *, now_ns: int) -> None:
        """Add events at that time."""
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
        self.delivered = [0] * LANE_COUNT  # for the first time, which ends the wait
        self.boosts = [0] * LANE_COUNT
        self.served_ns: list[int | None] = [None] * LANE_COUNT  # the last delivery, by the wall clock

    def note_delivered(self, records: Sequence[Buffer], redelivered: Collection[int], *, wall_ns: int) -> None:
        """Records are delivered now. Redelivered ones count as served, but their wait was counted before."""
        for part in records:
            counts, waited_us = kernel.waits(part, wall_ns)
            again: Sequence[int] = ()
            if redelivered:
                chosen = kernel.select(part, BitMap64(redelivered).to_array(), max_bytes=len(part))
                again, waited_again_us = kernel.waits(chosen.records, wall_ns)
                waited_us = tuple(map(sub, waited_us, waited_again_us))
            for lane, count in enumerate(counts):
                if count:
                    self.served_ns[lane] = wall_ns
                    self.delivered[lane] += count - again[lane] if again else count
                    self._waited_us[lane] += waited_us[lane]

    def note_done(self, parts: Iterable[tuple[int, BitMap64]], *, now_ns: int) -> None:
        """The group is done with these messages, which are given lane by lane."""
        for lane, offsets in parts:
            rate = self._dequeued[lane]
            if rate is None:
                rate = self._dequeued[lane] = Rate(now_ns)
            rate.add(len(offsets), now_ns=now_ns)

    def done_per_second(self, lane: int, now_ns: int) -> float:
        """Over the last minute, or since the first one if that is shorter."""
        rate = self._dequeued[lane]
        return rate.per_second(now_ns) if rate is not None else 0.0

    def waited_us(self, lane: int) -> int:
        """The sum of the waits of delivered messages."""
        return self._waited_us[lane]
