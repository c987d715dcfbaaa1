"""A walk through the records of a file: runs of valid ones, and the damage between them.

Everything that reads a segment goes through here: consumers, recovery, the rebuilding of an index,
compaction. A walk starts where a record starts. It yields each stretch of valid records as one buffer,
read from the disk once and not copied again, and where the bytes stop making sense it says which
offsets are affected, finds the next valid record, and goes on behind it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from goqueue.record.header import HEADER, HEADER_BYTES, OFFSET_MAX, RecordFault
from goqueue.record.kernel import NEVER, Summary, describe, resync, scan
from goqueue.storage.file import File

WINDOW_BYTES = 1024 * 1024
FIRST_SEARCH_BYTES = 64 * 1024
"""How far the search behind damage looks at first; most damage is small."""


class Spot(NamedTuple):
    """Where a walk can begin: no record at `position` or behind it has an offset below `min_offset`."""

    position: int
    min_offset: int


Anchors = Callable[[int], Spot | None]
"""Given a position, the next one behind it at which a valid record is known to stand, and its offset."""


class Run(NamedTuple):
    """Valid records that stand one behind the other."""

    position: int  # of the first record in the file
    records: memoryview
    summary: Summary

    @property
    def end(self) -> int:
        return self.position + len(self.records)


class Damage(NamedTuple):
    """Bytes that are no valid record. Affected are at most the offsets [first_offset, next_offset)."""

    path: str
    position: int
    end: int
    first_offset: int
    next_offset: int
    fault: RecordFault

    def __str__(self) -> str:
        offsets = f"offsets [{self.first_offset}, {self.next_offset})"
        return f"{self.path}: bytes [{self.position}, {self.end}) are damaged ({describe(self.fault)}), {offsets}"


def walk(
    file: File,
    position: int,
    end: int,
    *,
    min_offset: int,
    end_offset: int,
    to_offset: int = OFFSET_MAX,
    dense: bool = False,
    next_index_at: int = NEVER,
    window_bytes: int = WINDOW_BYTES,
    anchors: Anchors | None = None,
    resume: bool = True,
) -> Iterator[Run | Damage]:
    """Runs and damage of the bytes [position, end), in which offsets lie in [min_offset, end_offset).

    The walk ends before the first record at or behind `to_offset`. A run is at most `window_bytes` long, but holds
    at least one record, however large. With `dense` each offset must follow the one before. Without `resume` the
    first damage takes all that is left.
    """
    window_bytes = max(window_bytes, HEADER_BYTES)
    while position < end:
        data = _read_records(file, position, end, window_bytes)
        found = scan(
            data,
            min_offset=min_offset,
            dense=dense,
            to_offset=to_offset,
            position=position,
            next_index_at=next_index_at,
        )
        if found.record_count:
            next_index_at = found.next_index_at
            min_offset = found.last_offset + 1
            yield Run(position, memoryview(data)[: found.end], found)
        if not found.fault:
            if found.fault_position < len(data):
                return
            position += len(data)
            if data:
                continue
        stopped = position + found.fault_position
        if found.fault == RecordFault.TRUNCATED and found.record_count and position + len(data) < end:
            position = stopped
            continue
        resumed, next_offset = end, end_offset
        if resume:
            resumed, next_offset = _behind_damage(file, stopped, end, min_offset, end_offset, anchors)
        yield Damage(file.path, stopped, resumed, min_offset, next_offset, found.fault or RecordFault.TRUNCATED)
        position, min_offset = resumed, next_offset


def _read_records(file: File, position: int, end: int, window_bytes: int) -> bytes:
    """A window of bytes, or the whole first record where that is larger."""
    data = file.pread(position, min(window_bytes, end - position))
    if len(data) >= HEADER_BYTES:
        size = record_bytes(data)
        if len(data) < size <= end - position:
            return file.pread(position, size)
    return data


def record_bytes(data: bytes, position: int = 0) -> int:
    """How long the record at `position` is, going by the lengths in its header."""
    *_, key_bytes, value_bytes, header_bytes = HEADER.unpack_from(data, position)
    return HEADER_BYTES + int(key_bytes) + int(value_bytes) + int(header_bytes)


def _behind_damage(
    file: File, position: int, end: int, min_offset: int, end_offset: int, anchors: Anchors | None
) -> Spot:
    """Where the next valid record stands, and its offset. The damage itself took at least one offset.

    An anchor bounds the search, and proves what is found: the records have to lead up to it without a break. Without
    one, ever larger windows are searched, and where hostile bytes exhaust a search the next one begins behind them.
    """
    anchor = anchors(position) if anchors else None
    if anchor and position < anchor.position < end:
        found = _search(file, position, anchor.position, min_offset + 1, anchor.min_offset)
        return found or anchor
    window_bytes = FIRST_SEARCH_BYTES
    while position + window_bytes < end:
        found = _search(file, position, position + window_bytes, min_offset + 1, end_offset)
        if found:
            return found
        window_bytes *= 8
    skipped = 0
    while position + skipped < end:
        found = _search(file, position + skipped, end, min_offset + 1, end_offset)
        if found:
            return found
        skipped = max(FIRST_SEARCH_BYTES, skipped * 2)
    return Spot(end, end_offset)


def _search(file: File, position: int, end: int, min_offset: int, max_offset: int) -> Spot | None:
    data = file.pread(position, end - position)
    found = resync(data, 0, min_offset=min_offset, max_offset=max_offset)
    return None if found < 0 else Spot(position + found, HEADER.unpack_from(data, found)[4])
