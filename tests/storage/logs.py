"""What tests of the log say often: batches in, messages out."""

from collections.abc import Iterable

from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import HEADER_BYTES
from goqueue.record.message import StoredMessage
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.log import Appended, Log
from goqueue.storage.walk import Damage

DIRECTORY = "/data/log"
ORIGIN = TopicPartition("orders", 0)
NOW_NS = 1_800_000_000_000_000_000
FIRST = f"{DIRECTORY}/{0:020d}.log"
RECORD_BYTES = HEADER_BYTES + 100
"""The size of a record that `fill` appends by default."""


def open_log(disk: Disk, **settings: object) -> Log:
    return Log.open(disk, DIRECTORY, LogConfig(**settings))  # type: ignore[arg-type]


def append(
    log: Log, values: Iterable[bytes | None], *, now_ns: int = NOW_NS, keys: list[bytes] | None = None
) -> Appended:
    return log.append(kernel.encode(list(values), keys=keys), now_ns=now_ns)


def fill(log: Log, count: int, *, size: int = 100, batch: int = 1) -> list[bytes]:
    """Append `count` distinguishable values, `batch` at a time, a millisecond apart, and return them."""
    start = log.next_offset
    values = [f"{start + index}:".encode().ljust(size, b".") for index in range(count)]
    for first in range(0, count, batch):
        append(log, values[first : first + batch], now_ns=NOW_NS + (start + first) * 1_000_000)
    return values


def flushed(disk: Disk, count: int, *, segment_records: int = 1000) -> tuple[Log, list[bytes]]:
    """A log with `count` durable values, and these values."""
    log = open_log(disk, segment_bytes=segment_records * RECORD_BYTES)
    values = fill(log, count)
    log.flush()
    return log, values


def read_all(log: Log, *, max_bytes: int = 1 << 20) -> tuple[list[StoredMessage], list[Damage]]:
    """Every message from the start on, and every gap between them."""
    reader = log.reader(log.start_offset)
    messages: list[StoredMessage] = []
    gaps: list[Damage] = []
    while reader.offset < log.next_offset:
        before = reader.offset
        chunk = reader.read(max_bytes=max_bytes)
        messages += kernel.decode(chunk.records, ORIGIN, StoredMessage)
        gaps += chunk.gaps
        assert chunk.next_offset == reader.offset > before
    return messages, gaps


def values_of(log: Log) -> list[bytes]:
    """All values; there is no damage."""
    messages, gaps = read_all(log)
    assert not gaps
    return [message.value for message in messages]
