"""The metadata log in files keeps the contract, and its watches and waits do what they should."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import EMPTY, EntryAppended, EntryUnknown, MetadataLog, MetadataSnapshot
from goqueue.errors import ForeignFile, MetadataUnavailable
from goqueue.storage.file import Disk, OsDisk, OsFile
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.cluster.metadata_files import damage_entry
from tests.cluster.metadata_log_contract import (
    PATIENCE_S,
    MetadataLogContract,
    NewLog,
    append,
    entry_after,
    read_all,
    run_in,
    take,
)


class FileLog:
    """A log in files under test."""

    def __init__(self, disk: Disk, directory: str, **options: int) -> None:
        self.disk = disk
        self.directory = directory
        self.options = options
        self.clients: list[FileMetadataLog] = []

    async def connect(self) -> MetadataLog:
        log = await FileMetadataLog.open(self.disk, self.directory, deadline_s=1.0, **self.options)
        self.clients.append(log)
        return log

    async def damage(self, index: int) -> None:
        damage_entry(self.disk, self.directory, index)

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        lock = self.disk.lock(f"{self.directory}/lock")
        yield
        lock.release()

    async def close(self) -> None:
        for log in self.clients:
            await log.close()


class TestFileLog(MetadataLogContract):
    @pytest.fixture
    def new_log(self, tmp_path: Path) -> NewLog:
        numbers = count()
        return lambda: FileLog(OsDisk(), f"{tmp_path}/{next(numbers)}")


class TestFileLogOfSmallSegments(MetadataLogContract):
    """Every few entries begin a new segment."""

    @pytest.fixture
    def new_log(self, tmp_path: Path) -> NewLog:
        numbers = count()
        return lambda: FileLog(OsDisk(), f"{tmp_path}/{next(numbers)}", segment_bytes=200)


class TestFileLogInMemory(MetadataLogContract):
    """Without inotify."""

    @pytest.fixture
    def new_log(self) -> NewLog:
        return lambda: FileLog(MemoryDisk(), "/log", segment_bytes=1_000)


def in_a_real_loop(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        run_in(None, test(tmp_path))

    run.__name__ = test.__name__
    return run


async def opened(path: Path, **options: float) -> FileMetadataLog:
    return await FileMetadataLog.open(OsDisk(), f"{path}/log", **{"deadline_s": 5.0, **options})  # type: ignore[arg-type]


@in_a_real_loop
async def test_a_call_waits_for_a_lock_that_is_soon_free(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    lock = OsDisk().lock(f"{tmp_path}/log/lock")
    entry = entry_after(EMPTY)
    appending = asyncio.create_task(log.append(entry))
    await asyncio.wait([appending], timeout=0.02)
    assert not appending.done()
    assert await log.tail() == EMPTY

    lock.release()

    assert await appending == EntryAppended(entry.position)
    await log.close()


@in_a_real_loop
async def test_a_lock_that_stays_taken_ends_every_wait_at_the_deadline(tmp_path: Path) -> None:
    log = await opened(tmp_path, deadline_s=0.02)
    entry = entry_after(EMPTY)
    lock = OsDisk().lock(f"{tmp_path}/log/lock")
    snapshot_lock = OsDisk().lock(f"{tmp_path}/log/snapshot.lock")

    assert await log.append(entry) == EntryUnknown(entry.position)
    for call in (log.trim(1), log.store_snapshot(MetadataSnapshot(EMPTY, b"")), opened(tmp_path, deadline_s=0.02)):
        with pytest.raises(MetadataUnavailable, match=r"did not answer within 0.02 s"):
            await call

    lock.release()
    snapshot_lock.release()
    assert await log.tail() == EMPTY
    await log.close()


class SlowDisk(OsDisk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        self.may_sync = Event()
        self.may_sync.set()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        file = super().open(path, create=create, write=write)
        if not write:
            return file
        fd = os.dup(file.fileno())
        file.close()
        return SlowFile(path, fd, self.may_sync)


class SlowFile(OsFile):
    def __init__(self, path: str, fd: int, may_sync: Event) -> None:
        super().__init__(path, fd)
        self._may_sync = may_sync

    def sync(self) -> None:
        assert self._may_sync.wait(PATIENCE_S)
        super().sync()


@in_a_real_loop
async def test_an_append_on_a_disk_that_hangs_is_in_doubt_and_the_loop_goes_on(tmp_path: Path) -> None:
    disk = SlowDisk()
    log = await FileMetadataLog.open(disk, f"{tmp_path}/log", deadline_s=0.05)
    other = await opened(tmp_path)
    (first,) = await append(log, b"first")
    watch = other.watch(2)
    waiting = asyncio.create_task(take(watch, 1))
    disk.may_sync.clear()
    entry = entry_after(first.position)

    assert await log.append(entry) == EntryUnknown(entry.position)
    with pytest.raises(MetadataUnavailable):
        await log.tail()
    # It is in the file and not on the disk: nobody may see it.
    assert await other.tail() == first.position
    assert not waiting.done()
    disk.may_sync.set()

    assert await waiting == [entry]
    assert await other.append(entry) == EntryAppended(entry.position)
    await log.close()
    await other.close()


@in_a_real_loop
async def test_an_append_that_is_cancelled_before_close_is_not_cut_in_two(tmp_path: Path) -> None:
    disk = SlowDisk()
    log = await FileMetadataLog.open(disk, f"{tmp_path}/log")
    (first,) = await append(log, b"first")
    disk.may_sync.clear()
    entry = entry_after(first.position)
    appending = asyncio.create_task(log.append(entry))
    await asyncio.wait([appending], timeout=0.02)
    appending.cancel()
    closing = asyncio.create_task(log.close())
    await asyncio.wait([appending])
    assert not closing.done()

    disk.may_sync.set()
    await closing

    other = await opened(tmp_path)
    assert await read_all(other) == [first, entry]
    await other.close()


@in_a_real_loop
async def test_a_watch_outlives_reads_that_fail(tmp_path: Path) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=1)
    log = await FileMetadataLog.open(disk, f"{tmp_path}/log")
    other = await FileMetadataLog.open(memory, f"{tmp_path}/log")
    waiting = asyncio.create_task(take(log.watch(1), 2))
    for _ in range(3):
        disk.fail_next("pread")

    entries = await append(other, b"one", b"two")

    assert await waiting == entries
    await log.close()
    await other.close()


@in_a_real_loop
async def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "notes").touch()

    with pytest.raises(ForeignFile):
        await opened(tmp_path)


@in_a_real_loop
async def test_nothing_is_left_open_after_close(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    log = await opened(tmp_path)
    (entry,) = await append(log, b"one")
    assert await take(log.watch(1), 1) == [entry]
    await log.store_snapshot(MetadataSnapshot(entry.position, b""))

    await log.close()

    assert set(os.listdir("/proc/self/fd")) == before
    for thread in enumerate_threads():
        if thread.name.startswith("goqueue-metadata"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
