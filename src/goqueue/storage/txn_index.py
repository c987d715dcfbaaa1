"""The index of aborted offsets, beside each segment that has aborted records; readers hide these.

    0      4         6      8       16             24           32       40         44    48
    +------+---------+------+-------+--------------+------------+--------+----------+-----+-----
    | GQTX | version | 0    | base  | first offset | end offset | marker | reserved | crc | ...
    +------+---------+------+-------+--------------+------------+--------+----------+-----+-----

After a header of 16 bytes, entries of 32: the marker at offset `marker` aborted the records in [first, end), all of
which are in this segment. Markers rise. The crc is CRC-32C of the preceding bytes of the entry.

An entry is written after its marker is durable, and synced before a snapshot of the partition's transactions is written
that is newer than the marker. So an entry is always true, and one that a crash has lost is found again by replaying the
log from the last snapshot on. An index can be rebuilt from the log, from the base of its segment on. If one is cut off
or damaged, its owner replays the log, notes the aborts again, and calls `mend`. Until then the file is not written:
otherwise a crash in between could leave an incomplete index that looks complete.

Compacted segments have no aborted records, so entries about them do not count.

A truncation removes the entries of markers that it cuts off before the log takes appends again. Otherwise they would
come true once other records have the offsets of the markers.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Set
from itertools import chain
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.record.header import OFFSET_MAX
from goqueue.record.kernel import crc32c
from goqueue.storage.file import NO_ROOM, Disk, read_file
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.layout import TXN_INDEX, segment_path
from goqueue.storage.small_file import replace_bytes

_HEAD = struct.Struct(">4sHHQ")
_ENTRY = struct.Struct(">QQQII")
HEAD_BYTES = 16
ENTRY_BYTES = 32
MAGIC = b"GQTX"
VERSION = 1
assert (_HEAD.size, _ENTRY.size) == (HEAD_BYTES, ENTRY_BYTES)


class Aborted(NamedTuple):
    """Aborted offsets; `replay_from` is where to replay the log from if an index is damaged, else None."""

    offsets: BitMap64
    replay_from: int | None


class AbortedRange(NamedTuple):
    """A range of records in one segment, and the marker that aborted it."""

    base_offset: int
    first_offset: int
    end_offset: int
    marker_offset: int


class Content(NamedTuple):
    """The entries of a file up to the first invalid one, and whether there is one."""

    entries: list[AbortedRange]
    is_damaged: bool


def head(base_offset: int) -> bytes:
    """The header of the index of a segment."""
    return _HEAD.pack(MAGIC, VERSION, 0, base_offset)


def encode(entries: Iterable[AbortedRange]) -> bytes:
    packed = (_ENTRY.pack(*entry[1:], 0, 0)[:-4] for entry in entries)
    return b"".join(raw + crc32c(raw).to_bytes(4, "big") for raw in packed)


def decode(raw: bytes, base_offset: int, *, markers_below: int = OFFSET_MAX) -> Content:
    """The entries of a file. A marker at or after `markers_below`, the end of the log, cannot be true."""
    if raw[:HEAD_BYTES] != head(base_offset):
        return Content([], True)
    entries: list[AbortedRange] = []
    last_marker = base_offset
    for position in range(HEAD_BYTES, len(raw) - ENTRY_BYTES + 1, ENTRY_BYTES):
        first, end, marker, reserved, crc = _ENTRY.unpack_from(raw, position)
        is_whole = crc == crc32c(raw[position : position + ENTRY_BYTES - 4]) and not reserved
        if not is_whole or not base_offset <= first < end <= marker < markers_below or marker < last_marker:
            return Content(entries, True)
        entries.append(AbortedRange(base_offset, first, end, marker))
        last_marker = marker
    return Content(entries, (len(raw) - HEAD_BYTES) % ENTRY_BYTES != 0)


class Write(NamedTuple):
    """A write to one file: a replacement of all of it, or an append."""

    base_offset: int
    position: int  # 0: the file is created or replaced
    data: bytes


class TxnSyncJob(CancellableJob):
    """Writes entries to their files and syncs these."""

    def __init__(self, disk: Disk, directory: str, writes: list[Write], entries: list[AbortedRange]) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self.writes = writes
        self.entries = entries

    def _work(self) -> None:
        for base_offset, position, data in self.writes:
            path = segment_path(self._directory, base_offset, TXN_INDEX)
            if not position:
                replace_bytes(self._disk, self._directory, path.rpartition("/")[2], data)
                continue
            file = self._disk.open(path)
            file.pwrite(position, data)
            file.sync()
            file.close()


class TxnIndexes:
    """The indexes of one log. They are read on first use; a log without any costs nothing."""

    def __init__(self, disk: Disk, directory: str, base_offsets: Iterable[int], *, next_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._present = set(base_offsets)  # segments that have an index
        self._markers_below = next_offset  # the end of the log when it was opened; no marker in a file can be above it
        self._aborted: BitMap64 | None = None
        self._sizes: dict[int, int] = {}  # of the valid ones, in bytes
        self._damaged: dict[
            int, list[AbortedRange]
        ] = {}  # the valid entries of the others, which must not be written yet
        self._to_replace: dict[int, list[AbortedRange]] = {}  # written from the start, with these entries first
        self._pending: list[AbortedRange] = []  # in no file yet; markers rise within a segment
        self._running: TxnSyncJob | None = None

    @property
    def has_any(self) -> bool:
        """Whether there is an index, read or not."""
        return bool(self._present)

    @property
    def base_offsets(self) -> Set[int]:
        """The segments that have an index."""
        return self._present

    @property
    def unsynced_from(self) -> int | None:
        """The first marker whose entries are not all durable; None if there is none."""
        waiting = [*(self._running.entries if self._running else ()), *self._pending]
        return min((entry.marker_offset for entry in waiting), default=None)

    def aborted(self, *, cleaned_offset: int) -> Aborted:
        """The aborted offsets of the files, and those that were noted since."""
        return Aborted(self._load(cleaned_offset).copy(), min(self._damaged, default=None))

    def note(self, entries: Iterable[AbortedRange], *, cleaned_offset: int) -> None:
        """Add aborted ranges; those that are known are skipped."""
        aborted = self._load(cleaned_offset)
        for entry in entries:
            if not aborted.contains_range(entry.first_offset, entry.end_offset):
                aborted.add_range(entry.first_offset, entry.end_offset)
                self._pending.append(entry)

    def mend(self) -> None:
        """All aborts have been noted again, so damaged files may be replaced."""
        self._to_replace |= self._damaged
        self._damaged = {}

    def begin(self, *, durable_offset: int) -> TxnSyncJob | None:
        """A job that writes all entries whose markers are durable, if there are any and no job is running."""
        if self._running:
            return None
        taken: dict[int, list[AbortedRange]] = {base_offset: [] for base_offset in self._to_replace}
        waiting: list[AbortedRange] = []
        for entry in self._pending:
            if entry.marker_offset >= durable_offset or entry.base_offset in self._damaged:
                waiting.append(entry)
            else:
                taken.setdefault(entry.base_offset, []).append(entry)
        if not taken:
            return None
        writes = [self._write(base_offset, entries) for base_offset, entries in taken.items()]
        self._pending = waiting
        self._running = TxnSyncJob(self._disk, self._directory, writes, list(chain(*taken.values())))
        return self._running

    def complete(self, job: TxnSyncJob, *, is_done: bool) -> None:
        """The job has run; entries that it could not write are pending again."""
        if job is not self._running:
            return
        self._running = None
        if not is_done:
            self._pending = [*job.entries, *self._pending]
            return
        for base_offset, position, data in job.writes:
            self._present.add(base_offset)
            self._sizes[base_offset] = position + len(data)
            self._to_replace.pop(base_offset, None)

    def cancel(self) -> None:
        """Return once no job touches the disk; its entries are pending again. Raises the error that it failed with."""
        job = self._running
        if job:
            try:
                job.cancel()
            finally:
                self.complete(job, is_done=False)

    @property
    def running(self) -> TxnSyncJob | None:
        """The job that is under way."""
        return self._running

    def drop_below(self, offset: int) -> list[str]:
        """No segment below the offset has aborted records any more; returns the paths of indexes to remove."""
        assert self._running is None
        if self._aborted:
            self._aborted.remove_range(0, offset)
        self._pending = [entry for entry in self._pending if entry.base_offset >= offset]
        gone = [base_offset for base_offset in self._present if base_offset < offset]
        for base_offset in gone:
            self._present.discard(base_offset)
            self._forget(base_offset)
        return [segment_path(self._directory, base_offset, TXN_INDEX) for base_offset in gone]

    def was_cut(self, end_offset: int, removed: Collection[int], cuts: Iterable["IndexCut"]) -> None:
        """The log was truncated at `end_offset`: these segments are gone, and these files were cut by `cut_files`."""
        assert self._running is None
        dropped = [entry for entry in self._pending if entry.marker_offset >= end_offset]
        written: set[AbortedRange] = set()
        for base_offset, kept, gone, is_damaged in cuts:
            dropped += gone
            if not is_damaged:
                written.update(kept)
                self._present.add(base_offset)
                self._sizes[base_offset] = HEAD_BYTES + len(kept) * ENTRY_BYTES
            elif self._sizes.pop(base_offset, None):
                self._damaged[base_offset] = kept
        for entries in (*self._damaged.values(), *self._to_replace.values()):
            dropped += [entry for entry in entries if entry.marker_offset >= end_offset]
            entries[:] = [entry for entry in entries if entry.marker_offset < end_offset]
        waiting = (entry for entry in self._pending if entry.marker_offset < end_offset)
        self._pending = [entry for entry in waiting if entry not in written]
        for base_offset in self._present.intersection(removed):
            self._present.discard(base_offset)
            self._forget(base_offset)
        if self._aborted is not None:
            self._aborted.remove_range(end_offset, OFFSET_MAX)
            for entry in dropped:
                self._aborted.remove_range(entry.first_offset, entry.end_offset)

    def clear(self) -> None:
        """The log has lost all its records."""
        assert self._running is None
        self._present.clear()
        self._pending.clear()
        self._sizes, self._damaged, self._to_replace = {}, {}, {}
        self._aborted = BitMap64()

    def _forget(self, base_offset: int) -> None:
        for kept in (self._sizes, self._damaged, self._to_replace):
            kept.pop(base_offset, None)

    def _write(self, base_offset: int, entries: list[AbortedRange]) -> Write:
        position = self._sizes.get(base_offset, 0)
        if position:
            return Write(base_offset, position, encode(entries))
        return Write(base_offset, 0, head(base_offset) + encode([*self._to_replace.get(base_offset, ()), *entries]))

    def _load(self, cleaned_offset: int) -> BitMap64:
        if self._aborted is None:
            files = {base: self._read_or_nothing(base) for base in self._present if base >= cleaned_offset}
            self._aborted = BitMap64()
            for base_offset, raw in files.items():
                entries, is_damaged = decode(raw, base_offset, markers_below=self._markers_below)
                if is_damaged:
                    self._damaged[base_offset] = entries
                else:
                    self._sizes[base_offset] = len(raw)
                for entry in entries:
                    self._aborted.add_range(entry.first_offset, entry.end_offset)
        return self._aborted

    def _read_or_nothing(self, base_offset: int) -> bytes:
        """The file; empty, which counts as damage, after an error that is not temporary."""
        try:
            return self._read(base_offset)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            return b""

    def _read(self, base_offset: int) -> bytes:
        return read_file(self._disk, segment_path(self._directory, base_offset, TXN_INDEX))


class IndexCut(NamedTuple):
    """What a truncation left of a file, and what it took away."""

    base_offset: int
    kept: list[AbortedRange]
    dropped: list[AbortedRange]
    is_damaged: bool


def cut_files(disk: Disk, directory: str, base_offsets: Iterable[int], end_offset: int) -> Iterator[IndexCut]:
    """Remove, durably, the aborts of markers at or after `end_offset`; yields each file that has changed.

    A file that is damaged anyway is emptied: it stays damaged, and its owner replays what is left of the log.
    """
    for base_offset in base_offsets:
        path = segment_path(directory, base_offset, TXN_INDEX)
        try:
            entries, is_damaged = decode(read_file(disk, path), base_offset)
        except FileNotFoundError:
            continue
        count = sum(entry.marker_offset < end_offset for entry in entries)
        if count == len(entries):
            continue
        content = b"" if is_damaged else head(base_offset) + encode(entries[:count])
        replace_bytes(disk, directory, path.rpartition("/")[2], content)
        yield IndexCut(base_offset, entries[:count], entries[count:], is_damaged)
