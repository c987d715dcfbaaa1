"""What the pages have that cannot simply be run, and why: the only place where that is said."""

import re
from typing import NamedTuple

NOT_CODE = {
    "text": "output, or a drawing",
    "mermaid": "a diagram",
}
"""Languages of blocks that are not run."""


class NotRun(NamedTuple):
    """Commands of the pages that the tests do not run."""

    command: re.Pattern[str]
    why: str


NOT_RUN = [
    NotRun(re.compile(r"^make (demo|test|quick)\b"), "sets up .venv and runs the tests, of which this is one"),
    NotRun(re.compile(r"^pip install\b"), "fetches from PyPI; tests talk to this machine only"),
]

SERVE = re.compile(r"\bgoqueue serve\b(?!.*--show-config)")
"""A broker: started in the background, waited for until it is ready, kept for both runs of the page, stopped by pid."""
ENDLESS = re.compile(r"--follow\b|\bworker \S+:\S+")
"""A command that never ends: started in the background, stopped with SIGINT once it has printed something."""
SPARK = re.compile(r"\bspark\b|\bpyspark|goqueue pipeline")
"""Blocks that need Spark are run together with the tests that need it."""

OUTPUT_VARIES = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "TRACE"),
    (re.compile(r"\b\d{12,}\b"), "ID"),
    (re.compile(r"[\d,]+ per second"), "RATE per second"),
    (re.compile(r"\bpid=\d+"), "pid=PID"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:ns|us|µs|ms|s)\b"), "DURATION"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
]
"""Parts of an output that differ from run to run, in the page as in the terminal."""


def comparable(output: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    for pattern, name in OUTPUT_VARIES:
        output = pattern.sub(name, output)
    return [line.strip() for line in output.strip().splitlines()]


def is_as_shown(output: str, shown: str) -> bool:
    """Whether an output is the one that a page shows, in which `...` stands for anything."""
    pattern = "\n".join(re.escape(line).replace(re.escape("..."), ".*") for line in comparable(shown))
    return re.fullmatch(pattern, "\n".join(comparable(output)), re.DOTALL) is not None
