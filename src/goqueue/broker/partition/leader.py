"""The leader of one partition: its log, the acks that wait for its disk, and the readers that wait for records.

    append ──> log ──> begin_flush ──> a worker ──> complete ──> acks are released, watchers are woken

Acks are released in the order of offsets, up to the commit gate (`commit_gate.py`): at once or after fdatasync, by the
flush mode. Readers see only records below the gate: with `flush=group` no reader ever sees a record that a power cut
can still remove.

A leader leads in one epoch, and ends: when the node resigns, or the topic is deleted. From then on `ended` says why.
Everything that waits fails with that error, nothing is written any more, and its holders have to look up
the partition again. What outlives it (the logs and their jobs, the state of producers) belongs to the `Replica`.

`producer_state.py` has the state of producers and transactions. A read-committed reader stops at the last stable
offset, the first record of an open transaction. It moves when the outcome of the transaction is decided.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.partition.acks import AckQueue
from goqueue.broker.partition.commit_gate import CommitGate, LocalGate
from goqueue.broker.partition.delay_search import DelaySearch
from goqueue.broker.partition.ledger import Fact, PartitionLedger, must_begin
from goqueue.broker.partition.log_jobs import Flushable, LogJobs
from goqueue.broker.partition.producer_state import ProducerState
from goqueue.broker.partition.unreadable import UnreadableFacts
from goqueue.clock import SECOND, Clock
from goqueue.delivery.offsets import span
from goqueue.errors import (
    GoQueueError,
    InvalidBatch,
    MessageTooLarge,
    NotEnoughReplicas,
    StorageError,
    StorageFailed,
)
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import FLAGS_FROM_PRODUCERS, HEADER, HEADER_BYTES, Buffer, Flags, RecordFault, first_record
from goqueue.record.identity import BatchIdentity
from goqueue.service.pending import Pending
from goqueue.storage.compaction import CompactJob
from goqueue.storage.config import Flush
from goqueue.storage.jobs import Job
from goqueue.storage.log import Appended, Log
from goqueue.storage.reader import Chunk, LogReader
from goqueue.topics.partition import Partition
from goqueue.transactions.markers import MARKER_FLAGS, TRANSACTIONAL_FLAGS, check_later, marker

READERS_MAX = 16
"""The most readers that are kept for requests that continue where an earlier one stopped."""
RECENT_MAX = 16
RECENT_BYTES_MAX = 4 * 1024
"""Batches up to this size are kept in memory for followers: a disk read for each of many small ones would be slow."""
SNAPSHOT_INTERVAL_NS = 10 * SECOND

_HAS_HEADERS = int(Flags.HAS_HEADERS)  # a plain number: an IntFlag takes a microsecond for each operation

T = TypeVar("T")


class Following(Protocol):
    """The delivery from a partition to groups, which follows its log."""

    def appended(self, records: Buffer, appended: Appended) -> None:
        """A batch was stored."""

    def compacted(self) -> None:
        """The log was compacted: some messages are gone."""

    def drop_below(self, offset: int) -> None:
        """Retention has removed the records below the offset."""

    @property
    def keep_from(self) -> int | None:
        """Retention has to keep this offset and all after it."""

    def hidden(self, start: int, end: int) -> BitMap64:
        """The hidden offsets in that range: not due yet, or cancelled."""

    @property
    def cancelled(self) -> BitMap64:
        """Delayed messages that will never be due."""

    @property
    def rescheduled(self) -> Mapping[int, int]:
        """The new due times of rescheduled messages, by offset."""

    def aborted(self, offsets: BitMap64) -> None:
        """The transaction of these was aborted."""

    def find_delays(self) -> None:
        """Search the whole log for delayed messages."""


class Recent(NamedTuple):
    """A recently appended batch."""

    first_offset: int
    next_offset: int
    records: bytes
    flags: int


class PartitionLeader:
    """A partition in one epoch of this node's leadership, with its waiters. Made by `Replica.become_leader`."""

    # More than 40 methods: appends, flushes, outcomes of transactions, retention and reads all move the same offsets
    # (durable, visible, stable) and have to wake the same waiters in one step. What could be separated has a class of
    # its own: `AckQueue`, `PartitionLedger`, `ProducerState`, `UnreadableFacts`. Nine of the methods are properties.

    # There are thousands of these. Above 30 attributes an instance no longer shares the keys of its dict with others,
    # which costs 1.5 KB each.
    __slots__ = (
        "_acks",
        "_clock",
        "_gate",
        "_has_rolled",
        "_jobs",
        "_ledger",
        "_ledger_gate",
        "_must_begin",
        "_persisted_end",
        "_readers",
        "_recent",
        "_snapshot_end",
        "_snapshot_ns",
        "_snapshots",
        "_stable_end",
        "_unflushed",
        "_visible_end",
        "_wanted_offset",
        "_watchers",
        "begin_delivery",
        "delivery",
        "ended",
        "epoch",
        "followed_acks",
        "log",
        "needs_room",
        "news",
        "observe",
        "origin",
        "partition",
        "producers",
        "search",
        "unreadable",
    )

    def __init__(
        self,
        partition: Partition,
        origin: TopicPartition,
        *,
        epoch: int,
        gate: CommitGate,
        ledger_gate: Callable[[Log], CommitGate],
        jobs: LogJobs,
        producers: ProducerState,
        search: DelaySearch,
        unreadable: UnreadableFacts,
        clock: Clock,
        unflushed: set[Flushable],
        observe: events.Observer,
    ) -> None:
        self.partition = partition
        self.origin = origin
        self.log = partition.log
        self.epoch = epoch
        self.ended: GoQueueError | None = None  # why it no longer leads
        self.observe = observe
        self.producers = producers
        self.search = search
        self.unreadable = unreadable
        self._clock = clock
        self._gate = gate
        self._ledger_gate = ledger_gate
        self._jobs = jobs
        self._must_begin = must_begin(self.log, epoch)
        self._wanted_offset = 0  # an ack waits until all records below it are durable
        self._unflushed = unflushed  # shared with housekeeping, which flushes its members
        self._acks = AckQueue(self.log, gate)
        self.followed_acks = None if isinstance(gate, LocalGate) else AckQueue(self.log)  # those for `acks=leader`
        self._ledger: PartitionLedger | None = None
        self.news: Callable[[], None] | None = None  # see `tell_followers`
        self.delivery: Following | None = None
        self.begin_delivery: Callable[[], Following]  # set by the broker; sets `delivery`
        self._watchers: dict[object, Callable[[], None]] = {}
        self._visible_end = self._persisted_end = gate.offset
        self._readers: OrderedDict[int, LogReader] = OrderedDict()
        self._recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self._snapshots: list[Fact] = []  # of the producers, until all that they cover is committed
        self._snapshot_end = 0
        self._snapshot_ns = clock.monotonic_ns()
        self._stable_end = producers.stable_below(self._visible_end)
        self.needs_room = False  # the disk is full, and a change of retention has to make room
        self._has_rolled = False  # housekeeping sealed a segment, which may expire once that is durable

    @property
    def high_watermark(self) -> int:
        """Records below it are committed and visible; it never decreases."""
        return self._gate.offset

    @property
    def last_stable_offset(self) -> int:
        """Records below it belong to no open transaction."""
        return self.producers.stable_below(self._gate.offset)

    @property
    def message_count(self) -> int:
        """The number of messages in the log, those of open and aborted transactions included."""
        return self.producers.message_count

    @property
    def aborted(self) -> BitMap64 | None:
        """The aborted records, which read-committed readers do not see; None if the log never had a transaction."""
        return self.producers.transactions.aborted if self.producers.transactions is not None else None

    @property
    def is_clean(self) -> bool:
        """Whether all records are durable and no job is running."""
        is_written = self.log.durable_offset == self.log.next_offset
        return not self._jobs.running and is_written and (self._ledger is None or self._ledger.is_clean)

    @property
    def may_be_due(self) -> bool:
        """Whether time alone can make a flush due."""
        if self.ended is not None or self.log.failure or self.log.config.flush is Flush.NONE:
            return False
        return not self.is_clean

    @property
    def _has_news(self) -> bool:
        """Whether a snapshot of producers would have new facts, all of which the log has, too."""
        return self.producers.has_news and not self.producers.owed

    @property
    def has_owed_markers(self) -> bool:
        """Whether a transaction is decided whose marker is not in the log yet."""
        return bool(self.producers.owed)

    @property
    def waiting_count(self) -> int:
        """The number of publishes that wait for the disk."""
        return len(self._acks)

    # --- writing -------------------------------------------------------------------------------

    def append(
        self,
        records: bytearray | memoryview,
        identity: BatchIdentity | None = None,
        *,
        copied_from: events.CopyOrigin | None = None,
        lazily: bool = False,
    ) -> Appended:
        """Write a batch; all of it or, if an error is raised, nothing. Its producer was checked.

        With `lazily` it is flushed with later batches, or at the next check of housekeeping.
        """
        if self.ended is not None:
            raise self.ended
        if self._must_begin:
            self._begin_epoch()
        allowed = TRANSACTIONAL_FLAGS if identity and identity.transaction else FLAGS_FROM_PRODUCERS
        count = identity.record_count if identity else None
        received_ns = self._clock.wall_ns()
        try:
            appended = self.log.append(
                records,
                now_ns=received_ns,
                flags_allowed=allowed,
                record_count=count,
                check=partial(_check_later, records),
            )
        except InvalidBatch as error:
            raise _named(error, records, self.log.config.value_bytes_max) from None
        if identity:  # before a flush starts: a snapshot covers all records below its offset
            self.producers.stored(identity, appended)
        self._tell_published(_headed(records, appended), appended, received_ns, copied_from)
        self._after_append(records, appended, lazily=lazily)
        return appended

    def _begin_epoch(self) -> None:
        self.log.assign_epoch(self.epoch, self.log.next_offset)
        self._must_begin = False

    def commit_transaction(self, producer_id: int, number: int) -> None:
        """Make the records of the transaction committed in memory. The decision is durable; the marker follows.

        `advance_visible` wakes the readers that wait for it.
        """
        transactions = self.producers.transactions
        if transactions is not None and transactions.ended(producer_id, number, commit=True) is not None:
            self.producers.owed.add((producer_id, number))

    def end_transaction(self, producer_id: int, number: int, *, commit: bool) -> Pending[None]:
        """Write the marker of a transaction that has records here; done when it may be acknowledged.

        It is written lazily, since no request waits for it: until it is durable, the coordinator has the decision.
        """
        transactions = self.producers.transactions
        key = (producer_id, number)
        is_open = transactions is not None and (key in transactions.open or key in self.producers.owed)
        if self.ended is not None:
            return Pending.failed(self.ended)
        if transactions is None or not is_open:
            return Pending.of(None)
        if self._must_begin:
            self._begin_epoch()
        records = marker(producer_id, number, commit=commit)
        appended = self.log.append(records, now_ns=self._clock.wall_ns(), flags_allowed=MARKER_FLAGS)
        self.producers.owed.discard(key)
        self.producers.markers.add(appended.first_offset)
        ranges = transactions.ended(producer_id, number, commit=commit) or []
        self.producers.has_news = True
        if not commit:
            for first, end in ranges:
                self.log.transactions.note_aborted(first, end, appended.first_offset)
            if self.delivery is not None:
                self.delivery.aborted(BitMap64().union(*(span(first, end) for first, end in ranges)))
        self._after_append(records, appended, lazily=True)
        return self.when_stored(appended.last_offset + 1, None, lazily=True)

    def _tell_published(
        self,
        records: bytearray | memoryview,
        appended: Appended,
        received_ns: int,
        copied_from: events.CopyOrigin | None,
    ) -> None:
        self.observe(
            events.BatchPublished(
                *self.origin,
                appended.record_count,
                appended.bytes,
                appended.first_offset,
                appended.timestamp,
                received_ns,
                appended.flags,
                records,
                copied_from,
            )
        )

    def _after_append(self, records: bytearray | memoryview, appended: Appended, *, lazily: bool) -> None:
        """The records are in the log: inform delivery, flush, and wake readers."""
        self._unflushed.add(self)
        if self._watchers or self._recent:
            self._remember(records, appended)
        if self.delivery is not None:
            self.delivery.appended(records, appended)
        elif appended.flags & _HAS_HEADERS and kernel.outline(_headed(records, appended)).delayed:
            self.search.has_delays = True
            self.begin_delivery().appended(records, appended)
        if self.news is not None:
            self.news()
        if not lazily:
            self._request_flush(appended.last_offset + 1)
        self._tell_persisted()
        self.advance_visible()

    def when_stored(self, end_offset: int, value: T, *, lazily: bool = False) -> Pending[T]:
        """The value, once all records below the offset are committed; fails if the leader ends before."""
        if not lazily and end_offset > self._wanted_offset and self.ended is None:
            self._request_flush(end_offset)
        return self._acks.when_stored(end_offset, value)

    def when_written(self, end_offset: int, value: T) -> Pending[T]:
        """The value, once this replica may acknowledge all records below the offset, whatever the others have."""
        if self.followed_acks is None:
            return self.when_stored(end_offset, value)
        self._request_flush(max(end_offset, self._wanted_offset))
        return self.followed_acks.when_stored(end_offset, value)

    def check_replicas(self) -> None:
        """Raise `NotEnoughReplicas` if what is written now would not be committed."""
        shortage = self._gate.shortage
        if shortage is not None:
            raise NotEnoughReplicas(*self.origin, *shortage)

    def _request_flush(self, end_offset: int) -> None:
        self._wanted_offset = end_offset
        self.flush()

    @property
    def ledger(self) -> PartitionLedger:
        """The ledger, which is opened on first use."""
        if self._ledger is None:
            log = self.partition.ledger
            self._ledger = PartitionLedger(
                log,
                self.origin,
                epoch=self.epoch,
                gate=self._ledger_gate(log),
                clock=self._clock,
                run=self._jobs.run,
                observe=self.observe,
            )
            self._ledger.news = self.news
            if self.ended is not None:
                self._ledger.end(self.ended)
        return self._ledger

    def tell_followers(self, news: Callable[[], None]) -> None:
        """Call this whenever followers may have something to fetch: records, facts, or a higher watermark."""
        self.news = news
        if self._ledger is not None:
            self._ledger.news = news

    def look_for_delays(self, records: Buffer, start: int, end: int) -> None:
        """Before the records of [start, end) are read: find delayed messages that only the log has."""
        if self.search.has_unknown(records, start, end):
            self.find_delays()

    def find_delays(self) -> None:
        """Search the whole log for delayed messages."""
        self.search.found()
        if self.delivery is None:
            self.begin_delivery()
        else:
            self.delivery.find_delays()

    def wrote_ledger(self) -> None:
        """Have housekeeping flush the ledger, in which facts were written lazily."""
        self._unflushed.add(self)

    # --- the disk ------------------------------------------------------------------------------

    def flush(self, *, lazily: bool = False) -> None:
        """Start a flush if one is due; with `lazily` also for records that no ack waits for."""
        if self.ended is not None:
            return
        now_ns = self._clock.monotonic_ns()
        if self._ledger is not None and not self._ledger.is_clean:
            self._ledger.flush()
        if not lazily and self._wanted_offset <= self.log.durable_offset:
            return
        try:
            job = self.log.begin_flush(monotonic_ns=now_ns)
        except StorageFailed:
            for acks in (self._acks, self.followed_acks):
                if acks is not None:
                    acks.release()
            return
        if job:
            if self._has_news and now_ns - self._snapshot_ns >= SNAPSHOT_INTERVAL_NS:
                self._snapshots, self._snapshot_end = self.producers.snapshots(), self.log.next_offset
                self._snapshot_ns = now_ns
            self._jobs.run(self.log, job, self.flushed)

    def run(self, log: Log, job: Job, done: Callable[[], None]) -> None:
        """Run a job of a log of this partition, and the jobs that follow it; then call `done`."""
        self._jobs.run(log, job, done)

    def maintain(self, *, may_compact: bool, compacted: Callable[[], None]) -> bool:
        """Run retention and compaction; returns whether a compaction was started, whose end calls `compacted`."""
        now_ns = self._clock.wall_ns()
        began = False
        for log in self.partition.open_logs:
            log.look_for_room()
            if log.is_closed or not log.size:
                continue
            with suppress(StorageError):  # a full or failing disk; the log reports an error that stops it
                if log.roll_if_old(now_ns=now_ns) and log is self.log:
                    self._has_rolled = True
            if log.segment_count == 1:  # no sealed segment could expire
                continue
            self._expire(log, now_ns)
            if may_compact and not began:
                with suppress(StorageError):
                    job = self._begin_compaction(log, now_ns)
                    if job:
                        began = True
                        self._jobs.run(log, job, partial(self._compacted, log, compacted))
        self.drop_deleted()
        self.flush(lazily=self._has_rolled)
        return began

    def drop_deleted(self) -> None:
        """Forget what memory has about records before the start of the log."""
        self._recent.clear()
        self._readers.clear()
        if self.delivery is not None:
            self.delivery.drop_below(self.log.start_offset)
        self.producers.maintain(start_offset=self.log.start_offset, now_ns=self._clock.wall_ns())

    def _compacted(self, log: Log, done: Callable[[], None]) -> None:
        if log is self.log and self.delivery is not None:
            self.delivery.compacted()
        done()

    def _expire(self, log: Log, now_ns: int) -> None:
        with suppress(StorageError):
            kept = self.delivery.keep_from if log is self.log and self.delivery is not None else None
            expired = log.expire(now_ns=now_ns, keep_from=kept, to_offset=self._committed(log), is_full=self.needs_room)
            if expired:
                self._jobs.run(log, expired, lambda: None)

    def _expire_rolled(self) -> None:
        """Expire the sealed segments of a quiet log: without publishes nothing else flushes it."""
        if self.log.has_unsynced_roll:
            self.flush(lazily=True)
            return
        self._has_rolled = False
        self._expire(self.log, self._clock.wall_ns())
        self.drop_deleted()

    def _begin_compaction(self, log: Log, now_ns: int) -> CompactJob | None:
        committed = self._committed(log)
        if log is not self.log or self.producers.transactions is None:
            return log.begin_compaction(now_ns=now_ns, to_offset=committed)
        return log.begin_compaction(
            now_ns=now_ns,
            to_offset=committed,
            aborted=self.aborted,
            stable_offset=self.last_stable_offset,
            markers_below=self.producers.markers_known_to,
        )

    def _committed(self, log: Log) -> int:
        """Neither retention nor compaction touches what is at or after it."""
        return self._gate.offset if log is self.log else self.ledger.gate.offset

    def configured(self) -> None:
        """Apply changed settings: a flush mode releases acks, a shorter retention deletes segments."""
        self._unflushed.add(self)
        self.maintain(may_compact=False, compacted=lambda: None)
        self._release()

    def seal(self) -> bool:
        """Start the work that is left before a close that does not block; returns whether there is none."""
        if self._jobs.running:
            return False
        if self.log.failure or self.ended is not None:
            return True
        if self._begin_seal(self.log, self.flushed):
            return False
        self.write_down()
        return self._ledger is None or not self._begin_seal(self._ledger.log, self._ledger.flushed)

    def write_down(self) -> None:
        """Write the state of producers that is only in memory to the ledger."""
        if self._has_news and not self.log.failure and self.ended is None:
            if self.log.durable_offset != self.log.next_offset:
                self.log.flush()
            if self._gate.offset < self.log.next_offset:  # a snapshot must not speak of what may be truncated
                return
            with suppress(StorageError):
                self.log.transactions.sync()
            self.producers.write(self.producers.snapshots(), self.ledger, known_to=self.log.next_offset)

    def _begin_seal(self, log: Log, done: Callable[[], None]) -> bool:
        with suppress(StorageError):
            job = log.begin_seal()
            if job:
                self._jobs.run(log, job, done)
        return bool(self._jobs.running)

    def end(self, error: GoQueueError) -> None:
        """It no longer leads: all that waits fails with that error, and all readers are woken to find out."""
        self.ended = error
        self._unflushed.discard(self)
        self._acks.end(error)
        if self.followed_acks is not None:
            self.followed_acks.end(error)
        if self._ledger is not None:
            self._ledger.end(error)
        self._readers.clear()
        self._recent.clear()
        self._snapshots = []
        self._wake()

    def flushed(self) -> None:
        """A flush of the log has ended."""
        if self.ended is not None or self.log.is_closed:
            return
        self._release()
        self.flush()
        if self._has_rolled:
            self._expire_rolled()

    def taken_over(self) -> None:
        """Jobs that another leader had begun have ended: what they did counts for this one, too."""
        if self._ledger is not None:
            self._ledger.flushed()
        if self.delivery is not None:
            self.delivery.compacted()
        self.flushed()

    def _write_snapshots(self) -> None:
        """Write the snapshots of the producers, if all that they cover is durable and committed.

        A snapshot that speaks of records that are truncated later would make a batch that was lost look as if it were
        stored: its producer would be told so, and would not send it again.
        """
        end = self._snapshot_end
        if self.log.failure or end > min(self._gate.offset, self.log.durable_offset):
            return
        snapshots, self._snapshots = self._snapshots, []
        indexing = self.log.transactions.begin_sync()
        if indexing:
            self._jobs.run(self.log, indexing, partial(self._write_indexed, snapshots, end))
        else:
            self.producers.write(snapshots, self.ledger, known_to=end)

    def _write_indexed(self, snapshots: list[Fact], end: int) -> None:
        if self.ended is None:
            self.producers.write(snapshots, self.ledger, known_to=end)

    def committed(self) -> None:
        """The gate of the log or the ledger has moved: release acks, and show readers what they may see."""
        self._release()
        if self._ledger is not None:
            self._ledger.committed()

    def _release(self) -> None:
        if self._snapshots:
            self._write_snapshots()
        self._tell_persisted()
        self._acks.release()
        if self.followed_acks is not None:
            self.followed_acks.release()
        self.advance_visible()

    # --- reading -------------------------------------------------------------------------------

    def reader(self, offset: int) -> LogReader:
        """A reader at the offset; a kept one if there is one."""
        return self._readers.pop(offset, None) or self.log.reader(offset)

    def keep(self, reader: LogReader) -> None:
        """Keep the reader for a request that continues at its offset."""
        self._readers[reader.offset] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    def recent(self, offset: int, *, max_bytes: int, to_offset: int) -> Chunk | None:
        """Recently appended records from the offset on, without a disk read; None if they are not kept."""
        if not self._recent or offset < self._recent[0].first_offset:
            return None
        found: list[bytes] = []
        count = flags = size = 0
        next_offset = offset
        for batch in self._recent:
            if batch.first_offset != next_offset:
                continue
            if batch.next_offset > to_offset or size + len(batch.records) > max_bytes:
                break
            found.append(batch.records)
            next_offset = batch.next_offset
            size += len(batch.records)
            count += batch.next_offset - batch.first_offset
            flags |= batch.flags
        if not found:
            return None
        records = found[0] if len(found) == 1 else b"".join(found)
        return Chunk(memoryview(records), count, next_offset, flags=flags)

    def _remember(self, records: bytearray | memoryview, appended: Appended) -> None:
        """Keep a copy of the batch for readers that wait; the oldest copies are dropped."""
        if not self._watchers and len(self._recent) > RECENT_MAX // 2:
            self._recent.clear()
        if len(records) > RECENT_BYTES_MAX:
            self._recent.clear()
            return
        self._recent.append(Recent(appended.first_offset, appended.last_offset + 1, bytes(records), appended.flags))

    def watch(self, watcher: object, callback: Callable[[], None]) -> None:
        """Call once when more records become visible, or the leader ends."""
        self._watchers[watcher] = callback

    def unwatch(self, watcher: object) -> None:
        """Cancel `watch`."""
        self._watchers.pop(watcher, None)

    def _tell_persisted(self) -> None:
        committed = self._gate.offset
        if self._persisted_end < committed:
            self._persisted_end = committed
            self.observe(events.Persisted(*self.origin, committed))
            if self.news is not None:
                self.news()

    def advance_visible(self) -> None:
        """Wake the readers that wait, if more records are visible."""
        visible_end = self.high_watermark
        stable_end = self.producers.stable_below(visible_end)
        if self._visible_end != visible_end or self._stable_end != stable_end:
            self._visible_end, self._stable_end = visible_end, stable_end
            if self._watchers:
                self._wake()

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for callback in watchers.values():
            callback()


def _check_later(records: bytearray | memoryview, summary: kernel.Summary) -> None:
    if summary.later_flags & _HAS_HEADERS:
        check_later(records)


def _headed(records: bytearray | memoryview, appended: Appended) -> bytearray | memoryview:
    """The records that may have headers: all, or only the first, which has the producer's."""
    return records if appended.later_flags & _HAS_HEADERS else first_record(records)


def _named(error: InvalidBatch, records: bytearray | memoryview, limit: int) -> InvalidBatch | MessageTooLarge:
    """The error; `MessageTooLarge` if it is about the size of a value."""
    if error.reason != kernel.describe(RecordFault.LENGTH):
        return error
    header = HEADER.unpack(records[error.position : error.position + HEADER_BYTES])
    return MessageTooLarge("value", header[9], limit)
