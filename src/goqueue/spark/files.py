"""Sealed segments, read directly from the files of a data directory that this process can see.

The broker neither reads, copies nor sends these records. The reader still asks it which offsets are hidden, since the
files alone do not say that. All segments of a partition but the last are sealed: no record is appended to them. The
last one is read through the broker.

    <data>/topics/<topic>/topic.json              its id distinguishes a topic from an earlier one of that name
    <data>/topics/<topic>/<partition>/log/*.log   as in storage/layout.py

The broker keeps working on the directory meanwhile. An open file stays readable even if it is renamed or removed.
Compaction replaces a segment, or several consecutive ones, by a copy; so a segment that is gone is looked up again,
under the base offset that is now the last one at or before the wanted offset. Retention removes segments permanently:
then, and if the topic is another one of that name, `OffsetOutOfRange` has the offset from which on to read from the
broker.

Every record is checked against its CRC. Bytes that are not a record raise `DamagedSegment` with the file, the position,
and the offset from which on to read from the broker, which knows how far the damage goes.
"""

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from goqueue.errors import CorruptRecord, InvalidTopic, OffsetOutOfRange, ReadFailed
from goqueue.record import kernel
from goqueue.record.header import HEADER, HEADER_BYTES, MAGIC, Buffer, Flags, RecordFault
from goqueue.storage.layout import LOG, OFFSET_INDEX, segment_path
from goqueue.wire.scan_reports import HiddenRange

WINDOW_BYTES: Final = 4 * 1024 * 1024
_ENTRY_BYTES = 16  # of the index: offset and position, big-endian
_SEGMENT = re.compile(r"(\d{20})" + re.escape(LOG), re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class DamagedSegment(CorruptRecord):
    """A segment holds bytes that are not a record; `offset` is the first offset that may be lost."""

    def __init__(self, reason: str, position: int, *, source: str, offset: int) -> None:
        super().__init__(reason, position, source=source)
        self.offset = offset


class _Described(msgspec.Struct):
    id: str


def sealed_end(data_dir: str, topic: str, partition: int, *, topic_id: str | None = None) -> int:
    """The first offset that is in no sealed file; 0 if there are no files of this topic."""
    bases = _bases(data_dir, topic, partition, topic_id)
    return bases[-1] if bases else 0


def why_not_here(data_dir: str, topic: str, topic_id: str) -> str:
    """Why the directory does not hold the segments of the topic; empty if it does."""
    if not os.path.isdir(data_dir):
        return "there is no such directory"
    _log_directory(data_dir, topic, 0)
    try:
        is_here = _topic_id(data_dir, topic) == topic_id
    except (FileNotFoundError, NotADirectoryError):
        is_here = False
    except OSError:  # the read that follows reports it
        is_here = True
    return "" if is_here else f"it is not the data directory of the broker that has {topic}"


def read_files(
    data_dir: str,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    hidden: Sequence[HiddenRange] = (),
    topic_id: str | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[tuple[Buffer, int]]:
    """The visible records of [start, end) in their order, as (whole records, flags that they may have).

    Control records and the ranges `hidden`, which ascend, are left out. Raises `OffsetOutOfRange` with the first offset
    that is in no sealed file; all records before it are yielded first.
    """
    veil = _Veil(hidden)
    directory = _log_directory(data_dir, topic, partition)
    offset, missing = start, -1
    while offset < end:
        bases = _bases(data_dir, topic, partition, topic_id)
        place = bisect_right(bases, offset) - 1
        if not 0 <= place < len(bases) - 1:
            first, last = (bases[0], bases[-1]) if bases else (0, 0)
            raise OffsetOutOfRange(offset, first, last, log=f"the sealed files of {topic}/{partition}")
        base, segment_end = bases[place], min(end, bases[place + 1])
        try:
            file = os.open(segment_path(directory, base, LOG), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if missing == base:
                raise ReadFailed(segment_path(directory, base, LOG), "is listed, but cannot be opened") from None
            missing = base
            continue
        try:
            yield from _read_segment(file, directory, base, offset, segment_end, veil, window_bytes)
        finally:
            os.close(file)
        offset = segment_end


def _read_segment(
    file: int, directory: str, base: int, start: int, end: int, veil: "_Veil", window_bytes: int
) -> Iterator[tuple[Buffer, int]]:
    path = segment_path(directory, base, LOG)
    size = os.fstat(file).st_size
    position, min_offset = _position_of(file, directory, base, start)
    window = window_bytes
    while position < size:
        data = _pread(file, path, position, min(window, size - position))
        found = kernel.scan(data, min_offset=min_offset, from_offset=start, to_offset=end)
        if not data:
            raise DamagedSegment("the file ends early", position, source=path, offset=max(start, min_offset))
        if found.fault and (found.fault != RecordFault.TRUNCATED or position + len(data) >= size):
            if found.record_count:
                yield from veil.visible(memoryview(data)[found.start : found.end], found)
                min_offset = found.last_offset + 1
            raise DamagedSegment(
                kernel.describe(found.fault),
                position + found.fault_position,
                source=path,
                offset=max(start, min_offset),
            )
        if found.record_count:
            yield from veil.visible(memoryview(data)[found.start : found.end], found)
            min_offset = found.last_offset + 1
        if not found.fault and found.fault_position < len(data):  # the scan stopped at a record at or after `end`
            return
        window = window_bytes if found.fault_position else _record_bytes(data, window)
        position += found.fault_position


def _position_of(file: int, directory: str, base: int, offset: int) -> tuple[int, int]:
    """A position at or before the offset, and the lowest offset that a record from there on may have.

    The index may be damaged, or belong to another copy of the segment than the open file. So its entry is used only if
    the file has the record of that offset at that position.
    """
    if offset > base:
        with suppress(OSError):
            key, position = _index_floor(segment_path(directory, base, OFFSET_INDEX), offset)
            header = os.pread(file, HEADER_BYTES, position)
            if len(header) == HEADER_BYTES and base <= key <= offset:
                magic, _, _, _, found, *_ = HEADER.unpack(header)
                if magic == MAGIC and found == key:
                    return position, key
    return 0, base


def _index_floor(path: str, offset: int) -> tuple[int, int]:
    """The last entry at or before the offset; (0, 0) if there is none."""
    with open(path, "rb") as index:
        data = index.read()

    def key(place: int) -> int:
        return int.from_bytes(data[place * _ENTRY_BYTES : place * _ENTRY_BYTES + 8], "big")

    count = bisect_right(range(len(data) // _ENTRY_BYTES), offset, key=key)
    if not count:
        return 0, 0
    at = (count - 1) * _ENTRY_BYTES
    return key(count - 1), int.from_bytes(data[at + 8 : at + _ENTRY_BYTES], "big")


def _record_bytes(data: bytes, window_bytes: int) -> int:
    """The window that holds the whole first record, of which `data` holds only a part."""
    if len(data) < HEADER_BYTES:
        return HEADER_BYTES
    *_, key_bytes, value_bytes, headers_bytes = HEADER.unpack_from(data)
    return max(window_bytes, HEADER_BYTES + int(key_bytes) + int(value_bytes) + int(headers_bytes))


def _pread(file: int, path: str, position: int, size: int) -> bytes:
    try:
        return os.pread(file, size, position)
    except OSError as error:
        raise ReadFailed(path, error.strerror or str(error)) from error


class _Veil:
    """Removes hidden offsets from records."""

    def __init__(self, hidden: Sequence[HiddenRange]) -> None:
        self._firsts = [each.first_offset for each in hidden]
        self._ends = [each.end_offset for each in hidden]
        assert all(first < end for first, end in zip(self._firsts, self._ends, strict=True))
        assert all(end <= first for end, first in zip(self._ends, self._firsts[1:], strict=False))

    def visible(self, records: memoryview, found: kernel.Summary) -> Iterator[tuple[Buffer, int]]:
        """The records if none is hidden, else a copy of the visible ones; nothing if all are hidden."""
        first = bisect_right(self._ends, found.first_offset)
        end = bisect_left(self._firsts, found.last_offset + 1)
        if first >= end and not found.flags & Flags.CONTROL:
            yield records, found.flags
            return
        ranges = array("q")
        for place in range(first, end):
            ranges += array("q", (self._firsts[place], self._ends[place]))
        shown = kernel.filter(records, hide_flags=Flags.CONTROL, hidden=ranges.tobytes())
        if shown:
            yield shown, found.flags & ~(Flags.CONTROL | Flags.COMMIT)


def _bases(data_dir: str, topic: str, partition: int, topic_id: str | None) -> list[int]:
    """The base offsets of all segments, sorted; none if the directory is not that of the topic.

    A listing may miss a file that is renamed meanwhile, so two listings have to agree.
    """
    directory = _log_directory(data_dir, topic, partition)
    try:
        if topic_id is not None and _topic_id(data_dir, topic) != topic_id:
            return []
        bases = _listed(directory)
        while (again := _listed(directory)) != bases:
            bases = again
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReadFailed(str(error.filename or directory), error.strerror or str(error)) from error
    return bases


def _listed(directory: str) -> list[int]:
    return sorted(int(found[1]) for name in os.listdir(directory) if (found := _SEGMENT.fullmatch(name)))


def _topic_id(data_dir: str, topic: str) -> str:
    path = f"{data_dir}/topics/{topic}/topic.json"
    with open(path, "rb") as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=_Described).id
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadFailed(path, f"is not the description of a topic: {error}") from error


def _log_directory(data_dir: str, topic: str, partition: int) -> str:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopic(topic, "is not a name that a directory of topics can have")
    assert partition >= 0
    return f"{data_dir}/topics/{topic}/{partition}/log"
