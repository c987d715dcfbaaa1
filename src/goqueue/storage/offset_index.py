"""The offset index of a segment: offset -> position in the .log file.

0        8          16
+--------+----------+
| offset | position |   big-endian, both rising
+--------+----------+
"""

import struct

from goqueue.storage.sparse_index import ENTRY_BYTES, IndexEntry, SparseIndex


class OffsetIndex(SparseIndex):
    """Finds the indexed record at or before an offset or a position."""

    ENTRY = struct.Struct(">QQ")

    def floor(self, offset: int, *, guess: float = 0.5) -> IndexEntry | None:
        """The last indexed record whose offset is not above `offset`."""
        count = self.count_below(offset + 1, guess=guess)
        return self.entry(count - 1) if count else None

    def count_before_position(self, position: int) -> int:
        """How many of the indexed records start before `position`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).value < position:
                low = middle + 1
            else:
                high = middle
        return low

    def from_position(self, position: int) -> IndexEntry | None:
        """The first indexed record at or after `position`."""
        count = self.count_before_position(position)
        return self.entry(count) if count < len(self) else None


assert OffsetIndex.ENTRY.size == ENTRY_BYTES
