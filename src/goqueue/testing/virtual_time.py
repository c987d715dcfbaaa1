"""An event loop on which waiting takes no time: when nothing is to do, its clock jumps to the next timer."""

import asyncio
from typing import Final

ROUNDS_MAX: Final = 100_000
"""So many rounds of the loop at one instant mean that a task waits for nothing, again and again."""


class _JumpingSelector:
    """Lets time pass instead of waiting for it. There is nothing to select from."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rounds = 0

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        if timeout > 0:
            self.now += timeout
            self._rounds = 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise RuntimeError(f"no time passes: {ROUNDS_MAX} rounds at {self.now} s")
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """For code without threads and sockets. It has no descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _JumpingSelector()

    def time(self) -> float:
        return self._selector.now

    def _process_events(self, events: list[object]) -> None:
        """Of the base class: what was selected."""

    def _write_to_self(self) -> None:
        """Of the base class: wake the loop, which never waits."""
