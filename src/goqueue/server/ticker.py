"""A call at the multiples of an interval in an event loop, which also detects a blocked loop.

Everything in the process waits for the loop. A tick that is a second late means that something blocked the loop, and
that every client waited, too.
"""

import asyncio
import logging
from collections.abc import Callable

from goqueue.clock import MS, SECOND, Clock, until_next

STALL_NS = SECOND
SPACING_NS = MS
"""The least time between two ticks: work that is due together is done together. Event loops count in milliseconds."""

_log = logging.getLogger(__name__)


class Ticker:
    """Calls `tick` until it is stopped. A tick that fails is logged, and the next one comes nevertheless.

    If several tickers run in one loop, only one of them should warn of stalls (`warns`).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tick: Callable[[], None],
        *,
        interval_ns: int,
        warns: bool = True,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._tick = tick
        self._interval_ns = interval_ns
        self._warns = warns
        wait_ns = until_next(clock.monotonic_ns(), interval_ns)
        self._due_ns = clock.monotonic_ns() + wait_ns
        self._next = loop.call_later(wait_ns / SECOND, self._run)
        self._is_running = False
        self._is_stopped = False

    def stop(self) -> None:
        """Tick no more."""
        self._is_stopped = True
        self._next.cancel()

    def wake_at(self, time_ns: int) -> None:
        """Tick at that time, if not before.

        A time in the past is moved to now: otherwise the tick would look late, as if the loop had been blocked.
        """
        if time_ns < self._due_ns - SPACING_NS:
            self._due_ns = min(self._due_ns, max(time_ns, self._clock.monotonic_ns()))
            if not self._is_running:
                self._schedule()

    def _schedule(self) -> None:
        if self._is_stopped:
            return
        self._next.cancel()
        wait_ns = max(0, self._due_ns - self._clock.monotonic_ns()) + SPACING_NS  # rather late than early
        self._next = self._loop.call_later(wait_ns / SECOND, self._run)

    def _run(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._warns and now_ns - self._due_ns > STALL_NS:
            _log.warning("event loop blocked", extra={"seconds": round((now_ns - self._due_ns) / SECOND, 3)})
        self._due_ns = now_ns + until_next(now_ns, self._interval_ns)
        self._is_running = True
        try:
            self._tick()
        except Exception:
            _log.exception("tick failed")
        finally:
            self._is_running = False
            self._due_ns = max(self._due_ns, self._clock.monotonic_ns())
            self._schedule()
