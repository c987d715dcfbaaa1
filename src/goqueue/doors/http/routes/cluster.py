"""The cluster: its nodes, their health, and elections of leaders.

Every node answers from the metadata that it has applied; a broker that is alone answers with itself. What only a node
itself knows (its disk, its uptime, what it has quarantined) is absent from the answers of the others.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody

from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.shapes import Partition, parse_offset, time_text
from goqueue.doors.http.strictness import Body
from goqueue.errors import InvalidRequest, PartitionNotFound
from goqueue.times import format_duration
from goqueue.topics.config import refuse_internal
from goqueue.wire import cluster_reports as reports

UNSET = msgspec.UNSET
NodeNumber = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
NodeStatus = Literal["online", "suspect", "fenced", "stopping"]


class ShownNode(msgspec.Struct, kw_only=True):
    """A registered node. `suspect` is online, but silent; only the controller knows."""

    id: int
    client_address: str
    peer_address: str
    http_address: str
    grpc_address: str
    rack: str
    status: NodeStatus
    is_controller: bool
    broker_epoch: int


class ShownMetadataLog(msgspec.Struct, kw_only=True):
    """The metadata log, as the node sees it."""

    kind: Literal["file", "etcd"]
    applied_index: int
    available: bool
    endpoints: list[str]


class ShownCluster(msgspec.Struct, kw_only=True):
    """The nodes and the controller; -1 if there is none."""

    version: int
    controller_id: int
    controller_epoch: int
    cluster_id: str
    nodes: list[ShownNode]
    metadata: ShownMetadataLog
    updated_at: str


class ShownLiveness(msgspec.Struct, kw_only=True):
    """Whether a node is well. `last_seen` is null unless the node that answers hears it."""

    id: int
    status: NodeStatus
    last_seen: str | None


class ShownClusterHealth(msgspec.Struct, kw_only=True):
    """The health of the cluster."""

    status: Literal["ok", "degraded", "fail"]
    node_count: int
    healthy: int
    unhealthy: int
    controller_id: int
    controller_epoch: int
    offline_partitions: int
    under_replicated_partitions: int
    metadata_available: bool
    nodes: list[ShownLiveness]


class NodeList(msgspec.Struct, kw_only=True):
    """The registered nodes."""

    nodes: list[ShownNode]
    count: int


class DiskSpace(msgspec.Struct, kw_only=True):
    """The disk of the data directory."""

    total_bytes: int
    free_bytes: int


class ShownNodeDetails(ShownNode, kw_only=True):
    """A node, and the partitions that it leads, follows, and cannot use."""

    leaders: list[str]
    followers: list[str]
    quarantined: list[str] | msgspec.UnsetType = UNSET
    disk: DiskSpace | msgspec.UnsetType = UNSET
    version: str
    uptime: str | msgspec.UnsetType = UNSET


class NamedPartition(Body, kw_only=True):
    """A partition of a topic."""

    topic: str
    partition: Partition


class ElectionBody(Body, kw_only=True):
    """Which leaders to elect. An unclean election names the `replica`, and needs `confirm`: it may lose records."""

    partitions: list[NamedPartition] | None = None
    type: Literal["preferred", "unclean"] = "preferred"
    replica: NodeNumber | None = None
    confirm: bool = False


class ShownElection(msgspec.Struct, kw_only=True):
    """The leader of one partition after the election, -1 if it has none."""

    topic: str
    partition: int
    leader: int
    changed: bool
    error: str | msgspec.UnsetType = UNSET


class ElectionResults(msgspec.Struct, kw_only=True):
    """What came of the election."""

    results: list[ShownElection]


@get("/cluster/state", tags=["cluster"], summary="Get the nodes and the controller")
async def cluster_state(context: Shared) -> ShownCluster:
    """The metadata as this node has applied them. A single node answers with itself alone."""
    found = await context.answered(context.service.cluster.state())
    return ShownCluster(
        version=found.version,
        controller_id=found.controller_id,
        controller_epoch=found.controller_epoch,
        cluster_id=found.cluster_id,
        nodes=[_node(node) for node in found.nodes],
        metadata=ShownMetadataLog(
            kind="etcd" if found.metadata.kind == "etcd" else "file",
            applied_index=found.metadata.applied_index,
            available=found.metadata.available,
            endpoints=found.metadata.endpoints,
        ),
        updated_at=time_text(found.updated_at_ns),
    )


@get("/cluster/health", tags=["cluster"], summary="Get the health of the cluster")
async def cluster_health(context: Shared) -> ShownClusterHealth:
    """`fail` if a partition has no leader or no node is online. The answer itself is always 200."""
    found = await context.answered(context.service.cluster.health())
    return ShownClusterHealth(
        status=found.status,  # type: ignore[arg-type]
        node_count=found.node_count,
        healthy=found.healthy,
        unhealthy=found.unhealthy,
        controller_id=found.controller_id,
        controller_epoch=found.controller_epoch,
        offline_partitions=found.offline_partitions,
        under_replicated_partitions=found.under_replicated_partitions,
        metadata_available=found.metadata_available,
        nodes=[
            ShownLiveness(
                id=node.id,
                status=node.status,  # type: ignore[arg-type]
                last_seen=None if node.last_seen_ns is None else time_text(node.last_seen_ns),
            )
            for node in found.nodes
        ],
    )


@get("/cluster/nodes", tags=["cluster"], summary="List the nodes")
async def list_nodes(context: Shared) -> NodeList:
    """All registered nodes, by id."""
    found = await context.answered(context.service.cluster.nodes())
    return NodeList(nodes=[_node(node) for node in found], count=len(found))


@get("/cluster/nodes/{node_id:str}", tags=["cluster"], summary="Get a node")
async def show_node(context: Shared, node_id: FromPath[str]) -> ShownNodeDetails:
    """A node and its partitions. Its disk, its uptime and what it has quarantined are known to itself only."""
    number = parse_offset(node_id, "node ID")
    found = await context.answered(context.service.cluster.node(number))
    has_disk = found.disk_total_bytes is not None and found.disk_free_bytes is not None
    return ShownNodeDetails(
        **_fields(found),
        leaders=found.leaders,
        followers=found.followers,
        quarantined=UNSET if found.quarantined is None else found.quarantined,
        disk=DiskSpace(total_bytes=found.disk_total_bytes or 0, free_bytes=found.disk_free_bytes or 0)
        if has_disk
        else UNSET,
        version=found.version,
        uptime=UNSET if found.uptime_ns is None else format_duration(found.uptime_ns),
    )


@post("/admin/elections", tags=["cluster"], summary="Elect leaders of partitions", status_code=200)
async def elect_leaders(context: Shared, data: JSONBody[ElectionBody | None] = None) -> ElectionResults:
    """Let preferred replicas lead, of the given partitions or of all. `unclean` lets a replica lead that is not in
    sync, where there is no leader: records that only the others have are lost.
    """
    asked = data or ElectionBody()
    is_unclean = asked.type == "unclean"
    if is_unclean and asked.replica is None:
        raise InvalidRequest("replica is required: an unclean election names it", path="replica")
    if is_unclean and not asked.confirm:
        raise InvalidRequest("confirm is required: an unclean election may lose records", path="confirm")
    if asked.partitions is None:
        found = await _elect(context, None, None, asked)
    else:
        by_topic: dict[str, list[int]] = {}
        for named in asked.partitions:
            by_topic.setdefault(named.topic, []).append(named.partition)
        await _check_there(context, by_topic)
        found = [one for topic, numbers in by_topic.items() for one in await _elect(context, topic, numbers, asked)]
    return ElectionResults(
        results=[
            ShownElection(
                topic=one.topic,
                partition=one.partition,
                leader=one.leader,
                changed=one.changed,
                error=one.error or UNSET,
            )
            for one in found
        ]
    )


async def _elect(
    context: RequestContext, topic: str | None, numbers: Sequence[int] | None, asked: ElectionBody
) -> list[reports.ElectionResult]:
    is_unclean = asked.type == "unclean"
    pending = context.service.cluster.elect_leaders(
        topic, partitions=numbers, is_unclean=is_unclean, replica=asked.replica
    )
    return await context.answered(pending, "elect leaders")


async def _check_there(context: RequestContext, wanted: dict[str, list[int]]) -> None:
    """All partitions, before any of them changes: topics are decided one by one."""
    for topic, numbers in wanted.items():
        refuse_internal(topic)
        known = {one.partition for one in await context.answered(context.service.cluster.partitions(topic))}
        for number in numbers:
            if number not in known:
                raise PartitionNotFound(topic, number)


def _node(node: reports.ClusterNode) -> ShownNode:
    return ShownNode(**_fields(node))


def _fields(node: reports.ClusterNode) -> dict[str, Any]:
    return {field: getattr(node, field) for field in ShownNode.__struct_fields__}
