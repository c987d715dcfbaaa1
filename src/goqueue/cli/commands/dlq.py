"""`goqueue dlq`: inspect dead letters and redrive them.

A redrive runs in the broker, with or without `--follow`. With it, the exit code says how the redrive ended: 0 if all
that matched is redriven, 1 if some messages failed or the redrive was stopped.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
    cut,
    errors,
    facts,
    lasting,
    number,
    one_line,
    plain,
    show,
    table,
    warn,
    when,
)
from goqueue.cli.rendering import as_data
from goqueue.clock import SystemClock
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.times import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from goqueue.client.sync import Client
    from goqueue.record.message import StoredMessage
    from goqueue.wire.reports import DeadLetter, DeadLetterQueue, RedriveInfo

app = typer.Typer(help="Inspect dead letters and redrive them.", no_args_is_help=True)

INTERRUPTED_EXIT_CODE = 130
LOOK_S = 0.2
SHOWN_CHARACTERS = 240
SHOWN_BYTES = 4 * SHOWN_CHARACTERS


class To(StrEnum):
    """Which groups a redriven message is delivered to."""

    GROUP = "group"
    ALL = "all"


class DeathReason(StrEnum):
    """Why a message is a dead letter."""

    MAX_DELIVERIES = "MAX_DELIVERIES"
    TIMEOUT = "TIMEOUT"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that the dead letters come from.")]
ReasonOption = Annotated[
    DeathReason | None, typer.Option(case_sensitive=False, help="Only dead letters with this reason.")
]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Only dead letters of this group.")]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only dead letters with this key.")]
KeyPrefixOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only dead letters whose key starts with this.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Only dead letters with this header; repeatable."),
]
ErrorOption = Annotated[
    str | None, typer.Option("--error-contains", metavar="TEXT", help="Only dead letters whose error contains this.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", parser=arguments.moment, help="Only messages dead-lettered at or after this time."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", parser=arguments.moment, help="Only messages dead-lettered before this time."
    ),
]
AttemptsOption = Annotated[
    int | None,
    typer.Option("--min-attempts", metavar="N", min=1, help="Only dead letters with at least this many deliveries."),
]
ToOption = Annotated[
    To | None,
    typer.Option(
        case_sensitive=False,
        help="Deliver to the group that gave up the message (default), or to all (default with --target).",
    ),
]
RateOption = Annotated[float, typer.Option(metavar="N", min=0, help="Most messages per second; 0: no limit.")]
MostOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Most messages to redrive.")]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="TOPIC", help="The topic to publish to; default: that of each message."),
]
MaxRedrivesOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Skip messages that were redriven this often already.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be redriven, and change nothing.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
OffsetOption = Annotated[
    list[int] | None,
    typer.Option("--offset", min=0, help="Only the dead letter at this offset; repeatable."),
]


@app.command("list")
def list_(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """List the topics that have dead letters."""
    with connected(server) as client:
        queues = client.dead_letter_queues()
    columns = ("topic", "messages", "oldest", "newest", "reasons", "groups")
    rows = (
        (
            one.topic,
            f"{one.messages:,}",
            _ago(one.oldest_ns),
            _ago(one.newest_ns),
            _counts(one.by_reason),
            _counts(one.by_group),
        )
        for one in queues
    )
    shown = (
        table(columns, rows, numbers=("messages",), whole=("oldest", "newest"))
        if queues
        else plain("no topic has dead letters")
    )
    show([_queue(one) for one in queues], output, shown)


@app.command()
def describe(
    topic: TopicArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """Show the dead letters of a topic by reason and group, and its redrives."""
    with connected(server) as client:
        found = client.describe_dead_letters(topic)
    known = {
        "messages": f"{found.messages:,}",
        "in": found.dlq_topic,
        "oldest": when(found.oldest_ns),
        "newest": when(found.newest_ns),
    }
    tables: list[RenderableType] = [Text(found.topic, "bold"), facts(known)]
    for title, counts in (("reason", found.by_reason), ("group", found.by_group), ("error", found.by_error)):
        if counts:
            ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
            rows = ((one_line(name.encode()) or "-", f"{count:,}") for name, count in ranked)
            tables.append(table((title, "messages"), rows, numbers=("messages",)))
    if found.redrives:
        columns = ("redrive", "state", "matched", "redriven", "skipped", "failed", "started")
        tables.append(table(columns, map(_redrive_row, found.redrives), numbers=columns[2:6], whole=("redrive",)))
    data = {**_queue(found), "by_error": found.by_error, "redrives": [_redrive(one) for one in found.redrives]}
    show(data, output, *tables)


@app.command()
def messages(
    topic: TopicArgument,
    reason: ReasonOption = None,
    group: GroupOption = None,
    key: KeyOption = None,
    key_prefix: KeyPrefixOption = None,
    header: HeaderOption = None,
    error_contains: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    min_attempts: AttemptsOption = None,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most dead letters to show.")] = 100,
    skip: Annotated[int, typer.Option(min=0, help="Dead letters to skip.")] = 0,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the dead letters of a topic. JSON and YAML show them in full, the table in part.

    goqueue dlq messages orders --reason rejected --since '2h ago'
    goqueue dlq messages orders --group billing --error-contains timeout -o json
    """
    where = _where(
        reason, group, key, key_prefix, header, error_contains, since, until, min_attempts, partition, offset
    )
    with connected(server) as client:
        found = client.dead_letters(topic, where=where, limit=limit, skip=skip)
    _show_letters(topic, found, output)


@app.command()
def redrive(
    topic: TopicArgument,
    reason: ReasonOption = None,
    group: GroupOption = None,
    key: KeyOption = None,
    key_prefix: KeyPrefixOption = None,
    header: HeaderOption = None,
    error_contains: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    min_attempts: AttemptsOption = None,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    rate: RateOption = 0,
    limit: MostOption = None,
    target: TargetOption = None,
    max_redrives: MaxRedrivesOption = 3,
    to: ToOption = None,
    dry_run: DryRunOption = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait until the redrive is done.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Redrive dead letters to the topic that they come from: all of them, or those that match every filter.

    goqueue dlq redrive orders --dry-run
    goqueue dlq redrive orders --reason timeout --group billing --rate 100 --follow
    goqueue dlq redrive orders --partition 0 --offset 17
    """
    where = _where(
        reason, group, key, key_prefix, header, error_contains, since, until, min_attempts, partition, offset
    )
    if dry_run and follow:
        raise typer.BadParameter("cannot be combined with --dry-run", param_hint="--follow")
    options: dict[str, Any] = {
        "where": where,
        "limit": limit or 0,
        "target_topic": target,
        "max_redrives": max_redrives,
        "to": None if to is None else to.value,
    }
    with connected(server) as client:
        if dry_run:
            _show_plan(client, topic, options, output)
            return
        begun = client.redrive(topic, rate=rate, **options)
        if follow:
            _show_end(_followed(client, begun), output)
        else:
            _show_redrive(begun, output)


@app.command()
def stop(
    topic: TopicArgument,
    redrive_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the redrive; `goqueue dlq describe` shows it.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Stop a redrive after the messages that it is moving."""
    with connected(server) as client:
        _show_redrive(client.stop_redrive(topic, redrive_id), output)


def _where(
    reason: DeathReason | None,
    group: str | None,
    key: str | None,
    key_prefix: str | None,
    header: list[str] | None,
    error_contains: str | None,
    since: str | None,
    until: str | None,
    min_attempts: int | None,
    partition: int | None,
    offsets: list[int] | None,
) -> dict[str, Any]:
    """The filter as the client takes it."""
    return arguments.given(
        {
            "reason": None if reason is None else reason.value,
            "group": group,
            "key": None if key is None else os.fsencode(key),
            "key_prefix": None if key_prefix is None else os.fsencode(key_prefix),
            "header": arguments.pairs(header or (), option="--header") or None,
            "error_contains": error_contains,
            "from_time": since,
            "to_time": until,
            "min_attempts": min_attempts,
            "partition": partition,
            "offsets": offsets or None,
        }
    )


# --- redriving ---------------------------------------------------------------------------------


def _show_plan(client: "Client", topic: str, options: dict[str, Any], output: OutputFormat) -> None:
    plan = client.plan_redrive(topic, **options)
    text = f"{number(plan.matched, 'dead letter')} of {topic} match{'es' if plan.matched == 1 else ''}"
    if plan.skipped_loop:
        text += f", {plan.skipped_loop:,} of them redriven too often already"
    data = {
        "dry_run": True,
        "matched": plan.matched,
        "skipped_loop": plan.skipped_loop,
        "sample": [_letter(one, _message(one)) for one in plan.sample],
    }
    show(data, output, plain(text), *(_text(one) for one in plan.sample))


def _followed(client: "Client", begun: "RedriveInfo") -> "RedriveInfo":
    """The redrive after its end. Ctrl-C ends the command, not the redrive, and a warning says so."""
    pause = threading.Event()
    now = begun
    try:
        with _progress() as advance:
            while now.state == "running":
                advance(now)
                pause.wait(LOOK_S)
                now = client.describe_redrive(now.topic, now.id)
    except KeyboardInterrupt:
        warn(f"redrive {now.id} continues; `goqueue dlq stop {now.topic} {now.id}` stops it")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    return now


@contextmanager
def _progress() -> "Iterator[Callable[[RedriveInfo], None]]":
    """A line on a terminal that shows the progress."""
    if not errors.is_terminal:
        yield lambda now: None
        return
    with errors.status("") as status:
        yield lambda now: status.update(plain(f"redrive {now.id}: {number(now.redriven, 'message')} redriven"))


def _show_end(ended: "RedriveInfo", output: OutputFormat) -> None:
    _show_redrive(ended, output)
    if ended.state != "done" or ended.failed:
        raise typer.Exit(1)


def _show_redrive(one: "RedriveInfo", output: OutputFormat) -> None:
    text = f"redrive {one.id} of {one.topic} is {one.state}: {number(one.redriven, 'message')} redriven"
    if one.skipped_loop:
        text += f", {one.skipped_loop:,} skipped, redriven too often already"
    if one.failed:
        text += f", {one.failed:,} failed"
    if one.error:
        text += f": {one.error}"
    show(_redrive(one), output, plain(text))


def _redrive_row(one: "RedriveInfo") -> tuple[object, ...]:
    return (
        one.id,
        f"{one.state}: {one.error}" if one.error else one.state,
        f"{one.matched:,}",
        f"{one.redriven:,}",
        f"{one.skipped_loop:,}",
        f"{one.failed:,}",
        _ago(one.started_at_ns),
    )


def _redrive(one: "RedriveInfo") -> dict[str, object]:
    finished_at = None if one.finished_at_ns is None else format_time(one.finished_at_ns)
    return {
        "id": one.id,
        "topic": one.topic,
        "state": one.state,
        "matched": one.matched,
        "redriven": one.redriven,
        "skipped_loop": one.skipped_loop,
        "failed": one.failed,
        "rate": one.rate,
        "to": one.to,
        "started_at": format_time(one.started_at_ns),
        **arguments.given({"finished_at": finished_at, "error": one.error or None}),
    }


# --- dead letters -----------------------------------------------------------------------------------


def _show_letters(topic: str, found: "list[DeadLetter]", output: OutputFormat) -> None:
    data = [_letter(one, _message(one)) for one in found]
    shown = [_text(one) for one in found] or [plain(f"no dead letter of {topic} matches")]
    show(data, output, *shown)


def _text(one: "DeadLetter") -> Text:
    """A dead letter in up to three lines: its place and reason, its error, and its key and value."""
    message = _message(one)
    back = f", redriven {number(one.redrives, 'time')}" if one.redrives else ""
    origin = f"{one.origin_topic}-{one.origin_partition}:{one.origin_offset}"
    lines = [
        f"{one.partition}:{one.offset} {one.reason} at {when(one.dead_at_ns)} in group {one.group} "
        f"at try {one.attempts}{back}, from {origin}"
    ]
    if one.error:
        lines.append(f"  error={one_line(one.error.encode())}")
    key = "" if message.key is None else f"key={one_line(message.key)} "
    lines.append(f"  {key}{'(tombstone)' if message.tombstone else one_line(message.value[:SHOWN_BYTES])}")
    return Text("\n").join(plain(cut(line, SHOWN_CHARACTERS)) for line in lines)


def _message(one: "DeadLetter") -> "StoredMessage":
    """The original message. A value that cannot be decompressed is shown compressed."""
    from goqueue.record import kernel
    from goqueue.record.header import Flags
    from goqueue.record.message import StoredMessage, decode_messages

    origin = TopicPartition(one.dlq_topic, one.partition)
    try:
        (message,) = decode_messages(one.record, origin, flags=Flags.COMPRESSED)
    except GoQueueError:
        (message,) = kernel.decode(one.record, origin, StoredMessage)
    return message


def _letter(one: "DeadLetter", message: "StoredMessage") -> dict[str, object]:
    """With the field names of the HTTP API."""
    return {
        **as_data(message),
        "reason": one.reason,
        "error": one.error,
        "group": one.group,
        "member": one.member,
        "attempts": one.attempts,
        "origin": {"topic": one.origin_topic, "partition": one.origin_partition, "offset": one.origin_offset},
        "dead_at": format_time(one.dead_at_ns),
        "redrives": one.redrives,
    }


def _queue(one: "DeadLetterQueue") -> dict[str, object]:
    return {
        "topic": one.topic,
        "dlq_topic": one.dlq_topic,
        "messages": one.messages,
        "oldest": None if one.oldest_ns is None else format_time(one.oldest_ns),
        "newest": None if one.newest_ns is None else format_time(one.newest_ns),
        "by_reason": one.by_reason,
        "by_group": one.by_group,
    }


def _ago(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{lasting(max(0, SystemClock().wall_ns() - time_ns))} ago"


def _counts(counts: dict[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ranked)
