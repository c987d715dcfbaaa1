"""Follows the metadata log: every entry is kept in the local copy, then applied, in order and once.

    watch, or read by index ──┐
                              ├──> incoming ──> LocalCopy.append ──> Metadata.apply ──> applied(entry, records)
    own appends (`offer`) ────┘     together       synced               one by one            waiters of the index

What comes while the copy is being synced is kept with the next sync. An entry that this node has appended itself need
not come back through the watch: it is offered at once, and skipped when it does come.

A watch that is silent may be broken without a sign. The controller tells how far the log goes (`heard_of`); if an entry
has not come `LAG_NS` after that, the stream is closed and the log is read by index, which is linearizable.

Whenever a stream is opened, and whenever an append of this node has lost, the log is compared with what was applied
(R11): it has to go at least as far, with the same id there. Behind a trim, the snapshot is loaded and stands for all
entries before it.

At a seal the node halts, and keeps nothing of it: the log goes on elsewhere, from the entry before it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from goqueue.clock import MS
from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.log_history import check_history, decode_snapshot, moved
from goqueue.cluster.metadata import Metadata, may_seal
from goqueue.cluster.metadata_log import MetadataEntry, MetadataLog, MetadataPosition
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.records import Record
from goqueue.cluster.state_change import records_between
from goqueue.cluster.waiting import settled
from goqueue.errors import MetadataDamaged, MetadataTrimmed, MetadataUnavailable, StorageFull
from goqueue.service.pending import Pending

T = TypeVar("T")

LAG_NS: Final = 500 * MS
RETRY_NS: Final = 200 * MS
PAGE: Final = 1_000
"""Entries of one read."""
WAITING_MAX: Final = 2_000
"""Entries that may wait for the local copy; their number bounds the memory of a node that catches up."""

EntryApplied = Callable[[MetadataEntry | None, Sequence[Record]], None]
"""Called after each entry with the records that took effect; with None after a snapshot, with what it has changed."""

_log = logging.getLogger(__name__)


class LogFollower:
    """Applies the log to `metadata`, which stays the same object."""

    def __init__(
        self, log: MetadataLog, metadata: Metadata, copy: LocalCopy, *, time: NodeTime, applied: EntryApplied
    ) -> None:
        self._log = log
        self._metadata = metadata
        self._copy = copy
        self._time = time
        self._applied = applied
        self._received = metadata.position
        self._incoming: deque[MetadataEntry] = deque()
        self._has_incoming = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._heard_of = 0
        self._applying = asyncio.Lock()
        self._waiting: list[tuple[int, asyncio.Future[bytes | None]]] = []
        self.stored: Callable[[MetadataPosition, bytes], None] = lambda position, state: None
        """Called with the state whenever the local copy was replaced by a snapshot of it."""

    # --- what others know of the log ---------------------------------------------------------------

    def offer(self, entry: MetadataEntry) -> None:
        """This entry is in the log."""
        if entry.after == self._received:
            self._received = entry.position
            self._incoming.append(entry)
            self._has_incoming.set()
            if len(self._incoming) >= WAITING_MAX:
                self._has_room.clear()

    def heard_of(self, index: int) -> None:
        """The log goes at least as far as this index."""
        self._heard_of = max(self._heard_of, index)

    async def verify(self) -> None:
        """Raise `ClusterError` if the log is not the one that was applied here (R11)."""
        with suppress(MetadataUnavailable):
            await self._check_history()

    async def _check_history(self) -> None:
        is_applied = self._received == self._metadata.position
        generation = self._metadata.generation if is_applied else None
        await check_history(self._log, self._received, self._copy.cluster_id, generation)

    # --- waiting -----------------------------------------------------------------------------------

    async def wait_applied(self, index: int) -> None:
        """Return when the log is applied up to this index."""
        await self.occupant(index)

    def occupant(self, index: int) -> "asyncio.Future[bytes | None]":
        """The id of the entry at this index, when it is applied; None if it was applied before, or with a snapshot."""
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        position = self._metadata.position
        if position.index < index:
            self._waiting.append((index, waiter))
        else:
            waiter.set_result(position.id if position.index == index else None)
        return waiter

    def _wake(self, entry: MetadataEntry | None) -> None:
        index = self._metadata.position.index
        still = []
        for wanted, waiter in self._waiting:
            if wanted > index:
                still.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(entry.id if entry is not None and entry.index == wanted else None)
        self._waiting = [one for one in still if not one[1].done()]

    # --- reading -----------------------------------------------------------------------------------

    async def read(self) -> None:
        """Bring in what the log has, for ever. Raises what halts the node."""
        while True:
            try:
                await self._read()
            except MetadataUnavailable:
                await self._time.sleep(RETRY_NS)

    async def _read(self) -> None:
        try:
            await self._check_history()
            await self._read_to_the_end()
            await self._watch_until_it_lags()
        except MetadataTrimmed:
            await self._skip_to_snapshot()
        except MetadataDamaged:
            await self._check_history()
            raise

    async def _read_to_the_end(self) -> None:
        while entries := await self._log.read(self._received.index + 1, PAGE):
            for entry in entries:
                self._receive(entry)
            await self._has_room.wait()

    async def _watch_until_it_lags(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        lagging = asyncio.ensure_future(self._until_it_lags())
        try:
            await asyncio.wait((watching, lagging), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            lagging.cancel()
            await asyncio.gather(watching, lagging, return_exceptions=True)

    async def _watch(self) -> None:
        async for entry in self._log.watch(self._received.index + 1):
            self._receive(entry)
            await self._has_room.wait()

    async def _until_it_lags(self) -> None:
        while True:
            expected = self._heard_of
            await self._time.sleep(LAG_NS)
            if self._received.index < expected:
                _log.warning(
                    "the watch of the metadata log lags; it is read by index",
                    extra={"received": self._received.index, "controller_has": expected},
                )
                return

    def _receive(self, entry: MetadataEntry) -> None:
        if entry.index > self._received.index:
            if entry.after != self._received:
                raise MetadataDamaged(f"entry {entry.index} does not follow the entry {self._received.index} read here")
            self.offer(entry)

    async def _skip_to_snapshot(self) -> None:
        snapshot = await self._log.load_snapshot()
        async with self._applying:
            if snapshot is None or snapshot.position.index <= self._metadata.position.index:
                raise MetadataUnavailable("entries are gone, and no snapshot covers them yet")
            state = decode_snapshot(snapshot, self._copy.cluster_id)
            changes = list(records_between(self._metadata, state))
            self._copy.heard(changes)
            await self._keep(lambda: self._copy.store(state))
            _log.info("the metadata log was trimmed; went on from a snapshot", extra={"index": state.position.index})
            self._incoming.clear()
            self._has_incoming.clear()
            self._has_room.set()
            self._metadata.become(state)
            self._received = state.position
            self._applied(None, changes)
            self._wake(None)

    # --- applying ----------------------------------------------------------------------------------

    async def apply(self) -> None:
        """Keep and apply what has come in, for ever. Raises what halts the node."""
        while True:
            await self._has_incoming.wait()
            async with self._applying:
                await self._apply_incoming()
                if self._copy.wants_snapshot:
                    state = await self._keep(lambda: self._copy.store(self._metadata))
                    self.stored(self._metadata.position, state)

    async def _apply_incoming(self) -> None:
        entries = list(self._incoming)
        self._incoming.clear()
        self._has_incoming.clear()
        self._has_room.set()
        for together in _split_at_seals(entries):
            moved_to = self._metadata.sealed_by(together[0])
            if moved_to is not None:
                raise moved(moved_to)
            await self._keep(partial(self._copy.append, together))
            for entry in together:
                records = self._metadata.apply(entry)
                self._copy.heard(records)
                self._applied(entry, records)
                self._wake(entry)

    async def _keep(self, write: Callable[[], Pending[T]]) -> T:
        """Write to the copy; wait for room on the disk if there is none."""
        while True:
            try:
                return await settled(write())
            except StorageFull as error:
                _log.error("no entry of the metadata log can be applied", extra={"reason": str(error)})
                await self._time.sleep(RETRY_NS)


def _split_at_seals(entries: list[MetadataEntry]) -> Iterator[list[MetadataEntry]]:
    """The entries in order, in groups; one that may be a seal is the first of its group."""
    together: list[MetadataEntry] = []
    for entry in entries:
        if together and may_seal(entry):
            yield together
            together = []
        together.append(entry)
    if together:
        yield together
