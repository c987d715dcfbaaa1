"""`goqueue lanes`: how many messages are in each lane of each partition, and how fast they move."""

from typing import TYPE_CHECKING, Annotated

import typer

from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import FormatOption, OutputFormat, lasting, plain, show, table
from goqueue.clock import SystemClock
from goqueue.record.header import Priority
from goqueue.times import format_duration, format_time

if TYPE_CHECKING:
    from goqueue.wire.reports import LaneReport


def lanes(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic; default: all.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="As this group sees it; default: all groups together.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the messages in each lane of each partition, critical first, and how fast they move.

    Lanes that never held a message are left out of the table.
    """
    with connected(server) as client:
        reports = client.lanes(topic=topic, group=group)
    now_ns = SystemClock().wall_ns()
    columns = ("partition", "lane", "total", "pending", "ready", "in flight", "in/s", "out/s", "oldest", "wait")
    rows = [_row(one, lane, now_ns) for one in reports for lane in Priority if one.total[lane] or one.pending[lane]]
    shown = table(columns, rows, numbers=columns[2:]) if rows else plain("all lanes are empty")
    show([_data(one, lane) for one in reports for lane in Priority], output, shown)


def _row(one: "LaneReport", lane: Priority, now_ns: int) -> tuple[object, ...]:
    oldest_ns = one.oldest_pending_ns[lane]
    return (
        f"{one.topic}-{one.partition}",
        lane.name.lower(),
        f"{one.total[lane]:,}",
        f"{one.pending[lane]:,}",
        f"{one.ready[lane]:,}",
        f"{one.in_flight[lane]:,}",
        f"{one.enqueue_rate[lane]:,.1f}",
        f"{one.dequeue_rate[lane]:,.1f}",
        "-" if oldest_ns is None else lasting(max(0, now_ns - oldest_ns)),
        lasting(one.average_wait_ns[lane]) if one.delivered[lane] else "-",
    )


def _data(one: "LaneReport", lane: Priority) -> dict[str, object]:
    """One lane with the field names of the HTTP API."""
    oldest_ns, served_ns = one.oldest_pending_ns[lane], one.last_served_ns[lane]
    return {
        "topic": one.topic,
        "partition": one.partition,
        "priority": lane.name.lower(),
        "total": one.total[lane],
        "pending": one.pending[lane],
        "ready": one.ready[lane],
        "in_flight": one.in_flight[lane],
        "consumed": one.consumed[lane],
        "enqueue_rate": one.enqueue_rate[lane],
        "dequeue_rate": one.dequeue_rate[lane],
        "oldest_pending": None if oldest_ns is None else format_time(oldest_ns),
        "avg_wait_time": format_duration(one.average_wait_ns[lane]),
        "boosts": one.boosts[lane],
        "last_served": None if served_ns is None else format_time(served_ns),
    }
