"""The time index of a segment: timestamp -> offset.

    0           8        16
    +-----------+--------+
    | timestamp | offset |   big-endian; timestamps do not fall, offsets rise
    +-----------+--------+

Append times never go back within a log, so the index is sorted. Records of one batch share their timestamp, so a search
looks for the last entry *before* a time: the first record of that time may come before the first entry with it.
"""

import struct

from goqueue.storage.sparse_index import ENTRY_BYTES, IndexEntry, SparseIndex


class TimeIndex(SparseIndex):
    """Finds the indexed record that was stored before a time."""

    ENTRY = struct.Struct(">qQ")

    def before(self, timestamp: int, *, guess: float = 0.5) -> IndexEntry | None:
        """The last indexed record stamped earlier than `timestamp`."""
        count = self.count_below(timestamp, guess=guess)
        return self.entry(count - 1) if count else None


assert TimeIndex.ENTRY.size == ENTRY_BYTES
