"""`goqueue log`: inspect the files of a log, without a broker and without changing anything."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from goqueue.cli.output import console, say_damaged, size, table, warn
from goqueue.errors import DirectoryUnusable
from goqueue.server import verification
from goqueue.server.verification import is_in_use
from goqueue.storage.file import OsDisk
from goqueue.storage.file_check import FileReport
from goqueue.storage.inspection import SegmentReport, inspect
from goqueue.storage.layout import LOG

app = typer.Typer(help="Inspect the files of a log.", no_args_is_help=True)

DAMAGED_EXIT_CODE = 3
OFFSET_DIGITS_SIDE_BY_SIDE = 7


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="A data directory, or a topic, partition, log or ledger in it.")],
) -> None:
    """Check every file below a directory and report damage. Changes nothing.

    Exit code 0 if no file is damaged, 3 otherwise. Best while no broker runs: what a broker is writing at that
    moment may look torn.
    """
    path = str(directory.absolute())
    disk = OsDisk()
    if is_in_use(disk, path):
        warn(f"a broker has {path} open; what it is writing now may look damaged")
    try:
        is_log = any(entry.name.endswith(LOG) and not entry.is_directory for entry in disk.entries(path))
        segments = list(inspect(disk, path)) if is_log else []
        reports = list(verification.verify(disk, path))
    except OSError as error:
        raise DirectoryUnusable(str(error.filename or path), error.strerror or str(error)) from error
    if segments:
        console.print(_table(segments))
    elif reports:
        console.print(_files(reports, path))
    damage = [(report.path, found) for report in reports for found in report.damage]
    for file, found in damage:
        say_damaged(found if found.startswith(file) else f"{file}: {found}")
    if segments or not reports:
        records = sum(report.record_count for report in segments)
        console.print(f"{records:,} records in {len(segments):,} segments, {len(damage)} damaged places")
    else:
        console.print(f"{len(reports):,} files, {len(damage)} damaged places")
    if damage:
        raise typer.Exit(DAMAGED_EXIT_CODE)


def _files(reports: list[FileReport], root: str) -> Table:
    """One row for each file."""
    rows = [
        (report.path.removeprefix(f"{root}/"), report.content or "-", "sound" if report.is_sound else "DAMAGED")
        for report in reports
    ]
    return table(("file", "content", "state"), rows, whole=("state",))


def _table(reports: list[SegmentReport]) -> Table:
    """One row for each segment. In 80 columns large offsets and times take two lines, but no number is cut."""
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("segment", justify="right", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("offsets", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("first stored", min_width=len("2026-01-01"))
    table.add_column("last stored", min_width=len("2026-01-01"))
    table.add_column("damage", justify="right", no_wrap=True)
    for report in reports:
        table.add_row(
            str(report.base_offset),
            f"{report.record_count:,}",
            _offsets(report),
            size(report.size),
            _time(report.first_timestamp),
            _time(report.last_timestamp),
            str(len(report.damage)) if report.damage else "-",
        )
    return table


def _offsets(report: SegmentReport) -> str:
    if not report.record_count:
        return "-"
    first, last = str(report.first_offset), str(report.last_offset)
    return f"{first} to {last}" if len(last) <= OFFSET_DIGITS_SIDE_BY_SIDE else f"{first} to\n{last}"


def _time(timestamp_ns: int) -> str:
    if timestamp_ns < 0:
        return "-"
    return f"{datetime.fromtimestamp(timestamp_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
