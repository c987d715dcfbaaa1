"""Indexes are hints: whatever becomes of them, every record is found and only time is lost."""

from random import Random

import pytest

from goqueue import events
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.storage.offset_index import OffsetIndex
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, NOW_NS, fill, open_log, read_all

SEGMENT_BYTES = 50_000
INDEX_FILES = [f"{base:020d}{suffix}" for base in (0, 373) for suffix in (".index", ".timeindex")]


def check_lookups(log: Log, count: int) -> None:
    for offset in range(0, count, 7):
        chunk = log.read(offset, max_bytes=1)
        assert (chunk.next_offset, chunk.gaps) == (offset + 1, ())
        assert log.offset_at_time(NOW_NS + offset * 1_000_000) == offset


def test_a_rebuilt_index_is_the_same_to_the_byte(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill(log, 1000, batch=9)
    log.close()
    before = {path: disk.read(path) for path in disk.paths() if path.endswith("index")}
    for path in before:
        disk.write(path, b"")

    seen: list[events.Event] = []
    log = Log.open(disk, DIRECTORY, LogConfig(segment_bytes=SEGMENT_BYTES), observe=seen.append)
    for index in range(log.segment_count):
        segment, end_offset = log._segments[index]
        segment.rebuild_indexes(end_offset=end_offset)
    log.close()

    assert {path: disk.read(path) for path in before} == before
    assert [type(event) for event in seen if isinstance(event, events.IndexRebuilt)] == [events.IndexRebuilt] * 3


@pytest.mark.parametrize("name", INDEX_FILES)
@pytest.mark.parametrize("loss", ["removed", "emptied", "halved", "zeroed", "garbage", "foreign"])
def test_lookups_are_right_whatever_happened_to_an_index(disk: MemoryDisk, name: str, loss: str) -> None:
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill(log, 1000)
    log.close()
    path = f"{DIRECTORY}/{name}"
    content = disk.read(path)
    match loss:
        case "removed":
            disk.remove(path)
        case "emptied":
            disk.write(path, b"")
        case "halved":
            disk.write(path, content[: len(content) // 2 + 5])
        case "zeroed":
            disk.write(path, content[:32] + bytes(len(content) - 32))
        case "garbage":
            disk.write(path, Random(1).randbytes(len(content)))
        case "foreign":
            disk.write(path, disk.read(f"{DIRECTORY}/{746:020d}{name[20:]}"))

    log = open_log(disk, segment_bytes=SEGMENT_BYTES)

    check_lookups(log, 1000)
    assert len(read_all(log)[0]) == 1000


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_flipped_bit_of_an_index_is_harmless(disk: MemoryDisk, suffix: str) -> None:
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill(log, 400)
    log.close()
    path = f"{DIRECTORY}/{0:020d}{suffix}"
    content = disk.read(path)
    for position in range(len(content)):
        disk.flip_bit(path, position, position % 8)
        log = open_log(disk, segment_bytes=SEGMENT_BYTES)
        for offset in (0, 31, 100, 250, 372):
            assert log.read(offset, max_bytes=1).next_offset == offset + 1
            assert log.offset_at_time(NOW_NS + offset * 1_000_000) == offset
        disk.write(path, content)


def test_the_newest_entries_are_found_before_they_are_written(disk: MemoryDisk) -> None:
    log = open_log(disk)

    fill(log, 500)

    assert not [path for path in disk.paths() if path.endswith("index")]
    check_lookups(log, 500)


def test_an_index_counts_and_cuts_over_file_and_memory(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    index = OffsetIndex(disk, "/data/x.index")
    for number in range(300):
        index.append(OffsetIndex.ENTRY.pack(number * 10, number * 4096))
    assert len(index) == 300

    assert index.floor(5) == (0, 0)
    assert index.floor(2999) == (2990, 299 * 4096)
    assert [index.count_below(key) for key in (0, 1, 10, 11, 5_000)] == [0, 1, 1, 2, 300]
    assert index.count_before_position(4096) == 1
    index.keep(280)
    assert (len(index), index.entry(279)) == (280, (2790, 279 * 4096))
    index.keep(10)
    assert (len(index), index.floor(9_999)) == (10, (90, 9 * 4096))
    index.append(OffsetIndex.ENTRY.pack(100, 41_000))
    assert index.entries()[-1] == (100, 41_000)
