"""An event loop on which waiting takes no time: when nothing is to do, its clock jumps to the next timer."""

import asyncio
import selectors
from typing import Final

ROUNDS_MAX: Final = 100_000
"""So many rounds of the loop at one instant mean that a task waits for nothing, again and again."""


class _JumpingSelector(selectors.SelectSelector):
    """Lets time pass instead of waiting for it. It watches no sockets: code without threads needs none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        if timeout > 0:
            self.now += timeout
            self._rounds = 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise RuntimeError(f"no time passes: {ROUNDS_MAX} rounds at {self.now} s")
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For code without threads and sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now
