"""One open transaction: the partitions, positions and acks that it has touched so far.

All of this is in memory only. It becomes durable as a part of the decision that commits it; a restart before that
aborts the transaction.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import Conflict, InvalidRequest, ProducerFenced
from goqueue.names import TopicPartition
from goqueue.transactions.decisions import DecidedAcks, DecidedPartition, DecidedPosition, DecisionPart
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import TransactionState
from goqueue.wire.reports import PartitionName
from goqueue.wire.transaction_reports import TransactionInfo

GroupPartition = tuple[str, str, int]
"""Group, topic, partition."""


class StoredRecords(NamedTuple):
    """The records that a partition has stored, and the epoch of the leader that stored the first."""

    epoch: int
    record_count: int


class JobRun:
    """One attempt at a job: its open transactions, whose timeouts restart together."""

    __slots__ = ("job", "kept_at_ns", "kept_ns", "name", "transactions")

    def __init__(self, job: str, name: str) -> None:
        self.job = job
        self.name = name
        self.kept_ns = 0  # monotonic
        self.kept_at_ns = 0  # wall clock
        self.transactions: set[StagedTransaction] = set()

    def keep(self, *, now_ns: int, wall_ns: int) -> None:
        """Restart the timeouts, without touching each transaction: a job may have thousands."""
        self.kept_ns = now_ns
        self.kept_at_ns = wall_ns


class StagedTransaction:
    """Partitions, positions and acks that take effect together or not at all. The coordinator changes the state."""

    __slots__ = (
        "_held_in",
        "_limits",
        "_written",
        "acks",
        "begun_ns",
        "epoch",
        "kept_ns",
        "number",
        "partitions",
        "positions",
        "producer_id",
        "record_count",
        "run",
        "started_at_ns",
        "state",
        "timeout_ms",
        "transactional_id",
        "updated_at_ns",
    )

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        number: int,
        *,
        timeout_ms: int,
        begun_ns: int,
        started_at_ns: int,
        limits: TransactionLimits,
        run: "JobRun | None" = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch  # under which it was begun
        self.number = number
        self.timeout_ms = timeout_ms
        self.begun_ns = begun_ns  # monotonic
        self.kept_ns = begun_ns  # when its timeout was last restarted
        self.run = run  # of the job that it belongs to (`jobs.py`)
        self.started_at_ns = started_at_ns  # wall clock
        self.updated_at_ns = started_at_ns
        self.record_count = 0  # stored records; a duplicate batch counts once
        self.state = TransactionState.ONGOING
        self.partitions: dict[TopicPartition, DecidedPartition] = {}
        self.positions: dict[GroupPartition, DecidedPosition] = {}
        self.acks: dict[GroupPartition, DecidedAcks] = {}
        self._written: dict[TopicPartition, StoredRecords] = {}
        self._held_in: dict[GroupPartition, int] = {}  # the epoch of the leader that held the first of these acks
        self._limits = limits

    @property
    def key(self) -> tuple[int, int]:
        """Producer id and number: how partitions know it."""
        return self.producer_id, self.number

    @property
    def id(self) -> str:
        """The id that users see."""
        return transaction_id(self.transactional_id, self.number)

    @property
    def deadline_ns(self) -> int:
        """When it times out."""
        kept_ns = self.kept_ns if self.run is None else max(self.kept_ns, self.run.kept_ns)
        return kept_ns + self.timeout_ms * MS

    def keep(self, *, now_ns: int, wall_ns: int) -> None:
        """Restart the timeout."""
        self.kept_ns = now_ns
        self.updated_at_ns = wall_ns

    @property
    def groups(self) -> list[str]:
        """The groups whose positions and acks are in it."""
        return sorted({group for group, _, _ in (*self.positions, *self.acks)})

    def check_owner(self, producer_id: int, epoch: int) -> None:
        """Raise `InvalidRequest` or `ProducerFenced` unless this producer may write here."""
        if producer_id != self.producer_id:
            raise InvalidRequest(f"{self.id} belongs to producer {self.producer_id}", path="transaction_id")
        if epoch != self.epoch:
            raise ProducerFenced(producer_id, epoch, self.epoch)

    def add_partition(self, topic: str, topic_id: str, partition: int, *, wall_ns: int) -> bool:
        """Note that the partition gets a marker; false if that was known."""
        assert self.state is TransactionState.ONGOING
        name = TopicPartition(topic, partition)
        known = self.partitions.get(name)
        if known and known.topic_id == topic_id:
            return False
        self._check_room("partitions", self.partitions, name)
        self.partitions[name] = DecidedPartition(topic, topic_id, partition)
        self._written.pop(name, None)  # they were in an earlier topic of that name
        self.updated_at_ns = wall_ns
        return True

    def stored(self, partition: TopicPartition, epoch: int, record_count: int) -> None:
        """Count records that the leader of that epoch has stored."""
        self.record_count += record_count
        known = self._written.get(partition)
        if known is None:
            self._written[partition] = StoredRecords(epoch, record_count)
        else:
            self._written[partition] = StoredRecords(known.epoch, known.record_count + record_count)

    def written_to(self, place: DecidedPartition) -> StoredRecords | None:
        """What the partition has stored; None if that is nothing."""
        return self._written.get(TopicPartition(place.topic, place.partition))

    def held_in(self, acks: DecidedAcks) -> int | None:
        """The epoch of the leader that held the first of these; None after a restart."""
        return self._held_in.get((acks.group, acks.topic, acks.partition))

    def add_position(self, position: DecidedPosition, *, wall_ns: int) -> None:
        """Set the position of the group when the transaction commits; the last one for a partition counts."""
        assert self.state is TransactionState.ONGOING
        name = (position.group, position.topic, position.partition)
        self._check_room("positions", self.positions, name)
        self.positions[name] = position
        self.updated_at_ns = wall_ns

    def add_acks(self, acks: DecidedAcks, *, epoch: int = 0, wall_ns: int) -> None:
        """Ack these messages, which the leader of that epoch holds, for the group when the transaction commits."""
        assert self.state is TransactionState.ONGOING
        name = (acks.group, acks.topic, acks.partition)
        known = self.acks.get(name)
        if known and known.topic_id == acks.topic_id:
            known.offsets.update(acks.offsets)
        else:
            self._check_room("sets of acks", self.acks, name)
            own = DecidedAcks(acks.group, acks.topic, acks.topic_id, acks.partition, BitMap64(acks.offsets))
            self.acks[name] = own
            self._held_in[name] = epoch
        self.updated_at_ns = wall_ns

    def part(self, ends: "PartitionEnds | None" = None) -> DecisionPart:
        """The effects of its end. For a commit, `ends` says where each partition ends now."""
        places = list(self.partitions.values())
        if ends is not None:
            places = [ends.end_of(self, one) for one in places]
            for acks in self.acks.values():
                ends.check_acks(self, acks)
        return DecisionPart(
            self.transactional_id,
            self.producer_id,
            self.number,
            self.started_at_ns,
            places,
            list(self.positions.values()),
            list(self.acks.values()),
        )

    def info(self) -> TransactionInfo:
        """A report for users."""
        return TransactionInfo(
            self.id,
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.state.value,
            self.started_at_ns,
            self.updated_at_ns if self.run is None else max(self.updated_at_ns, self.run.kept_at_ns),
            self.timeout_ms,
            [PartitionName(topic, partition) for topic, partition in sorted(self.partitions)],
            self.groups,
        )

    def _check_room(self, what: str, things: Collection[object], name: object) -> None:
        if len(things) >= self._limits.partitions_max and name not in things:
            raise Conflict(f"transaction {self.id} has {len(things)} {what}, which is the limit; commit it first")


class PartitionEnds(Protocol):
    """Knows where partitions end. It raises if a partition has lost what the transaction has stored or acknowledged."""

    def end_of(self, transaction: StagedTransaction, place: DecidedPartition) -> DecidedPartition:
        """The same partition with its end."""

    def check_acks(self, transaction: StagedTransaction, acks: DecidedAcks) -> None:
        """Raise unless the transaction still holds these."""


def transaction_id(transactional_id: str, number: int) -> str:
    """The id that users see."""
    return f"{transactional_id}:{number}"


def split_transaction_id(text: str) -> tuple[str, int] | None:
    """The transactional id and the number; None if the text is no transaction id."""
    transactional_id, colon, digits = text.rpartition(":")
    if not colon or not digits.isascii() or not digits.isdigit() or len(digits) > 19 or digits.startswith("0"):
        return None
    return transactional_id, int(digits)
