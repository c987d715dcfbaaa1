"""The follower of one partition: it copies both logs of the leader, and keeps what it would need to lead.

    fetch ──> leader ──> take ──> cut off what diverges
                             ──> append, flush ──> the next fetch reports what is durable
                             ──> the high watermark rises to what the leader has committed

A follower belongs to one epoch. Before it asks for anything, that epoch is on the disk (`Replica.become_follower`): an
earlier leader that is still running can then never get another record confirmed by this replica.

The ledger follows the log. Facts in the ledger speak of records that are committed, so a follower takes them only when
its log has everything that the leader has committed, durably and with the index of aborted records. So in every replica
the ledger speaks only of records that are there, after a crash as well. An in-sync follower is never held up by this:
what it has not made durable is not committed.

What a leader needs, and would take long to find, is fed as records arrive: the indexes of storage, the transactions,
the sequences of producers once the log has caught up, whether there are delayed messages. What belongs to groups (their
cursors, the index of lanes) is not kept; a leader reads it from the ledger, as after a restart. The file of delayed
messages is kept as it was when this replica led last, and a leader reads the log from there on. After a truncation of
either log, and after a restart, it may name records and cancellations that no other replica has. So it is removed then,
and the next leader here searches the whole log.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from goqueue.broker.partition.commit_gate import FollowedGate
from goqueue.broker.partition.delay_search import DelaySearch
from goqueue.broker.partition.fetching import (
    Fetch,
    FetchAnswer,
    LogAnswer,
    LogPosition,
    Records,
    Restart,
    Truncate,
    is_about,
    last_epoch,
    to_do,
)
from goqueue.broker.partition.log_jobs import Flushable, LogJobs
from goqueue.broker.partition.producer_state import ProducerState
from goqueue.clock import Clock
from goqueue.errors import Conflict, GoQueueError, StorageError
from goqueue.record import kernel
from goqueue.record.headers import DELIVER_AT
from goqueue.storage.compaction import CompactJob
from goqueue.storage.config import Flush
from goqueue.storage.log import Log
from goqueue.topics.partition import Partition

_DELIVER_AT = DELIVER_AT.encode()


class _Followed(NamedTuple):
    """One log of the partition."""

    log: Log
    gate: FollowedGate


class PartitionFollower:
    """A partition that follows the leader of one epoch. Made by `Replica.become_follower`."""

    __slots__ = (
        "_clock",
        "_cuts",
        "_has_appended",
        "_jobs",
        "_ledger",
        "_log",
        "_log_starts",
        "_partition",
        "_producers",
        "_search",
        "_unflushed",
        "ended",
        "epoch",
        "moved",
    )

    def __init__(
        self,
        partition: Partition,
        *,
        epoch: int,
        gate: FollowedGate,
        ledger_gate: FollowedGate,
        jobs: LogJobs,
        producers: ProducerState,
        search: DelaySearch,
        clock: Clock,
        unflushed: set[Flushable],
    ) -> None:
        self.epoch = epoch
        self.ended: GoQueueError | None = None
        self.moved: Callable[[], None] = _do_nothing  # called when it may have something else to ask for
        self._partition = partition
        self._log = _Followed(partition.log, gate)
        self._ledger = _Followed(partition.ledger, ledger_gate)
        self._jobs = jobs
        self._producers = producers
        self._search = search
        self._clock = clock
        self._unflushed = unflushed
        self._has_appended = False
        self._cuts: dict[Log, Truncate | Restart] = {}  # in this order; the first is under way, or waits for room
        self._log_starts: dict[Log, int] = {}  # what the leader has deleted
        for log, _ in (self._ledger, self._log):
            if log.epochs.begins_after(log.next_offset):  # an epoch in which this replica led, and wrote nothing
                self._cuts[log] = Truncate(log.next_offset)
        self._begin_cuts()

    # --- following -----------------------------------------------------------------------------

    @property
    def is_cutting(self) -> bool:
        """Whether a truncation is not on the disk yet: until then, nothing is fetched and no other role is taken."""
        return bool(self._cuts)

    def fetch(self) -> Fetch:
        """What to ask the leader for."""
        assert not self.is_cutting
        return Fetch(self.epoch, self._position(self._log), self._position(self._ledger))

    def take(self, answer: FetchAnswer) -> None:
        """Do what the leader has answered. An answer of another epoch, or to an older question, changes nothing.

        Raises `StorageError` or `DirectoryUnusable` if it cannot be stored, and `InvalidBatch` or `Conflict` if it
        cannot be right.
        """
        if self.ended is not None or self.is_cutting or answer.epoch != self.epoch:
            return
        if answer.log is None or answer.ledger is None:
            return
        self._take(self._log, answer.log)
        if not self._cuts and self._durable(self._log.log) >= answer.ledger_speaks_below:
            self._take(self._ledger, answer.ledger)
            self._load_producers(answer.ledger)
        self.flush()

    def end(self, error: GoQueueError) -> None:
        """It no longer follows this leader."""
        self.ended = error
        self._unflushed.discard(self)

    def _position(self, followed: _Followed) -> LogPosition:
        log, gate = followed
        epoch = last_epoch(log.epochs, start=log.start_offset, end=log.next_offset)
        return LogPosition(log.next_offset, epoch, self._durable(log), gate.offset)

    def _durable(self, log: Log) -> int:
        """What counts as durable, by the flush mode. With `group` that includes the index of aborted records."""
        if log.config.flush is Flush.GROUP:
            return min(log.durable_offset, log.transactions.synced_offset)
        return log.ackable_offset

    def _take(self, followed: _Followed, answer: LogAnswer) -> None:
        log, gate = followed
        start, end = log.start_offset, log.next_offset
        if not is_about(answer, log.epochs, start=start, end=end):
            return
        match to_do(answer, log.epochs, start=start, end=end):
            case (Truncate() | Restart()) as cut:
                self._cut(followed, cut)
            case found:
                if found is not None:
                    self._append(log, found)
                gate.told(answer.high_watermark, log.next_offset)
                self._log_starts[log] = max(answer.log_start, self._log_starts.get(log, 0))

    def _append(self, log: Log, found: Records) -> None:
        if found.epoch > max(log.epochs.latest, 0):
            log.copy_epoch(found.epoch, found.epoch_start)
        records = memoryview(found.records)
        is_log = log is self._log.log
        has_delayed = is_log and _DELIVER_AT in bytes(records) and bool(kernel.outline(records).delayed)
        if has_delayed:  # before they are durable: after a crash the log says that it has to be searched for them
            log.mark_delayed()
        appended = log.append_stored(records, end_offset=found.next_offset if found.has_gaps else None)
        self._unflushed.add(self)
        if is_log:
            self._has_appended = True
            self._producers.appended(records, appended.flags)
            self._search.appended(log.next_offset, has_delayed=has_delayed)

    def _load_producers(self, answer: LogAnswer) -> None:
        """Load the sequences once both logs have all that they are made of; from then on they are fed."""
        has_ledger = not self._cuts and self._ledger.log.next_offset >= answer.high_watermark
        if has_ledger and self._has_appended and not self._producers.is_loaded:
            self._producers.load()

    # --- truncation ----------------------------------------------------------------------------

    def _cut(self, followed: _Followed, cut: Truncate | Restart) -> None:
        log, gate = followed
        if isinstance(cut, Truncate) and cut.end_offset < gate.offset:
            reason = f"below the high watermark {gate.offset}: the leader of epoch {self.epoch} has lost records"
            raise Conflict(f"{log.directory} is not truncated at offset {cut.end_offset}, {reason}")
        self._search.discard_file()
        if isinstance(cut, Restart) and log is self._log.log:  # first the ledger, which speaks of records that go
            self._cuts[self._ledger.log] = Restart(0)
        self._cuts[log] = cut
        self._begin_cuts()

    def _begin_cuts(self) -> None:
        """Begin the next cut; one after the other, so that after a crash the second is done only if the first is."""
        while self._cuts:
            log, cut = next(iter(self._cuts.items()))
            job = log.begin_truncate(cut[0]) if isinstance(cut, Truncate) else log.begin_restart(cut[0])
            if job is not None:
                self._jobs.run(log, job, partial(self._was_cut, log))
                return
            self._forget(log)
        self.flush()
        self.moved()

    def _was_cut(self, log: Log) -> None:
        if log.is_closed or log.failure:
            self._cuts.clear()
        elif not log.is_truncating:  # otherwise it waits for room, and `maintain` tries again
            self._forget(log)
            self._begin_cuts()

    def _forget(self, log: Log) -> None:
        """The log is cut: forget what was derived from the records that are gone."""
        offset = self._cuts.pop(log)[0]
        if log is self._log.log:
            self._producers.truncated(offset)
            self._search.truncated(offset)

    # --- the disk ------------------------------------------------------------------------------

    @property
    def may_be_due(self) -> bool:
        """Whether time alone can make a flush due."""
        return self.ended is None and any(
            log.durable_offset != log.next_offset and not log.failure and log.config.flush is not Flush.NONE
            for log in self._partition.open_logs
        )

    def flush(self, *, lazily: bool = False) -> None:
        """Start the flushes that are due: those of a follower wait for nothing, so `lazily` makes no difference."""
        if self.ended is not None:
            return
        for log in self._partition.open_logs:
            with suppress(StorageError):  # the log says that it has failed
                for job in (log.begin_flush(monotonic_ns=self._clock.monotonic_ns()), log.transactions.begin_sync()):
                    if job:
                        self._jobs.run(log, job, self._flushed)

    def _flushed(self) -> None:
        self.flush()
        self.moved()  # the leader waits to hear what is durable

    def maintain(self, *, may_compact: bool, compacted: Callable[[], None]) -> bool:
        """Delete what the leader has deleted, and compact; returns whether a compaction was started."""
        if self.is_cutting:
            for log, _ in (self._log, self._ledger):
                log.look_for_room()
            if not self._jobs.running:
                self._begin_cuts()
            return False
        now_ns = self._clock.wall_ns()
        began = False
        for log, gate in (self._log, self._ledger):
            log.look_for_room()
            with suppress(StorageError):  # a full or failing disk; the log reports an error that stops it
                log.roll_if_old(now_ns=now_ns)
                self._delete(log, min(self._log_starts.get(log, 0), gate.offset), now_ns)
                job = self._compaction(log, gate.offset, now_ns) if may_compact and not began else None
                if job:
                    began = True
                    self._jobs.run(log, job, compacted)
        self.flush()
        self._producers.maintain(start_offset=self._log.log.start_offset, now_ns=now_ns)
        return began

    def _delete(self, log: Log, offset: int, now_ns: int) -> None:
        """Delete the records below the offset: retention is the leader's decision."""
        if offset <= log.start_offset:
            return
        expired = log.expire(now_ns=now_ns, keep_from=log.start_offset, deleted_below=offset)
        if expired:
            self._jobs.run(log, expired, _do_nothing)
        deleted = log.begin_delete_records(offset)
        if deleted:
            self._jobs.run(log, deleted, _do_nothing)

    def _compaction(self, log: Log, committed: int, now_ns: int) -> CompactJob | None:
        transactions = self._producers.transactions
        if log is not self._log.log or transactions is None:
            return log.begin_compaction(now_ns=now_ns, to_offset=committed)
        return log.begin_compaction(
            now_ns=now_ns,
            to_offset=committed,
            aborted=transactions.aborted,
            stable_offset=self._producers.stable_below(committed),
            markers_below=self._producers.markers_known_to,
        )


def _do_nothing() -> None:
    """Its result takes effect in the log."""
