"""One segment: a run of records in a single append-only file, with two sparse indexes.

A segment named 00000000000000004200.log holds offsets from 4200 up to the base of the next segment. Only the last
segment of a log takes appends. Appended offsets rise by one; compaction leaves gaps, but never changes an offset.

The indexes are hints and are verified at every use: an entry counts only if it points at a valid record with the offset
and time of the entry. If not, the indexes are rebuilt from the records once, and the search starts again. So a damaged
index costs time, never a record, and damage in a record is reported as such.

Files are opened on first use and closed by `release`. Not thread-safe: the log that owns it serializes calls.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from goqueue.events import IndexRebuilt, Observer
from goqueue.record.header import INDEX_STRIDE_BYTES, OFFSET_MAX, Buffer
from goqueue.record.kernel import Summary, scan
from goqueue.storage.file import Disk, File
from goqueue.storage.layout import LOG, OFFSET_INDEX, TIME_INDEX, segment_path
from goqueue.storage.offset_index import OffsetIndex
from goqueue.storage.time_index import TimeIndex
from goqueue.storage.walk import Anchors, Damage, RecordRun, Spot, walk

FIRST_WINDOW_BYTES = 512
"""One read of this size has the first record, unless that is large."""
SEEK_WINDOW_BYTES = 8192
"""One read of this size gets from one index entry to the next, unless records are large."""


class LastRecord(NamedTuple):
    """The offset and the time of the last record of a range."""

    offset: int
    timestamp: int


class Segment:
    """The segment that starts at `base_offset`."""

    __slots__ = (
        "_directory",
        "_disk",
        "_file",
        "_last_timestamp",
        "_observe",
        "_offsets",
        "_times",
        "base_offset",
        "control_missing",
        "known_first_timestamp",
        "missing",
        "next_index_at",
        "size",
        "unsynced",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, size: int, observe: Observer) -> None:
        self._disk = disk
        self._directory = directory
        self._observe = observe
        self.base_offset = base_offset
        self.size = size
        self.next_index_at = 0
        self._file: File | None = None
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self.known_first_timestamp: int | None = None
        self._last_timestamp: int | None = None
        self.missing = 0  # offsets whose record compaction has removed
        self.control_missing = 0  # those of them that had a control record
        self.unsynced = False  # has bytes that no sync has covered; its descriptors must stay open

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, observe: Observer) -> "Segment":
        """A new, empty segment. Its name is durable once the directory is synced."""
        segment = cls.planned(disk, directory, base_offset, observe)
        segment.make_file()
        return segment

    @classmethod
    def planned(cls, disk: Disk, directory: str, base_offset: int, observe: Observer) -> "Segment":
        """An empty segment that has no file yet: `make_file` comes before the first append."""
        segment = cls(disk, directory, base_offset, 0, observe)
        segment.start_indexes()
        return segment

    def make_file(self) -> None:
        """Make the file of an empty segment, or find that it is there."""
        self._file = self._disk.open(self.path(LOG), create=True)

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return segment_path(self._directory, self.base_offset, suffix)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path(LOG))
        return self._file

    @property
    def offsets(self) -> OffsetIndex:
        if self._offsets is None:
            self._offsets = OffsetIndex(self._disk, self.path(OFFSET_INDEX))
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._times = TimeIndex(self._disk, self.path(TIME_INDEX))
        return self._times

    @property
    def has_written_indexes(self) -> bool:
        """Whether all index entries are in their files."""
        return all(index is None or index.is_written for index in (self._offsets, self._times))

    def append(self, records: Buffer, summary: Summary) -> None:
        """Write stamped records at the end.

        After an `OSError` the file is as long as before; if that fails, too, the error of the truncation is raised.
        """
        try:
            self.file.pwrite(self.size, records)
        except OSError:
            self.file.truncate(self.size)
            raise
        if self.size == 0:
            self.known_first_timestamp = summary.first_timestamp
        self.size += len(records)
        self.unsynced = True
        self.note(summary)

    def note(self, summary: Summary) -> None:
        """Index records that were added at the end, from the summary of the kernel."""
        self.offsets.append(summary.offset_entries)
        self.times.append(summary.time_entries)
        self.next_index_at = summary.next_index_at
        self._last_timestamp = summary.last_timestamp

    def walk(
        self, spot: Spot, *, end_offset: int, to_offset: int = OFFSET_MAX, window_bytes: int = SEEK_WINDOW_BYTES
    ) -> Iterator[RecordRun | Damage]:
        """Runs and damage from the spot to the end of the segment."""
        if spot.position >= self.size:  # the file of an empty segment may not be there yet (`truncation.py`)
            return iter(())
        return walk(
            self.file,
            spot.position,
            self.size,
            min_offset=spot.min_offset,
            end_offset=end_offset,
            to_offset=min(
                to_offset, end_offset
            ),  # a crash may undo a truncation: records after the end are not part of the log
            window_bytes=window_bytes,
            anchors=self._anchors(),
        )

    def seek(self, offset: int, *, end_offset: int) -> Spot:
        """The position of the first record at or after `offset`, or of the damage that hides it."""
        if offset <= self.base_offset:
            return Spot(0, self.base_offset)
        for found in self._walk_to(offset, end_offset):
            if isinstance(found, Damage):
                if found.next_offset > offset:
                    return Spot(found.position, found.first_offset)
            elif found.summary.last_offset >= offset:
                return Spot(found.position + scan(found.records, from_offset=offset).start, offset)
        return Spot(self.size, end_offset)

    def position_near(self, offset: int) -> int:
        """A position at or before the offset, by at most one index entry."""
        if offset <= self.base_offset:
            return 0
        entry = self.offsets.floor(offset)
        return min(entry.value, self.size) if entry else 0

    def boundary(self, position: int, offset: int, *, end_offset: int) -> Spot:
        """The last indexed record at or before both `position` and `offset`."""
        entry = self.offsets.floor(offset)
        if entry and entry.value > position:
            count = self.offsets.count_before_position(position + 1)
            entry = self.offsets.entry(count - 1) if count else None
        if entry and self._first_record(Spot(entry.value, entry.key), end_offset)[0] == entry.key:
            return Spot(entry.value, entry.key)
        return Spot(0, self.base_offset)

    def offset_at_time(self, timestamp: int, *, end_offset: int, guess: float = 0.5) -> int | None:
        """The first offset that was stored at `timestamp` or later, if this segment has one.

        `guess` is the estimated share of the segment that is older; a good one saves reads of the index.
        """
        for found in self.walk(self._indexed_time(timestamp, end_offset, guess), end_offset=end_offset):
            if isinstance(found, RecordRun) and found.summary.last_timestamp >= timestamp:
                return offset_at_time(found.records, timestamp)
        return None

    def first_timestamp(self, *, end_offset: int) -> int | None:
        """The time of its first record; None if it has none."""
        if self.known_first_timestamp is None:
            start = Spot(0, self.base_offset)
            is_damaged = False
            for found in self.walk(start, end_offset=end_offset, window_bytes=FIRST_WINDOW_BYTES):
                if isinstance(found, RecordRun):
                    if is_damaged:  # not cached: the next read may find the first record valid
                        return found.summary.first_timestamp
                    self.known_first_timestamp = found.summary.first_timestamp
                    break
                is_damaged = True
        return self.known_first_timestamp

    def last_timestamp(self, *, end_offset: int) -> int | None:
        """The time of its last record; None if it has none."""
        if self._last_timestamp is None:
            start = self._last_indexed(end_offset) or Spot(0, self.base_offset)
            last: int | None = None
            is_damaged = False
            for found in self.walk(start, end_offset=end_offset):
                if isinstance(found, RecordRun):
                    last = found.summary.last_timestamp
                else:
                    is_damaged = True
            if is_damaged:  # not cached: the next read may find the last record valid
                return last
            self._last_timestamp = last
        return self._last_timestamp

    def last_below(self, offset: int, *, end_offset: int) -> LastRecord | None:
        """The last valid record below the offset; None if there is none."""
        last: LastRecord | None = None
        for found in self._walk_to(offset - 1, end_offset):
            if isinstance(found, Damage):
                continue
            summary = found.summary if found.summary.last_offset < offset else scan(found.records, to_offset=offset)
            if summary.record_count:
                last = LastRecord(summary.last_offset, summary.last_timestamp)
            if summary is not found.summary:
                break
        return last

    def rebuild_indexes(self, *, end_offset: int) -> None:
        """Rebuild both indexes from the records."""
        self.drop_indexes()
        found = walk(self.file, 0, self.size, min_offset=self.base_offset, end_offset=end_offset, next_index_at=0)
        for item in found:
            if isinstance(item, RecordRun):
                self.note(item.summary)
        self.offsets.write_out()
        self.times.write_out()
        self._observe(IndexRebuilt(log=self._directory, base_offset=self.base_offset))

    def keep_index_until(self, position: int) -> Spot:
        """Cut the indexes back to sound entries before `position`.

        Returns the spot of the last record that they name: a scan from there completes them.
        """
        count = min(self.offsets.sound_prefix(), self.times.sound_prefix())
        self._keep_index_entries(count)
        self._keep_index_entries(self.offsets.count_before_position(position))
        spot = self._last_indexed(OFFSET_MAX)
        if spot is None:
            self._keep_index_entries(0)
            self.next_index_at = 0
            return Spot(0, self.base_offset)
        self.next_index_at = spot.position + INDEX_STRIDE_BYTES
        return spot

    def truncate(self, position: int) -> None:
        """Cut off the records at or after `position`."""
        self.file.truncate(position)
        self.cut(position)
        self.keep_index_until(position)

    def cut(self, position: int) -> None:
        """Forget the records at or after `position`, in memory; the indexes, which are hints, still have them."""
        self.size = position
        self._last_timestamp = None
        if position == 0:
            self.known_first_timestamp = None

    def files_to_sync(self) -> list[File]:
        """The log file and the indexes, as far as they could be written: syncing them seals the segment."""
        indexes = (self.offsets.file_to_sync(), self.times.file_to_sync())
        return [self.file, *(file for file in indexes if file is not None)]

    def release(self) -> None:
        """Close all descriptors; the next use opens them again."""
        self._file = None
        if self._offsets is not None:
            self._offsets.release()
        if self._times is not None:
            self._times.release()

    def _walk_to(self, offset: int, end_offset: int) -> Iterator[RecordRun | Damage]:
        """A walk from the record that the offset index names for `offset`, or from the start of the segment."""
        guess = (offset - self.base_offset) / max(1, end_offset - self.base_offset)
        for attempt in range(2):
            entry = self.offsets.floor(offset, guess=guess)
            if entry is None:
                break
            if self.base_offset <= entry.key <= offset:
                found = self.walk(Spot(entry.value, entry.key), end_offset=end_offset)
                first = next(found, None)
                if isinstance(first, RecordRun) and first.summary.first_offset == entry.key:
                    return chain((first,), found)
            if attempt == 0:
                self.rebuild_indexes(end_offset=end_offset)
        return self.walk(Spot(0, self.base_offset), end_offset=end_offset)

    def _indexed_time(self, timestamp: int, end_offset: int, guess: float) -> Spot:
        """The record that the time index names for `timestamp`, if it is valid; else the start of the segment."""
        for attempt in range(2):
            entry = self.times.before(timestamp, guess=guess)
            if entry is None:
                break
            spot = self.seek(entry.value, end_offset=end_offset)
            if entry.key < timestamp and self._first_record(spot, end_offset) == (entry.value, entry.key):
                return spot
            if attempt == 0:
                self.rebuild_indexes(end_offset=end_offset)
        return Spot(0, self.base_offset)

    def _last_indexed(self, end_offset: int) -> Spot | None:
        """The last record that the offset index names, if it is valid."""
        if len(self.offsets):
            entry = self.offsets.entry(len(self.offsets) - 1)
            spot = Spot(entry.value, entry.key)
            if self._first_record(spot, end_offset)[0] == entry.key:
                return spot
        return None

    def _first_record(self, spot: Spot, end_offset: int) -> tuple[int, int]:
        """Offset and timestamp of the valid record at the spot, (-1, -1) if there is none."""
        if spot.min_offset > OFFSET_MAX:  # a damaged index may hold any number
            return -1, -1
        first = next(
            walk(
                self.file,
                spot.position,
                self.size,
                min_offset=spot.min_offset,
                end_offset=end_offset,
                window_bytes=SEEK_WINDOW_BYTES,
                resume=False,
            ),
            None,
        )
        if isinstance(first, RecordRun):
            return first.summary.first_offset, first.summary.first_timestamp
        return -1, -1

    def _anchors(self) -> Anchors:
        """Indexed records that are valid, for one walk: each is read once, however much is damaged."""
        known: Spot | None = None
        index = 0

        def next_after(position: int) -> Spot | None:
            nonlocal known, index
            if known and known.position > position:
                return known
            index = max(index, self.offsets.count_before_position(position + 1))
            known = None
            while known is None and index < len(self.offsets):
                entry = self.offsets.entry(index)
                spot = Spot(entry.value, entry.key)
                if spot.position > position and self._first_record(spot, OFFSET_MAX)[0] == entry.key:
                    known = spot
                index += 1
            return known

        return next_after

    def _keep_index_entries(self, count: int) -> None:
        self.offsets.keep(count)
        self.times.keep(count)

    def drop_indexes(self) -> None:
        """Begin with empty indexes, and remove the files of the old ones."""
        self.start_indexes()
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            with suppress(OSError):  # it is overwritten anyway
                self._disk.remove(self.path(suffix))

    def start_indexes(self) -> None:
        """Begin with empty indexes; files of old ones are overwritten."""
        self.next_index_at = 0
        self._offsets = OffsetIndex(self._disk, self.path(OFFSET_INDEX), entry_count=0)
        self._times = TimeIndex(self._disk, self.path(TIME_INDEX), entry_count=0)


def offset_at_time(records: memoryview, timestamp: int) -> int:
    """The offset of the first record stamped at `timestamp` or later; the caller knows that there is one."""
    found = scan(records, positions=True)
    positions = memoryview(found.positions).cast("I")

    def stamped(position: int) -> int:
        return int.from_bytes(records[position + 16 : position + 24], "big", signed=True)

    position = positions[bisect_left(positions, timestamp, key=stamped)]
    return int.from_bytes(records[position + 8 : position + 16], "big")
