"""What happened in a simulation, for people: one line per fault, entry of the log, request and change of a node.

Below the lines is a hash over everything that happened, messages too. Two runs are the same if and only if their
transcripts are.
"""

import asyncio
from hashlib import blake2b
from typing import Final

_SHOWN_LINES: Final = 150


class SimulationFailed(AssertionError):
    """Something did not hold. `transcript` says what happened."""

    def __init__(self, seed: int, nodes: int, steps: int | None, broken: list[str], transcript: str) -> None:
        lines = transcript.splitlines()
        shown = lines if len(lines) <= _SHOWN_LINES else [lines[0], "...", *lines[-_SHOWN_LINES:]]
        again = "" if steps is None else f"again: make simulate SEEDS={seed},\n"
        super().__init__("\n".join((f"seed {seed}, {nodes} nodes", *broken, "", *shown, again)))
        self.seed = seed
        self.broken = broken
        self.transcript = transcript


class SimulationTranscript:
    """The lines so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop, title: str) -> None:
        self.lines: list[str] = [title]
        self._loop = loop
        self._digest = blake2b(digest_size=16)

    def note(self, line: str) -> None:
        """Something happens now."""
        written = f"{self._loop.time():10.4f}  {line}"
        self.lines.append(written)
        self._digest.update(written.encode())

    def absorb(self, *what: str | int | bytes) -> None:
        """Something happens that nobody wants to read, but that is a part of the run."""
        self._digest.update(repr((self._loop.time(), what)).encode())

    @property
    def digest(self) -> str:
        """The hash of all that has happened."""
        return self._digest.copy().hexdigest()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join((*self.lines, f"digest {self.digest}", ""))
