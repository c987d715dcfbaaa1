"""Traces: the lifecycle of a message, from its publish to its last ack.

A trace is shown in two forms: as spans, which have ids and parents, and as events, which are the same in short.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from goqueue.clock import MS
from goqueue.doors.http.context import Shared
from goqueue.doors.http.shapes import (
    PARTITION_MAX,
    Key,
    KeyBase64,
    duration_ns,
    key_bytes,
    parse_time_query,
    time_text,
)
from goqueue.errors import InvalidRequest, NotFound
from goqueue.record.header import OFFSET_MAX
from goqueue.times import format_duration
from goqueue.wire import trace_reports as reports

UNSET = msgspec.UNSET
TRACES_MAX: Final = 1_000
STATES: Final = tuple(dict.fromkeys((*reports.STATUSES, *reports.OUTCOMES)))
"""The values of `status` in a search."""
_TRACE_ID = re.compile(r"[0-9a-f]{32}")

Limit = Annotated[int, QueryParameter(ge=1, le=TRACES_MAX, description="maximum number of traces")]
OfTopic = Annotated[str | None, QueryParameter(description="only this topic")]
InPartition = Annotated[int | None, QueryParameter(ge=0, le=PARTITION_MAX, description="only this partition")]
OfGroup = Annotated[str | None, QueryParameter(name="consumer_group", description="only deliveries to this group")]
AtOffset = Annotated[int | None, QueryParameter(ge=0, le=OFFSET_MAX, description="only this offset")]
Start = Annotated[str | None, QueryParameter(description="only traces with an event at or after this time")]
End = Annotated[str | None, QueryParameter(description="only traces that started before this time")]
InState = Annotated[str | None, QueryParameter(name="status", description=f"status or outcome: {', '.join(STATES)}")]
SlowerThan = Annotated[str | None, QueryParameter(description="only traces longer than this, such as 250ms")]


class TraceHead(msgspec.Struct, kw_only=True):
    """The message, the duration and the status of a trace."""

    trace_id: str
    topic: str
    partition: int
    offset: int
    start_time: str
    end_time: str
    duration_ms: int
    duration: str
    status: str
    outcome: str


class ShownTrace(TraceHead, kw_only=True):
    """A trace in a list."""

    span_count: int


class ShownSpan(msgspec.Struct, kw_only=True):
    """One lifecycle event of the message, with the position of the message at that time."""

    span_id: str
    event_type: str
    timestamp: str
    topic: str
    partition: int
    offset: int
    parent_span_id: str | msgspec.UnsetType = UNSET
    consumer_group: str | msgspec.UnsetType = UNSET
    consumer_id: str | msgspec.UnsetType = UNSET
    duration_ns: int | msgspec.UnsetType = UNSET
    error: str | msgspec.UnsetType = UNSET
    attributes: dict[str, str] | msgspec.UnsetType = UNSET


class ShownEvent(msgspec.Struct, kw_only=True):
    """A span in short."""

    timestamp: str
    event_type: str
    type: str
    details: dict[str, Any]


class TraceInDetail(TraceHead, kw_only=True):
    """A trace with its spans, ordered by time."""

    spans: list[ShownSpan]
    events: list[ShownEvent]


class TraceList(msgspec.Struct, kw_only=True):
    """Traces, newest first."""

    traces: list[ShownTrace]
    total: int


class ShownQuery(msgspec.Struct, kw_only=True):
    """The search parameters; empty, or -1, where absent."""

    topic: str
    partition: int
    consumer_group: str
    start: str
    end: str
    status: str
    limit: int


class TracesFound(TraceList, kw_only=True):
    """Traces, newest first, and the search parameters."""

    query: ShownQuery


class ShownTraceStats(msgspec.Struct, kw_only=True):
    """Statistics of traces."""

    enabled: bool
    spans_in_buffer: int
    buffer_capacity: int
    traces_indexed: int
    sampling_rate: float
    exporters_enabled: list[str]
    traces_total: int
    traces_completed: int
    traces_pending: int
    traces_error: int
    avg_latency: str
    by_topic: dict[str, int]


@get("/traces", tags=["traces"], summary="List traces")
async def list_traces(context: Shared, limit: Limit = 100) -> TraceList:
    """The latest traces, newest first."""
    found = await context.answered(context.service.traces.recent(limit=limit))
    traces = _shown(found)
    return TraceList(traces=traces, total=len(traces))


@get("/traces/search", tags=["traces"], summary="Search traces")
async def search_traces(
    context: Shared,
    topic: OfTopic = None,
    partition: InPartition = None,
    group: OfGroup = None,
    offset: AtOffset = None,
    key: Key = None,
    key_base64: KeyBase64 = None,
    start: Start = None,
    end: End = None,
    in_state: InState = None,
    slower_than: SlowerThan = None,
    limit: Limit = 100,
) -> TracesFound:
    """The traces that match all given parameters, newest first."""
    if in_state and in_state not in STATES:
        raise InvalidRequest(f"invalid status {in_state[:40]!r}: must be one of {', '.join(STATES)}", path="status")
    now_ns = context.clock.wall_ns()
    query = reports.TraceQuery(
        topic=topic or None,
        partition=partition,
        group=group or None,
        offset=offset,
        key=key_bytes(key, key_base64) or None,  # a form that leaves the field empty searches for all keys
        start_ns=parse_time_query(start, "start", now_ns=now_ns) if start else None,
        end_ns=parse_time_query(end, "end", now_ns=now_ns) if end else None,
        status=in_state or None,
        slower_than_ns=duration_ns(slower_than, "slower_than") if slower_than else None,
        limit=limit,
    )
    found = await context.answered(context.service.traces.search(query))
    traces = _shown(found)
    return TracesFound(traces=traces, total=len(traces), query=_asked(query))


@get("/traces/stats", tags=["traces"], summary="Count traces")
async def trace_stats(context: Shared) -> ShownTraceStats:
    """Number of traces by outcome, and the state of the tracer."""
    report = await context.answered(context.service.traces.stats())
    return ShownTraceStats(
        enabled=report.enabled,
        spans_in_buffer=report.spans_in_buffer,
        buffer_capacity=report.buffer_capacity,
        traces_indexed=report.traces_indexed,
        sampling_rate=report.sampling_rate,
        exporters_enabled=list(report.exporters_enabled),
        traces_total=report.traces_total,
        traces_completed=report.traces_completed,
        traces_pending=report.traces_pending,
        traces_error=report.traces_error,
        avg_latency=format_duration(report.average_latency_ns),
        by_topic=report.by_topic,
    )


@get("/traces/{trace_id:str}", tags=["traces"], summary="Get a trace")
async def show_trace(context: Shared, trace_id: FromPath[str]) -> TraceInDetail:
    """The lifecycle of a message, ordered by time."""
    trace_id = trace_id.lower()
    if not _TRACE_ID.fullmatch(trace_id):
        raise InvalidRequest(f"invalid trace ID format: {trace_id[:40]!r} is not 32 hex digits", path="trace_id")
    try:
        trace = await context.answered(context.service.traces.get(trace_id))
    except NotFound as error:
        raise NotFound.restored(f"trace not found: {trace_id}", error.facts()) from None
    return TraceInDetail(
        **_head(trace),
        spans=[_span(span) for span in trace.spans],
        events=[_event(span) for span in trace.spans],
    )


def _shown(traces: Iterable[reports.Trace]) -> list[ShownTrace]:
    return [ShownTrace(**_head(trace), span_count=trace.span_count) for trace in traces]


def _head(trace: reports.Trace) -> dict[str, Any]:
    taken_ns = trace.end_ns - trace.start_ns
    return {
        "trace_id": trace.trace_id,
        "topic": trace.topic,
        "partition": trace.partition,
        "offset": trace.offset,
        "start_time": time_text(trace.start_ns),
        "end_time": time_text(trace.end_ns),
        "duration_ms": taken_ns // MS,
        "duration": format_duration(taken_ns),
        "status": trace.status,
        "outcome": trace.outcome,
    }


def _span(span: reports.Span) -> ShownSpan:
    return ShownSpan(
        span_id=span.span_id,
        event_type=span.event_type,
        timestamp=time_text(span.time_ns),
        topic=span.topic,
        partition=span.partition,
        offset=span.offset,
        parent_span_id=span.parent_span_id or UNSET,
        consumer_group=span.group or UNSET,
        consumer_id=span.consumer_id or UNSET,
        duration_ns=UNSET if span.duration_ns is None else span.duration_ns,
        error=span.error or UNSET,
        attributes=span.attributes or UNSET,
    )


def _event(span: reports.Span) -> ShownEvent:
    details: dict[str, Any] = {
        **span.attributes,
        "topic": span.topic,
        "partition": span.partition,
        "offset": span.offset,
    }
    known = {
        "consumer_group": span.group,
        "consumer_id": span.consumer_id,
        "duration_ns": span.duration_ns,
        "error": span.error,
    }
    details |= {name: value for name, value in known.items() if value not in ("", None)}
    time = time_text(span.time_ns)
    return ShownEvent(timestamp=time, event_type=span.event_type, type=span.event_type, details=details)


def _asked(query: reports.TraceQuery) -> ShownQuery:
    return ShownQuery(
        topic=query.topic or "",
        partition=-1 if query.partition is None else query.partition,
        consumer_group=query.group or "",
        start="" if query.start_ns is None else time_text(query.start_ns),
        end="" if query.end_ns is None else time_text(query.end_ns),
        status=query.status or "",
        limit=query.limit,
    )
