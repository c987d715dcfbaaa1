"""Results about traces, as `reports.py` has them about groups."""

from msgspec import field

from goqueue.wire.wire_struct import WireStruct


class Span(WireStruct):
    """One lifecycle event of one message. `topic`, `partition` and `offset` say where the message was at that time."""

    span_id: str
    event_type: str
    time_ns: int
    topic: str
    partition: int
    offset: int
    parent_span_id: str = ""
    group: str = ""
    consumer_id: str = ""
    duration_ns: int | None = None
    error: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


class Trace(WireStruct):
    """A message from publish to its last ack, over all groups. Only `traces.get` fills `spans`."""

    trace_id: str
    topic: str
    partition: int
    offset: int
    start_ns: int
    end_ns: int
    status: str  # in_progress, completed, failed, retrying, delayed, expired
    span_count: int
    spans: list[Span] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """`completed`, `error` or `pending`."""
        if self.status in ("failed", "expired"):
            return "error"
        return "completed" if self.status == "completed" else "pending"


class TraceQuery(WireStruct):
    """Conditions of a search; all that are given must hold. `status` is a status or an outcome."""

    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    offset: int | None = None
    key: bytes | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    status: str | None = None
    slower_than_ns: int | None = None
    limit: int = 100


class TraceStats(WireStruct):
    """Statistics of the traces; events are counted per message."""

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
    average_latency_ns: int
    by_topic: dict[str, int]


STATUSES = ("in_progress", "completed", "failed", "retrying", "delayed", "expired")
OUTCOMES = ("completed", "error", "pending")
