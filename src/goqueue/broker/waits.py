"""Requests that wait for a message, and how each wait ends: an answer, the time is over, or the broker stops."""

from collections.abc import Callable
from typing import TypeVar

from goqueue.broker.timers import Timers
from goqueue.clock import MS, Clock
from goqueue.service.messages import WAIT_MS_MAX
from goqueue.service.pending import Pending

T = TypeVar("T")


class Waits:
    """All waits of one broker, which are bounded in number and in time."""

    def __init__(self, timers: Timers, *, clock: Clock, waiting_max: int) -> None:
        self._timers = timers
        self._clock = clock
        self._waiting_max = waiting_max
        self._give_up: dict[object, Callable[[], None]] = {}  # by the pending answer
        self._is_over = False

    def __len__(self) -> int:
        return len(self._give_up)

    def may_wait(self, wait_ms: int) -> bool:
        """Whether one more request may wait."""
        return wait_ms > 0 and len(self._give_up) < self._waiting_max and not self._is_over

    def limit(
        self, pending: Pending[T], wait_ms: int, give_up: Callable[[], None], ended: Callable[[], None] | None = None
    ) -> None:
        """Give up when the time is over, or the broker stops; call `ended` when the answer is there."""
        if pending.is_done:
            if ended:
                ended()
            return
        self._give_up[pending] = give_up
        timer = self._timers.at(self._clock.monotonic_ns() + min(wait_ms, WAIT_MS_MAX) * MS, give_up)

        def forget(_: Pending[T]) -> None:
            del self._give_up[pending]
            timer.cancel()
            if ended:
                ended()

        pending.then(forget)

    def end(self) -> None:
        """The broker stops: end all waits, and refuse others."""
        self._is_over = True
        for give_up in list(self._give_up.values()):
            give_up()
