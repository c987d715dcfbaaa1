"""What a node says of its cluster: the applied metadata, with what else the node knows at the moment.

All functions are pure. The metadata say who is registered, fenced and stopping, and who leads what; `Sight` is the
rest: whether the metadata log answers, and which nodes this one has heard when, which only the controller knows. So
only its answers have `suspect` nodes: online in the metadata, and not heard for two heartbeats.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from goqueue.cluster.metadata import BrokerState, Metadata
from goqueue.cluster.records import BrokerStatus, PartitionChanged, PartitionKey
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import NotFound, TopicNotFound
from goqueue.metrics.cluster import ClusterGauges
from goqueue.service.cluster import (
    FENCED,
    NO_NODE,
    NODE_STATES,
    ONLINE,
    STOPPING,
    SUSPECT,
    PartitionCounts,
    cluster_health,
    partition_status,
)
from goqueue.wire import cluster_reports as wire
from goqueue.wire.reports import NodeHealth

_STATUS = {BrokerStatus.ONLINE: ONLINE, BrokerStatus.FENCED: FENCED, BrokerStatus.STOPPING: STOPPING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a node knows beside the metadata, now."""

    node: int
    kind: str  # of the metadata log
    endpoints: tuple[str, ...]
    is_available: bool
    wall_ns: int
    monotonic_ns: int
    updated_at_ns: int  # by the wall clock: when it last applied something
    controller_since_ns: int  # by the monotonic clock: when it learned of this controller
    timing: ClusterTiming
    last_heard_ns: Callable[[int], int | None] | None = None  # while it is the controller; by the monotonic clock


def state(metadata: Metadata, sight: Sight) -> wire.ClusterState:
    """The nodes and the controller."""
    return wire.ClusterState(
        version=metadata.position.index,
        cluster_id=metadata.cluster_id,
        controller_id=_controller(metadata),
        controller_epoch=metadata.epoch,
        nodes=nodes(metadata, sight),
        metadata=wire.MetadataLogState(
            kind=sight.kind,
            applied_index=metadata.position.index,
            available=sight.is_available,
            endpoints=list(sight.endpoints),
        ),
        updated_at_ns=sight.updated_at_ns,
    )


def health(metadata: Metadata, sight: Sight, counts: PartitionCounts) -> wire.ClusterHealth:
    """The health of the cluster; `counts` are those of `count_partitions`."""
    seen = [
        wire.NodeLiveness(id=node, status=_status(broker, sight), last_seen_ns=_last_seen_ns(node, sight))
        for node, broker in sorted(metadata.brokers.items())
    ]
    return cluster_health(
        seen,
        counts,
        controller_id=_controller(metadata),
        controller_epoch=metadata.epoch,
        is_metadata_available=sight.is_available,
    )


def nodes(metadata: Metadata, sight: Sight) -> list[wire.ClusterNode]:
    """All registered nodes by id."""
    return [_node(metadata, broker, sight) for _, broker in sorted(metadata.brokers.items())]


def node_details(metadata: Metadata, sight: Sight, node: int, own_health: Callable[[], NodeHealth]) -> wire.NodeDetails:
    """One node, and what it has; its disk only if it is this node. Raises `NotFound`."""
    broker = metadata.broker(node)
    if broker is None:
        raise NotFound(f"node {node}")
    shown = _node(metadata, broker, sight)
    own = own_health() if node == sight.node else None
    led = set(metadata.led_by(node))
    replicas = list(metadata.replicas_on(node))
    return wire.NodeDetails(
        **{field: getattr(shown, field) for field in shown.__struct_fields__},
        leaders=_names(metadata, (key for key in replicas if key in led)),
        followers=_names(metadata, (key for key in replicas if key not in led)),
        version=broker.registration.version,
        quarantined=None if own is None else _names(metadata, _quarantined(metadata, replicas, own)),
        uptime_ns=None if own is None else own.uptime_ns,
        disk_total_bytes=None if own is None else own.disk_total_bytes,
        disk_free_bytes=None if own is None else own.disk_free_bytes,
    )


def partitions(metadata: Metadata, topic: str | None = None) -> list[wire.PartitionPlacement]:
    """The partitions of a topic, or of all topics by name. Raises `TopicNotFound`."""
    if topic is None:
        found = sorted(metadata.topics.values(), key=lambda one: one.name)
    else:
        named = metadata.topic_named(topic)
        if named is None:
            raise TopicNotFound(topic)
        found = [named]
    return [
        wire.PartitionPlacement(
            topic=one.name,
            partition=partition.partition,
            leader=NO_NODE if partition.leader is None else partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            elr=partition.elr,
            adding=partition.adding,
            removing=partition.removing,
            status=status_of(metadata, partition),
        )
        for one in found
        for partition in metadata.partitions_of(one.id)
    ]


def status_of(metadata: Metadata, partition: PartitionChanged) -> str:
    """The state of a partition in one word. A replica that is being added is not missed yet."""
    return partition_status(
        NO_NODE if partition.leader is None else partition.leader,
        missing=_missing(partition),
        in_sync=len(partition.isr),
        min_insync=metadata.min_insync(partition),
    )


def count_partitions(metadata: Metadata) -> PartitionCounts:
    """How the partitions are, in numbers: some 20 ms of work for 100,000 of them."""
    offline = under_replicated = under_min_isr = 0
    for partition in metadata.partitions.values():
        if len(partition.isr) == len(partition.replicas):
            continue  # nothing is wrong with it, and so it is with most
        offline += partition.leader is None
        under_replicated += _missing(partition) > 0
        under_min_isr += len(partition.isr) < metadata.min_insync(partition)
    misplaced = sum(1 for _ in metadata.misplaced())
    return PartitionCounts(len(metadata.partitions), offline, under_replicated, under_min_isr, misplaced)


def feature_level(metadata: Metadata) -> wire.FeatureLevel:
    """The level in use, and the highest one that all nodes know."""
    known = [broker.registration.feature_level_max for broker in metadata.brokers.values()]
    return wire.FeatureLevel(level=metadata.feature_level, level_max=min(known, default=metadata.feature_level))


def election_result(
    metadata: Metadata, key: PartitionKey, topic: str, *, before: int, wanted: int | None, is_unclean: bool
) -> wire.ElectionResult:
    """What an election has come to: `before` is the leader epoch until then, `wanted` who should lead, None anyone.

    A clean leader is as good as the one that an unclean election has asked for: nothing was lost.
    """
    partition = metadata.partition(*key)
    if partition is None:
        return wire.ElectionResult(topic, key[1], NO_NODE, False, "the partition does not exist any more")
    leader = NO_NODE if partition.leader is None else partition.leader
    is_other = wanted is not None and leader != wanted and (partition.is_unclean or not is_unclean)
    error = ""
    if leader == NO_NODE or is_other:
        error = "no replica can lead" if wanted is None else _why_not(metadata, partition, wanted)
    return wire.ElectionResult(topic, partition.partition, leader, partition.leader_epoch != before, error)


def gauges(metadata: Metadata, sight: Sight, counts: PartitionCounts) -> ClusterGauges:
    """The cluster in numbers, for metrics."""
    states = {node: _status(broker, sight) for node, broker in sorted(metadata.brokers.items())}
    leaders = {node: metadata.leader_count(node) for node in states}
    has_controller = metadata.controller is not None
    return ClusterGauges(
        node_id=sight.node,
        states=NODE_STATES,
        nodes=states,
        nodes_healthy=sum(state == ONLINE for state in states.values()),
        leaders=leaders,
        followers={node: metadata.replica_count(node) - count for node, count in leaders.items()},
        partitions=counts.total,
        offline=counts.offline,
        under_replicated=counts.under_replicated,
        under_min_isr=counts.under_min_isr,
        misplaced=counts.misplaced,
        is_controller=metadata.controller == sight.node and sight.last_heard_ns is not None,
        controller_age_ns=sight.monotonic_ns - sight.controller_since_ns if has_controller else None,
        controller_epoch=metadata.epoch,
        applied_index=metadata.position.index,
        is_metadata_available=sight.is_available,
    )


def _controller(metadata: Metadata) -> int:
    return NO_NODE if metadata.controller is None else metadata.controller


def _node(metadata: Metadata, broker: BrokerState, sight: Sight) -> wire.ClusterNode:
    registration = broker.registration
    return wire.ClusterNode(
        id=broker.node,
        client_address=registration.addresses.client,
        peer_address=registration.addresses.peer,
        http_address=registration.addresses.http,
        grpc_address=registration.addresses.grpc,
        rack=registration.rack,
        status=_status(broker, sight),
        is_controller=broker.node == metadata.controller,
        broker_epoch=broker.broker_epoch,
        is_leaving=broker.is_leaving,
    )


def _status(broker: BrokerState, sight: Sight) -> str:
    if broker.is_online and sight.last_heard_ns is not None and broker.node != sight.node:
        heard_ns = sight.last_heard_ns(broker.node)
        if heard_ns is not None and sight.monotonic_ns - heard_ns >= sight.timing.reset_ns:
            return SUSPECT
    return _STATUS[broker.status]


def _last_seen_ns(node: int, sight: Sight) -> int | None:
    """By the wall clock. A node sees itself."""
    if node == sight.node:
        return sight.wall_ns
    heard_ns = None if sight.last_heard_ns is None else sight.last_heard_ns(node)
    return None if heard_ns is None else sight.wall_ns - (sight.monotonic_ns - heard_ns)


def _missing(partition: PartitionChanged) -> int:
    return sum(node not in partition.isr and node not in partition.adding for node in partition.replicas)


def _names(metadata: Metadata, keys: Iterable[PartitionKey]) -> list[str]:
    named = sorted((metadata.topics[topic_id].name, number) for topic_id, number in keys)
    return [f"{topic}-{number}" for topic, number in named]


def _quarantined(metadata: Metadata, replicas: Iterable[PartitionKey], own: NodeHealth) -> Iterator[PartitionKey]:
    for key in replicas:
        if metadata.topics[key[0]].name in own.quarantined:
            yield key


def _why_not(metadata: Metadata, partition: PartitionChanged, wanted: int) -> str:
    broker = metadata.broker(wanted)
    if wanted not in partition.replicas:
        return f"node {wanted} has no replica of it"
    if broker is None or not broker.is_online:
        return f"node {wanted} is {'not registered' if broker is None else broker.status}"
    if wanted not in partition.isr:
        return f"node {wanted} is not in sync"
    return f"node {wanted} was not chosen"
