"""The durable checkpoint: up to where everything in a log is known to be on the disk.

    0      4         6      8          16       24         32            40               48    52
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+
    | GQCP | version | 0    | sequence | base   | position | next offset | last timestamp | crc |
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+

All records below `next_offset` are on the medium, the last of them ending at `position` of the segment
`base`. Behind the checkpoint a crash may have torn things, and recovery cuts the log where they stop
being valid. Before it, whatever is wrong is damage, and is never cut away.

The file has three slots, each in a page of its own, and the newest valid one counts. A slot is only written
after the data it vouches for were synced, so it is true even while it is itself not synced: it may vanish in a crash,
but it cannot lie. That makes it cheap enough to be written after every flush, into the third slot. When a segment
is sealed, the log cut or closed, the first two are written and synced, one after the other: a torn write costs one
of them at most. So there is always a valid slot, from the making of the log on, and a log without one has lost it.
"""

import struct
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


class Checkpoint(NamedTuple):
    """A point in a log up to which all is durable."""

    base_offset: int
    position: int
    next_offset: int
    last_timestamp: int


class CheckpointFile:
    """The slots on the disk. Not thread-safe: one job at a time writes it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._sequences = [0] * SLOT_COUNT  # of what stands in each slot; 0 for nothing
        self.is_settled = False  # both synced slots were found to say the same: the last write of them was not cut off

    def load(self, *, write: bool = True) -> Checkpoint | None:
        """The newest valid slot, or None if there is none. Without `write` the permission to read is enough."""
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
            _, version, _, sequence, *fields, crc = _SLOT.unpack(slot)
            if crc != crc32c(slot[:-4]):
                continue
            if version != VERSION:
                raise UnsupportedFormat(self._path, f"format version {version}; this GoQueue knows {VERSION}")
            found = Checkpoint(*fields)
            if sequence > max(self._sequences):
                newest = found
            self._sequences[index] = sequence
            if index in _SYNCED_SLOTS:
                synced.append(found)
        self.is_settled = len(synced) == len(_SYNCED_SLOTS) and len(set(synced)) == 1
        return newest

    def write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        """Put the checkpoint into its slots. What it vouches for is durable already."""
        file = self._disk.open(self._path, create=True)
        for index in self._synced_slots() if sync else (_UNSYNCED_SLOT,):
            sequence = max(self._sequences) + 1
            slot = _SLOT.pack(MAGIC, VERSION, 0, sequence, *checkpoint, 0)[:-4]
            file.pwrite(index * SLOT_STRIDE_BYTES, slot + crc32c(slot).to_bytes(4, "big"))
            if sync:
                file.sync()
            self._sequences[index] = sequence
        file.close()

    def _synced_slots(self) -> list[int]:
        """First a slot without anything in it, then the newer one: it was written when the older had been synced,
        and that is more than anybody knows of it.
        """
        return sorted(_SYNCED_SLOTS, key=lambda index: (self._sequences[index] > 0, -self._sequences[index]))

    def make_room(self) -> None:
        """Make the file, without a valid slot: so that its name can be synced first, and no full disk is in its way."""
        file = self._disk.open(self._path, create=True)
        for index in range(SLOT_COUNT):
            file.pwrite(index * SLOT_STRIDE_BYTES, bytes(SLOT_BYTES))
        file.close()


def damaged_slots(data: bytes) -> list[int]:
    """The numbers of the slots in the content of the file that were written and are not what was written."""
    found = []
    for index in range(SLOT_COUNT):
        slot = data[index * SLOT_STRIDE_BYTES :][:SLOT_BYTES]
        is_valid = len(slot) == SLOT_BYTES and slot[:4] == MAGIC and slot[-4:] == crc32c(slot[:-4]).to_bytes(4, "big")
        if any(slot) and not is_valid:
            found.append(index)
    return found
