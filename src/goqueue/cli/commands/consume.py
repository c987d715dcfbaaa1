"""`goqueue consume`: read messages by offset or time, or follow what comes. Changes nothing, and no group notices."""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.rendering import Render, renderer

if TYPE_CHECKING:
    from goqueue.record.message import Message


def _format(text: str) -> str:
    try:
        renderer(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where from.")],
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this one.")] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The first offset in each partition; without it, the oldest there is.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", parser=arguments.moment, help="Stored then or later, such as '2h ago'."),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", parser=arguments.moment, help="Stored before then.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes; without a start, only with that.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-o",
            metavar="FORMAT",
            parser=_format,
            help="text, json, yaml, raw, or a template: '{partition}:{offset} {key} {value}'. "
            "Fields: topic, partition, offset, timestamp, priority, key, value, headers.",
        ),
    ] = "text",
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Print the messages of a topic, ordered by offset within each partition."""
    if follow and to_time:
        raise typer.BadParameter("whoever follows reads for ever", param_hint="--to")
    given = {"partition": partition, "offset": offset, "from_time": from_time, "to_time": to_time, "limit": limit}
    where: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        with connected(server) as client:
            messages = client.follow(topic, **where) if follow else client.read(topic, **where)
            _write(messages, renderer(format), at_once=follow)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # whoever read our lines has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(messages: Iterable["Message"], render: Render, *, at_once: bool) -> None:
    lines = sys.stdout.buffer
    try:
        for message in messages:
            lines.write(render(message))
            if at_once:
                lines.flush()
    finally:
        lines.flush()
