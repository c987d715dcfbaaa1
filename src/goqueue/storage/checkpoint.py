"""The durable checkpoint: up to where everything in a log is known to be on the disk.

    0      4         6      8          16       24         32            40               48    52
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+
    | GQCP | version | 0    | sequence | base   | position | next offset | last timestamp | crc |
    +------+---------+------+----------+--------+----------+-------------+----------------+-----+

All records below `next_offset` are on the medium, the last of them ending at `position` of the segment
`base`. Behind the checkpoint a crash may have torn things, and recovery cuts the log where they stop
being valid. Before it, whatever is wrong is damage, and is never cut away.

The file has two slots, each in a sector of its own, written in turn: a torn write costs the newer one
at most. A slot is only written after the data it vouches for were synced, so it is true even while
it is itself not synced: it may vanish in a crash, but it cannot lie. That makes it cheap enough to be
written after every flush; it is synced when a segment is sealed and when the log is closed, and then stands
in both slots: no older one is left that speaks of segments which retention or compaction take away next.
"""

import struct
from typing import NamedTuple

from goqueue.errors import UnsupportedFormat
from goqueue.record.kernel import crc32c
from goqueue.storage.file import Disk, File

_SLOT = struct.Struct(">4sHHQQQQqI")
SLOT_BYTES = 52
SLOT_STRIDE_BYTES = 4096
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
    """The two slots on the disk. Not thread-safe: one job at a time writes it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._sequence = 0

    def load(self) -> Checkpoint | None:
        """The newest valid slot, or None if there is none."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.pread(0, SLOT_STRIDE_BYTES + SLOT_BYTES)
        file.close()
        newest = None
        for position in (0, SLOT_STRIDE_BYTES):
            slot = data[position : position + SLOT_BYTES]
            if len(slot) < SLOT_BYTES or slot[:4] != MAGIC:
                continue
            _, version, _, sequence, *fields, crc = _SLOT.unpack(slot)
            if crc != crc32c(slot[:-4]):
                continue
            if version != VERSION:
                raise UnsupportedFormat(self._path, f"format version {version}; this GoQueue knows {VERSION}")
            if sequence > self._sequence:
                self._sequence = sequence
                newest = Checkpoint(*fields)
        return newest

    def create(self) -> None:
        """Make the file, so that its name is on the medium when the directory is synced for the first time.

        Both slots take their room now: a disk that fills up later does not get between a log and its checkpoint.
        """
        file = self._disk.open(self._path, create=True)
        for position in (0, SLOT_STRIDE_BYTES):
            file.pwrite(position, bytes(SLOT_BYTES))
        file.close()

    def write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        """Put the checkpoint into the older slot, or synced into both. What it vouches for is durable already."""
        for _ in range(2 if sync else 1):
            self._write_slot(checkpoint, sync=sync)

    def lower(self, checkpoint: Checkpoint) -> None:
        """Put the checkpoint, which is behind an earlier one, into both slots: no crash may bring that one back."""
        self.write(checkpoint, sync=True)

    def _write_slot(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        self._sequence += 1
        slot = _SLOT.pack(MAGIC, VERSION, 0, self._sequence, *checkpoint, 0)[:-4]
        file: File = self._disk.open(self._path, create=True)
        file.pwrite((self._sequence % 2) * SLOT_STRIDE_BYTES, slot + crc32c(slot).to_bytes(4, "big"))
        if sync:
            file.sync()
        file.close()
