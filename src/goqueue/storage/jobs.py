"""Work that blocks, cut out of the log so that it can run in a thread.

A job is made by its log, runs anywhere, and is handed back to the log with `Log.complete`. While it runs
it touches only what it was given: open files, paths, numbers. What it finds takes effect when
the owner of the log completes it, between two other calls, so the log needs no locks.
"""

from contextlib import suppress
from typing import Protocol

from goqueue.storage.file import Disk
from goqueue.storage.layout import DELETED, SEGMENT_SUFFIXES
from goqueue.storage.segment import Segment


class Job(Protocol):
    """Something to run outside of the owner's thread."""

    def run(self) -> None:
        """Do the work. Blocks; raises `OSError` or `StorageError` if it cannot be done."""
        ...


class DeleteJob:
    """Takes files off the disk that no longer belong to the log."""

    def __init__(self, disk: Disk, directory: str, paths: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._paths = paths

    def run(self) -> None:
        for path in self._paths:
            self._disk.remove(path)
        self._disk.sync_directory(self._directory)


def mark_deleted(disk: Disk, segment: Segment) -> list[str]:
    """Give the files of the segment names that do not count any more, and return these."""
    paths = []
    for suffix in SEGMENT_SUFFIXES:
        path = segment.path(suffix)
        with suppress(FileNotFoundError):
            disk.rename(path, path + DELETED)
            paths.append(path + DELETED)
    return paths
