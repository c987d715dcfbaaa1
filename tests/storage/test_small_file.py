"""Small files: the old content or the new one, and never anything else unnoticed."""

import pytest

from goqueue.errors import CorruptRecord, UnsupportedFormat
from goqueue.record.kernel import crc32c
from goqueue.storage import small_file
from goqueue.testing import MemoryDisk

KIND = b"GQXX"
PATH = "/data/note"


def stored(disk: MemoryDisk, payload: bytes) -> bytearray:
    disk.make_directory("/data")
    disk.sync_directory("/")
    small_file.replace(disk, "/data", "note", KIND, payload)
    file = disk.open(PATH)
    return bytearray(file.pread(0, file.size()))


def overwrite(disk: MemoryDisk, content: bytes) -> None:
    file = disk.open(PATH)
    file.truncate(0)
    file.append(content)


def test_the_payload_is_read_back_after_a_crash(disk: MemoryDisk) -> None:
    stored(disk, b"first")
    small_file.replace(disk, "/data", "note", KIND, b"second")

    assert small_file.load(disk.crash(keep="nothing"), "/data", "note", KIND) == b"second"


def test_every_flipped_bit_is_noticed(disk: MemoryDisk) -> None:
    content = stored(disk, b"payload")
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        overwrite(disk, bytes(damaged))

        if bit // 8 in (6, 7):  # reserved
            continue
        with pytest.raises(CorruptRecord, match=PATH):
            small_file.load(disk, "/data", "note", KIND)


def test_a_file_that_was_cut_off_is_damaged(disk: MemoryDisk) -> None:
    content = stored(disk, b"payload")
    for size in range(len(content)):
        overwrite(disk, bytes(content[:size]))

        with pytest.raises(CorruptRecord, match=PATH):
            small_file.load(disk, "/data", "note", KIND)


def test_a_later_version_is_refused_by_its_number(disk: MemoryDisk) -> None:
    content = stored(disk, b"payload")
    content[4:6] = (7).to_bytes(2, "big")
    head = bytes(content[:12]) + bytes(4)
    content[12:16] = crc32c(b"payload", crc32c(head)).to_bytes(4, "big")
    overwrite(disk, bytes(content))

    with pytest.raises(UnsupportedFormat, match="format version 7; this GoQueue knows 1"):
        small_file.load(disk, "/data", "note", KIND)
