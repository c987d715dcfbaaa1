"""`goqueue log`: look at a log's files, without a broker and without changing anything."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from goqueue.cli.output import console, say_damaged, size
from goqueue.errors import DirectoryUnusable
from goqueue.storage.file import OsDisk
from goqueue.storage.inspection import SegmentReport, inspect

app = typer.Typer(help="Look at a log's files.", no_args_is_help=True)

DAMAGED_EXIT_CODE = 3
OFFSET_DIGITS_SIDE_BY_SIDE = 7


@app.command()
def verify(directory: Annotated[Path, typer.Argument(help="A directory with .log files in it.")]) -> None:
    """Read every record of a log, check it, and show what each segment holds. Changes nothing."""
    path = str(directory.absolute())
    try:
        reports = list(inspect(OsDisk(), path))
    except OSError as error:
        raise DirectoryUnusable(str(error.filename or path), error.strerror or str(error)) from error
    if reports:
        console.print(_table(reports))
    damage = [found for report in reports for found in report.damage]
    for found in damage:
        say_damaged(str(found))
    records = sum(report.record_count for report in reports)
    console.print(f"{records:,} records in {len(reports):,} segments, {len(damage)} damaged places")
    if damage:
        raise typer.Exit(DAMAGED_EXIT_CODE)


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
