"""Members of groups, as tests of delivery need them: what they got, with its receipt, and what they do with it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from goqueue.clock import SECOND
from goqueue.delivery.receipts import Receipt
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.record.message import decode_messages
from goqueue.service.groups import Join, PollResult
from goqueue.service.pending import Pending
from goqueue.testing import MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.wire import reports
from tests.broker.brokers import Node


class Got(NamedTuple):
    """A message that came from a poll."""

    partition: int
    offset: int
    value: bytes
    key: bytes | None
    count: int
    receipt: str
    deadline_ns: int


class Consumer:
    """One member of a group."""

    def __init__(self, node: Node, group: str = "workers", *, member_id: str | None = None, **asked: object) -> None:
        self.node = node
        self.group = group
        wanted = {"client_id": "c", "topics": ("orders",), "member_id": member_id, **asked}
        self.joined = node.done(node.broker.groups.join(group, Join(**wanted)))  # type: ignore[arg-type]
        self.id = self.joined.member_id

    def moved_to(self, node: Node) -> "Consumer":
        """The same member, of the broker that was started after the first one."""
        moved = object.__new__(Consumer)
        moved.node, moved.group, moved.joined, moved.id = node, self.group, self.joined, self.id
        return moved

    def poll(self, count: int = 100, **limits: int) -> list[Got]:
        return got(self.polled(count, **limits))

    def polled(self, count: int = 100, **limits: int) -> PollResult:
        return self.node.done(self.wait(count, **limits))

    def wait(self, count: int = 100, **limits: int) -> Pending[PollResult]:
        return self.node.broker.groups.poll(self.group, self.id, max_messages=count, **limits)  # type: ignore[arg-type]

    def settle(
        self, action: str, messages: Iterable[Got], *, delay: float | None = None, reason: str = ""
    ) -> list[reports.SettledMessage | GoQueueError]:
        receipts = [message.receipt for message in messages]
        return self.node.done(self.begin(action, receipts, delay=delay, reason=reason))

    def begin(
        self, action: str, receipts: Sequence[str], *, delay: float | None = None, reason: str = ""
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        delay_ns = None if delay is None else round(delay * SECOND)
        return self.node.broker.groups.settle(receipts, reports.Settlement(action, delay_ns, reason))

    def ack(self, messages: Iterable[Got]) -> list[reports.SettledMessage | GoQueueError]:
        return self.settle("ack", messages)

    def leave(self) -> None:
        self.node.done(self.node.broker.groups.leave(self.group, self.id))


def got(result: PollResult) -> list[Got]:
    """The messages of a poll, in their order."""
    found = []
    for batch, records in zip(result.polled.batches, result.records, strict=True):
        messages = decode_messages(records, TopicPartition(batch.topic, batch.partition), flags=batch.flags)
        assert len(messages) == batch.count
        for message in messages:
            count = batch.counts.get(message.offset, 1)
            receipt = str(Receipt(batch.topic, batch.partition, message.offset, count, batch.nonce))
            found.append(
                Got(batch.partition, message.offset, message.value, message.key, count, receipt, batch.deadline_ns)
            )
    return found


def offsets(messages: Iterable[Got]) -> list[int]:
    return [message.offset for message in messages]


def outcomes(results: Iterable[reports.SettledMessage | GoQueueError]) -> list[str]:
    """What became of each: the action, or the code of the error."""
    return [result.code if isinstance(result, GoQueueError) else result.action for result in results]


def floor(node: Node, group: str = "workers", partition: int = 0, topic: str = "orders") -> int:
    return node.broker.partitions.delivery(node.leader(topic, partition)).groups[group].cursor.floor


def restarted(node: Node, *, keep: Keep = "everything", seed: int | None = None) -> Node:
    """The broker after a kill, or, with less kept than everything, after a power cut."""
    assert isinstance(node.disk, MemoryDisk)
    return Node(node.disk.crash(seed, keep=keep), node.clock)
