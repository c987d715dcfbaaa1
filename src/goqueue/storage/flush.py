"""Flushing: what of a log is not on the medium yet, and how it gets there.

Group commit here is the natural kind. A flush of a log starts as soon as there is something to flush
and none is running; what is appended meanwhile waits and becomes the next group. An idle disk answers a lone
writer at once, a busy one gathers as many appends as arrive during one fdatasync, and no timer has
to be right. A lone append thus never waits for company it will not get.
"""

from contextlib import suppress

from goqueue.clock import MS
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.file import Disk, File
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.segment import Segment


def is_due(config: LogConfig, *, unflushed_bytes: int, sealed_count: int, idle_ns: int) -> bool:
    """Whether a flush should start now: the last one began `idle_ns` ago, and none is running."""
    if sealed_count:
        return True
    if not unflushed_bytes or config.flush is Flush.NONE:
        return False
    return config.flush is Flush.GROUP or idle_ns >= config.flush_interval_ms * MS


class FlushJob(CancellableJob):
    """Syncs what had been written when the job was made, then notes it in the checkpoint.

    With `sync_names` the directory is synced too: a new segment counts only when its name is on the medium. No two
    syncs of a log run side by side, so none can miss an error that the other was told.
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
        self._sync_checkpoint = sync_checkpoint
        self.segments = segments
        self.checkpoint = checkpoint
        self.bytes = unflushed_bytes
        self.with_indexes = with_indexes
        self.sync_names = sync_names

    def _work(self) -> None:
        for file in self._files:
            file.sync()
        if self.sync_names:
            self._disk.sync_directory(self._directory)
        self._checkpoint_file.write(self.checkpoint, sync=self._sync_checkpoint)


class Flusher:
    """The account of one log: sealed segments and bytes that wait to be synced, and the job that is at it."""

    def __init__(self, disk: Disk, directory: str, checkpoint_file: CheckpointFile, durable: Checkpoint) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoint_file = checkpoint_file
        self._sealed: list[Segment] = []
        self._unflushed_bytes = 0
        self._names_unsynced = True  # a process that ended before it synced the names may have made them
        self._running: FlushJob | None = None
        self._began_ns = 0
        self.durable = durable

    def note_append(self, size: int) -> None:
        """Bytes were written to the active segment."""
        self._unflushed_bytes += size

    def note_sealed(self, segment: Segment) -> None:
        """The active segment was sealed and another one created."""
        self._sealed.append(segment)
        self._names_unsynced = True

    def forget(self, segments: list[Segment]) -> None:
        """These segments are gone."""
        self._sealed = [segment for segment in self._sealed if segment not in segments]

    @property
    def is_running(self) -> bool:
        """Whether a job is under way."""
        return self._running is not None

    @property
    def has_unflushed(self) -> bool:
        """Whether something was written since the last job began."""
        return bool(self._unflushed_bytes or self._sealed)

    def is_due(self, config: LogConfig, *, now_ns: int) -> bool:
        """Whether it is time to begin a job; if so, one is begun. `now_ns` is monotonic."""
        if self._running or not is_due(
            config,
            unflushed_bytes=self._unflushed_bytes,
            sealed_count=len(self._sealed),
            idle_ns=now_ns - self._began_ns,
        ):
            return False
        self._began_ns = now_ns
        return True

    def begin(self, active: Segment, end: Checkpoint, *, with_indexes: bool = False) -> FlushJob:
        """The job that brings the log up to `end` to the medium.

        The indexes of the active segment are hints and only synced on request.
        """
        self._take_back(active)
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
            sync_checkpoint=with_indexes or self._names_unsynced or bool(self._sealed),
            sync_names=self._names_unsynced,
        )
        self._sealed = []
        self._unflushed_bytes = 0
        self._names_unsynced = False
        return self._running

    def complete(self, job: FlushJob, active: Segment) -> bool:
        """The job has run without an error; whether anything became durable by that."""
        if job is not self._running:
            return False
        self._running = None
        self.durable = job.checkpoint
        for segment in job.segments:
            written_since = segment in self._sealed or (segment is active and self._unflushed_bytes > 0)
            segment.unsynced = written_since
        return True

    def lower(self, active: Segment, remaining: Checkpoint) -> None:
        """Make sure that no checkpoint vouches for anything behind `remaining`: the log is about to be cut there."""
        self._take_back(active)
        self.durable = min(remaining, self.durable, key=lambda point: point.next_offset)
        self._checkpoint_file.write(self.durable, sync=True)
        self._unflushed_bytes = 0
        self._names_unsynced = True

    def abandon(self) -> None:
        """Return once the job that may be under way touches the disk no more; what it was for does not matter."""
        job, self._running = self._running, None
        if job:
            with suppress(OSError):
                job.cancel()

    def _take_back(self, active: Segment) -> None:
        """Cancel the job that is under way; what it was to make durable is open again."""
        job, self._running = self._running, None
        if job:
            job.cancel()
            taken = [segment for segment in job.segments if segment is not active and segment not in self._sealed]
            self._sealed = taken + self._sealed
            self._unflushed_bytes += job.bytes
            self._names_unsynced |= job.sync_names
