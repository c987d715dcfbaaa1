"""Inspection: what a log holds and what is damaged or missing, without changing a file."""

from goqueue.storage.inspection import Hole, inspect
from goqueue.storage.layout import LOG, segment_path
from goqueue.storage.walk import Damage
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, FIRST, NOW_NS, RECORD_BYTES, fill, open_log


def filled(disk: MemoryDisk) -> None:
    """Three segments of ten records."""
    log = open_log(disk, segment_bytes=10 * RECORD_BYTES)
    fill(log, 30)
    log.close()


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    files = {path: disk.open(path) for path in disk.paths()}
    return {path: file.pread(0, file.size()) for path, file in files.items()}


def test_each_segment_is_reported_with_its_records(disk: MemoryDisk) -> None:
    filled(disk)
    before = contents(disk)

    reports = list(inspect(disk, DIRECTORY))

    assert [(one.base_offset, one.first_offset, one.last_offset) for one in reports] == [
        (0, 0, 9),
        (10, 10, 19),
        (20, 20, 29),
    ]
    assert all(one.record_count == 10 and one.size == 10 * RECORD_BYTES and not one.damage for one in reports)
    assert (reports[0].first_timestamp, reports[2].last_timestamp) == (NOW_NS, NOW_NS + 29 * 1_000_000)
    assert contents(disk) == before


def test_damage_is_reported_with_its_offsets(disk: MemoryDisk) -> None:
    filled(disk)
    disk.open(FIRST).pwrite(3 * RECORD_BYTES + 60, b"\xff\xff")

    first = next(inspect(disk, DIRECTORY))

    (found,) = first.damage
    assert isinstance(found, Damage)
    assert (found.first_offset, found.next_offset, first.record_count) == (3, 4, 9)


def test_a_missing_segment_is_a_hole(disk: MemoryDisk) -> None:
    filled(disk)
    disk.remove(segment_path(DIRECTORY, 10, LOG))

    last = list(inspect(disk, DIRECTORY))[-1]

    assert last.damage == [Hole(segment_path(DIRECTORY, 20, LOG), 10, 20)]
