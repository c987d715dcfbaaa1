"""Adaptive busy-polling: whether to wait for the next message of the peer by spinning or by sleeping.

A process that sleeps is woken late and finds its caches cold: its next piece of work takes half as long again, and
longer on virtual machines. So after it has sent something, a process busy-polls for a short time, as long as that pays
off. After a spin in which nothing arrived, the next one is skipped; after another, the next three, then seven, and so
on. A client that waits for each answer thus finds the broker spinning, and spins itself when the answer comes. A client
that sends now and then costs next to nothing.
"""

import math
import os
from typing import Final

MISSES_MAX = 6
CPU_LIMIT: Final = "/sys/fs/cgroup/cpu.max"


class AdaptiveSpin:
    """Decides when to busy-poll. Knows nothing of sockets or event loops."""

    __slots__ = ("_length_ns", "_misses", "_to_skip", "_until_ns", "is_spinning")

    def __init__(self, length_ns: int) -> None:
        self.is_spinning = False
        self._length_ns = length_ns
        self._until_ns = 0
        self._misses = 0  # spins in a row in which nothing arrived
        self._to_skip = 0

    def start(self, now_ns: int) -> bool:
        """Something was sent, so an answer may come soon; true if the caller has to start to spin."""
        if self.is_spinning:
            # It was called again before the spin ended: spinning pays off.
            self._until_ns = now_ns + self._length_ns
            self._misses = 0
        elif self._to_skip:
            self._to_skip -= 1
        elif self._length_ns:
            self._until_ns = now_ns + self._length_ns
            self.is_spinning = True
            return True
        return False

    def should_spin(self, now_ns: int) -> bool:
        """Whether to look once more; false ends the spin."""
        if now_ns < self._until_ns:
            return True
        self.is_spinning = False
        self._misses = min(self._misses + 1, MISSES_MAX)
        self._to_skip = 2**self._misses - 1
        return False


def spin_budget_ns(length_ns: int) -> int:
    """How long to spin when `length_ns` is configured.

    0 on a single processor, which the peer needs, or in a container that may not use more than one.
    """
    return length_ns if min(_processor_count(), processors_allowed(CPU_LIMIT)) > 1 else 0


def processors_allowed(limit_file: str) -> float:
    """How many processors a container may keep busy, from the file of its control group; infinite without a limit."""
    try:
        with open(limit_file) as file:
            quota, period = file.read().split()
            return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or `max`
        return math.inf


def yield_processor() -> None:
    """Let other runnable threads have the processor between two looks."""
    os.sched_yield()


def _processor_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
