"""Trace exporters, each in its own thread.

An exporter waits for a disk or the network, possibly forever. A thread that hangs blocks neither the event loop nor the
threads that flush logs, and a server that stops does not wait for it. The backlog of an exporter is bounded; beyond
that rows are refused, and the recorder counts them as dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from goqueue.clock import SECOND, Clock
from goqueue.tracing.export import Export, Exporter

WAITING_EVENTS_MAX = 200_000
"""The largest backlog of one exporter, in events of single messages."""
CLOSE_S = 4.0
LOG_INTERVAL_NS = 60 * SECOND

_log = logging.getLogger(__name__)


class ExporterThread:
    """Accepts rows in the event loop and exports them in its thread."""

    def __init__(self, exporter: Exporter, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.name = exporter.name
        self.needs_trace_ids = exporter.needs_trace_ids
        self.tell: Callable[[str, int, Exception | None], None] = _ignore
        self._exporter = exporter
        self._loop = loop
        self._clock = clock
        self._queue: SimpleQueue[tuple[int, Sequence[Export]] | None] = SimpleQueue()
        self._waiting = 0
        self._logged_ns: int | None = None
        self._thread = Thread(target=self._run, name=f"goqueue-traces-{self.name}", daemon=True)
        self._thread.start()

    def put(self, exports: Sequence[Export]) -> bool:
        """Accept the rows, unless the backlog is full; an empty backlog accepts any number."""
        count = sum(export.row.event_count for export in exports)
        if self._waiting and self._waiting + count > WAITING_EVENTS_MAX:
            return False
        self._waiting += count
        self._queue.put((count, exports))
        return True

    def stop(self) -> None:
        """End after the backlog is exported."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; false if it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            count, exports = taken
            error: Exception | None = None
            try:
                self._exporter.export(exports)
            except Exception as raised:
                error = raised
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._done, count, error)
        with suppress(Exception):
            self._exporter.close()

    def _done(self, count: int, error: Exception | None) -> None:
        self._waiting -= count
        self.tell(self.name, count, error)
        now_ns = self._clock.monotonic_ns()
        if error and (self._logged_ns is None or now_ns - self._logged_ns >= LOG_INTERVAL_NS):
            self._logged_ns = now_ns
            _log.warning("trace export failed", extra={"exporter": self.name, "reason": str(error)})


def close_all(threads: Sequence[ExporterThread], clock: Clock, *, timeout_s: float = CLOSE_S) -> None:
    """Let the exporters finish, all of them together within the timeout."""
    for thread in threads:
        thread.stop()
    end_ns = clock.monotonic_ns() + round(timeout_s * SECOND)
    for thread in threads:
        left_s = max(0, end_ns - clock.monotonic_ns()) / SECOND
        if not thread.join(left_s):
            _log.warning("trace exporter does not stop; the server exits without it", extra={"exporter": thread.name})


def _ignore(name: str, count: int, error: Exception | None) -> None:
    """Until the broker is open, there is nothing to tell."""
