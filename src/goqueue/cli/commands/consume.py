"""`goqueue consume`: read messages by offset or time, or take them as a member of a group.

Reading by offset changes nothing, neither in the log nor in any group. `membership.py` is about members of a group.
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
from goqueue.cli.membership import Ack, GroupMode, GroupStart, Stop, take
from goqueue.cli.output import complain
from goqueue.cli.rendering import Render, renderer

if TYPE_CHECKING:
    from goqueue.client.received import Message


class IsolationLevel(StrEnum):
    """Whether messages of open and aborted transactions are read."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def _format(text: str) -> str:
    try:
        renderer(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topic; several only with --group.")],
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The first offset in each partition; default: the oldest.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            parser=arguments.moment,
            help="Only messages stored at or after this time, such as '2h ago'.",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", parser=arguments.moment, help="Only messages stored before this time."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new messages; without a start, only new ones.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")] = None,
    isolation: Annotated[
        IsolationLevel | None,
        typer.Option(help="Whether to read messages of open and aborted transactions; default: read_committed."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Consume as a member of this group, and acknowledge messages.")
    ] = None,
    mode: Annotated[
        GroupMode | None,
        typer.Option(help="Whether members share partitions, messages or keys; default: partitioned."),
    ] = None,
    start: Annotated[
        GroupStart | None, typer.Option(help="Where a group without a position starts; default: earliest.")
    ] = None,
    visibility: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            parser=arguments.duration,
            help="Visibility timeout of a message; default: that of the topic.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most messages in flight; default: that of the topic.")
    ] = None,
    ack: Annotated[
        Ack | None,
        typer.Option(
            help="each (default): acknowledge every printed message. auto: commit the position after the printed "
            "messages, without leases and retries. none: acknowledge nothing, and release all messages at the end."
        ),
    ] = None,
    stop: Annotated[
        Stop | None, typer.Option(help="End when the group has no messages left; the default without --follow.")
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

    With --group, consume them as a member of that group: each message goes to one member,
    and is acknowledged after it is printed. Ctrl-C and SIGTERM leave the group.

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
            raise typer.BadParameter("--follow never ends by itself; press Ctrl-C", param_hint="--to")
    else:
        _refuse_given(
            given({"isolation": isolation}), "is not for members of a group: they read committed messages only"
        )
        _refuse_given(ranges, "is not for members of a group; `goqueue group reset` moves a group")
        if follow and stop:
            raise typer.BadParameter("--follow does not end when the group has no messages left", param_hint="--stop")
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
    except Terminated:  # first, for it is a KeyboardInterrupt
        raise typer.Exit(EXIT_TERMINATED) from None
    except KeyboardInterrupt:  # the usual end of --follow, and no error
        pass
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails, too
        if not isinstance(error, BrokenPipeError):  # that is `| head`, and no error
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
