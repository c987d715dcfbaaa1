"""The ledger of a partition while the broker runs: keyed facts beside the log, and who waits for them.

Facts that somebody is told of are flushed as the topic says, like messages. Others, like a lease, only ride along with
the next flush: a crash of the process does not lose them, and a power cut costs an early redelivery.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from goqueue import events
from goqueue.broker.partition.acks import AckQueue
from goqueue.clock import Clock
from goqueue.errors import StorageError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import Message
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
    """A ledger that is open."""

    def __init__(self, log: Log, origin: TopicPartition, *, clock: Clock, run: Runs, observe: events.Observer) -> None:
        self.log = log
        self._origin = origin
        self._clock = clock
        self._run = run
        self._observe = observe
        self._acks = AckQueue(log)

    @property
    def is_clean(self) -> bool:
        """Whether all of it is on the medium."""
        return self.log.durable_offset == self.log.next_offset

    def facts(self) -> Iterator[tuple[bytes, bytes | None]]:
        """All that was written and is still there, oldest first."""
        reader = self.log.reader(self.log.start_offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            for message in kernel.decode(chunk.records, self._origin, Message, verify=False):
                yield message.key or b"", None if message.tombstone else message.value

    def write(self, facts: Sequence[Fact], *, flush: bool = True) -> int:
        """Append the facts, all or none; the offset behind them. Raises `StorageError`."""
        records = kernel.encode([value for _, value in facts], keys=[key for key, _ in facts])
        appended = self.log.append(records, now_ns=self._clock.wall_ns())
        self._observe(events.LedgerWritten(*self._origin, appended.record_count, appended.bytes))
        if flush:
            self.flush()
        return appended.last_offset + 1

    def when_stored(self, end_offset: int) -> Pending[None]:
        """Done once the log vouches for all facts below the offset."""
        return self._acks.when_stored(end_offset, None)

    def flush(self) -> None:
        """Begin to make durable what was written, if it is time."""
        try:
            job = self.log.begin_flush(monotonic_ns=self._clock.monotonic_ns())
        except StorageError:
            self._acks.release()
            return
        if job:
            self._run(self.log, job, self.flushed)

    def flushed(self) -> None:
        """A flush is through."""
        if self.log.is_closed:
            return
        self._acks.release()
        if self._acks:
            self.flush()

    def gone(self, error: Exception) -> None:
        """The topic was deleted."""
        self._acks.fail(error)
