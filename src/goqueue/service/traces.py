"""What can be asked of a broker about traces. The rules are those of `service.py`."""

from typing import Protocol

from goqueue.wire import trace_reports as reports


class TraceVerbs(Protocol):
    """The lifecycles of messages."""

    def recent(self, *, limit: int = 100) -> list[reports.Trace]:
        """Newest first."""

    def search(self, query: reports.TraceQuery) -> list[reports.Trace]:
        """Newest first."""

    def get(self, trace_id: str) -> reports.Trace:
        """One trace with its spans, in the order of time; raises `NotFound`, or `InvalidRequest` for what is no id."""

    def stats(self) -> reports.TraceStats: ...
