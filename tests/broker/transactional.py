"""Owners of transactions, as tests of the broker need them: what they publish, acknowledge and commit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from goqueue.errors import GoQueueError
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import Isolation, Stored, StoredBatch
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.wire import reports
from goqueue.wire.transaction_reports import BegunTransaction, TransactionOutcome, TransactionOwner
from tests.broker.brokers import Node, values_of
from tests.broker.consumers import Got, restarted


class Owner:
    """A producer with a transactional id, which counts what it sends."""

    def __init__(self, node: Node, name: str = "billing", *, timeout_ms: int = 60_000) -> None:
        self.node = node
        self.name = name
        self.session = node.done(node.broker.transactions.init(name, timeout_ms=timeout_ms))
        self.sequences: dict[tuple[str, int], int] = {}
        self.number = 0

    def moved_to(self, node: Node) -> "Owner":
        """The same owner, of the broker that was started after the first one."""
        moved = object.__new__(Owner)
        moved.__dict__.update(self.__dict__, node=node)
        return moved

    @property
    def id(self) -> str:
        return f"{self.name}:{self.number}"

    @property
    def key(self) -> tuple[int, int]:
        return self.session.producer_id, self.number

    @property
    def owner(self) -> TransactionOwner:
        return TransactionOwner(self.name, self.session.producer_id, self.session.epoch, self.number)

    def begin(self, *, marker: str | None = None, number: int = 0) -> BegunTransaction:
        asked = self.node.broker.transactions.begin(
            self.name, self.session.producer_id, self.session.epoch, marker=marker, number=number
        )
        begun = self.node.done(asked)
        self.number = begun.number
        return begun

    def batch(
        self,
        values: Sequence[bytes | None],
        topic: str,
        partition: int,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        again: bool = False,
    ) -> bytearray:
        """Records of the transaction; `again` the last ones once more."""
        end = self.sequences.get((topic, partition), 0)
        first = end - len(values) if again else end
        identity = BatchIdentity(self.session.producer_id, self.session.epoch, first, len(values), self.number)
        others: list[Mapping[str, str | bytes] | None] = [headers] * (len(values) - 1)
        first_headers: Mapping[str, str | bytes] = {PRODUCER: identity.encode(), **(headers or {})}
        return kernel.encode(values, keys=keys, headers=[first_headers, *others], flags=Flags.TRANSACTIONAL)

    def send(
        self,
        *values: bytes | None,
        topic: str = "orders",
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        again: bool = False,
    ) -> Pending[StoredBatch]:
        """Publish a batch inside of the transaction, and let nothing run yet."""
        records = self.batch(values, topic, partition, keys=keys, headers=headers, again=again)
        stored = self.node.broker.messages.publish_records(topic, partition, records)
        if not again:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + len(values)
        return stored

    def publish(
        self,
        *values: bytes | None,
        topic: str = "orders",
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        again: bool = False,
    ) -> StoredBatch:
        return self.node.done(
            self.send(*values, topic=topic, partition=partition, keys=keys, headers=headers, again=again)
        )

    def messages(self, *messages: NewMessage, topic: str = "orders") -> list[Stored | GoQueueError]:
        """Publish as HTTP does: by the name of the transaction."""
        return self.node.done(self.node.broker.messages.publish(topic, messages, transaction_id=self.id))

    def ack(self, messages: Iterable[Got]) -> list[reports.SettledMessage | GoQueueError]:
        receipts = [message.receipt for message in messages]
        asked = self.node.broker.transactions.add_acks(self.session.producer_id, self.session.epoch, receipts)
        return self.node.done(asked)

    def position(self, offset: int, *, group: str = "readers", topic: str = "orders", partition: int = 0) -> None:
        commits = [reports.PositionCommit(topic, partition, offset)]
        asked = self.node.broker.transactions.add_offsets(self.session.producer_id, self.session.epoch, group, commits)
        self.node.done(asked)

    def committing(self, *together: "Owner", marker: str | None = None) -> Pending[TransactionOutcome]:
        others = [other.owner for other in together]
        return self.node.broker.transactions.commit(self.owner, together=others, marker=marker)

    def commit(self, *together: "Owner", marker: str | None = None) -> TransactionOutcome:
        return self.node.done(self.committing(*together, marker=marker))

    def aborting(self) -> Pending[TransactionOutcome]:
        return self.node.broker.transactions.abort(self.owner)

    def abort(self) -> TransactionOutcome:
        return self.node.done(self.aborting())


def now_and_later(node: Node) -> Iterator[Node]:
    """The broker as it is, and after a power cut."""
    yield node
    yield restarted(node, keep="nothing")


def uncommitted(node: Node, topic: str = "orders", partition: int = 0) -> list[bytes]:
    """All values that are stored, decided or not, aborted ones, too."""
    found: list[bytes] = []
    offset = 0
    while True:
        asked = node.broker.messages.read(topic, partition, offset=offset, isolation=Isolation.READ_UNCOMMITTED)
        result = asked.result()
        if not result.record_count:
            return found
        found += values_of(result)
        offset = result.next_offset


def position_of(node: Node, group: str = "readers", topic: str = "orders", partition: int = 0) -> int:
    """Where the group stands; 0 if it was never there."""
    if group not in node.broker.groups.names():
        return 0
    found = node.broker.groups.positions(group, topic=topic)
    return next((one.offset for one in found if one.partition == partition), 0)
