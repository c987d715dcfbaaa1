"""The segments of a log: which of them holds a time."""

import pytest

from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.testing import MemoryDisk
from tests.storage.logs import NOW_NS, ORIGIN, append, fill, open_log


@pytest.mark.parametrize("segment_bytes", [1000, 100_000_000])
def test_a_time_finds_the_first_record_stored_then_or_later(disk: MemoryDisk, segment_bytes: int) -> None:
    log = open_log(disk, segment_bytes=segment_bytes)
    for step in range(30):
        append(log, [b"." * 100] * 3, now_ns=NOW_NS + step * 10)

    for step in range(30):
        assert log.offset_at_time(NOW_NS + step * 10) == step * 3
        assert log.offset_at_time(NOW_NS + step * 10 + 1) == step * 3 + 3
    assert log.offset_at_time(0) == 0
    assert log.offset_at_time(NOW_NS * 2) == log.next_offset == 90


def test_a_time_is_found_when_all_records_bear_the_same(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    for _ in range(30):
        append(log, [b"." * 100])

    assert log.offset_at_time(NOW_NS) == 0
    assert log.offset_at_time(NOW_NS + 1) == 30


def test_reading_by_time_returns_the_records_from_then_on(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)

    chunk = log.read(log.offset_at_time(NOW_NS + 7 * 1_000_000))

    assert [message.offset for message in kernel.decode(chunk.records, ORIGIN, StoredMessage)] == [7, 8, 9]
