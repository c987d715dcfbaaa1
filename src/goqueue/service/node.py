"""The verbs about the node itself. They are answered by this process at once, so their results are plain."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire.reports import NodeHealth


class NodeStats(NamedTuple):
    """One node in numbers."""

    node_id: int
    uptime_ns: int
    topic_count: int
    size_bytes: int


class Check(NamedTuple):
    """One aspect of health: `pass`, `warn` or `fail`, and why."""

    status: str
    message: str = ""


class NodeVerbs(Protocol):
    """The node itself."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE, not_http="GET /health is node.checks")
    def health(self) -> NodeHealth:
        """How the node is, and how much room its disk has."""

    @verb(
        Resource.CLUSTER,
        Action.DESCRIBE,
        Route.ANY_NODE,
        not_native="part of node.health",
        not_python="part of node.health",
    )
    def checks(self) -> Mapping[str, Check]:
        """The aspects of health, by name."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ANY_NODE, frame="STATS")
    def stats(self) -> NodeStats: ...
