"""The cluster, for a broker that is alone: itself, which leads all partitions and is its own controller.

It has no metadata log. What a cluster would keep there is in the files of its data directory, so the kind is `file`,
the index is 0, and there is no cluster id. Elections change nothing, since no other replica could lead.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from goqueue.broker.health import Health
from goqueue.broker.local_partitions import LocalPartitions, LocalTopic
from goqueue.broker.stopping import Stopping
from goqueue.clock import Clock
from goqueue.errors import Conflict, NotFound, PartitionNotFound
from goqueue.metrics.cluster import ClusterGauges
from goqueue.names import VERSION
from goqueue.service.cluster import (
    FILE,
    NO_NODE,
    NODE_STATES,
    ONLINE,
    STOPPING,
    PartitionCounts,
    check_election,
    cluster_health,
    partition_status,
)
from goqueue.service.node import Check
from goqueue.wire import cluster_reports as reports


class ListeningAddresses(NamedTuple):
    """Where the doors of this node listen, as `host:port`; empty where they do not."""

    client: str = ""
    http: str = ""
    grpc: str = ""


class ClusterOfOne:
    """The verbs of a broker without a cluster."""

    def __init__(
        self, partitions: LocalPartitions, node: Health, *, node_id: int, stopping: Stopping, clock: Clock
    ) -> None:
        self._partitions = partitions
        self._node = node
        self._node_id = node_id
        self._stopping = stopping
        self._clock = clock
        self._began_ns = clock.wall_ns()
        self.addresses = ListeningAddresses()  # set by the server, once its doors listen

    def state(self) -> reports.ClusterState:
        """This node alone."""
        return reports.ClusterState(
            version=0,
            cluster_id="",
            controller_id=self._node_id,
            controller_epoch=0,
            nodes=self.nodes(),
            metadata=reports.MetadataLogState(kind=FILE, applied_index=0, available=True, endpoints=[]),
            updated_at_ns=self._began_ns,
        )

    def health(self) -> reports.ClusterHealth:
        """Partitions that were resigned are offline."""
        alone = reports.NodeLiveness(id=self._node_id, status=self._status, last_seen_ns=self._clock.wall_ns())
        return cluster_health(
            [alone], self._counts(), controller_id=self._node_id, controller_epoch=0, is_metadata_available=True
        )

    def nodes(self) -> list[reports.ClusterNode]:
        """This node alone."""
        return [
            reports.ClusterNode(
                id=self._node_id,
                client_address=self.addresses.client,
                peer_address="",
                http_address=self.addresses.http,
                grpc_address=self.addresses.grpc,
                rack="",
                status=self._status,
                is_controller=True,
                broker_epoch=0,
                is_leaving=False,
            )
        ]

    def node(self, node_id: int) -> reports.NodeDetails:
        """This node; a quarantined topic stands for its partitions, since their number is not known."""
        self._check_is_self(node_id)
        (alone,) = self.nodes()
        health = self._node.health()
        names = [(found.topic, found.partition, found.leader) for found in self.partitions()]
        return reports.NodeDetails(
            **{field: getattr(alone, field) for field in alone.__struct_fields__},
            leaders=[f"{topic}-{number}" for topic, number, leader in names if leader != NO_NODE],
            followers=[f"{topic}-{number}" for topic, number, leader in names if leader == NO_NODE],
            version=VERSION,
            quarantined=list(health.quarantined),
            uptime_ns=health.uptime_ns,
            disk_total_bytes=health.disk_total_bytes,
            disk_free_bytes=health.disk_free_bytes,
        )

    def partitions(self, topic: str | None = None) -> list[reports.PartitionPlacement]:
        """Raises `TopicNotFound`."""
        names = self._partitions.catalog.names(internal=True) if topic is None else [topic]
        return [placed for name in names for placed in self._placed(self._partitions.any_topic(name))]

    def metadata(self) -> str:
        """What a cluster would have in its metadata, of this node."""
        lines = ["no cluster: the node is alone, and has no metadata log", f"controller {self._node_id} epoch 0"]
        lines.append(f"broker {self._node_id} {self._status} version {VERSION}")
        for name in self._partitions.catalog.names(internal=True):
            found = self._partitions.any_topic(name)
            lines.append(f"topic {name} {found.topic.id} settings {dict(sorted(found.topic.settings.items()))}")
            lines += [
                f"  {placed.partition}: leader {placed.leader} epoch {placed.leader_epoch}"
                for placed in self._placed(found)
            ]
        return "\n".join(lines)

    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        is_unclean: bool = False,
        replica: int | None = None,
    ) -> list[reports.ElectionResult]:
        """Nothing changes. Raises as in a cluster for what is not there."""
        check_election(topic, partitions, is_unclean=is_unclean, replica=replica)
        if replica is not None:
            self._check_is_self(replica)
        if partitions is None:
            if topic is not None:
                self._partitions.any_topic(topic)
            return []
        assert topic is not None
        placed = {found.partition: found for found in self.partitions(topic)}
        for number in partitions:
            if number not in placed:
                raise PartitionNotFound(topic, number)
        return [
            reports.ElectionResult(
                topic=topic,
                partition=number,
                leader=placed[number].leader,
                changed=False,
                error="" if placed[number].leader != NO_NODE else "it does not lead at the moment",
            )
            for number in partitions
        ]

    def remove_node(self, node_id: int) -> reports.RemovalProgress:
        """Raises `Conflict`."""
        self._check_is_self(node_id)
        raise Conflict(f"node {node_id} is alone and cannot be removed; to end it, stop the broker")

    def feature_level(self) -> reports.FeatureLevel:
        """There is no metadata log."""
        return reports.FeatureLevel(level=0, level_max=0)

    def set_feature_level(self, level: int) -> reports.FeatureLevel:
        """Raises `Conflict`."""
        raise Conflict(f"node {self._node_id} is alone: there is no metadata log that could have the level {level}")

    # --- beside the verbs ------------------------------------------------------------------------

    def check(self) -> Check:
        """Nothing can be wrong with a cluster of one that is not wrong with the node."""
        return Check("pass")

    def gauges(self) -> ClusterGauges:
        """The cluster in numbers."""
        counts = self._counts()
        leaders = counts.total - counts.offline
        return ClusterGauges(
            node_id=self._node_id,
            states=NODE_STATES,
            nodes={self._node_id: self._status},
            nodes_healthy=int(self._status == ONLINE),
            leaders={self._node_id: leaders},
            followers={self._node_id: counts.offline},
            partitions=counts.total,
            offline=counts.offline,
            under_replicated=counts.under_replicated,
            under_min_isr=counts.under_min_isr,
            misplaced=counts.misplaced,
            is_controller=True,
            controller_age_ns=self._node.stats().uptime_ns,
            controller_epoch=0,
            applied_index=0,
            is_metadata_available=True,
        )

    @property
    def _status(self) -> str:
        return STOPPING if self._stopping.has_begun else ONLINE

    def _check_is_self(self, node_id: int) -> None:
        if node_id != self._node_id:
            raise NotFound(f"node {node_id}; node {self._node_id} is alone")

    def _placed(self, found: LocalTopic) -> Iterator[reports.PartitionPlacement]:
        for number in range(found.partition_count):
            roles = self._partitions.roles(found, number)
            yield reports.PartitionPlacement(
                topic=found.topic.name,
                partition=number,
                leader=roles.leader,
                leader_epoch=roles.leader_epoch,
                partition_epoch=roles.version,
                replicas=tuple(roles.replicas),
                isr=tuple(roles.isr),
                elr=tuple(roles.elr),
                adding=(),
                removing=(),
                status=partition_status(roles.leader, missing=0, in_sync=1, min_insync=1),
            )

    def _counts(self) -> PartitionCounts:
        total = offline = 0
        for replica in self._partitions.all_replicas():
            total += 1
            offline += replica.leader is None
        return PartitionCounts(total, offline, offline, offline, offline)
