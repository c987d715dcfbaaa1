"""What tests of disk faults share: a flush as an owner with threads does it, and checks of a log that failed."""

from collections.abc import Iterator

import pytest

from goqueue.errors import StorageFailed
from goqueue.storage.log import Log
from goqueue.storage.reader import Chunk
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, NOW_NS, append, open_log, values_of

SETTINGS = {"segment_bytes": 1_000}


def flush_group(log: Log) -> None:
    """What an owner with threads does: the job runs somewhere else, and what it raised is brought back."""
    job = log.begin_flush(monotonic_ns=0)
    assert job
    error = None
    try:
        job.run()
    except OSError as raised:
        error = raised
    log.complete(job, error)


def check_stopped(log: Log, operation: str) -> None:
    """The log says why it takes no more writes, and says the same to everyone who tries."""
    failure = log.failure
    assert failure
    assert (failure.operation, failure.retryable) == (operation, True)
    assert failure.path.startswith(DIRECTORY)
    durable = log.durable_offset
    end = log.next_offset
    for attempt in (lambda: append(log, [b"more"]), log.flush, lambda: log.truncate(0)):
        with pytest.raises(StorageFailed) as caught:
            attempt()
        assert caught.value is failure
    log.maintain(now_ns=NOW_NS, monotonic_ns=10**12)
    log.roll_if_old(now_ns=NOW_NS * 2)
    assert log.begin_flush(monotonic_ns=10**12) is None
    assert log.begin_compaction(now_ns=NOW_NS) is None
    assert log.expire(now_ns=NOW_NS * 2) is None
    assert log.failure is failure
    assert (log.durable_offset, log.next_offset) == (durable, end)


def check_reopened(disk: MemoryDisk, values: list[bytes]) -> None:
    """The machine crashed and kept nothing that was not synced; these values are there, and the log takes more."""
    log = open_log(disk.crash(keep="nothing"), **SETTINGS)
    assert values_of(log) == values
    assert not log.damage
    assert append(log, [b"next"]).first_offset == len(values)


def chunks(log: Log, offset: int, *, max_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """Everything from the offset on, each chunk with the offset at which it was asked for."""
    reader = log.reader(offset)
    while reader.offset < log.next_offset:
        first = reader.offset
        yield first, reader.read(max_bytes=max_bytes)


def lost_offsets(chunk: Chunk) -> list[int]:
    return [offset for gap in chunk.gaps for offset in range(gap.first_offset, gap.next_offset)]
