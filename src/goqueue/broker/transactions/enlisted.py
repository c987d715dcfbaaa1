"""An open transaction, for the parts of the broker that publish, ack or commit positions in it."""

from collections.abc import Callable

from pyroaring import BitMap64

from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.transactions.decisions import DecidedAcks, DecidedPosition
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire import reports


class Enlisted:
    """Notes in a transaction what belongs to it, and which leader has it."""

    __slots__ = ("_topics", "_wall_ns", "epoch", "key", "number", "producer_id", "transaction")

    def __init__(self, transaction: StagedTransaction, topics: LocalPartitions, wall_ns: Callable[[], int]) -> None:
        self.transaction = transaction
        self.producer_id = transaction.producer_id
        self.epoch = transaction.epoch
        self.number = transaction.number
        self.key = transaction.key
        self._topics = topics
        self._wall_ns = wall_ns

    def add_partition(self, topic: str, partition: int) -> None:
        """Write a marker to the partition when the transaction ends."""
        topic_id = self._topics.topic_id(topic, partition)
        self.transaction.add_partition(topic, topic_id, partition, wall_ns=self._wall_ns())

    def stored(self, leader: PartitionLeader, record_count: int) -> None:
        """Count records that the leader has stored in it."""
        self.transaction.stored(leader.origin, leader.epoch, record_count)

    def add_acks(self, group: str, leader: PartitionLeader, offsets: BitMap64) -> None:
        """Acknowledge these for the group when the transaction is committed."""
        topic, partition = leader.origin
        acks = DecidedAcks(group, topic, self._topics.topic_id(topic, partition), partition, offsets)
        self.transaction.add_acks(acks, epoch=leader.epoch, wall_ns=self._wall_ns())

    def add_position(self, group: str, commit: reports.PositionCommit) -> None:
        """Set the position of the group when the transaction is committed."""
        topic_id = self._topics.topic_id(commit.topic, commit.partition)
        position = DecidedPosition(group, commit.topic, topic_id, commit.partition, commit.offset, commit.metadata)
        self.transaction.add_position(position, wall_ns=self._wall_ns())
