"""Time as an argument.

Pure code takes `now_ns`; only the shells (server, client) hold a `Clock`. `wall_ns` is the wall clock and may jump;
`monotonic_ns` never goes back and is for durations. This is the only module that asks the system for the time, so a
test that passes a `ManualClock` controls all of it.
"""

import time
from typing import Protocol

MS = 1_000_000
SECOND = 1_000 * MS


def until_next(now_ns: int, interval_ns: int) -> int:
    """How long until the next multiple of the interval, by the monotonic clock.

    What a process does regularly, it does at such times: then timers of 50, 100 and 300 ms wake it 20 times a second,
    not 33 times. An idle process costs what it wakes up for.
    """
    return interval_ns - now_ns % interval_ns


class Clock(Protocol):
    """The source of time of a shell."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some start; never goes back."""
        ...


class SystemClock:
    """The clock of the machine."""

    # The functions themselves, without a method around them: a published message reads the clock eleven times.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
