"""Recovery: what a log is after whatever happened to it.

Up to the durable checkpoint the log is known to be whole. Behind it, a crash may have torn anything that
was not synced: the longest valid prefix stays, the rest is cut off, and segments that no longer join up
with it are removed. Offsets stay dense, and nothing that a sync had covered is lost by that.

A checkpoint that was lost, which takes more than a crash, is taken to have stood behind the last valid record.

Before the checkpoint nothing is ever cut away. If bytes are missing or wrong there, the disk has lost what
it had promised to keep: that is reported as damage, readers pass over it and are told so, and new
records continue *behind* the offsets that were given out, never on top of them.

Sealed segments are not read here; opening a log costs the same however large it is. Their damage, if
they have any, is found by whoever reads them.
"""

from typing import NamedTuple

from goqueue.errors import UnsupportedFormat
from goqueue.events import Observer, TailTruncated
from goqueue.record.header import CRC_END, CRC_POSITION, HEADER, HEADER_BYTES, OFFSET_MAX, VERSION, RecordFault
from goqueue.record.kernel import crc32c
from goqueue.storage.checkpoint import Checkpoint
from goqueue.storage.file import Disk
from goqueue.storage.layout import LOG, SEGMENT_SUFFIXES, segment_path
from goqueue.storage.segment import Segment
from goqueue.storage.walk import WINDOW_BYTES, Damage, Run, Spot, record_bytes, walk


class Recovered(NamedTuple):
    """A log that can be used again."""

    segments: list[Segment]  # the last one is active; there is at least one
    next_offset: int
    last_timestamp: int
    rescanned: list[Segment]  # their bytes may not have been synced yet
    created: bool  # a segment was made: the directory is to be synced
    torn: bool  # something was cut off: until that is synced, it may come back
    damage: list[Damage]


class Recovery:
    """The recovery of one log, from the files that are there and the checkpoint that is left."""

    def __init__(
        self, disk: Disk, directory: str, log_sizes: dict[int, int], checkpoint: Checkpoint | None, observe: Observer
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._observe = observe
        self._log_sizes = log_sizes
        newest = max(log_sizes, default=0)
        if checkpoint and checkpoint.base_offset not in log_sizes and checkpoint.base_offset < newest:
            checkpoint = None  # its segment was deleted since: a newer one must have been lost
        self._checkpoint = checkpoint or self._end_of_valid_records()
        self._next_offset = self._checkpoint.next_offset
        self._last_timestamp = self._checkpoint.last_timestamp
        self._damage: list[Damage] = []

    def run(self) -> Recovered:
        """Bring the log into order. Only what is torn behind the checkpoint is changed."""
        checkpoint = self._checkpoint
        segments: list[Segment] = []
        rescanned: list[Segment] = []
        torn = False
        for base_offset in sorted(self._log_sizes):
            segment = Segment(self._disk, self._directory, base_offset, self._log_sizes[base_offset], self._observe)
            if base_offset >= checkpoint.base_offset:
                if torn or (base_offset > checkpoint.base_offset and base_offset != self._next_offset):
                    self._remove(segment)
                    torn = True
                    continue
                torn = self._recover(segment)
                rescanned.append(segment)
            segments.append(segment)
        if checkpoint.base_offset not in self._log_sizes and checkpoint.next_offset > checkpoint.base_offset:
            self._missing(segment_path(self._directory, checkpoint.base_offset, LOG), 0, checkpoint.base_offset)
        created = not rescanned or self._cut_short(rescanned[-1])
        if created:
            segments.append(Segment.create(self._disk, self._directory, self._next_offset, self._observe))
        return Recovered(segments, self._next_offset, self._last_timestamp, rescanned, created, torn, self._damage)

    def _end_of_valid_records(self) -> Checkpoint:
        """Where the checkpoint would be if it could be trusted to have covered everything that is whole."""
        base_offset = max(self._log_sizes, default=0)
        end = Checkpoint(base_offset, 0, base_offset, 0)
        if self._log_sizes:
            segment = Segment(self._disk, self._directory, base_offset, self._log_sizes[base_offset], self._observe)
            for found in segment.walk(Spot(0, base_offset), end_offset=OFFSET_MAX, window_bytes=WINDOW_BYTES):
                if isinstance(found, Run):
                    last = found.summary
                    end = Checkpoint(base_offset, found.end, last.last_offset + 1, last.last_timestamp)
        return end

    def _recover(self, segment: Segment) -> bool:
        """Complete the indexes of the segment and cut off its torn end; true if there was one."""
        durable_end = min(self._durable_position(segment), segment.size)
        durable_offset = self._next_offset
        spot = segment.keep_index_until(durable_end)
        expected = self._note_durable(segment, spot, durable_end, durable_offset)
        if self._cut_short(segment):
            self._missing(segment.path(LOG), segment.size, expected)
            return False
        position, sure = durable_end, False
        while position < segment.size:
            found = self._next_in_tail(segment, position)
            if isinstance(found, Run):
                segment.file.pwrite(position, found.records)  # or the next sync may skip what an earlier one lost
                segment.note(found.summary)
                self._next_offset = found.summary.last_offset + 1
                self._last_timestamp = max(self._last_timestamp, found.summary.last_timestamp)
                position, sure = found.end, False
            elif not sure:
                sure = True  # after a second look: what is cut off for a bit that flipped on its way is gone for good
            else:
                self._refuse_newer_version(segment, found)
                self._observe(TailTruncated(log=self._directory, bytes=segment.size - position))
                segment.truncate(position)
                return True
        return False

    def _next_in_tail(self, segment: Segment, position: int) -> Run | Damage:
        """What stands at the position, behind the checkpoint: a run that joins up with the log, or anything else."""
        return next(
            walk(
                segment.file,
                position,
                segment.size,
                min_offset=self._next_offset,
                end_offset=OFFSET_MAX,
                dense=True,
                next_index_at=segment.next_index_at,
                resume=False,
            )
        )

    def _note_durable(self, segment: Segment, spot: Spot, end: int, end_offset: int) -> int:
        """Index what the checkpoint vouches for, from the spot on; the offset behind the last valid record."""
        expected = spot.min_offset
        for found in walk(
            segment.file,
            spot.position,
            end,
            min_offset=spot.min_offset,
            end_offset=end_offset,
            next_index_at=segment.next_index_at,
        ):
            if isinstance(found, Damage):
                self._refuse_newer_version(segment, found)
                self._damage.append(found)
            else:
                segment.note(found.summary)
                expected = found.summary.last_offset + 1
        return expected

    def _durable_position(self, segment: Segment) -> int:
        return self._checkpoint.position if segment.base_offset == self._checkpoint.base_offset else 0

    def _cut_short(self, segment: Segment) -> bool:
        return segment.size < self._durable_position(segment)

    def _missing(self, path: str, position: int, first_offset: int) -> None:
        checkpoint = self._checkpoint
        self._damage.append(
            Damage(path, position, checkpoint.position, first_offset, checkpoint.next_offset, RecordFault.TRUNCATED)
        )

    def _remove(self, segment: Segment) -> None:
        self._observe(TailTruncated(log=self._directory, bytes=segment.size))
        for suffix in SEGMENT_SUFFIXES:
            self._disk.remove(segment.path(suffix))

    def _refuse_newer_version(self, segment: Segment, damage: Damage) -> None:
        """A record of a version we do not know, but whole by its checksum, is no damage: it is from the future."""
        if damage.fault != RecordFault.VERSION:
            return
        data = segment.file.pread(damage.position, HEADER_BYTES)
        data = segment.file.pread(damage.position, min(record_bytes(data), segment.size - damage.position))
        _, version, _, crc, *_ = HEADER.unpack_from(data)
        if crc == crc32c(data[CRC_END:], crc32c(data[:CRC_POSITION])):
            raise UnsupportedFormat(segment.path(LOG), f"records of version {version}; this GoQueue knows {VERSION}")
