"""Lanes: the ready messages by priority, and the order in which lanes are served.

Each priority has a lane, a set of offsets. Lanes are served by deficit round robin: in each round a lane gives as many
messages as its weight, critical first. So under load each lane gets its share and none is starved; the share of an
empty lane goes to the others. In `strict` mode a lane is served only if all higher lanes are empty.

In both modes a lane that is not empty and was not served for `boost_ns` goes first, once, with one share. A round
continues from one call to the next, so shares hold over many small polls as well as over few large ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig
from goqueue.record.header import Priority

LANE_COUNT = len(Priority)
_BITS = tuple(1 << lane for lane in range(LANE_COUNT))
DEFAULT_WEIGHTS = (50, 25, 15, 7, 3)
NORMAL = int(Priority.NORMAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """How the lanes of a topic share."""

    weights: tuple[int, ...] = DEFAULT_WEIGHTS
    strict: bool = False
    boost_ns: int = 30 * SECOND  # 0: never

    def __post_init__(self) -> None:
        if len(self.weights) != LANE_COUNT or min(self.weights) < 1:
            raise InvalidConfig("weights", self.weights, f"must be {LANE_COUNT} whole numbers from 1 on")


class LaneRun(NamedTuple):
    """Offsets of one lane to deliver next, in ascending order."""

    lane: int
    offsets: BitMap64


class Lanes:
    """The ready messages of one cursor."""

    __slots__ = (
        "_before",
        "_deficits",
        "_served_before",
        "_served_ns",
        "_taken",
        "_turn",
        "boosted",
        "config",
        "ready",
    )

    def __init__(self, config: LaneConfig, *, now_ns: int) -> None:
        self.config = config
        self.ready: tuple[BitMap64, ...] = tuple(BitMap64() for _ in range(LANE_COUNT))
        self._deficits = [0] * LANE_COUNT
        self._served_ns = [now_ns] * LANE_COUNT  # or when it was last empty
        self._served_before: list[int] = []  # and how that was before the last take
        self._taken: dict[int, int] = {}  # how many the last take has taken, by lane
        self._turn = 0
        self._before: tuple[list[int], int, list[int], int] | None = None  # the round, before the last take
        self.boosted: int | None = None  # the lane that the last take has put first, because it had waited for long

    @property
    def filled(self) -> int:
        """The lanes that are not empty: bit n for lane n."""
        filled = 0
        for bit, ready in zip(_BITS, self.ready, strict=True):
            if ready:
                filled |= bit
        return filled

    def __bool__(self) -> bool:
        return any(self.ready)

    def __len__(self) -> int:
        return sum(map(len, self.ready))

    def __contains__(self, offset: int) -> bool:
        return any(offset in lane for lane in self.ready)

    def put(self, lane: int, offsets: BitMap64, *, now_ns: int) -> None:
        """These are ready."""
        if not self.ready[lane]:
            self._served_ns[lane] = now_ns
        self.ready[lane].update(offsets)

    def put_range(self, lane: int, start: int, end: int, *, now_ns: int) -> None:
        """All offsets in [start, end) are ready."""
        if start < end:
            if not self.ready[lane]:
                self._served_ns[lane] = now_ns
            self.ready[lane].add_range(start, end)

    def discard(self, offsets: BitMap64) -> None:
        """These are no longer ready."""
        for lane in self.ready:
            lane.difference_update(offsets)

    def drop_below(self, offset: int) -> None:
        """Offsets below this one are no longer ready."""
        for lane in self.ready:
            if lane and lane.min() < offset:
                lane.remove_range(0, offset)

    def untake(self, runs: Sequence[LaneRun]) -> None:
        """Undo the last `take` for these; the round continues as if they had not been taken."""
        for lane, offsets in runs:
            self.ready[lane].update(offsets)
            self._taken[lane] = self._taken.get(lane, 0) - len(offsets)
            if not self._taken[lane]:  # nothing of the lane is delivered, so it was not served
                self._served_ns[lane] = self._served_before[lane]
                if lane == self.boosted:
                    self.boosted = None
        if runs and self._before is not None:
            self._deficits, self._turn, left, count = self._before
            self._before = None
            self._go_round(count - sum(len(offsets) for _, offsets in runs), left, [0] * LANE_COUNT)

    def take(self, count: int, *, now_ns: int) -> list[LaneRun]:
        """Up to `count` offsets, in the order of delivery; they are no longer ready."""
        filled = [lane for lane in range(LANE_COUNT) if self.ready[lane]]
        self._before = self.boosted = None
        if not filled:
            return []
        if len(filled) == 1:
            (only,) = filled
            taken = [self._cut(only, count)]
            self._deficits = [0] * LANE_COUNT
            self._turn = 0
        else:
            taken = [self._cut(lane, share) for lane, share in self._shares(count, now_ns)]
        self._served_before = list(self._served_ns)
        self._taken = {run.lane: len(run.offsets) for run in taken}
        for run in taken:
            self._served_ns[run.lane] = now_ns
        return taken

    def _cut(self, lane: int, count: int) -> LaneRun:
        ready = self.ready[lane]
        if len(ready) <= count:
            taken = ready.copy()
            ready.clear()
        elif count == 1:  # a third of the time that a slice takes
            first = ready.min()
            taken = BitMap64((first,))
            ready.remove(first)
        else:
            taken = ready[:count]
            ready.remove_range(taken.min(), taken.max() + 1)
        return LaneRun(lane, taken)

    def _shares(self, count: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """The number of messages that each lane gives."""
        left = [len(lane) for lane in self.ready]
        shares = [0] * LANE_COUNT
        boosted = self._starved(left, now_ns)
        if boosted is not None:
            self.boosted = boosted
            shares[boosted] = min(count, left[boosted], self.config.weights[boosted])
            left[boosted] -= shares[boosted]
        count = min(count - sum(shares), sum(left))
        if self.config.strict:
            for lane in range(LANE_COUNT):
                share = min(count, left[lane])
                shares[lane] += share
                count -= share
        else:
            self._before = list(self._deficits), self._turn, list(left), count
            self._go_round(count, left, shares)
        order = sorted(range(LANE_COUNT), key=lambda lane: lane != boosted)
        return ((lane, shares[lane]) for lane in order if shares[lane])

    def _go_round(self, count: int, left: list[int], shares: list[int]) -> None:
        """Deficit round robin over counts: divide `count` messages, which exist, among the lanes."""
        deficits, weights, lane = self._deficits, self.config.weights, self._turn
        while count > 0:
            if not deficits[lane]:
                deficits[lane] = weights[lane]
            share = min(deficits[lane], left[lane], count)
            shares[lane] += share
            left[lane] -= share
            count -= share
            deficits[lane] = deficits[lane] - share if left[lane] else 0
            if not deficits[lane]:
                lane = (lane + 1) % LANE_COUNT
        self._turn = lane

    def _starved(self, left: Sequence[int], now_ns: int) -> int | None:
        """The lane that has waited longest, if that is longer than `boost_ns`."""
        if not self.config.boost_ns:
            return None
        longest = min((lane for lane in range(LANE_COUNT) if left[lane]), key=lambda lane: self._served_ns[lane])
        return longest if now_ns - self._served_ns[longest] >= self.config.boost_ns else None
