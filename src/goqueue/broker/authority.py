"""What a broker asks of its cluster: to decide about topics, and who leads which partition.

A broker that is alone decides itself, and has no authority. In a cluster the controller decides, for all nodes, and the
decision comes back to every broker through the metadata log: a broker creates, alters, deletes and leads what the log
says, and nothing else (`cluster/reconciler.py`).

What a node says of its cluster is the noun `cluster` of the service. A broker that is alone answers as a cluster of one
(`cluster_of_one.py`); the server of a node puts `cluster/cluster_view.py` in its place.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from goqueue.metrics.cluster import ClusterGauges
from goqueue.service.node import Check
from goqueue.service.pending import Pending


class PartitionRoles(NamedTuple):
    """Which nodes have a partition, as of the newest record about it."""

    leader: int  # a node, or `service.topics.NO_LEADER`
    leader_epoch: int
    version: int  # grows with each record about the partition
    replicas: Sequence[int]  # the first is the preferred leader
    isr: Sequence[int]  # the replicas that are in sync
    elr: Sequence[int]  # not in sync, but with every committed record: they may lead when nobody in sync can


class Authority(Protocol):
    """The cluster, for the broker of one of its nodes."""

    def create_topic(
        self, name: str, *, partitions: int, replication_factor: int | None, settings: Mapping[str, object]
    ) -> Pending[None]:
        """Done when this node has the topic. Fails with `TopicExists`, `InvalidTopic` or `MetadataUnavailable`."""

    def alter_topic(self, name: str, changes: Mapping[str, object | None]) -> Pending[None]:
        """Done when this node has the new settings; None resets one."""

    def delete_topic(self, name: str) -> Pending[None]:
        """Done when this node no longer serves the topic."""

    def roles(self, topic_id: str, partition: int) -> PartitionRoles | None:
        """Who has the partition; None if the metadata does not know it."""

    def address(self, node: int) -> str:
        """Where clients reach a node; empty if it is not known."""

    def take_producer_numbers(self) -> range:
        """Numbers for producers that no other node gives. Raises `MetadataUnavailable`."""


class ClusterNoun(Protocol):
    """What answers the verbs of `service.cluster`, plainly or with a `Pending`; here is what is asked beside them."""

    def check(self) -> Check:
        """Whether this node is a part of its cluster, for health and readiness."""

    def gauges(self) -> ClusterGauges:
        """The cluster in numbers, for metrics."""
