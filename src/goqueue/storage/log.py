"""One append-only log: segments in a directory, written at the end and read anywhere.

    append ──> kernel.stamp ──> active segment ──(full or old)──> sealed segments ──> retention, compaction
                                     │
                                begin_flush ──> fdatasync in a thread ──> complete: durable_offset rises

A log is synchronous and has one owner, who makes all calls. What blocks is handed out as a job (`begin_flush`,
`begin_compaction`, `expire`), run in any thread, and brought back with `complete`; `flush` and `maintain` do all
of that in place for those who have no threads.

Records below `durable_offset` are on the medium. Records below `ackable_offset` may be acknowledged: with
`flush=group` that is the same, in the other modes it is the end of the log.

When a write or sync fails the log stops taking writes and says so for as long as it is open: after a failed
fsync nobody knows what is on the disk, and a second one that succeeds proves nothing. A full disk is
not such a failure: what was half written is cut off, and the next append may succeed.

A log with transactions in it says so for good (`mark_transactional`), and has an index of what was aborted
(`txn_index.py`): `note_aborted` tells it, `aborted` asks, and `begin_txn_sync` makes it durable.
"""

from collections.abc import Callable, Set
from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue import events
from goqueue.clock import MS
from goqueue.errors import (
    Conflict,
    CorruptRecord,
    DirectoryUnusable,
    InvalidBatch,
    OffsetOutOfRange,
    StorageError,
    StorageFailed,
    StorageFull,
)
from goqueue.record import kernel
from goqueue.record.header import FLAGS_FROM_PRODUCERS, Flags, RecordFault
from goqueue.storage import compaction, retention, small_file
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile
from goqueue.storage.compactor import Compactor
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.epochs import LeaderEpochs
from goqueue.storage.file import NO_ROOM, Disk, Entry, sync_ancestors
from goqueue.storage.flush import Flusher, FlushJob
from goqueue.storage.jobs import DeleteJob, Job, mark_deleted
from goqueue.storage.layout import CHECKPOINT, DELAYED, LEADER_EPOCHS, LOG, SEGMENT_SUFFIXES, TRANSACTIONS, sort_out
from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.reader import Chunk, LogReader, reading
from goqueue.storage.recovery import Recovery
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList
from goqueue.storage.txn_index import Aborted, AbortedRange, TxnIndexes, TxnSyncJob
from goqueue.storage.walk import Damage

READ_BYTES = 1024 * 1024
EXPIRED_SEGMENTS_MAX = 100
"""How many segments one call takes out, because each costs its owner a few renames."""
_TRANSACTIONS_KIND = b"GQTR"
_DELAYED_KIND = b"GQDM"
_TRANSACTIONAL = int(Flags.TRANSACTIONAL)
DAMAGED_PLACES_MAX = 1_000
"""How many places of damage are remembered and told; readers are told of all."""


class Appended(NamedTuple):
    """A batch that is in the log; it is durable once `durable_offset` is above `last_offset`."""

    first_offset: int
    last_offset: int
    record_count: int
    timestamp: int
    bytes: int
    flags: int
    priorities: int
    later_flags: int = 0  # of all records but the first


class Log:
    """The log in one directory. Made by `Log.open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: SegmentList,
        flusher: Flusher,
        compactor: Compactor,
        epochs: LeaderEpochs,
        txn_indexes: TxnIndexes,
        observe: events.Observer,
    ) -> None:
        self.directory = directory
        self.config = config
        self.epochs = epochs
        self.damage: list[Damage] = []  # what was found since the log was opened
        self.failure: StorageFailed | None = None  # why the log takes no more writes, if that is so
        self._disk = disk
        self._refused: tuple[int, str] | None = None  # where the log ended when there was no room, and why
        self._damaged_places: set[tuple[str, int]] = set()
        self._segments = segments
        self._flusher = flusher
        self._compactor = compactor
        self._txn_indexes = txn_indexes
        self.has_transactions = txn_indexes.has_any  # whether there may be records of transactions, now or ever before
        self.has_delays = False  # whether there may be delayed messages, now or ever before
        self._last_timestamp = 0
        self._observe = observe
        self._closed = False
        self.recovered_offset = segments.next_offset  # what lies behind it may have been torn by a crash
        self._is_touched = False  # since it was opened; one that is not has nothing to write at its end
        self._abandoned = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig | None = None,
        *,
        open_segments: OpenSegments | None = None,
        observe: events.Observer = events.ignore,
    ) -> "Log":
        """Open the log in the directory, or begin one there; all that can be recovered is.

        The caller holds the lock of the data directory.
        """
        if open_segments is None:  # an empty one is false, but not nothing
            open_segments = OpenSegments()
        try:
            return cls._recover(disk, directory, config or LogConfig(), open_segments, observe)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StorageFull(str(error.filename or directory), error.strerror or str(error)) from error
            raise DirectoryUnusable(str(error.filename or directory), error.strerror or str(error)) from error

    @classmethod
    def _recover(
        cls, disk: Disk, directory: str, config: LogConfig, open_segments: OpenSegments, observe: events.Observer
    ) -> "Log":
        listing = sort_out(directory, _entries(disk, directory))
        checkpoint_file = CheckpointFile(disk, f"{directory}/{CHECKPOINT}")
        checkpoint = checkpoint_file.load()
        epochs, damage = _load_epochs(disk, directory)
        state = compaction.load_state(disk, directory)
        if state.swap or listing.cleaned:
            compaction.finish_swap(disk, directory, state, listing.cleaned)
            listing = sort_out(directory, disk.entries(directory))
        for path in listing.leftovers:
            disk.remove(path)
        recovered = Recovery(disk, directory, listing.log_sizes, checkpoint, observe).run()
        recovered_from = checkpoint.next_offset if checkpoint else recovered.next_offset
        unsettled = checkpoint is not None and not checkpoint_file.is_settled
        if checkpoint is None:
            start = recovered.segments[0].base_offset
            checkpoint = Checkpoint(start, 0, start, 0)
            checkpoint_file.make_room()
            disk.sync_directory(directory)
            sync_ancestors(disk, directory)
            if not any(listing.log_sizes.values()):  # else it was lost, and is written anew once all is synced
                checkpoint_file.write(checkpoint, sync=True)
        for segment in recovered.segments:
            gaps = state.gaps.get(segment.base_offset, compaction.NO_GAPS)
            segment.missing, segment.control_missing = gaps
        segments = SegmentList(recovered.segments, recovered.next_offset, open_segments)
        flusher = Flusher(disk, directory, checkpoint_file, checkpoint)
        compactor = Compactor(disk, directory, segments, state.cleaned_offset, observe)
        bases = {segment.base_offset for segment in recovered.segments}
        txn_indexes = TxnIndexes(disk, directory, listing.txn_indexes & bases, next_offset=recovered.next_offset)
        log = cls(disk, directory, config, segments, flusher, compactor, epochs, txn_indexes, observe)
        log.has_transactions |= listing.has_transactions
        log.has_delays = listing.has_delays
        log._last_timestamp = recovered.last_timestamp
        log.recovered_offset = min(recovered_from, log.next_offset)
        for found in (*damage, *recovered.damage):
            log.report(found)
        unflushed = recovered.created or recovered.torn or log.next_offset > log.durable_offset
        if listing.log_sizes and (unflushed or unsettled):
            for segment in recovered.rescanned[:-1]:
                flusher.note_sealed(segment)
            log.flush()
        for segment in (*recovered.rescanned, recovered.segments[-1]):
            open_segments.touch(segment)  # recovery has opened them, and thousands of logs may share the limit
        return log

    @property
    def start_offset(self) -> int:
        """The first offset that may still be read."""
        return self._segments.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get."""
        return self._segments.next_offset

    @property
    def durable_offset(self) -> int:
        """All records below it are on the medium."""
        return self._flusher.durable.next_offset

    @property
    def ackable_offset(self) -> int:
        """All records below it may be acknowledged, as the flush mode promises."""
        return self.durable_offset if self.config.flush is Flush.GROUP else self._segments.next_offset

    @property
    def cleaned_offset(self) -> int:
        """Below it the log was compacted: the last of each key is there, and nothing of what was aborted."""
        return self._compactor.cleaned_offset

    @property
    def record_count(self) -> int:
        """How many records there are, control records included."""
        return self._segments.next_offset - self._segments.start_offset - self._segments.missing

    @property
    def control_missing(self) -> int:
        """How many control records compaction has taken out."""
        return self._segments.control_missing

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return self._segments.size

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def generation(self) -> int:
        """Changes whenever a record may have moved to another file."""
        return self._segments.generation

    # --- writing -------------------------------------------------------------------------------

    @property
    def last_timestamp(self) -> int:
        """The time of the newest record, which never goes back; 0 before the first."""
        return self._last_timestamp

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        now_ns: int,
        flags_allowed: int = FLAGS_FROM_PRODUCERS,
        record_count: int | None = None,
        check: Callable[[kernel.Summary], None] | None = None,
    ) -> Appended:
        """Stamp the batch and write it at the end, all of it or, if an error is raised, nothing.

        The batch is stamped in place. Its records bear `now_ns`, or the time of the record before if that is later.
        With `record_count` it is refused if it holds more or fewer, and `check` may raise what else is wrong with it.
        """
        if self._closed or self.failure:
            self._check_writable()
        if isinstance(batch, memoryview):
            batch = batch.cast("B")
        timestamp = now_ns if now_ns > self._last_timestamp else self._last_timestamp
        active = self._segments.active
        size = active.size
        if size and (size + len(batch) > self.config.segment_bytes or self._is_old(active, timestamp)):
            active = self._roll()
        summary = kernel.stamp(
            batch,
            first_offset=self._segments.next_offset,
            timestamp=timestamp,
            flags_allowed=flags_allowed,
            value_bytes_max=self.config.value_bytes_max,
            position=active.size,
            next_index_at=active.next_index_at,
        )
        if record_count is not None and record_count != summary.record_count:
            raise InvalidBatch(f"{summary.record_count} records instead of {record_count}", 0)
        if check is not None:
            check(summary)
        if summary.flags & _TRANSACTIONAL and not self.has_transactions:
            self.mark_transactional()
        try:
            active.append(batch, summary)
        except OSError as error:
            raise self._write_failed(active, error) from error
        self._segments.next_offset = summary.last_offset + 1
        self._last_timestamp = timestamp
        self._is_touched = True
        self._flusher.note_append(len(batch))
        return Appended(
            summary.first_offset,
            summary.last_offset,
            summary.record_count,
            timestamp,
            len(batch),
            summary.flags,
            summary.priorities,
            summary.later_flags,
        )

    def roll_if_old(self, *, now_ns: int) -> bool:
        """Seal the active segment if it is old, or larger than the log may be; whether that was so.

        A log without writers can expire and be compacted by that. The next flush makes it durable, and before that
        nothing is deleted: offsets go on after those of a log that has become empty, also after a crash.
        """
        active = self._segments.active
        if not active.size or self.failure or self._closed:
            return False
        if not self._is_old(active, now_ns) and not retention.is_oversized(active.size, self.config):
            return False
        self._roll()
        return True

    @property
    def has_unsynced_roll(self) -> bool:
        """Whether the active segment was begun after the last flush: those before it cannot expire yet."""
        return self._flusher.durable.base_offset != self._segments.active.base_offset

    def truncate(self, end_offset: int) -> None:
        """Cut off all records at or behind `end_offset`, durably; later appends take their offsets again.

        What was compacted cannot be cut: older values of its keys are gone. Whoever may have to cut a log says so by
        the `to_offset` of `begin_compaction`.
        """
        self._check_writable()
        self._check_range(end_offset)
        if end_offset == self.next_offset:
            return
        if end_offset < self._compactor.cleaned_offset:
            compacted = f"{self.directory} was compacted up to offset {self._compactor.cleaned_offset}"
            raise Conflict(f"{compacted} and cannot be cut at offset {end_offset}")
        with reading():
            segment, segment_end = self._segments.place_of(end_offset)
            position = segment.seek(end_offset, end_offset=segment_end).position
        self._change(lambda: self.epochs.truncate(end_offset))
        self._cancel_txn_sync()
        try:
            self._compactor.call_off(end_offset)
            self._txn_indexes.cut(end_offset, cleaned_offset=self.cleaned_offset)
            self._truncate(segment, position, end_offset)
        except OSError as error:
            raise self._fail("truncation", error) from error
        self.flush()
        with suppress(StorageFull):  # they are made anew at the next start
            self.sync_txn_indexes()

    def mark_transactional(self) -> None:
        """Note durably that there are transactions in this log; cheap when that is known."""
        if self.has_transactions:
            return
        self._check_writable()
        self._change(lambda: small_file.replace(self._disk, self.directory, TRANSACTIONS, _TRANSACTIONS_KIND, b""))
        self.has_transactions = True

    def mark_delayed(self) -> None:
        """Note durably that there are delayed messages in this log, so that their loss from other files is noticed."""
        if self.has_delays:
            return
        self._check_writable()
        self._change(lambda: small_file.replace(self._disk, self.directory, DELAYED, _DELAYED_KIND, b""))
        self.has_delays = True

    def note_aborted(self, first_offset: int, end_offset: int, marker_offset: int) -> None:
        """The records in [first_offset, end_offset) were aborted by the marker; on the medium after `begin_txn_sync`.

        What retention or compaction has taken of them is passed over, and so is what was noted before.
        """
        self._check_open()
        assert end_offset <= marker_offset < self.next_offset
        first_offset = max(first_offset, self.start_offset, self.cleaned_offset)
        entries: list[AbortedRange] = []
        while first_offset < end_offset:
            segment, segment_end = self._segments.place_of(first_offset)
            end = min(end_offset, segment_end)
            entries.append(AbortedRange(segment.base_offset, first_offset, end, marker_offset))
            first_offset = end
        with reading():
            self._txn_indexes.note(entries, cleaned_offset=self.cleaned_offset)

    def mend_txn_indexes(self) -> None:
        """Let damaged indexes be replaced: all that was aborted from `Aborted.replay_from` on has been noted again."""
        self._txn_indexes.mend()

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note durably that the leader of `epoch` writes from `start_offset` on."""
        self._check_writable()
        self._change(lambda: self.epochs.assign(epoch, start_offset))

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StorageFull(str(error.filename), error.strerror or str(error)) from error
            raise self._fail("write", error) from error

    def _truncate(self, segment: Segment, position: int, end_offset: int) -> None:
        remaining = Checkpoint(segment.base_offset, position, end_offset, self._last_timestamp)
        self._flusher.lower(self._segments.active, remaining)
        removed = self._segments.take_behind(segment)
        self._flusher.forget([segment, *removed])
        for later in reversed(removed):
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(later.path(suffix))
        segment.truncate(position)
        self._segments.next_offset = end_offset
        if removed:
            self._tell_deleted(removed)

    def _is_old(self, active: Segment, now_ns: int) -> bool:
        first = active.known_first_timestamp
        if first is None:
            with reading():
                first = active.first_timestamp(end_offset=self.next_offset)
        return first is not None and now_ns - first >= self.config.segment_age_ms * MS

    def _roll(self) -> Segment:
        sealed = self._segments.active
        self._is_touched = True
        try:
            self._segments.append(Segment.create(self._disk, self.directory, self.next_offset, self._observe))
        except OSError as error:
            raise self._write_failed(sealed, error) from error
        self._flusher.note_sealed(sealed)
        self._observe(events.SegmentRolled(log=self.directory, base_offset=self.next_offset))
        return self._segments.active

    def _check_writable(self) -> None:
        self._check_open()
        if self.failure:
            raise self.failure

    def _check_open(self) -> None:
        if self._closed:
            raise Conflict(f"the log in {self.directory} is closed")

    def _check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.next_offset, log=self.directory)

    def _write_failed(self, segment: Segment, error: OSError) -> StorageError:
        if error.errno in NO_ROOM:
            reason = error.strerror or str(error)
            self._refused = (self.next_offset, reason)
            self._observe(events.WriteRefused(log=self.directory, reason=reason))
            return StorageFull(str(error.filename or segment.path(LOG)), reason)
        return self._fail("write", error, path=segment.path(LOG))

    @property
    def refusal(self) -> str | None:
        """Why the last write was refused, if there was no room for it and none has succeeded since."""
        if self._refused is None or self._refused[0] != self.next_offset:
            return None
        return self._refused[1]

    def look_for_room(self) -> None:
        """Forget that a write was refused if the disk has room again: on a quiet topic no write would ever tell."""
        if self._refused is not None:
            with suppress(OSError):  # a disk that does not tell
                if not self._disk.space(self.directory).is_low:
                    self._refused = None

    def _fail(self, operation: str, error: Exception, *, path: str | None = None) -> StorageFailed:
        if self.failure is None:  # the first one is why; what fails behind it is told nothing else
            reason = getattr(error, "strerror", None) or str(error)
            path = getattr(error, "filename", None) or path or self.directory
            self.failure = StorageFailed(path, operation, reason)
            self._observe(events.LogFailed(log=self.directory, operation=operation, reason=reason))
        return self.failure

    # --- reading -------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int = READ_BYTES, to_offset: int | None = None) -> Chunk:
        """Records from `offset` on, as many as fit into `max_bytes`, but at least one if there is one."""
        return self.reader(offset).read(max_bytes=max_bytes, to_offset=to_offset)

    def read_time(self, timestamp: int, *, max_bytes: int = READ_BYTES, to_offset: int | None = None) -> Chunk:
        """Records stored at `timestamp` (ns) or later, under the same budget."""
        return self.read(self.offset_at_time(timestamp), max_bytes=max_bytes, to_offset=to_offset)

    def reader(self, offset: int) -> LogReader:
        """A reader that begins at `offset`, which lies between the start of the log and its end."""
        self._check_open()
        self._check_range(offset)
        return LogReader(self, offset)

    def pieces(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[tuple[int, int]]:
        """The range cut at index entries into pieces of about so many bytes: where each begins, and its size.

        Together they are the range, also where it reaches beyond the log.
        """
        self._check_open()
        pieces: list[tuple[int, int]] = []
        first, size = start_offset, 0
        stored_end = min(end_offset, self.next_offset)
        for segment, segment_end in self._segments.between(start_offset, stored_end):
            position = segment.position_near(start_offset)
            stop = segment.size if segment_end <= stored_end else segment.position_near(stored_end)
            while size + stop - position > piece_bytes:
                cut = segment.offsets.from_position(position + max(0, piece_bytes - size))
                if cut is None or cut.value >= stop or cut.key <= first:
                    break
                pieces.append((first, size + cut.value - position))
                (first, position), size = cut, 0
            size += max(0, stop - position)
        if first < end_offset:
            pieces.append((first, size))
        return pieces

    def aborted(self) -> Aborted:
        """The offsets of aborted records, as far as the indexes tell, and from where on they do not tell all."""
        self._check_open()
        with reading():
            return self._txn_indexes.aborted(cleaned_offset=self.cleaned_offset)

    @property
    def txn_indexed(self) -> Set[int]:
        """The base offsets of the segments that have an index of what was aborted."""
        return self._txn_indexes.base_offsets

    @property
    def txn_synced_offset(self) -> int:
        """Whatever a marker below it aborted is in an index on the medium; never beyond the end of the log."""
        unsynced_from = self._txn_indexes.unsynced_from
        return self.next_offset if unsynced_from is None else unsynced_from

    def offset_at_time(self, timestamp: int) -> int:
        """The first offset stored at `timestamp` (ns) or later; the end of the log if there is none."""
        self._check_open()
        with reading():
            index = self._count_begun_before(timestamp)
            if index:
                segment, end_offset = self._segments[index - 1]
                begun, _ = self._first_timestamp_from(index - 1, index)
                ended, _ = self._first_timestamp_from(index, len(self._segments))
                guess = _share(timestamp, begun or 0, self._last_timestamp if ended is None else ended)
                offset = segment.offset_at_time(timestamp, end_offset=end_offset, guess=guess)
                if offset is not None:
                    return offset
            return self._segments[index].segment.base_offset if index < len(self._segments) else self.next_offset

    def _count_begun_before(self, timestamp: int) -> int:
        """How many segments begin with a record older than `timestamp`."""
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            begun, found_in = self._first_timestamp_from(middle, high)
            if begun is None or begun >= timestamp:
                high = middle
            else:
                low = found_in + 1
        return low

    def place_of(self, offset: int) -> tuple[Segment, int, bool]:
        """The segment of the offset, the offset at which it ends, and whether none below that was compacted away."""
        self._check_open()
        segment, end_offset = self._segments.place_of(offset)
        return segment, end_offset, segment.base_offset >= self._compactor.cleaned_offset

    def report(self, damage: Damage) -> None:
        """Take note of damage; the same place counts once, and a ruined disk only up to a limit."""
        place = (damage.path, damage.position)
        if place in self._damaged_places or len(self._damaged_places) >= DAMAGED_PLACES_MAX:
            return
        self._damaged_places.add(place)
        self.damage.append(damage)
        self._observe(
            events.DamageFound(
                log=self.directory,
                path=damage.path,
                position=damage.position,
                bytes=damage.end - damage.position,
                first_offset=damage.first_offset,
                next_offset=damage.next_offset,
                reason=kernel.describe(damage.fault),
            )
        )

    def _first_timestamp_from(self, index: int, end: int) -> tuple[int | None, int]:
        """The time of the first record in the segments [index, end), and in which of them it stands."""
        for candidate in range(index, end):
            segment, end_offset = self._segments[candidate]
            first = segment.first_timestamp(end_offset=end_offset)
            if first is not None:
                return first, candidate
        return None, end

    # --- jobs ----------------------------------------------------------------------------------

    def begin_flush(self, *, monotonic_ns: int) -> FlushJob | None:
        """A job that makes durable what has been appended, if one is due and none is under way."""
        if self.failure or self._closed or not self._flusher.is_due(self.config, now_ns=monotonic_ns):
            return None
        try:
            return self._flusher.begin(self._segments.active, self._end())
        except OSError as error:
            raise self._fail("sync", error) from error

    def begin_seal(self) -> FlushJob | None:
        """A job that leaves `close` nothing to do; None if there is nothing to do, or a flush is under way."""
        if self.failure or self._closed or self._flusher.is_running or self.is_sealed:
            return None
        try:
            return self._flusher.begin(self._segments.active, self._end(), with_indexes=True)
        except OSError as error:
            raise self._fail("sync", error) from error

    @property
    def is_sealed(self) -> bool:
        """Whether everything, the indexes included, is on the medium."""
        return not self._is_touched and self._segments.active.has_written_indexes

    def begin_txn_sync(self) -> TxnSyncJob | None:
        """A job that makes durable what was noted as aborted by markers that are; None if there is nothing to do."""
        if self.failure or self._closed:
            return None
        return self._txn_indexes.begin(durable_offset=self.durable_offset)

    def begin_compaction(
        self,
        *,
        now_ns: int,
        to_offset: int | None = None,
        aborted: BitMap64 | None = None,
        stable_offset: int | None = None,
        markers_below: int | None = None,
    ) -> compaction.CompactJob | None:
        """A job that compacts the sealed segments below `to_offset`, if enough of them is new.

        Where there are transactions, only what lies below `stable_offset` is decided and may be touched: without it
        such a log is left alone. What was aborted goes, `aborted` or known to the indexes, and no longer stands for
        its key. Markers go when tombstones of their age do, if they also lie below `markers_below`: nobody needs them
        to find out what is open.
        """
        if self.failure or self._closed or not self.config.compacts:
            return None
        if not self.has_transactions:
            assert not aborted
            stable_offset = self.next_offset
        elif stable_offset is None:
            return None
        with reading():
            known = self._txn_indexes.aborted(cleaned_offset=self.cleaned_offset)
        if known.replay_from is not None:
            return None
        # the segment that the checkpoint speaks of stays as it is
        limit = min(
            self._flusher.durable.base_offset, stable_offset, self.next_offset if to_offset is None else to_offset
        )
        return self._compactor.begin_if_due(
            self.config,
            to_offset=limit,
            now_ns=now_ns,
            aborted=known.offsets if aborted is None else known.offsets | aborted,
            markers_below=markers_below or 0,
        )

    def expire(self, *, now_ns: int, keep_from: int | None = None, is_full: bool = False) -> DeleteJob | None:
        """Take out the segments that retention no longer keeps; the job removes their files.

        From `keep_from` on nothing goes, however old it is. `is_full` says that there is no room on the disk.
        """
        if self._compactor.is_running or self.failure or self._closed:
            return None
        count = self._segments.count_before(self._flusher.durable.base_offset)  # recovery starts at that segment
        if keep_from is not None:
            count = min(count, self._segments.count_before(keep_from + 1) - 1)
        sealed = (self._info(index) for index in range(min(count, EXPIRED_SEGMENTS_MAX)))
        with reading():
            is_full = is_full or self.refusal is not None
            found = retention.expired(sealed, self.size, self.config, now_ns=now_ns, is_full=is_full)
        if not found:
            return None
        self._cancel_txn_sync()
        leaving = self._segments.take_first(len(found))
        self._flusher.forget(leaving)
        self._txn_indexes.drop_below(self.start_offset)
        try:
            paths = [path for segment in leaving for path in mark_deleted(self._disk, segment)]
        except OSError as error:
            raise self._fail("deletion", error) from error
        with suppress(StorageFull):  # what is about to be deleted makes room, and old epochs harm nobody
            self._change(lambda: self.epochs.drop_before(self.start_offset))
        self._tell_deleted(leaving)
        return DeleteJob(self._disk, self.directory, paths)

    def complete(self, job: Job, error: Exception | None = None) -> Job | None:
        """Let a job that has run take effect; `error` is what it raised. Sometimes another one is to follow."""
        if self._abandoned:
            return None
        try:
            return self._complete(job, error)
        except OSError as raised:
            self._fail("clean-up", raised)
            return None

    def _complete(self, job: Job, error: Exception | None) -> Job | None:
        no_room = isinstance(error, OSError) and error.errno in NO_ROOM
        match job:
            case compaction.CompactJob():
                for found in job.damage:
                    self.report(found)
                return self._compactor.copied(job, error)
            case compaction.SwapJob() if error is None or no_room:
                return self._swap(job, is_noted=error is None)
            case compaction.FinishJob() if error is None or no_room:  # without room the next start finishes it
                self._compactor.finished()
            case DeleteJob() if no_room:
                pass
            case TxnSyncJob() if error is None or no_room:
                self._txn_indexes.complete(job, is_done=error is None)
            case FlushJob() if error is None:
                if self._flusher.complete(job, self._segments.active):
                    self._is_touched &= not job.with_indexes or self._flusher.has_unflushed
                    self._segments.trim_open_files()
                    flushed = events.Flushed(log=self.directory, bytes=job.bytes, durable_offset=self.durable_offset)
                    self._observe(flushed)
            case _ if error:
                self._fail("sync" if isinstance(job, FlushJob | TxnSyncJob) else "clean-up", error)
        return None

    def _swap(self, job: compaction.SwapJob, *, is_noted: bool) -> Job | None:
        """Let the copies take their places; what the indexes said of their sources is no longer of use."""
        try:
            self._cancel_txn_sync()
        except StorageFailed:  # the next start carries it out
            return None
        following = self._compactor.decided(job, is_noted=is_noted)
        if isinstance(following, compaction.FinishJob):
            following.paths += self._txn_indexes.drop_below(self.cleaned_offset)
        return following

    def _cancel_txn_sync(self) -> None:
        try:
            self._txn_indexes.cancel()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._fail("sync", error) from error

    def flush(self) -> None:
        """Make everything durable that has been appended, here and now."""
        self._check_writable()
        self._flush()

    def sync_txn_indexes(self) -> None:
        """The same here and now. Raises `StorageFull` if there is no room for it."""
        self._check_writable()
        self._cancel_txn_sync()
        job = self.begin_txn_sync()
        if job:
            is_done = False
            try:
                self._change(job.run)
                is_done = True
            finally:
                self._txn_indexes.complete(job, is_done=is_done)

    def maintain(self, *, now_ns: int, monotonic_ns: int) -> None:
        """Run all jobs that are due, here and now."""
        self._check_open()
        self.roll_if_old(now_ns=now_ns)
        self._run(self.begin_flush(monotonic_ns=monotonic_ns))
        self._run(self.expire(now_ns=now_ns))
        self._run(self.begin_compaction(now_ns=now_ns))

    def close(self) -> None:
        """Make everything durable and let go of all files. A log that failed is only let go of.

        Jobs that are under way are called off: the next start does their work.
        """
        if self._closed:
            return
        try:
            if not self.failure:
                self._call_off_compaction()
                if not self.is_sealed:
                    self._flush(with_indexes=True)
                with suppress(StorageFull):
                    self.sync_txn_indexes()
        finally:
            self._closed = True
            self._segments.release()

    def abandon(self) -> None:
        """Let go of everything as it is, because all files of the log are about to be deleted.

        Jobs that are under way are called off, and one that is in the middle of its work is waited for. From here on
        neither they nor the log touch the directory, so that another log may take its place.
        """
        if self._closed:
            return
        self._closed = self._abandoned = True
        self._compactor.abandon()
        self._flusher.abandon()
        with suppress(OSError):
            self._txn_indexes.cancel()
        self._segments.release()

    def _call_off_compaction(self) -> None:
        try:
            self._compactor.call_off(0)
        except OSError as error:
            raise self._fail("clean-up", error) from error

    def _flush(self, *, with_indexes: bool = False) -> None:
        try:
            job = self._flusher.begin(self._segments.active, self._end(), with_indexes=with_indexes)
        except OSError as error:
            raise self._fail("sync", error) from error
        self._run(job)
        if self.failure:
            raise self.failure

    def _run(self, job: Job | None) -> None:
        while job:
            error: Exception | None = None
            try:
                job.run()
            except Exception as raised:
                error = raised
            job = self.complete(job, error)

    def _end(self) -> Checkpoint:
        active = self._segments.active
        return Checkpoint(active.base_offset, active.size, self.next_offset, self._last_timestamp)

    def _info(self, index: int) -> retention.SegmentInfo:
        segment, end_offset = self._segments[index]
        last = segment.last_timestamp(end_offset=end_offset)
        if last is None and segment.size:  # all of it is damaged, which makes it no older than what comes behind it
            following, _ = self._first_timestamp_from(index + 1, len(self._segments))
            last = self._last_timestamp if following is None else following
        return retention.SegmentInfo(segment.base_offset, segment.size, last)

    def _tell_deleted(self, segments: list[Segment]) -> None:
        freed = sum(segment.size for segment in segments)
        self._observe(events.SegmentsDeleted(log=self.directory, count=len(segments), bytes=freed))


def _share(timestamp: int, begun: int, ended: int) -> float:
    """Which share of the time from `begun` to `ended` has passed at `timestamp`."""
    return (timestamp - begun) / max(1, ended - begun)


def _entries(disk: Disk, directory: str) -> list[Entry]:
    """What is in the directory, which is made if it is missing."""
    try:
        return disk.entries(directory)
    except FileNotFoundError:
        disk.make_directory(directory)
        return []


def _load_epochs(disk: Disk, directory: str) -> tuple[LeaderEpochs, list[Damage]]:
    try:
        return LeaderEpochs.load(disk, directory), []
    except CorruptRecord:
        damage = Damage(f"{directory}/{LEADER_EPOCHS}", 0, 0, 0, 0, RecordFault.CRC)
        return LeaderEpochs(disk, directory, []), [damage]
