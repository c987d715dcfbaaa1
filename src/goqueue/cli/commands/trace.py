"""`goqueue trace`: follow messages from their publish to their last ack."""

import os
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
    console,
    facts,
    lasting,
    number,
    one_line,
    plain,
    show,
    table,
    when,
)
from goqueue.cli.timeline import timeline
from goqueue.clock import MS, SystemClock
from goqueue.times import format_duration, format_time

if TYPE_CHECKING:
    from goqueue.wire.trace_reports import Span, Trace

app = typer.Typer(help="Follow messages from their publish to their last ack.", no_args_is_help=True)

TRACES_MAX = 1_000
_TRACE_ID = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?", re.IGNORECASE)

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=TRACES_MAX, help="Most traces to list.")]


class TraceState(StrEnum):
    """The status or the outcome of a trace."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DELAYED = "delayed"
    EXPIRED = "expired"
    ERROR = "error"
    PENDING = "pending"


def trace_id(text: str) -> str:
    """The trace id of an argument, which may be a whole traceparent."""
    match = _TRACE_ID.fullmatch(text)
    if not match:
        raise typer.BadParameter(f"invalid trace ID format: {text[:80]!r} is not 32 hexadecimal digits")
    return match[1].lower()


@app.command()
def get(
    identity: Annotated[
        str, typer.Argument(metavar="ID", parser=trace_id, help="32 hexadecimal digits, or a traceparent.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Draw the timeline of a trace."""
    with connected(server) as client:
        found = client.trace(identity)
    _show_one(found, output)


@app.command()
def message(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition of the message.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The offset of the message.")],
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Draw the timeline of the message at an offset.

    goqueue trace message orders 0 42
    """
    with connected(server) as client:
        found = client.trace((topic, partition, offset))
    _show_one(found, output)


@app.command("list")
def list_(
    limit: LimitOption = 20, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """List traces, the most recent first."""
    with connected(server) as client:
        found = client.traces(limit=limit)
    _show_many(found, output, "there are no traces")


@app.command()
def search(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only traces of this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only traces of this partition.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Only traces of this offset.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only messages delivered to this group.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.")] = None,
    status: Annotated[TraceState | None, typer.Option(help="Only traces with this status or outcome.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", parser=arguments.moment, help="Only traces with an event at or after this time."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", parser=arguments.moment, help="Only traces that began before this time."),
    ] = None,
    slower_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", parser=arguments.duration, help="Only traces that took longer, such as 250ms."
        ),
    ] = None,
    limit: LimitOption = 20,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the traces that match every filter.

    goqueue trace search --topic orders --status error --since "2h ago"
    goqueue trace search --group billing --slower-than 5s
    """
    wanted = arguments.given(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "group": group,
            "key": None if key is None else os.fsencode(key),
            "status": None if status is None else status.value,
            "since": since,
            "until": until,
            "slower_than": slower_than,
        }
    )
    with connected(server) as client:
        found = client.search_traces(limit=limit, **wanted)
    _show_many(found, output, "no trace matches")


@app.command()
def stats(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show statistics of traces."""
    with connected(server) as client:
        found = client.trace_stats()
    data = {
        "enabled": found.enabled,
        "spans_in_buffer": found.spans_in_buffer,
        "buffer_capacity": found.buffer_capacity,
        "traces_indexed": found.traces_indexed,
        "sampling_rate": found.sampling_rate,
        "exporters_enabled": found.exporters_enabled,
        "traces_total": found.traces_total,
        "traces_completed": found.traces_completed,
        "traces_pending": found.traces_pending,
        "traces_error": found.traces_error,
        "avg_latency": format_duration(found.average_latency_ns),
        "by_topic": found.by_topic,
    }
    known = {
        "tracing": "on" if found.enabled else "off",
        "sampled": f"{found.sampling_rate:.2%}",
        "exporters": ", ".join(found.exporters_enabled) or "-",
        "in the buffer": f"{found.spans_in_buffer:,} of {found.buffer_capacity:,}",
        "traces": f"{found.traces_total:,}",
        "completed": f"{found.traces_completed:,}",
        "pending": f"{found.traces_pending:,}",
        "with an error": f"{found.traces_error:,}",
        "took on average": lasting(found.average_latency_ns),
    }
    tables: list[RenderableType] = [facts(known)]
    if found.by_topic:
        rows = ((topic, f"{count:,}") for topic, count in sorted(found.by_topic.items()))
        tables.append(table(("topic", "traces"), rows, numbers=("traces",)))
    show(data, output, *tables)


def _show_one(found: "Trace", output: OutputFormat) -> None:
    known = {
        "trace": found.trace_id,
        "message": _place(found),
        "began": when(found.start_ns),
        "took": lasting(found.end_ns - found.start_ns),
        "status": found.status if found.status == found.outcome else f"{found.status} ({found.outcome})",
    }
    data = _data(found) | {"spans": [_span(span) for span in found.spans]}
    drawn = timeline(found, width=console.width, encoding=console.encoding)
    show(data, output, facts(known), plain(""), drawn)


def _show_many(found: list["Trace"], output: OutputFormat, none: str) -> None:
    now_ns = SystemClock().wall_ns()
    columns = ("trace", "message", "age", "took", "status")
    rows = (
        (
            one.trace_id,
            _place(one),
            lasting(max(0, now_ns - one.start_ns)),
            lasting(one.end_ns - one.start_ns),
            one.status,
        )
        for one in found
    )
    shown: list[RenderableType] = [plain(none)]
    if found:
        listed = table(columns, rows, numbers=("age", "took"), whole=("trace", "status"))
        listed.padding = 0  # so that a line has room for one trace in 80 columns
        shown = [listed, plain(number(len(found), "trace"))]
    show([_data(one) | {"span_count": one.span_count} for one in found], output, *shown)


def _place(found: "Trace") -> str:
    return one_line(f"{found.topic}-{found.partition} @ {found.offset}".encode())


def _data(found: "Trace") -> dict[str, object]:
    """With the field names of the HTTP API."""
    taken_ns = found.end_ns - found.start_ns
    return {
        "trace_id": found.trace_id,
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "start_time": format_time(found.start_ns),
        "end_time": format_time(found.end_ns),
        "duration_ms": taken_ns // MS,
        "duration": format_duration(taken_ns),
        "status": found.status,
        "outcome": found.outcome,
    }


def _span(span: "Span") -> dict[str, object]:
    shown: dict[str, object] = {
        "span_id": span.span_id,
        "event_type": span.event_type,
        "timestamp": format_time(span.time_ns),
        "topic": span.topic,
        "partition": span.partition,
        "offset": span.offset,
    }
    known = {
        "parent_span_id": span.parent_span_id,
        "consumer_group": span.group,
        "consumer_id": span.consumer_id,
        "duration_ns": span.duration_ns,
        "error": span.error,
        "attributes": dict(span.attributes),
    }
    return shown | {name: value for name, value in known.items() if value not in ("", None, {})}
