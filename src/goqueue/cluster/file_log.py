"""The metadata log for the nodes of one machine: several processes share one directory. Needs nothing installed.

`metadata_files.py` is the log itself, in files, and safe against other processes. This module makes a `MetadataLog` of
it: calls that wait, and watches.

Every call that touches a file runs in a thread of the handle, since an fdatasync may take long and the event loop has
leases and heartbeats to serve. It is one thread, so calls take effect in the order in which they were made, one that
was cancelled included, and the files need no lock within the process. Snapshots, which may be large, have a thread of
their own. While another process holds the lock of the log, the call waits on the loop and tries again.

A watch sleeps until the file with the mark is written to, by inotify. Where there is none, and once a second anyway, it
looks for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Self, TypeVar

from goqueue.cluster.metadata_files import SEGMENT_BYTES, LockHeld, MetadataFiles
from goqueue.cluster.metadata_log import (
    AppendOutcome,
    EntryUnknown,
    MetadataEntry,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import MetadataUnavailable
from goqueue.runtime.file_changes import FileChanges
from goqueue.storage.file import Disk

T = TypeVar("T")

DEADLINE_S: Final = 2.0
"""How long a call waits for the lock and the disk."""
_RETRY_S: Final = (0.0005, 0.004)
"""How long to wait for the lock before the second attempt, and at most. An append holds it about a millisecond."""
_LOOK_S: Final = 1.0
_LOOK_WITHOUT_INOTIFY_S: Final = 0.02
_WATCH_LIMIT: Final = 100


class FileMetadataLog:
    """A handle on the log in a directory. Made by `FileMetadataLog.open`."""

    def __init__(self, files: MetadataFiles, *, deadline_s: float) -> None:
        self._files = files
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="goqueue-metadata")
        self._snapshot_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="goqueue-metadata-snapshot")
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._changes: FileChanges | None = None
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._look_s = 0.0  # 0 until the first watch

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        deadline_s: float = DEADLINE_S,
        segment_bytes: int = SEGMENT_BYTES,
        may_be_damaged: bool = False,
    ) -> Self:
        """Open the log in this directory, which is made if it is missing. One that `may_be_damaged` is to be replaced.

        Raises `DataDirectoryError` if the directory cannot be used, has other files or is of a newer version,
        `StorageFull`, `MetadataDamaged` if a part of the log is missing, and `MetadataUnavailable` at the deadline.
        """
        log = cls(MetadataFiles(disk, directory, segment_bytes=segment_bytes), deadline_s=deadline_s)
        try:
            await log._query(lambda: log._files.open(may_be_damaged=may_be_damaged))
        except BaseException:
            await log.close()
            raise
        return log

    async def append(self, entry: MetadataEntry) -> AppendOutcome:
        raw = entry.encode()
        try:
            return await self._ask(self._thread, lambda: self._files.append(entry, raw))
        except TimeoutError:
            return EntryUnknown(entry.position)

    async def tail(self) -> MetadataPosition:
        return await self._query(self._files.tail)

    async def read(self, first: int, limit: int) -> list[MetadataEntry]:
        return await self._query(lambda: self._files.read(first, limit))

    async def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        wanted = first
        while not self._has_ended():
            self._begin_to_look()
            changed = self._changed  # taken before reading, so that what comes meanwhile is not missed
            entries: list[MetadataEntry] = []
            with suppress(MetadataUnavailable):  # closed, or the disk fails: it may come back
                entries = await self.read(wanted, _WATCH_LIMIT)
            if not entries and not self._has_ended():
                await asyncio.wait((changed,), timeout=self._look_s)
            for entry in entries:
                if self._has_ended():
                    return
                yield entry
                wanted = entry.index + 1

    async def load_snapshot(self) -> MetadataSnapshot | None:
        return await self._query(self._files.snapshot.load, self._snapshot_thread)

    async def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        await self._query(lambda: self._files.snapshot.store(snapshot), self._snapshot_thread)

    async def trim(self, below: int) -> None:
        await self._query(lambda: self._files.trim(below))

    async def replace(self, snapshot: MetadataSnapshot) -> None:
        await self._query(lambda: self._files.replace(snapshot))

    async def close(self) -> None:
        """End all watches. A call that is under way in a thread ends first, unless the disk hangs."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._changes is not None:
            self._loop.remove_reader(self._changes.fileno())
            self._changes.close()
        self._wake()
        closing = asyncio.ensure_future(self._loop.run_in_executor(self._thread, self._files.close))
        await asyncio.wait((closing,), timeout=self._deadline_s)
        for thread in (self._thread, self._snapshot_thread):
            thread.shutdown(wait=False)

    def _has_ended(self) -> bool:
        return self._is_closed

    def _begin_to_look(self) -> None:
        if self._look_s:
            return
        try:
            self._changes = FileChanges(self._files.mark_path)
        except OSError:  # there is none, or this user has too many of them
            self._look_s = _LOOK_WITHOUT_INOTIFY_S
            return
        self._look_s = _LOOK_S
        self._loop.add_reader(self._changes.fileno(), self._mark_changed)

    def _mark_changed(self) -> None:
        assert self._changes is not None
        self._changes.drain()
        self._wake()

    def _wake(self) -> None:
        """Let all watches look."""
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    async def _query(self, job: Callable[[], T], thread: ThreadPoolExecutor | None = None) -> T:
        try:
            return await self._ask(thread or self._thread, job)
        except TimeoutError:
            reason = f"the disk, or another process with the lock, did not answer within {self._deadline_s:g} s"
            raise MetadataUnavailable(reason) from None

    async def _ask(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        """Run the job in the thread, again and again while somebody else holds the lock. Raises `TimeoutError`.

        A job that has begun goes on to its end, whether or not its caller still waits.
        """
        retry_s, retry_s_max = _RETRY_S
        async with asyncio.timeout(self._deadline_s):
            while not self._is_closed:
                try:
                    return await self._loop.run_in_executor(thread, job)
                except LockHeld:
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, retry_s_max)
        raise MetadataUnavailable("this handle on the metadata log is closed")
