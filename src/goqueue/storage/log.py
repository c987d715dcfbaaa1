"""One append-only log: segments in a directory, written at the end and read anywhere.

    append ──> kernel.stamp ──> active segment ──(full or old)──> sealed segments ──> retention, compaction
                                     │
                                begin_flush ──> fdatasync in a thread ──> complete: durable_offset rises

A log is synchronous and has one owner, which makes all calls. Work that blocks is handed out as a job (`begin_flush`,
`begin_compaction`, `begin_truncate`, `expire`), run in any thread, and brought back with `complete`. `flush`,
`truncate` and `maintain` do the same in place, for owners without threads.

A leader's log stamps what producers send (`append`). A follower's log takes records as the leader has stamped them
(`append_stored`), and cuts off what the leader does not have (`truncation.py`).

Records below `durable_offset` are on the disk. Records below `ackable_offset` may be acknowledged: with `flush=group`
that is the same offset, in the other modes it is the end of the log.

A failed write or sync stops all writes until the log is opened again. A full disk does not: what was half written is
cut off, and the next append may succeed (`log_health.py`).

The parts are read in this order: file, indexes, walk, segment, segment_list, recovery, opening, flush, compaction,
truncation, reader, log.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue import events
from goqueue.clock import MS
from goqueue.errors import Conflict, InvalidBatch, OffsetOutOfRange, StorageError, StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.record.header import FLAGS_FROM_PRODUCERS, HEADER, HEADER_BYTES, Buffer, Flags
from goqueue.storage import compaction, retention, small_file
from goqueue.storage.checkpoint import Checkpoint, Cut
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.damage_reports import DamageReports
from goqueue.storage.file import NO_ROOM, Disk, unusable
from goqueue.storage.flush import FlushJob
from goqueue.storage.jobs import DeleteJob, Job, mark_deleted
from goqueue.storage.layout import DELAYED, GAPS, LOG
from goqueue.storage.log_health import LogHealth
from goqueue.storage.log_start import DeleteRecordsJob
from goqueue.storage.log_transactions import LogTransactions
from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.opening import LogParts, open_parts
from goqueue.storage.reader import Chunk, LogReader, reading
from goqueue.storage.segment import Segment
from goqueue.storage.stored import scan_stored
from goqueue.storage.truncation import TruncateJob, Truncation
from goqueue.storage.txn_index import TxnSyncJob
from goqueue.storage.walk import Damage

READ_BYTES = 1024 * 1024
EXPIRED_SEGMENTS_MAX = 100
"""How many segments one call of `expire` removes: each costs the owner a few renames."""
_DELAYED_KIND = b"GQDM"
_GAPS_KIND = b"GQGA"
_TRANSACTIONAL = int(Flags.TRANSACTIONAL)


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

    # Over 800 lines and more than 40 methods: this is the whole interface of the storage engine to the broker, and 20
    # of them are short properties. What could be told apart has a class of its own: `LogHealth`, `LogTransactions`,
    # `DamageReports`, `SegmentList`, `NewLog`, `Flusher`, `Compactor`, `Truncation`, `LogReader`.

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, parts: LogParts, observe: events.Observer
    ) -> None:
        self.directory = directory
        self.config = config
        self.epochs = parts.epochs
        self.has_delays = parts.has_delays  # whether the log holds, or ever held, delayed messages
        self.has_gaps = parts.has_gaps  # whether offsets may be missing because a leader's log was compacted
        self.recovered_offset = parts.recovered_offset  # a crash may have torn batches at or after it
        self._disk = disk
        self._observe = observe
        self._segments = parts.segments
        self._flusher = parts.flusher
        self._compactor = parts.compactor
        self._health = LogHealth(disk, directory, observe)
        self._damage = DamageReports(directory, observe)
        self.transactions = LogTransactions(
            disk,
            directory,
            parts.segments,
            parts.flusher,
            parts.compactor,
            parts.txn_indexes,
            self._health,
            has_any=parts.has_transactions,
        )
        self._truncation = Truncation(
            disk,
            directory,
            parts.checkpoint_file,
            parts.segments,
            parts.flusher,
            parts.compactor,
            self.transactions,
            parts.epochs,
            self._health,
            observe,
        )
        self._new = parts.new
        self._deletions: list[DeleteRecordsJob] = []  # under way
        self._last_timestamp = parts.last_timestamp
        self._is_touched = False  # since it was opened; an untouched log has nothing to write when it is closed
        self._is_abandoned = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig | None = None,
        *,
        open_segments: OpenSegments | None = None,
        observe: events.Observer = events.ignore,
        within: str = "",
        noted_epoch: int = -1,
    ) -> "Log":
        """Open the log in the directory, and recover it from a crash. Without a directory it is empty: the directory is
        made before the first write.

        The caller holds the lock of the data directory, and has made durable the name of `within`, a directory above,
        and that there was a leader of `noted_epoch`.
        """
        if open_segments is None:  # not `or`: an empty one is false
            open_segments = OpenSegments()
        try:
            parts = open_parts(disk, directory, open_segments, observe, within=within, noted_epoch=noted_epoch)
            log = cls(disk, directory, config or LogConfig(), parts, observe)
            for found in parts.damage:
                log.report(found)
            if parts.must_flush:
                for segment in parts.rescanned[:-1]:
                    log._flusher.note_sealed(segment)
                log.flush()
            for segment in (*parts.rescanned, log._segments.active):
                open_segments.touch(segment)  # recovery has opened them, and thousands of logs may share the limit
            return log
        except OSError as error:
            raise unusable(directory, error) from error

    # --- facts ---------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset that may still be read."""
        return self._segments.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next record: the log end offset."""
        return self._segments.next_offset

    @property
    def durable_offset(self) -> int:
        """All records below it are on the disk."""
        return self._flusher.durable.next_offset

    @property
    def ackable_offset(self) -> int:
        """All records below it may be acknowledged, as the flush mode promises."""
        return self.durable_offset if self.config.flush is Flush.GROUP else self._segments.next_offset

    @property
    def cleaned_offset(self) -> int:
        """The log is compacted below it: each key has one record there, and no aborted record is left."""
        return self._compactor.cleaned_offset

    @property
    def record_count(self) -> int:
        """How many records there are, control records included."""
        return max(0, self._segments.next_offset - self._segments.start_offset - self._segments.missing)

    @property
    def control_missing(self) -> int:
        """How many control records compaction has removed."""
        return self._segments.control_missing

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return self._segments.size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def generation(self) -> int:
        """Changes whenever a record may have moved to another file."""
        return self._segments.generation

    @property
    def last_timestamp(self) -> int:
        """The time of the newest record, which never goes back; 0 before the first."""
        return self._last_timestamp

    @property
    def has_files(self) -> bool:
        """Whether something was ever written to it."""
        return self._new is None

    @property
    def is_closed(self) -> bool:
        return self._health.is_closed

    @property
    def is_sealed(self) -> bool:
        """Whether everything, including the indexes, is on the disk."""
        return not self._is_touched and self._segments.active.has_written_indexes

    @property
    def is_truncating(self) -> bool:
        """Whether a truncation is not carried out yet; until then the log takes no appends."""
        return self._truncation.is_running

    @property
    def highest_epoch(self) -> int:
        """The highest leader epoch that this replica has ever heard of; -1 before the first."""
        return self.epochs.highest

    @property
    def has_unsynced_roll(self) -> bool:
        """Whether the active segment is newer than the last flush: until the next one, no segment can expire."""
        return self._flusher.durable.base_offset != self._segments.active.base_offset

    @property
    def failure(self) -> StorageFailed | None:
        """Why the log takes no more writes; None while it does."""
        return self._health.failure

    @property
    def refusal(self) -> str | None:
        """Why the last append was refused, if there was no room for it and none has succeeded since."""
        return self._health.refusal(self.next_offset)

    @property
    def damage(self) -> list[Damage]:
        """The damage that was found since the log was opened."""
        return self._damage.found

    # --- writing -------------------------------------------------------------------------------

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

        The batch is stamped in place. Its records get the time `now_ns`, or the time of the previous record if that is
        later. A batch with another number of records than `record_count` is refused, and `check` may raise any other
        error about it.
        """
        if self._health.is_blocked:
            self._health.check_writable()
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
        if self._new is not None:
            self._make()
        if summary.flags & _TRANSACTIONAL and not self.transactions.has_any:
            self.transactions.mark()
        self._write(active, batch, summary)
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

    def append_stored(self, records: Buffer, *, end_offset: int | None = None) -> Appended:
        """Write records that a leader has stamped, byte for byte; all of them or, if an error is raised, nothing.

        They continue the log: offsets without a gap, times that do not fall (`stored.py`). Any flags that a log may
        hold are allowed. The caller notes delayed messages (`mark_delayed`), as it does after `append`.

        With `end_offset` there may be gaps, because the log of the leader was compacted: the records are all that it
        has in [next_offset, end_offset), possibly none. The log then ends at `end_offset`.
        """
        if self._health.is_blocked:
            self._health.check_writable()
        view = memoryview(records).cast("B")
        first_offset = self._segments.next_offset
        active = self._segments.active
        if active.size and len(view) >= HEADER_BYTES:
            timestamp = HEADER.unpack_from(view)[5]
            if active.size + len(view) > self.config.segment_bytes or self._is_old(active, timestamp):
                self._scan_stored(view, active, end_offset)  # what is refused must not seal a segment either
                active = self._roll()
        summary = self._scan_stored(view, active, end_offset)
        if end_offset is None:
            end_offset = summary.last_offset + 1
        missing = end_offset - first_offset - summary.record_count
        if self._new is not None:
            self._make()
        if summary.flags & _TRANSACTIONAL and not self.transactions.has_any:
            self.transactions.mark()
        if missing and not self.has_gaps:
            with self._health.writing():
                small_file.replace(self._disk, self.directory, GAPS, _GAPS_KIND, b"")
            self.has_gaps = True
        if summary.record_count:
            self._write(active, view, summary)
        if missing:
            self._segments.note_missing(missing)
            if self._segments.next_offset < end_offset:
                self._segments.next_offset = end_offset
                self._is_touched = True
                self._flusher.note_gap()
        flags = (summary.flags, summary.priorities, summary.later_flags)
        return Appended(first_offset, end_offset - 1, summary.record_count, self._last_timestamp, len(view), *flags)

    def _scan_stored(self, records: memoryview, active: Segment, end_offset: int | None) -> kernel.Summary:
        return scan_stored(
            records,
            next_offset=self._segments.next_offset,
            end_offset=end_offset,
            last_timestamp=self._last_timestamp,
            position=active.size,
            next_index_at=active.next_index_at,
        )

    def _write(self, active: Segment, records: bytearray | memoryview, summary: kernel.Summary) -> None:
        """Write stamped records at the end of the log."""
        try:
            active.append(records, summary)
        except OSError as error:
            raise self._write_failed(active, error) from error
        self._segments.next_offset = summary.last_offset + 1
        self._last_timestamp = summary.last_timestamp
        self._is_touched = True
        self._flusher.note_append(len(records))

    def _make(self) -> None:
        """Make the files of a new log, durably."""
        if self._new is not None:
            try:
                self._new.make()
            except OSError as error:
                raise self._write_failed(self._segments.active, error) from error
            self._new = None

    def roll_if_old(self, *, now_ns: int) -> bool:
        """Seal the active segment if it is old, all deleted, or larger than the log may be; whether it was sealed.

        This lets a log without writers expire and be compacted. The next flush makes the new segment durable, and
        nothing is deleted before: even a log that became empty keeps its next offset across a crash.
        """
        active = self._segments.active
        if not active.size or self._health.is_blocked:
            return False
        is_deleted = self.start_offset == self.next_offset
        if not is_deleted and not self._is_old(active, now_ns) and not retention.is_oversized(active.size, self.config):
            return False
        self._roll()
        return True

    def truncate(self, end_offset: int) -> None:
        """Cut off all records at or after `end_offset`, durably; later appends reuse these offsets."""
        self._cut(self.begin_truncate(end_offset))

    def restart(self, start_offset: int) -> None:
        """Drop all records, durably; the log goes on, empty, at `start_offset`."""
        self._cut(self.begin_restart(start_offset))

    def _cut(self, job: TruncateJob | None) -> None:
        if job is None:
            return
        self._run(job)
        if self.failure:
            raise self.failure
        self._truncation.check_room()
        with suppress(StorageFull):  # the next start rebuilds them
            self.transactions.sync()

    def mark_delayed(self) -> None:
        """Note durably that there are delayed messages in this log: if their index is lost, the log is searched."""
        if self.has_delays:
            return
        self._health.check_writable()
        self._make()
        with self._health.writing():
            small_file.replace(self._disk, self.directory, DELAYED, _DELAYED_KIND, b"")
        self.has_delays = True

    def note_epoch(self, epoch: int) -> None:
        """Note durably that there is a leader of `epoch`; lower epochs are no news, and cost nothing."""
        if epoch > self.epochs.highest:
            self._health.check_healthy()  # a truncation that is under way does not matter
            self._make()
            with self._health.writing():
                self.epochs.note(epoch)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note durably that this replica leads in `epoch` and writes from `start_offset` on.

        The epoch must be the highest that this replica has heard of, or higher.
        """
        if epoch < self.epochs.highest:
            raise ValueError(f"epoch {epoch} is below epoch {self.epochs.highest}, which has begun")
        self.copy_epoch(epoch, start_offset)

    def copy_epoch(self, epoch: int, start_offset: int) -> None:
        """Note durably, before they are appended, that the records from `start_offset` on are of the leader of `epoch`.

        This is for followers: the leader that they follow has sent the records, and may be of a higher epoch.
        """
        self._health.check_writable()
        self._make()
        with self._health.writing():
            self.epochs.assign(epoch, start_offset)

    def look_for_room(self) -> None:
        """Forget the refusal of an append if the disk has room again."""
        self._health.look_for_room()

    def _is_old(self, active: Segment, now_ns: int) -> bool:
        first = active.known_first_timestamp
        if first is None:
            with reading():
                first = active.first_timestamp(end_offset=self.next_offset)
        return first is not None and now_ns - first >= self.config.segment_age_ms * MS

    def _roll(self) -> Segment:
        sealed = self._segments.active
        base_offset = self._end_of_records(sealed) if self.has_gaps else self.next_offset
        self._is_touched = True
        try:
            self._segments.append(Segment.create(self._disk, self.directory, base_offset, self._observe))
        except OSError as error:
            raise self._write_failed(sealed, error) from error
        self._flusher.note_sealed(sealed)
        self._observe(events.SegmentRolled(log=self.directory, base_offset=base_offset))
        return self._segments.active

    def _end_of_records(self, active: Segment) -> int:
        """The base of the next segment: a gap belongs to it, as recovery expects each to begin where the last ended."""
        with reading():
            last = active.last_below(self.next_offset, end_offset=self.next_offset)
        return last.offset + 1 if last else self.next_offset

    def _write_failed(self, segment: Segment, error: OSError) -> StorageError:
        return self._health.write_failed(error, path=segment.path(LOG), next_offset=self.next_offset)

    def _check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.next_offset, log=self.directory)

    # --- reading -------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int = READ_BYTES, to_offset: int | None = None) -> Chunk:
        """Records from `offset` on, as many as fit into `max_bytes`, but at least one if there is one."""
        return self.reader(offset).read(max_bytes=max_bytes, to_offset=to_offset)

    def reader(self, offset: int) -> LogReader:
        """A reader that begins at `offset`, which is between the start and the end of the log."""
        self._health.check_open()
        self._check_range(offset)
        return LogReader(self, offset)

    def pieces(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[tuple[int, int]]:
        """The range cut at index entries into pieces of about `piece_bytes`: the first offset and the size of each.

        Together the pieces are the range, even where it ends after the log.
        """
        self._health.check_open()
        return self._segments.pieces(start_offset, end_offset, piece_bytes=piece_bytes)

    def offset_at_time(self, timestamp: int) -> int:
        """The first offset stored at `timestamp` (ns) or later; the end of the log if there is none."""
        self._health.check_open()
        with reading():
            found = self._segments.offset_at_time(timestamp, newest_ns=self._last_timestamp)
        return max(found, self.start_offset)

    def place_of(self, offset: int) -> tuple[Segment, int, bool]:
        """The segment of the offset, where it ends, and whether compaction has left all of its records in place."""
        self._health.check_open()
        segment, end_offset = self._segments.place_of(offset)
        return segment, end_offset, segment.base_offset >= self._compactor.cleaned_offset and not self.has_gaps

    def report(self, damage: Damage) -> None:
        """Take note of damage that a reader has found."""
        self._damage.add(damage)

    # --- jobs ----------------------------------------------------------------------------------

    def begin_flush(self, *, monotonic_ns: int) -> FlushJob | None:
        """A job that makes all appends so far durable, if a flush is due and none is running."""
        if self._health.is_blocked or not self._flusher.is_due(self.config, now_ns=monotonic_ns):
            return None
        return self._new_flush()

    def begin_seal(self) -> FlushJob | None:
        """A job that leaves nothing for `close` to do; None if there is nothing, or a flush is running."""
        if self._health.is_blocked or self._flusher.is_running or self.is_sealed:
            return None
        return self._new_flush(with_indexes=True)

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

        In a log with transactions only records below `stable_offset` are decided and may be touched; without that
        argument such a log is not compacted. An owner that passes `to_offset` because it may have to truncate there
        counts a transaction as open if the marker that decides it is at or after that bound. Aborted records are
        removed, both those in `aborted` and those in the indexes, and never stand for their key. Markers are removed
        when tombstones of their age are, if they are below `markers_below`: above it they are still needed to find out
        which transactions are open.
        """
        if self._health.is_blocked or not self.config.compacts:
            return None
        if not self.transactions.has_any:
            assert not aborted
            stable_offset = self.next_offset
        elif stable_offset is None:
            return None
        known = self.transactions.aborted()
        if known.replay_from is not None:
            return None
        # The segment that the checkpoint names is never compacted: recovery starts there.
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

    def expire(
        self,
        *,
        now_ns: int,
        to_offset: int | None = None,
        keep_from: int | None = None,
        deleted_below: int = 0,
        is_full: bool = False,
    ) -> DeleteJob | None:
        """Take out the segments that retention no longer keeps, or a request deleted; the job removes their files.

        Nothing at or after `to_offset` is taken, for whatever reason. Retention deletes nothing at or after
        `keep_from`, however old it is. Segments below `deleted_below` go in any case. `is_full` says that there is no
        room on the disk.
        """
        if self._compactor.is_running or self._health.is_blocked:
            return None
        # Recovery starts at the segment that the checkpoint names.
        count = min(EXPIRED_SEGMENTS_MAX, self._segments.count_before(self._flusher.durable.base_offset))
        if to_offset is not None:
            count = min(count, self._segments.count_ended_before(to_offset))
        deleted = min(count, self._segments.count_ended_before(max(self.start_offset, deleted_below)))
        if keep_from is not None:
            count = min(count, self._segments.count_ended_before(keep_from))
        oldest = range(count)
        sealed = (self._segments.retention_info(index, newest_ns=self._last_timestamp) for index in oldest)
        with reading():
            is_full = is_full or self.refusal is not None
            found = retention.expired(sealed, self.size, self.config, now_ns=now_ns, is_full=is_full)
        if not found and not deleted:
            return None
        self.transactions.cancel_sync()
        leaving = self._segments.take_first(max(len(found), deleted))
        self._flusher.forget(leaving)
        self.transactions.indexes.drop_below(self.start_offset)
        with self._health.failing("deletion"):
            paths = [path for segment in leaving for path in mark_deleted(self._disk, segment)]
        # A full disk may refuse this; the deletion then makes room, and old epochs are harmless.
        with suppress(StorageFull), self._health.writing():
            self.epochs.drop_before(self.start_offset)
        self._tell_deleted(leaving)
        return DeleteJob(self._disk, self.directory, paths)

    def begin_delete_records(self, before_offset: int) -> DeleteRecordsJob | None:
        """A job that deletes all records below the offset; None if there are none."""
        self._health.check_writable()
        if before_offset <= self.start_offset:
            return None
        self._check_range(before_offset)
        job = DeleteRecordsJob(self._disk, self.directory, before_offset)
        self._deletions.append(job)
        return job

    def begin_truncate(self, end_offset: int) -> TruncateJob | None:
        """Cut off all records at or after `end_offset`; later appends reuse these offsets. None if there are none.

        The records cannot be read any more when this returns. The job makes that durable; until it is completed, the
        log takes no appends and begins no other job. If there was no room for it, `is_truncating` stays true, and
        another call with the same offset returns another job.

        The compacted part cannot be cut: older values of its keys are gone. An owner that may have to truncate bounds
        compaction with the `to_offset` of `begin_compaction`.
        """
        if job := self._truncation.retry(end_offset, Cut.END):
            return job
        self._health.check_writable()
        start = max(self.start_offset, *(job.offset for job in self._deletions), 0)
        if not start <= end_offset <= self.next_offset:
            raise OffsetOutOfRange(end_offset, start, self.next_offset, log=self.directory)
        if end_offset == self.next_offset and not self.epochs.begins_after(end_offset):
            return None
        if end_offset < self._compactor.cleaned_offset:
            compacted = f"{self.directory} is compacted up to offset {self._compactor.cleaned_offset}"
            raise Conflict(f"{compacted} and cannot be truncated at offset {end_offset}")
        self._make()
        return self._was_cut(self._truncation.begin(end_offset))

    def begin_restart(self, start_offset: int) -> TruncateJob | None:
        """Drop all records, and go on at `start_offset`: a follower is filled anew. None if that is so already.

        The same holds as for `begin_truncate`.
        """
        if job := self._truncation.retry(start_offset, Cut.ALL):
            return job
        self._health.check_writable()
        assert start_offset >= 0
        is_new = self._segments.active.base_offset == self.start_offset == self.next_offset == start_offset
        if is_new and not self._deletions and not self.epochs.begins_after(0):
            return None
        self._make()
        deletions, self._deletions = self._deletions, []
        return self._was_cut(self._truncation.restart(start_offset, deletions))

    def _was_cut(self, job: TruncateJob) -> TruncateJob:
        end = job.removal.end
        self._last_timestamp = end.last_timestamp
        self.recovered_offset = min(self.recovered_offset, end.next_offset)
        self._is_touched = True
        return job

    def complete(self, job: Job, error: Exception | None = None) -> Job | None:
        """Let a job that has run take effect; `error` is what it raised. May return another job to run."""
        if self._is_abandoned:
            return None
        try:
            return self._complete(job, error)
        except OSError as raised:
            self._health.fail("clean-up", raised)
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
            case TruncateJob():
                if gone := self._truncation.complete(job, error):
                    self._tell_deleted(gone)
            case DeleteJob() if no_room:
                pass
            case DeleteRecordsJob() if error is None or no_room:
                if job in self._deletions:  # the log did not restart meanwhile
                    self._deletions.remove(job)
                    if error is None:
                        self._segments.delete_below(job.offset)
            case TxnSyncJob() if error is None or no_room:
                self.transactions.indexes.complete(job, is_done=error is None)
            case FlushJob() if error is None:
                if self._flusher.complete(job, self._segments.active):
                    self._is_touched &= not job.with_indexes or self._flusher.has_unflushed
                    self._segments.trim_open_files()
                    flushed = events.Flushed(log=self.directory, bytes=job.bytes, durable_offset=self.durable_offset)
                    self._observe(flushed)
            case _ if error:
                self._health.fail("sync" if isinstance(job, FlushJob | TxnSyncJob) else "clean-up", error)
        return None

    def _swap(self, job: compaction.SwapJob, *, is_noted: bool) -> Job | None:
        """Put the copies in place; the indexes of aborted records of their sources have no use any more."""
        try:
            self.transactions.cancel_sync()
        except StorageFailed:  # the next start puts them in place
            return None
        following = self._compactor.decided(job, is_noted=is_noted)
        if isinstance(following, compaction.FinishJob):
            following.paths += self.transactions.indexes.drop_below(self.cleaned_offset)
        return following

    def flush(self) -> None:
        """Make all appends so far durable, in place."""
        self._health.check_writable()
        if self._new is None:
            self._flush()

    def maintain(self, *, now_ns: int, monotonic_ns: int) -> None:
        """Run all jobs that are due, in place."""
        self._health.check_open()
        self.roll_if_old(now_ns=now_ns)
        self._run(self.begin_flush(monotonic_ns=monotonic_ns))
        self._run(self.expire(now_ns=now_ns))
        self._run(self.begin_compaction(now_ns=now_ns))

    def close(self) -> None:
        """Make everything durable and release all files. A log that failed only releases its files.

        Jobs that are under way are called off: the next start does their work.
        """
        if self.is_closed:
            return
        try:
            if not self.failure:
                with self._health.failing("clean-up"):
                    if compaction := self._compactor.call_off(0):
                        compaction.run()
                if self.is_truncating:
                    with self._health.failing("truncation"):
                        self._truncation.abandon()
                else:
                    if not self.is_sealed:
                        self._flush(with_indexes=True)
                    with suppress(StorageFull):
                        self.transactions.sync()
        finally:
            self._health.close()
            self._segments.release()

    def abandon(self) -> None:
        """Release all files as they are, because the log is about to be deleted.

        Jobs that are under way are called off, and a job that is running is waited for. From here on neither they nor
        the log touch the directory, so that another log may take its place.
        """
        if self.is_closed:
            return
        self._health.close()
        self._is_abandoned = True
        self._compactor.abandon()
        self._flusher.abandon()
        with suppress(OSError):
            self._truncation.abandon()
        with suppress(OSError):
            self.transactions.indexes.cancel()
        self._segments.release()

    def _flush(self, *, with_indexes: bool = False) -> None:
        self._run(self._new_flush(with_indexes=with_indexes))
        if self.failure:
            raise self.failure

    def _new_flush(self, *, with_indexes: bool = False) -> FlushJob:
        active = self._segments.active
        end = Checkpoint(active.base_offset, active.size, self.next_offset, self._last_timestamp)
        try:
            return self._flusher.begin(active, end, with_indexes=with_indexes)
        except OSError as error:
            raise self._health.fail("sync", error) from error

    def _run(self, job: Job | None) -> None:
        while job:
            error: Exception | None = None
            try:
                job.run()
            except Exception as raised:
                error = raised
            job = self.complete(job, error)

    def _tell_deleted(self, segments: list[Segment]) -> None:
        freed = sum(segment.size for segment in segments)
        self._observe(events.SegmentsDeleted(log=self.directory, count=len(segments), bytes=freed))
