"""Truncation: a follower cuts off what its leader does not have, or drops all records to be filled anew.

In memory the log is cut at once: reads at or after the new end are refused from then on. The files follow in a job,
and until it is done the log takes no appends. After a crash at any point the log is either as it was or cut as a whole,
because one write decides:

    1. end the jobs that are under way; sync what is to stay      crash: the log is as it was
    2. write a checkpoint that says where the log is cut          crash: opening the log does the rest
    3. cut the epochs, the segments, the indexes of aborts; sync  crash: the same, as often as it takes
    4. write the same checkpoint without the cut                  from here on the log takes appends

Nothing may be appended between 2 and 4: after a crash it would be cut off, too. And no checkpoint above the new end can
count after step 2, because the newest one does.

A job that finds no room is repeated later; the log is held until then.
"""

from contextlib import suppress
from typing import NamedTuple

from goqueue.errors import StorageFull
from goqueue.events import Observer
from goqueue.storage import epochs
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile, Cut
from goqueue.storage.compactor import CallOff, Compactor
from goqueue.storage.epochs import EpochStart, LeaderEpochs
from goqueue.storage.file import NO_ROOM, Disk, File
from goqueue.storage.flush import Flusher, FlushJob
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.layout import COMPACTION, LOG, LOG_START, SEGMENT_SUFFIXES, segment_path
from goqueue.storage.log_health import LogHealth
from goqueue.storage.log_start import DeleteRecordsJob
from goqueue.storage.log_transactions import LogTransactions
from goqueue.storage.reader import reading
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList
from goqueue.storage.txn_index import IndexCut, cut_files


class Removal(NamedTuple):
    """What a cut takes away, beside the records after the end of the last segment."""

    end: Checkpoint
    removed: tuple[int, ...]  # base offsets of segments
    txn_indexes: tuple[int, ...]  # base offsets of indexes that stay, but may tell of markers that go
    epochs: list[EpochStart] | None  # those that stay; None if all of them do


def carry_out(disk: Disk, directory: str, removal: Removal, cuts: list[IndexCut]) -> None:
    """Step 3, in a job or when a log is opened; doing it twice changes nothing.

    `cuts` is told which indexes have changed, one by one: if the next one finds no room, the job is repeated.
    """
    end = removal.end
    if removal.epochs is not None:
        epochs.store_entries(disk, directory, removal.epochs)
    cuts.extend(cut_files(disk, directory, removal.txn_indexes, end.next_offset))
    for base_offset in sorted(removal.removed, reverse=True):
        for suffix in SEGMENT_SUFFIXES:
            disk.remove(segment_path(directory, base_offset, suffix))
    if end.cut is Cut.ALL:
        disk.remove(f"{directory}/{LOG_START}")
        disk.remove(f"{directory}/{COMPACTION}")
    with suppress(FileNotFoundError):  # recovery reports a segment that is lost
        file = disk.open(segment_path(directory, end.base_offset, LOG), create=end.cut is Cut.ALL)
        if file.size() > end.position:
            file.truncate(end.position)
        file.sync()
        file.close()
    disk.sync_directory(directory)


class TruncateJob(CancellableJob):
    """All four steps."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        checkpoint_file: CheckpointFile,
        removal: Removal,
        *,
        flush: FlushJob | None,
        others: list[CancellableJob],
        compaction: CallOff | None,
        files: list[File],
    ) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self._checkpoint_file = checkpoint_file
        self._flush = flush
        self._others = others
        self._compaction = compaction
        self._files = files
        self.removal = removal
        self.cuts: list[IndexCut] = []

    def _work(self) -> None:
        self.end_others()
        if self._compaction:
            self._compaction.run()
        for file in self._files:
            file.sync()
        self._disk.sync_directory(self._directory)
        self._checkpoint_file.write(self.removal.end, sync=True)
        carry_out(self._disk, self._directory, self.removal, self.cuts)
        self._checkpoint_file.write(self.removal.end.settled, sync=True)

    def end_others(self) -> None:
        """Return once no earlier job writes to the log. Raises the error that one failed with."""
        if self._flush:
            self._flush.cancel()
        for job in self._others:
            try:
                job.cancel()
            except OSError as error:
                if error.errno not in NO_ROOM:  # which is no reason to stop the log
                    raise

    def again(self) -> "TruncateJob":
        """The same job, after it found no room."""
        job = TruncateJob(
            self._disk,
            self._directory,
            self._checkpoint_file,
            self.removal,
            flush=self._flush,
            others=self._others,
            compaction=self._compaction,
            files=self._files,
        )
        job.cuts += self.cuts
        return job


class Truncation:
    """The truncation of one log, while it is under way."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        checkpoint_file: CheckpointFile,
        segments: SegmentList,
        flusher: Flusher,
        compactor: Compactor,
        transactions: LogTransactions,
        leader_epochs: LeaderEpochs,
        health: LogHealth,
        observe: Observer,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoint_file = checkpoint_file
        self._segments = segments
        self._flusher = flusher
        self._compactor = compactor
        self._transactions = transactions
        self._epochs = leader_epochs
        self._health = health
        self._observe = observe
        self._job: TruncateJob | None = None
        self._removed: list[Segment] = []
        self._synced: list[Segment] = []
        self._refusal: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether the job is not done, or waits for room."""
        return self._job is not None

    def check_room(self) -> None:
        """Raise if the job found no room."""
        if self._refusal is not None:
            raise StorageFull(self._directory, self._refusal)

    def retry(self, offset: int, cut: Cut) -> TruncateJob | None:
        """The job that found no room, once more. Raises `Conflict` if another truncation than this one is under way."""
        if self._job is None:
            return None
        if self._refusal is None or (offset, cut) != (self._job.removal.end.next_offset, self._job.removal.end.cut):
            self._health.check_writable()
        self._refusal = None
        return self._job

    def begin(self, end_offset: int) -> TruncateJob:
        """Cut off the records at or after the offset."""
        with reading():
            segment, segment_end = self._segments.place_of(end_offset)
            position = segment.seek(end_offset, end_offset=segment_end).position
            last_timestamp = self._segments.last_timestamp_before(end_offset)
        end = Checkpoint(segment.base_offset, position, end_offset, last_timestamp, Cut.END)
        with self._health.writing():
            self._keep_highest_epoch()
            synced = self._flusher.unsynced_before(segment)
            files = [*(file for one in synced for file in one.files_to_sync()), segment.file]
        self._synced = [*synced, segment]
        self._removed = self._segments.after(segment)
        begins_after = self._epochs.begins_after(end_offset)
        self._epochs.cut(end_offset)
        self._segments.cut(segment, position, end_offset)
        return self._begin(end, files, self._compactor.call_off(end_offset), [], cuts_epochs=begins_after)

    def restart(self, start_offset: int, deletions: list[DeleteRecordsJob]) -> TruncateJob:
        """Drop all records; the log goes on at the offset."""
        with self._health.writing():
            self._keep_highest_epoch()
        self._epochs.cut(0)
        segment = Segment.planned(self._disk, self._directory, start_offset, self._observe)
        self._removed = self._segments.restart(segment)
        end = Checkpoint(start_offset, 0, start_offset, 0, Cut.ALL)
        return self._begin(end, [], self._compactor.restart(), deletions, cuts_epochs=True)

    def _keep_highest_epoch(self) -> None:
        """Before entries are forgotten: logs of early versions have it only there."""
        self._epochs.note(self._epochs.highest)

    def _begin(
        self,
        end: Checkpoint,
        files: list[File],
        compaction: CallOff | None,
        deletions: list[DeleteRecordsJob],
        *,
        cuts_epochs: bool,
    ) -> TruncateJob:
        txn_sync = self._transactions.indexes.running
        indexed = {*self._transactions.indexed, *(write.base_offset for write in (txn_sync.writes if txn_sync else ()))}
        removed = tuple(segment.base_offset for segment in self._removed)
        kept_epochs = [*self._epochs.entries] if cuts_epochs else None
        removal = Removal(end, removed, tuple(sorted(indexed.difference(removed))), kept_epochs)
        self._health.hold()
        self._refusal = None
        self._job = TruncateJob(
            self._disk,
            self._directory,
            self._checkpoint_file,
            removal,
            flush=self._flusher.cut(end),
            others=[*deletions, txn_sync] if txn_sync else [*deletions],
            compaction=compaction,
            files=files,
        )
        return self._job

    def complete(self, job: TruncateJob, error: Exception | None) -> list[Segment]:
        """The job has run; returns the segments that are gone."""
        if job is not self._job:
            return []
        if error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                self._refusal = error.strerror or str(error)
                self._job = job.again()
            else:
                self._health.fail("truncation", error)
            return []
        end, removed, _, _ = job.removal
        self._transactions.cancel_sync()
        active = self._segments.active
        if end.cut is Cut.ALL:
            self._transactions.indexes.clear()
            active.release()  # it may have opened the file that had this name before
        else:
            self._transactions.indexes.was_cut(end.next_offset, removed, job.cuts)
            try:
                active.keep_index_until(active.size)
            except OSError:  # a hint is not worth an error
                active.drop_indexes()
        self._flusher.was_cut(end, self._synced)
        gone, self._removed, self._synced, self._job = self._removed, [], [], None
        self._health.resume()
        return gone

    def abandon(self) -> None:
        """Return once no job touches the disk; opening the log again finds it cut, or as it was."""
        job, self._job = self._job, None
        if job:
            try:
                job.cancel()
            finally:
                job.end_others()
