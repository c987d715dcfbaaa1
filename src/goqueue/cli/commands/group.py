"""`goqueue group`: inspect consumer groups, their lag and what blocks them; reset and delete them."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from goqueue.cli import arguments, confirmation
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.confirmation import YesOption
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
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
from goqueue.cli.rendering import key_data
from goqueue.clock import MS, SECOND, SystemClock
from goqueue.errors import GroupNotFound
from goqueue.record.header import OFFSET_MAX
from goqueue.times import format_time

if TYPE_CHECKING:
    from goqueue.client.sync import Client
    from goqueue.wire.reports import BlockedKey, GroupInfo, MemberInfo, PositionReset

app = typer.Typer(help="Inspect, reset and delete consumer groups.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")]


@app.command("list")
def list_(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """List the groups with their members and lag."""
    with connected(server) as client:
        groups = list(_each(client))
    columns = ("group", "state", "members", "generation", "mode", "topics", "lag")
    rows = (
        (one.group, one.state, len(one.members), one.generation, one.mode, " ".join(one.topics), f"{one.lag:,}")
        for one in groups
    )
    shown = table(columns, rows, numbers=("members", "generation", "lag")) if groups else plain("there are no groups")
    show([_connection(one) for one in groups], output, shown)


@app.command()
def describe(
    group: GroupArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """Show a group and its members."""
    with connected(server) as client:
        found = client.describe_group(group)
    now_ns = SystemClock().wall_ns()
    known = {
        "state": found.state,
        "generation": found.generation,
        "rebalance": found.rebalance_state,
        "mode": found.mode,
        "protocol": f"{found.protocol}, {found.assignor}",
        "acknowledges": found.ack,
        "topics": " ".join(found.topics) or "-",
        "leader": found.leader_id or "-",
        "lag": f"{found.lag:,}",
        "expired leases": f"{found.expired_leases:,}",
        "created": when(found.created_at_ns),
    }
    columns = ("member", "partitions", "in flight", "joined", "last heartbeat")
    rows = (
        (
            one.member_id,
            _partitions(one) or "-",
            f"{one.in_flight:,}",
            f"{lasting(max(0, now_ns - one.joined_at_ns))} ago",
            f"{lasting(max(0, now_ns - one.last_heartbeat_ns))} ago",
        )
        for one in found.members
    )
    members = (
        table(columns, rows, numbers=("in flight",), whole=("member",))
        if found.members
        else plain("the group has no members")
    )
    data = {**_connection(found), "members": [_member(one) for one in found.members]}
    data |= {
        "expired_leases": found.expired_leases,
        "assignor": found.assignor,
        "ack": found.ack,
        "leader_id": found.leader_id,
        "rebalance_state": found.rebalance_state,
        "created_at": format_time(found.created_at_ns),
    }
    show(data, output, Text(found.group, "bold"), facts(known), members)
    if found.expired_leases and output is OutputFormat.TABLE:
        warn(
            f"{number(found.expired_leases, 'lease')} of {found.group} expired since the broker started: messages are "
            "delivered and never acknowledged. Acknowledge them, or extend their leases"
        )


@app.command()
def lag(
    group: GroupArgument,
    topic: TopicOption = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the position and the lag of a group in each partition.

    The time lag is the age of the oldest message that is not done.
    """
    with connected(server) as client:
        positions = client.group_positions(group, topic=topic)
        if not positions:
            client.describe_group(group)  # an empty table must not hide that there is no such group or topic
            if topic is not None:
                client.describe_topic(topic)
    columns = ("topic", "partition", "position", "end", "lag", "time lag", "metadata")
    rows = (
        (
            one.topic,
            one.partition,
            one.offset,
            one.end_offset,
            f"{one.lag:,}",
            lasting(round(one.lag_seconds * SECOND)) if one.lag else "-",
            one.metadata,
        )
        for one in positions
    )
    found = table(columns, rows, numbers=columns[1:6])
    total = sum(one.lag for one in positions)
    summary = plain(f"{group} has a lag of {number(total, 'message')}")
    shown = (found, summary) if positions else (plain(f"{group} has no position yet"),)
    show([msgspec.structs.asdict(one) for one in positions], output, *shown)


@app.command()
def reset(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|OFFSET|TIME", help="earliest, latest, an offset, or a time such as '2h ago'."
        ),
    ],
    topic: TopicOption = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new positions without setting them.")] = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Move the positions of a group forward or back. Members lose their leases on those partitions.

    goqueue group reset billing --to earliest --dry-run
    goqueue group reset billing --to '2h ago' --topic orders
    goqueue group reset billing --to 2026-01-31T12:00:00Z --yes
    goqueue group reset billing --to 4200 --topic orders --partition 1
    """
    target = _target(to)
    if not dry_run:
        confirmation.check(yes, "moves the group: messages are delivered again, or never")
    with connected(server) as client:
        # without --yes this first request changes nothing: it shows the moves that the question is about
        resets = client.reset_group(group, target, topic=topic, partition=partition, dry_run=dry_run or not yes)
        if not dry_run and not yes:
            errors.print(_moves(resets))
            confirmation.ask(f"Set {number(len(resets), 'position')} of {group}?")
            resets = client.reset_group(group, target, topic=topic, partition=partition)
    verb = "would be" if dry_run else "is" if len(resets) == 1 else "are"
    summary = plain(f"{number(len(resets), 'position')} of {group} {verb} set")
    data = [{**msgspec.structs.asdict(one), "dry_run": dry_run} for one in resets]
    show(data, output, *((_moves(resets), summary) if resets else (summary,)))


@app.command()
def delete(
    group: GroupArgument,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Delete a group: its members are removed, its positions are forgotten."""
    confirmation.check(yes, "forgets the positions of the group")
    with connected(server) as client:
        if not yes:
            members = number(len(client.describe_group(group).members), "member")
            confirmation.ask(f"Delete group {group} with {members} and all its positions?")
        client.delete_group(group)
    show({"group_id": group, "deleted": True}, output, plain(f"group {group} is deleted"))


@app.command()
def blocked(
    group: GroupArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """Show which message blocks which key of a key-shared group, and how many messages wait."""
    with connected(server) as client:
        found = client.blocked_keys(group)
    now_ns = SystemClock().wall_ns()
    columns = ("topic", "partition", "offset", "key", "waiting", "since", "delivery", "member")
    rows = (
        (
            one.topic,
            one.partition,
            one.offset,
            one_line(one.key),
            f"{one.waiting:,}",
            lasting(max(0, now_ns - one.since_ns)),
            one.delivery_count,
            one.member_id or "(waits for a retry)",
        )
        for one in found
    )
    numbers = ("partition", "offset", "waiting", "since", "delivery")
    shown = table(columns, rows, numbers=numbers) if found else plain(f"no key of {group} is blocked")
    show([_blocked(one) for one in found], output, shown)


@app.command()
def rebalances(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group; default: all together.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show how often partitions changed owner, why, and how long it took."""
    with connected(server) as client:
        found = client.rebalances(group)
    data = msgspec.structs.asdict(found)
    last_ns = data.pop("last_rebalance_at_ns")
    data["last_rebalance_at"] = None if last_ns is None else format_time(last_ns)
    reasons = (f"{reason} {count:,}" for reason, count in sorted(found.rebalances_by_reason.items()))
    known = {
        "rebalances": f"{found.total_rebalances:,}",
        "successful": f"{found.successful_rebalances:,}",
        "failed": f"{found.failed_rebalances:,}",
        "reasons": ", ".join(reasons) or "-",
        "partitions assigned": f"{found.total_partitions_assigned:,}",
        "partitions revoked": f"{found.total_partitions_revoked:,}",
        "revocations not confirmed in time": f"{found.total_revocation_timeouts:,}",
        "took on average": lasting(round(found.average_rebalance_duration_ms * MS)),
        "the last one took": lasting(round(found.last_rebalance_duration_ms * MS)),
        "the last one was": when(last_ns),
    }
    show(data, output, facts(known))


def _each(client: "Client") -> "list[GroupInfo]":
    found = []
    for name in client.groups():
        with suppress(GroupNotFound):  # deleted in the meantime
            found.append(client.describe_group(name))
    return found


def _target(text: str) -> str | int:
    """Where a group goes: a name, an offset or a time."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        if int(text) > OFFSET_MAX:
            raise typer.BadParameter(f"{text} is not an offset; the largest is {OFFSET_MAX}", param_hint="--to")
        return int(text)
    with suppress(typer.BadParameter):
        if not text.startswith("-"):
            return arguments.moment(text)
    choices = "earliest, latest, an offset, and a time such as 2026-01-31T12:00:00Z or '2h ago'"
    raise typer.BadParameter(f"{text!r} is none of {choices}", param_hint="--to")


def _moves(resets: "list[PositionReset]") -> Table:
    columns = ("topic", "partition", "from", "to", "")
    rows = ((one.topic, one.partition, one.old_offset, one.offset, _move(one)) for one in resets)
    return table(columns, rows, numbers=columns[1:4])


def _move(one: "PositionReset") -> str:
    distance = one.offset - one.old_offset
    return f"{distance:+,}" if distance else "stays"


def _connection(found: "GroupInfo") -> dict[str, object]:
    """With the field names of the HTTP API."""
    return {
        "group_id": found.group,
        "state": found.state,
        "members": len(found.members),
        "generation": found.generation,
        "topics": found.topics,
        "mode": found.mode,
        "protocol": found.protocol,
        "lag": found.lag,
    }


def _member(member: "MemberInfo") -> dict[str, object]:
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "topics": member.topics,
        "assigned_partitions": [str(name) for name in member.partitions],
        "in_flight": member.in_flight,
        "expired_leases": member.expired_leases,
        "joined_at": format_time(member.joined_at_ns),
        "last_heartbeat": format_time(member.last_heartbeat_ns),
    }


def _partitions(member: "MemberInfo") -> str:
    """The partitions by topic, consecutive ones as a range: `orders 0-3 7`."""
    by_topic: dict[str, list[list[int]]] = {}
    for name in sorted(member.partitions, key=lambda one: (one.topic, one.partition)):
        runs = by_topic.setdefault(name.topic, [])
        if runs and name.partition == runs[-1][-1] + 1:
            runs[-1].append(name.partition)
        else:
            runs.append([name.partition])
    return "\n".join(f"{topic} {' '.join(map(_run, runs))}" for topic, runs in by_topic.items())


def _run(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _blocked(one: "BlockedKey") -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        **key_data(one.key),
        "offset": one.offset,
        "member_id": one.member_id,
        "since": format_time(one.since_ns),
        "delivery_count": one.delivery_count,
        "waiting": one.waiting,
    }
