"""The delayed messages that wait: the due time, the checksum of the key and the priority of each.

A message is one place in four columns, 24 bytes in all, sorted by offset and cut into chunks of 8,192. Delayed
messages arrive in the order of their offsets, so that they are put at the end; a message is found by bisection.

A message that no longer waits is not removed at once. The owner says how many were settled, and for each 8,192 of them
four chunks are checked, from the end to the beginning and again: a chunk that is half empty is packed, and joined to
the next one if both fit into one.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import compress
from sys import byteorder
from typing import NamedTuple

from pyroaring import BitMap64

CHUNK_ENTRIES = 8_192
DUE_NS_MAX = 2**63 - 1
_FEW = 16
"""If less than one in this many places of a chunk is wanted, each is looked up by bisection."""


class DelayColumns(NamedTuple):
    """Messages sorted by offset, one column for each field."""

    offsets: "array[int]"
    dues_ns: "array[int]"
    key_crcs: "array[int]"
    priorities: "array[int]"

    @classmethod
    def empty(cls) -> "DelayColumns":
        return cls(array("Q"), array("q"), array("I"), array("I"))

    def where(self, wanted: "bytes | list[bool]") -> "DelayColumns":
        """The places for which `wanted` is true."""
        return DelayColumns(*(array(column.typecode, compress(column, wanted)) for column in self))

    def between(self, start: int, end: int) -> "DelayColumns":
        """The places from `start` up to `end`."""
        return DelayColumns(*(column[start:end] for column in self))

    def extend(self, other: "DelayColumns") -> None:
        """Add the others, which have higher offsets, at the end."""
        for column, more in zip(self, other, strict=True):
            column.extend(more)

    def append(self, offset: int, due_ns: int, key_crc: int, priority: int) -> None:
        for column, value in zip(self, (offset, due_ns, key_crc, priority), strict=True):
            column.append(value)


class _Chunk:
    __slots__ = ("columns", "soonest_ns")

    def __init__(self, columns: DelayColumns) -> None:
        self.columns = columns
        self.soonest_ns = min(columns.dues_ns)  # a lower bound of the due times in it

    @property
    def first(self) -> int:
        return self.columns.offsets[0]

    @property
    def last(self) -> int:
        return self.columns.offsets[-1]

    def extend(self, columns: DelayColumns) -> None:
        soonest_ns = min(columns.dues_ns)
        self.soonest_ns = min(self.soonest_ns, soonest_ns)
        self.columns.extend(columns)

    def selectors(self, offsets: BitMap64) -> bytes:
        return bytes(map(offsets.__contains__, self.columns.offsets))

    def places(self, offsets: BitMap64) -> Iterator[int]:
        """The places of those of the offsets that are in the chunk; for a few offsets."""
        mine, last = self.columns.offsets, self.last
        low = 0
        for offset in offsets.iter_equal_or_larger(self.first):
            if offset > last:
                return
            low = bisect_left(mine, offset, low)
            if mine[low] == offset:
                yield low

    def due_by(self, limit_ns: int, offsets: BitMap64, count: int) -> list[tuple[int, int, int]]:
        """(due time, offset, priority) of the offsets that are due by then; `count` of them are in the chunk."""
        numbers, dues_ns, _, priorities = self.columns
        if count * _FEW < len(numbers):
            few = [(dues_ns[place], numbers[place], priorities[place]) for place in self.places(offsets)]
            return [one for one in few if one[0] <= limit_ns]
        every = zip(dues_ns, numbers, priorities, strict=True)
        return [one for one in every if one[0] <= limit_ns and one[1] in offsets]


class DelayTable:
    """The facts about messages, by offset."""

    __slots__ = ("_chunk_entries", "_chunks", "_debt", "_firsts", "_hand")

    def __init__(self, *, chunk_entries: int = CHUNK_ENTRIES) -> None:
        self._chunk_entries = chunk_entries
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # the first offset of each chunk
        self._debt = 0
        self._hand = 0

    def put_many(self, columns: DelayColumns) -> None:
        """Add these messages, and replace the ones that are known."""
        if not columns.offsets:
            return
        if self._chunks and columns.offsets[0] <= self._chunks[-1].last:
            for offset, due_ns, key_crc, priority in zip(*columns, strict=True):
                self._put(offset, due_ns, key_crc, priority)
            return
        start, count = 0, len(columns.offsets)
        if self._chunks and (room := self._chunk_entries - len(self._chunks[-1].columns.offsets)) > 0:
            start = min(room, count)
            self._chunks[-1].extend(columns.between(0, start))
        for at in range(start, count, self._chunk_entries):
            self._insert_chunk(len(self._chunks), columns.between(at, at + self._chunk_entries))

    def _put(self, offset: int, due_ns: int, key_crc: int, priority: int) -> None:
        values = (offset, due_ns, key_crc, priority)
        index = max(0, bisect_right(self._firsts, offset) - 1)
        chunk = self._chunks[index]
        chunk.soonest_ns = min(chunk.soonest_ns, due_ns)
        place = bisect_left(chunk.columns.offsets, offset)
        if place < len(chunk.columns.offsets) and chunk.columns.offsets[place] == offset:
            for column, value in zip(chunk.columns, values, strict=True):
                column[place] = value
            return
        for column, value in zip(chunk.columns, values, strict=True):
            column.insert(place, value)
        self._firsts[index] = chunk.first
        if len(chunk.columns.offsets) > 2 * self._chunk_entries:
            both = chunk.columns
            self._chunks[index] = _Chunk(both.between(0, self._chunk_entries))
            self._insert_chunk(index + 1, both.between(self._chunk_entries, len(both.offsets)))

    def _insert_chunk(self, index: int, columns: DelayColumns) -> None:
        self._chunks.insert(index, _Chunk(columns))
        self._firsts.insert(index, columns.offsets[0])

    def _find(self, offset: int) -> tuple[_Chunk, int]:
        chunk = self._chunks[bisect_right(self._firsts, offset) - 1]
        offsets = chunk.columns[0]
        place = bisect_left(offsets, offset)
        assert offsets[place] == offset
        return chunk, place

    def due_ns(self, offset: int) -> int:
        """The due time of a message in the table."""
        chunk, place = self._find(offset)
        return chunk.columns.dues_ns[place]

    def due_and_priority(self, offset: int) -> tuple[int, int]:
        """The due time and the priority of a message in the table."""
        chunk, place = self._find(offset)
        columns = chunk.columns
        return columns.dues_ns[place], columns.priorities[place]

    def move(self, offset: int, due_ns: int) -> int:
        """Change the due time of a message in the table; returns the old one."""
        chunk, place = self._find(offset)
        dues_ns = chunk.columns.dues_ns
        was_ns = dues_ns[place]
        dues_ns[place] = due_ns
        chunk.soonest_ns = min(chunk.soonest_ns, due_ns)
        return was_ns

    def shift(self, by_ns: int) -> None:
        """Move all due times by that much, later or earlier."""
        for chunk in self._chunks:
            dues_ns = [max(-DUE_NS_MAX, min(due_ns + by_ns, DUE_NS_MAX)) for due_ns in chunk.columns.dues_ns]
            chunk.columns = chunk.columns._replace(dues_ns=array("q", dues_ns))
            chunk.soonest_ns = min(dues_ns)

    def select(self, offsets: BitMap64) -> DelayColumns:
        """The columns of these offsets, which are in the table."""
        found = DelayColumns.empty()
        for chunk, count in self._spans(offsets):
            size = len(chunk.columns.offsets)
            if count == size:
                found.extend(chunk.columns)
            elif count * _FEW < size:
                offsets_, dues_ns, key_crcs, priorities = chunk.columns
                for place in chunk.places(offsets):
                    found.append(offsets_[place], dues_ns[place], key_crcs[place], priorities[place])
            else:
                found.extend(chunk.columns.where(chunk.selectors(offsets)))
        return found

    def dues_ns(self, offsets: BitMap64) -> "array[int]":
        """The due times of these offsets, which are in the table, in the order of the offsets."""
        found = array("q")
        for chunk, count in self._spans(offsets):
            dues_ns = chunk.columns.dues_ns
            if count == len(dues_ns):
                found.extend(dues_ns)
            elif count * _FEW < len(dues_ns):
                found.extend(map(dues_ns.__getitem__, chunk.places(offsets)))
            else:
                found.extend(compress(dues_ns, chunk.selectors(offsets)))
        return found

    def soonest(self, offsets: BitMap64, count: int) -> list[tuple[int, int, int]]:
        """(due time, offset, priority) of the first `count` of these offsets, by due time and then offset."""
        if count * 4 > len(offsets):
            numbers, dues_ns, _, priorities = self.select(offsets)
            order = sorted(range(len(numbers)), key=dues_ns.__getitem__)[:count]
            return [(dues_ns[place], numbers[place], priorities[place]) for place in order]
        best: list[tuple[int, int, int]] = []
        spans = sorted((chunk.soonest_ns, chunk.first, size, chunk) for chunk, size in self._spans(offsets))
        for soonest_ns, first, size, chunk in spans:
            if len(best) == count and (soonest_ns, first) > best[-1]:
                break
            limit_ns = best[-1][0] if len(best) == count else max(chunk.columns.dues_ns)
            best = sorted(best + chunk.due_by(limit_ns, offsets, size))[:count]
        return best

    def with_key(self, key_crc: int) -> BitMap64:
        """The offsets in the table whose key has that checksum."""
        found: list[int] = []
        wanted = key_crc.to_bytes(4, byteorder)
        for chunk in self._chunks:
            raw = chunk.columns.key_crcs.tobytes()
            at = raw.find(wanted)
            while at >= 0:
                if at % 4 == 0:
                    found.append(chunk.columns.offsets[at // 4])
                at = raw.find(wanted, at + 1)
        return BitMap64(found)

    def sweep(self, waiting: BitMap64, settled_count: int) -> None:
        """Free the memory of settled messages; amortized, so that no single call takes long."""
        self._debt += settled_count
        if not waiting:
            self._clear()
        if self._debt < self._chunk_entries:
            return
        visits = 4 * (self._debt // self._chunk_entries)
        self._debt %= self._chunk_entries
        for _ in range(min(visits, len(self._chunks))):
            self._hand = self._hand - 1 if 0 < self._hand <= len(self._chunks) else len(self._chunks) - 1
            self._visit(self._hand, waiting)

    def _clear(self) -> None:
        self._chunks.clear()
        self._firsts.clear()
        self._debt = self._hand = 0

    def _visit(self, index: int, waiting: BitMap64) -> None:
        chunk = self._chunks[index]
        live_count = waiting.range_cardinality(chunk.first, chunk.last + 1)
        if 2 * live_count < len(chunk.columns.offsets):
            del self._chunks[index], self._firsts[index]
            if not live_count:
                return
            self._insert_chunk(index, chunk.columns.where(chunk.selectors(waiting)))
        if index + 1 < len(self._chunks) and live_count <= self._chunk_entries // 2:
            self._join(index)

    def _join(self, index: int) -> None:
        """Join the chunk and the next one, if they fit into one."""
        columns, more = self._chunks[index].columns, self._chunks[index + 1].columns
        if len(columns.offsets) + len(more.offsets) <= self._chunk_entries:
            self._chunks[index].extend(more)
            del self._chunks[index + 1], self._firsts[index + 1]

    def _spans(self, offsets: BitMap64) -> Iterator[tuple[_Chunk, int]]:
        """The chunks that hold some of the offsets, and how many; all of them are in the table."""
        if not offsets:
            return
        position, highest = offsets.min(), offsets.max()
        while True:
            chunk = self._chunks[bisect_right(self._firsts, position) - 1]
            end = chunk.last + 1
            yield chunk, offsets.range_cardinality(chunk.first, end)
            if end > highest:
                return
            position = offsets.next_set_bit(end)
