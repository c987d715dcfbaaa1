"""`goqueue log`: look at a log's files, without a broker and without changing anything."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from goqueue.cli.output import console, size
from goqueue.errors import DirectoryUnusable
from goqueue.storage.file import OsDisk
from goqueue.storage.inspection import SegmentReport, inspect

app = typer.Typer(help="Look at a log's files.", no_args_is_help=True)

DAMAGED_EXIT_CODE = 3


@app.command()
def verify(directory: Annotated[Path, typer.Argument(help="A directory with .log files in it.")]) -> None:
    """Read every record of a log, check it, and show what each segment holds. Changes nothing."""
    path = str(directory.absolute())
    try:
        reports = list(inspect(OsDisk(), path))
    except OSError as error:
        raise DirectoryUnusable(str(error.filename or path), error.strerror or str(error)) from error
    console.print(_table(reports))
    damage = [found for report in reports for found in report.damage]
    for found in damage:
        console.print(f"[red]damaged[/] {found}", highlight=False, soft_wrap=True)
    records = sum(report.record_count for report in reports)
    console.print(f"{records:,} records in {len(reports):,} segments, {len(damage)} damaged places")
    if damage:
        raise typer.Exit(DAMAGED_EXIT_CODE)


def _table(reports: list[SegmentReport]) -> Table:
    table = Table("segment", "records", "offsets", "size", "first stored", "last stored", "damage")
    for report in reports:
        table.add_row(
            f"{report.base_offset:020d}",
            f"{report.record_count:,}",
            f"{report.first_offset}-{report.last_offset}" if report.record_count else "-",
            size(report.size),
            _time(report.first_timestamp),
            _time(report.last_timestamp),
            str(len(report.damage)) if report.damage else "-",
        )
    return table


def _time(timestamp_ns: int) -> str:
    if timestamp_ns < 0:
        return "-"
    return f"{datetime.fromtimestamp(timestamp_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f}"
