"""Reading and following: messages of a topic in the order of their offsets, partition by partition.

`AsyncMessages` gives them out in batches, as they come from the broker, or one by one. A read ends where the topic
ended when it began; the next part is asked for while the last one is being worked on. A follow never ends: the broker
pushes, as far as the reader has given credit, and after a broken connection it goes on where it stood.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Self

from goqueue.client.connections import Connections, retry_wait_ns
from goqueue.client.session import Session, decode
from goqueue.clock import SECOND
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.record.message import Message, decode_messages
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.verbs import Verb

READ_BYTES = 1024 * 1024
READS_AHEAD = 3
"""Partitions that are asked at once; each holds one answer."""
CREDIT_BYTES = 8 * 1024 * 1024
"""What may be on its way to one follower, all its partitions together."""
CREDIT_BYTES_MIN = 256 * 1024
WAIT_MS = 20_000


class AsyncMessages(ABC):
    """Messages, in batches or one by one."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    async def next_batch(self) -> list[Message]:
        """The next messages, as many as came together; none at the end."""
        if self._left == 0:
            await self.close()
            return []
        batch = await self._next_batch()
        if self._left is not None:
            batch = batch[: self._left]
            self._left -= len(batch)
        return batch

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
        """Let go of what is on its way."""

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


class Read(AsyncMessages):
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
    ) -> None:
        super().__init__(limit)
        self._connections = connections
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._from_time_ns = from_time_ns
        self._to_time_ns = to_time_ns
        self._isolation = isolation
        self._reads: deque[_PartitionRead] | None = None

    async def close(self) -> None:
        """Let go of what is on its way."""
        for read in self._reads or ():
            if read.task:
                read.task.cancel()
        self._reads = deque()

    async def _next_batch(self) -> list[Message]:
        if self._reads is None:
            self._reads = deque(await self._plan())
        while self._reads:
            for read in list(self._reads)[:READS_AHEAD]:
                if read.task is None:
                    read.task = asyncio.ensure_future(self._ask(read))
            read = self._reads.popleft()
            assert read.task is not None
            answer, payload = await read.task
            self._advance(read, answer)
            if not read.is_over:
                self._reads.append(read)
            if answer.record_count:
                found = decode_messages(payload, read.origin, flags=answer.flags)
                end = read.end_offset
                if found and end is not None and found[-1].offset >= end:
                    found = [message for message in found if message.offset < end]
                if found:
                    return found
        return []

    async def _plan(self) -> list[_PartitionRead]:
        metadata = await self._connections.retrying(lambda: self._connections.topic(self._topic))
        wanted: Sequence[int] = range(len(metadata.leaders)) if self._partition is None else [self._partition]
        return [_PartitionRead(TopicPartition(self._topic, number), self._offset) for number in wanted]

    def _advance(self, read: _PartitionRead, answer: verbs.ReadAnswer) -> None:
        if read.end_offset is None:
            read.end_offset = answer.last_stable_offset
        moved = answer.next_offset > read.offset
        read.offset = answer.next_offset
        at_end = read.offset >= read.end_offset or (not answer.record_count and not moved)
        read.is_over = at_end or answer.end_of_range
        read.task = None if read.is_over else asyncio.ensure_future(self._ask(read))

    async def _ask(self, read: _PartitionRead) -> tuple[verbs.ReadAnswer, memoryview]:
        asked = verbs.Read(
            read.origin.topic,
            read.origin.partition,
            offset=read.offset,
            max_bytes=READ_BYTES,
            max_records=2**31 - 1 if self._left is None else max(1, self._left),
            from_time_ns=self._from_time_ns if read.end_offset is None else None,
            to_time_ns=self._to_time_ns,
            isolation=self._isolation,
        )

        async def attempt() -> tuple[verbs.ReadAnswer, memoryview]:
            session = await self._connections.leader(*read.origin)
            return await session.ask_for_payload(Verb.READ, asked, verbs.ReadAnswer)

        return await self._connections.retrying(attempt)


class _Following:
    """One subscription to one partition, over as many sessions as it takes."""

    def __init__(self, follow: "Follow", origin: TopicPartition, offset: int, credit: int) -> None:
        self._follow = follow
        self.origin = origin
        self.offset = offset
        self._credit = credit
        self.session: Session | None = None
        self.correlation = 0
        self._attempt = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Subscribe, now or as soon as that can be done."""
        self._task = asyncio.ensure_future(self._subscribe())

    def stop(self) -> None:
        """Want no more."""
        if self._task:
            self._task.cancel()
        session, self.session = self.session, None
        if session and not session.is_closed:
            session.forget(self.correlation)
            session.send(Verb.UNSUBSCRIBE, verbs.Unsubscribe(self.correlation), None, None)

    def taken(self, size: int) -> None:
        """So many bytes were worked off: the broker may send as many more."""
        if self.session and not self.session.is_closed:
            self.session.send(Verb.CREDIT, verbs.Credit(self.correlation, size), None, None)

    async def _subscribe(self) -> None:
        while True:
            try:
                session = await self._follow.connections.leader(*self.origin)
                asked = verbs.Subscribe(
                    self.origin.topic,
                    self.origin.partition,
                    self.offset,
                    self._credit,
                    max_bytes=min(READ_BYTES, self._credit),
                    isolation=self._follow.isolation,
                )
                self.session = session
                self.correlation = session.send(Verb.SUBSCRIBE, asked, None, self._pushed)
                return
            except GoQueueError as error:
                if not error.retryable:
                    self._follow.fail(error)
                    return
            self._attempt += 1
            await asyncio.sleep(retry_wait_ns(self._attempt) / SECOND)

    def _pushed(self, frame: Frame | None, error: GoQueueError | None) -> None:
        if frame is not None:
            self._attempt = 0
            answer = decode(frame.meta, verbs.ReadAnswer)
            self.offset = answer.next_offset
            self._follow.take(self, answer, frame.payload)
            return
        self.session = None
        if error is not None and not error.retryable:
            self._follow.fail(error)
        else:
            self.start()


class Follow(AsyncMessages):
    """What comes, for as long as somebody wants it."""

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
    ) -> None:
        super().__init__(limit)
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
        self._error: GoQueueError | None = None

    def take(self, following: _Following, answer: verbs.ReadAnswer, payload: memoryview) -> None:
        """Records have come."""
        if answer.record_count:
            self._arrived.append((following, answer, payload))
            self._news.set()

    def fail(self, error: GoQueueError) -> None:
        """There is no more to come."""
        self._error = error
        self._news.set()

    async def start(self) -> None:
        """Subscribe from the chosen places on; what is published after this returns will be seen."""
        if self._followings is None:
            self._followings = [
                _Following(self, TopicPartition(self._topic, number), offset, credit)
                for number, offset, credit in await self._plan()
            ]
            for following in self._followings:
                following.start()

    async def close(self) -> None:
        """Want no more."""
        for following in self._followings or ():
            following.stop()
        self._followings = []

    async def _next_batch(self) -> list[Message]:
        await self.start()
        while not self._arrived:
            if self._error:
                raise self._error
            self._news.clear()
            await self._news.wait()
        following, answer, payload = self._arrived.popleft()
        following.taken(len(payload))
        return decode_messages(payload, following.origin, flags=answer.flags)

    async def _plan(self) -> list[tuple[int, int, int]]:
        async def ask() -> list[int]:
            session = await self.connections.any()
            asked = verbs.Offsets(self._topic, self._from_time_ns, self._start)
            return (await session.ask(Verb.OFFSETS, asked, verbs.OffsetsAnswer)).offsets

        offsets = await self.connections.retrying(ask)
        wanted = range(len(offsets)) if self._partition is None else [self._partition]
        credit = max(CREDIT_BYTES_MIN, CREDIT_BYTES // max(1, len(wanted)))
        if self._offset is not None:
            return [(number, self._offset, credit) for number in wanted]
        return [(number, offsets[number] if number < len(offsets) else 0, credit) for number in wanted]
