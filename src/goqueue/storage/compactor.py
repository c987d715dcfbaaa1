"""The steps of a compaction, as the owner of the log drives them.

The theory is in compaction.py. Three jobs follow each other, each handed out when the one before is completed. Between
the second and the third the copies are put in place. Until then the log can be truncated below the offsets that are
being compacted: the swap is called off first, durably.
"""

from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue import events
from goqueue.clock import MS
from goqueue.storage import compaction
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.jobs import CancellableJob, Job, mark_deleted
from goqueue.storage.layout import CLEANED, LOG, SPARSE_INDEXES
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList

RETRY_MS = 600_000
"""How long to wait after a compaction failed, for lack of room or because of damage."""


class CallOff(NamedTuple):
    """How a compaction is called off: its job is cancelled, and a swap that it may have noted is taken back."""

    disk: Disk
    directory: str
    job: CancellableJob
    state: compaction.CompactionState | None

    def run(self) -> None:
        """Blocks until the job has ended."""
        with suppress(OSError):  # it only wrote copies, which do not matter any more
            self.job.cancel()
        if self.state:
            compaction.store_state(self.disk, self.directory, self.state)


class Compactor:
    """At most one compaction of one log."""

    def __init__(
        self, disk: Disk, directory: str, segments: SegmentList, cleaned_offset: int, observe: events.Observer
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._observe = observe
        self._not_before_ns = 0
        self._running: compaction.CompactJob | compaction.SwapJob | compaction.FinishJob | None = None
        self._called_off = False
        self.cleaned_offset = cleaned_offset

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def begin_if_due(
        self, config: LogConfig, *, to_offset: int, now_ns: int, aborted: BitMap64, markers_below: int
    ) -> compaction.CompactJob | None:
        """The first job, if enough of the sealed segments below `to_offset` is new."""
        resting = (
            now_ns < self._not_before_ns <= now_ns + RETRY_MS * MS
        )  # the upper bound ignores a clock that jumped back
        if not config.compacts or self.is_running or resting:
            return None
        sources = [
            compaction.Source(segment.base_offset, end_offset, segment.size, segment.control_missing)
            for segment, end_offset in self._segments.sealed()
            if end_offset <= to_offset
        ]
        if compaction.dirty_ratio(sources, self.cleaned_offset) < config.dirty_ratio:
            return None
        self._not_before_ns = now_ns + RETRY_MS * MS
        self._called_off = False
        self._running = compaction.CompactJob(
            self._disk,
            self._directory,
            sources,
            config,
            self.cleaned_offset,
            now_ns,
            aborted=aborted,
            markers_below=markers_below,
        )
        return self._running

    def copied(self, job: compaction.CompactJob, error: Exception | None) -> Job | None:
        """The copies are written, or the job failed."""
        if error or self._called_off:
            self._running = None
            job.discard()
            return None
        self._running = compaction.SwapJob(self._disk, self._directory, job, self._gaps())
        return self._running

    def decided(self, job: compaction.SwapJob, *, is_noted: bool) -> Job | None:
        """The swap is durable: put the copies in place, unless it was called off or there was no room to note it."""
        compacted = job.compacted
        if not is_noted or self._called_off:
            self._running = None
            compacted.discard()
            return None
        bytes_before, count_before = self._segments.sealed_bytes, len(self._segments)
        leftovers = self._put_in_place(compacted.replacements)
        self.cleaned_offset = compacted.cleaned_offset
        self._observe(
            events.Compacted(
                log=self._directory,
                bytes_before=bytes_before,
                bytes_after=self._segments.sealed_bytes,
                segments_before=count_before,
                segments_after=len(self._segments),
            )
        )
        self._running = compaction.FinishJob(self._disk, self._directory, self.cleaned_offset, self._gaps(), leftovers)
        return self._running

    def finished(self) -> None:
        """The last step is done; the next compaction may begin at once."""
        self._running = None
        self._not_before_ns = 0

    def call_off(self, end_offset: int) -> "CallOff | None":
        """What remains to be done so that no step, now or after a crash, touches records at or after `end_offset`.

        None if that is so already. Otherwise the steps that follow are given up from here on.
        """
        state: compaction.CompactionState | None = None
        match self._running:
            case compaction.CompactJob() as job if end_offset < job.end_offset:
                pass
            case compaction.SwapJob() as job if end_offset < job.compacted.end_offset:
                state = compaction.CompactionState(self.cleaned_offset, gaps=self._gaps())
            case _:
                return None
        self._called_off = True
        return CallOff(self._disk, self._directory, job, state)

    def restart(self) -> "CallOff | None":
        """The log is about to lose all its records; returns how to end the job that is under way."""
        job = self._running
        self._called_off = True
        self.cleaned_offset = 0
        return CallOff(self._disk, self._directory, job, None) if job else None

    def abandon(self) -> None:
        """Return once no job touches the disk: the log is about to be deleted."""
        job, self._running = self._running, None
        if job:
            with suppress(OSError):
                job.cancel()

    def _gaps(self) -> dict[int, compaction.Gaps]:
        """The gaps of all sealed segments, by base offset."""
        return {
            segment.base_offset: compaction.Gaps(segment.missing, segment.control_missing)
            for segment, _ in self._segments.sealed()
            if segment.missing
        }

    def _put_in_place(self, replacements: list[compaction.Replacement]) -> list[str]:
        """Replace the sources by their copies; returns the paths that are left to be removed."""
        copies: dict[int, Segment] = {}
        renamed: set[Segment] = set()
        for replacement in replacements:
            copy = Segment(self._disk, self._directory, replacement.base_offset, replacement.size, self._observe)
            copy.missing, copy.control_missing = replacement.gaps
            copies.update(dict.fromkeys(replacement.sources, copy))
        try:
            for copy in dict.fromkeys(copies.values()):
                self._disk.rename(copy.path(LOG) + CLEANED, copy.path(LOG))
                renamed.add(copy)
        finally:  # an index may be missing, but the list must name the files that are in place now
            taken = self._segments.replace({base: copy for base, copy in copies.items() if copy in renamed})
        for copy in renamed:
            for suffix in SPARSE_INDEXES:
                self._disk.rename(copy.path(suffix) + CLEANED, copy.path(suffix))
        replaced = [segment for segment in taken if segment.base_offset != copies[segment.base_offset].base_offset]
        return [path for segment in replaced for path in mark_deleted(self._disk, segment)]
