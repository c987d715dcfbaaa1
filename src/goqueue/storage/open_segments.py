"""A bound on open files: only the most recently used segments keep their descriptors.

A descriptor that is released here stays open for a reader that still holds the file. Segments with unsynced bytes are
not released: the kernel reports a writeback error only to descriptors that were open when it happened.
"""

from collections import OrderedDict

from goqueue.storage.segment import Segment

OPEN_SEGMENTS_MAX = 64


class OpenSegments:
    """The segments with open files, least recently used first. One may serve all logs of a process."""

    def __init__(self, limit: int = OPEN_SEGMENTS_MAX) -> None:
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self._latest: Segment | None = None

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: Segment) -> Segment:
        """Note that the segment is about to be used."""
        if segment is not self._latest:
            self._latest = segment
            self._open[segment] = None
            self._open.move_to_end(segment)
            if len(self._open) > self._limit:
                self._release(1)
        return segment

    def trim(self) -> None:
        """Release all segments over the limit: some of them may have been synced by now."""
        if len(self._open) > self._limit:
            self._release(len(self._open) - 1)

    def _release(self, candidates: int) -> None:
        """Check so many of the oldest segments, and release those without unsynced bytes."""
        for _ in range(candidates):
            oldest = next(iter(self._open))
            if oldest.unsynced:
                self._open.move_to_end(oldest)
            elif len(self._open) > self._limit:
                self.forget(oldest)

    def forget(self, segment: Segment) -> None:
        """Release the files of the segment."""
        if segment is self._latest:
            self._latest = None
        self._open.pop(segment, None)
        segment.release()
