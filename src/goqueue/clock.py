"""Time, as something that is handed in.

Pure code takes `now_ns`; only the shells hold a `Clock`. `wall_ns` is what a calendar shows and may
jump; `monotonic_ns` never goes back and is for durations. This is the one module that asks the system.
"""

import time
from typing import Protocol

MS = 1_000_000
SECOND = 1_000 * MS


class Clock(Protocol):
    """Where a shell gets the time from."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some start; never goes back."""
        ...


class SystemClock:
    """The clock of the machine."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
