"""docs/reference/protocol.md, taken apart: its structs, calls, tables and test vectors."""

import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md"
COLUMNS_MAX = 100


def text() -> str:
    """The whole page."""
    return PAGE.read_text()


def blocks() -> list[list[str]]:
    """The lines of each fenced block."""
    return [found.splitlines() for found in re.findall(r"^```text\n(.*?)^```$", text(), re.MULTILINE | re.DOTALL)]


def structs() -> dict[str, list[str]]:
    """The fields of each struct, without comments; the first entry is the heading."""
    found: dict[str, list[str]] = {}
    for heading, *lines in blocks():
        if not heading.startswith("struct "):
            continue
        name = heading.split()[1]
        assert name not in found, f"struct {name} is on the page twice"
        found[name] = [heading, *(re.sub(r"\s+# .*", "", line).strip() for line in lines)]
    return found


def calls() -> dict[str, str]:
    """The signature of each call, in one line."""
    joined = [re.sub(r"\n +", " ", "\n".join(block)) for block in blocks()]
    lines = [line for block in joined for line in block.splitlines() if re.match(r"\w+\.\w+\(.*\) -> ", line)]
    return {line.partition("(")[0]: line for line in lines}


def table(*heading: str) -> list[list[str]]:
    """The rows of the table with that heading."""
    lines = iter(text().splitlines())
    wanted = f"| {' | '.join(heading)} |"
    for line in lines:
        if line == wanted:
            next(lines)
            return list(_rows(lines))
    raise AssertionError(f"the page has no table {wanted}")


def tables(*heading: str) -> list[list[list[str]]]:
    """The rows of every table with that heading."""
    wanted = f"| {' | '.join(heading)} |"
    lines = text().splitlines()
    return [list(_rows(iter(lines[at + 2 :]))) for at, line in enumerate(lines) if line == wanted]


def _rows(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def vectors(word: str) -> list[list[str]]:
    """The lines of blocks that begin with the word, as words; a line that is indented goes on with the last word."""
    found: list[list[str]] = []
    for block in blocks():
        if block[0].split()[0] != word:
            continue
        for line in block:
            if line.startswith(" "):
                found[-1][-1] += line.strip()
            else:
                found.append(line.split())
    return found
