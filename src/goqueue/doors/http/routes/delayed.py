"""Delayed messages: list, get, cancel and reschedule them."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import delete, get, patch
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from goqueue.delivery.delay_index import DelayState
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.new_messages import DueBody, due_ns
from goqueue.doors.http.shapes import (
    PARTITION_MAX,
    PRIORITIES,
    Key,
    KeyBase64,
    PageLimit,
    PageSkip,
    key_bytes,
    parse_offset,
    parse_partition,
    time_text,
)
from goqueue.doors.http.stored_messages import Encoding, show_key
from goqueue.errors import InvalidRequest
from goqueue.times import format_duration
from goqueue.wire import reports

UNSET = msgspec.UNSET
InPartition = Annotated[int | None, QueryParameter(ge=0, le=PARTITION_MAX, description="only this partition")]
InState = Annotated[DelayState, QueryParameter(name="state", description="only messages in this state")]


class ShownDelayed(msgspec.Struct, kw_only=True):
    """A delayed message, due or not."""

    topic: str
    partition: int
    offset: int
    key: str | msgspec.UnsetType | None = UNSET
    key_base64: str | msgspec.UnsetType = UNSET
    deliver_at: str
    time_remaining: str
    state: str
    priority: str


class DelayedPage(msgspec.Struct, kw_only=True):
    """Delayed messages, ordered by the time at which they are due."""

    topic: str
    messages: list[ShownDelayed]
    count: int
    limit: int
    skip: int


class Cancelled(msgspec.Struct, kw_only=True):
    """The answer to the cancellation of a delayed message."""

    cancelled: bool
    topic: str
    partition: int
    offset: int


class DelayedOfKey(msgspec.Struct, kw_only=True):
    """The delayed messages of one key that were cancelled or rescheduled."""

    topic: str
    key: str | msgspec.UnsetType | None = UNSET
    key_base64: str | msgspec.UnsetType = UNSET
    count: int
    messages: list[ShownDelayed]


class WheelStats(msgspec.Struct, kw_only=True):
    """Statistics of the timer wheel."""

    total_scheduled: int
    total_fired: int
    total_cancelled: int
    current_active: int
    current_tick: int


class DelayStats(msgspec.Struct, kw_only=True):
    """Statistics of delayed messages."""

    total_scheduled: int
    total_delivered: int
    total_cancelled: int
    total_expired: int
    total_pending: int
    avg_delay: str
    by_topic: dict[str, int]
    timer_wheel: WheelStats


@get("/topics/{topic:str}/delayed", tags=["delays"], summary="List delayed messages")
async def list_delayed(
    context: Shared,
    topic: FromPath[str],
    limit: PageLimit = 100,
    skip: PageSkip = 0,
    partition: InPartition = None,
    key: Key = None,
    key_base64: KeyBase64 = None,
    in_state: InState = DelayState.PENDING,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> DelayedPage:
    """Delayed messages, ordered by the time at which they are due; none if the topic does not exist."""
    limit = min(limit, context.config.read_limit_max)
    found = await context.answered(
        context.service.delays.list(
            topic, partition=partition, key=key_bytes(key, key_base64), state=in_state.value, skip=skip, limit=limit
        )
    )
    messages = _shown(context, found, encoding)
    return DelayedPage(topic=topic, messages=messages, count=len(messages), limit=limit, skip=skip)


@get("/topics/{topic:str}/delayed/{offset:str}", tags=["delays"], summary="Get a delayed message")
async def show_delayed(
    context: Shared,
    topic: FromPath[str],
    offset: FromPath[str],
    partition: InPartition = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> ShownDelayed:
    """The delayed message at that offset, of the lowest partition that has one."""
    found = await context.answered(context.service.delays.get(topic, parse_offset(offset), partition=partition))
    return _shown(context, [found], encoding)[0]


@get(
    "/topics/{topic:str}/delayed/{partition:str}/{offset:str}",
    tags=["delays"],
    summary="Get a delayed message of a partition",
)
async def show_delayed_exactly(
    context: Shared,
    topic: FromPath[str],
    partition: FromPath[str],
    offset: FromPath[str],
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> ShownDelayed:
    """The delayed message at that partition and offset."""
    found = await context.answered(
        context.service.delays.get(topic, parse_offset(offset), partition=parse_partition(partition))
    )
    return _shown(context, [found], encoding)[0]


@delete(
    "/topics/{topic:str}/delayed/{partition:str}/{offset:str}",
    tags=["delays"],
    summary="Cancel a delayed message",
    status_code=200,
)
async def cancel_delayed(
    context: Shared, topic: FromPath[str], partition: FromPath[str], offset: FromPath[str]
) -> Cancelled:
    """A cancelled message is never delivered."""
    pending = context.service.delays.cancel(topic, partition=parse_partition(partition), offset=parse_offset(offset))
    (cancelled,) = await context.answered(pending, "cancel")
    return Cancelled(cancelled=True, topic=topic, partition=cancelled.partition, offset=cancelled.offset)


@patch(
    "/topics/{topic:str}/delayed/{partition:str}/{offset:str}",
    tags=["delays"],
    summary="Reschedule a delayed message",
)
async def reschedule_delayed(
    context: Shared,
    topic: FromPath[str],
    partition: FromPath[str],
    offset: FromPath[str],
    data: JSONBody[DueBody],
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> ShownDelayed:
    """Set the time at which the message is due; a time in the past means now."""
    pending = context.service.delays.reschedule(
        topic, _due_ns(data, context), partition=parse_partition(partition), offset=parse_offset(offset)
    )
    rescheduled = await context.answered(pending, "reschedule")
    return _shown(context, rescheduled, encoding)[0]


@delete("/topics/{topic:str}/delayed", tags=["delays"], summary="Cancel the delayed messages of a key", status_code=200)
async def cancel_delayed_of_key(
    context: Shared,
    topic: FromPath[str],
    key: Key = None,
    key_base64: KeyBase64 = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> DelayedOfKey:
    """Cancel all pending messages of the key."""
    wanted = _key(key, key_base64)
    cancelled = await context.answered(context.service.delays.cancel(topic, key=wanted), "cancel")
    return _of_key(context, topic, wanted, cancelled, encoding)


@patch("/topics/{topic:str}/delayed", tags=["delays"], summary="Reschedule the delayed messages of a key")
async def reschedule_delayed_of_key(
    context: Shared,
    topic: FromPath[str],
    data: JSONBody[DueBody],
    key: Key = None,
    key_base64: KeyBase64 = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
) -> DelayedOfKey:
    """Set the time at which all pending messages of the key are due."""
    wanted = _key(key, key_base64)
    pending = context.service.delays.reschedule(topic, _due_ns(data, context), key=wanted)
    rescheduled = await context.answered(pending, "reschedule")
    return _of_key(context, topic, wanted, rescheduled, encoding)


@get("/delay/stats", tags=["delays"], summary="Count delayed messages")
async def delay_stats(context: Shared) -> DelayStats:
    """Totals by state, and the current number of pending messages."""
    report = await context.answered(context.service.delays.stats())
    return DelayStats(
        total_scheduled=report.scheduled,
        total_delivered=report.delivered,
        total_cancelled=report.cancelled,
        total_expired=report.expired,
        total_pending=report.pending,
        avg_delay=format_duration(report.average_delay_ns),
        by_topic=report.by_topic,
        timer_wheel=WheelStats(
            total_scheduled=report.scheduled,
            total_fired=report.delivered,
            total_cancelled=report.cancelled,
            current_active=report.wheel_active,
            current_tick=report.wheel_tick,
        ),
    )


def _due_ns(body: DueBody, context: RequestContext) -> int:
    due_at_ns = due_ns(body, 0, context.clock.wall_ns())
    if due_at_ns is None:
        raise InvalidRequest("delay is required, or deliver_at", path="delay")
    return due_at_ns


def _key(text: str | None, base64: str | None) -> bytes:
    key = key_bytes(text, base64)
    if key is None:
        raise InvalidRequest("key is required", path="key")
    return key


def _of_key(
    context: RequestContext, topic: str, key: bytes, changed: Sequence[reports.DelayedMessage], encoding: Encoding
) -> DelayedOfKey:
    messages = _shown(context, changed, encoding)
    shown = show_key(key, encoding)
    return DelayedOfKey(topic=topic, key=shown.key, key_base64=shown.key_base64, count=len(messages), messages=messages)


def _shown(context: RequestContext, found: Sequence[reports.DelayedMessage], encoding: Encoding) -> list[ShownDelayed]:
    now_ns = context.clock.wall_ns()
    return [_delayed(one, now_ns, encoding) for one in found]


def _delayed(found: reports.DelayedMessage, now_ns: int, encoding: Encoding) -> ShownDelayed:
    remaining_ns = max(0, found.deliver_at_ns - now_ns) if found.state == DelayState.PENDING else 0
    shown = show_key(found.key, encoding)
    return ShownDelayed(
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        key=shown.key,
        key_base64=shown.key_base64,
        deliver_at=time_text(found.deliver_at_ns),
        time_remaining=format_duration(remaining_ns),
        state=found.state,
        priority=PRIORITIES[found.priority],
    )
