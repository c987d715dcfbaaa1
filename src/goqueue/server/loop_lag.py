"""A timer that measures how late the event loop is.

It is due every 100 ms, and observes its own lateness. A loop that was blocked for three seconds gives one observation
of three seconds, not thirty: the next one is due within 100 ms after that.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from goqueue.clock import MS, SECOND, Clock, until_next
from goqueue.server.ticker import SPACING_NS

INTERVAL_NS: Final = 100 * MS


class LoopLag:
    """Calls `observe(lag_ns, now_ns)` until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, observe: Callable[[int, int], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._observe = observe
        self._schedule(clock.monotonic_ns())

    def stop(self) -> None:
        """Measure no more."""
        self._next.cancel()

    def _schedule(self, now_ns: int) -> None:
        wait_ns = until_next(now_ns, INTERVAL_NS) + SPACING_NS
        self._due_ns = now_ns + wait_ns
        self._next = self._loop.call_later(wait_ns / SECOND, self._look)

    def _look(self) -> None:
        now_ns = self._clock.monotonic_ns()
        self._observe(max(0, now_ns - self._due_ns), now_ns)
        self._schedule(now_ns)
