"""What pages name in passing is there: commands and their options, methods of the client, HTTP routes, links."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from goqueue import AsyncClient, Client
from goqueue.cli.app import app
from goqueue.client.transactions import Transaction
from goqueue.doors.http.app import ROUTES
from goqueue.doors.http.openapi import describe
from tests.docs.markdown import PAGES, ROOT, blocks, name_of

CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
METHOD = re.compile(r"\b(gq|tx)\.([a-z_]+)")
ROUTE = re.compile(r"^(?:(GET|POST|PUT|PATCH|DELETE) )(/[^\s?]*)")
PARAMETER = re.compile(r"\{[^}]*\}")
PATHS = describe(ROUTES, version="test")["paths"]
OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z-]*)")
COMMAND_LINE: Any = typer.main.get_command(app)


def spans(page: Path) -> list[str]:
    """All code within lines."""
    return CODE.findall(FENCED.sub("", page.read_text()))


def commands(page: Path) -> list[str]:
    """All commands of the command line that a page has, in blocks and within lines."""
    shell = [block.text for block in blocks(page) if block.language == "sh"]
    lines = [line.strip().removeprefix("$ ") for text in shell for line in text.splitlines()]
    return [text for text in (*spans(page), *lines) if re.match(r"(?:\.venv/bin/)?goqueue [a-z]", text)]


def unknown(text: str) -> str | None:
    """What a command has that the command line does not."""
    words = re.split(r"[#|>]", text, maxsplit=1)[0].split()[1:]
    command = COMMAND_LINE
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+", words[0]):
        found = command.commands.get(words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    return next((f"no option {word}" for word in OPTION.findall(" ".join(words)) if word not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_that_a_page_names_is_there(page: Path) -> None:
    wrong = {text: why for text in commands(page) if (why := unknown(text))}

    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_method_that_a_page_names_is_there(page: Path) -> None:
    owners = {"gq": (Client, AsyncClient), "tx": (Transaction,)}
    named = METHOD.findall(page.read_text())

    assert [(one, name) for one, name in named if not all(hasattr(owner, name) for owner in owners[one])] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_route_that_a_page_names_is_there(page: Path) -> None:
    routes = {(method.upper(), PARAMETER.sub("{}", path)) for path, of_path in PATHS.items() for method in of_path}
    named = [match.groups() for text in spans(page) if (match := ROUTE.match(text))]

    assert [(method, path) for method, path in named if (method, PARAMETER.sub("{}", path)) not in routes] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=name_of)
def test_a_link_leads_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []
