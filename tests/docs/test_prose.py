"""Markdown is wrapped so that a diff shows the sentence that changed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, name_of

COLUMNS_MAX = 100
PROSE = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*/*.md"), *(ROOT / ".github").glob("*.md")}
    | {ROOT / "docs" / "README.md", ROOT / "docs" / "glossary.md"}
    | {ROOT / "examples" / "README.md", ROOT / "benchmarks" / "README.md"}
)
FENCE = re.compile(r"^ *```")


def wrapped_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without tables and code, whose lines end where they have to."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside and not line.startswith("|"):
            yield number, line


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    too_long = [number for number, line in wrapped_lines(page.read_text()) if len(line) > COLUMNS_MAX]

    assert too_long == []


def test_tables_and_code_may_be_wider() -> None:
    wide = "x" * 120
    text = f"# one\n\n| {wide} |\n\n```sh\n{wide}\n```\n{wide}\n"

    assert [number for number, line in wrapped_lines(text) if len(line) > COLUMNS_MAX] == [8]
