"""`goqueue consume`: read messages by offset or time, or take them as a member of a group.

Reading changes nothing, and no group notices. What a member does is in `membership.py`.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goqueue.cli import arguments
from goqueue.cli.arguments import given
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.interrupts import EXIT_TERMINATED, Terminated, termination_raised
from goqueue.cli.membership import Ack, Mode, Start, Stop, take
from goqueue.cli.output import complain
from goqueue.cli.rendering import Render, renderer

if TYPE_CHECKING:
    from goqueue.record.message import Message


class Isolation(StrEnum):
    """Whether messages of open and aborted transactions are seen."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def _format(text: str) -> str:
    try:
        renderer(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Where from; several only with --group.")],
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
    isolation: Annotated[
        Isolation | None,
        typer.Option(
            help="Whether messages of open and aborted transactions are seen, too; read_committed unless set."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Take messages as a member of this group, and acknowledge them.")
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="How the group shares: partitions, single messages, or keys. partitioned unless set."),
    ] = None,
    start: Annotated[
        Start | None, typer.Option(help="Where a group begins that has no position yet; earliest unless set.")
    ] = None,
    visibility: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", parser=arguments.duration, help="How long a message is ours; the topic's unless set."
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The most messages at a time; the topic's unless set.")
    ] = None,
    ack: Annotated[
        Ack | None,
        typer.Option(
            help="each: every message that is printed, which is the default. auto: the position behind what is "
            "printed, without leases and retries. none: only look, and give all back at the end."
        ),
    ] = None,
    stop: Annotated[
        Stop | None, typer.Option(help="End when the group has nothing left, as it does unless it follows.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-o",
            metavar="FORMAT",
            parser=_format,
            help="text, json, yaml, raw, or a template: '{partition}:{offset} {key} {value}'. "
            "Fields: topic, partition, offset, timestamp, priority, key, value, headers, delivery_count.",
        ),
    ] = "text",
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Print the messages of a topic, ordered by offset within each partition.

    With --group, take them as a member of that group: each goes to one member,
    and is acknowledged once it is printed. Ctrl-C and SIGTERM leave the group.

      goqueue consume orders --from '2h ago'
      goqueue consume orders --follow -o json
      goqueue consume orders payments --group billing --follow
      goqueue consume orders --group billing --ack none --limit 10
    """
    ranges = {
        "partition": partition,
        "offset": offset,
        "from_time": from_time,
        "to_time": to_time,
        "isolation": isolation,
    }
    membership = {
        "mode": mode,
        "start": start,
        "visibility": visibility,
        "max_in_flight": max_in_flight,
        "ack": ack,
        "stop": stop,
    }
    if group is None:
        _refuse_given(membership, "needs a --group")
        if len(topics) > 1:
            raise typer.BadParameter("several topics at once need a --group", param_hint="TOPIC")
        if follow and to_time:
            raise typer.BadParameter("whoever follows reads for ever", param_hint="--to")
    else:
        _refuse_given(given({"isolation": isolation}), "is not for a member of a group, who sees what is committed")
        _refuse_given(ranges, "is not for a member of a group; `goqueue group reset` moves a group")
        if follow and stop:
            raise typer.BadParameter("whoever follows does not stop", param_hint="--stop")
    try:
        with termination_raised(), connected(server) as client:
            if group is None:
                where: dict[str, Any] = given({**ranges, "limit": limit})
                messages = client.follow(topics[0], **where) if follow else client.read(topics[0], **where)
                _write(messages, renderer(format), at_once=follow)
            else:
                how = ack or Ack.EACH
                wanted: dict[str, Any] = given({**membership, "ack": how.of_consumer, "stop": None})
                with client.consumer(topics, group=group, **wanted) as consumer:
                    take(consumer, renderer(format, topics=len(topics)), ack=how, limit=limit, follow=follow)
    except Terminated:
        raise typer.Exit(EXIT_TERMINATED) from None
    except KeyboardInterrupt:
        pass
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes nowhere
        if not isinstance(error, BrokenPipeError):  # otherwise whoever read our lines has enough
            complain(f"cannot write to standard output: {error.strerror or error}")
            raise typer.Exit(1) from None


def _refuse_given(options: Mapping[str, object], reason: str) -> None:
    spelled = {"from_time": "--from", "to_time": "--to"}
    for name in given(options):
        raise typer.BadParameter(reason, param_hint=spelled.get(name, f"--{name.replace('_', '-')}"))


def _write(messages: Iterable["Message"], render: Render, *, at_once: bool) -> None:
    lines = sys.stdout.buffer
    try:
        for message in messages:
            lines.write(render(message))
            if at_once:
                lines.flush()
    finally:
        lines.flush()
