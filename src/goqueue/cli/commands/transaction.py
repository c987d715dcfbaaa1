"""`goqueue transaction`: list open transactions, see which of them blocks readers, and abort it."""

from typing import TYPE_CHECKING, Annotated

import typer

from goqueue.cli import confirmation
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import FormatOption, OutputFormat, facts, lasting, number, plain, show, table, warn, when
from goqueue.clock import MS, SECOND, SystemClock
from goqueue.errors import TopicNotFound
from goqueue.times import format_duration, format_time

if TYPE_CHECKING:
    from goqueue.client.sync import Client
    from goqueue.wire.transaction_reports import TransactionInfo

app = typer.Typer(help="Inspect open transactions, and abort abandoned ones.", no_args_is_help=True)

PATIENCE_NS = 10 * SECOND
"""A transaction that blocks readers for longer is reported."""
SHOWN_PARTITIONS_MAX = 5

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the transaction; `list` shows it.")]


@app.command("list")
def list_(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """List open transactions, the oldest first. Readers wait for them in the partitions that they wrote to."""
    with connected(server) as client:
        found = client.transactions()
    now_ns = SystemClock().wall_ns()
    columns = ("id", "state", "age", "left", "partitions", "groups")
    rows = (
        (
            one.transaction_id,
            one.state,
            lasting(_age_ns(one, now_ns)),
            lasting(_left_ns(one, now_ns)),
            len(one.partitions),
            ", ".join(one.groups),
        )
        for one in found
    )
    numbers = ("age", "left", "partitions")
    shown = table(columns, rows, numbers=numbers) if found else plain("no transaction is open")
    show([_data(one, now_ns) for one in found], output, shown)
    oldest = next((one for one in found if one.partitions), None)
    if output is OutputFormat.TABLE and oldest and _age_ns(oldest, now_ns) > PATIENCE_NS:
        warn(_hint(oldest, now_ns))


@app.command()
def describe(
    identity: IdArgument, server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE
) -> None:
    """Show a transaction, and how many records wait for it in each of its partitions."""
    with connected(server) as client:
        found = client.describe_transaction(identity)
        waiting = _waiting(client, found)
    now_ns = SystemClock().wall_ns()
    known = {
        "id": found.transaction_id,
        "transactional id": found.transactional_id,
        "producer": f"{found.producer_id}, epoch {found.epoch}",
        "state": found.state,
        "begun": f"{when(found.started_at_ns)}, {lasting(_age_ns(found, now_ns))} ago",
        "last used": f"{lasting(max(0, now_ns - found.updated_at_ns))} ago",
        "times out in": lasting(_left_ns(found, now_ns)),
        "acks and positions of": ", ".join(found.groups) or "-",
    }
    rows = [(topic, partition, f"{count:,}") for (topic, partition), count in waiting.items()]
    columns = ("topic", "partition", "blocked")
    touched = [table(columns, rows, numbers=("partition", "blocked"))] if rows else []
    data = _data(found, now_ns)
    data["held_up"] = [
        {"topic": topic, "partition": partition, "records": count} for (topic, partition), count in waiting.items()
    ]
    show(data, output, facts(known), *touched)


@app.command()
def abort(
    identity: IdArgument,
    yes: confirmation.YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Abort a transaction. Its messages are never read; the messages that it acknowledged are delivered again.

    The next request of its producer fails with TransactionAborted.
    """
    confirmation.check(yes, "aborts the transaction of another producer")
    with connected(server) as client:
        if not yes:
            found = client.describe_transaction(identity)
            age = lasting(_age_ns(found, SystemClock().wall_ns()))
            confirmation.ask(f"Abort {identity}, begun {age} ago, with {number(len(found.partitions), 'partition')}?")
        outcome = client.abort_transaction(identity)
    show({"transaction_id": identity, "status": outcome.status}, output, plain(f"{identity} is {outcome.status}"))


@app.command()
def stats(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show statistics of transactions since the broker started."""
    with connected(server) as client:
        found = client.transaction_stats()
    data = {
        "active_transactions": found.active_transactions,
        "committed_total": found.committed_total,
        "aborted_total": found.aborted_total,
        "avg_duration": format_duration(found.average_duration_ns),
        "by_state": found.by_state,
        "producers": found.producers,
    }
    known = {
        "open": f"{found.active_transactions:,}",
        "committed": f"{found.committed_total:,}",
        "aborted": f"{found.aborted_total:,}",
        "from begin to commit, on average": lasting(found.average_duration_ns),
        "producers": f"{found.producers:,}",
    }
    by_state = [(state, f"{count:,}") for state, count in found.by_state.items() if count]
    states = [table(("state", "transactional ids"), by_state, numbers=("transactional ids",))] if by_state else []
    show(data, output, facts(known), *states)


def _waiting(client: "Client", found: "TransactionInfo") -> dict[tuple[str, int], int]:
    """By partition, how many records are after the last stable offset."""
    waiting: dict[tuple[str, int], int] = {}
    for topic in dict.fromkeys(one.topic for one in found.partitions):
        try:
            partitions = {one.partition: one for one in client.describe_topic(topic).partitions}
        except TopicNotFound:
            continue
        for one in found.partitions:
            if one.topic == topic and one.partition in partitions:
                end = partitions[one.partition]
                waiting[topic, one.partition] = end.high_watermark - end.last_stable_offset
    return waiting


def _hint(oldest: "TransactionInfo", now_ns: int) -> str:
    names = [f"{one.topic}-{one.partition}" for one in oldest.partitions]
    more = f" and {len(names) - SHOWN_PARTITIONS_MAX} more" if len(names) > SHOWN_PARTITIONS_MAX else ""
    return (
        f"{oldest.transaction_id} blocks readers of {', '.join(names[:SHOWN_PARTITIONS_MAX])}{more} "
        f"for {lasting(_age_ns(oldest, now_ns))}; it times out in {lasting(_left_ns(oldest, now_ns))}; "
        f"abort it now with `goqueue transaction abort {oldest.transaction_id}`"
    )


def _age_ns(one: "TransactionInfo", now_ns: int) -> int:
    return max(0, now_ns - one.started_at_ns)


def _left_ns(one: "TransactionInfo", now_ns: int) -> int:
    return max(0, one.timeout_ms * MS - _age_ns(one, now_ns))


def _data(one: "TransactionInfo", now_ns: int) -> dict[str, object]:
    """With the field names of the HTTP API."""
    started_at = format_time(one.started_at_ns)
    return {
        "transaction_id": one.transaction_id,
        "transactional_id": one.transactional_id,
        "producer_id": one.producer_id,
        "epoch": one.epoch,
        "state": one.state,
        "start_time": started_at,
        "started_at": started_at,
        "age": format_duration(_age_ns(one, now_ns)),
        "timeout_ms": one.timeout_ms,
        "partitions": [{"topic": name.topic, "partition": name.partition} for name in one.partitions],
        "groups": list(one.groups),
    }
