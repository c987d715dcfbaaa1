"""The metadata log in files keeps the contract, and its watches and waits do what they should."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import MetadataLog
from goqueue.storage.file import Disk, OsDisk
from goqueue.testing import MemoryDisk
from tests.cluster.metadata_files import damage_entry
from tests.cluster.metadata_log_contract import MetadataLogContract, NewLog


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
