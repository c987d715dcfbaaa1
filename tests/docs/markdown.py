"""The pages a user reads, their code blocks, and the commands in a block of shell."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(\S*)[^\n]*$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


class Block(NamedTuple):
    """A fenced block: where it begins, what it is written in, and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """A command of a transcript, and the output that the page shows."""

    text: str
    output: str


def name_of(page: Path) -> str:
    """The page as a reader calls it."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    begin, language, inside = 0, "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and inside is None:
            begin, language, inside = number, fence[2], list[str]()
        elif fence and inside is not None:
            found.append(Block(name_of(page), begin, language, "\n".join(inside) + "\n"))
            inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{name_of(page)}:{begin}: this block does not end"
    return found


def is_transcript(text: str) -> bool:
    """Whether the block shows commands after a prompt, with their output between them."""
    return text.startswith("$ ")


def transcript(text: str) -> list[Command]:
    """The commands after each prompt with the output that follows."""
    found: list[Command] = []
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        assert line.startswith("$ "), f"no prompt: {line!r}"
        command = [line[2:]]
        while lines and is_open("\n".join(command)):
            command.append(lines.pop(0))
        output: list[str] = []
        while lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        found.append(Command("\n".join(command), "\n".join(output).strip()))
    return found


def is_open(command: str) -> bool:
    """Whether a shell would ask for another line."""
    heredoc = _HEREDOC.search(command)
    if heredoc:
        return heredoc[1] not in command.splitlines()[1:]
    return command.endswith(("\\", "|", "&&", "||"))


def commands(text: str) -> list[str]:
    """The lines of a block, those of one command together."""
    found: list[str] = []
    for line in text.splitlines():
        if found and is_open(found[-1]):
            found[-1] += f"\n{line}"
        elif line.strip():
            found.append(line)
    return found
