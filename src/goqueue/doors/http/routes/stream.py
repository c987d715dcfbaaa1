"""Following a topic as server-sent events.

    id: 0:43,1:17          the position after this message in every partition; sent back as Last-Event-ID to resume
    event: message
    data: {"topic": ...}

A stream stops reading while its client does not receive: it never skips messages. A comment is sent when the stream
is idle. The event `gaps` names records that are damaged on disk and were skipped. The stream ends with the event `end`
when its limit or its time is reached, and with `error` otherwise. When the client disconnects, its subscriptions are
closed at once.
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated

import msgspec
from litestar import get
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from goqueue.doors.http.context import RequestContext, Shared, note_wait
from goqueue.doors.http.large_values import LARGE_BYTES, Encoded
from goqueue.doors.http.refusals import body_of, understood
from goqueue.doors.http.routes.read import FromTime, Offsets, ToTime, shown_gaps
from goqueue.doors.http.shapes import format_offsets, parse_offsets, parse_partitions, parse_time_query
from goqueue.doors.http.stored_messages import Encoding, ShownGap, Values, shown
from goqueue.doors.http.waiting import leaving
from goqueue.errors import BrokerUnavailable, PartitionNotFound
from goqueue.names import TopicPartition
from goqueue.record.header import TIMESTAMP_MIN
from goqueue.service.messages import READ_RECORDS_MAX, Isolation, ReadResult, Subscription

EVENT_STREAM = "text/event-stream"
END_OF_EVENT = b"\n\n"
_COMMENT = b": still here\n\n"
_HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not buffer
]
_encode = msgspec.json.Encoder().encode


class Start(StrEnum):
    """Where a stream starts if there is neither an offset nor a time."""

    LATEST = "latest"
    EARLIEST = "earliest"


class StreamEvent(msgspec.Struct, kw_only=True):
    """One event: `message`, `gaps`, `error` or `end`, with JSON as its data."""

    id: str | msgspec.UnsetType = msgspec.UNSET
    event: str
    data: str


class PassedOver(msgspec.Struct):
    """Damaged records that the stream has skipped."""

    gaps: list[ShownGap]


class Ended(msgspec.Struct):
    """Why the stream has ended."""

    reason: str


@get(
    "/topics/{topic:str}/stream",
    tags=["messages"],
    summary="Follow a topic",
    media_type=EVENT_STREAM,
    responses={200: ResponseSpec(StreamEvent, media_type=EVENT_STREAM, description="Events", generate_examples=False)},
)
async def follow(
    context: Shared,
    topic: FromPath[str],
    partitions: Annotated[str | None, QueryParameter(description="which to follow, such as 0,2 (all)")] = None,
    offsets: Offsets = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    isolation: FromQuery[Isolation] = Isolation.READ_COMMITTED,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
    start: Annotated[Start, QueryParameter(description="where to start without offset and time")] = Start.LATEST,
    limit: Annotated[int | None, QueryParameter(ge=1, description="end after this many messages")] = None,
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID", description="where to resume")] = None,
) -> ASGIResponse:
    """Send messages as they are published, until `to_time` or `limit` is reached."""
    if context.door.streams_open >= context.config.streams_max:
        raise BrokerUnavailable(f"the limit of {context.config.streams_max} streams is reached")
    now_ns = context.clock.wall_ns()
    service = context.service
    count = len((await context.answered(service.topics.describe(topic))).partitions)
    numbers = list(range(count)) if partitions is None else parse_partitions(partitions)
    given = {**parse_offsets(offsets or "", "offsets"), **parse_offsets(last_event_id or "", "Last-Event-ID")}
    for number in (*numbers, *given):
        if number >= count:
            raise PartitionNotFound(topic, number)
    from_time_ns = None if from_time is None else parse_time_query(from_time, "from_time", now_ns=now_ns)
    if from_time_ns is None:
        starts = await context.answered(service.topics.offsets(topic, at=start))
    else:
        starts = await context.answered(service.topics.offsets(topic, time_ns=from_time_ns))
        given = {number: max(offset, starts[number]) for number, offset in given.items()}
    return EventStream(
        context,
        topic,
        {number: given.get(number, starts[number]) for number in numbers},
        from_time_ns=from_time_ns,
        to_time_ns=None if to_time is None else parse_time_query(to_time, "to_time", now_ns=now_ns),
        isolation=isolation,
        encoding=encoding,
        values=values,
        limit=limit,
    )


class EventStream(ASGIResponse):
    """One stream. It subscribes before the head of the answer is sent, so that an error there has its own status."""

    def __init__(
        self,
        context: RequestContext,
        topic: str,
        positions: dict[int, int],
        *,
        from_time_ns: int | None,
        to_time_ns: int | None,
        isolation: Isolation,
        encoding: Encoding,
        values: Values,
        limit: int | None,
    ) -> None:
        super().__init__(media_type=EVENT_STREAM)
        self._context = context
        self._topic = topic
        self._positions = positions
        self._from_time_ns = TIMESTAMP_MIN if from_time_ns is None else from_time_ns
        self._to_time_ns = to_time_ns
        self._isolation = isolation
        self._encoding = encoding
        self._values = values
        self._limit = limit
        self._subscriptions: dict[int, Subscription] = {}
        self._ended: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        context.door.streams_open += 1
        try:
            for number, offset in self._positions.items():
                self._subscriptions[number] = await context.answered(
                    context.service.messages.subscribe(
                        self._topic, number, offset=offset, to_time_ns=self._to_time_ns, isolation=self._isolation
                    )
                )
            began_ns = context.clock.monotonic_ns()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async with leaving(receive, context.door.closing) as left:
                last = await self._run(send, left, scope)
            note_wait(scope, context.clock.monotonic_ns() - began_ns)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            context.door.streams_open -= 1
            for subscription in self._subscriptions.values():
                subscription.close()

    async def _run(self, send: Send, left: "asyncio.Future[None]", scope: Scope) -> bytes:
        """Send stored and new messages; returns the last event."""
        try:
            await _write(send, _COMMENT)  # shows the client at once that the stream is open
            while not left.done():
                sent = await self._send_messages(send, left)
                reason = self._reason_to_end()
                if reason:
                    return _event("end", _encode(Ended(reason)), format_offsets(self._positions))
                if not sent and not left.done():
                    await self._wait(send, left)
            raise BrokerUnavailable("the broker is stopping")
        except Exception as error:
            return _event("error", _encode(body_of(understood(error, scope))))

    async def _send_messages(self, send: Send, left: "asyncio.Future[None]") -> bool:
        """Send a chunk of each partition; returns whether there was any."""
        sent = False
        for number, subscription in self._subscriptions.items():
            if number in self._ended or self._limit == 0:
                continue
            result = subscription.read(
                max_bytes=self._context.config.stream_chunk_bytes,
                max_records=READ_RECORDS_MAX if self._limit is None else self._limit,
            )
            async for chunk in self._events(number, result):
                await _write(send, chunk)  # waits while the client does not receive
                sent = True
                if left.done():
                    return sent
            self._positions[number] = result.next_offset
            if result.end_of_range:
                self._ended.add(number)
        return sent

    async def _events(self, number: int, result: ReadResult) -> AsyncIterator[bytes]:
        """The messages as events, in chunks."""
        before = "".join(f"{other}:{at}," for other, at in self._positions.items() if other < number)
        after = "".join(f",{other}:{at}" for other, at in self._positions.items() if other > number)
        chunk = bytearray()
        origin = TopicPartition(self._topic, number)
        if result.gaps:
            passed = PassedOver(shown_gaps(number, result))
            chunk += _event("gaps", _encode(passed), f"{before}{number}:{result.gaps[-1].next_offset}{after}")
        for message, view, size in shown(result.records, origin, self._encoding, self._values):
            if message.timestamp_ns < self._from_time_ns:  # records stored before a `from_time` in the future
                continue
            if self._limit is not None:
                self._limit -= 1
            position = f"{before}{number}:{message.offset + 1}{after}"
            if size > LARGE_BYTES:
                yield bytes(chunk) + _head_of_event("message", position)
                chunk.clear()
                for piece in await Encoded(view).pieces():
                    yield piece
                chunk += END_OF_EVENT
            else:
                chunk += _event("message", _encode(view), position)
            if len(chunk) >= self._context.config.stream_chunk_bytes:
                yield bytes(chunk)
                chunk.clear()
        if chunk:
            yield bytes(chunk)

    def _reason_to_end(self) -> str:
        if self._limit == 0:
            return "limit"
        return "to_time" if len(self._ended) == len(self._subscriptions) else ""

    async def _wait(self, send: Send, left: "asyncio.Future[None]") -> None:
        """Wait for new messages, with a comment every `stream_comment_s`."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        for number, subscription in self._subscriptions.items():
            if number not in self._ended:
                subscription.when_ready(wake)
        timeout_s = self._context.config.stream_comment_s
        while not await _first_of(ready, left, timeout_s=timeout_s):
            await _write(send, _COMMENT)


async def _first_of(*futures: "asyncio.Future[None]", timeout_s: float) -> bool:
    done, _ = await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _write(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await asyncio.sleep(0)  # a fast reader of a long log must not block the event loop


def _event(name: str, data: bytes, position: str = "") -> bytes:
    return _head_of_event(name, position) + data + END_OF_EVENT


def _head_of_event(name: str, position: str) -> bytes:
    identity = f"id: {position}\n" if position else ""
    return f"{identity}event: {name}\ndata: ".encode()
