"""The time of one node: what its clocks say, and waiting.

Everything in a node that waits for a time does so here, so the simulator can give each node a clock that is slow, fast
or jumps, and can pause a node by holding what it waits for.
"""

import asyncio
from typing import Protocol

from goqueue.clock import SECOND, Clock
from goqueue.cluster.timing import Now


class NodeTime(Protocol):
    """The clocks of a node, and waiting by them."""

    def now(self) -> Now: ...

    async def sleep(self, duration_ns: int) -> None:
        """Return after so long by the node's own clock."""


class SystemTime:
    """The time of the machine, in an event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())

    async def sleep(self, duration_ns: int) -> None:
        await asyncio.sleep(duration_ns / SECOND)
