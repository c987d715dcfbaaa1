"""The ledger of a partition while the broker runs: keyed facts beside the log, and the answers that wait for them.

Facts that an answer waits for are flushed by the flush mode of the topic, like messages. Others, like a lease, wait for
the next flush: a crash of the process does not lose them, and a power cut costs an early redelivery.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from goqueue import events
from goqueue.broker.partition.acks import AckQueue
from goqueue.broker.partition.commit_gate import CommitGate
from goqueue.clock import Clock
from goqueue.errors import StorageError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.service.pending import Pending
from goqueue.storage.jobs import Job
from goqueue.storage.log import Log

LOAD_BYTES = 4 * 1024 * 1024

Fact = tuple[bytes, bytes | None]
"""A key and its value; None deletes it."""


class Runs(Protocol):
    """Runs the jobs of a log."""

    def __call__(self, log: Log, job: Job, done: Callable[[], None]) -> None: ...


class PartitionLedger:
    """The ledger in the hands of one leader, which ends at some time."""

    def __init__(
        self,
        log: Log,
        origin: TopicPartition,
        *,
        epoch: int,
        gate: CommitGate,
        clock: Clock,
        run: Runs,
        observe: events.Observer,
    ) -> None:
        self.log = log
        self.gate = gate
        self._origin = origin
        self._epoch = epoch
        self._must_begin = must_begin(log, epoch)
        self._clock = clock
        self._run = run
        self._observe = observe
        self.news: Callable[[], None] | None = None  # called when followers may have something to fetch
        self._told_offset = gate.offset
        self._acks = AckQueue(log, gate)
        self._ended: Exception | None = None

    @property
    def is_clean(self) -> bool:
        """Whether all facts are durable."""
        return self.log.durable_offset == self.log.next_offset

    def facts(self) -> Iterator[Fact]:
        """All facts that are still in the log, oldest first."""
        return facts_in(self.log, self._origin)

    def write(self, facts: Sequence[Fact], *, flush: bool = True) -> int:
        """Append the facts, all or none; returns the offset after them.

        Raises `StorageError`, or the reason why the leader has ended.
        """
        if self._ended is not None:
            raise self._ended
        if self._must_begin:
            self.log.assign_epoch(self._epoch, self.log.next_offset)
            self._must_begin = False
        records = kernel.encode([value for _, value in facts], keys=[key for key, _ in facts])
        appended = self.log.append(records, now_ns=self._clock.wall_ns())
        self._observe(events.LedgerWritten(*self._origin, appended.record_count, appended.bytes))
        if self.news is not None:
            self.news()
        if flush:
            self.flush()
        return appended.last_offset + 1

    def when_stored(self, end_offset: int) -> Pending[None]:
        """Done when all facts below the offset are committed."""
        return self._acks.when_stored(end_offset, None)

    def flush(self) -> None:
        """Start a flush if one is due."""
        try:
            job = self.log.begin_flush(monotonic_ns=self._clock.monotonic_ns())
        except StorageError:
            self._acks.release()
            return
        if job:
            self._run(self.log, job, self.flushed)

    def flushed(self) -> None:
        """A flush has ended."""
        if self._ended is not None or self.log.is_closed:
            return
        self.committed()
        if self._acks:
            self.flush()

    def committed(self) -> None:
        """The gate may have moved."""
        self._acks.release()
        if self.news is not None and self.gate.offset > self._told_offset:
            self._told_offset = self.gate.offset
            self.news()

    def end(self, error: Exception) -> None:
        """Its leader has ended: nothing is written any more, and answers that wait fail."""
        self._ended = error
        self._acks.end(error)


def facts_in(log: Log, origin: TopicPartition) -> Iterator[Fact]:
    """All facts that are still in a ledger, oldest first."""
    reader = log.reader(log.start_offset)
    while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
        for message in kernel.decode(chunk.records, origin, StoredMessage, verify=False):
            yield message.key or b"", None if message.tombstone else message.value


def must_begin(log: Log, epoch: int) -> bool:
    """Whether the leader of this epoch has to store where it begins, durably, before its first append.

    The first epoch, 0, needs no entry: it begins with the log.
    """
    return epoch > max(log.epochs.latest, 0)
