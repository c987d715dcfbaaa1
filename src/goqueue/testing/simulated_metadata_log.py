"""A metadata log in memory, with the faults of a real one: slow, out of reach, in doubt.

`SimulatedEngine` is the log itself, in one place; each node has a handle of its own, a `SimulatedMetadataLog`. A call
is a request that travels to the engine, takes effect there in one instant, and an answer that travels back. The author
of an append waits until its deadline, whatever became of the request:

    delay        each way takes that long; a request may well arrive after its author has stopped waiting
    cut          requests wait in the node until `heal`; requests and answers that are on their way are lost
    answer_lost  the append takes effect, and its author never hears of it
    append_late  the append takes effect some time after its author has stopped waiting, if the log still ends there

In the last three cases the author gets `EntryUnknown`. All chance comes from the `Entropy` of the engine, and all time
is that of the running loop: on a loop with virtual time, a seed yields one run.

The engine keeps every entry that was ever appended, trimmed ones too, in `history`: that is what checkers compare with.
A log that is replaced begins a new history.
Entries are stored encoded, so they pass through the same format as on a disk, and can be damaged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from goqueue.cluster.metadata_log import (
    EMPTY,
    PAGE_BYTES_MAX,
    AppendOutcome,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import MetadataDamaged, MetadataTrimmed, MetadataUnavailable
from goqueue.runtime.entropy import Entropy

T = TypeVar("T")

AppendFault: TypeAlias = Literal["answer_lost", "append_late"]

_WATCH_LIMIT: Final = 100


@dataclass(slots=True)
class MetadataFaults:
    """What one node suffers. Set a field to change it; times in seconds are drawn between two bounds."""

    delay_s: tuple[float, float] = (0.0, 0.0)  # of each way
    answer_lost: float = 0.0  # the chance of each append
    append_late: float = 0.0
    late_s: tuple[float, float] = (0.1, 5.0)  # how long after the deadline a late append takes effect


class SimulatedEngine:
    """One log, and what happens to it. `connect` gives a node its handle."""

    def __init__(self, entropy: Entropy) -> None:
        self.entropy = entropy
        self._stored: list[bytes] = []  # of all entries ever, in order; the first one has the index `_base` + 1
        self._base = 0  # where the log began, if it was replaced by a snapshot
        self._tail = EMPTY
        self._first = 1
        self._snapshot: MetadataSnapshot | None = None
        self._changed: dict[asyncio.Future[None], None] = {}  # in order, so that a run can be repeated
        self.context = copy_context()  # what is on its way belongs to no process

    def connect(self, node: int, *, deadline_s: float = 2.0) -> "SimulatedMetadataLog":
        """A handle on the log, as one process has it."""
        return SimulatedMetadataLog(self, node, deadline_s)

    @property
    def history(self) -> list[MetadataEntry]:
        """Every entry that was ever appended, in order, trimmed or not."""
        return [MetadataEntry.decode(raw) for raw in self._stored]

    def history_from(self, first: int) -> list[MetadataEntry]:
        """The entries of `history` from index `first`."""
        return [MetadataEntry.decode(raw) for raw in self._stored[max(0, first - 1 - self._base) :]]

    def flip_bit(self, index: int, bit: int = 0) -> None:
        """Damage the last byte of the entry where it is stored."""
        at = index - 1 - self._base
        raw = bytearray(self._stored[at])
        raw[-1] ^= 1 << bit
        self._stored[at] = bytes(raw)

    def go_back(self, index: int) -> None:
        """Lose all entries after `index`, as if the engine was restored from an old backup."""
        assert self._first - 1 <= index <= self._tail.index
        del self._stored[index - self._base :]
        self._tail = MetadataEntry.decode(self._stored[-1]).position if self._stored else EMPTY
        if self._snapshot is not None and self._snapshot.position.index > index:
            self._snapshot = None

    def append(self, entry: MetadataEntry) -> AppendOutcome:
        """Compare and append, in one instant."""
        raw = entry.encode()
        if entry.after == self._tail:
            self._stored.append(raw)
            self._tail = entry.position
            self.notify()
            return EntryAppended(entry.position)
        if entry.index > self._tail.index:
            return EntryLost()
        if entry.index < self._first:
            return EntryUnknown(entry.position)
        there = MetadataEntry.decode(self._stored[entry.index - 1 - self._base])
        return EntryAppended(entry.position) if there.id == entry.id else EntryLost()

    def tail(self) -> MetadataPosition:
        return self._tail

    def read(self, first: int, limit: int) -> list[MetadataEntry]:
        if first < self._first:
            raise MetadataTrimmed(first, self._first)
        entries: list[MetadataEntry] = []
        size = 0
        start = first - 1 - self._base
        for raw in self._stored[start : start + limit]:
            size += len(raw)
            if entries and size > PAGE_BYTES_MAX:
                break
            entry = self._decoded(raw, is_first=not entries)
            if entry is None:
                break
            entries.append(entry)
        return entries

    @staticmethod
    def _decoded(raw: bytes, *, is_first: bool) -> MetadataEntry | None:
        """The entry; None if it is damaged and others come before it."""
        try:
            return MetadataEntry.decode(raw)
        except MetadataDamaged:
            if is_first:
                raise
            return None

    def load_snapshot(self) -> MetadataSnapshot | None:
        return self._snapshot

    def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        if self._snapshot is None or self._snapshot.position.index < snapshot.position.index:
            self._snapshot = snapshot

    def trim(self, below: int) -> None:
        covered = self._snapshot.position.index if self._snapshot else 0
        self._first = max(self._first, min(below, covered + 1, self._tail.index))

    def replace(self, snapshot: MetadataSnapshot) -> None:
        self._stored.clear()
        self._base = snapshot.position.index
        self._first = self._base + 1
        self._tail = snapshot.position
        self._snapshot = snapshot
        self.notify()

    def changed(self) -> "asyncio.Future[None]":
        """Done as soon as there may be something new for a watch or a waiting request."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed[future] = None
        future.add_done_callback(lambda future: self._changed.pop(future, None))
        return future

    def notify(self) -> None:
        for future in list(self._changed):
            if not future.done():
                future.set_result(None)


class SimulatedMetadataLog:
    """The `MetadataLog` of one node. `faults` says what it suffers by chance; the methods below, on request."""

    def __init__(self, engine: SimulatedEngine, node: int, deadline_s: float) -> None:
        self.node = node
        self.faults = MetadataFaults()
        self._engine = engine
        self._deadline_s = deadline_s
        self._is_cut = False
        self._is_closed = False
        self._requested: list[AppendFault] = []

    def cut(self) -> None:
        """Put the engine out of reach; what is on its way is lost when it would arrive."""
        self._is_cut = True

    def heal(self) -> None:
        """Bring it back. Requests that wait in the node are sent."""
        self._is_cut = False
        self._engine.notify()

    def fail_next(self, fault: AppendFault) -> None:
        """Let the next append that is sent suffer this, once."""
        self._requested.append(fault)

    async def append(self, entry: MetadataEntry) -> AppendOutcome:
        entry.encode()  # one that is too large is refused before it is sent
        try:
            return await self._ask(lambda: self._engine.append(entry), self._drawn_fault)
        except TimeoutError:
            return EntryUnknown(entry.position)

    async def tail(self) -> MetadataPosition:
        return await self._query(self._engine.tail)

    async def read(self, first: int, limit: int) -> list[MetadataEntry]:
        return await self._query(lambda: self._engine.read(first, limit))

    async def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        wanted = first
        while not self._has_ended():
            entries = [] if self._is_cut else self._engine.read(wanted, _WATCH_LIMIT)
            if not entries:
                await self._engine.changed()
                continue
            await asyncio.sleep(self._between(self.faults.delay_s))
            if self._is_cut:
                continue  # lost on the way; the watch reads on by index when the engine is back
            for entry in entries:
                if self._has_ended():
                    return
                yield entry
                wanted = entry.index + 1

    async def load_snapshot(self) -> MetadataSnapshot | None:
        return await self._query(self._engine.load_snapshot)

    async def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        await self._query(lambda: self._engine.store_snapshot(snapshot))

    async def trim(self, below: int) -> None:
        await self._query(lambda: self._engine.trim(below))

    async def replace(self, snapshot: MetadataSnapshot) -> None:
        await self._query(lambda: self._engine.replace(snapshot))

    async def close(self) -> None:
        self._is_closed = True
        self._engine.notify()

    def _has_ended(self) -> bool:
        return self._is_closed

    async def _query(self, operation: Callable[[], T]) -> T:
        try:
            return await self._ask(operation)
        except TimeoutError:
            raise MetadataUnavailable(f"the metadata log did not answer within {self._deadline_s:g} s") from None

    async def _ask(self, operation: Callable[[], T], drawn: Callable[[], AppendFault | None] = lambda: None) -> T:
        """Send the operation and wait for its answer. Raises `TimeoutError` at the deadline."""
        if self._is_closed:
            raise MetadataUnavailable("this connection to the metadata log is closed")
        async with asyncio.timeout(self._deadline_s) as deadline:
            while self._is_cut:
                await self._engine.changed()
            return await self._send(operation, drawn(), deadline.when())

    def _send(
        self, operation: Callable[[], T], fault: AppendFault | None, deadline: float | None
    ) -> "asyncio.Future[T]":
        """Let the request travel, independently of whoever waits for the answer."""
        loop, context = asyncio.get_running_loop(), self._engine.context
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            if self._is_cut:
                return
            try:
                result = operation()
            except (MetadataTrimmed, MetadataDamaged) as error:
                loop.call_later(self._between(self.faults.delay_s), deliver_error, error, context=context)
                return
            if fault is None:
                loop.call_later(self._between(self.faults.delay_s), deliver, result, context=context)

        def deliver(result: T) -> None:
            if not self._is_cut and not answer.done():
                answer.set_result(result)

        def deliver_error(error: Exception) -> None:
            if not self._is_cut and not answer.done():
                answer.set_exception(error)

        if fault == "append_late":
            assert deadline is not None
            loop.call_at(deadline + self._between(self.faults.late_s), arrive, context=context)
        else:
            loop.call_later(self._between(self.faults.delay_s), arrive, context=context)
        return answer

    def _drawn_fault(self) -> AppendFault | None:
        if self._requested:
            return self._requested.pop(0)
        if self._by_chance(self.faults.answer_lost):
            return "answer_lost"
        return "append_late" if self._by_chance(self.faults.append_late) else None

    def _by_chance(self, probability: float) -> bool:
        return probability > 0 and self._engine.entropy.fraction() < probability

    def _between(self, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low if low == high else low + (high - low) * self._engine.entropy.fraction()
