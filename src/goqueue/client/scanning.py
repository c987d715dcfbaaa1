"""Reading a range of a partition in bulk: encoded records, as they are in the log, for readers that decode columns.

The next part is prefetched while the application processes the last. When a broker is lost, the scan continues at the
same offset with the leader of the partition at that time. Records that retention has deleted before they were read do
not go unnoticed: each part says where the log starts now.

A thread without an event loop receives what it scans itself, over a connection of its own: to have megabytes received
by another thread takes longer. When that connection or an answer fails, the scan goes on over the event loop, which
searches for brokers, retries, and raises what cannot be cured.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from goqueue.client import forks
from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.connections import Connections
from goqueue.client.damage import OnDamage, damaged, error_of, warn
from goqueue.client.session import decode
from goqueue.errors import BrokerUnavailable, CorruptRecord, GoQueueError
from goqueue.names import TopicPartition
from goqueue.wire import verbs
from goqueue.wire.reports import Gap
from goqueue.wire.verbs import Verb

SCAN_BYTES = 2 * 1024 * 1024


class ScannedPart(NamedTuple):
    """Encoded records, which may be none where a stretch of the log holds nothing to be seen."""

    records: memoryview
    record_count: int
    flags: int  # of the records, or-ed
    start_offset: int  # what was asked for
    next_offset: int
    log_start_offset: int
    gaps: tuple[Gap, ...] = ()  # damage in [start_offset, next_offset), before the first record


class Course:
    """Where a scan of [offset, end_offset) stands."""

    def __init__(self, asked: verbs.ReadRequest, on_damage: OnDamage = "warn") -> None:
        assert asked.end_offset is not None
        self._on_damage = on_damage
        self._asked = asked
        self._end = asked.end_offset
        self.offset = asked.offset

    def request(self) -> verbs.ReadRequest | None:
        """What to ask for next, if there is anything left."""
        return msgspec.structs.replace(self._asked, offset=self.offset) if self.offset < self._end else None

    def took(self, answer: verbs.ReadAnswer, records: memoryview) -> ScannedPart | None:
        """The answer to what was asked for; None if the broker has no more."""
        start, self.offset = self.offset, answer.next_offset
        if answer.next_offset <= start:
            self.offset = self._end
            return None
        if answer.gaps:
            self._report(answer)
        return ScannedPart(
            records,
            answer.record_count,
            answer.flags,
            start,
            answer.next_offset,
            answer.log_start_offset,
            answer.gaps,
        )

    def _report(self, answer: verbs.ReadAnswer) -> None:
        lost = damaged(TopicPartition(self._asked.topic, self._asked.partition), answer.gaps)
        if self._on_damage == "raise":
            self.offset = lost[0].next_offset  # a caller that continues anyway misses nothing else
            raise error_of(lost[0])
        if self._on_damage == "warn":
            warn(lost)


class AsyncScan:
    """The visible records of one partition in [start_offset, end_offset), part by part. Made by `AsyncClient.scan`."""

    def __init__(self, connections: Connections, asked: verbs.ReadRequest, on_damage: OnDamage = "warn") -> None:
        self._connections = connections
        self.course = Course(asked, on_damage)
        self._task: asyncio.Task[tuple[verbs.ReadAnswer, memoryview]] | None = None

    async def next_part(self) -> ScannedPart | None:
        """The next records; None at the end of the range, or of what is there to be seen."""
        task = self._task or self._prefetch()
        if task is None:
            return None
        self._task = None
        part = self.course.took(*await task)
        self._task = self._prefetch()
        return part

    async def __aiter__(self) -> AsyncIterator[ScannedPart]:
        try:
            while part := await self.next_part():
                yield part
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the requests that are in flight."""
        task, self._task = self._task, None
        if task is not None and not task.cancel() and not task.cancelled():
            task.exception()  # asyncio logs an exception that is never retrieved

    def blocking(self, run: Callable[[Coroutine[Any, Any, Any]], Any], pool: "ConnectionPool") -> "Scan":
        """The same, for threads without an event loop."""
        return Scan(self, run, pool)

    def _prefetch(self) -> asyncio.Task[tuple[verbs.ReadAnswer, memoryview]] | None:
        request = self.course.request()
        return None if request is None else asyncio.ensure_future(self._ask(request))

    async def _ask(self, request: verbs.ReadRequest) -> tuple[verbs.ReadAnswer, memoryview]:
        async def attempt() -> tuple[verbs.ReadAnswer, memoryview]:
            session = await self._connections.leader(request.topic, request.partition)
            return await session.ask_for_payload(Verb.READ, request, verbs.ReadAnswer)

        return await self._connections.retrying(attempt)


class ConnectionPool:
    """Connections for scans, each for one thread at a time, which outlive the scan."""

    def __init__(self, connections: Connections) -> None:
        self._like = connections
        self._fork = forks.generation
        self._lock = Lock()
        self._free: list[BlockingConnections] = []
        self._used: set[BlockingConnections] = set()
        self._is_closed = False

    def take(self) -> BlockingConnections | None:
        """Connections that no thread uses; None after `close` and in a forked child."""
        with self._lock:
            if self._is_closed or self._fork != forks.generation:
                return None
            connections = self._free.pop() if self._free else BlockingConnections(self._like)
            self._used.add(connections)
            return connections

    def give_back(self, connections: BlockingConnections, *, is_clean: bool) -> None:
        """The scan is over. Connections on which an answer is still to come are not used again."""
        with self._lock:
            self._used.discard(connections)
            is_kept = is_clean and not self._is_closed
            if is_kept:
                self._free.append(connections)
        if not is_kept:
            connections.hang_up()

    def close(self) -> None:
        """Hang up, also where a thread waits."""
        with self._lock:
            self._is_closed = True
            for connections in self._used:
                connections.interrupt()
            free, self._free = self._free, []
        for connections in free:
            connections.hang_up()


class DirectScan:
    """A scan by the thread that processes it."""

    def __init__(self, course: Course, connections: BlockingConnections) -> None:
        self._course = course
        self._connections = connections
        self._session: BlockingSession | None = None
        self._requested = 0  # the correlation of the request in flight

    @property
    def is_clean(self) -> bool:
        """Whether no answer is still to come."""
        return not self._requested

    def next_part(self) -> ScannedPart | None:
        """The next records; None at the end. After an error this scan is of no use."""
        if not self._requested:
            self._prefetch()
        if not self._requested:
            return None
        assert self._session is not None
        frame = self._session.receive_answer(Verb.READ, self._requested)
        self._requested = 0
        part = self._course.took(decode(frame.meta, verbs.ReadAnswer), frame.payload)
        if part is not None:
            with suppress(BrokerUnavailable):  # then the next call says so
                self._prefetch()
        return part

    def _prefetch(self) -> None:
        request = self._course.request()
        if request is None:
            return
        if self._session is None:
            found: Any = run_now(self._connections.leader(request.topic, request.partition))
            self._session = found
        assert self._session is not None
        self._requested = self._session.send_request(Verb.READ, request)


class Scan:
    """The visible records of one partition in [start_offset, end_offset), part by part. Made by `Client.scan`."""

    def __init__(self, scan: AsyncScan, run: Callable[[Coroutine[Any, Any, Any]], Any], pool: ConnectionPool) -> None:
        self._scan = scan
        self._run = run
        self._pool = pool
        self._connections = pool.take()
        self._direct = None if self._connections is None else DirectScan(scan.course, self._connections)

    def next_part(self) -> ScannedPart | None:
        """The next records; None at the end of the range, or of what is there to be seen."""
        if self._direct is not None:
            try:
                part = self._direct.next_part()
            except CorruptRecord:  # which no other connection cures
                self._hang_up()
                raise
            except GoQueueError as error:
                if self._connections is not None:
                    self._connections.forget_leader(error)
                self._hang_up()
            else:
                if part is None:
                    self._hang_up()
                return part
        found: ScannedPart | None = self._run(self._scan.next_part())
        return found

    def __iter__(self) -> Iterator[ScannedPart]:
        try:
            while part := self.next_part():
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the requests that are in flight."""
        self._hang_up()
        self._run(self._scan.close())

    def _hang_up(self) -> None:
        direct, connections = self._direct, self._connections
        self._direct = self._connections = None
        if direct is not None and connections is not None:
            self._pool.give_back(connections, is_clean=direct.is_clean)
