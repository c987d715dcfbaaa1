"""The followers of a partition, as its leader sees them: what they fetch, and what they have on their disks.

    fetch ──> compared ──> durable offset counts ──> gates move ──> acks are released, readers see
                 └──> differs: nothing counts; the follower cuts its log

A fetch tells two things at once: what the follower wants, and what it has made durable. The second is what the high
watermark is made of. It counts only if the log of the follower is the same as the leader's up to its end.

Which followers are in sync is decided elsewhere, by the controller; here it is only known.
"""

from goqueue.broker.partition.commit_gate import InSync, ReplicatedGate
from goqueue.broker.partition.fetching import (
    Diverging,
    Fetch,
    FetchAnswer,
    LogAnswer,
    LogPosition,
    OutOfRange,
    Records,
    compared,
    epoch_at,
    read_batches,
    refusal_of,
)
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.storage.log import Log

FETCH_BYTES = 1024 * 1024


class Followers:
    """Answers the followers of one leader. Made by `Replica.become_leader`, and ends with the leader."""

    __slots__ = ("_gate", "_leader", "_ledger_gate")

    def __init__(self, leader: PartitionLeader, gate: ReplicatedGate, ledger_gate: ReplicatedGate) -> None:
        self._leader = leader
        self._gate = gate
        self._ledger_gate = ledger_gate

    @property
    def has_begun(self) -> bool:
        """Whether all that this leader found in both logs is committed; it serves from then on."""
        return all(gate.offset >= gate.start for gate in (self._gate, self._ledger_gate))

    def answer(self, follower: int, fetch: Fetch, *, max_bytes: int = FETCH_BYTES) -> FetchAnswer:
        """Answer a fetch. Raises what the leader ended with, and `CorruptRecord` or `ReadFailed`."""
        leader = self._leader
        if leader.ended is not None:
            raise leader.ended
        refusal = refusal_of(fetch.epoch, leader.epoch)
        if refusal is not None:
            return FetchAnswer(leader.epoch, refusal, None, None)
        log, ledger = leader.log, leader.ledger.log
        differs = _report(follower, log, fetch.log, self._gate)
        ledger_differs = _report(follower, ledger, fetch.ledger, self._ledger_gate)
        leader.committed()
        return FetchAnswer(
            leader.epoch,
            None,
            self._about(log, fetch.log, differs, self._gate, max_bytes),
            self._about(ledger, fetch.ledger, ledger_differs, self._ledger_gate, max_bytes),
            ledger_speaks_below=max(self._gate.offset, self._gate.start),
        )

    @property
    def in_sync(self) -> InSync:
        """Those that count, as far as this leader knows."""
        return self._gate.in_sync

    def change(self, in_sync: InSync) -> None:
        """The controller has changed the in-sync replicas, or the leader is about to ask for that."""
        self._gate.change(in_sync)
        self._ledger_gate.change(in_sync)
        self._leader.committed()

    def has_caught_up(self, follower: int) -> bool:
        """Whether it has all that is committed in both logs, on its disk, and may become an in-sync replica."""
        return self._gate.has_caught_up(follower) and self._ledger_gate.has_caught_up(follower)

    def _about(
        self,
        log: Log,
        position: LogPosition,
        differs: Diverging | OutOfRange | None,
        gate: ReplicatedGate,
        max_bytes: int,
    ) -> LogAnswer:
        found = self._next(log, position.offset, max_bytes) if differs is None else differs
        return LogAnswer(position, found, gate.offset, log.start_offset)

    def _next(self, log: Log, offset: int, max_bytes: int) -> Records | None:
        """What comes at that offset; also what is not durable here yet: both replicas then sync at the same time."""
        epoch = epoch_at(log.epochs, offset, end=log.next_offset)
        if offset >= epoch.end:
            return None
        is_log = log is self._leader.log  # only its readers are kept
        reader = self._leader.reader(offset) if is_log else log.reader(offset)
        records, record_count, next_offset = read_batches(reader, max_bytes=max_bytes, to_offset=epoch.end)
        if is_log and reader.offset == next_offset:
            self._leader.keep(reader)
        has_gaps = record_count < next_offset - offset
        return Records(epoch.epoch, epoch.start, records, next_offset, has_gaps)


def _report(follower: int, log: Log, position: LogPosition, gate: ReplicatedGate) -> Diverging | OutOfRange | None:
    differs = compared(position, log.epochs, start=log.start_offset, end=log.next_offset)
    if differs is None:
        gate.report(follower, min(position.durable_offset, position.offset))
    return differs
