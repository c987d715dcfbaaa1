"""The verbs about message traces."""

from typing import Protocol

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import trace_reports as reports


class TraceVerbs(Protocol):
    """The lifecycles of messages."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def recent(self, *, limit: int = 100) -> Pending[list[reports.Trace]]:
        """Newest first."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def search(self, query: reports.TraceQuery) -> Pending[list[reports.Trace]]:
        """Newest first."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def get(self, trace_id: str) -> Pending[reports.Trace]:
        """One trace with its spans, in the order of time; raises `NotFound`, or `InvalidRequest` for what is no id."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def stats(self) -> Pending[reports.TraceStats]: ...
