"""Recovery of a log after a crash.

Up to the durable checkpoint the log is known to be complete. After it, a crash may have torn anything that was not
synced: the longest valid prefix stays, the rest is cut off, and segments that do not continue it are removed. Offsets
stay dense, and nothing that was synced is lost. Only in a log with `gaps`, which a follower has copied from a compacted
one, records may leave offsets out; there, too, a segment begins where the one before ends.

If the checkpoint itself was lost, which takes more than a crash, it is assumed to be after the last valid record.

Before the checkpoint nothing is ever cut off. If bytes are missing or wrong there, the disk has lost synced data. That
is reported as damage, and readers skip it and report it. New records continue *after* the offsets that were assigned,
and never reuse them.

Sealed segments are not read here, so opening a log costs the same however large it is. Damage in them is found when
they are read.
"""

from typing import NamedTuple

from goqueue.errors import UnsupportedFormat
from goqueue.events import Observer, TailTruncated
from goqueue.record.header import CRC_END, CRC_POSITION, HEADER, HEADER_BYTES, OFFSET_MAX, VERSION, RecordFault
from goqueue.record.kernel import crc32c
from goqueue.storage.checkpoint import Checkpoint
from goqueue.storage.file import Disk
from goqueue.storage.layout import GAPS, LOG, SEGMENT_SUFFIXES, Listing, segment_path
from goqueue.storage.segment import Segment
from goqueue.storage.walk import WINDOW_BYTES, Damage, RecordRun, Spot, record_bytes, walk


class RecoveredLog(NamedTuple):
    """The result of a recovery."""

    segments: list[Segment]  # at least one; the last one is active
    next_offset: int
    last_timestamp: int
    rescanned: list[Segment]  # their bytes may not be synced yet
    created: bool  # a segment was created: the directory has to be synced
    torn: bool  # something was cut off: until that is synced, a crash may bring it back
    damage: list[Damage]


class LogRecovery:
    """The recovery of one log from its files and its checkpoint."""

    def __init__(
        self, disk: Disk, directory: str, listing: Listing, checkpoint: Checkpoint | None, observe: Observer
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._observe = observe
        self._log_sizes = listing.log_sizes
        self._indexed = listing.indexed
        self._dense = GAPS not in listing.small_files
        newest = max(self._log_sizes, default=0)
        if checkpoint and checkpoint.base_offset not in self._log_sizes and checkpoint.base_offset < newest:
            checkpoint = None  # retention deleted its segment later: a newer checkpoint must have been lost
        self._checkpoint = checkpoint or self._end_of_valid_records()
        self._next_offset = self._checkpoint.next_offset
        self._last_timestamp = self._checkpoint.last_timestamp
        self._damage: list[Damage] = []

    def run(self) -> RecoveredLog:
        """Recover the log. Only torn writes after the checkpoint are changed."""
        checkpoint = self._checkpoint
        segments: list[Segment] = []
        rescanned: list[Segment] = []
        torn = False
        for base_offset in sorted(self._log_sizes):
            segment = Segment(self._disk, self._directory, base_offset, self._log_sizes[base_offset], self._observe)
            if base_offset >= checkpoint.base_offset:
                if torn or (base_offset > checkpoint.base_offset and not self._continues(base_offset)):
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
        return RecoveredLog(segments, self._next_offset, self._last_timestamp, rescanned, created, torn, self._damage)

    def _continues(self, base_offset: int) -> bool:
        """Whether a segment begins where the one before ends. In a gap after its records, both bounds will do."""
        return base_offset == self._next_offset or (not self._dense and base_offset < self._next_offset)

    def _end_of_valid_records(self) -> Checkpoint:
        """The checkpoint that covers all valid records of the last segment."""
        base_offset = max(self._log_sizes, default=0)
        end = Checkpoint(base_offset, 0, base_offset, 0)
        if self._log_sizes:
            segment = Segment(self._disk, self._directory, base_offset, self._log_sizes[base_offset], self._observe)
            for found in segment.walk(Spot(0, base_offset), end_offset=OFFSET_MAX, window_bytes=WINDOW_BYTES):
                if isinstance(found, RecordRun):
                    last = found.summary
                    end = Checkpoint(base_offset, found.end, last.last_offset + 1, last.last_timestamp)
        return end

    def _recover(self, segment: Segment) -> bool:
        """Complete the indexes of the segment and cut off its torn tail; true if there was one."""
        if not segment.size and not self._cut_short(segment) and segment.base_offset not in self._indexed:
            segment.start_indexes()  # without opening any of its files: most of thousands of partitions may be empty
            return False
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
            if isinstance(found, RecordRun):
                segment.file.pwrite(
                    position, found.records
                )  # the page cache may call it clean after a failed sync: dirty it
                segment.note(found.summary)
                self._next_offset = found.summary.last_offset + 1
                self._last_timestamp = max(self._last_timestamp, found.summary.last_timestamp)
                position, sure = found.end, False
            elif not sure:
                sure = True  # look twice: a bit may flip on its way, and what is cut off is gone for good
            else:
                self._refuse_newer_version(segment, found)
                self._observe(TailTruncated(log=self._directory, bytes=segment.size - position))
                segment.truncate(position)
                return True
        return False

    def _next_in_tail(self, segment: Segment, position: int) -> RecordRun | Damage:
        """What is at the position, after the checkpoint: a run that continues the log, or anything else."""
        return next(
            walk(
                segment.file,
                position,
                segment.size,
                min_offset=self._next_offset,
                end_offset=OFFSET_MAX,
                dense=self._dense,
                next_index_at=segment.next_index_at,
                resume=False,
            )
        )

    def _note_durable(self, segment: Segment, spot: Spot, end: int, end_offset: int) -> int:
        """Index the durable records from the spot on; returns the offset after the last valid one."""
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
        """Raise `UnsupportedFormat` if the record has a valid checksum: a later version of GoQueue wrote it."""
        if damage.fault != RecordFault.VERSION:
            return
        data = segment.file.pread(damage.position, HEADER_BYTES)
        data = segment.file.pread(damage.position, min(record_bytes(data), segment.size - damage.position))
        _, version, _, crc, *_ = HEADER.unpack_from(data)
        if crc == crc32c(data[CRC_END:], crc32c(data[:CRC_POSITION])):
            raise UnsupportedFormat(segment.path(LOG), f"records of version {version}; this GoQueue knows {VERSION}")
