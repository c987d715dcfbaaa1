"""The reference names every command, method and error, and nothing else; the index names every page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from goqueue import Client
from goqueue.cli.app import app
from goqueue.wire.codes import TABLE
from tests.docs.markdown import ROOT, name_of

REFERENCE = ROOT / "docs" / "reference"
INDEX = ROOT / "docs" / "README.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
FIRST_CELL = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def first_cells(page: Path) -> list[str]:
    """The code in the first column of all tables."""
    return [name for cell in FIRST_CELL.findall(page.read_text()) for name in CODE.findall(cell)]


def commands(command: Any, path: str) -> Iterator[str]:
    for name, below in command.commands.items():
        full = f"{path} {name}"
        yield from commands(below, full) if hasattr(below, "commands") else [full]


def test_every_command_is_there() -> None:
    there = sorted(commands(typer.main.get_command(app), "goqueue"))

    assert sorted(first_cells(REFERENCE / "cli.md")) == there


def test_every_method_of_the_client_is_there() -> None:
    there = sorted(name for name in dir(Client) if not name.startswith("_"))

    assert sorted(first_cells(REFERENCE / "python-client.md")) == there


def test_every_error_is_there_with_its_facts() -> None:
    row = re.compile(r"^\| `([A-Z_]+)` \| (\d+) \| (\d+) \| `(\w+)` \| (yes|no) \| \S", re.MULTILINE)
    shown = {code: facts for code, *facts in row.findall((REFERENCE / "errors.md").read_text())}
    there = {
        code: [str(row.number), str(row.http), row.exception.__name__, "yes" if row.exception.retryable else "no"]
        for code, row in TABLE.items()
    }

    assert shown == there


@pytest.mark.parametrize("page", [GLOSSARY, *INDEX.parent.glob("*/*.md")], ids=name_of)
def test_every_page_is_in_the_index(page: Path) -> None:
    link = page.relative_to(INDEX.parent)

    assert f"]({link})" in INDEX.read_text() or f"`{link.name}` in [{link.parent}]" in INDEX.read_text()


def test_the_glossary_is_sorted_and_explains_each_term_once() -> None:
    terms = FIRST_CELL.findall(GLOSSARY.read_text())[1:]

    assert terms == sorted(set(terms), key=str.lower)
