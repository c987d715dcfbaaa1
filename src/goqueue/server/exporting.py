"""Exporters of traces, each in a thread of its own.

They wait for disks and networks, and may do so for ever: a thread that hangs holds up neither the event loop nor the
threads that flush logs, and a server that stops leaves it behind. What an exporter did not get through is bounded; more
is refused, and whoever recorded it counts it.
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
"""Of single messages, that may wait for one exporter."""
CLOSE_S = 4.0
LOG_INTERVAL_NS = 60 * SECOND

_log = logging.getLogger(__name__)


class ExporterThread:
    """Takes rows in the loop and exports them in its thread."""

    def __init__(self, exporter: Exporter, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.name = exporter.name
        self.needs_trace_ids = exporter.needs_trace_ids
        self.tell: Callable[[str, int, Exception | None], None] = _nobody
        self._exporter = exporter
        self._loop = loop
        self._clock = clock
        self._queue: SimpleQueue[tuple[int, Sequence[Export]] | None] = SimpleQueue()
        self._waiting = 0
        self._logged_ns: int | None = None
        self._thread = Thread(target=self._run, name=f"goqueue-traces-{self.name}", daemon=True)
        self._thread.start()

    def put(self, exports: Sequence[Export]) -> bool:
        """Take them, unless too many wait already; one export is taken however large it is."""
        count = sum(export.row.event_count for export in exports)
        if self._waiting and self._waiting + count > WAITING_EVENTS_MAX:
            return False
        self._waiting += count
        self._queue.put((count, exports))
        return True

    def stop(self) -> None:
        """End when all that waits is exported."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it has come."""
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
            with suppress(RuntimeError):  # the loop is closed, and there is nobody to be told
                self._loop.call_soon_threadsafe(self._done, count, error)
        with suppress(Exception):
            self._exporter.close()

    def _done(self, count: int, error: Exception | None) -> None:
        self._waiting -= count
        self.tell(self.name, count, error)
        now_ns = self._clock.monotonic_ns()
        if error and (self._logged_ns is None or now_ns - self._logged_ns >= LOG_INTERVAL_NS):
            self._logged_ns = now_ns
            _log.warning("traces could not be exported", extra={"exporter": self.name, "reason": str(error)})


def close_all(threads: Sequence[ExporterThread], clock: Clock, *, timeout_s: float = CLOSE_S) -> None:
    """Let the exporters finish, all of them together for no longer than that."""
    for thread in threads:
        thread.stop()
    end_ns = clock.monotonic_ns() + round(timeout_s * SECOND)
    for thread in threads:
        left_s = max(0, end_ns - clock.monotonic_ns()) / SECOND
        if not thread.join(left_s):
            _log.warning("an exporter of traces does not end, and is left behind", extra={"exporter": thread.name})


def _nobody(name: str, count: int, error: Exception | None) -> None:
    """The broker is not there yet."""
