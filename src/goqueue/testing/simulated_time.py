"""The clocks of one machine, which may be wrong in every way: too fast, too slow, set by hand.

Time of the simulation is that of the loop. A machine has a rate (how many of its seconds pass in one), a wall clock
that jumps, and a monotonic clock that began when it was switched on and does not jump. What waits, waits by the clock
of its machine; a stopped process waits on, and finds that its time is over when it is resumed.
"""

import asyncio

from goqueue.clock import SECOND
from goqueue.cluster.timing import Now
from goqueue.testing.clock import START_WALL_NS


class SimulatedTime:
    """The `NodeTime` of what runs on one machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, rate: float = 1.0, wall_ns: int = START_WALL_NS) -> None:
        self._loop = loop
        self._rate = rate
        self._wall_offset_ns = wall_ns
        self._passed_ns = 0  # on the monotonic clock until `_since`
        self._since = loop.time()

    @property
    def rate(self) -> float:
        """How many seconds of this machine pass in one second."""
        return self._rate

    def set_rate(self, rate: float) -> None:
        """Let the clock run at that rate; what waits already keeps its time."""
        self._passed_ns = self._monotonic_ns()
        self._since = self._loop.time()
        self._rate = rate

    def jump(self, ns: int) -> None:
        """Set the wall clock on, or back."""
        self._wall_offset_ns += ns

    def now(self) -> Now:
        """Both clocks."""
        monotonic_ns = self._monotonic_ns()
        return Now(monotonic_ns, self._wall_offset_ns + monotonic_ns)

    async def sleep(self, duration_ns: int) -> None:
        """Wait by this clock."""
        await asyncio.sleep(self.real_s(duration_ns / SECOND))

    def real_s(self, duration_s: float) -> float:
        """How much time of the simulation passes in a time of this machine."""
        return duration_s / self._rate

    def _monotonic_ns(self) -> int:
        return self._passed_ns + round((self._loop.time() - self._since) * self._rate * SECOND)
