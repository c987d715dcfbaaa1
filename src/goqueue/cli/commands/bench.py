"""`goqueue bench`: how fast a broker is, measured from outside with the client that users have.

`--server` names the broker. Without it the command starts one as a second process on a temporary directory, and ends it
after the last run. Each workload runs `--runs` times and the best run is shown: other load on the machine only ever
makes a run slower.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from goqueue.cli.broker import connected
from goqueue.cli.output import FormatOption, OutputFormat, errors, show, table

app = typer.Typer(help="Measure how fast a broker is.", no_args_is_help=True)

EMBEDDED = "embedded"

SizeOption = Annotated[int, typer.Option(min=0, help="Bytes of each value.")]
CountOption = Annotated[int | None, typer.Option(min=1, help="How many messages.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Most messages per batch.")]
BatchBytesOption = Annotated[int, typer.Option(min=1, help="Most bytes per batch.")]
LingerOption = Annotated[str, typer.Option(help="How long a batch waits for more messages.")]
PartitionsOption = Annotated[int, typer.Option(min=1, help="Partitions of the topic.")]
AcksOption = Annotated[str, typer.Option(help="Acknowledgement: none, leader or all.")]
FlushOption = Annotated[str, typer.Option(help="When the broker syncs to disk: group, interval or none.")]
RateOption = Annotated[int, typer.Option(min=1, help="Messages per second.")]
RunsOption = Annotated[int, typer.Option(min=1, help="How many runs; the best one is shown.")]
ServerOption = Annotated[
    str, typer.Option(metavar="HOST:PORT|embedded", help="The address of the broker; `embedded` starts one.")
]
CompressionOption = Annotated[str | None, typer.Option(help="Compression: none, zstd or lz4.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def produce(
    size: SizeOption = 100,
    count: CountOption = None,
    batch: BatchOption = 100,
    batch_bytes: BatchBytesOption = 64 * 1024,
    linger: LingerOption = "5ms",
    partitions: PartitionsOption = 3,
    acks: AcksOption = "leader",
    flush: FlushOption = "interval",
    compression: CompressionOption = None,
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish as fast as one producer can, with one `send` per message."""
    from goqueue.cli import workloads

    asked = workloads.Workload(
        size=size,
        count=count or 1_000_000,
        batch=batch,
        batch_bytes=batch_bytes,
        linger=linger,
        partitions=partitions,
        acks=acks,
        flush=flush,
        compression=compression,
    )
    _run(server, runs, as_json, output, lambda client, _: workloads.produce(client, asked))


@app.command()
def consume(
    size: SizeOption = 100,
    count: CountOption = None,
    batch: BatchOption = 10_000,
    partitions: PartitionsOption = 3,
    compression: CompressionOption = None,
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Read a backlog."""
    from goqueue.cli import workloads

    asked = workloads.Workload(
        size=size, count=count or 1_000_000, partitions=partitions, batch=batch, compression=compression
    )
    _run(server, runs, as_json, output, lambda client, _: workloads.consume(client, asked))


@app.command()
def latency(
    size: SizeOption = 100,
    count: CountOption = None,
    partitions: PartitionsOption = 3,
    acks: AcksOption = "leader",
    flush: FlushOption = "interval",
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish one message at a time, and wait for each answer."""
    from goqueue.cli import workloads

    asked = workloads.Workload(
        size=size, count=count or 5_000, partitions=partitions, batch=1, linger="0s", acks=acks, flush=flush
    )
    _run(server, runs, as_json, output, lambda client, _: workloads.latency(client, asked))


@app.command("end-to-end")
def end_to_end(
    size: SizeOption = 100,
    count: CountOption = None,
    rate: RateOption = 1_000,
    partitions: PartitionsOption = 3,
    acks: AcksOption = "leader",
    flush: FlushOption = "interval",
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish at a steady rate, follow, and measure the time from publish to receipt."""
    from goqueue.cli import workloads

    asked = workloads.Workload(
        size=size,
        count=count or 5 * rate,
        partitions=partitions,
        batch=1,
        linger="0s",
        acks=acks,
        flush=flush,
        rate=rate,
    )
    _run(server, runs, as_json, output, lambda client, address: workloads.end_to_end(client, asked, address))


@app.command()
def work(
    size: SizeOption = 100,
    count: CountOption = None,
    partitions: PartitionsOption = 3,
    flush: FlushOption = "interval",
    consumers: Annotated[int, typer.Option(min=1, help="Consumers in the group.")] = 1,
    single: Annotated[bool, typer.Option("--single", help="Poll one message at a time.")] = False,
    stuck: Annotated[bool, typer.Option("--stuck", help="Leave the first message unacknowledged.")] = False,
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Consume a backlog as a group: poll up to 500 messages, acknowledge each of them."""
    from goqueue.cli import delivery_workloads
    from goqueue.cli.workloads import Workload

    asked = Workload(size=size, count=count or (5_000 if single else 1_000_000), partitions=partitions, flush=flush)

    def run(client: Any, address: str) -> object:
        if single:
            return delivery_workloads.poll_one(client, asked)
        if consumers > 1:
            return delivery_workloads.work_shared(client, asked, address, consumers=consumers)
        return delivery_workloads.stuck(client, asked) if stuck else delivery_workloads.work(client, asked)

    _run(server, runs, as_json, output, run)


@app.command()
def delay(
    size: SizeOption = 100,
    count: CountOption = None,
    partitions: PartitionsOption = 3,
    flush: FlushOption = "interval",
    rate: RateOption = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How many seconds messages fall due at the rate.")] = 5.0,
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Schedule, cancel and reschedule delayed messages, and measure how late they are delivered."""
    from goqueue.cli import delivery_workloads
    from goqueue.cli.workloads import Workload

    asked = Workload(size=size, count=count or 1_000_000, partitions=partitions, flush=flush)
    _run(
        server,
        runs,
        as_json,
        output,
        lambda client, address: delivery_workloads.delay(client, asked, address, due_rate=rate, due_seconds=seconds),
    )


@app.command()
def groups(
    size: SizeOption = 100,
    members: Annotated[int, typer.Option(min=1, help="Members of the group.")] = 20,
    partitions: PartitionsOption = 60,
    count: CountOption = None,
    seconds: Annotated[float, typer.Option(min=1, help="How many seconds to run.")] = 15.0,
    changes: Annotated[int, typer.Option(min=1, help="How often a member joins and leaves.")] = 4,
    flush: FlushOption = "interval",
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Let a member join and leave a busy group, and measure how long other members pause."""
    from goqueue.cli import delivery_workloads
    from goqueue.cli.workloads import Workload

    asked = Workload(size=size, count=count or 500_000, partitions=partitions, flush=flush)
    _run(
        server,
        runs,
        as_json,
        output,
        lambda client, address: delivery_workloads.groups(
            client, asked, address, members=members, seconds=seconds, changes=changes
        ),
    )


@app.command()
def transactions(
    size: SizeOption = 100,
    count: CountOption = None,
    per_transaction: Annotated[int, typer.Option(min=1, help="Messages in each transaction.")] = 1_000,
    commits: Annotated[
        bool, typer.Option("--commits", help="One message per partition; measure commits only.")
    ] = False,
    partitions: PartitionsOption = 3,
    flush: FlushOption = "group",
    runs: RunsOption = 1,
    server: ServerOption = EMBEDDED,
    as_json: JsonOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish in transactions; the latencies are those of commits."""
    from goqueue.cli import transaction_workloads
    from goqueue.cli.workloads import Workload

    asked = Workload(
        size=size, count=count or (1_000 * partitions if commits else 1_000_000), partitions=partitions, flush=flush
    )

    def run(client: Any, _: str) -> object:
        if commits:
            return transaction_workloads.commit(client, asked)
        return transaction_workloads.publish(client, asked, per_transaction=per_transaction)

    _run(server, runs, as_json, output, run)


def _run(server: str, runs: int, as_json: bool, output: OutputFormat, measure: Callable[..., object]) -> None:
    with _broker(server) as address, connected(address) as client:
        measured = [asdict(measure(client, address)) for _ in range(runs)]  # type: ignore[call-overload]
    best = min(measured, key=lambda one: one["p99_ms"] if one["workload"] in TIMED else one["seconds"])
    best["runs"] = [round(one["messages_per_second"]) for one in measured]
    if as_json:
        typer.echo(json.dumps(best))
        return
    rows = [(name, _shown(value)) for name, value in best.items()]
    show(best, output, table(("measured", "value"), rows, numbers=("value",)))


TIMED = ("latency", "end-to-end", "poll 1, ack 1", "delay", "groups", "commit")
"""Workloads whose best run is the one with the lowest p99; of the others it is the fastest run."""


def _shown(value: object) -> str:
    match value:
        case float():
            return f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case list():
            return " ".join(map(_shown, value))
    return str(value)


@contextmanager
def _broker(server: str) -> Iterator[str]:
    """The address of the broker to measure; `embedded` starts one for the block."""
    if server != EMBEDDED:
        yield server
        return
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-") as data:
        process = subprocess.Popen(
            [sys.executable, "-m", "goqueue.cli", "serve", "--data", data, "--native", "127.0.0.1:0", "--http", "off"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not os.environ.get("GOQUEUE_BENCH_LOG") else None,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if "native=" not in ready:
                errors.print((process.stderr.read() if process.stderr else "") or "the broker did not start")
                raise typer.Exit(1)
            yield ready.split("native=")[1].split()[0]
        finally:
            process.terminate()
            process.communicate(timeout=30)  # not `wait`: a broker with a full pipe of stderr would not end
