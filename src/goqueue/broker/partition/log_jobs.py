"""The jobs of the logs of one partition, which run in worker threads.

A job belongs to its log, not to a leader: a flush that one leader has begun may end when another one leads, or none.
Its result takes effect in the log in any case. Then the callback of the one that began it is called and, if the role
has changed meanwhile, `handed_over`, so that the new leader learns what has become durable.
"""

from collections.abc import Callable
from typing import Protocol

from goqueue.storage.jobs import Job
from goqueue.storage.log import Log


class Workers(Protocol):
    """Threads for jobs that block."""

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        """Run the job in a thread, then call `done` in the thread that owns the broker, with the error or None."""


class Flushable(Protocol):
    """A role whose logs may have something to flush; housekeeping looks at it until `may_be_due` is false."""

    @property
    def may_be_due(self) -> bool: ...
    def flush(self, *, lazily: bool = False) -> None: ...


class LogJobs:
    """Runs jobs, and counts those that are under way."""

    __slots__ = ("_handed_over", "_term", "_workers", "running")

    def __init__(self, workers: Workers, handed_over: Callable[[], None]) -> None:
        self._workers = workers
        self._handed_over = handed_over
        self._term = 0
        self.running = 0

    def role_changed(self) -> None:
        """Another leader, or none, from now on."""
        self._term += 1

    def run(self, log: Log, job: Job, done: Callable[[], None]) -> None:
        """Run a job, and the jobs that follow it; then call `done`."""
        self._run(log, job, done, self._term)

    def _run(self, log: Log, job: Job, done: Callable[[], None], term: int) -> None:
        self.running += 1

        def complete(error: Exception | None) -> None:
            self.running -= 1
            following = log.complete(job, error)
            if following and not log.is_closed:
                self._run(log, following, done, term)
                return
            done()
            if term != self._term:
                self._handed_over()

        self._workers.submit(job, complete)
