"""Where commands write: tables, data and text to standard output, errors and warnings to standard error.

Data are printed as a table for people, or as JSON or YAML, which hold the same, for programs. Text from outside, such
as a path or a message, is never read as markup, and control characters are escaped.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from goqueue.clock import MS, SECOND
from goqueue.times import format_duration, format_time

console = Console()
errors = Console(stderr=True)

ROOMY_COLUMNS = 7
"""Tables with more columns have no room for margins."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE = 60 * SECOND
_FINENESS = ((MS, 1_000), (SECOND, MS), (_MINUTE, 100 * MS), (60 * _MINUTE, SECOND))
"""Pairs: a duration below the first number is rounded down to a multiple of the second."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n", 0x09: "\\t"}


class OutputFormat(StrEnum):
    """How data are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]


def show(data: object, format: OutputFormat, *tables: RenderableType) -> None:
    """Print data as JSON or YAML; the format `table` prints `tables` instead."""
    match format:
        case OutputFormat.JSON:
            typer.echo(json.dumps(data, indent=2))
        case OutputFormat.YAML:
            typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
        case OutputFormat.TABLE:
            for table in tables:
                console.print(table, soft_wrap=isinstance(table, Text))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """Rows under their columns. If there is no room, text wraps, except in the columns `numbers`, which are aligned to
    the right, and in the columns `whole`.
    """
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1) if len(columns) <= ROOMY_COLUMNS else 0)
    for column in columns:
        is_number = column in numbers
        justify: JustifyMethod = "right" if is_number else "left"
        made.add_column(column, justify=justify, no_wrap=is_number or column in whole, overflow="fold")
    for row in rows:
        made.add_row(*(plain(str(cell)) for cell in row))
    return made


def facts(known: Mapping[str, object]) -> Table:
    """Names and values, one pair per line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, fact in known.items():
        made.add_row(plain(name), plain(str(fact)))
    return made


def say(text: str) -> None:
    """Print one line to standard output, never read as markup and never wrapped."""
    console.print(plain(text), soft_wrap=True)


def say_damaged(text: str) -> None:
    """Print one line about damage to standard output: damage is the result of a check, not a failure."""
    console.print(Text.assemble(("damaged ", "red"), plain(text)), soft_wrap=True)


def complain(text: str) -> None:
    """Print to standard error why a command fails."""
    errors.print(Text.assemble(("error ", "bold red"), plain(text)), soft_wrap=True)


def warn(text: str) -> None:
    """Print to standard error what a user should know although the command does not fail."""
    errors.print(Text.assemble(("warning ", "yellow"), plain(text)), soft_wrap=True)


def plain(text: str) -> Text:
    """The text, not read as markup."""
    return Text(text.encode("utf-8", "backslashreplace").decode())


def one_line(data: bytes) -> str:
    """Bytes as text without line breaks and terminal control sequences."""
    return data.decode("utf-8", "backslashreplace").translate(_CONTROL)


def cut(text: str, length: int) -> str:
    """The text, shortened to a length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def number(count: int, noun: str) -> str:
    """A count with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def when(time_ns: int | None) -> str:
    """A time to the second, in a form that every option for a time accepts."""
    return "-" if time_ns is None else f"{format_time(time_ns)[:19]}Z"


def lasting(duration_ns: int) -> str:
    """A duration without digits too small to matter."""
    fineness = next((step for below, step in _FINENESS if abs(duration_ns) < below), _MINUTE)
    return format_duration(duration_ns // fineness * fineness)


def size(count: float) -> str:
    """A number of bytes with a unit."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
