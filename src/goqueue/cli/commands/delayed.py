"""`goqueue delayed`: list, cancel and reschedule delayed messages."""

import os
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import FormatOption, OutputFormat, facts, lasting, number, one_line, plain, show, table, when
from goqueue.cli.rendering import key_data
from goqueue.clock import SystemClock
from goqueue.record.header import Priority
from goqueue.times import format_duration, format_time
from goqueue.wire.reports import DelayedMessage

app = typer.Typer(help="List, cancel and reschedule delayed messages.", no_args_is_help=True)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
PartitionArgument = Annotated[
    int | None, typer.Argument(metavar="PARTITION", min=0, help="The partition of the message.")
]
OffsetArgument = Annotated[int | None, typer.Argument(metavar="OFFSET", min=0, help="The offset of the message.")]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="All waiting messages with this key.")]


class DelayedState(StrEnum):
    """The state of a delayed message."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@app.command("list")
def list_(
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.")] = None,
    state: Annotated[DelayedState, typer.Option(help="Only messages in this state.")] = DelayedState.PENDING,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most messages to list.")] = 100,
    skip: Annotated[int, typer.Option(min=0, help="Messages to skip.")] = 0,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List delayed messages, the next due first."""
    with connected(server) as client:
        wanted = arguments.given({"partition": partition, "key": _bytes(key)})
        found = client.delayed(topic, state=state.value, limit=limit, skip=skip, **wanted)
        if not found:
            client.describe_topic(topic)  # an empty list must not hide that there is no such topic
    _show(found, output, f"no message of {topic} is {state}")


@app.command()
def cancel(
    topic: TopicArgument,
    partition: PartitionArgument = None,
    offset: OffsetArgument = None,
    key: KeyOption = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Cancel a delayed message, or all waiting messages with a key.

    goqueue delayed cancel orders 0 42
    goqueue delayed cancel orders --key customer-42
    """
    one = _one(topic, partition, offset, key)
    with connected(server) as client:
        found = client.cancel(topic, key=_bytes(key)) if one is None else client.cancel(one)
    shown = f"{number(len(found), 'message')} of {topic} cancelled" if found else _none(topic, key)
    show(_data(found), output, plain(shown))


@app.command()
def reschedule(
    topic: TopicArgument,
    partition: PartitionArgument = None,
    offset: OffsetArgument = None,
    key: KeyOption = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", parser=arguments.duration, help="Deliver after this time from now, such as 30m."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", parser=arguments.moment, help="Deliver at this time, such as 2026-01-31T12:00:00Z."
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Deliver a delayed message, or all waiting messages with a key, at another time. A past time means now.

    goqueue delayed reschedule orders 0 42 --delay 30m
    goqueue delayed reschedule orders --key customer-42 --at 2026-01-31T12:00:00Z
    """
    one = _one(topic, partition, offset, key)
    if (delay is None) == (at is None):
        raise typer.BadParameter("give either --delay or --at", param_hint="--delay")
    with connected(server) as client:
        if one is None:
            found = client.reschedule(topic, key=_bytes(key), delay=delay, deliver_at=at)
        else:
            found = client.reschedule(one, delay=delay, deliver_at=at)
    _show(found, output, _none(topic, key))


@app.command()
def stats(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show statistics of delayed messages."""
    with connected(server) as client:
        found = client.delay_stats()
    data = {
        "total_scheduled": found.scheduled,
        "total_delivered": found.delivered,
        "total_cancelled": found.cancelled,
        "total_expired": found.expired,
        "total_pending": found.pending,
        "avg_delay": format_duration(found.average_delay_ns),
        "by_topic": found.by_topic,
        "timer_wheel": {"current_active": found.wheel_active, "current_tick": found.wheel_tick},
    }
    known = {
        "scheduled": f"{found.scheduled:,}",
        "delivered": f"{found.delivered:,}",
        "cancelled": f"{found.cancelled:,}",
        "expired": f"{found.expired:,}",
        "waiting": f"{found.pending:,}",
        "of those in the timer wheel": f"{found.wheel_active:,}",
        "delayed on average": lasting(found.average_delay_ns),
    }
    tables: list[RenderableType] = [facts(known)]
    waiting = {topic: count for topic, count in found.by_topic.items() if count}
    if waiting:
        rows = ((topic, f"{count:,}") for topic, count in sorted(waiting.items()))
        tables.append(table(("topic", "waiting"), rows, numbers=("waiting",)))
    show(data, output, *tables)


def _one(topic: str, partition: int | None, offset: int | None, key: str | None) -> DelayedMessage | None:
    """The message that the arguments name; None if they name all messages of a key."""
    if partition is not None and offset is not None and key is None:
        return DelayedMessage(topic, partition, offset, None, 0, DelayedState.PENDING, Priority.NORMAL)
    if key is None or partition is not None:
        raise typer.BadParameter("give either PARTITION and OFFSET, or --key", param_hint="PARTITION OFFSET")
    return None


def _none(topic: str, key: str | None) -> str:
    return f"no message of {topic} with the key {key} is waiting"


def _bytes(key: str | None) -> bytes | None:
    return None if key is None else os.fsencode(key)


def _show(found: list[DelayedMessage], output: OutputFormat, none: str) -> None:
    now_ns = SystemClock().wall_ns()
    columns = ("partition", "offset", "due", "in", "priority", "state", "key")
    rows = (
        (
            one.partition,
            one.offset,
            when(one.deliver_at_ns),
            lasting(one.deliver_at_ns - now_ns) if one.state == DelayedState.PENDING else "-",
            Priority(one.priority).name.lower(),
            one.state,
            one_line(one.key or b""),
        )
        for one in found
    )
    shown = table(columns, rows, numbers=("partition", "offset", "in"), whole=("due",)) if found else plain(none)
    show(_data(found), output, shown)


def _data(found: list[DelayedMessage]) -> list[dict[str, object]]:
    """With the field names of the HTTP API."""
    now_ns = SystemClock().wall_ns()
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            **key_data(one.key),
            "deliver_at": format_time(one.deliver_at_ns),
            "time_remaining": format_duration(max(0, one.deliver_at_ns - now_ns)),
            "state": one.state,
            "priority": Priority(one.priority).name.lower(),
        }
        for one in found
    ]
