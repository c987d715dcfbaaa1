"""Scripts as a careless user writes them, run in a process of their own.

Each is a piece of source text. It finds `address` (of a broker), `topic` (which exists, with one partition) and
`say(...)` (a line on standard output, at once), and the names of `goqueue` and of a few modules that scripts use.
"""

import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

PRELUDE = """
import asyncio, atexit, os, signal, sys, threading
import goqueue
from goqueue import *
address, topic = sys.argv[1:3]
def say(*words):
    print(*words, flush=True)
def wait_for_signal():
    while True:
        threading.Event().wait(0.05)
"""
TIMEOUT_S = 60


@dataclass
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str


class Script:
    """A script that runs."""

    def __init__(self, source: str, address: str, topic: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", PRELUDE + dedent(source), address, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for(self, line: str) -> None:
        """Return when it has said that."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            if said.strip() == line:
                return
        raise AssertionError(f"it never said {line!r}: {self._process.communicate()[1]}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait until it has ended."""
        out, err = self._process.communicate(timeout=TIMEOUT_S)
        return Ended(self._process.returncode, out, err)


def run(source: str, address: str, topic: str, *options: str) -> Ended:
    """Run it to its end."""
    with Script(source, address, topic, *options) as script:
        return script.end()
