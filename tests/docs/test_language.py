"""Words and names that were given up do not come back: a reader who knows Kafka and Python needs no dialect."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, name_of
from tests.docs.test_prose import PROSE

SOURCES = sorted((ROOT / "src" / "goqueue").rglob("*.py"))

# Each has a name that says what it is: AdaptiveSpin, revoke, wake_at, DeliveryCounters, dead_letter, release ...
RETIRED_NAMES = {
    *("Vigil", "Lookout", "stay_awake", "Line", "Lines", "LineFile", "Happened", "Graves"),
    *("give_back_ahead", "is_coming", "ask_back", "take_back", "hurry", "find_live", "lives", "bury", "doom", "dying"),
    *("put_back", "let_go", "asked_back"),
}
RETIRED_MODULES = {"vigil", "lookout", "line", "consuming", "delaying", "recurring"}

RETIRED_WORDS = re.compile(
    r"\b(nobody|somebody|whoever|for ever|hand to hand|electricity|asked back|put back|takes the record back)\b",
    re.IGNORECASE,
)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every name that is defined or used, without leading underscores."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield name.lstrip("_")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_name_that_was_given_up_is_not_used_again(path: Path) -> None:
    assert path.stem not in RETIRED_MODULES
    assert RETIRED_NAMES & set(names_in(ast.parse(path.read_text()))) == set()


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_pages_name_their_subject(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)

    assert RETIRED_WORDS.findall(" ".join(prose.split())) == []


def test_what_was_given_up_is_found() -> None:
    assert set(names_in(ast.parse("class Vigil:\n    def _let_go(self): ..."))) & RETIRED_NAMES == {"Vigil", "let_go"}
    assert RETIRED_WORDS.findall("it waits for\never".replace("\n", " ")) == ["for ever"]
