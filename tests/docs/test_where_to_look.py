"""The table in ARCHITECTURE.md that says where to look: each file is there, and defines what the table names."""

import ast
import re
from typing import NamedTuple

import pytest

from tests.docs.markdown import ROOT

ROW = re.compile(r"^\| ([^|]+\?) \| \[[^\]]+\]\(([^)]+)\) \| ([^|]+) \|$", re.MULTILINE)
NAME = re.compile(r"`([\w.]+)`")
ASKED = ("deduplicated", "lease expire", "delay fire", "dead letter written", "rebalance decided")
ASKED_TOO = ("batch appended", "commit decided", "from HTTP", "from the native protocol")


class Row(NamedTuple):
    """One question and its answer."""

    question: str
    file: str
    names: list[str]


PAGE = (ROOT / "ARCHITECTURE.md").read_text()
TABLE = PAGE.partition("## Where to look")[2].partition("\n## ")[0]
ROWS = [Row(question, file, NAME.findall(names)) for question, file, names in ROW.findall(TABLE)]


def defined(source: str) -> set[str]:
    """The functions and classes of a module, and the methods of its classes."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{one.name}" for one in inner)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.question)
def test_the_answer_is_where_the_table_says(row: Row) -> None:
    source = (ROOT / row.file).read_text()

    assert row.names
    assert set(row.names) - defined(source) == set(), f"{row.file} does not define these"


def test_every_row_is_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| .*\?", TABLE, re.MULTILINE))


@pytest.mark.parametrize("what", [*ASKED, *ASKED_TOO])
def test_what_a_newcomer_asks_first_is_answered(what: str) -> None:
    assert any(what in row.question for row in ROWS)


def test_files_of_the_storage_layer_are_there() -> None:
    section = PAGE.partition("## The storage layer")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() for name in re.findall(r"`(\w+\.py)`", line)}

    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / "src/goqueue/storage" / name).exists()] == []
