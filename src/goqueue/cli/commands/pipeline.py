"""`goqueue pipeline`: Spark jobs on topics, on this machine unless `--master` says otherwise.

Each job can be killed and started again. Progress goes to standard error: a bar at a terminal, elsewhere a line every
few seconds. Ctrl-C ends a job after its current step, with exit code 130.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
    complain,
    errors,
    facts,
    lasting,
    number,
    plain,
    show,
    size,
    table,
)
from goqueue.clock import SECOND, SystemClock
from goqueue.times import parse_duration, parse_time

if TYPE_CHECKING:
    from goqueue.spark.pipelines.archive import ArchiveSummary, PartitionVerdict, Verification
    from goqueue.spark.pipelines.job import JobProgress, PipelineJob
    from goqueue.spark.pipelines.replay import ReplayPlan

app = typer.Typer(help="Run Spark jobs on topics: archive, replay, compact, report.", no_args_is_help=True)

DAMAGED_EXIT_CODE = 3
INTERRUPTED_EXIT_CODE = 130
LOOKS_PER_S = 4
LINE_EVERY_NS = 5 * SECOND

MasterOption = Annotated[
    str, typer.Option("--master", help="Where Spark runs: local[N], spark://..., yarn, k8s://...", show_default=True)
]
SparkOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; repeatable.")
]
SparkLogOption = Annotated[
    str | None, typer.Option("--spark-log", metavar="FILE", help="Write the log of Spark to this file.")
]
DEFAULT_MASTER = "local[*]"


class Watcher:
    """Shows the progress of a job: as a bar at a terminal, else as a line every few seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress: JobProgress | None = None
        self._shown_ns = -LINE_EVERY_NS
        self.job: PipelineJob | None = None

    def __call__(self, progress: "JobProgress") -> None:
        """Note the progress, and print it if standard error is no terminal and some seconds have passed."""
        self._progress = progress
        if errors.is_terminal:
            return
        if progress.elapsed_ns - self._shown_ns >= LINE_EVERY_NS or (progress.total and not progress.lag):
            self._shown_ns = progress.elapsed_ns
            errors.print(plain(self._connection(progress)), soft_wrap=True)

    def draw(self) -> Table:
        """One line with a bar."""
        made = Table.grid(padding=(0, 1))
        progress = self._progress
        if progress is None:
            made.add_row(plain(f"{self._name}: starting Spark"))
            return made
        done, tasks = self._tasks()
        reached = progress.done + (progress.pending * done // tasks if tasks else 0)
        bar = ProgressBar(total=progress.total or None, completed=reached, width=30, pulse=not progress.total)
        made.add_row(plain(f"{self._name}: {progress.phase}"), bar, plain(_numbers(progress)))
        return made

    def _tasks(self) -> tuple[int, int]:
        try:
            return self.job.tasks() if self.job else (0, 0)
        except Exception:  # the session may end while its progress is drawn; Spark raises many kinds of errors then
            return 0, 0

    def _connection(self, progress: "JobProgress") -> str:
        return f"{self._name}: {progress.phase} {_numbers(progress)}"


@contextmanager
def started(
    name: str,
    server: str,
    *,
    master: str = DEFAULT_MASTER,
    conf: list[str] | None = None,
    spark_log: str | None = None,
    plots: bool = False,
) -> "Iterator[PipelineJob]":
    """A running job whose progress is shown. Spark logs to a file, which is deleted unless `--spark-log` names it."""
    from goqueue.spark.session import check_installed, temporary_log

    check_installed(plots=plots)  # before Spark runs for minutes
    from goqueue.spark.pipelines.job import JobConfig, running

    settings = arguments.pairs(conf or (), option="--conf")
    log_path = spark_log or temporary_log()
    watcher = Watcher(name)
    config = JobConfig(server=server, master=master, conf=settings, log_path=log_path)
    bar = Live(get_renderable=watcher.draw, console=errors, refresh_per_second=LOOKS_PER_S, transient=True)
    try:
        with bar if errors.is_terminal else nullcontext(), running(name, config, reporter=watcher) as job:
            watcher.job = job
            try:
                yield job
            finally:
                watcher.job = None
    except KeyboardInterrupt:
        errors.print(plain(f"{name} was interrupted; start it again to continue"), soft_wrap=True)
        sys.exit(INTERRUPTED_EXIT_CODE)
    finally:
        if spark_log is None:
            os.unlink(log_path)


@app.command()
def archive(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="The directory of the archive.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the archive with the topic, and change nothing.")
    ] = False,
    merge: Annotated[bool, typer.Option("--merge", help="Merge small files, and archive nothing.")] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Keep archiving new messages.")] = False,
    every: Annotated[
        str,
        typer.Option(help="Time between two commits with --continuous.", metavar="DURATION", parser=arguments.duration),
    ] = "10s",
    batch: Annotated[int, typer.Option(min=1, help="Most offsets per commit.")] = 10_000_000,
    compression: Annotated[
        str, typer.Option(help="Compression of the Parquet files: snappy, zstd, gzip, lz4 or none.")
    ] = "snappy",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Continue without messages that were deleted or damaged before they were archived."
        ),
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Archive a topic as Parquet files by day, each message exactly once. A restart continues where it stopped.

    `goqueue group describe pipeline-archive-TOPIC` shows its progress. `--verify` ends with exit code 3 if archive and
    topic differ.

    goqueue pipeline archive orders /archive/orders
    goqueue pipeline archive orders /archive/orders --continuous
    goqueue pipeline archive orders /archive/orders --verify
    """
    if verify + merge + continuous > 1:
        raise typer.BadParameter("choose one of --verify, --merge and --continuous")
    _check(server, *(() if merge else (topic,)))  # an archive may outlive its topic
    with started("archive", server, master=master, conf=conf, spark_log=spark_log) as job:
        from goqueue.spark.pipelines import archive as archives

        config = archives.ArchiveConfig(
            topic=topic,
            directory=directory,
            is_continuous=continuous,
            pause_s=parse_duration(every) / SECOND,
            offsets_per_batch=batch,
            compression=compression,
            accept_loss=accept_loss,
        )
        if verify:
            found = archives.verify(job, config)
        elif merge:
            merged = archives.merge(job, config)
        else:
            summary = archives.run(job, config)
    if verify:
        _show_verification(found, output)
    elif merge:
        show({"merged_files": merged}, output, plain(f"{number(merged, 'small file')} merged"))
    else:
        _show_archived(summary, output)


@app.command()
def replay(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to publish to.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic to read.")] = None,
    archive: Annotated[str | None, typer.Option("--archive", metavar="DIRECTORY", help="The archive to read.")] = None,
    from_time: Annotated[
        str | None, typer.Option("--from", help="Only messages stored at or after this time: '2h ago'.")
    ] = None,
    to_time: Annotated[str | None, typer.Option("--to", help="Only messages stored before this time.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="Only this offset and later ones.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Only offsets below this one.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Only messages with this key; repeatable.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help='Only messages that match this condition: "priority = 0".'),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Most messages per second.")] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Keep the partition number of each message.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages, and publish nothing.")] = False,
    run: Annotated[str | None, typer.Option("--run", help="Name of the run; a run that is done does nothing.")] = None,
    state: Annotated[str | None, typer.Option(metavar="DIRECTORY", help="The directory that records runs.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish messages again, from a topic, its archive, or both, each exactly once.

    The same command started again continues its run, and does nothing if that is done. `--run NAME` starts another run.
    The header gq-origin holds the original place of a message.

    goqueue pipeline replay orders-again --topic orders --from '2h ago' --dry-run
    goqueue pipeline replay orders --archive /archive/orders --where "header['region'] = 'eu'" --rate 500 --run june
    """
    now_ns = SystemClock().wall_ns()
    _check(server, target, *((topic,) if topic else ()))
    from goqueue.spark.session import check_installed

    check_installed()
    from goqueue.spark.pipelines import replay as replays
    from goqueue.spark.pipelines.runs import runs_directory

    config = replays.ReplayConfig(
        target=target,
        topic=topic,
        archive=archive,
        from_time_ns=_time(from_time, "--from", now_ns),
        to_time_ns=_time(to_time, "--to", now_ns),
        partition=partition,
        from_offset=from_offset,
        to_offset=to_offset,
        keys=tuple(text.encode() for text in key or ()),
        where=where,
        rate=rate,
        keep_partitions=keep_partitions,
    )
    with started("replay", server, master=master, conf=conf, spark_log=spark_log) as job:
        if dry_run:
            plan = replays.count(job, config)
        else:
            name = run or replays.default_name(job, config, (from_time, to_time))
            summary = replays.run(job, config, directory=state or runs_directory("replay"), name=name)
    if dry_run:
        _show_plan(plan, target, output)
        return
    data = {**summary._asdict(), "rate": round(summary.rate)}
    before = summary.run_messages - summary.messages
    known = {
        "run": summary.run,
        "published to": summary.target,
        "messages": f"{summary.messages:,}" + (f", and {before:,} in earlier runs" if before else ""),
        "out of": number(summary.looked_at, "offset"),
        "took": f"{lasting(summary.elapsed_ns)}, {summary.rate:,.0f}/s",
    }
    show(data, output, facts(known))


@app.command()
def compact(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic to compact.")] = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="DIRECTORY", help="The archive to compact.")
    ] = None,
    to_topic: Annotated[str | None, typer.Option(help="The topic to write the result to.")] = None,
    to_directory: Annotated[
        str | None, typer.Option("--to", metavar="DIRECTORY", help="The directory to write the result to, as Parquet.")
    ] = None,
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep tombstones, which mark a key as deleted.")
    ] = False,
    compression: Annotated[
        str, typer.Option(help="Compression of the Parquet files: snappy, zstd, gzip, lz4 or none.")
    ] = "snappy",
    run: Annotated[str | None, typer.Option("--run", help="Name of the run; a run that is done does nothing.")] = None,
    state: Annotated[str | None, typer.Option(metavar="DIRECTORY", help="The directory that records runs.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    master: MasterOption = DEFAULT_MASTER,
    conf: SparkOption = None,
    spark_log: SparkLogOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write the last message of each key of a topic or an archive to another topic or directory.

    Into a topic, a run reads the source up to its end at the start of the run. A restart continues an unfinished run;
    if the source has grown since, it starts the next one. A run named with `--run` does nothing once it is done.

    goqueue pipeline compact --archive /archive/customers --to /archive/customers-now
    goqueue pipeline compact --topic customers --to-topic customers-now
    """
    _check(server, *(name for name in (topic, to_topic) if name))
    from goqueue.spark.session import check_installed

    check_installed()
    from goqueue.spark.pipelines import compact as compacts
    from goqueue.spark.pipelines.runs import runs_directory

    config = compacts.CompactConfig(
        topic=topic,
        archive=archive,
        target_topic=to_topic,
        target_directory=to_directory,
        keep_tombstones=keep_tombstones,
        compression=compression,
    )
    with started("compact", server, master=master, conf=conf, spark_log=spark_log) as job:
        summary = compacts.run(job, config, directory=state or runs_directory("compact"), name=run)
    before = summary.run_messages - summary.messages
    known = {
        "compacted into": summary.target,
        "messages": f"{summary.messages:,}" + (f", and {before:,} in earlier runs" if before else ""),
        "out of": number(summary.looked_at, "offset"),
        "took": f"{lasting(summary.elapsed_ns)}, {summary.rate:,.0f}/s",
    }
    show({**summary._asdict(), "rate": round(summary.rate)}, output, facts(known))


def _check(server: str, *topics: str) -> None:
    """Fail if the broker or a topic is missing, before Spark takes seconds to start."""
    with connected(server) as client:
        for topic in topics:
            client.describe_topic(topic)


def _time(text: str | None, option: str, now_ns: int) -> int | None:
    try:
        return None if text is None else parse_time(text, now_ns=now_ns)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _show_archived(summary: "ArchiveSummary", output: OutputFormat) -> None:
    data = {**summary._asdict(), "rate": round(summary.rate), "lost": [tuple(span) for span in summary.lost]}
    known = {
        "archived": f"{number(summary.messages, 'message')} in {number(summary.batches, 'commit')}",
        "took": f"{lasting(summary.elapsed_ns)}, {summary.rate:,.0f}/s",
        "archive": f"{number(summary.archived_messages, 'message')} in {number(summary.files, 'file')}",
        "size": size(summary.size_bytes),
        "directory": summary.directory,
    }
    if summary.merged_files:
        known["merged"] = number(summary.merged_files, "small file")
    if summary.lost:
        lost = (f"{span.partition}: [{span.start}, {span.end})" for span in summary.lost)
        known["lost to retention"] = ", ".join(lost)
    show(data, output, facts(known))


def _show_verification(found: "Verification", output: OutputFormat) -> None:
    columns = ("partition", "offsets", "archive", "topic", "")
    rows = (
        (one.partition, f"{one.start}-{one.end}", f"{one.archive_count:,}", f"{one.topic_count:,}", _verdict(one))
        for one in found.partitions
    )
    data = {
        "is_good": found.is_good,
        "partitions": [one._asdict() for one in found.partitions],
        "damaged_files": found.damaged_files,
        "behind": found.behind_count,
    }
    behind = f"; {number(found.behind_count, 'offset')} of the topic not archived yet" if found.behind_count else ""
    said = [plain(f"archive and topic are identical{behind}")] if found.is_good else []
    compared = [table(columns, rows, numbers=columns[:4])] if found.partitions else []
    show(data, output, *compared, *said)
    for file in found.damaged_files:
        complain(file)
    if not found.is_good:
        complain("the archive is damaged" if found.damaged_files else "archive and topic differ")
        sys.exit(DAMAGED_EXIT_CODE)


def _verdict(one: "PartitionVerdict") -> str:
    faults = {
        "missing": one.missing_count,
        "changed": one.changed_count,
        "repeated": one.repeated_count,
        "unknown": one.unknown_count,
        "damaged in the topic and missing here": one.damaged_count,
    }
    said = [f"{count:,} {name}" for name, count in faults.items() if count]
    if one.first_fault is not None:
        said.append(f"the first at offset {one.first_fault}")
    if one.forgotten_count:
        said.append(f"{one.forgotten_count:,} in the archive only: the topic deleted them")
    return ", ".join(said) or "the same"


def _show_plan(plan: "ReplayPlan", target: str, output: OutputFormat) -> None:
    data = {
        "dry_run": True,
        "target": target,
        "messages": plan.message_count,
        "looked_at": plan.looked_at_count,
        "parts": len(plan.parts),
        "spans": [tuple(span) for span in plan.spans],
    }
    chosen = f"{number(plan.message_count, 'message')} out of {number(plan.looked_at_count, 'offset')}"
    show(data, output, plain(f"{chosen} of {plan.topic} would be published to {target}"))


def _numbers(progress: "JobProgress") -> str:
    shown = f"{progress.done:,} of {number(progress.total, 'message')}, {progress.rate:,.0f}/s"
    return f"{shown}, lag {progress.lag:,}" if progress.lag else shown
