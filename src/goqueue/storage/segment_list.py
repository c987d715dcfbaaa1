"""The segments of a log in order: which of them holds an offset, and where each of them ends.

A segment ends where the next one begins; the last, active one ends where the log does. `generation` changes
whenever an offset may have moved to another segment or file, which is what readers go by.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.segment import Segment


class Place(NamedTuple):
    """A segment and the offset at which it ends."""

    segment: Segment
    end_offset: int


class SegmentList:
    """At least one segment. Holds the log's `next_offset`, too, because that is where the last one ends."""

    def __init__(self, segments: list[Segment], next_offset: int, open_segments: OpenSegments) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self._count_gaps()
        self._open_segments = open_segments
        self.next_offset = next_offset
        self.generation = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Place:
        """The segment with that number, about to be used."""
        return Place(self._open_segments.touch(self._segments[index]), self._end_of(index))

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def active(self) -> Segment:
        """The last segment, about to be used."""
        return self._open_segments.touch(self._segments[-1])

    @property
    def size(self) -> int:
        return self._sealed_bytes + self._segments[-1].size

    @property
    def sealed_bytes(self) -> int:
        return self._sealed_bytes

    def sealed(self) -> Iterator[Place]:
        """All but the last, oldest first."""
        return (Place(self._segments[index], self._bases[index + 1]) for index in range(len(self._segments) - 1))

    def place_of(self, offset: int) -> Place:
        """The segment in which the offset stands, or would stand."""
        return self[max(0, bisect_right(self._bases, offset) - 1)]

    def between(self, start_offset: int, end_offset: int) -> Iterator[Place]:
        """Those that hold some of the offsets in [start, end)."""
        if start_offset >= end_offset:
            return iter(())
        first = max(0, bisect_right(self._bases, start_offset) - 1)
        return (self[index] for index in range(first, bisect_left(self._bases, end_offset)))

    def count_before(self, base_offset: int) -> int:
        """How many segments start before `base_offset`."""
        return bisect_left(self._bases, base_offset)

    def append(self, segment: Segment) -> None:
        """Make this one the last; the one before is sealed by that."""
        self._sealed_bytes += self._segments[-1].size
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def take_first(self, count: int) -> list[Segment]:
        """Take out the oldest segments."""
        taken = self._segments[:count]
        self._set(self._segments[count:])
        return self._forget(taken)

    def take_behind(self, segment: Segment) -> list[Segment]:
        """Take out all segments behind this one, which becomes the last."""
        index = self._segments.index(segment) + 1
        taken = self._segments[index:]
        self._set(self._segments[:index])
        return self._forget(taken)

    def replace(self, copies: Mapping[int, Segment]) -> list[Segment]:
        """Put copies into the places of the segments with these bases, and return those. Neighbours may share one."""
        taken = [segment for segment in self._segments if segment.base_offset in copies]
        self._set(list(dict.fromkeys(copies.get(segment.base_offset, segment) for segment in self._segments)))
        return self._forget(taken)

    def trim_open_files(self) -> None:
        """Let go of files over the limit: some of them may have been synced by now."""
        self._open_segments.trim()

    def release(self) -> None:
        """Let go of all files."""
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

    def _end_of(self, index: int) -> int:
        following = index % len(self._bases) + 1
        return self._bases[following] if following < len(self._bases) else self.next_offset
