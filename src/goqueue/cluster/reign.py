"""One won epoch: the controller of this node at work.

    requests, lost connections ──> Controller <── tick: who is silent?
                                       │
                                  next_entry ──> MetadataWriter ──> the log ──> LogFollower ──> Controller.applied

While one entry is in flight, decisions gather in the controller; the next entry has all of them. The reign ends when an
entry is lost, when the controller resigns because it hears too few brokers, or when the node stood still for so long
that it cannot tell who was silent and who was not heard. A higher epoch that is applied ends it as well, from outside.
"""

import asyncio
import logging
from typing import Final

from goqueue.clock import MS, until_next
from goqueue.cluster.controller import Controller
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.metadata_writer import MetadataWriter
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.timing import ClusterTiming
from goqueue.cluster.waiting import drop
from goqueue.errors import MetadataContradiction
from goqueue.runtime.entropy import Entropy

TICK_NS: Final = 150 * MS

_log = logging.getLogger(__name__)


class Reign:
    """Runs the controller of one epoch."""

    def __init__(
        self,
        controller: Controller,
        writer: MetadataWriter,
        follower: LogFollower,
        *,
        node: int,
        time: NodeTime,
        timing: ClusterTiming,
        entropy: Entropy,
    ) -> None:
        self.controller = controller
        self._writer = writer
        self._follower = follower
        self._node = node
        self._time = time
        self._timing = timing
        self._entropy = entropy
        self._has_decided = asyncio.Event()
        self._has_decided.set()
        self._in_flight: MetadataEntry | None = None
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def is_stuck(self) -> bool:
        """Whether an entry has not reached the log for so long that another node may do better."""
        return self._writer.waits_ns() > self._timing.silence_ns

    def touched(self) -> None:
        """The controller was called: it may have decided something."""
        if self.controller.has_decided:
            self._has_decided.set()

    def is_author_of(self, entry: MetadataEntry) -> bool:
        """Whether this is the entry in flight."""
        return self._in_flight is not None and self._in_flight.id == entry.id

    def applied(self, entry: MetadataEntry) -> None:
        """The entry in flight is applied."""
        self._in_flight = None
        self.controller.applied(entry)
        self.touched()

    def end(self) -> None:
        """No decision any more; whoever waits for one is told to ask again."""
        if not self._ended.done():
            self._ended.set_result(False)
        self.controller.deposed()

    def give_up(self) -> None:
        """The controller is of no use; the next one may come to the same point, so it does not come at once."""
        if not self._ended.done():
            self._ended.set_result(True)

    async def run(self) -> bool:
        """Reign until it ends; whether it was futile: the controller has heard too few brokers."""
        ticking = asyncio.ensure_future(self._tick())
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait((ticking, writing, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return self._ended.result()
            if writing.done():
                writing.result()
                return False
            return ticking.result()
        finally:
            drop(ticking)
            drop(writing)

    async def _tick(self) -> bool:
        controller, time = self.controller, self._time
        while True:
            slept_ns = time.now().monotonic_ns
            await time.sleep(until_next(slept_ns, TICK_NS) + MS)  # rather late than early, and never at once again
            now = time.now()
            if now.monotonic_ns - slept_ns > self._timing.silence_ns and self._has_others():
                _log.warning("the controller stood still and gives up", extra={"epoch": controller.state.epoch})
                return False
            if controller.should_resign(now):
                _log.warning(
                    "the controller hears too few brokers and resigns", extra={"epoch": controller.state.epoch}
                )
                return True
            try:
                controller.tick(now)
            except MetadataContradiction as error:
                _log.error("a bug in the controller, which gives up", exc_info=error)
                return True
            self.touched()

    def _has_others(self) -> bool:
        return any(
            not broker.is_fenced and node != self._node for node, broker in self.controller.state.brokers.items()
        )

    async def _write(self) -> None:
        await self._writer.settle()  # its own election, if the answer to that was lost
        while True:
            entry = self.controller.next_entry(self._entropy.bytes(16))
            if entry is None:
                self._has_decided.clear()
                await self._has_decided.wait()
                continue
            self._in_flight = entry
            if not await self._writer.write(entry):
                _log.warning("the controller lost its place in the metadata log", extra={"index": entry.index})
                return
            await self._follower.wait_applied(entry.index)
