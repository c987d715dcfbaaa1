"""Busy-polling for an answer, for the short time in which it is likely to come.

To wake a thread takes longer than the broker needs for most requests. So a thread that waits for an answer polls its
socket for a while before it sleeps, as long as answers do come in that time (`goqueue.runtime.adaptive_spin`).

Only one thread of a process busy-polls at a time: more would keep each other, and threads that have work, from running.
"""

import select
import socket
from threading import Lock

from goqueue.clock import SystemClock
from goqueue.runtime.adaptive_spin import AdaptiveSpin, spin_budget_ns, yield_processor

_turn = Lock()
_monotonic_ns = SystemClock().monotonic_ns  # a socket knows no other time


class SpinWait:
    """Busy-polls one socket, for at most `busy_poll_ns` at a time."""

    __slots__ = ("_is_there", "_spin")

    def __init__(self, watched: socket.socket, busy_poll_ns: int) -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        self._is_there = poll.poll
        self._spin = AdaptiveSpin(spin_budget_ns(busy_poll_ns))

    def watch(self) -> None:
        """Return when something has come, or when it is time to sleep."""
        spin = self._spin
        spin.start(_monotonic_ns())
        if spin.is_spinning and _turn.acquire(blocking=False):
            try:
                while not self._is_there(0) and spin.should_spin(_monotonic_ns()):
                    yield_processor()
            finally:
                _turn.release()
