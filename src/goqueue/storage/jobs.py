"""Work that blocks, separated from the log so that it can run in a thread.

A job is made by its log, runs in any thread, and is handed back with `Log.complete`. While it runs it touches only what
it was given: open files, paths, numbers. Its result takes effect when the owner of the log completes it, between two
other calls, so the log needs no locks.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from threading import Lock
from typing import Protocol

from goqueue.storage.file import Disk
from goqueue.storage.layout import DELETED, SEGMENT_SUFFIXES
from goqueue.storage.segment import Segment


class Job(Protocol):
    """Something to run outside the thread of the owner."""

    def run(self) -> None:
        """Do the work. Blocks; raises `OSError` or `StorageError` if it cannot be done."""
        ...


class CancellableJob(ABC):
    """A job that the owner may cancel.

    A job that is cancelled before it runs does nothing. Cancelling a running job waits until it ends, and raises the
    error that it failed with: the operating system reports a disk error only once, so it must not get lost.
    """

    def __init__(self) -> None:
        self._running = Lock()
        self._error: OSError | None = None
        self._cancelled = False

    def run(self) -> None:
        with self._running:
            if self._cancelled:
                return
            try:
                self._work()
            except OSError as error:
                self._error = error
                raise

    def cancel(self) -> None:
        """Return once the job has ended, in whatever thread it runs."""
        self._cancelled = True
        with self._running:
            if self._error:
                raise self._error

    @abstractmethod
    def _work(self) -> None: ...


class DeleteJob:
    """Removes files that no longer belong to the log."""

    def __init__(self, disk: Disk, directory: str, paths: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._paths = paths

    def run(self) -> None:
        for path in self._paths:
            self._disk.remove(path)
        self._disk.sync_directory(self._directory)


def mark_deleted(disk: Disk, segment: Segment) -> list[str]:
    """Rename the files of the segment so that recovery ignores them, and return the new paths."""
    paths = []
    for suffix in SEGMENT_SUFFIXES:
        path = segment.path(suffix)
        with suppress(FileNotFoundError):
            disk.rename(path, path + DELETED)
            paths.append(path + DELETED)
    return paths
