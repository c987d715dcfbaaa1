"""The files of a metadata log that the processes of one machine share. Synchronous; `file_log.py` runs it in a thread.

    <directory>/lock                          the author of the moment holds it (`flock`)
    <directory>/00000000000000000001.entries  segments, named by their first index
    <directory>/tail                          where the log ends for readers: the mark
    <directory>/snapshot, snapshot.lock       the newest snapshot, and the lock to replace it
    <directory>/replacement                   what the log is being replaced by

An author takes the lock, compares, writes the entry behind the last one, syncs the file, and then moves the mark behind
it. Readers take no lock: they look at the mark, and at nothing behind it. So an entry is seen only when it is on the
disk. That matters: a node that had applied an entry which a power cut then took away would find that the log went back.

The mark is not synced. It never names what is not on the disk, so it may be old after a power cut, or be lost, but not
be wrong. Two things follow:

- What is behind the mark was never answered, and nobody has read it. The next author looks at it under the lock: whole
  entries are written again, synced, and become part of the log; a torn end is cut off. `kill -9` at any byte leaves no
  more than that.
- What is before the mark was answered. If it is not there, that is damage, never a torn end, and nothing is cut off.
  Damage that has whole entries behind it is never cut off either, with or without a mark.

The lock ends with its process. It is taken without waiting: `LockHeld` says that somebody else has it now. flock has to
work between the processes, which it does on the file systems of one machine; a network file system is no place for it.

Trimming moves the first index in the mark, then removes the segments that are wholly below, the oldest first. If the
mark is lost, entries of the oldest segment are there again, which harms nobody: the snapshot covers them.

An operator replaces the log by a snapshot. It is first put beside the log, as a whole: from then on the old log does
not count, and whoever opens the directory finishes what is left. The segments are removed, the mark is set behind the
snapshot, and the snapshot gets its name. A log without segments ends at its snapshot, whatever becomes of the mark.

A write error or a failed sync ends the appends of this handle: after a failed fsync the content of the disk is unknown,
and a second one that succeeds proves nothing. The entry is cut off again as far as possible, so that no other process
takes it for written. A full disk is no such error: nothing was written, and the next append may succeed.
"""

import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from itertools import pairwise
from typing import Final, NamedTuple

from goqueue.cluster.metadata_file_format import (
    EMPTY_MARK,
    MARK_BYTES,
    SEGMENT_HEAD_BYTES,
    SEGMENT_NAME,
    TailMark,
    WrongFormat,
    is_segment_head,
    segment_head,
    segment_name,
    walk,
)
from goqueue.cluster.metadata_log import (
    ID_BYTES,
    PAGE_BYTES_MAX,
    AppendOutcome,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import (
    CorruptRecord,
    ForeignFile,
    MetadataDamaged,
    MetadataTrimmed,
    MetadataUnavailable,
    UnsupportedFormat,
)
from goqueue.storage import small_file
from goqueue.storage.directory import TOLERATED
from goqueue.storage.file import NO_ROOM, Disk, File, sync_ancestors, unusable
from goqueue.storage.layout import NEW

SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""An append to a segment of this size begins a new one. Trimming removes whole segments."""
OPEN_SEGMENTS_MAX: Final = 4
TAIL: Final = "tail"
LOCK: Final = "lock"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_LOCK: Final = "snapshot.lock"
REPLACEMENT: Final = "replacement"
CURE: Final = "restore the directory from a backup, or rebuild the log with `goqueue cluster recover`"

_OWN_NAMES: Final = TOLERATED | {
    *(TAIL, LOCK, SNAPSHOT_LOCK),
    *(name + end for name in (SNAPSHOT, REPLACEMENT) for end in ("", NEW)),
}
_SNAPSHOT_KIND: Final = b"GQMS"
_SNAPSHOT_HEAD: Final = struct.Struct(f">Q{ID_BYTES}s")
_TORN_READS_MAX: Final = 20


class LockHeld(Exception):
    """Another handle has the lock now; try again."""


class EntryFile(NamedTuple):
    """A segment in the directory."""

    first: int
    size: int


NO_SEGMENT: Final = EntryFile(0, 0)


class EntrySegment:
    """One open segment, and where its entries are, as far as that is known."""

    __slots__ = ("_ends", "_starts", "file", "first", "scanned_to")

    def __init__(self, file: File, first: int) -> None:
        self.file = file
        self.first = first
        self.scanned_to = SEGMENT_HEAD_BYTES
        self._starts: list[int] = []  # of each entry; -1 where the bytes are damaged
        self._ends: list[int] = []

    def scan(self, end: int, last: int) -> None:
        """Find the entries up to this position in the file; the last one has that index."""
        if end <= self.scanned_to and self._next_index > last:
            return
        raw = self.file.pread(self.scanned_to, end - self.scanned_to)
        for entry in walk(raw, self._next_index):
            if entry.index > last:
                break
            self._add_damaged(entry.index)
            self._starts.append(self.scanned_to + entry.position)
            self._ends.append(self.scanned_to + entry.end)
        self._add_damaged(last + 1)
        self.scanned_to = end

    def stretch(self, index: int, limit: int, size_max: int) -> tuple[int, list[int]]:
        """Entries that follow one another from this index on: where the first one begins, and where each ends.

        Up to `limit` of them, with up to `size_max` bytes, and none that is damaged.
        """
        at = index - self.first
        start = self._starts[at]
        ends: list[int] = []
        for next_start, end in zip(self._starts[at : at + limit], self._ends[at : at + limit], strict=True):
            if next_start < 0 or next_start != (ends[-1] if ends else start) or end - start > size_max:
                break
            ends.append(end)
        return start, ends

    def is_damaged(self, index: int) -> bool:
        return self._starts[index - self.first] < 0

    @property
    def _next_index(self) -> int:
        return self.first + len(self._starts)

    def _add_damaged(self, below: int) -> None:
        count = below - self._next_index
        self._starts += [-1] * count
        self._ends += [-1] * count


class MetadataFiles:
    """One handle on the log. One thread at a time; the snapshot is apart (`SnapshotFile`)."""

    def __init__(self, disk: Disk, directory: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: dict[int, EntrySegment] = {}  # those that are open, the last used one last
        self._firsts: list[int] = []  # the first index of each segment, as of the last look into the directory
        self._mark_file: File | None = None
        self._failure: str | None = None
        self._is_being_replaced = False  # as of the last look into the directory
        self.snapshot = SnapshotFile(disk, directory)

    @property
    def mark_path(self) -> str:
        """The file that is written to with every append."""
        return f"{self._directory}/{TAIL}"

    def open(self, *, may_be_damaged: bool = False) -> None:
        """Make the directory if it is missing, check what is in it, and finish what an author left undone.

        Raises `DataDirectoryError` or `StorageFull`, `LockHeld`, and `MetadataDamaged` unless that `may_be`.
        """
        try:
            self._disk.make_directory(self._directory)
            sync_ancestors(self._disk, self._directory)
            with self._locked():
                self._mark_file = self._disk.open(self.mark_path, create=True)
                try:
                    self._check_segments()
                except MetadataDamaged:
                    if not may_be_damaged:
                        raise
        except OSError as error:
            raise unusable(self._directory, error) from error

    def _check_segments(self) -> None:
        segments = self._list_segments()
        if not self._is_being_replaced:
            for info in segments:
                self._open_segment(info.first).file.close()
        self._settle()

    def append(self, entry: MetadataEntry, raw: bytes) -> AppendOutcome:
        """Compare and append; `raw` is the entry, encoded. Raises `LockHeld`."""
        self._check_healthy()
        with self._translated(), self._locked():
            mark = self._settle()
            if entry.after == mark.tail:
                return self._write(entry, raw, mark)
            if entry.index > mark.tail.index:
                return EntryLost()
            if entry.index < mark.first:
                return EntryUnknown(entry.position)
            (there,) = self._page(entry.index, 1, mark)
            return EntryAppended(entry.position) if there.id == entry.id else EntryLost()

    def tail(self) -> MetadataPosition:
        """Where the log ends. May raise `LockHeld`, if the mark was lost."""
        with self._translated():
            return self._current_mark().tail

    def read(self, first: int, limit: int) -> list[MetadataEntry]:
        """As `MetadataLog.read`. May raise `LockHeld`, if the mark was lost."""
        missing: str | None = None
        while True:
            with self._translated():
                mark = self._current_mark()
                if first < mark.first:
                    raise MetadataTrimmed(first, mark.first)
                if first > mark.tail.index:
                    return []
                try:
                    return self._page(first, limit, mark)
                except FileNotFoundError as error:  # trimmed since the mark was read: then the next mark says so
                    if missing == error.filename:
                        raise MetadataDamaged(f"{missing} is missing; {CURE}") from error
                    missing = error.filename
                    self._list_segments()

    def trim(self, below: int) -> None:
        """As `MetadataLog.trim`. Raises `LockHeld`."""
        self._check_healthy()
        with self._translated(), self._locked():
            mark = self._settle()
            snapshot = self.snapshot.load()
            covered = snapshot.position.index if snapshot else 0
            first = max(mark.first, min(below, covered + 1, mark.tail.index))
            if first > mark.first:
                self._disk.sync_directory(self._directory)  # the snapshot, if its author was killed before it did that
                self._set_mark(mark._replace(first=first))
            segments = self._list_segments()
            for segment, following in pairwise(segments):
                if following.first > first:
                    break
                self._forget_segment(segment.first)
                self._disk.remove(self._path(segment.first))

    def replace(self, snapshot: MetadataSnapshot) -> None:
        """As `MetadataLog.replace`. Raises `LockHeld`."""
        assert snapshot.position.index > 0
        with self._translated(), self._locked():
            payload = _snapshot_payload(snapshot)
            small_file.replace(self._disk, self._directory, REPLACEMENT, _SNAPSHOT_KIND, payload)
            self._finish_replacement(self._list_segments())

    def _finish_replacement(self, segments: list[EntryFile]) -> TailMark:
        """The old log does not count any more: remove it, and let the log end at the new snapshot."""
        replacement = SnapshotFile(self._disk, self._directory, REPLACEMENT).load()
        assert replacement is not None
        self._close_segments()
        for segment in segments:
            self._disk.remove(self._path(segment.first))
        mark = _mark_at(replacement)
        self._set_mark(mark)
        assert self._mark_file is not None
        self._mark_file.sync()  # an older one that came back would name segments that are gone
        self._disk.sync_directory(self._directory)
        with held(self._disk, f"{self._directory}/{SNAPSHOT_LOCK}"):
            self._disk.rename(f"{self._directory}/{REPLACEMENT}", f"{self._directory}/{SNAPSHOT}")
            self._disk.sync_directory(self._directory)
        self._list_segments()
        return mark

    def close(self) -> None:
        """Close all files. The lock is not held between calls."""
        self._close_segments()
        if self._mark_file is not None:
            self._mark_file.close()

    def _close_segments(self) -> None:
        for segment in self._segments.values():
            segment.file.close()
        self._segments.clear()

    # Writing, under the lock

    def _write(self, entry: MetadataEntry, raw: bytes, mark: TailMark) -> AppendOutcome:
        if not mark.segment or mark.end >= self._segment_bytes:
            outcome = self._write_new_segment(entry, raw)
            mark = TailMark(entry.index, SEGMENT_HEAD_BYTES + len(raw), mark.first, entry.position)
        else:
            outcome = self._write_entry(entry, raw, mark)
            mark = mark._replace(end=mark.end + len(raw), tail=entry.position)
        if outcome is not None:
            return outcome
        try:
            self._set_mark(mark)
        except OSError as error:
            # The entry is on the disk, and no reader sees it. The next author will move the mark.
            self._note_failure(self.mark_path, error)
            return EntryUnknown(entry.position)
        return EntryAppended(entry.position)

    def _write_entry(self, entry: MetadataEntry, raw: bytes, mark: TailMark) -> EntryUnknown | None:
        """Write and sync the entry; None if it is on the disk. Raises if nothing of it can ever be seen."""
        file = self._segment(mark.segment).file
        try:
            file.pwrite(mark.end, raw)
        except OSError as error:
            self._note_failure(file.path, error)
            if self._cut_off(file, mark.end) < len(raw):
                raise
            return EntryUnknown(entry.position)
        try:
            file.sync()
        except OSError as error:
            self._cut_off(file, mark.end)
            self._fail(file.path, error)
            return EntryUnknown(entry.position)
        return None

    def _cut_off(self, file: File, end: int) -> int:
        """Remove, as far as possible, what a failed write left, and return how many bytes there were."""
        try:
            size = file.size()
        except OSError:
            return sys.maxsize
        with suppress(OSError):
            file.truncate(end)
        return size - end

    def _write_new_segment(self, entry: MetadataEntry, raw: bytes) -> EntryUnknown | None:
        """Write the entry into a segment of its own, which gets its name only when it is whole."""
        name = segment_name(entry.index)
        path = self._path(entry.index)
        try:
            small_file.replace_bytes(self._disk, self._directory, name, segment_head(entry.index), raw)
        except OSError as error:
            with suppress(OSError):
                self._disk.remove(path + NEW)
            self._note_failure(path, error)
            with suppress(OSError):
                if entry.index not in [info.first for info in self._list_segments()]:
                    raise MetadataUnavailable(self._reason(error)) from error
                self._disk.remove(path)  # it has its name, but whether that is on the disk is unknown
            return EntryUnknown(entry.position)
        self._list_segments()
        return None

    def _settle(self) -> TailMark:
        """The mark, after the log was made to end where the mark says."""
        mark = self._read_mark()
        segments = self._list_segments()
        if self._is_being_replaced:
            return self._finish_replacement(segments)
        if mark is not None:
            last = segments[-1] if segments else NO_SEGMENT
            if last == (mark.segment, mark.end):
                return mark
        self._check_healthy()
        mark = self._recovered(mark, segments)
        self._set_mark(mark)
        return mark

    def _recovered(self, mark: TailMark | None, segments: list[EntryFile]) -> TailMark:
        """Where the log ends, after an author was killed in the middle or the machine lost its power."""
        self._remove_unfinished()
        last = segments[-1] if segments else NO_SEGMENT
        if mark is not None and last < (mark.segment, mark.end):
            path = self._path(mark.segment)
            raise MetadataDamaged(f"{path} ended at byte {mark.end}, and a part of it is missing now; {CURE}")
        if not segments:
            snapshot = self.snapshot.load()
            return EMPTY_MARK if snapshot is None else _mark_at(snapshot)
        file = self._segment(last.first).file
        first = max(mark.first if mark else 1, segments[0].first)
        if mark is not None and mark.segment == last.first:
            end, tail = mark.end, mark.tail
        else:  # there was no mark, or it is so old that segments were begun after it
            end, tail = SEGMENT_HEAD_BYTES, MetadataPosition(last.first - 1, b"")
        start = end
        raw = file.pread(start, last.size - start)
        for entry in walk(raw, tail.index + 1):
            if entry.index == tail.index + 1 and tail.id and entry.previous_id != tail.id:
                raise MetadataDamaged(f"entry {entry.index} in {file.path} does not follow the one before it; {CURE}")
            end, tail = start + entry.end, MetadataPosition(entry.index, entry.id)
        if end == SEGMENT_HEAD_BYTES:  # it got its name when its first entry was on the disk
            raise MetadataDamaged(f"{file.path} has no entry; {CURE}")
        try:
            if end < last.size:
                file.truncate(end)
            # If its author had a failed sync and could not cut the entry off, Linux takes the pages for clean. So the
            # same bytes are written once more, and this sync is about them.
            file.pwrite(start, raw[: end - start])
            file.sync()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            self._fail(file.path, error)
            raise
        return TailMark(last.first, end, first, tail)

    def _remove_unfinished(self) -> None:
        for name, _, _ in self._disk.entries(self._directory):
            if name.endswith(NEW) and SEGMENT_NAME.fullmatch(name.removesuffix(NEW)):
                self._disk.remove(f"{self._directory}/{name}")

    def _set_mark(self, mark: TailMark) -> None:
        assert self._mark_file is not None
        self._mark_file.pwrite(0, mark.encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with held(self._disk, f"{self._directory}/{LOCK}"):
            yield

    # Reading

    def _current_mark(self) -> TailMark:
        """The mark as it is now; if it was lost, it is made again under the lock."""
        if (mark := self._read_mark()) is not None:
            return mark
        with self._locked():
            return self._settle()

    def _read_mark(self) -> TailMark | None:
        """The mark; None if it was lost. One that is half written is read again."""
        assert self._mark_file is not None
        try:
            for _ in range(_TORN_READS_MAX):
                if (mark := TailMark.decode(self._mark_file.pread(0, MARK_BYTES))) is not None:
                    return mark
        except WrongFormat as error:
            raise UnsupportedFormat(self.mark_path, str(error)) from error
        return None

    def _page(self, first: int, limit: int, mark: TailMark) -> list[MetadataEntry]:
        """Entries from this index on, which is at or before the end. Stops before damaged ones, or raises."""
        entries: list[MetadataEntry] = []
        size = 0
        while len(entries) < limit and (index := first + len(entries)) <= mark.tail.index:
            segment = self._scanned_segment(index, mark)
            if segment.is_damaged(index):
                if not entries:
                    raise MetadataDamaged(f"entry {index} in {segment.file.path} is not what was written; {CURE}")
                break
            start, ends = segment.stretch(index, limit - len(entries), PAGE_BYTES_MAX - size)
            if not ends:
                break
            size += ends[-1] - start
            if not self._decode(segment, index, start, ends, entries):
                break
        return entries

    def _decode(
        self, segment: EntrySegment, index: int, start: int, ends: list[int], entries: list[MetadataEntry]
    ) -> bool:
        """Add these entries; false if one is damaged and there are others before it."""
        raw = segment.file.pread(start, ends[-1] - start)
        position = 0
        for number, end in enumerate(ends, start=index):
            try:
                entries.append(MetadataEntry.decode(raw[position : end - start]))
            except MetadataDamaged as error:
                if entries:
                    return False
                raise MetadataDamaged(f"entry {number} in {segment.file.path}: {error.reason}") from error
            position = end - start
        return True

    def _scanned_segment(self, index: int, mark: TailMark) -> EntrySegment:
        """The segment of this index, with all its entries known."""
        if mark.segment not in self._firsts:
            self._list_segments()
        if index >= mark.segment:
            segment = self._segment(mark.segment)
            segment.scan(mark.end, mark.tail.index)
            return segment
        at = bisect_right(self._firsts, index)
        if not 0 < at < len(self._firsts):  # its segment was removed, as that of a trimmed index is
            raise FileNotFoundError(ENOENT, "its segment is missing", self._path(index))
        segment = self._segment(self._firsts[at - 1])
        segment.scan(segment.file.size(), self._firsts[at] - 1)
        return segment

    def _segment(self, first: int) -> EntrySegment:
        segment = self._segments.pop(first, None) or self._open_segment(first)
        self._segments[first] = segment
        while len(self._segments) > OPEN_SEGMENTS_MAX:
            self._forget_segment(next(iter(self._segments)))
        return segment

    def _open_segment(self, first: int) -> EntrySegment:
        file = self._disk.open(self._path(first))
        try:
            is_ours = is_segment_head(file.pread(0, SEGMENT_HEAD_BYTES), first)
        except WrongFormat as error:
            raise UnsupportedFormat(file.path, str(error)) from error
        if not is_ours:
            raise MetadataDamaged(f"{file.path} does not begin as a segment of the metadata log; {CURE}")
        return EntrySegment(file, first)

    def _forget_segment(self, first: int) -> None:
        if (segment := self._segments.pop(first, None)) is not None:
            segment.file.close()

    def _list_segments(self) -> list[EntryFile]:
        """The segments in order. Refuses a directory with other files in it."""
        segments = []
        self._is_being_replaced = False
        for name, size, _ in self._disk.entries(self._directory):
            self._is_being_replaced |= name == REPLACEMENT
            if match := SEGMENT_NAME.fullmatch(name):
                segments.append(EntryFile(int(match[1]), size))
            elif name not in _OWN_NAMES and not SEGMENT_NAME.fullmatch(name.removesuffix(NEW)):
                raise ForeignFile(
                    f"{self._directory}/{name}",
                    "not a file of a metadata log; use an empty directory, or move the file away",
                )
        segments.sort()
        self._firsts = [segment.first for segment in segments]
        return segments

    def _path(self, first: int) -> str:
        return f"{self._directory}/{segment_name(first)}"

    # Errors

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MetadataUnavailable(self._reason(error)) from error

    def _reason(self, error: OSError) -> str:
        path = error.filename or self._directory
        if error.errno in NO_ROOM:
            return f"{path}: {error.strerror}; nothing was written, retry when there is room"
        return f"{path}: {error.strerror}"

    def _note_failure(self, path: str, error: OSError) -> None:
        """End the appends of this handle, unless there was just no room."""
        if error.errno not in NO_ROOM:
            self._fail(path, error)

    def _fail(self, path: str, error: OSError) -> None:
        self._failure = f"writing {path} failed: {error.strerror}; this node appends no more until it is restarted"

    def _check_healthy(self) -> None:
        if self._failure is not None:
            raise MetadataUnavailable(self._failure)


class SnapshotFile:
    """The snapshot, replaced as a whole. It has a lock of its own, so that a large one does not delay appends."""

    def __init__(self, disk: Disk, directory: str, name: str = SNAPSHOT) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name

    def load(self) -> MetadataSnapshot | None:
        """The newest snapshot."""
        try:
            raw = small_file.load(self._disk, self._directory, self._name, _SNAPSHOT_KIND)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MetadataUnavailable(f"cannot read {self._directory}/{self._name}: {error.strerror}") from error
        except CorruptRecord as error:
            raise MetadataDamaged(f"{self._directory}/{self._name} is not what was written; {CURE}") from error
        index, id = _SNAPSHOT_HEAD.unpack_from(raw)
        return MetadataSnapshot(MetadataPosition(index, id), raw[_SNAPSHOT_HEAD.size :])

    def store(self, snapshot: MetadataSnapshot) -> None:
        """Replace the snapshot, unless there is a newer one. Raises `LockHeld`."""
        try:
            with held(self._disk, f"{self._directory}/{SNAPSHOT_LOCK}"):
                with suppress(MetadataDamaged):  # one that cannot be read is replaced by one that can
                    there = self.load()
                    if there is not None and there.position.index >= snapshot.position.index:
                        return
                payload = _snapshot_payload(snapshot)
                small_file.replace(self._disk, self._directory, self._name, _SNAPSHOT_KIND, payload)
        except OSError as error:
            path = f"{self._directory}/{self._name}"
            raise MetadataUnavailable(
                f"cannot write {path}: {error.strerror}; the snapshot before it is unchanged"
            ) from error


def _snapshot_payload(snapshot: MetadataSnapshot) -> bytes:
    return _SNAPSHOT_HEAD.pack(snapshot.position.index, snapshot.position.id) + snapshot.state


def _mark_at(snapshot: MetadataSnapshot) -> TailMark:
    """The mark of a log that has nothing but this snapshot."""
    return TailMark(0, 0, snapshot.position.index + 1, snapshot.position)


@contextmanager
def held(disk: Disk, path: str) -> Iterator[None]:
    """Hold the lock, or raise `LockHeld`."""
    try:
        lock = disk.lock(path)
    except BlockingIOError as error:
        raise LockHeld from error
    try:
        yield
    finally:
        lock.release()
