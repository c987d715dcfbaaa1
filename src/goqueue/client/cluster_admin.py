"""Verbs about the cluster, below `client.cluster`; see `goqueue.client.admin`."""

from collections.abc import Iterable

from goqueue.client.admin import AdminCalls
from goqueue.wire.cluster_reports import (
    ClusterHealth,
    ClusterNode,
    ClusterState,
    ElectionResult,
    FeatureLevel,
    NodeDetails,
    PartitionPlacement,
    RemovalProgress,
)


class ClusterCalls:
    """Calls verbs through a client."""

    def __init__(self, client: AdminCalls) -> None:
        self._call = client._call


class AsyncClusterAdmin(ClusterCalls):
    """The cluster. Any node answers, as it has applied the metadata; a broker that is alone answers with itself."""

    async def state(self) -> ClusterState:
        """The nodes, the controller and the metadata log."""
        return await self._call("cluster.state", ClusterState)

    async def health(self) -> ClusterHealth:
        """Whether all nodes are online, and all partitions have a leader and all replicas in sync."""
        return await self._call("cluster.health", ClusterHealth)

    async def nodes(self) -> list[ClusterNode]:
        """The registered nodes by id."""
        return await self._call("cluster.nodes", list[ClusterNode])

    async def node(self, id: int) -> NodeDetails:
        """One node, and its partitions. Only the node itself knows its disk, its uptime and what it has quarantined."""
        return await self._call("cluster.node", NodeDetails, node_id=id)

    async def partitions(self, topic: str | None = None) -> list[PartitionPlacement]:
        """The leader and the replicas of each partition of a topic, or of all topics, internal ones included."""
        return await self._call("cluster.partitions", list[PartitionPlacement], topic=topic)

    async def metadata(self) -> str:
        """The metadata that the node has applied, as lines of text: nodes with equal positions have equal texts."""
        return await self._call("cluster.metadata", str)

    async def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: Iterable[int] | None = None,
        unclean: bool = False,
        replica: int | None = None,
    ) -> list[ElectionResult]:
        """Let preferred replicas lead again, of some partitions, of a topic or of all topics.

        With `unclean` a replica that is not in sync leads where there is no leader: the `replica`, or any that is
        online. Records that only the others have are lost.
        """
        return await self._call(
            "cluster.elect_leaders",
            list[ElectionResult],
            topic=topic,
            partitions=None if partitions is None else list(partitions),
            is_unclean=unclean,
            replica=replica,
        )

    async def remove_node(self, id: int) -> RemovalProgress:
        """Move all replicas away from a node, then remove it. Repeat it until no partition is left."""
        return await self._call("cluster.remove_node", RemovalProgress, node_id=id)

    async def feature_level(self) -> FeatureLevel:
        """The feature level of the metadata, and the highest that all nodes know."""
        return await self._call("cluster.feature_level", FeatureLevel)

    async def set_feature_level(self, level: int) -> FeatureLevel:
        """Let the cluster use what this level brings. There is no way back."""
        return await self._call("cluster.set_feature_level", FeatureLevel, level=level)
