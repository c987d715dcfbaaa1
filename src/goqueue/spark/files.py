"""Sealed segments, read straight from the files of a data directory that this process can see.

The broker has nothing to do with it: it neither reads, nor copies, nor sends what is read here. What it has to be asked
for is which offsets are hidden, since that is not in the files alone. Of a partition's segments all but the last are
sealed, that is, no record is added to them any more; the tail is the broker's.

    <data>/topics/<topic>/topic.json              whose id tells a topic from an earlier one of its name
    <data>/topics/<topic>/<partition>/log/*.log   as in storage/layout.py

The owner of the directory goes on with his work meanwhile. A file that is open stays readable, whatever becomes of its
name. Compaction puts a copy in the place of a segment, or of several in a row; so a segment that is not there any more
is looked for again, under the base offset that now comes before the wanted offset. Retention removes segments for
good: then, and when the topic is not the one that was meant, `OffsetOutOfRange` says from which offset on the broker
has to be asked.

Every record is checked against its crc. Bytes that are no record raise `DamagedSegment` with file and position, and
with the offset from which on the broker has to be asked: it knows how far the damage goes.
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
    """A segment holds bytes that are no record; `offset` is the first one that they may have taken."""

    def __init__(self, reason: str, position: int, *, source: str, offset: int) -> None:
        super().__init__(reason, position, source=source)
        self.offset = offset


class _Described(msgspec.Struct):
    id: str


def sealed_end(data_dir: str, topic: str, partition: int, *, topic_id: str | None = None) -> int:
    """Up to which offset, itself not included, the files can be read; 0 if there are none of this topic."""
    bases = _bases(data_dir, topic, partition, topic_id)
    return bases[-1] if bases else 0


def why_not_here(data_dir: str, topic: str, topic_id: str) -> str:
    """Why the segments of the topic are not to be found in the directory; empty if they are."""
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

    Hidden are control records and the given ranges, which rise. Raises `OffsetOutOfRange` with the first
    offset that is in no sealed file; what was yielded before is all that comes before it.
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
                raise ReadFailed(segment_path(directory, base, LOG), "listed, but not to be opened") from None
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
        if not found.fault and found.fault_position < len(data):
            return
        window = window_bytes if found.fault_position else _record_bytes(data, window)
        position += found.fault_position


def _position_of(file: int, directory: str, base: int, offset: int) -> tuple[int, int]:
    """Where to begin so that the offset is not missed, and below which offset there is nothing from there on.

    The index may be of another copy of the segment than the file is, or damaged. So its word is taken only if the
    record that it promises stands there.
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
    """The last entry that is not above the offset; the very beginning, if there is none."""
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
    """How large a window must be to hold the whole first record of this one, which it does not."""
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
    """Which offsets are hidden."""

    def __init__(self, hidden: Sequence[HiddenRange]) -> None:
        self._firsts = [each.first_offset for each in hidden]
        self._ends = [each.end_offset for each in hidden]
        assert all(first < end for first, end in zip(self._firsts, self._ends, strict=True))
        assert all(end <= first for end, first in zip(self._ends, self._firsts[1:], strict=False))

    def visible(self, records: memoryview, found: kernel.Summary) -> Iterator[tuple[Buffer, int]]:
        """The records, or a copy of those that are not hidden, unless that is none."""
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

    A name that changes while a directory is listed may be left out, so two listings have to agree.
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
        raise ReadFailed(path, f"no description of a topic: {error}") from error


def _log_directory(data_dir: str, topic: str, partition: int) -> str:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopic(topic, "is no name of a directory of topics")
    assert partition >= 0
    return f"{data_dir}/topics/{topic}/{partition}/log"
