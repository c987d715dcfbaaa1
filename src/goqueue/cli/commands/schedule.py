"""`goqueue schedule`: messages that the broker publishes periodically, by cron or at an interval."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.commands.produce import PRIORITIES, STANDARD_INPUT
from goqueue.cli.output import FormatOption, OutputFormat, facts, plain, show, table, when
from goqueue.times import format_duration, format_time

if TYPE_CHECKING:
    from goqueue.wire.reports import ScheduleInfo, ScheduleRun

app = typer.Typer(help="Publish messages periodically, by cron or at an interval.", no_args_is_help=True)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that messages are published to.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


class MissedRuns(StrEnum):
    """What happens to missed runs."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@app.command()
def create(
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule, unique in the topic.")],
    cron: Annotated[
        str | None, typer.Option(metavar="CRON", help="A cron expression: '0 9 * * MON-FRI', @hourly, @daily.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.duration, help="An interval instead of --cron, such as 15m."),
    ] = None,
    value: Annotated[str | None, typer.Option("--value", help="The message.")] = None,
    value_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file with the message; - is standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of the message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(PRIORITIES)}.", autocompletion=lambda: list(PRIORITIES))
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="The partition; default: chosen by the key.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.duration, help="Do not deliver after this, such as 1h."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin; default: UTC.")
    ] = None,
    catch_up: Annotated[
        MissedRuns | None, typer.Option(help="What happens to runs missed while no broker ran; default: skip.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", parser=arguments.moment, help="No run before this time.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", parser=arguments.moment, help="No run after this time.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Do not fail if the schedule exists; it stays unchanged.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Create a schedule that publishes a message periodically.

    goqueue schedule create reports daily --cron '0 9 * * MON-FRI' --timezone Europe/Berlin --value run
    goqueue schedule create health ping --every 15m --value-file ping.json
    """
    if (cron is None) == (every is None):
        raise typer.BadParameter("give either --cron or --every", param_hint="--cron")
    if (value is None) == (value_file is None):
        raise typer.BadParameter("give either --value or --value-file", param_hint="--value")
    if every is not None and timezone is not None:
        raise typer.BadParameter("only --cron has a time zone", param_hint="--timezone")
    headers = arguments.pairs(header or (), option="--header")
    wanted = arguments.given(
        {
            "cron": cron,
            "every": every,
            "timezone": timezone,
            "catch_up": None if catch_up is None else catch_up.value,
            "start": start,
            "end": end,
            "key": None if key is None else os.fsencode(key),
            "headers": {name: os.fsencode(text) for name, text in headers.items()} or None,
            "priority": priority,
            "partition": partition,
            "ttl": ttl,
        }
    )
    content = _content(value_file or STANDARD_INPUT) if value is None else os.fsencode(value)
    with connected(server) as client:
        made = client.schedule(topic, content, name=name, paused=paused, exist_ok=exist_ok, **wanted)
    _say(made, output, _next(made))


@app.command("list")
def list_(
    topic: TopicArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """List the schedules of a topic."""
    with connected(server) as client:
        found = client.schedules(topic)
        if not found:
            client.describe_topic(topic)  # an empty list must not hide that there is no such topic
    columns = ("name", "when", "next", "last", "runs", "missed")
    rows = (
        (
            one.name,
            _when(one),
            "paused" if one.paused else when(one.next_at_ns),
            when(one.last_at_ns),
            f"{one.runs:,}",
            f"{one.missed:,}",
        )
        for one in found
    )
    shown = (
        table(columns, rows, numbers=("runs", "missed"), whole=("next", "last"))
        if found
        else plain(f"{topic} has no schedules")
    )
    show([_data(one) for one in found], output, shown)


@app.command()
def describe(
    topic: TopicArgument,
    name: NameArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show a schedule and its last runs."""
    with connected(server) as client:
        found = client.describe_schedule(topic, name)
    known = {
        "when": _when(found),
        "next": "paused" if found.paused else when(found.next_at_ns),
        "last": when(found.last_at_ns),
        "runs": f"{found.runs:,}",
        "missed": f"{found.missed:,}",
        "catches up": found.catch_up,
        "created": when(found.created_at_ns),
    }
    columns = ("due", "published", "partition", "offset", "error")
    history = (
        table(columns, map(_run_row, found.history), numbers=("partition", "offset"), whole=("due", "published"))
        if found.history
        else plain("it has not run yet")
    )
    data = {**_data(found), "history": [_run_data(one) for one in found.history]}
    show(data, output, Text.assemble((found.name, "bold"), f" of {found.topic}"), facts(known), history)


@app.command()
def pause(
    topic: TopicArgument,
    name: NameArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Pause a schedule."""
    with connected(server) as client:
        _say(client.pause_schedule(topic, name), output, "is paused")


@app.command()
def resume(
    topic: TopicArgument,
    name: NameArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Resume a schedule at its next time."""
    with connected(server) as client:
        resumed = client.resume_schedule(topic, name)
    _say(resumed, output, _next(resumed))


@app.command()
def run(
    topic: TopicArgument,
    name: NameArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish the message of a schedule now. Its next time does not change."""
    with connected(server) as client:
        _say(client.run_schedule(topic, name), output, "has published its message")


@app.command()
def delete(
    topic: TopicArgument,
    name: NameArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Delete a schedule. Its published messages stay."""
    with connected(server) as client:
        client.delete_schedule(topic, name)
    show({"topic": topic, "name": name, "deleted": True}, output, plain(f"schedule {name} of {topic} is deleted"))


def _content(path: Path) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--value-file") from None


def _say(one: "ScheduleInfo", output: OutputFormat, what: str) -> None:
    show(_data(one), output, plain(f"schedule {one.name} of {one.topic} {what}"))


def _next(one: "ScheduleInfo") -> str:
    if one.paused:
        return "is paused"
    return "will not run any more" if one.next_at_ns is None else f"runs next at {when(one.next_at_ns)}"


def _when(one: "ScheduleInfo") -> str:
    return f"every {format_duration(one.every_ns or 0)}" if one.cron is None else f"{one.cron} {one.timezone}"


def _run_row(one: "ScheduleRun") -> tuple[object, ...]:
    if one.error:
        return when(one.due_at_ns), "-", "-", "-", one.error
    return when(one.due_at_ns), when(one.published_at_ns), one.partition, one.offset, ""


def _data(one: "ScheduleInfo") -> dict[str, object]:
    """With the field names of the HTTP API."""
    optional = {
        "cron": one.cron,
        "every": None if one.every_ns is None else format_duration(one.every_ns),
        "last_at": _time(one.last_at_ns),
    }
    return {
        "name": one.name,
        "topic": one.topic,
        **arguments.given(optional),
        "timezone": one.timezone,
        "catch_up": one.catch_up,
        "paused": one.paused,
        "next_at": _time(one.next_at_ns),
        "runs": one.runs,
        "missed": one.missed,
        "created_at": format_time(one.created_at_ns),
    }


def _run_data(one: "ScheduleRun") -> dict[str, object]:
    return {
        "due_at": format_time(one.due_at_ns),
        "published_at": format_time(one.published_at_ns) if one.published_at_ns > 0 else None,
        "partition": one.partition,
        "offset": one.offset if one.offset >= 0 else None,
        **arguments.given({"error": one.error or None}),
    }


def _time(time_ns: int | None) -> str | None:
    return None if time_ns is None else format_time(time_ns)
