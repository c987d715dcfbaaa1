"""Results about the cluster, as `reports.py` has them about groups.

Every node answers from the metadata log as it has applied it. Only the controller hears the nodes, so only its answers
say when a node was heard last, and which of them are `suspect`.
"""

from goqueue.wire.wire_struct import WireStruct


class ClusterNode(WireStruct):
    """A registered node. Addresses are `host:port`, empty where it does not listen or the address is not known."""

    id: int
    client_address: str
    peer_address: str
    http_address: str
    grpc_address: str
    rack: str
    status: str  # online, suspect, fenced, stopping
    is_controller: bool
    broker_epoch: int  # the index of its registration in the metadata log
    is_leaving: bool  # it is being removed


class NodeDetails(ClusterNode):
    """A node, and what it has. The last four are None unless the node itself answers."""

    leaders: list[str]  # names of partitions
    followers: list[str]
    version: str
    quarantined: list[str] | None  # partitions whose files cannot be used; a topic whose partitions are not known
    uptime_ns: int | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None


class MetadataLogState(WireStruct):
    """The metadata log as the node sees it."""

    kind: str  # file or etcd
    applied_index: int
    available: bool
    endpoints: list[str]


class ClusterState(WireStruct):
    """The nodes and the controller. `version` grows with every change of the metadata."""

    version: int
    cluster_id: str  # empty if the node is alone and has no metadata log
    controller_id: int  # -1: there is none
    controller_epoch: int
    nodes: list[ClusterNode]
    metadata: MetadataLogState
    updated_at_ns: int


class NodeLiveness(WireStruct):
    """Whether a node is well, and when the node that answers heard it last; None if it does not hear it."""

    id: int
    status: str
    last_seen_ns: int | None


class ClusterHealth(WireStruct):
    """The health of the cluster: `ok`, `degraded`, or `fail` if a partition has no leader or no node is online."""

    status: str
    node_count: int
    healthy: int
    unhealthy: int
    controller_id: int
    controller_epoch: int
    partition_count: int
    offline_partitions: int
    under_replicated_partitions: int
    under_min_isr_partitions: int
    metadata_available: bool
    nodes: list[NodeLiveness]


class PartitionPlacement(WireStruct, gc=False):
    """Which nodes have a partition; the first of the replicas is the preferred leader."""

    topic: str
    partition: int
    leader: int  # -1: there is none
    leader_epoch: int
    partition_epoch: int  # grows with each change of the partition
    replicas: tuple[int, ...]
    isr: tuple[int, ...]  # in sync
    elr: tuple[int, ...]  # not in sync, but with every committed record
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    status: str  # online, under_replicated, under_min_isr, offline


class ElectionResult(WireStruct):
    """Who leads a partition after an election, and why not the wanted replica if that does not; else `error` is ""."""

    topic: str
    partition: int
    leader: int
    changed: bool
    error: str = ""


class RemovalProgress(WireStruct):
    """How many partitions still have a replica on a node that is being removed; at 0 it is removed."""

    id: int
    partitions_left: int


class FeatureLevel(WireStruct):
    """The feature level of the metadata, and the highest that all nodes know; 0 without a metadata log."""

    level: int
    level_max: int
