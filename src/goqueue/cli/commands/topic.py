"""`goqueue topic`: create, list, describe, alter, truncate and delete topics."""

import sys
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from goqueue.cli import arguments, confirmation
from goqueue.cli.broker import DECISION, DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import FormatOption, OutputFormat, plain, show, size, table
from goqueue.times import format_time

app = typer.Typer(help="Create, list, describe, alter, truncate and delete topics.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as flush=interval; repeatable."),
]


@app.command()
def create(
    name: NameArgument,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", min=1, help="How many nodes have a replica; default: that of the cluster."
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.duration, help="How long messages are kept, such as 7d."),
    ] = None,
    set_: SetOption = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do not fail if the topic exists.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Create a topic."""
    settings: dict[str, Any] = arguments.settings(set_ or ())
    if retention is not None:
        settings["retention"] = retention
    with connected(server, timeout=DECISION) as client:
        state = client.create_topic(
            name, partitions=partitions, replication_factor=replication_factor, exist_ok=exist_ok, **settings
        )
    count = len(state.partitions)
    show(_data(state), output, plain(f"topic {name} has {count} partition{'s' if count != 1 else ''}"))


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the topics. Topics with damaged files, which are not served, go to standard error."""
    with connected(server) as client:
        names = client.topics(internal=internal)
        quarantined = client.health().quarantined
    show(names, output, *map(plain, names))
    for name, reason in quarantined.items():
        print(f"not served: {name} ({reason})", file=sys.stderr)


@app.command()
def describe(
    name: NameArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """Show the partitions and the settings of a topic."""
    with connected(server) as client:
        state = client.describe_topic(name)
    _show(state, output)


@app.command()
def alter(
    name: NameArgument,
    set_: SetOption = None,
    reset: Annotated[
        list[str] | None, typer.Option("--reset", metavar="NAME", help="Reset a setting to its default; repeatable.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Change settings of a topic."""
    changes: dict[str, object] = {**arguments.settings(set_ or ()), **dict.fromkeys(reset or ())}
    if not changes:
        raise typer.BadParameter("pass --set NAME=VALUE or --reset NAME")
    with connected(server, timeout=DECISION) as client:
        state = client.alter_topic(name, changes)
    _show(state, output)


@app.command()
def delete(
    name: NameArgument,
    yes: confirmation.YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Delete a topic and all messages in it."""
    confirmation.check(yes, "deletes all messages of the topic")
    with connected(server, timeout=DECISION) as client:
        if not yes:
            confirmation.ask(f"Delete topic {name} and all messages in it?")
        client.delete_topic(name)
    show({"name": name, "deleted": True}, output, plain(f"topic {name} is deleted"))


@app.command()
def truncate(
    name: NameArgument,
    partition: Annotated[int, typer.Option("--partition", min=0, help="The partition.")],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET", help="The first offset to keep, or latest to delete all.")
    ],
    yes: confirmation.YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Delete the messages of a partition before an offset."""
    if before != "latest" and not before.isdecimal():
        raise typer.BadParameter(f"{before!r} is neither an offset nor latest", param_hint="--before")
    confirmation.check(yes, "deletes messages of the partition")
    before_offset = -1 if before == "latest" else int(before)
    with connected(server) as client:
        if not yes:
            which = "all messages" if before == "latest" else f"the messages before offset {before}"
            confirmation.ask(f"Delete {which} of {name}-{partition}?")
        start = client.truncate_topic(name, partition=partition, before_offset=before_offset)
    data = {"topic": name, "partition": partition, "log_start_offset": start}
    show(data, output, plain(f"{name}-{partition} starts at offset {start}"))


def _show(state: Any, output: OutputFormat) -> None:
    data = _data(state)
    columns = ("partition", "leader", "first offset", "next offset", "messages", "size")
    partitions = table(columns, map(_row, state.partitions), numbers=columns)
    settings = table(
        ("setting", "value", ""),
        ((name, value, "default" if name in state.defaults else "") for name, value in state.settings.items()),
    )
    title = Text.assemble((state.name, "bold"), f", created {data['created_at']}, id {UUID(state.topic_id)}")
    show(data, output, title, partitions, settings)


def _row(one: Any) -> tuple[object, ...]:
    return one.partition, one.leader, one.start_offset, one.end_offset, one.message_count, size(one.size_bytes)


def _data(state: Any) -> dict[str, object]:
    """With the field names of the HTTP API, and one entry for each partition."""
    return {
        "name": state.name,
        "topic_id": str(UUID(state.topic_id)),
        "replication_factor": state.replication_factor,
        "created_at": format_time(state.created_at_ns),
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader,
                "log_start_offset": one.start_offset,
                "log_end_offset": one.end_offset,
                "high_watermark": one.high_watermark,
                "last_stable_offset": one.last_stable_offset,
                "messages": one.message_count,
                "size_bytes": one.size_bytes,
            }
            for one in state.partitions
        ],
        "config": dict(state.settings),
        "defaults": list(state.defaults),
    }
