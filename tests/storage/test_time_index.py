"""The time index: the last entry before a time."""

from goqueue.storage.time_index import TimeIndex
from goqueue.testing import MemoryDisk


def test_a_time_before_all_entries_has_no_floor(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    index = TimeIndex(disk, "/data/x.timeindex")
    index.append(TimeIndex.ENTRY.pack(-5, 0) + TimeIndex.ENTRY.pack(7, 3) + TimeIndex.ENTRY.pack(7, 9))

    assert index.before(-5) is None
    assert index.before(7) == (-5, 0)
    assert index.before(8) == (7, 9)
