"""Reading by offset and by time, without a group and without side effects.

One partition is read in the order of its offsets. A read of all partitions gives each an equal share of the limits, and
distributes unused shares in further rounds. The partition that is read first rotates from request to request, so that a
busy partition does not starve the others. The messages are sorted by time, which preserves the order of the offsets of
each partition.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from goqueue.clock import MS
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.shapes import Client, one_of, parse_offsets, parse_partition, parse_time_query, wait_ms
from goqueue.doors.http.stored_messages import Encoding, ShownGap, ShownMessage, Values, shown
from goqueue.errors import PartitionNotFound
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.service.messages import READ_BYTES, READ_BYTES_MAX, Isolation, ReadResult
from goqueue.service.pending import Pending

UNSET = msgspec.UNSET
Offset = Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX, description="the first offset to read")]
Offsets = Annotated[str | None, QueryParameter(description="first offsets, as partition:offset pairs: 0:42,1:17")]
Limit = Annotated[int, QueryParameter(ge=1, description="maximum number of messages")]
MaxBytes = Annotated[int, QueryParameter(ge=1, description="maximum size in bytes; at least one message is returned")]
FromTime = Annotated[str | None, QueryParameter(description="only records stamped at or after this time")]
ToTime = Annotated[str | None, QueryParameter(description="only records stamped before this time")]
Wait = Annotated[str | None, QueryParameter(description="how long to wait for a record, such as 20s")]


class PartitionPage(msgspec.Struct, kw_only=True):
    """Messages of one partition, and the offset of the next page."""

    messages: list[ShownMessage]
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    first_pending_offset: int | msgspec.UnsetType = UNSET
    end_of_range: bool | msgspec.UnsetType = UNSET
    gaps: list[ShownGap] | msgspec.UnsetType = UNSET  # damaged records that were skipped


class TopicPage(msgspec.Struct, kw_only=True):
    """Messages of all partitions, and the offsets of the next page."""

    messages: list[ShownMessage]
    next_offset: dict[str, int]
    high_watermark: dict[str, int]
    last_stable_offset: dict[str, int]
    log_start_offset: dict[str, int]
    first_pending_offset: dict[str, int] | msgspec.UnsetType = UNSET
    end_of_range: bool | msgspec.UnsetType = UNSET
    gaps: list[ShownGap] | msgspec.UnsetType = UNSET  # damaged records that were skipped


class Asked(NamedTuple):
    """The parameters of a read, except for its offsets."""

    limit: int
    max_bytes: int
    from_time_ns: int | None
    to_time_ns: int | None
    isolation: Isolation
    encoding: Encoding
    values: Values


class Page(NamedTuple):
    """The result of reading one partition, with its messages as JSON shapes."""

    messages: list[ShownMessage]
    result: ReadResult
    bytes: int


@get("/topics/{topic:str}/partitions/{partition:str}/messages", tags=["messages"], summary="Read one partition")
async def read_partition(
    context: Shared,
    request: Client,
    topic: FromPath[str],
    partition: FromPath[str],
    offset: Offset = 0,
    from_time: FromTime = None,
    to_time: ToTime = None,
    limit: Limit = 100,
    max_bytes: MaxBytes = READ_BYTES,
    wait: Wait = None,
    timeout: Wait = None,
    isolation: FromQuery[Isolation] = Isolation.READ_COMMITTED,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> PartitionPage:
    """Visible messages in the order of their offsets. `next_offset` is the `offset` of the next request."""
    asked = _asked(context, limit, max_bytes, from_time, to_time, isolation, encoding, values)
    hold_ms = _hold_ms(context, request, wait, timeout)
    number = parse_partition(partition)

    def read(wait_ms: int) -> Pending[ReadResult]:
        return context.service.messages.read(
            topic,
            number,
            offset=offset,
            max_records=asked.limit,
            max_bytes=asked.max_bytes,
            wait_ms=wait_ms,
            from_time_ns=asked.from_time_ns,
            to_time_ns=asked.to_time_ns,
            isolation=asked.isolation,
        )

    page = _page(await context.held(read, hold_ms, request), TopicPartition(topic, number), asked)
    result = page.result
    return PartitionPage(
        messages=page.messages,
        next_offset=result.next_offset,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        first_pending_offset=UNSET if result.first_pending_offset is None else result.first_pending_offset,
        end_of_range=result.end_of_range or UNSET,
        gaps=shown_gaps(number, result) or UNSET,
    )


@get("/topics/{topic:str}/messages", tags=["messages"], summary="Read all partitions")
async def read_topic(
    context: Shared,
    request: Client,
    topic: FromPath[str],
    offsets: Offsets = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    limit: Limit = 100,
    max_bytes: MaxBytes = READ_BYTES,
    wait: Wait = None,
    timeout: Wait = None,
    isolation: FromQuery[Isolation] = Isolation.READ_COMMITTED,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> TopicPage:
    """Visible messages of all partitions, ordered by time. `next_offset` has the offsets of the next request."""
    asked = _asked(context, limit, max_bytes, from_time, to_time, isolation, encoding, values)
    hold_ms = _hold_ms(context, request, wait, timeout)
    reading = await _topic_reading(context, topic, parse_offsets(offsets or "", "offsets"), asked)
    await reading.read()
    if hold_ms:
        await reading.wait(hold_ms, request)
    return await reading.page()


async def _topic_reading(context: RequestContext, topic: str, offsets: dict[int, int], asked: Asked) -> "_TopicReading":
    """A read from the given offsets or time on."""
    topics = context.service.topics
    partitions = (await context.answered(topics.describe(topic))).partitions
    for partition in offsets:
        if partition >= len(partitions):
            raise PartitionNotFound(topic, partition)
    starts: Sequence[int] = [0] * len(partitions)
    if asked.from_time_ns is not None:
        starts = await context.answered(topics.offsets(topic, time_ns=asked.from_time_ns))
    positions = {
        info.partition: max(starts[info.partition], offsets.get(info.partition, 0), info.start_offset)
        for info in partitions
    }
    return _TopicReading(context, topic, positions, asked)


class _TopicReading:
    """One read of all partitions of a topic."""

    def __init__(self, context: RequestContext, topic: str, positions: dict[int, int], asked: Asked) -> None:
        self._context = context
        self._service = context.service
        self._topic = topic
        self._asked = asked
        self._positions = positions
        self._results: dict[int, ReadResult] = {}
        self._pending: dict[int, int] = {}
        self._messages: list[ShownMessage] = []
        self._gaps: list[ShownGap] = []

    async def read(self) -> None:
        """Read stored messages, in rounds of equal shares of the remaining limits."""
        left, left_bytes = self._asked.limit, self._asked.max_bytes
        numbers = list(self._positions)
        first = self._context.door.turn % len(numbers)
        self._context.door.turn += 1
        hungry = numbers[first:] + numbers[:first]
        while hungry and left > 0 and left_bytes > 0:
            share, share_bytes = max(1, left // len(hungry)), max(1, left_bytes // len(hungry))
            still_hungry = []
            for number in hungry:
                if left <= 0 or left_bytes <= 0:
                    break
                page = await self._read_one(number, min(share, left), min(share_bytes, left_bytes))
                left -= len(page.messages)
                left_bytes -= page.bytes
                if page.messages and page.result.next_offset < self._end(page.result):
                    still_hungry.append(number)
            hungry = still_hungry

    async def wait(self, hold_ms: int, client: Client) -> None:
        """Wait and read again, until there are messages, the time is over or the door closes."""
        clock, asked = self._context.clock, self._asked
        if asked.to_time_ns is not None:
            hold_ms = min(hold_ms, (asked.to_time_ns - clock.wall_ns()) // MS)
        deadline_ns = clock.monotonic_ns() + hold_ms * MS

        def ask(wait_ms: int) -> Pending[None]:
            return self._service.messages.wait(self._topic, self._positions, wait_ms=wait_ms, isolation=asked.isolation)

        while not self._messages and not self._gaps and not self._context.door.closing.done():
            left_ms = (deadline_ns - clock.monotonic_ns()) // MS
            if left_ms <= 0:
                return
            before = dict(self._positions)
            await self._context.held(ask, left_ms, client)
            await self.read()
            # Unchanged positions mean that the wait timed out. Positions that moved without messages are records that
            # are not visible, such as those of aborted transactions: keep waiting.
            if self._positions == before:
                return

    async def page(self) -> TopicPage:
        """The answer."""
        self._messages.sort(key=lambda message: (message.timestamp, message.partition, message.offset))
        results = self._results.values()
        partitions = (await self._context.answered(self._service.topics.describe(self._topic))).partitions
        return TopicPage(
            messages=self._messages,
            next_offset=self._named(self._positions),
            high_watermark=self._named({info.partition: info.high_watermark for info in partitions}),
            last_stable_offset=self._named({info.partition: info.last_stable_offset for info in partitions}),
            log_start_offset=self._named({info.partition: info.start_offset for info in partitions}),
            first_pending_offset=self._named(self._pending) or UNSET,
            end_of_range=(len(results) == len(self._positions) and all(one.end_of_range for one in results)) or UNSET,
            gaps=self._gaps or UNSET,
        )

    def _end(self, result: ReadResult) -> int:
        """The first offset that is not visible at the isolation level."""
        is_committed = self._asked.isolation is Isolation.READ_COMMITTED
        return result.last_stable_offset if is_committed else result.high_watermark

    async def _read_one(self, number: int, limit: int, max_bytes: int) -> Page:
        asked = self._asked
        pending = self._service.messages.read(
            self._topic,
            number,
            offset=self._positions[number],
            max_records=limit,
            max_bytes=max_bytes,
            from_time_ns=asked.from_time_ns,
            to_time_ns=asked.to_time_ns,
            isolation=asked.isolation,
        )
        result = await self._context.answered(pending, "read")
        page = _page(result, TopicPartition(self._topic, number), asked._replace(max_bytes=max_bytes))
        self._messages += page.messages
        self._gaps += shown_gaps(number, page.result)
        self._results[number] = page.result
        self._positions[number] = page.result.next_offset
        if page.result.first_pending_offset is not None:
            self._pending.setdefault(number, page.result.first_pending_offset)
        return page

    def _named(self, by_partition: dict[int, int]) -> dict[str, int]:
        return {f"{self._topic}-{partition}": value for partition, value in by_partition.items()}


def shown_gaps(partition: int, result: ReadResult) -> list[ShownGap]:
    """The damaged records that a read has skipped."""
    return [ShownGap(partition, gap.first_offset, gap.next_offset, gap.reason) for gap in result.gaps]


def _hold_ms(context: RequestContext, request: Client, wait: str | None, timeout: str | None) -> int:
    asked = one_of(wait, timeout, "wait and timeout")
    name = "wait" if timeout is None else "timeout"
    return wait_ms(asked, request.headers.get("prefer"), context.config, name=name)


def _asked(
    context: RequestContext,
    limit: int,
    max_bytes: int,
    from_time: str | None,
    to_time: str | None,
    isolation: Isolation,
    encoding: Encoding,
    values: Values,
) -> Asked:
    now_ns = context.clock.wall_ns()
    return Asked(
        min(limit, context.config.read_limit_max),
        min(max_bytes, READ_BYTES_MAX),
        None if from_time is None else parse_time_query(from_time, "from_time", now_ns=now_ns),
        None if to_time is None else parse_time_query(to_time, "to_time", now_ns=now_ns),
        isolation,
        encoding,
        values,
    )


def _page(result: ReadResult, origin: TopicPartition, asked: Asked) -> Page:
    """The messages of the result, cut where decompressed values exceed `max_bytes`."""
    messages: list[ShownMessage] = []
    total = 0
    for message, view, size in shown(result.records, origin, asked.encoding, asked.values):
        total += size
        if messages and total > asked.max_bytes:
            pending = result.first_pending_offset
            result = result._replace(
                next_offset=message.offset,
                first_pending_offset=pending if pending is not None and pending < message.offset else None,
                end_of_range=False,
            )
            break
        messages.append(view)
    return Page(messages, result, max(total, len(result.records)))
