"""One open transaction: what it has touched so far.

All of it is in memory only. It becomes durable as a part of the decision that commits it; without one it never was.
"""

from collections.abc import Callable, Collection

from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import Conflict, InvalidRequest, ProducerFenced
from goqueue.names import TopicPartition
from goqueue.transactions.decisions import DecidedAcks, DecidedPartition, DecidedPosition, DecisionPart
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import State
from goqueue.wire.reports import PartitionName
from goqueue.wire.transaction_reports import TransactionInfo

GroupPartition = tuple[str, str, int]
"""Group, topic, partition."""


class Run:
    """One attempt at a job: the transactions that are open in it, whose timeouts start anew together."""

    __slots__ = ("job", "kept_at_ns", "kept_ns", "name", "transactions")

    def __init__(self, job: str, name: str) -> None:
        self.job = job
        self.name = name
        self.kept_ns = 0  # by the clock that never jumps
        self.kept_at_ns = 0  # as the calendar shows it
        self.transactions: set[Transaction] = set()

    def keep(self, *, now_ns: int, wall_ns: int) -> None:
        """Let the timeouts start anew. This does not look at each of them: a job may have thousands."""
        self.kept_ns = now_ns
        self.kept_at_ns = wall_ns


class Transaction:
    """Partitions, positions and acks that will count together, or not at all. Its coordinator changes the state."""

    __slots__ = (
        "_limits",
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
        run: "Run | None" = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch  # under which it was begun
        self.number = number
        self.timeout_ms = timeout_ms
        self.begun_ns = begun_ns  # by the clock that never jumps
        self.kept_ns = begun_ns  # when its timeout started last
        self.run = run  # of the job that it is a part of (`jobs.py`)
        self.started_at_ns = started_at_ns  # as the calendar shows it
        self.updated_at_ns = started_at_ns
        self.record_count = 0  # what was stored of it, each batch once
        self.state = State.ONGOING
        self.partitions: dict[TopicPartition, DecidedPartition] = {}
        self.positions: dict[GroupPartition, DecidedPosition] = {}
        self.acks: dict[GroupPartition, DecidedAcks] = {}
        self._limits = limits

    @property
    def id(self) -> str:
        """What users call it."""
        return transaction_id(self.transactional_id, self.number)

    @property
    def deadline_ns(self) -> int:
        """When it is aborted if nothing is decided by then."""
        kept_ns = self.kept_ns if self.run is None else max(self.kept_ns, self.run.kept_ns)
        return kept_ns + self.timeout_ms * MS

    def keep(self, *, now_ns: int, wall_ns: int) -> None:
        """Let its timeout start anew."""
        self.kept_ns = now_ns
        self.updated_at_ns = wall_ns

    @property
    def groups(self) -> list[str]:
        """Whose positions and acks are in it."""
        return sorted({group for group, _, _ in (*self.positions, *self.acks)})

    def check_owner(self, producer_id: int, epoch: int) -> None:
        """Returns if this producer may write here. Raises `InvalidRequest` or `ProducerFenced`."""
        if producer_id != self.producer_id:
            raise InvalidRequest(f"{self.id} belongs to producer {self.producer_id}", path="transaction_id")
        if epoch != self.epoch:
            raise ProducerFenced(producer_id, epoch, self.epoch)

    def add_partition(self, topic: str, topic_id: str, partition: int, *, wall_ns: int) -> bool:
        """The partition gets a marker; False if it was to get one already."""
        assert self.state is State.ONGOING
        name = TopicPartition(topic, partition)
        known = self.partitions.get(name)
        if known and known.topic_id == topic_id:
            return False
        self._check_room("partitions", self.partitions, name)
        self.partitions[name] = DecidedPartition(topic, topic_id, partition)
        self.updated_at_ns = wall_ns
        return True

    def add_position(self, position: DecidedPosition, *, wall_ns: int) -> None:
        """The group is there as soon as the transaction commits; of several for one partition the last counts."""
        assert self.state is State.ONGOING
        name = (position.group, position.topic, position.partition)
        self._check_room("positions", self.positions, name)
        self.positions[name] = position
        self.updated_at_ns = wall_ns

    def add_acks(self, acks: DecidedAcks, *, wall_ns: int) -> None:
        """The group is done with these, too, as soon as the transaction commits."""
        assert self.state is State.ONGOING
        name = (acks.group, acks.topic, acks.partition)
        known = self.acks.get(name)
        if known and known.topic_id == acks.topic_id:
            known.offsets.update(acks.offsets)
        else:
            self._check_room("sets of acks", self.acks, name)
            own = DecidedAcks(acks.group, acks.topic, acks.topic_id, acks.partition, BitMap64(acks.offsets))
            self.acks[name] = own
        self.updated_at_ns = wall_ns

    def part(self, end_of: Callable[[DecidedPartition], int] | None = None) -> DecisionPart:
        """What has to happen when it ends; `end_of` tells where the partitions end now."""
        places = list(self.partitions.values())
        if end_of is not None:
            places = [DecidedPartition(one.topic, one.topic_id, one.partition, end_of(one)) for one in places]
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
        """The transaction as it is now."""
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
            raise Conflict(f"transaction {self.id} has {len(things)} {what}, which is the limit")


def transaction_id(transactional_id: str, number: int) -> str:
    """What users call the transaction of that number."""
    return f"{transactional_id}:{number}"


def split_transaction_id(text: str) -> tuple[str, int] | None:
    """The transactional id and the number; None if it is no name of a transaction."""
    transactional_id, colon, digits = text.rpartition(":")
    if not colon or not digits.isascii() or not digits.isdigit() or len(digits) > 19 or digits.startswith("0"):
        return None
    return transactional_id, int(digits)
