"""`goqueue pipeline dead-letters`, `journeys`, `lag` and `stats`: reports on topics and groups, made by Spark.

Each prints tables: their first rows for people, all rows as JSON or YAML. `--write` writes them as Parquet, `--plot`
draws charts. A table with one row per message is only written. Only `dead-letters --redrive` changes anything.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.commands.dlq import (
    DryRunOption,
    MaxRedrivesOption,
    MostOption,
    RateOption,
    TargetOption,
    ToOption,
)
from goqueue.cli.commands.pipeline import DEFAULT_MASTER, MasterOption, SparkLogOption, SparkOption, app, started
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
    cut,
    lasting,
    number,
    one_line,
    plain,
    show,
    size,
    table,
    when,
)
from goqueue.clock import MS, SECOND
from goqueue.spark.pipelines.charts import FORMATS, Chart
from goqueue.times import format_time, parse_duration

if TYPE_CHECKING:
    from goqueue.spark.pipelines.dead_letters import RedriveResult

ROWS_SHOWN = 30
SHOWN_CHARACTERS = 120

__all__ = ["app"]  # the one of `pipeline`, with these commands in it

Row = Mapping[str, Any]


def _plot_path(text: str) -> str:
    """The path of a plot, checked before Spark starts."""
    if not text.lower().endswith(FORMATS):
        raise typer.BadParameter(f"{text!r} must end in {', '.join(FORMATS)}")
    if not os.path.isdir(os.path.dirname(text) or "."):
        raise typer.BadParameter(f"there is no directory {os.path.dirname(text)!r}")
    return text


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", parser=arguments.moment, help="Only messages stored at or after this time."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", parser=arguments.moment, help="Only messages stored before this time."),
]
EveryOption = Annotated[
    str,
    typer.Option("--every", metavar="DURATION", parser=arguments.duration, help="Length of the time windows."),
]
WriteOption = Annotated[
    str | None, typer.Option("--write", metavar="DIR", help="Write each table as Parquet to a folder of its name.")
]
PlotOption = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE", parser=_plot_path, help="Draw charts to this file: .png, .html or .svg."),
]


@app.command("stats")
def stats(
    topic: TopicArgument,
    since: SinceOption = None,
    until: UntilOption = None,
    every: EveryOption = "1m",
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many of the most frequent keys to show.")] = 20,
    write: WriteOption = None,
    plot: PlotOption = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the rates, message sizes, and skew over keys and partitions of a topic.

    goqueue pipeline stats orders --since '2h ago' --plot orders.png
    """
    every_ns = _positive_ns(every, "--every")
    with connected(server) as client:  # before Spark, which takes seconds to start
        client.describe_topic(topic)
    with started("stats", server, master=master, conf=conf, spark_log=spark_log, plots=plot is not None) as job:
        from goqueue.spark.pipelines import reports
        from goqueue.spark.pipelines import stats as pipeline

        config = pipeline.StatsConfig(every_ns=every_ns, top=top)
        with pipeline.report(job, topic, config, **_between(since, until)) as tables:
            found = {name: reports.rows(frame) for name, frame in tables.items()}
            if write is not None:
                reports.write(tables, write)
        _draw(pipeline.charts(topic, found, config), plot)
    if not found["sizes"]:
        show(_data(found), output, plain(f"{topic} has no messages in that time"))
        return
    (all_of_it,) = found["sizes"]
    summary = (
        f"{number(all_of_it['messages'], 'message')}, {size(all_of_it['bytes'])}, "
        f"from {_time(all_of_it['first_at'])} to {_time(all_of_it['last_at'])}"
    )
    show(
        _data(found),
        output,
        Text(topic, "bold"),
        plain(summary),
        _sizes_table(all_of_it),
        *_titled("rates", _rates_table(_shown(found["rates"], last=True), every), found["rates"]),
        *_titled("partitions", _partitions_table(_shown(found["partition_skew"])), found["partition_skew"]),
        *_titled("most frequent keys", _keys_table(_shown(found["key_skew"])), found["key_skew"]),
    )


@app.command("lag")
def lag(
    groups: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Only these groups.")] = None,
    over: Annotated[
        str,
        typer.Option(
            metavar="DURATION", parser=arguments.duration, help="How long to measure the rate of consumption."
        ),
    ] = "5s",
    window: Annotated[
        str,
        typer.Option(
            metavar="DURATION", parser=arguments.duration, help="How far to look back for the rate of publishing."
        ),
    ] = "5m",
    by_partition: Annotated[bool, typer.Option("--by-partition", help="Show a row for each partition.")] = False,
    write: WriteOption = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the lag of groups, its age, and when it will be consumed at the current rate.

    goqueue pipeline lag
    goqueue pipeline lag billing --over 30s --by-partition
    """
    window_ns = _positive_ns(window, "--window")
    with connected(server) as client:
        for group in groups or ():
            client.describe_group(group)
        client.groups()
    with started("lag", server, master=master, conf=conf, spark_log=spark_log) as job:
        from goqueue.spark.pipelines import lag as pipeline
        from goqueue.spark.pipelines import reports

        config = pipeline.LagConfig(
            window_ns=window_ns, over_ns=max(0, parse_duration(over)), by_partition=by_partition
        )
        tables = pipeline.report(job, config, groups=groups or None)
        found = {name: reports.rows(frame) for name, frame in tables.items()}
        if write is not None:
            reports.write(tables, write)
    columns = ("group", "topic", *(("partition",) if by_partition else ()))
    numbers = ("backlog", "oldest", "in/s", "out/s", "consumed in")
    lines = (
        (
            *(row[name] for name in columns),
            f"{row['backlog']:,}",
            lasting(round(row["age_s"] * SECOND)) if row["backlog"] else "-",
            _rate(row["produced_per_s"]),
            _rate(row["consumed_per_s"]),
            "-" if row["drained_in_s"] is None else lasting(round(row["drained_in_s"] * SECOND)),
            row["state"],
        )
        for row in found["lag"]
    )
    shown = (
        table((*columns, *numbers, "state"), lines, numbers=numbers)
        if found["lag"]
        else plain("no group has a position")
    )
    show(_data({"lag": found["lag"]})["lag"], output, shown)


@app.command("journeys")
def journeys(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only messages delivered to this group.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    slowest: Annotated[int, typer.Option(metavar="N", min=1, help="How many of the slowest messages to show.")] = 20,
    write: WriteOption = None,
    plot: PlotOption = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show latencies from publish to ack by stage, redeliveries, and the slowest messages.

    It reads the topic of traces, which a broker writes with the setting `traces.topic = true`.
    --write also writes a row for each message.

    goqueue pipeline journeys --topic orders --since '1h ago' --plot latency.html
    """
    with connected(server) as client:
        client.topics()
    with started("journeys", server, master=master, conf=conf, spark_log=spark_log, plots=plot is not None) as job:
        from goqueue.spark.pipelines import journeys as pipeline
        from goqueue.spark.pipelines import reports

        config = pipeline.JourneyConfig(topic=topic, group=group, slowest=slowest)
        with pipeline.report(job, config, **_between(since, until)) as tables:
            found = {name: reports.rows(frame) for name, frame in tables.items() if name != "journeys"}
            if write is not None:
                reports.write(tables, write)
        _draw(pipeline.charts(found), plot)
    if not found["latencies"] and not found["redeliveries"]:
        show(_data(found), output, plain("no traces match"))
        return
    show(
        _data(found),
        output,
        *_titled("latencies", _latencies_table(_shown(found["latencies"])), found["latencies"]),
        *_titled("deliveries", _deliveries_table(_shown(found["redeliveries"])), found["redeliveries"]),
        *_titled("slowest", _slowest_table(_shown(found["slowest"])), found["slowest"]),
    )


@app.command("dead-letters")
def dead_letters(
    topic: TopicArgument,
    since: SinceOption = None,
    until: UntilOption = None,
    every: EveryOption = "1h",
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many failures and keys to show.")] = 20,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many dead letters to show of each failure.")
    ] = 3,
    redrive: Annotated[
        str | None,
        typer.Option("--redrive", metavar="SQL", help="Redrive the dead letters that match, each exactly once."),
    ] = None,
    rate: RateOption = 0,
    limit: MostOption = None,
    target: TargetOption = None,
    max_redrives: MaxRedrivesOption = 3,
    to: ToOption = None,
    dry_run: DryRunOption = False,
    write: WriteOption = None,
    plot: PlotOption = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Group the dead letters of a topic by failure, and redrive those that an SQL condition selects.

    Columns: partition, offset, key, value, reason, error, fingerprint, group, member, attempts, redrives, origin_topic,
    origin_partition, origin_offset, first_delivery, dead_at, headers.

    goqueue pipeline dead-letters orders --since '1d ago'
    goqueue pipeline dead-letters orders --redrive "fingerprint like 'db down%'" --dry-run
    goqueue pipeline dead-letters orders --redrive "reason = 'TIMEOUT' and attempts < 5" --rate 100
    """
    if redrive is None and (dry_run or rate or limit or target or to):
        raise typer.BadParameter(
            "is required by the other redrive options: pass the condition that selects dead letters",
            param_hint="--redrive",
        )
    every_ns = _positive_ns(every, "--every")
    outcome: RedriveResult | None = None
    with connected(server) as client:
        known = client.describe_dead_letters(topic)
        is_there = known.dlq_topic in client.topics()
    topic = known.topic
    with started("dead-letters", server, master=master, conf=conf, spark_log=spark_log, plots=plot is not None) as job:
        from goqueue.spark.pipelines import dead_letters as pipeline
        from goqueue.spark.pipelines import reports

        config = pipeline.DeadLetterReportConfig(every_ns=every_ns, top=top, samples=samples)
        how = pipeline.RedriveConfig(
            rate=rate,
            limit=limit or 0,
            target_topic=target,
            max_redrives=max_redrives,
            to=None if to is None else to.value,
        )
        found: dict[str, list[dict[str, Any]]] = {}
        if is_there:
            with pipeline.report(job, topic, config, condition=redrive, **_between(since, until)) as tables:
                found = {name: reports.rows(frame) for name, frame in tables.items() if name != "letters"}
                if write is not None:
                    reports.write(tables, write)
                if redrive is not None:
                    chosen = tables["letters"]
                    outcome = (
                        pipeline.plan(chosen, job.client, topic, how)
                        if dry_run
                        else pipeline.redrive(chosen, job, topic, how)
                    )
            _draw(pipeline.charts(topic, found), plot)
        dead = job.client.describe_dead_letters(topic).messages
    data = {"topic": topic, "dead": dead, **_data(found)}
    if outcome is not None:
        data["redrive"] = {"dry_run": dry_run, **outcome._asdict()}
    if not found.get("failures"):
        nothing = f"{topic} has no dead letters" if redrive is None else f"no dead letter of {topic} matches"
        show(data, output, plain(nothing))
        return
    shown: list[RenderableType] = [
        Text(topic, "bold"),
        plain(
            f"{number(dead, 'message')} {'is' if dead == 1 else 'are'} dead-lettered now;"
            " the tables also count messages that were redriven since"
        ),
        *_titled("failures", _failures_table(_shown(found["failures"])), found["failures"]),
        *_titled("over time", _times_table(_shown(found["over_time"], last=True)), found["over_time"]),
        *_titled("top keys", _dead_keys_table(_shown(found["top_keys"])), found["top_keys"]),
        *_titled("samples", _samples_table(_shown(found["samples"])), found["samples"]),
    ]
    if outcome is not None:
        shown.append(plain(_outcome(topic, outcome, dry_run=dry_run)))
    show(data, output, *shown)
    if outcome is not None and (outcome.error or outcome.failed):
        raise typer.Exit(1)


# --- tables ------------------------------------------------------------------------------------


def _sizes_table(row: Row) -> RenderableType:
    columns = ("mean", "p50", "p90", "p99", "largest")
    names = ("mean_bytes", "p50_bytes", "p90_bytes", "p99_bytes", "max_bytes")
    return table(columns, [[size(row[name]) for name in names]], numbers=columns)


def _rates_table(rows: Sequence[Row], every: str) -> RenderableType:
    columns = (f"from ({every})", "messages", "bytes", "messages/s", "bytes/s")
    lines = (
        (
            _time(row["from"]),
            f"{row['messages']:,}",
            size(row["bytes"]),
            _rate(row["messages_per_s"]),
            size(row["bytes_per_s"]),
        )
        for row in rows
    )
    return table(columns, lines, numbers=columns[1:])


def _partitions_table(rows: Sequence[Row]) -> RenderableType:
    columns = ("partition", "messages", "bytes", "share", "of even")
    lines = (
        (
            row["partition"],
            f"{row['messages']:,}",
            size(row["bytes"]),
            _percent(row["share"]),
            "-" if row["times_even"] is None else f"{row['times_even']:.2f}x",
        )
        for row in rows
    )
    return table(columns, lines, numbers=columns)


def _keys_table(rows: Sequence[Row]) -> RenderableType:
    columns = ("key", "messages", "bytes", "share")
    lines = ((_text(row["key"]), f"{row['messages']:,}", size(row["bytes"]), _percent(row["share"])) for row in rows)
    return table(columns, lines, numbers=columns[1:])


def _latencies_table(rows: Sequence[Row]) -> RenderableType:
    columns = ("topic", "stage", "messages", "p50", "p90", "p99", "max")
    names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    lines = (
        (row["topic"], row["stage"], f"{row['messages']:,}", *(_milliseconds(row[name]) for name in names))
        for row in rows
    )
    return table(columns, lines, numbers=columns[2:])


def _deliveries_table(rows: Sequence[Row]) -> RenderableType:
    names = ("messages", "deliveries", "redelivered", "most", "nacks", "timeouts", "acked", "dead")
    lines = ((row["topic"], row["group"], *(f"{row[name]:,}" for name in names)) for row in rows)
    return table(("topic", "group", *names), lines, numbers=names)


def _slowest_table(rows: Sequence[Row]) -> RenderableType:
    columns = ("message", "group", "received", "deliveries", "wait", "work", "total")
    lines = (
        (
            f"{row['topic']}-{row['partition']}:{row['offset']}",
            row["group"] or "-",
            _time(row["received_at"]),
            row["deliveries"],
            *(_milliseconds(row[name]) for name in ("wait_ms", "work_ms", "total_ms")),
        )
        for row in rows
    )
    return table(columns, lines, numbers=columns[3:])


def _failures_table(rows: Sequence[Row]) -> RenderableType:
    columns = ("reason", "error", "messages", "keys", "first", "last")
    lines = (
        (
            row["reason"] or "-",
            _text(row["fingerprint"]),
            f"{row['messages']:,}",
            f"{row['keys']:,}",
            _time(row["first_at"]),
            _time(row["last_at"]),
        )
        for row in rows
    )
    return table(columns, lines, numbers=("messages", "keys"), whole=("reason",))


def _times_table(rows: Sequence[Row]) -> RenderableType:
    lines = (
        (_time(row["from"]), row["reason"] or "-", _text(row["fingerprint"]), f"{row['messages']:,}") for row in rows
    )
    return table(("from", "reason", "error", "messages"), lines, numbers=("messages",), whole=("from", "reason"))


def _dead_keys_table(rows: Sequence[Row]) -> RenderableType:
    lines = (
        (_text(row["key"]), f"{row['messages']:,}", " ".join(row["reasons"]), _time(row["last_at"])) for row in rows
    )
    return table(("key", "messages", "reasons", "last"), lines, numbers=("messages",))


def _samples_table(rows: Sequence[Row]) -> RenderableType:
    lines = (
        (f"{row['partition']}:{row['offset']}", _text(row["error"]), _text(row["key"]), _text(row["value"]))
        for row in rows
    )
    return table(("letter", "error", "key", "value"), lines, whole=("letter",))


def _outcome(topic: str, outcome: "RedriveResult", *, dry_run: bool) -> str:
    if dry_run:
        would = outcome.matched - outcome.skipped_loop
        text = f"{number(would, 'message')} of {topic} would be redriven"
    else:
        text = f"{number(outcome.redriven, 'message')} of {topic} redriven"
    if outcome.skipped_loop:
        text += f", {outcome.skipped_loop:,} skipped, redriven too often already"
    if outcome.failed:
        text += f", {outcome.failed:,} failed"
    gone = outcome.chosen - outcome.matched
    if gone and outcome.is_complete:
        text += f", {gone:,} {'was' if gone == 1 else 'were'} no longer dead-lettered"
    return f"{text}: {outcome.error}" if outcome.error else text


# --- inside ------------------------------------------------------------------------------------


def _between(since: str | None, until: str | None) -> dict[str, str]:
    return arguments.given({"startingTimestamp": since, "endingTimestamp": until})


def _positive_ns(text: str, option: str) -> int:
    duration_ns = parse_duration(text)
    if duration_ns < MS:
        raise typer.BadParameter(f"{text} is too short; the minimum is 1ms", param_hint=option)
    return duration_ns


def _draw(charts: Sequence[Chart], plot: str | None) -> None:
    if plot is not None:
        from goqueue.spark.pipelines import plots

        plots.save(charts, Path(plot))


def _shown(rows: Sequence[Row], *, last: bool = False) -> Sequence[Row]:
    return rows[-ROWS_SHOWN:] if last else rows[:ROWS_SHOWN]


def _titled(title: str, shown: RenderableType, rows: Sequence[Row]) -> Iterable[RenderableType]:
    """A table under its title, if it has rows."""
    if not rows:
        return ()
    left = len(rows) - ROWS_SHOWN
    more = (plain(f"{number(left, 'row')} more; -o json shows all"),) if left > 0 else ()
    return (Text(f"\n{title}", "bold"), shown, *more)


def _data(tables: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Rows in types that JSON has."""
    return {
        name: [{column: _plain(cell) for column, cell in row.items()} for row in rows] for name, rows in tables.items()
    }


def _plain(cell: object) -> object:
    return format_time(_ns(cell)) if isinstance(cell, datetime) else cell


def _ns(time: datetime) -> int:
    whole = time.astimezone(UTC)
    return int(whole.replace(microsecond=0).timestamp()) * SECOND + whole.microsecond * 1_000


def _time(time: datetime | None) -> str:
    return when(None if time is None else _ns(time))


def _text(text: str | None) -> str:
    return "-" if text is None else cut(one_line(text.encode("utf-8", "backslashreplace")), SHOWN_CHARACTERS)


def _rate(per_s: float | None) -> str:
    return "?" if per_s is None else f"{per_s:,.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(duration_ms: float | None) -> str:
    return "-" if duration_ms is None else lasting(round(duration_ms * MS))
