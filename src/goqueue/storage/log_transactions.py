"""The transactions in one log, as far as storage knows them: whether there are any, and which records were aborted.

A log that ever held a transactional record says so for good, in the file `transactions`. Readers of such a log have to
know which offsets were aborted; the indexes beside the segments hold them (`txn_index.py`).
"""

from collections.abc import Set

from goqueue.storage import small_file
from goqueue.storage.compactor import Compactor
from goqueue.storage.file import NO_ROOM, Disk
from goqueue.storage.flush import Flusher
from goqueue.storage.layout import TRANSACTIONS
from goqueue.storage.log_health import LogHealth
from goqueue.storage.reader import reading
from goqueue.storage.segment_list import SegmentList
from goqueue.storage.txn_index import Aborted, AbortedRange, TxnIndexes, TxnSyncJob

_KIND = b"GQTR"


class LogTransactions:
    """The aborted records of one log. Belongs to the owner of the log."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: SegmentList,
        flusher: Flusher,
        compactor: Compactor,
        indexes: TxnIndexes,
        health: LogHealth,
        *,
        has_any: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._flusher = flusher
        self._compactor = compactor
        self._health = health
        self.indexes = indexes
        self.has_any = has_any  # whether the log holds, or ever held, transactional records

    def mark(self) -> None:
        """Note durably that there are transactions in this log; cheap if that is known."""
        if self.has_any:
            return
        self._health.check_writable()
        with self._health.writing():
            small_file.replace(self._disk, self._directory, TRANSACTIONS, _KIND, b"")
        self.has_any = True

    def note_aborted(self, first_offset: int, end_offset: int, marker_offset: int) -> None:
        """The marker aborted the records in [first_offset, end_offset); durable after `begin_sync` and its job.

        Records that retention or compaction has removed are skipped, and so are those that were noted before.
        """
        self._health.check_open()
        cleaned_offset = self._compactor.cleaned_offset
        assert end_offset <= marker_offset < self._segments.next_offset
        first_offset = max(first_offset, self._segments.start_offset, cleaned_offset)
        entries: list[AbortedRange] = []
        while first_offset < end_offset:
            segment, segment_end = self._segments.place_of(first_offset)
            end = min(end_offset, segment_end)
            entries.append(AbortedRange(segment.base_offset, first_offset, end, marker_offset))
            first_offset = end
        with reading():
            self.indexes.note(entries, cleaned_offset=cleaned_offset)

    def aborted(self) -> Aborted:
        """The offsets of aborted records, and from where on damaged indexes do not name all of them."""
        self._health.check_open()
        with reading():
            return self.indexes.aborted(cleaned_offset=self._compactor.cleaned_offset)

    def mend(self) -> None:
        """Let damaged indexes be replaced: all aborts from `Aborted.replay_from` on have been noted again."""
        self.indexes.mend()

    @property
    def indexed(self) -> Set[int]:
        """The base offsets of the segments that have an index of aborted records."""
        return self.indexes.base_offsets

    @property
    def synced_offset(self) -> int:
        """The aborts of all markers below it are in an index on the disk; never above the end of the log."""
        unsynced_from = self.indexes.unsynced_from
        return self._segments.next_offset if unsynced_from is None else unsynced_from

    def begin_sync(self) -> TxnSyncJob | None:
        """A job that makes durable the noted aborts whose markers are durable; None if there is nothing to do."""
        if self._health.is_blocked:
            return None
        return self.indexes.begin(durable_offset=self._flusher.durable.next_offset)

    def sync(self) -> None:
        """Do the same in place. Raises `StorageFull` if there is no room."""
        self._health.check_writable()
        self.cancel_sync()
        job = self.begin_sync()
        if job:
            is_done = False
            try:
                with self._health.writing():
                    job.run()
                is_done = True
            finally:
                self.indexes.complete(job, is_done=is_done)

    def cancel_sync(self) -> None:
        """Return once no job touches the indexes; what it had not written waits for the next one."""
        try:
            self.indexes.cancel()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._health.fail("sync", error) from error
