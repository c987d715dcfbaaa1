"""A walk through the records of a file: runs of valid ones, and the damage between them.

Everything that reads a segment uses it: consumers, recovery, index rebuilds, compaction. A walk starts at the start of
a record. It yields each stretch of valid records as one buffer, read from the disk once and not copied again. At
invalid bytes it yields the affected offsets, finds the next valid record, and continues there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from goqueue.record.header import HEADER, HEADER_BYTES, OFFSET_MAX, RecordFault
from goqueue.record.kernel import NEVER, Summary, describe, resync, scan
from goqueue.storage.file import File

WINDOW_BYTES = 1024 * 1024
FIRST_SEARCH_BYTES = 64 * 1024
"""How far the search for the next valid record looks at first; most damage is small."""


class Spot(NamedTuple):
    """A start of a walk: no record at or after `position` has an offset below `min_offset`."""

    position: int
    min_offset: int


Anchors = Callable[[int], Spot | None]
"""Given a position, the next position with a record that is known to be valid, and its offset."""


class RecordRun(NamedTuple):
    """Valid records, one after the other."""

    position: int  # of the first record in the file
    records: memoryview
    summary: Summary

    @property
    def end(self) -> int:
        return self.position + len(self.records)


class Damage(NamedTuple):
    """Bytes that are not valid records. At most the offsets [first_offset, next_offset) are affected."""

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
) -> Iterator[RecordRun | Damage]:
    """The runs and the damage in the bytes [position, end), whose offsets are in [min_offset, end_offset).

    The walk ends before the first record at or after `to_offset`. A run is at most `window_bytes` long, but has at
    least one record, however large. With `dense`, each offset must follow the one before. Without `resume`, the first
    damage extends to the end.
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
            yield RecordRun(position, memoryview(data)[: found.end], found)
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
            resumed, next_offset = _after_damage(file, stopped, end, min_offset, end_offset, anchors)
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
    """The size of the record at `position`, from the lengths in its header."""
    *_, key_bytes, value_bytes, header_bytes = HEADER.unpack_from(data, position)
    return HEADER_BYTES + int(key_bytes) + int(value_bytes) + int(header_bytes)


def _after_damage(
    file: File, position: int, end: int, min_offset: int, end_offset: int, anchors: Anchors | None
) -> Spot:
    """The position and offset of the next valid record. The damage took at least one offset.

    An anchor bounds the search and confirms the result: the records found have to lead up to it without a gap. Without
    an anchor, growing windows are searched; if crafted bytes exhaust one search, the next one begins after them.
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
