"""A million records go to a real disk and come back."""

from pathlib import Path
from random import Random

from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from tests.storage.logs import NOW_NS, ORIGIN

RECORDS = 1_000_000
BATCH = 1_000
VALUE_BYTES = 100
CONFIG = LogConfig(segment_bytes=16 * 1024 * 1024, flush=Flush.INTERVAL)


def value_at(offset: int) -> bytes:
    return (b"%020d" % offset) * (VALUE_BYTES // 20)


def time_at(offset: int) -> int:
    """When the batch of the offset is appended."""
    return NOW_NS + offset // BATCH * 1_000_000


def test_a_million_records_are_read_back_after_a_restart(tmp_path: Path) -> None:
    log = Log.open(OsDisk(), str(tmp_path), CONFIG)
    for first in range(0, RECORDS, BATCH):
        batch = kernel.encode(list(map(value_at, range(first, first + BATCH))))
        log.append(batch, now_ns=time_at(first))
        log.maintain(now_ns=NOW_NS, monotonic_ns=first * 1_000)
    log.close()

    log = Log.open(OsDisk(), str(tmp_path), CONFIG)

    assert (log.start_offset, log.next_offset, log.durable_offset) == (0, RECORDS, RECORDS)
    assert log.segment_count == 8
    reader = log.reader(0)
    while reader.offset < RECORDS:
        first = reader.offset
        chunk = reader.read(max_bytes=1 << 20)
        columns = kernel.columns(chunk.records, "offset", "value")
        assert not chunk.gaps
        assert columns.row_count == chunk.record_count == chunk.next_offset - first
        assert memoryview(columns.offsets).cast("q").tolist() == list(range(first, chunk.next_offset))
        assert columns.value_data == b"".join(map(value_at, range(first, chunk.next_offset)))
        assert len(columns.value_data) == VALUE_BYTES * columns.row_count

    rng = Random(1)
    for offset in (0, RECORDS - 1, *(rng.randrange(RECORDS) for _ in range(10))):
        (message,) = kernel.decode(log.read(offset, max_bytes=1).records, ORIGIN, StoredMessage)
        assert (message.offset, message.value, message.timestamp_ns) == (offset, value_at(offset), time_at(offset))
        assert log.offset_at_time(time_at(offset)) == offset // BATCH * BATCH
        assert log.offset_at_time(time_at(offset) + 1) == (offset // BATCH + 1) * BATCH
    log.close()
