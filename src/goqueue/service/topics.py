"""The verbs about topics, and what they return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb

NO_LEADER = -1


class PartitionInfo(NamedTuple):
    """Where a partition begins and ends. `end_offset` is the offset of the next record."""

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    leader: int  # a node, or `NO_LEADER`
    leader_epoch: int
    message_count: int = 0  # without control records, and without what compaction has removed
    version: int = 0  # grows with each change of the leader, the replicas or who is in sync
    replicas: Sequence[int] = ()  # nodes; the first is the preferred leader
    isr: Sequence[int] = ()  # the replicas that are in sync
    elr: Sequence[int] = ()  # not in sync, but with every committed record


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as it is now."""

    name: str
    topic_id: str
    replication_factor: int
    created_at_ns: int
    settings: Mapping[str, object]  # all of them, in their public form
    defaults: Sequence[str]  # the names of those that are not set
    partitions: Sequence[PartitionInfo]

    @property
    def total_messages(self) -> int:
        return sum(one.message_count for one in self.partitions)

    @property
    def total_size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)


class TopicVerbs(Protocol):
    """Topics. Internal topics can be described, and nothing else."""

    @verb(Resource.TOPIC, Action.CREATE, Route.CONTROLLER, frame="CREATE_TOPIC")
    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Pending[TopicInfo]:
        """A new topic, once it is durable."""

    @verb(Resource.TOPIC, Action.DELETE, Route.CONTROLLER, frame="DELETE_TOPIC")
    def delete(self, topic: str) -> Pending[None]:
        """Delete the topic: it is gone at once, its files are removed later."""

    @verb(Resource.TOPIC, Action.ALTER, Route.CONTROLLER, frame="ALTER_TOPIC")
    def alter(self, topic: str, changes: Mapping[str, object]) -> Pending[TopicInfo]:
        """Change settings; None resets one."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE, frame="LIST_TOPICS")
    def list(self, *, internal: bool = False) -> Pending[list[str]]:
        """The names, sorted."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.ALL_NODES, frame="DESCRIBE_TOPIC")
    def describe(self, topic: str) -> Pending[TopicInfo]: ...

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER, frame="OFFSETS")
    def offsets(self, topic: str, *, time_ns: int | None = None, at: str = "latest") -> Pending[Sequence[int]]:
        """By partition: the first offset at or after a time, or `earliest`, or `latest` (the high watermark)."""

    @verb(Resource.TOPIC, Action.DELETE, Route.LEADER)
    def truncate(self, topic: str, partition: int, before_offset: int) -> Pending[int]:
        """Delete the records of a partition below an offset; -1 deletes all. Returns the new start of the log."""
