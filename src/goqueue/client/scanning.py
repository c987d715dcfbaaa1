"""Reading a range of a partition in bulk: encoded records, as they stand in the log, for those who decode by columns.

The next part is asked for while the last one is being worked on. A broker that goes away is asked again where the scan
stood, whoever leads the partition by then. What retention took before it was read is not passed over in silence: each
part says where the log begins now.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import msgspec

from goqueue.client.connections import Connections
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb

SCAN_BYTES = 4 * 1024 * 1024


class ScannedPart(NamedTuple):
    """Encoded records, which may be none where a stretch of the log holds nothing to be seen."""

    records: memoryview
    record_count: int
    flags: int  # of the records, or-ed
    start_offset: int  # what was asked for
    next_offset: int
    log_start_offset: int


class AsyncScan:
    """The visible records of one partition in [start_offset, end_offset), part by part. Made by `AsyncClient.scan`."""

    def __init__(self, connections: Connections, asked: verbs.Read) -> None:
        self._connections = connections
        self._asked = asked
        self._offset = asked.offset
        self._task: asyncio.Task[ScannedPart] | None = None

    async def next_part(self) -> ScannedPart | None:
        """The next records; None at the end of the range, or of what is there to be seen."""
        assert self._asked.end_offset is not None
        if self._task is None:
            if self._offset >= self._asked.end_offset:
                return None
            self._task = asyncio.ensure_future(self._ask(self._offset))
        task, self._task = self._task, None
        part = await task
        is_over = part.next_offset <= part.start_offset  # the broker has no more
        self._offset = self._asked.end_offset if is_over else part.next_offset
        if self._offset < self._asked.end_offset:
            self._task = asyncio.ensure_future(self._ask(self._offset))
        return None if is_over else part

    async def __aiter__(self) -> AsyncIterator[ScannedPart]:
        try:
            while part := await self.next_part():
                yield part
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of what is on its way."""
        task, self._task = self._task, None
        if task is not None and not task.cancel() and not task.cancelled():
            task.exception()  # or asyncio complains that nobody asked

    def blocking(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "Scan":
        """The same, for those without an event loop."""
        return Scan(self, run)

    async def _ask(self, offset: int) -> ScannedPart:
        asked = self._asked

        async def attempt() -> ScannedPart:
            session = await self._connections.leader(asked.topic, asked.partition)
            wanted = msgspec.structs.replace(asked, offset=offset)
            answer, records = await session.ask_for_payload(Verb.READ, wanted, verbs.ReadAnswer)
            return ScannedPart(
                records, answer.record_count, answer.flags, offset, answer.next_offset, answer.log_start_offset
            )

        return await self._connections.retrying(attempt)


class Scan:
    """The visible records of one partition in [start_offset, end_offset), part by part. Made by `Client.scan`."""

    def __init__(self, scan: AsyncScan, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._scan = scan
        self._run = run

    def next_part(self) -> ScannedPart | None:
        """The next records; None at the end of the range, or of what is there to be seen."""
        part: ScannedPart | None = self._run(self._scan.next_part())
        return part

    def __iter__(self) -> Iterator[ScannedPart]:
        try:
            while part := self.next_part():
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Let go of what is on its way."""
        self._run(self._scan.close())
