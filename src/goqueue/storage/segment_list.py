"""The segments of a log in order: which of them holds an offset or a time, and where each of them ends.

A segment ends where the next one begins; the last one, which is active, ends where the log does. `generation` changes
whenever an offset may have moved to another segment or file; readers then find their place again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.retention import SegmentInfo
from goqueue.storage.segment import Segment


class SegmentRange(NamedTuple):
    """A segment and the offset at which it ends."""

    segment: Segment
    end_offset: int


class SegmentList:
    """At least one segment. Also holds the `next_offset` of the log, because that is where the last one ends."""

    def __init__(
        self, segments: list[Segment], next_offset: int, open_segments: OpenSegments, *, deleted_below: int = 0
    ) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self._count_gaps()
        self._open_segments = open_segments
        self._deleted_below = deleted_below  # by a request; it may be within the first segment
        self.next_offset = next_offset
        self.generation = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> SegmentRange:
        """The segment with that index, counted as used."""
        return SegmentRange(self._open_segments.touch(self._segments[index]), self._end_of(index))

    @property
    def start_offset(self) -> int:
        return max(self._bases[0], self._deleted_below)

    @property
    def active(self) -> Segment:
        """The last segment, counted as used."""
        return self._open_segments.touch(self._segments[-1])

    @property
    def size(self) -> int:
        return self._sealed_bytes + self._segments[-1].size

    @property
    def sealed_bytes(self) -> int:
        return self._sealed_bytes

    def sealed(self) -> Iterator[SegmentRange]:
        """All but the last, oldest first."""
        return (SegmentRange(self._segments[index], self._bases[index + 1]) for index in range(len(self._segments) - 1))

    def place_of(self, offset: int) -> SegmentRange:
        """The segment that holds the offset, or would hold it."""
        return self[max(0, bisect_right(self._bases, offset) - 1)]

    def between(self, start_offset: int, end_offset: int) -> Iterator[SegmentRange]:
        """The segments that hold some of the offsets in [start, end)."""
        if start_offset >= end_offset:
            return iter(())
        first = max(0, bisect_right(self._bases, start_offset) - 1)
        return (self[index] for index in range(first, bisect_left(self._bases, end_offset)))

    def delete_below(self, offset: int) -> None:
        """Start the log at the offset; the segments stay until they are taken."""
        self._deleted_below = max(self._deleted_below, offset)

    def count_ended_before(self, offset: int) -> int:
        """How many segments have only records below the offset; the active one is never among them."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def count_before(self, base_offset: int) -> int:
        """How many segments start before `base_offset`."""
        return bisect_left(self._bases, base_offset)

    def append(self, segment: Segment) -> None:
        """Make this segment the active one; the one before is sealed."""
        self._sealed_bytes += self._segments[-1].size
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def take_first(self, count: int) -> list[Segment]:
        """Remove the oldest segments from the list."""
        taken = self._segments[:count]
        self._set(self._segments[count:])
        return self._forget(taken)

    def after(self, segment: Segment) -> list[Segment]:
        return self._segments[self._segments.index(segment) + 1 :]

    def cut(self, segment: Segment, position: int, end_offset: int) -> None:
        """End the log at `end_offset`, which is at this position of the segment; later segments leave the list."""
        taken = self.after(segment)
        segment.cut(position)
        segment.missing = min(segment.missing, end_offset - segment.base_offset)
        self._set(self._segments[: len(self._segments) - len(taken)])
        self.next_offset = end_offset
        self._forget(taken)

    def restart(self, segment: Segment) -> list[Segment]:
        """Replace all segments by this one, which is empty; returns those."""
        taken = self._segments
        self._deleted_below = 0
        self._set([segment])
        self.next_offset = segment.base_offset
        return self._forget(taken)

    def note_missing(self, count: int) -> None:
        """So many offsets of the active segment have no record."""
        self._segments[-1].missing += count
        self.missing += count

    def last_timestamp_before(self, offset: int) -> int:
        """The time of the last record before the offset; 0 if there is none."""
        for index in range(max(0, bisect_right(self._bases, offset) - 1), -1, -1):
            segment, end_offset = self[index]
            if last := segment.last_below(offset, end_offset=end_offset):
                return last.timestamp
        return 0

    def replace(self, copies: Mapping[int, Segment]) -> list[Segment]:
        """Put copies in the place of the segments with these bases, and return those. Neighbors may share a copy."""
        taken = [segment for segment in self._segments if segment.base_offset in copies]
        self._set(list(dict.fromkeys(copies.get(segment.base_offset, segment) for segment in self._segments)))
        return self._forget(taken)

    def trim_open_files(self) -> None:
        """Release files over the limit: some of them may have been synced by now."""
        self._open_segments.trim()

    def release(self) -> None:
        self._forget(self._segments)

    def _set(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self._count_gaps()
        self.generation += 1

    def _count_gaps(self) -> None:
        self.missing = sum(segment.missing for segment in self._segments)
        self.control_missing = sum(segment.control_missing for segment in self._segments)

    def _forget(self, segments: list[Segment]) -> list[Segment]:
        for segment in segments:
            self._open_segments.forget(segment)
        return segments

    def offset_at_time(self, timestamp: int, *, newest_ns: int) -> int:
        """The first offset stored at `timestamp` or later, else the end of the log, whose newest record is that old."""
        index = self._count_begun_before(timestamp)
        if index:
            segment, end_offset = self[index - 1]
            begun, _ = self._first_timestamp(index - 1, index)
            ended, _ = self._first_timestamp(index, len(self))
            guess = _share(timestamp, begun or 0, newest_ns if ended is None else ended)
            offset = segment.offset_at_time(timestamp, end_offset=end_offset, guess=guess)
            if offset is not None:
                return offset
        return self._bases[index] if index < len(self) else self.next_offset

    def retention_info(self, index: int, *, newest_ns: int) -> SegmentInfo:
        """What retention has to know of a sealed segment."""
        segment, end_offset = self[index]
        last = segment.last_timestamp(end_offset=end_offset)
        if last is None and segment.size:  # all of it is damaged; it is taken to be as old as the records that follow
            following, _ = self._first_timestamp(index + 1, len(self))
            last = newest_ns if following is None else following
        return SegmentInfo(segment.base_offset, segment.size, last)

    def pieces(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[tuple[int, int]]:
        """The range cut at index entries: the first offset of each piece, and its size in bytes."""
        pieces: list[tuple[int, int]] = []
        first, size = start_offset, 0
        stored_end = min(end_offset, self.next_offset)
        for segment, segment_end in self.between(start_offset, stored_end):
            position = segment.position_near(start_offset)
            stop = segment.size if segment_end <= stored_end else segment.position_near(stored_end)
            while size + stop - position > piece_bytes:
                cut = segment.offsets.from_position(position + max(0, piece_bytes - size))
                if cut is None or cut.value >= stop or cut.key <= first:
                    break
                pieces.append((first, size + cut.value - position))
                (first, position), size = cut, 0
            size += max(0, stop - position)
        if first < end_offset:
            pieces.append((first, size))
        return pieces

    def _count_begun_before(self, timestamp: int) -> int:
        """How many segments begin with a record older than `timestamp`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            begun, found_in = self._first_timestamp(middle, high)
            if begun is None or begun >= timestamp:
                high = middle
            else:
                low = found_in + 1
        return low

    def _first_timestamp(self, index: int, end: int) -> tuple[int | None, int]:
        """The time of the first record in the segments [index, end), and the index of its segment."""
        for candidate in range(index, end):
            segment, end_offset = self[candidate]
            first = segment.first_timestamp(end_offset=end_offset)
            if first is not None:
                return first, candidate
        return None, end

    def _end_of(self, index: int) -> int:
        following = index % len(self._bases) + 1
        return self._bases[following] if following < len(self._bases) else self.next_offset


def _share(timestamp: int, begun: int, ended: int) -> float:
    """The share of the time from `begun` to `ended` that has passed at `timestamp`."""
    return (timestamp - begun) / max(1, ended - begun)
