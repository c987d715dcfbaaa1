"""Threads for work that blocks: fdatasync, deleting files, compaction.

The event loop hands over a job, a thread runs it, and its result is reported in the thread of the loop, where all state
lives. The number of threads is bounded; further jobs wait. They are not daemon threads, so the interpreter does not
exit in the middle of a job.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from goqueue.runtime.memory import trim_heap
from goqueue.storage.compaction import CompactJob
from goqueue.storage.jobs import Job

Done = Callable[[Exception | None], None]


class ThreadWorkers:
    """The `Workers` of a broker in an event loop. Called from that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads_max: int) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="goqueue-worker")
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def submit(self, job: Job, done: Done) -> None:
        """Run the job in a thread, then call `done` in the loop. After `close` neither happens."""
        if self._closed:
            return
        self._under_way += 1
        self._idle.clear()
        self._threads.submit(self._run, job, done)

    async def idle(self, *, grace_s: float) -> None:
        """Return once no job is under way, at the latest after `grace_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)

    def close(self) -> None:
        """Wait for running jobs, and drop those that did not begin. No result is reported any more."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job, done: Done) -> None:
        error: Exception | None = None
        try:
            job.run()
        except Exception as raised:
            error = raised
        if isinstance(job, CompactJob):  # its key table is many times larger than anything else
            trim_heap()
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._finished, done, error)

    def _finished(self, done: Done, error: Exception | None) -> None:
        self._under_way -= 1
        if not self._closed:
            try:
                done(error)
            finally:
                if not self._under_way:
                    self._idle.set()
