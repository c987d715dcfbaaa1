"""Calls at a given time, made by `tick`. Precise to the interval at which the owner ticks."""

import heapq
from collections.abc import Callable
from itertools import count

SWEPT_FROM = 64
"""With fewer entries, cancelled timers are not removed before their time."""


class Timer:
    """One future call, unless it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not make the call."""
        self.callback = None


class Timers:
    """Calls in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._cancelled_max = SWEPT_FROM

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time_ns: int, callback: Callable[[], None]) -> Timer:
        """Call at the first tick at or after that monotonic time."""
        timer = Timer(callback)
        if len(self._heap) > self._cancelled_max:
            self._sweep()
        heapq.heappush(self._heap, (time_ns, next(self._order), timer))
        return timer

    def tick(self, now_ns: int) -> None:
        """Make the calls that are due."""
        while self._heap and self._heap[0][0] <= now_ns:
            timer = heapq.heappop(self._heap)[2]
            if timer.callback:
                timer.callback()

    def _sweep(self) -> None:
        """Remove cancelled timers, so that they cannot pile up before their time."""
        self._heap = [entry for entry in self._heap if entry[2].callback]
        heapq.heapify(self._heap)
        self._cancelled_max = max(SWEPT_FROM, 2 * len(self._heap))
