"""A clock that stands still until a test moves it."""

from goqueue.clock import SECOND

START_WALL_NS = 1_704_067_200 * SECOND
"""2024-01-01T00:00:00Z."""


class ManualClock:
    """A `Clock` in the hands of a test. `advance` moves both times on; only the wall clock can be set back."""

    def __init__(self, start_wall_ns: int = START_WALL_NS) -> None:
        self._wall_ns = start_wall_ns
        self._monotonic_ns = 0

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let that much time pass, to the nearest nanosecond."""
        self.advance_ns(round(seconds * SECOND))

    def advance_ns(self, ns: int) -> None:
        """Let that much time pass on both clocks."""
        if ns < 0:
            raise ValueError(f"time does not pass backwards ({ns} ns); set_wall_ns makes the wall clock jump")
        self._wall_ns += ns
        self._monotonic_ns += ns

    def set_wall_ns(self, ns: int) -> None:
        """Make the wall clock jump, either way, as an operator or NTP does. Monotonic time does not notice."""
        self._wall_ns = ns
