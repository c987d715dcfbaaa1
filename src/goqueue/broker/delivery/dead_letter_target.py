"""Where copies of messages go: a partition of a dead-letter topic, or of the topic that a redrive leads to.

A copy needs two things of its target: which batch of a producer is the last one there, and that a batch is stored. Both
may be sent again after any failure, and the sequences of the producer tell whether a batch was stored. So the target
may be led by any node: `DeadLetterTarget` is all that is known about it here.

A target is found again for each attempt. It names its topic by id: a topic that was deleted and created again under the
same name is another target, which has none of the batches.
"""

from typing import Protocol

from goqueue import events
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.publishing import publish_batch
from goqueue.errors import TopicNotFound
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending, after
from goqueue.topics.config import Acks
from goqueue.transactions.sequences import LastBatch


class DeadLetterTarget(Protocol):
    """One partition that takes copies of messages."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...

    def last_batch(self, producer_id: int) -> Pending[LastBatch | None]:
        """The last batch of the producer, once it may be acknowledged; None if the target has none."""

    def publish(
        self, records: bytearray, identity: BatchIdentity, copied_from: events.CopyOrigin
    ) -> Pending[StoredBatch]:
        """Store the batch, unless the target has it; done when it may be acknowledged."""


class DeadLetterTargets(Protocol):
    """All partitions that may take copies."""

    def find(self, topic: str, number: int, *, like: str | None) -> Pending[DeadLetterTarget]:
        """The partition of that number, modulo the number of partitions. A topic that does not exist is created with as
        many partitions as the topic `like` has; without `like` it is not found.
        """


class LocalTarget:
    """A partition that this node leads."""

    def __init__(self, partitions: LocalPartitions, topic: str, topic_id: str, partition: int) -> None:
        self._partitions = partitions
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition

    def last_batch(self, producer_id: int) -> Pending[LastBatch | None]:
        """The last batch of the producer, once it may be acknowledged; None if the target has none."""
        leader = self._leader()
        last = leader.producers.sequences.last_batch(producer_id)
        end_offset = 0 if last is None else last.first_offset + last.record_count
        return leader.when_stored(end_offset, last)

    def publish(
        self, records: bytearray, identity: BatchIdentity, copied_from: events.CopyOrigin
    ) -> Pending[StoredBatch]:
        """Store the batch, unless the target has it; done when it may be acknowledged."""
        return publish_batch(self._leader(), records, acks=Acks.ALL, identity=identity, copied_from=copied_from)

    def _leader(self) -> PartitionLeader:
        leader = self._partitions.local_leader(self.topic, self.topic_id, self.partition)
        if leader is None:
            raise TopicNotFound(self.topic)
        return leader


class LocalTargets:
    """The partitions of one node."""

    def __init__(self, partitions: LocalPartitions) -> None:
        self._partitions = partitions

    def find(self, topic: str, number: int, *, like: str | None) -> Pending[DeadLetterTarget]:
        """The partition of that number, modulo the number of partitions. A topic that does not exist is created with as
        many partitions as the topic `like` has; without `like` it is not found.
        """

        def target(found_id: str, partition_count: int) -> DeadLetterTarget:
            return LocalTarget(self._partitions, topic, found_id, number % partition_count)

        opened = self._partitions.target(topic, like=like)
        return after(opened, lambda found: target(found.topic.id, found.partition_count))
