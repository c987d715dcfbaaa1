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

SMALL_WORDS = {
    "a",
    "an",
    "the",
    "of",
    "to",
    "is",
    "are",
    "by",
    "for",
    "in",
    "on",
    "with",
    "and",
    "that",
    "it",
    "th",
    "ar",
}


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


def stems(text: str) -> set[str]:
    """The words of a name or a sentence, without the small ones and without endings."""
    words = re.findall("[a-z]+", re.sub("([A-Z])", r" \1", text).lower())
    return {re.sub("(ing|ed|es|s|e)$", "", word) for word in words} - SMALL_WORDS


def repeating(source: str) -> Iterator[str]:
    """Functions whose docstring has no word that their name has not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = stems(ast.get_docstring(node) or "")
            if told and told <= stems(node.name):
                yield node.name


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_docstring_only_repeats_the_name(path: Path) -> None:
    if path.parent.name == "commands":  # these are the texts of --help
        return
    assert list(repeating(path.read_text())) == []


def test_a_docstring_that_only_repeats_the_name_is_found() -> None:
    assert list(repeating('def order_key():\n    """The key of the order."""')) == ["order_key"]
    assert list(repeating('def order_key():\n    """The key, sorted by time."""')) == []


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
