"""A log of ten thousand segments opens at once, whatever it holds, and keeps few files open."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.config import LogConfig
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from goqueue.storage.open_segments import OPEN_SEGMENTS_MAX
from goqueue.testing import MemoryDisk
from tests.storage.logs import NOW_NS, ORIGIN

MANY = 10_000
RECORDS_EACH = 3
CONFIG = LogConfig(segment_bytes=1)
FILES_EACH = 3


def make_log(directory: Path, segment_count: int) -> str:
    """A closed log with that many segments: made in memory, where nothing waits for a disk, then copied."""
    disk = MemoryDisk()
    log = Log.open(disk, "/log", CONFIG)
    for number in range(segment_count):
        log.append(kernel.encode([b"%d" % number] * RECORDS_EACH), now_ns=NOW_NS + number * 10)
        if number % 100 == 0:
            log.flush()
    log.close()
    directory.mkdir()
    for path in disk.paths():
        with open(f"{directory}/{os.path.basename(path)}", "wb", buffering=0) as file:
            file.write(disk.read(path))
    return str(directory)


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    """Thirty thousand files: in memory where the system has such a place, and gone when the tests are."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as parent:
        yield make_log(Path(parent) / "log", MANY)


class Counting:
    """A disk, or a file of it, and how often each of its methods was called."""

    def __init__(self, inner: Any, calls: Counter[str]) -> None:
        self._inner = inner
        self._calls = calls

    @property
    def path(self) -> str:
        return str(self._inner.path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            self._calls[name] += 1
            found = getattr(self._inner, name)(*arguments, **settings)
            return Counting(found, self._calls) if name == "open" else found

        return call


def calls_to_open(directory: str, segment_count: int) -> Counter[str]:
    calls: Counter[str] = Counter()

    log = Log.open(Counting(OsDisk(), calls), directory, CONFIG)

    assert log.segment_count == segment_count
    assert log.next_offset == segment_count * RECORDS_EACH
    return calls


def test_what_opening_a_log_costs_the_disk_does_not_depend_on_its_size(many: str, tmp_path: Path) -> None:
    calls = calls_to_open(many, MANY)

    assert calls == calls_to_open(make_log(tmp_path / "few", 100), 100)
    assert calls["entries"] == 1
    assert calls["open"] < 10
    assert calls["pread"] < 10
    assert not calls.keys() & {"pwrite", "append", "truncate", "rename", "remove", "sync", "sync_directory"}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_few_files_are_open_however_much_is_read(many: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log = Log.open(OsDisk(), many, CONFIG)
    rng = Random(3)
    most = 0

    for _ in range(1_000):
        number = rng.randrange(MANY)
        offset = number * RECORDS_EACH + rng.randrange(RECORDS_EACH)
        (message,) = kernel.decode(log.read(offset, max_bytes=1).records, ORIGIN, StoredMessage)
        assert (message.offset, message.value) == (offset, b"%d" % number)
        assert log.offset_at_time(NOW_NS + number * 10) == number * RECORDS_EACH
        most = max(most, len(os.listdir("/proc/self/fd")) - before)

    assert most <= OPEN_SEGMENTS_MAX * FILES_EACH + 1
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_segments_are_read_in_order(many: str) -> None:
    log = Log.open(OsDisk(), many, CONFIG)
    reader = log.reader(0)
    values = []

    while (chunk := reader.read(max_bytes=1 << 20)).record_count:
        assert not chunk.gaps
        values += [message.value for message in kernel.decode(chunk.records, ORIGIN, StoredMessage)]

    assert values == [b"%d" % number for number in range(MANY) for _ in range(RECORDS_EACH)]
    log.close()
