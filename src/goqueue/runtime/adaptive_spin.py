"""Whether to wait for what the other side sends awake or asleep.

A process that sleeps is woken late and finds its caches cold: what it does then takes half as long again, on virtual
machines more. So whoever has just sent something goes on looking for a moment, as long as that pays off. After a time
that nothing came in, it does not for the next one; after another for the next three, seven and so on. So a client that
waits for each answer finds the broker awake, and is awake when the answer comes; one that comes now and then costs
nothing.
"""

import math
import os
from typing import Final

MISSES_MAX = 6
CPU_LIMIT: Final = "/sys/fs/cgroup/cpu.max"


class AdaptiveSpin:
    """Says when to stay awake. Knows nothing of sockets or event loops."""

    __slots__ = ("_length_ns", "_misses", "_to_skip", "_until_ns", "is_on")

    def __init__(self, length_ns: int) -> None:
        self.is_on = False
        self._length_ns = length_ns
        self._until_ns = 0
        self._misses = 0  # in a row
        self._to_skip = 0

    def begin(self, now_ns: int) -> bool:
        """From now on something is waited for; whether somebody has to stay awake for it who does not yet."""
        if self.is_on:
            self._until_ns = now_ns + self._length_ns
            self._misses = 0
        elif self._to_skip:
            self._to_skip -= 1
        elif self._length_ns:
            self._until_ns = now_ns + self._length_ns
            self.is_on = True
            return True
        return False

    def goes_on(self, now_ns: int) -> bool:
        """Whether to stay awake for longer."""
        if now_ns < self._until_ns:
            return True
        self.is_on = False
        self._misses = min(self._misses + 1, MISSES_MAX)
        self._to_skip = 2**self._misses - 1
        return False


def affordable_ns(length_ns: int) -> int:
    """For how long to stay awake where that was asked for: not at all on the only processor, which the other side
    needs, or where a container may not use more than one.
    """
    return length_ns if min(_processor_count(), processors_allowed(CPU_LIMIT)) > 1 else 0


def processors_allowed(limit_file: str) -> float:
    """How many processors a container may keep busy, as the file of its control group says; endless without a limit."""
    try:
        with open(limit_file) as file:
            quota, period = file.read().split()
            return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or `max`
        return math.inf


def give_way() -> None:
    """Let others have the processor who wait for it."""
    os.sched_yield()


def _processor_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
