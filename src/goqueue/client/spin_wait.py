"""Looking out for an answer, for the moment in which it is likely to come.

To be woken takes a thread longer than most requests take the broker. So a thread that waits for an answer looks at its
socket for a while before it falls asleep, as long as answers do come in that time (`goqueue.runtime.adaptive_spin`).

Only one thread of a process does so at a time: others would keep it, and those that have work to do, from running.
"""

import select
import socket
from threading import Lock

from goqueue.clock import SystemClock
from goqueue.runtime.adaptive_spin import AdaptiveSpin, spin_budget_ns, yield_processor

_turn = Lock()
_monotonic_ns = SystemClock().monotonic_ns  # a socket knows no other time


class SpinWait:
    """Watches one socket, for as long as that at a time."""

    __slots__ = ("_is_there", "_vigil")

    def __init__(self, watched: socket.socket, busy_poll_ns: int) -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        self._is_there = poll.poll
        self._vigil = AdaptiveSpin(spin_budget_ns(busy_poll_ns))

    def watch(self) -> None:
        """Return when something has come, or when it is time to fall asleep."""
        vigil = self._vigil
        vigil.start(_monotonic_ns())
        if vigil.is_spinning and _turn.acquire(blocking=False):
            try:
                while not self._is_there(0) and vigil.should_spin(_monotonic_ns()):
                    yield_processor()
            finally:
                _turn.release()
