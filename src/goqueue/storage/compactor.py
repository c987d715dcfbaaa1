"""The steps of a compaction, from the side of the log that it happens to.

The theory is in compaction.py. Here is who does what when: the three jobs follow each other, each handed out
when the one before is completed, and between the second and the third the copies take their places. A
log that was cut while copies were made throws them away.
"""

from goqueue import events
from goqueue.clock import MS
from goqueue.storage import compaction
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.jobs import Job, mark_deleted
from goqueue.storage.layout import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList

RETRY_MS = 600_000
"""How long a compaction that failed, for want of room or because of damage, is not tried again."""


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
        self._generation = 0
        self.cleaned_offset = cleaned_offset
        self.is_running = False

    def begin_if_due(self, config: LogConfig, *, to_offset: int, now_ns: int) -> compaction.CompactJob | None:
        """The first job, if enough of the sealed segments below `to_offset` is new."""
        if not config.compacts or self.is_running or now_ns < self._not_before_ns:
            return None
        sources = [
            compaction.Source(segment.base_offset, end_offset, segment.size)
            for segment, end_offset in self._segments.sealed()
            if end_offset <= to_offset
        ]
        if compaction.dirty_ratio(sources, self.cleaned_offset) < config.dirty_ratio:
            return None
        self.is_running = True
        self._generation = self._segments.generation
        self._not_before_ns = now_ns + RETRY_MS * MS
        return compaction.CompactJob(self._disk, self._directory, sources, config, self.cleaned_offset, now_ns)

    def copied(self, job: compaction.CompactJob, error: Exception | None) -> Job | None:
        """The copies are there, or could not be made."""
        if error or self._was_cut():
            self.is_running = False
            job.discard()
            return None
        return compaction.SwapJob(self._disk, self._directory, job)

    def decided(self, job: compaction.SwapJob) -> Job | None:
        """The swap is going to happen, so let it happen."""
        compacted = job.compacted
        if self._was_cut():
            compaction.store_state(self._disk, self._directory, compaction.State(self.cleaned_offset))
            self.is_running = False
            compacted.discard()
            return None
        bytes_before, count_before = self._segments.sealed_bytes, len(self._segments)
        leftovers: list[str] = []
        for replacement in compacted.replacements:
            leftovers += self._put_in_place(replacement)
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
        return compaction.FinishJob(self._disk, self._directory, self.cleaned_offset, leftovers)

    def finished(self) -> None:
        """Nothing is under way any more, and nothing failed."""
        self.is_running = False
        self._not_before_ns = 0

    def _was_cut(self) -> bool:
        return self._segments.generation != self._generation

    def _put_in_place(self, replacement: compaction.Replacement) -> list[str]:
        """Let one copy take the place of its sources; the paths of what is left to be removed."""
        copy = Segment(self._disk, self._directory, replacement.base_offset, replacement.size, self._observe)
        self._disk.rename(copy.path(LOG) + CLEANED, copy.path(LOG))
        taken = self._segments.replace(replacement.sources, copy)  # at once: an index may lag, a segment may not
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            self._disk.rename(copy.path(suffix) + CLEANED, copy.path(suffix))
        return [path for segment in taken[1:] for path in mark_deleted(self._disk, segment)]
