"""The bytes of the files that `FileMetadataLog` keeps.

A segment, `00000000000000000042.entries`, is a header and entries one behind another, as `MetadataEntry.encode` writes
them. The first one has the index of the name.

    0      4        6   8       16  20    24
    +------+--------+---+-------+---+-----+----------
    | GQMF | format | 0 | first | 0 | crc | entries ...
    +------+--------+---+-------+---+-----+----------

The file `tail` says where the log ends for its readers. It is overwritten in place with every append, so a reader may
see it half old and half new: the checksum says so, and the reader looks again.

    0      4        6   8         16    24      32      40   56    60  64
    +------+--------+---+---------+-----+-------+-------+----+-----+---+
    | GQMT | format | 0 | segment | end | first | index | id | crc | 0 |
    +------+--------+---+---------+-----+-------+-------+----+-----+---+

Both checksums are CRC-32C of all bytes before them. `walk` finds the entries in a segment, those behind damaged bytes
too: that is how a torn end (nothing follows) differs from damage (something does).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from goqueue.cluster.metadata_log import BATCH_BYTES_MAX, EMPTY, HEADER_BYTES, MetadataPosition
from goqueue.record.kernel import crc32c

FORMAT: Final = 1
SEGMENT_SUFFIX: Final = ".entries"
SEGMENT_NAME: Final = re.compile(r"(\d{20})\.entries", re.ASCII)

_SEGMENT_HEAD: Final = Struct(">4sHHQII")
SEGMENT_HEAD_BYTES: Final = 24
assert _SEGMENT_HEAD.size == SEGMENT_HEAD_BYTES
_SEGMENT_MAGIC: Final = b"GQMF"
_SEGMENT_CRC_POSITION: Final = SEGMENT_HEAD_BYTES - 4

_MARK: Final = Struct(">4sHHQQQQ16sII")
MARK_BYTES: Final = 64
assert _MARK.size == MARK_BYTES
_MARK_MAGIC: Final = b"GQMT"
_MARK_CRC_POSITION: Final = 56

_ENTRY_MAGIC: Final = b"GQML"
_ENTRY_HEAD: Final = Struct(">4sHHQQI16s16sI")
assert _ENTRY_HEAD.size == HEADER_BYTES
_ENTRY_CRC_POSITION: Final = HEADER_BYTES - 4


class WrongFormat(Exception):
    """The file is of a version that this one does not know."""

    def __init__(self, format: int) -> None:
        super().__init__(f"format {format}; this GoQueue knows {FORMAT}: update GoQueue")


class TailMark(NamedTuple):
    """Where the log ends, and which part of it is on the disk for certain."""

    segment: int  # the first index of the last segment; 0 for an empty log
    end: int  # how many bytes of it count
    first: int  # entries below were trimmed
    tail: MetadataPosition

    def encode(self) -> bytes:
        raw = _MARK.pack(
            _MARK_MAGIC, FORMAT, 0, self.segment, self.end, self.first, self.tail.index, self.tail.id, 0, 0
        )
        crc = crc32c(raw[:_MARK_CRC_POSITION])
        return raw[:_MARK_CRC_POSITION] + crc.to_bytes(4, "big") + bytes(4)

    @classmethod
    def decode(cls, raw: bytes) -> "TailMark | None":
        """The mark; None if these bytes are none. Raises `WrongFormat`."""
        if len(raw) < MARK_BYTES:
            return None
        magic, format, _, segment, end, first, index, id, crc, _ = _MARK.unpack_from(raw)
        if magic != _MARK_MAGIC or crc != crc32c(raw[:_MARK_CRC_POSITION]):
            return None
        if format != FORMAT:
            raise WrongFormat(format)
        return cls(segment, end, first, MetadataPosition(index, id))


EMPTY_MARK: Final = TailMark(0, 0, 1, EMPTY)


def segment_name(first: int) -> str:
    """The name of the segment whose first entry has that index."""
    return f"{first:020d}{SEGMENT_SUFFIX}"


def segment_head(first: int) -> bytes:
    """What the segment begins with."""
    raw = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, FORMAT, 0, first, 0, 0)
    return raw[:_SEGMENT_CRC_POSITION] + crc32c(raw[:_SEGMENT_CRC_POSITION]).to_bytes(4, "big")


def is_segment_head(raw: bytes, first: int) -> bool:
    """Whether these bytes are the head of that segment. Raises `WrongFormat`."""
    if len(raw) < SEGMENT_HEAD_BYTES:
        return False
    magic, format, _, found, _, crc = _SEGMENT_HEAD.unpack_from(raw)
    if magic != _SEGMENT_MAGIC or crc != crc32c(raw[:_SEGMENT_CRC_POSITION]):
        return False
    if format != FORMAT:
        raise WrongFormat(format)
    return bool(found == first)


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """A whole entry, from `position` to `end`."""

    position: int
    end: int
    index: int
    id: bytes
    previous_id: bytes


def walk(raw: bytes, index: int) -> Iterator[FoundEntry]:
    """The whole entries in these bytes, in order, if the first one has that index.

    Bytes that are no entry are skipped; the indexes of what was there are missing then.
    """
    position = 0
    while (found := _entry_at(raw, position, index, index) or _entry_after(raw, position, index)) is not None:
        yield found
        position = found.end
        index = found.index + 1


def _entry_after(raw: bytes, start: int, index: int) -> FoundEntry | None:
    """The first whole entry that begins after `start`, if the bytes before it may be those from `index` on."""
    position = start
    while (position := raw.find(_ENTRY_MAGIC, position + 1)) >= 0:
        lost_max = (position - start) // HEADER_BYTES
        if found := _entry_at(raw, position, index + 1, index + lost_max):
            return found
    return None


def _entry_at(raw: bytes, position: int, index_min: int, index_max: int) -> FoundEntry | None:
    if position + HEADER_BYTES > len(raw):
        return None
    magic, _, _, index, _, size, id, previous_id, crc = _ENTRY_HEAD.unpack_from(raw, position)
    end = position + HEADER_BYTES + size
    if magic != _ENTRY_MAGIC or not index_min <= index <= index_max or size > BATCH_BYTES_MAX or end > len(raw):
        return None
    view = memoryview(raw)
    head = crc32c(view[position : position + _ENTRY_CRC_POSITION])
    if crc32c(view[position + HEADER_BYTES : end], head) != crc:
        return None
    return FoundEntry(position, end, index, id, previous_id)
