"""The durable checkpoint: the offset below which everything in a log is known to be on the disk.

    0      4         6      8          16       24         32            40               48    52
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+
    | GQCP | version | cut  | sequence | base   | position | next offset | last timestamp | crc |
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+

All records below `next_offset` are on the disk; the last of them ends at `position` of the segment `base`. After the
checkpoint a crash may have torn writes, and recovery truncates the log where the records stop being valid. Before it,
invalid bytes are damage, which is reported and never cut away.

The file has three slots, each in its own page, and the newest valid one counts. A slot is only written after the data
that it vouches for was synced. So it is true even before it is synced itself: a crash may lose it, but it cannot lie.
That makes it cheap enough to write the third slot after every flush. When a segment is sealed, or the log is truncated
or closed, the first two slots are written and synced, one after the other: a torn write costs one of them at most. So a
log has a valid slot from its creation on, and a log without one has lost it.

A checkpoint with a `cut` is also a decision: the log ends there, and what its files have after it is to be removed
(`truncation.py`). Once that is done, the same checkpoint is written without the cut.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from goqueue.errors import UnsupportedFormat
from goqueue.record.kernel import crc32c
from goqueue.storage.file import Disk

_SLOT = struct.Struct(">4sHHQQQQqI")
SLOT_BYTES = 52
SLOT_STRIDE_BYTES = 4096
SLOT_COUNT = 3
_SYNCED_SLOTS, _UNSYNCED_SLOT = (0, 1), 2
MAGIC = b"GQCP"
VERSION = 1
assert _SLOT.size == SLOT_BYTES


class Cut(IntEnum):
    """What opening the log has to remove first, because a crash may have interrupted the removal."""

    NONE = 0
    END = 1  # all records at or after the checkpoint
    ALL = 2  # all records: the log restarts, empty, at the offset of the checkpoint


class Checkpoint(NamedTuple):
    """A point in a log; everything before it is durable."""

    base_offset: int
    position: int
    next_offset: int
    last_timestamp: int
    cut: Cut = Cut.NONE

    @property
    def settled(self) -> "Checkpoint":
        """The same point when its cut has been carried out."""
        return self._replace(cut=Cut.NONE)


_CUTS = frozenset(Cut)


class CheckpointFile:
    """The slots on the disk. Not thread-safe: one job at a time writes it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._sequences = [0] * SLOT_COUNT  # of each slot; 0: it is empty
        self.is_settled = False  # `load` found both synced slots equal: their last write was complete

    def load(self, *, write: bool = True) -> Checkpoint | None:
        """The newest valid slot, or None if there is none. Without `write`, read permission is enough."""
        try:
            file = self._disk.open(self._path, write=write)
        except FileNotFoundError:
            return None
        data = file.pread(0, SLOT_COUNT * SLOT_STRIDE_BYTES)
        file.close()
        newest = None
        synced: list[Checkpoint] = []
        for index in range(SLOT_COUNT):
            slot = data[index * SLOT_STRIDE_BYTES :][:SLOT_BYTES]
            if len(slot) < SLOT_BYTES or slot[:4] != MAGIC:
                continue
            _, version, cut, sequence, *fields, crc = _SLOT.unpack(slot)
            if crc != crc32c(slot[:-4]):
                continue
            if version != VERSION or cut not in _CUTS:
                found_version = f"{version}.{cut}" if version == VERSION else f"{version}"
                raise UnsupportedFormat(self._path, f"format version {found_version}; this GoQueue knows {VERSION}")
            found = Checkpoint._make([*fields, Cut(cut)])
            if sequence > max(self._sequences):
                newest = found
            self._sequences[index] = sequence
            if index in _SYNCED_SLOTS:
                synced.append(found)
        self.is_settled = len(synced) == len(_SYNCED_SLOTS) and len(set(synced)) == 1
        return newest

    def write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        """Write the checkpoint into its slots. The data that it vouches for is durable already."""
        file = self._disk.open(self._path, create=True)
        is_first = not any(self._sequences)  # then there is no slot to keep until the other one is synced
        slots = self._synced_slots() if sync else [_UNSYNCED_SLOT]
        for index in slots:
            sequence = max(self._sequences) + 1
            slot = _SLOT.pack(MAGIC, VERSION, checkpoint.cut, sequence, *checkpoint[:-1], 0)[:-4]
            file.pwrite(index * SLOT_STRIDE_BYTES, slot + crc32c(slot).to_bytes(4, "big"))
            if sync and (not is_first or index == slots[-1]):
                file.sync()
            self._sequences[index] = sequence
        file.close()

    def _synced_slots(self) -> list[int]:
        """First an empty slot, then the newer one.

        The newer slot was written after the older one had been synced; whether it was synced itself is not known. So
        the older one is the safe copy, and is overwritten last.
        """
        return sorted(_SYNCED_SLOTS, key=lambda index: (self._sequences[index] > 0, -self._sequences[index]))

    def make_room(self) -> None:
        """Create the file with empty slots: its name can be synced first, and later writes need no new blocks."""
        file = self._disk.open(self._path, create=True)
        for index in range(SLOT_COUNT):
            file.pwrite(index * SLOT_STRIDE_BYTES, bytes(SLOT_BYTES))
        file.close()


def damaged_slots(data: bytes) -> list[int]:
    """The indexes of the slots that hold something else than what was written to them."""
    found = []
    for index in range(SLOT_COUNT):
        slot = data[index * SLOT_STRIDE_BYTES :][:SLOT_BYTES]
        is_valid = len(slot) == SLOT_BYTES and slot[:4] == MAGIC and slot[-4:] == crc32c(slot[:-4]).to_bytes(4, "big")
        if any(slot) and not is_valid:
            found.append(index)
    return found
