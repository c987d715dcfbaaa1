"""The series about the event loop: how late it is, and how many tasks it has.

Everything in the process waits for the loop. Its lag is how late a timer runs that is due all the time, so it is the
delay that any request meets as well.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram

from goqueue.clock import SECOND

LAG: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
WINDOW_NS: Final = 60 * SECOND
"""How long the worst lag is shown: several scrapes see it."""


class EventLoopMetrics:
    """Fed by a timer of the server (`server/loop_lag.py`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram("goqueue_eventloop_lag_seconds", "How late timers run", buckets=LAG, registry=registry)
        self._worst = Gauge("goqueue_eventloop_lag_max_seconds", "The worst lag of the last minute", registry=registry)
        self._tasks = Gauge("goqueue_eventloop_tasks", "Tasks that are alive", registry=registry)
        self._peaks: deque[tuple[int, int]] = deque()  # (time, lag); each lag is less than those before it

    def observe_lag(self, lag_ns: int, now_ns: int) -> None:
        """A timer was late by so much."""
        self._lag.observe(lag_ns / SECOND)
        peaks = self._peaks
        while peaks and peaks[-1][1] <= lag_ns:
            peaks.pop()
        peaks.append((now_ns, lag_ns))
        while peaks[0][0] <= now_ns - WINDOW_NS:
            peaks.popleft()

    def watch(self, count_tasks: Callable[[], int]) -> None:
        """Call this at each scrape for the number of tasks."""
        self._worst.set_function(lambda: self._peaks[0][1] / SECOND if self._peaks else 0.0)
        self._tasks.set_function(count_tasks)
