"""Writes entries of this node to the metadata log: one append in flight, and none forgotten (R4, R5).

    write(entry) ──> append ──> appended             -> it is offered to the follower, which applies it
                       ▲   └──> lost                 -> another entry is there
                       │   └──> unknown, unavailable -> the same entry again, until its index is occupied
                       └───────────────┘

An append whose answer was lost may take effect much later. Until its index is occupied, by it or by another entry, this
node computes nothing new on that position: `settle` comes first. That holds when the writer was cancelled as well.
"""

import asyncio
import logging
from typing import Final

from goqueue import events
from goqueue.clock import MS
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.metadata_log import (
    AppendOutcome,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataLog,
)
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.waiting import drop
from goqueue.errors import MetadataUnavailable

RETRY_NS: Final = 100 * MS

_log = logging.getLogger(__name__)


class MetadataWriter:
    """The one writer of a node."""

    def __init__(
        self, log: MetadataLog, follower: LogFollower, *, time: NodeTime, observe: events.Observer = events.ignore
    ) -> None:
        self._log = log
        self._follower = follower
        self._time = time
        self._observe = observe
        self._open: MetadataEntry | None = None
        self._opened_ns = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the outcome of an append is not known."""
        return self._open is not None

    def waits_ns(self) -> int:
        """How long the append that is under way has taken so far."""
        return self._time.now().monotonic_ns - self._opened_ns if self._open is not None else 0

    async def settle(self) -> None:
        """Find out what became of the last entry, if that is not known."""
        async with self._one_at_a_time:
            if self._open is not None:
                await self._write(self._open)

    async def write(self, entry: MetadataEntry) -> bool:
        """Append the entry; whether it is in the log. Returns when that is known, however long it takes; if it is lost,
        when the entry that took its place is applied: nothing can be decided before that.
        """
        async with self._one_at_a_time:
            assert self._open is None
            self._open, self._opened_ns = entry, self._time.now().monotonic_ns
            return await self._write(entry)

    async def _write(self, entry: MetadataEntry) -> bool:
        occupied = self._follower.occupant(entry.index)
        try:
            is_appended = await self._until_known(entry, occupied)
        finally:
            occupied.cancel()
        if is_appended:
            self._follower.offer(entry)
        self._tell("appended" if is_appended else "lost", entry)
        self._open = None
        return is_appended

    async def _until_known(self, entry: MetadataEntry, occupied: "asyncio.Future[bytes | None]") -> bool:
        while not occupied.done():
            outcome = await self._attempt(entry, occupied)
            if isinstance(outcome, EntryAppended):
                return True
            if isinstance(outcome, EntryLost):
                await self._follower.verify()
                await occupied
            elif not occupied.done():
                self._tell("unknown", entry)
                await self._time.sleep(RETRY_NS)
        return occupied.result() == entry.id

    async def _attempt(self, entry: MetadataEntry, occupied: "asyncio.Future[bytes | None]") -> AppendOutcome:
        """One call. The follower may find out first: then there is nothing to wait for."""
        appending = asyncio.ensure_future(self._log.append(entry))
        try:
            await asyncio.wait((appending, occupied), return_when=asyncio.FIRST_COMPLETED)
            if appending.done():
                return appending.result()
        except MetadataUnavailable as error:
            _log.warning("cannot write to the metadata log", extra={"index": entry.index, "reason": str(error)})
        finally:
            drop(appending)
        return EntryUnknown(entry.position)

    def _tell(self, outcome: str, entry: MetadataEntry) -> None:
        if outcome != "appended":
            _log.info("metadata entry %s", outcome, extra={"index": entry.index, "epoch": entry.epoch})
        self._observe(events.MetadataAppended(outcome, len(entry.batch), self.waits_ns()))
