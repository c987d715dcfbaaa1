"""One partition while the broker runs: its log, who waits for its disk, and who waits for its next record.

    append ──> log ──> begin_flush ──> a worker ──> complete ──> acks are released, watchers are woken

Acks are released in the order of their offsets, when the log may vouch for them: at once or after fdatasync, as the
flush mode says. Readers see what may be acknowledged and nothing else: what a power cut can still take back was
never shown to anyone.

What producers and transactions did is remembered by `producer_state.py`. A reader of what is committed stops before
the first record of an open transaction: that is the last stable offset, and it moves when an outcome is written.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.partition.acks import AckQueue
from goqueue.broker.partition.ledger import Fact, PartitionLedger
from goqueue.broker.partition.producer_state import ProducerState
from goqueue.broker.partition.unreadable import UnreadableFacts
from goqueue.clock import SECOND, Clock
from goqueue.delivery.offsets import span
from goqueue.errors import (
    InvalidBatch,
    MessageTooLarge,
    StorageError,
    StorageFailed,
    TopicNotFound,
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
from goqueue.transactions.sequences import identities

READERS_MAX = 16
"""Places in the log that are kept for readers who come back to where they stopped."""
RECENT_MAX = 16
RECENT_BYTES_MAX = 4 * 1024
"""Batches up to it are kept for those who follow: many small ones are where a read of the disk for each would hurt."""
SNAPSHOT_INTERVAL_NS = 10 * SECOND
LOAD_BYTES = 4 * 1024 * 1024

_HAS_HEADERS = int(Flags.HAS_HEADERS)  # a plain number: an IntFlag takes a microsecond for each operation

T = TypeVar("T")


class Workers(Protocol):
    """Threads for what blocks."""

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        """Run the job somewhere, then call `done` in the thread that owns the broker, with what it raised."""


class Following(Protocol):
    """Whoever delivers from a partition to groups, and keeps an eye on its log."""

    def appended(self, records: Buffer, appended: Appended) -> None:
        """A batch was stored."""

    def compacted(self) -> None:
        """The log was compacted: messages are gone that were there."""

    def drop_below(self, offset: int) -> None:
        """Retention has taken what lies below the offset."""

    @property
    def keep_from(self) -> int | None:
        """Retention has to leave this offset and what follows."""

    def hidden(self, start: int, end: int) -> BitMap64:
        """What a reader may not see in that range: it is not due yet, or never will be."""

    @property
    def cancelled(self) -> BitMap64:
        """What never will be."""

    @property
    def rescheduled(self) -> Mapping[int, int]:
        """The times that took the place of those in the records, by offset."""

    def aborted(self, offsets: BitMap64) -> None:
        """The transaction of these was aborted."""

    def find_delays(self) -> None:
        """Look at the whole log for delayed messages."""


class Recent(NamedTuple):
    """A batch that was appended just now."""

    first_offset: int
    next_offset: int
    records: bytes
    flags: int


class PartitionLeader:
    """A partition, its waiters and its producers."""

    # There are thousands of these. Above 30 attributes an instance no longer shares the keys of its dict with others,
    # which costs 1.5 KB each.
    __slots__ = (
        "_acks",
        "_clock",
        "_has_rolled",
        "_ledger",
        "_owed",
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
        "_without_delays",
        "_workers",
        "begin_delivery",
        "delays_from",
        "delays_known_from",
        "delivery",
        "has_delays",
        "jobs_running",
        "log",
        "needs_room",
        "observe",
        "origin",
        "partition",
        "producers",
        "unreadable",
    )

    def __init__(
        self,
        partition: Partition,
        *,
        clock: Clock,
        workers: Workers,
        unflushed: "set[PartitionLeader]",
        observe: events.Observer = events.ignore,
    ) -> None:
        self.partition = partition
        self.origin = TopicPartition(partition.topic, partition.number)
        self.log = partition.log
        with suppress(StorageError):  # a log that cannot be cut now is no worse than it was
            _cut_torn_batch(self.log)
        self.observe = observe
        self._clock = clock
        self._workers = workers
        self._wanted_offset = 0  # somebody waits for what lies below it to be on the medium
        self._unflushed = unflushed  # shared with housekeeping, which flushes what is in it by and by
        self._acks = AckQueue(self.log)
        self._ledger: PartitionLedger | None = None
        self.delivery: Following | None = None
        self.begin_delivery: Callable[[], Following]  # given by the broker; sets `delivery`
        self.has_delays = False  # as far as `look_at_tail` saw
        self.delays_from: int | None = None  # where delayed messages may be that no delay file tells of
        self.delays_known_from = 0  # before it, delayed messages may be that nothing beside the log tells of
        self._without_delays = BitMap64()  # offsets before that which were looked at
        self._watchers: dict[object, Callable[[], None]] = {}
        self._visible_end = self._persisted_end = self.log.ackable_offset
        self._readers: OrderedDict[int, LogReader] = OrderedDict()
        self._recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self.unreadable = UnreadableFacts(self.log.directory, observe)
        self.producers = ProducerState(self.log, lambda: self.ledger, unreadable=self.unreadable)
        self._owed: set[tuple[int, int]] = set()  # committed transactions whose marker is not in the log yet
        self._snapshots: list[Fact] = []
        self._snapshot_end = 0
        self._snapshot_ns = clock.monotonic_ns()
        self._stable_end = self._visible_end
        self.jobs_running = 0
        self.needs_room = False  # the disk is full, and a change of retention is to make room
        self._has_rolled = False  # housekeeping sealed a segment, which may go once that is durable

    @property
    def high_watermark(self) -> int:
        """Records below it are safe, as far as the flush mode goes, and visible; it never goes back."""
        return max(self.log.ackable_offset, self._visible_end)

    @property
    def last_stable_offset(self) -> int:
        """Records below it belong to no open transaction."""
        transactions = self.producers.transactions
        first_open = transactions.first_open_offset if transactions is not None else None
        return self.high_watermark if first_open is None else min(self.high_watermark, first_open)

    @property
    def message_count(self) -> int:
        """How many messages the log holds, those of open and aborted transactions included."""
        control_count = self.producers.markers.total - self.log.control_missing
        return self.log.record_count - max(0, control_count)

    @property
    def aborted(self) -> BitMap64 | None:
        """Records that no reader of what is committed may see; None if there never were any."""
        return self.producers.transactions.aborted if self.producers.transactions is not None else None

    @property
    def is_clean(self) -> bool:
        """Whether all records are on the medium and nothing is under way."""
        is_written = self.log.durable_offset == self.log.next_offset
        return not self.jobs_running and is_written and (self._ledger is None or self._ledger.is_clean)

    @property
    def may_be_due(self) -> bool:
        """Whether time alone can make a flush due."""
        if self.log.is_closed or self.log.failure or self.log.config.flush is Flush.NONE:
            return False
        return not self.is_clean

    @property
    def _has_news(self) -> bool:
        """Whether a snapshot of producers would tell something new, and nothing that the log does not know."""
        return self.producers.has_news and not self._owed

    @property
    def waiting_count(self) -> int:
        """How many publishes wait for the disk."""
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

        What is written lazily gets to the medium with what comes behind it, or at the next check of housekeeping.
        """
        if self.log.is_closed:
            raise TopicNotFound(self.origin.topic)
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
        if identity:  # before a flush begins: a snapshot speaks of all records below its offset
            self.producers.stored(identity, appended)
        self._tell_published(_headed(records, appended), appended, received_ns, copied_from)
        self._taken_in(records, appended, lazily=lazily)
        return appended

    def commit_transaction(self, producer_id: int, number: int) -> None:
        """What the transaction has here is committed, as is written elsewhere; its marker is owed to the log.

        `show` tells whoever waits for it.
        """
        transactions = self.producers.transactions
        if transactions is not None and transactions.ended(producer_id, number, commit=True) is not None:
            self._owed.add((producer_id, number))

    def end_transaction(self, producer_id: int, number: int, *, commit: bool) -> Pending[None]:
        """Write the outcome of a transaction, if it has anything here; done when the log vouches for it.

        Nobody waits for that, so it is written lazily: until then the outcome is known from where it was decided.
        """
        transactions = self.producers.transactions
        key = (producer_id, number)
        is_open = transactions is not None and (key in transactions.open or key in self._owed)
        if transactions is None or not is_open or self.log.is_closed:
            return Pending.of(None)
        records = marker(producer_id, number, commit=commit)
        appended = self.log.append(records, now_ns=self._clock.wall_ns(), flags_allowed=MARKER_FLAGS)
        self._owed.discard(key)
        self.producers.markers.add(appended.first_offset)
        ranges = transactions.ended(producer_id, number, commit=commit) or []
        self.producers.has_news = True
        if not commit:
            for first, end in ranges:
                self.log.transactions.note_aborted(first, end, appended.first_offset)
            if self.delivery is not None:
                self.delivery.aborted(BitMap64().union(*(span(first, end) for first, end in ranges)))
        self._taken_in(records, appended, lazily=True)
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

    def _taken_in(self, records: bytearray | memoryview, appended: Appended, *, lazily: bool) -> None:
        """The records are in the log: let everybody know."""
        self._unflushed.add(self)
        if self._watchers or self._recent:
            self._remember(records, appended)
        if self.delivery is not None:
            self.delivery.appended(records, appended)
        elif appended.flags & _HAS_HEADERS and kernel.outline(_headed(records, appended)).delayed:
            self.begin_delivery().appended(records, appended)
        if not lazily:
            self._want(appended.last_offset + 1)
        self._tell_persisted()
        self.show()

    def when_stored(self, end_offset: int, value: T, *, lazily: bool = False) -> Pending[T]:
        """The value, once all records below the offset may be acknowledged."""
        if not lazily and end_offset > self._wanted_offset:
            self._want(end_offset)
        return self._acks.when_stored(end_offset, value)

    def _want(self, end_offset: int) -> None:
        self._wanted_offset = end_offset
        self.flush()

    @property
    def ledger(self) -> PartitionLedger:
        """The ledger, which is opened when it is first asked for."""
        if self._ledger is None:
            log = self.partition.ledger
            self._ledger = PartitionLedger(log, self.origin, clock=self._clock, run=self.run, observe=self.observe)
        return self._ledger

    def look_at_tail(self) -> None:
        """Find out whether there are delayed messages or transactions. The first one is in the log just before a file
        beside it tells of it, so after a crash it is looked for in what the last checkpoint does not cover. Where the
        delay file is missing and the log says that there should be one, all of the log is to be looked at.
        """
        has_transactions = self.log.transactions.has_any
        self.has_delays = self.partition.delay_file.exists or self.log.has_delays
        if self.has_delays and not self.partition.delay_file.exists:
            self.delays_from = self.log.start_offset
        tail = max(self.log.recovered_offset, self.log.start_offset)
        reader = self.log.reader(tail)
        while not (self.has_delays and has_transactions) and (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            if not self.has_delays and chunk.flags & Flags.HAS_HEADERS and kernel.outline(chunk.records).delayed:
                self.delays_from = self.log.start_offset
                self.has_delays = True
            has_transactions = has_transactions or bool(chunk.flags & Flags.TRANSACTIONAL)
        self.delays_known_from = 0 if self.has_delays else tail
        if has_transactions:
            self.producers.load_transactions()

    def look_for_delays(self, records: Buffer, start: int, end: int) -> None:
        """Before the records of [start, end) are shown: find delayed messages that nothing beside the log tells of.

        That costs nothing where all is well: what was stored since the start is known, and the rest is looked at once.
        """
        end = min(end, self.delays_known_from)
        if start >= end or self._without_delays.range_cardinality(start, end) == end - start:
            return
        if kernel.outline(records).delayed:
            self.find_delays()
        else:
            self._without_delays.add_range(start, end)

    def find_delays(self) -> None:
        """Look at the whole log for delayed messages."""
        self.delays_known_from = 0
        self.delays_from = self.log.start_offset
        if self.delivery is None:
            self.begin_delivery()
        else:
            self.delivery.find_delays()

    def wrote_ledger(self) -> None:
        """There is something in the ledger that is to be flushed by and by."""
        self._unflushed.add(self)

    # --- the disk ------------------------------------------------------------------------------

    def flush(self, *, lazily: bool = False) -> None:
        """Begin to make durable what was appended, if it is time; also what nobody waits for, if it is `lazily`."""
        now_ns = self._clock.monotonic_ns()
        if self._ledger is not None and not self._ledger.is_clean:
            self._ledger.flush()
        if not lazily and self._wanted_offset <= self.log.durable_offset:
            return
        try:
            job = self.log.begin_flush(monotonic_ns=now_ns)
        except StorageFailed:
            self._acks.release()
            return
        if job:
            if self._has_news and now_ns - self._snapshot_ns >= SNAPSHOT_INTERVAL_NS:
                self._snapshots, self._snapshot_end = self.producers.snapshots(), self.log.next_offset
                self._snapshot_ns = now_ns
            self.run(self.log, job, self._flushed)

    def run(self, log: Log, job: Job, done: Callable[[], None]) -> None:
        """Run a job of a log of this partition, and whatever is to follow it."""
        self.jobs_running += 1

        def complete(error: Exception | None) -> None:
            self.jobs_running -= 1
            following = log.complete(job, error)
            if following and not log.is_closed:
                self.run(log, following, done)
            else:
                done()

        self._workers.submit(job, complete)

    def maintain(self, *, may_compact: bool, compacted: Callable[[], None]) -> bool:
        """Retention and compaction; whether a compaction was begun, whose end `compacted` is told."""
        now_ns = self._clock.wall_ns()
        began = False
        for log in self.partition.open_logs:
            log.look_for_room()
            if log.is_closed or not log.size:
                continue
            with suppress(StorageError):  # a disk that is full or fails now; what stops the log, the log has told
                if log.roll_if_old(now_ns=now_ns) and log is self.log:
                    self._has_rolled = True
            if log.segment_count == 1:  # nothing is sealed that could go
                continue
            self._expire(log, now_ns)
            if may_compact and not began:
                with suppress(StorageError):
                    job = self._begin_compaction(log, now_ns)
                    if job:
                        began = True
                        self.run(log, job, partial(self._compacted, log, compacted))
        self._recent.clear()
        if self.delivery is not None:
            self.delivery.drop_below(self.log.start_offset)
        self.producers.maintain(start_offset=self.log.start_offset, now_ns=now_ns)
        self.flush(lazily=self._has_rolled)
        return began

    def _compacted(self, log: Log, done: Callable[[], None]) -> None:
        if log is self.log and self.delivery is not None:
            self.delivery.compacted()
        done()

    def _expire(self, log: Log, now_ns: int) -> None:
        with suppress(StorageError):
            expired = log.expire(now_ns=now_ns, keep_from=self._keep_from(log), is_full=self.needs_room)
            if expired:
                self.run(log, expired, lambda: None)

    def _expire_rolled(self) -> None:
        """Let go of what a quiet log has sealed; a partition without publishes is flushed by nothing else."""
        if self.log.has_unsynced_roll:
            self.flush(lazily=True)
            return
        self._has_rolled = False
        self._recent.clear()
        self._expire(self.log, self._clock.wall_ns())
        if self.delivery is not None:
            self.delivery.drop_below(self.log.start_offset)

    def _begin_compaction(self, log: Log, now_ns: int) -> CompactJob | None:
        if log is not self.log or self.producers.transactions is None:
            return log.begin_compaction(now_ns=now_ns)
        return log.begin_compaction(
            now_ns=now_ns,
            aborted=self.aborted,
            stable_offset=self.last_stable_offset,
            markers_below=self.producers.markers_known_to,
        )

    def _keep_from(self, log: Log) -> int | None:
        return self.delivery.keep_from if log is self.log and self.delivery is not None else None

    def configured(self) -> None:
        """The settings have changed, perhaps the flush mode, or the retention: room may be needed now."""
        self._unflushed.add(self)
        self.maintain(may_compact=False, compacted=lambda: None)
        self._release()

    def seal(self) -> bool:
        """Begin what is left to do before the partition can be closed in no time; whether nothing is."""
        if self.jobs_running:
            return False
        if self.log.failure or self.log.is_closed:
            return True
        if self._begin_seal(self.log, self._flushed):
            return False
        self.write_down()
        return self._ledger is None or not self._begin_seal(self._ledger.log, self._ledger.flushed)

    def write_down(self) -> None:
        """Bring what only memory knows to the ledger."""
        if self._has_news and not self.log.failure and not self.log.is_closed:
            if self.log.durable_offset != self.log.next_offset:
                self.log.flush()
            with suppress(StorageError):
                self.log.transactions.sync()
            self.producers.write(self.producers.snapshots(), known_to=self.log.next_offset)

    def _begin_seal(self, log: Log, done: Callable[[], None]) -> bool:
        with suppress(StorageError):
            job = log.begin_seal()
            if job:
                self.run(log, job, done)
        return bool(self.jobs_running)

    def gone(self) -> None:
        """The topic was deleted: whoever waits is told."""
        error = TopicNotFound(self.origin.topic)
        self._acks.fail(error)
        if self._ledger is not None:
            self._ledger.gone(error)
        self._readers.clear()
        self._recent.clear()
        self._wake()

    def _flushed(self) -> None:
        if self.log.is_closed:
            return
        snapshots, self._snapshots = self._snapshots, []
        if snapshots and not self.log.failure:
            end = self._snapshot_end
            indexing = self.log.transactions.begin_sync()
            if indexing:
                self.run(self.log, indexing, lambda: self.producers.write(snapshots, known_to=end))
            else:
                self.producers.write(snapshots, known_to=end)
        self._release()
        self.flush()
        if self._has_rolled:
            self._expire_rolled()

    def _release(self) -> None:
        self._tell_persisted()
        self._acks.release()
        self.show()

    # --- reading -------------------------------------------------------------------------------

    def reader(self, offset: int) -> LogReader:
        """A reader at the offset, one that stands there already if there is one."""
        return self._readers.pop(offset, None) or self.log.reader(offset)

    def keep(self, reader: LogReader) -> None:
        """Somebody may go on where this reader stands."""
        self._readers[reader.offset] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    def recent(self, offset: int, *, max_bytes: int, to_offset: int) -> Chunk | None:
        """Records from the offset on that were appended just now, for those who follow; they need no disk."""
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
        """Keep a copy of what somebody waits for; the oldest goes when it is too much."""
        if not self._watchers and len(self._recent) > RECENT_MAX // 2:
            self._recent.clear()
        if len(records) > RECENT_BYTES_MAX:
            self._recent.clear()
            return
        self._recent.append(Recent(appended.first_offset, appended.last_offset + 1, bytes(records), appended.flags))

    def watch(self, watcher: object, callback: Callable[[], None]) -> None:
        """Call once when more becomes visible, or the topic goes away."""
        self._watchers[watcher] = callback

    def unwatch(self, watcher: object) -> None:
        """Do not call."""
        self._watchers.pop(watcher, None)

    def _tell_persisted(self) -> None:
        if self._persisted_end < self.log.ackable_offset:
            self._persisted_end = self.log.ackable_offset
            self.observe(events.Persisted(*self.origin, self._persisted_end))

    def show(self) -> None:
        """Wake whoever waits, if there is more to see."""
        stable_end = self.last_stable_offset
        if self._visible_end != self.high_watermark or self._stable_end != stable_end:
            self._visible_end, self._stable_end = self.high_watermark, stable_end
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
    """The records that may have headers: all, or the first, which has those of its producer."""
    return records if appended.later_flags & _HAS_HEADERS else first_record(records)


def _cut_torn_batch(log: Log) -> None:
    """Take away a batch of which a crash has left only the first records.

    It was never acknowledged, and its producer sends it again, whole. With its first record in the log it would pass
    for stored. All records of a batch have one time, so others behind it cannot be taken for its own.
    """
    reader = log.reader(max(log.recovered_offset, log.start_offset))
    first_offset, end_offset, begun_ns, last_ns = 0, 0, 0, 0
    while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
        last_ns = kernel.scan(chunk.records).last_timestamp
        for offset, timestamp_ns, batch in identities(chunk.records):
            first_offset, end_offset, begun_ns = offset, offset + batch.record_count, timestamp_ns
    if end_offset > log.next_offset and begun_ns == last_ns:
        log.truncate(first_offset)


def _named(error: InvalidBatch, records: bytearray | memoryview, limit: int) -> InvalidBatch | MessageTooLarge:
    """A value over the limit has a name of its own."""
    if error.reason != kernel.describe(RecordFault.LENGTH):
        return error
    header = HEADER.unpack(records[error.position : error.position + HEADER_BYTES])
    return MessageTooLarge("value", header[9], limit)
