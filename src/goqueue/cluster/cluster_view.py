"""The noun `cluster` of the service, answered by a node of a cluster.

What is read comes from the metadata that this node has applied, so every node answers, also while the metadata log is
away. What changes something is decided by the controller, wherever that is; the answer comes once this node has applied
the decision, so its result is read from the metadata as well.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from goqueue.clock import Clock
from goqueue.cluster import reports
from goqueue.cluster.messages import AnyAdminAnswer, AnyAdminRequest, ElectLeaders, NodeRemoval, RemoveNode
from goqueue.cluster.messages import SetFeatureLevel as SetFeatureLevelRequest
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import PartitionKey, Record
from goqueue.cluster.reports import Sight
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import Conflict, NotFound, PartitionNotFound, TopicNotFound
from goqueue.metrics.cluster import ClusterGauges
from goqueue.runtime.entropy import Entropy
from goqueue.service.cluster import PartitionCounts, check_election
from goqueue.service.node import Check
from goqueue.service.pending import Pending, after
from goqueue.wire import cluster_reports as wire
from goqueue.wire.reports import NodeHealth

REQUEST_ID_BYTES = 16


class HeardNodes(Protocol):
    """The controller, while this node is it."""

    def last_heard_ns(self, node: int) -> int | None:
        """When it heard the node last, by the monotonic clock; None if it has not since it took over."""


class ClusterMember(Protocol):
    """What is asked of the node that runs in this process, which is `cluster/node.py`."""

    @property
    def metadata(self) -> Metadata:
        """The applied state; after a snapshot it may be another object."""

    @property
    def controller(self) -> HeardNodes | None: ...

    @property
    def is_metadata_available(self) -> bool:
        """Whether the metadata log answered the last time that it was asked."""


class ClusterView:
    """The verbs of one node. `decide` asks the controller, and is done when this node has applied the decision."""

    def __init__(
        self,
        member: ClusterMember,
        decide: Callable[[AnyAdminRequest], Pending[AnyAdminAnswer]],
        *,
        node: int,
        kind: str,
        endpoints: Sequence[str],
        own_health: Callable[[], NodeHealth],
        timing: ClusterTiming,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._member = member
        self._decide = decide
        self._node = node
        self._kind = kind
        self._endpoints = tuple(endpoints)
        self._own_health = own_health
        self._timing = timing
        self._clock = clock
        self._entropy = entropy
        self._updated_at_ns = clock.wall_ns()
        self._controller_since_ns = clock.monotonic_ns()
        self._epoch = member.metadata.epoch
        self._counted: tuple[Metadata, int, PartitionCounts] | None = None

    def applied(self, records: Sequence[Record]) -> None:
        """The node has applied these records; to be called each time that it has."""
        if records:
            self._updated_at_ns = self._clock.wall_ns()
        self._notice_controller()

    # --- the verbs -------------------------------------------------------------------------------

    def state(self) -> wire.ClusterState:
        """As this node has applied it."""
        return reports.state(self._metadata, self._sight())

    def health(self) -> wire.ClusterHealth:
        """As this node has applied it; the controller also knows who is silent."""
        return reports.health(self._metadata, self._sight(), self._counts())

    def nodes(self) -> list[wire.ClusterNode]:
        """By id."""
        return reports.nodes(self._metadata, self._sight())

    def node(self, node_id: int) -> wire.NodeDetails:
        """Raises `NotFound`."""
        return reports.node_details(self._metadata, self._sight(), node_id, self._own_health)

    def partitions(self, topic: str | None = None) -> list[wire.PartitionPlacement]:
        """Raises `TopicNotFound`."""
        return reports.partitions(self._metadata, topic)

    def metadata(self) -> str:
        """As this node has applied it."""
        return "\n".join(self._metadata.dump())

    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        is_unclean: bool = False,
        replica: int | None = None,
    ) -> Pending[list[wire.ElectionResult]]:
        """Raises `TopicNotFound`, `PartitionNotFound`, `NotFound` and `InvalidRequest` for what is not there."""
        metadata = self._metadata
        check_election(topic, partitions, is_unclean=is_unclean, replica=replica)
        if replica is not None and metadata.broker(replica) is None:
            raise NotFound(f"node {replica}")
        before = {key: metadata.partitions[key] for key in self._concerned(topic, partitions, is_unclean)}
        names = {topic_id: metadata.topics[topic_id].name for topic_id, _ in before}
        request = ElectLeaders(
            self._new_id(),
            topic=topic,
            partitions=None if partitions is None else tuple(partitions),
            is_unclean=is_unclean,
            replica=replica,
        )

        def results(_: AnyAdminAnswer) -> list[wire.ElectionResult]:
            return [
                reports.election_result(
                    self._metadata,
                    key,
                    names[key[0]],
                    before=partition.leader_epoch,
                    wanted=replica if is_unclean else partition.replicas[0],
                    is_unclean=is_unclean,
                )
                for key, partition in before.items()
            ]

        return after(self._decide(request), results)

    def remove_node(self, node_id: int) -> Pending[wire.RemovalProgress]:
        """Raises `NotFound`, and `Conflict` for the only node."""
        self._check_removable(node_id)

        def progress(answer: AnyAdminAnswer) -> wire.RemovalProgress:
            assert isinstance(answer, NodeRemoval), answer
            return wire.RemovalProgress(node_id, answer.partitions_left)

        return after(self._decide(RemoveNode(self._new_id(), node_id)), progress)

    def feature_level(self) -> wire.FeatureLevel:
        """The level in use, and the highest one that all nodes know."""
        return reports.feature_level(self._metadata)

    def set_feature_level(self, level: int) -> Pending[wire.FeatureLevel]:
        """Raises `Conflict` for one that is lower, or that a node does not know."""
        known = self.feature_level()
        if level < known.level:
            raise Conflict(f"the feature level is {known.level}; there is no way back to {level}")
        if level > known.level_max:
            brokers = self._metadata.brokers.values()
            behind = [str(broker.node) for broker in brokers if broker.registration.feature_level_max < level]
            raise Conflict(f"feature level {level} is not known to node {', '.join(behind)}; update it first")
        if level == known.level:
            return Pending.of(known)
        request = SetFeatureLevelRequest(self._new_id(), level)
        return after(self._decide(request), lambda _: self.feature_level())

    # --- beside the verbs ------------------------------------------------------------------------

    def check(self) -> Check:
        """Fails while this node may not lead: it is not registered, or fenced."""
        metadata = self._metadata
        own = metadata.broker(self._node)
        if own is None:
            return Check("fail", "this node is not registered in its cluster yet")
        if own.is_fenced:
            return Check("fail", "this node is fenced: the controller has not heard from it, or it is catching up")
        if not self._member.is_metadata_available:
            return Check("warn", "the metadata log does not answer: nothing can be created, changed or elected")
        if metadata.controller is None:
            return Check("warn", "the cluster has no controller")
        return Check("pass")

    def gauges(self) -> ClusterGauges:
        """The cluster in numbers."""
        return reports.gauges(self._metadata, self._sight(), self._counts())

    @property
    def _metadata(self) -> Metadata:
        return self._member.metadata

    def _notice_controller(self) -> None:
        if self._epoch != self._metadata.epoch:  # by a record, or by a snapshot that covers it
            self._epoch = self._metadata.epoch
            self._controller_since_ns = self._clock.monotonic_ns()

    def _sight(self) -> Sight:
        self._notice_controller()
        controller = self._member.controller
        return Sight(
            node=self._node,
            kind=self._kind,
            endpoints=self._endpoints,
            is_available=self._member.is_metadata_available,
            wall_ns=self._clock.wall_ns(),
            monotonic_ns=self._clock.monotonic_ns(),
            updated_at_ns=self._updated_at_ns,
            controller_since_ns=self._controller_since_ns,
            timing=self._timing,
            last_heard_ns=None if controller is None else controller.last_heard_ns,
        )

    def _counts(self) -> PartitionCounts:
        """Counted once per state: a scrape of a quiet cluster does not go over its partitions."""
        metadata = self._metadata
        index = metadata.position.index
        if self._counted is None or self._counted[0] is not metadata or self._counted[1] != index:
            self._counted = metadata, index, reports.count_partitions(metadata)
        return self._counted[2]

    def _concerned(self, topic: str | None, partitions: Sequence[int] | None, is_unclean: bool) -> list[PartitionKey]:
        """The given partitions, or those that an election may change."""
        metadata = self._metadata
        topic_id = ""
        if topic is not None:
            found = metadata.topic_named(topic)
            if found is None:
                raise TopicNotFound(topic)
            topic_id = found.id
        if partitions is not None and topic is not None:
            for number in partitions:
                if metadata.partition(topic_id, number) is None:
                    raise PartitionNotFound(topic, number)
            return [(topic_id, number) for number in dict.fromkeys(partitions)]
        return [
            key
            for key in sorted(metadata.misplaced())
            if topic is None or key[0] == topic_id
            if not is_unclean or metadata.partitions[key].leader is None
        ]

    def _check_removable(self, node_id: int) -> None:
        brokers = self._metadata.brokers
        if node_id not in brokers:
            raise NotFound(f"node {node_id}")
        if len(brokers) == 1:
            raise Conflict(f"node {node_id} is the only node of its cluster, and cannot be removed")

    def _new_id(self) -> str:
        return self._entropy.bytes(REQUEST_ID_BYTES).hex()
