"""The offset index: one entry per 4 KiB of log."""

from itertools import pairwise

from goqueue.storage.offset_index import OffsetIndex
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, fill, open_log

SEGMENT_BYTES = 50_000


def test_there_is_one_entry_for_each_four_kibibytes_of_log(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill(log, 1000)
    log.flush()

    entries = OffsetIndex(disk, f"{DIRECTORY}/{0:020d}.index").entries()

    positions = [entry.value for entry in entries]
    assert positions[0] == 0
    assert all(4096 <= after - before < 4096 + 134 for before, after in pairwise(positions))
    assert all(entry.key * 134 == entry.value for entry in entries)
    assert len(disk.read(f"{DIRECTORY}/{0:020d}.timeindex")) == len(entries) * 16
