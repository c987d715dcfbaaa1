"""Flushing: which bytes of a log are not on the disk yet, and how they get there.

Group commit needs no timer here. A flush starts as soon as there is something to flush and none is running; appends
that arrive meanwhile become the next group. On an idle disk a single writer waits for one fdatasync; on a busy one a
group holds as many appends as arrive during one fdatasync. An append never waits for others to join its group.
"""

from contextlib import suppress

from goqueue.clock import MS
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.file import Disk, File
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.segment import Segment


def is_due(config: LogConfig, *, unflushed_bytes: int, must_note: bool, idle_ns: int) -> bool:
    """Whether a flush should start now: the last one started `idle_ns` ago, and none is running.

    `must_note` says that only a checkpoint can tell where the log ends: a segment was sealed, or the end is in a gap.
    """
    if must_note:
        return True
    if not unflushed_bytes or config.flush is Flush.NONE:
        return False
    return config.flush is Flush.GROUP or idle_ns >= config.flush_interval_ms * MS


class FlushJob(CancellableJob):
    """Syncs all that was written when the job was made, then writes the checkpoint.

    With `sync_names` the directory is synced, too: a new segment counts only when its name is on the disk. Two syncs of
    a log never run at the same time: the kernel reports a writeback error to one of them only.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        files: list[File],
        checkpoint: Checkpoint,
        checkpoint_file: CheckpointFile,
        *,
        unflushed_bytes: int,
        with_indexes: bool,
        sync_checkpoint: bool,
        sync_names: bool,
    ) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self._files = files
        self._checkpoint_file = checkpoint_file
        self.segments = segments
        self.checkpoint = checkpoint
        self.bytes = unflushed_bytes
        self.with_indexes = with_indexes
        self.sync_checkpoint = sync_checkpoint
        self.sync_names = sync_names

    def _work(self) -> None:
        for file in self._files:
            file.sync()
        if self.sync_names:
            self._disk.sync_directory(self._directory)
        self._checkpoint_file.write(self.checkpoint, sync=self.sync_checkpoint)


class Flusher:
    """Sealed segments and bytes of one log that wait to be synced, and the job that is running."""

    def __init__(self, disk: Disk, directory: str, checkpoint_file: CheckpointFile, durable: Checkpoint) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoint_file = checkpoint_file
        self._sealed: list[Segment] = []
        self._unflushed_bytes = 0
        self._names_unsynced = True  # an earlier process may have ended before it synced them
        self._ends_in_gap = False  # the last records were appended with a gap after them
        self._running: FlushJob | None = None
        self._began_ns = 0
        self.durable = durable

    def note_append(self, size: int) -> None:
        """Count bytes that were written to the active segment."""
        self._unflushed_bytes += size

    def note_sealed(self, segment: Segment) -> None:
        """The segment was sealed and another one created: both names and its bytes have to be synced."""
        self._sealed.append(segment)
        self._names_unsynced = True

    def note_gap(self) -> None:
        """The log ends in a gap, which no record tells: the next checkpoint has to be synced."""
        self._ends_in_gap = True

    def forget(self, segments: list[Segment]) -> None:
        """These segments were removed from the log."""
        self._sealed = [segment for segment in self._sealed if segment not in segments]

    @property
    def is_running(self) -> bool:
        """Whether a job is running or waits for a thread."""
        return self._running is not None

    @property
    def has_unflushed(self) -> bool:
        """Whether something was written since the last job began."""
        return bool(self._unflushed_bytes or self._sealed or self._ends_in_gap)

    def is_due(self, config: LogConfig, *, now_ns: int) -> bool:
        """Whether a job should begin now; if so, the caller has to begin it. `now_ns` is monotonic."""
        if self._running or not is_due(
            config,
            unflushed_bytes=self._unflushed_bytes,
            must_note=bool(self._sealed) or self._ends_in_gap,
            idle_ns=now_ns - self._began_ns,
        ):
            return False
        self._began_ns = now_ns
        return True

    def begin(self, active: Segment, end: Checkpoint, *, with_indexes: bool = False) -> FlushJob:
        """A job that makes the log durable up to `end`.

        The indexes of the active segment are hints, and are only synced with `with_indexes`.
        """
        self._cancel(active)
        files = [file for segment in self._sealed for file in segment.files_to_sync()]
        files += active.files_to_sync() if with_indexes else [active.file]
        self._running = FlushJob(
            self._disk,
            self._directory,
            [*self._sealed, active],
            files,
            end,
            self._checkpoint_file,
            unflushed_bytes=self._unflushed_bytes,
            with_indexes=with_indexes,
            sync_checkpoint=with_indexes or self._names_unsynced or bool(self._sealed) or self._ends_in_gap,
            sync_names=self._names_unsynced,
        )
        self._sealed = []
        self._unflushed_bytes = 0
        self._names_unsynced = False
        self._ends_in_gap = False
        return self._running

    def complete(self, job: FlushJob, active: Segment) -> bool:
        """The job has run without an error; false if it was replaced by another one meanwhile."""
        if job is not self._running:
            return False
        self._running = None
        self.durable = job.checkpoint
        for segment in job.segments:
            written_since = segment in self._sealed or (segment is active and self._unflushed_bytes > 0)
            segment.unsynced = written_since
        return True

    def unsynced_before(self, segment: Segment) -> list[Segment]:
        """The segments before this one that a truncation has to sync, because no flush did."""
        running = self._running.segments if self._running else []
        return [one for one in dict.fromkeys((*running, *self._sealed)) if one.base_offset < segment.base_offset]

    def cut(self, end: Checkpoint) -> FlushJob | None:
        """The log is about to end at `end`. Returns the job that is under way, which does not count any more.

        The caller cancels it, syncs what is left, and writes the checkpoints.
        """
        job, self._running = self._running, None
        self.durable = min(end.settled, self.durable, key=lambda point: point.next_offset)
        self._sealed = []
        self._unflushed_bytes = 0
        self._ends_in_gap = False
        return job

    def was_cut(self, end: Checkpoint, synced: list[Segment]) -> None:
        """The log ends at `end`, durably; these segments were synced."""
        for segment in synced:
            segment.unsynced = False
        self.durable = end.settled
        self._names_unsynced = False

    def abandon(self) -> None:
        """Return once no job touches the disk: the log is about to be deleted."""
        job, self._running = self._running, None
        if job:
            with suppress(OSError):
                job.cancel()

    def _cancel(self, active: Segment) -> None:
        """Cancel the job that is under way; what it should have synced is unsynced again."""
        job, self._running = self._running, None
        if job:
            job.cancel()
            taken = [segment for segment in job.segments if segment is not active and segment not in self._sealed]
            self._sealed = taken + self._sealed
            self._unflushed_bytes += job.bytes
            self._names_unsynced |= job.sync_names
            self._ends_in_gap |= job.sync_checkpoint  # it may have been the reason
