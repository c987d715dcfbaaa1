"""Reading and following: messages of a topic in the order of their offsets, partition by partition.

`AsyncMessages` yields them in batches, as they come from the broker, or one by one. A read ends where the topic ended
when it began, and prefetches the next part while the application processes the last. A follow never ends by itself: the
broker pushes as much as the reader has given credit for, and a lost connection is replaced by one that continues at
the same offset.

What cannot be read is skipped and reported (`goqueue.client.damage`). Damage that the broker reports with an answer
lies before the records of that answer; a value that cannot be decompressed is found here.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Self

from goqueue.client.connections import Connections
from goqueue.client.damage import Lost, OnDamage, damaged, error_of, undecodable, warn
from goqueue.client.received import Message, decode_received
from goqueue.client.session import Session, decode
from goqueue.errors import CorruptRecord, GoQueueError
from goqueue.names import TopicPartition
from goqueue.record.message import Undecodable
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.verbs import Verb

READ_BYTES = 1024 * 1024
PREFETCHED_READS = 3
"""How many partitions are read at once; each holds one answer."""
CREDIT_BYTES = 8 * 1024 * 1024
"""What may be on its way to one follower, all its partitions together."""
CREDIT_BYTES_MIN = 256 * 1024


class AsyncMessages(ABC):
    """Messages, in batches or one by one."""

    def __init__(self, limit: int | None, on_damage: OnDamage) -> None:
        self._left = limit
        self._on_damage = on_damage
        self._error_after: CorruptRecord | None = None  # raised once the messages before the damage were taken

    async def next_batch(self) -> list[Message]:
        """The next messages, as many as came together; none at the end."""
        if self._left == 0:
            await self.close()
            return []
        try:
            if self._error_after is not None:
                raise self._error_after
            batch = await self._next_batch()
        except CorruptRecord:  # what lies after the damage was read and dropped: this reader cannot go on
            await self.close()
            raise
        if self._left is not None:
            batch = batch[: self._left]
            self._left -= len(batch)
        return batch

    def _readable(
        self, origin: TopicPartition, answer: verbs.ReadAnswer, payload: memoryview, end_offset: int | None = None
    ) -> list[Message]:
        """The messages of an answer below `end_offset`; what of it cannot be read is reported."""
        lost = damaged(origin, answer.gaps, end_offset=end_offset) if answer.gaps else []
        found: list[Message] = []
        if answer.record_count:
            broken: list[Undecodable] = []
            found = decode_received(payload, origin, flags=answer.flags, undecodable=broken)
            if end_offset is not None and found and found[-1].offset >= end_offset:
                found = [message for message in found if message.offset < end_offset]
            if broken:
                lost += undecodable(origin, (one for one in broken if end_offset is None or one.offset < end_offset))
        return self._report(found, lost) if lost else found

    def _report(self, found: list[Message], lost: Sequence[Lost]) -> list[Message]:
        if self._on_damage == "raise":
            error, at = error_of(lost[0]), lost[0].first_offset
            found = [message for message in found if message.offset < at]
            if not found:
                raise error
            self._error_after = error
        elif self._on_damage == "warn":
            warn(lost)
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while batch := await self.next_batch():
                for message in batch:
                    yield message
        finally:
            await self.close()

    @abstractmethod
    async def _next_batch(self) -> list[Message]: ...

    @abstractmethod
    async def close(self) -> None:
        """Cancel the requests that are in flight."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _PartitionRead:
    """How far one partition was read."""

    __slots__ = ("end_offset", "is_over", "offset", "origin", "task")

    def __init__(self, origin: TopicPartition, offset: int) -> None:
        self.origin = origin
        self.offset = offset
        self.end_offset: int | None = None
        self.is_over = False
        self.task: asyncio.Task[tuple[verbs.ReadAnswer, memoryview]] | None = None


class TopicRead(AsyncMessages):
    """What is in a topic now."""

    def __init__(
        self,
        connections: Connections,
        topic: str,
        *,
        partition: int | None,
        offset: int,
        from_time_ns: int | None,
        to_time_ns: int | None,
        limit: int | None,
        isolation: str,
        on_damage: OnDamage = "warn",
    ) -> None:
        super().__init__(limit, on_damage)
        self._connections = connections
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._from_time_ns = from_time_ns
        self._to_time_ns = to_time_ns
        self._isolation = isolation
        self._reads: deque[_PartitionRead] | None = None

    async def close(self) -> None:
        """Cancel the requests that are in flight."""
        for read in self._reads or ():
            if read.task and not read.task.cancel() and not read.task.cancelled():
                read.task.exception()  # asyncio logs an exception that is never retrieved
        self._reads = deque()

    async def _next_batch(self) -> list[Message]:
        if self._reads is None:
            self._reads = deque(await self._plan())
        while self._reads:
            self._prefetch(self._reads)
            read = self._reads[0]
            assert read.task is not None
            try:
                answer, payload = await read.task
            finally:
                read.task = None
            if not self._reads:  # closed meanwhile
                break
            self._advance(read, answer)
            self._reads.popleft()
            if not read.is_over:
                self._reads.append(read)
            self._prefetch(self._reads)
            found = self._readable(read.origin, answer, payload, read.end_offset)
            if found:
                return found
        return []

    def _prefetch(self, reads: Iterable[_PartitionRead]) -> None:
        for read in islice(reads, PREFETCHED_READS):
            if read.task is None:
                read.task = asyncio.ensure_future(self._ask(read))

    async def _plan(self) -> list[_PartitionRead]:
        metadata = await self._connections.retrying(lambda: self._connections.topic(self._topic))
        wanted: Sequence[int] = range(len(metadata.leaders)) if self._partition is None else [self._partition]
        reads = [_PartitionRead(TopicPartition(self._topic, number), self._offset) for number in wanted]
        if len(reads) > PREFETCHED_READS:  # a partition that is read later has to end where the topic ended now
            ends = await _offsets(self._connections, verbs.OffsetsRequest(self._topic, None, "latest"))
            for read, end in zip(reads, ends, strict=False):
                read.end_offset = end
        return reads

    def _advance(self, read: _PartitionRead, answer: verbs.ReadAnswer) -> None:
        if read.end_offset is None:
            is_committed = self._isolation == "read_committed"
            read.end_offset = answer.last_stable_offset if is_committed else answer.high_watermark
        moved = answer.next_offset > read.offset
        read.offset = answer.next_offset
        at_end = read.offset >= read.end_offset or (not answer.record_count and not moved)
        read.is_over = at_end or answer.end_of_range

    async def _ask(self, read: _PartitionRead) -> tuple[verbs.ReadAnswer, memoryview]:
        asked = verbs.ReadRequest(
            read.origin.topic,
            read.origin.partition,
            offset=read.offset,
            max_bytes=READ_BYTES,
            max_records=2**31 - 1 if self._left is None else max(1, self._left),
            from_time_ns=self._from_time_ns if read.offset == self._offset else None,
            to_time_ns=self._to_time_ns,
            isolation=self._isolation,
        )

        async def attempt() -> tuple[verbs.ReadAnswer, memoryview]:
            session = await self._connections.leader(*read.origin)
            return await session.ask_for_payload(Verb.READ, asked, verbs.ReadAnswer)

        return await self._connections.retrying(attempt)


class _Following:
    """One subscription to one partition, over as many sessions as it takes."""

    def __init__(self, follow: "TopicFollow", origin: TopicPartition, offset: int, credit: int) -> None:
        self._follow = follow
        self.origin = origin
        self.offset = offset
        self._credit = credit
        self.session: Session | None = None
        self.correlation = 0
        self._held = 0  # bytes that have arrived and were not taken yet
        self._taken = 0  # bytes that were taken and not credited to the broker yet
        self._attempt = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Subscribe, now or as soon as that can be done."""
        self._task = asyncio.ensure_future(self._subscribe())

    def stop(self) -> None:
        """Unsubscribe."""
        if self._task:
            self._task.cancel()
        session, self.session = self.session, None
        if session and not session.is_closed:
            session.forget(self.correlation)
            session.send(Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(self.correlation), None, None)

    def taken(self, size: int) -> None:
        """The reader has taken so many bytes: the broker may send as many more."""
        self._held -= size
        self._taken += size
        if self._taken * 2 >= self._credit and self.session and not self.session.is_closed:
            self.session.send(Verb.CREDIT, verbs.CreditRequest(self.correlation, self._taken), None, None)
            self._taken = 0

    async def _subscribe(self) -> None:
        while True:
            if self._attempt:  # nothing has come since the last attempt
                await asyncio.sleep(self._follow.connections.retry_policy.wait_s(self._attempt))
            self._attempt += 1
            try:
                session = await self._follow.connections.leader(*self.origin)
                asked = verbs.SubscribeRequest(
                    self.origin.topic,
                    self.origin.partition,
                    self.offset,
                    max(0, self._credit - self._held),
                    max_bytes=min(READ_BYTES, self._credit),
                    isolation=self._follow.isolation,
                )
                self._taken = 0
                self.session = session
                self.correlation = session.send(Verb.SUBSCRIBE, asked, None, self._pushed)
                return
            except GoQueueError as error:
                if not error.retryable:
                    self._follow.fail(error)
                    return

    def _pushed(self, frame: Frame | None, error: GoQueueError | None) -> None:
        if frame is not None:
            self._attempt = 0
            answer = decode(frame.meta, verbs.ReadAnswer)
            self.offset = answer.next_offset
            self._held += len(frame.payload)
            self._follow.take(self, answer, frame.payload)
            return
        self.session = None
        if error is not None and not error.retryable:
            self._follow.fail(error)
            return
        if error is not None:
            self._follow.connections.forget_leader(error)
        self.start()


class TopicFollow(AsyncMessages):
    """What is published from a point in time on, until the reader is closed."""

    def __init__(
        self,
        connections: Connections,
        topic: str,
        *,
        partition: int | None,
        offset: int | None,
        start: str,
        from_time_ns: int | None,
        limit: int | None,
        isolation: str,
        on_damage: OnDamage = "warn",
    ) -> None:
        super().__init__(limit, on_damage)
        self.connections = connections
        self.isolation = isolation
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._start = start
        self._from_time_ns = from_time_ns
        self._followings: list[_Following] | None = None
        self._arrived: deque[tuple[_Following, verbs.ReadAnswer, memoryview]] = deque()
        self._news = asyncio.Event()
        self._is_closed = False
        self._error: GoQueueError | None = None

    def take(self, following: _Following, answer: verbs.ReadAnswer, payload: memoryview) -> None:
        """The broker has pushed records, or reported damage."""
        if answer.record_count or answer.gaps:
            self._arrived.append((following, answer, payload))
            self._news.set()

    def fail(self, error: GoQueueError) -> None:
        """The subscription has failed for good."""
        self._error = error
        self._news.set()

    async def start(self) -> None:
        """Subscribe from the chosen places on; what is published after this returns will be seen."""
        if self._followings is None and not self._is_closed:
            self._subscribe(await self._plan())

    def _subscribe(self, plan: Iterable[tuple[int, int, int]]) -> None:
        if self._followings is None and not self._is_closed:  # still
            self._followings = [
                _Following(self, TopicPartition(self._topic, number), offset, credit) for number, offset, credit in plan
            ]
            for following in self._followings:
                following.start()

    async def close(self) -> None:
        """Unsubscribe."""
        self._is_closed = True
        for following in self._followings or ():
            following.stop()
        self._followings = []
        self._arrived.clear()
        self._news.set()

    async def _next_batch(self) -> list[Message]:
        await self.start()
        while True:
            while not self._arrived:
                if self._is_closed:
                    return []
                if self._error:
                    raise self._error
                self._news.clear()
                await self._news.wait()
            following, answer, payload = self._arrived.popleft()
            following.taken(len(payload))
            found = self._readable(following.origin, answer, payload)
            if found:
                return found

    async def _plan(self) -> list[tuple[int, int, int]]:
        asked = verbs.OffsetsRequest(self._topic, self._from_time_ns, self._start)
        offsets = await _offsets(self.connections, asked)
        wanted = range(len(offsets)) if self._partition is None else [self._partition]
        credit = max(CREDIT_BYTES_MIN, CREDIT_BYTES // max(1, len(wanted)))
        if self._offset is not None:
            return [(number, self._offset, credit) for number in wanted]
        return [(number, offsets[number] if number < len(offsets) else 0, credit) for number in wanted]


async def _offsets(connections: Connections, asked: verbs.OffsetsRequest) -> list[int]:
    """By partition, where the topic begins, ends, or was at a time."""

    async def attempt() -> list[int]:
        session = await connections.any()
        return (await session.ask(Verb.OFFSETS, asked, verbs.OffsetsAnswer)).offsets

    return await connections.retrying(attempt)
