"""The verbs about the cluster: who is in it, who leads what, and the decisions of an operator.

A node that is alone answers with itself. The functions here turn facts into words that both kinds of nodes use alike.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from goqueue.errors import InvalidRequest
from goqueue.service.pending import Pending
from goqueue.service.topics import NO_LEADER
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import cluster_reports as reports

NO_NODE: Final = NO_LEADER
"""In answers: there is no leader, or no controller."""

ONLINE: Final = "online"
SUSPECT: Final = "suspect"
FENCED: Final = "fenced"
STOPPING: Final = "stopping"
NODE_STATES: Final = (ONLINE, SUSPECT, FENCED, STOPPING)

OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under_min_isr"
UNDER_REPLICATED: Final = "under_replicated"

FILE: Final = "file"
"""The kind of a metadata log, or of what a node has instead, that is in files of one host."""


class ClusterVerbs(Protocol):
    """The cluster, and its nodes."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE)
    def state(self) -> Pending[reports.ClusterState]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE)
    def health(self) -> Pending[reports.ClusterHealth]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE)
    def nodes(self) -> Pending[list[reports.ClusterNode]]:
        """By id."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE)
    def node(self, node_id: int) -> Pending[reports.NodeDetails]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE)
    def partitions(self, topic: str | None = None) -> Pending[list[reports.PartitionPlacement]]:
        """Of one topic, or of all, internal ones included."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE, not_http="for operators: goqueue cluster metadata dump")
    def metadata(self) -> Pending[str]:
        """The state that this node has applied, as lines of text."""

    @verb(Resource.CLUSTER, Action.ALTER, Route.CONTROLLER)
    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        is_unclean: bool = False,
        replica: int | None = None,
    ) -> Pending[list[reports.ElectionResult]]:
        """Let preferred replicas lead; with `is_unclean` let `replica`, or any that is online, lead what has no leader.

        Results are about the given partitions, else about those that the election could have changed.
        """

    @verb(Resource.CLUSTER, Action.DELETE, Route.CONTROLLER, not_http="for operators: goqueue cluster remove")
    def remove_node(self, node_id: int) -> Pending[reports.RemovalProgress]:
        """Move all replicas away from a node, and remove it. To be repeated until no partition is left."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE, not_http="for operators: goqueue cluster info")
    def feature_level(self) -> Pending[reports.FeatureLevel]: ...
    @verb(Resource.CLUSTER, Action.ALTER, Route.CONTROLLER, not_http="there is no way back: from Python only")
    def set_feature_level(self, level: int) -> Pending[reports.FeatureLevel]:
        """Use what every node knows by now."""


class PartitionCounts(NamedTuple):
    """How the partitions are, in numbers. One that is offline counts as under-replicated, too."""

    total: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    misplaced: int = 0  # not led by their preferred replica


def check_election(
    topic: str | None, partitions: Sequence[int] | None, *, is_unclean: bool, replica: int | None
) -> None:
    """Raises `InvalidRequest` for arguments that contradict each other."""
    if partitions is not None and topic is None:
        raise InvalidRequest("partitions without a topic", path="topic")
    if replica is not None and not is_unclean:
        raise InvalidRequest("only an unclean election names the replica", path="replica")


def partition_status(leader: int, *, missing: int, in_sync: int, min_insync: int) -> str:
    """The state of a partition in one word, the worst that applies. `missing` replicas are not in sync."""
    if leader == NO_NODE:
        return OFFLINE
    if in_sync < min_insync:
        return UNDER_MIN_ISR
    return UNDER_REPLICATED if missing else ONLINE


def cluster_health(
    nodes: Collection[reports.NodeLiveness],
    counts: PartitionCounts,
    *,
    controller_id: int,
    controller_epoch: int,
    is_metadata_available: bool,
) -> reports.ClusterHealth:
    """The health of a cluster of these nodes and partitions.

    Without a controller or a metadata log the data still flow, so the cluster is degraded, not failed.
    """
    healthy = sum(node.status == ONLINE for node in nodes)
    if counts.offline or not healthy:
        status = "fail"
    elif healthy < len(nodes) or counts.under_replicated or controller_id == NO_NODE or not is_metadata_available:
        status = "degraded"
    else:
        status = "ok"
    return reports.ClusterHealth(
        status=status,
        node_count=len(nodes),
        healthy=healthy,
        unhealthy=len(nodes) - healthy,
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        partition_count=counts.total,
        offline_partitions=counts.offline,
        under_replicated_partitions=counts.under_replicated,
        under_min_isr_partitions=counts.under_min_isr,
        metadata_available=is_metadata_available,
        nodes=list(nodes),
    )
