"""Dead letters: how many there are and why, what they hold, and putting them back."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from goqueue.delivery.dead_letter import dead_letter_topic
from goqueue.doors.http.answers import JsonResponse
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.routes.read import FromTime, ToTime
from goqueue.doors.http.shapes import (
    PARTITION_MAX,
    Key,
    KeyBase64,
    Offset,
    PageLimit,
    PageSkip,
    Partition,
    Text,
    Time,
    key_bytes,
    parse_offset,
    parse_time_query,
    time_ns,
    time_text,
)
from goqueue.doors.http.stored_messages import Encoding, ShownMessage, Values, show
from goqueue.doors.http.strictness import Body
from goqueue.errors import InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import Message
from goqueue.service.messages import READ_BYTES_MAX
from goqueue.wire import reports

UNSET = msgspec.UNSET
REDRIVES_MAX = 3
COUNT_MAX = 2**31 - 1


RedriveTo = Annotated[
    Literal["group", "all"],
    msgspec.Meta(
        description="who gets them again: the group that gave each of them up (default), or all groups (default if"
        " target_topic is another topic)"
    ),
]


class FilterBody(Body, kw_only=True):
    """Which dead letters are meant: all that is given must match."""

    reason: Text = None
    group: Text = None
    key: Text = None
    key_base64: Text = None
    key_prefix: Text = None
    header: dict[str, str] | None = None
    error_contains: Text = None
    from_time: Time = None
    to_time: Time = None
    partition: Partition | None = None
    offsets: list[Offset] | None = None
    min_attempts: int | None = None


class RedriveBody(Body, kw_only=True):
    """Which dead letters to put back, where and how fast."""

    filter: FilterBody | None = None
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None = None
    target_topic: Text = None
    max_redrives: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None = None
    dry_run: bool | None = None
    to: RedriveTo | None = None


class ShownRedrive(msgspec.Struct, kw_only=True):
    """A redrive: running, done, stopped or failed."""

    id: str
    topic: str
    state: str
    matched: int
    redriven: int
    skipped_loop: int
    failed: int
    rate: float
    to: str
    started_at: str
    finished_at: str | msgspec.UnsetType = UNSET
    error: str | msgspec.UnsetType = UNSET


class ShownQueue(msgspec.Struct, kw_only=True):
    """The dead letters of a topic in numbers; times are null where there are none."""

    topic: str
    dlq_topic: str
    messages: int
    oldest: str | None
    newest: str | None
    by_reason: dict[str, int]
    by_group: dict[str, int]


class QueueList(msgspec.Struct, kw_only=True):
    """All topics that have dead letters."""

    dlqs: list[ShownQueue]
    count: int


class QueueInDetail(ShownQueue, kw_only=True):
    """The dead letters of a topic in numbers, and what was put back."""

    by_error: dict[str, int]
    redrives: list[ShownRedrive]


class Origin(msgspec.Struct, kw_only=True, gc=False):
    """Where a dead letter comes from."""

    topic: str
    partition: int
    offset: int


class ShownDeadLetter(ShownMessage, kw_only=True, gc=False):
    """A dead letter, and why it is one."""

    reason: str = ""
    error: str = ""
    group: str = ""
    attempts: int = 0
    origin: Origin | msgspec.UnsetType = UNSET
    dead_at: str = ""
    redrives: int = 0


class DeadLetters(msgspec.Struct, kw_only=True):
    """Dead letters, in the order of their partitions and offsets."""

    messages: list[ShownDeadLetter]
    count: int


class ShownPlan(msgspec.Struct, kw_only=True):
    """What a redrive would do."""

    dry_run: bool
    matched: int
    skipped_loop: int
    sample: list[ShownDeadLetter]


@get("/dlq", tags=["dead letters"], summary="List the dead letters of all topics in numbers")
async def list_queues(context: Shared) -> QueueList:
    """Every topic that has dead letters."""
    queues = [ShownQueue(**_queue(queue)) for queue in (await context.answered(context.service.dead_letters.queues()))]
    return QueueList(dlqs=queues, count=len(queues))


@get("/topics/{topic:str}/dlq", tags=["dead letters"], summary="Look at the dead letters of a topic in numbers")
async def show_queue(context: Shared, topic: FromPath[str]) -> QueueInDetail:
    """By reason, group and error, and what was put back of them."""
    queue = await context.answered(context.service.dead_letters.describe(topic))
    return QueueInDetail(
        **_queue(queue), by_error=queue.by_error, redrives=[_redrive(redrive) for redrive in queue.redrives]
    )


@get("/topics/{topic:str}/dlq/messages", tags=["dead letters"], summary="Read dead letters")
async def list_dead_letters(
    context: Shared,
    topic: FromPath[str],
    limit: PageLimit = 100,
    skip: PageSkip = 0,
    reason: FromQuery[str | None] = None,
    group: FromQuery[str | None] = None,
    key: Key = None,
    key_base64: KeyBase64 = None,
    key_prefix: FromQuery[str | None] = None,
    header: Annotated[list[str] | None, QueryParameter(description="headers they have, each as name:value")] = None,
    error_contains: FromQuery[str | None] = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    partition: Annotated[int | None, QueryParameter(ge=0, le=PARTITION_MAX)] = None,
    offsets: Annotated[str | None, QueryParameter(description="which offsets: 3,4,17")] = None,
    min_attempts: FromQuery[int | None] = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> DeadLetters:
    """Those that match all that is given. A page ends early where they are large: `count` says how many came."""
    now_ns = context.clock.wall_ns()
    wanted = reports.DeadLetterFilter(
        reason=reason,
        group=group,
        key=key_bytes(key, key_base64),
        key_prefix=None if key_prefix is None else key_prefix.encode(),
        headers=dict(_header(text) for text in header or ()),
        error_contains=error_contains,
        from_time_ns=None if from_time is None else parse_time_query(from_time, "from_time", now_ns=now_ns),
        to_time_ns=None if to_time is None else parse_time_query(to_time, "to_time", now_ns=now_ns),
        partition=partition,
        offsets=None if offsets is None else [parse_offset(part.strip(), "offsets") for part in offsets.split(",")],
        min_attempts=min_attempts,
    )
    found = await context.answered(
        context.service.dead_letters.list(topic, wanted, skip=skip, limit=min(limit, context.config.read_limit_max))
    )
    messages = _letters(topic, found, encoding, values)
    return DeadLetters(messages=messages, count=len(messages))


@post(
    "/topics/{topic:str}/dlq/redrive",
    tags=["dead letters"],
    summary="Put dead letters back",
    status_code=202,
    responses={200: ResponseSpec(ShownPlan, description="What would be done", generate_examples=False)},
)
async def redrive(
    context: Shared,
    topic: FromPath[str],
    data: JSONBody[RedriveBody | None] = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> JsonResponse[ShownRedrive]:
    """Those that match all that is given, or all of them. Each is put back and marked in one step."""
    body = data or RedriveBody()
    wanted = _filter(context, body.filter or FilterBody())
    limit = body.limit or 0
    max_redrives = REDRIVES_MAX if body.max_redrives is None else body.max_redrives
    dead_letters = context.service.dead_letters
    if body.dry_run:
        plan = await context.answered(
            dead_letters.plan(
                topic, wanted, limit=limit, target_topic=body.target_topic, max_redrives=max_redrives, to=body.to
            )
        )
        answer: Any = ShownPlan(
            dry_run=True,
            matched=plan.matched,
            skipped_loop=plan.skipped_loop,
            sample=_letters(topic, plan.sample, encoding, values),
        )
        return JsonResponse(answer, status_code=200)
    pending = dead_letters.redrive(
        topic,
        wanted,
        rate=body.rate or 0,
        limit=limit,
        target_topic=body.target_topic,
        max_redrives=max_redrives,
        to=body.to,
    )
    return JsonResponse(_redrive(await context.answered(pending, "redrive")), status_code=202)


@get("/topics/{topic:str}/dlq/redrive/{redrive_id:str}", tags=["dead letters"], summary="Look at a redrive")
async def show_redrive(context: Shared, topic: FromPath[str], redrive_id: FromPath[str]) -> ShownRedrive:
    """How far it is."""
    return _redrive(await context.answered(context.service.dead_letters.redrive_info(topic, redrive_id)))


@delete(
    "/topics/{topic:str}/dlq/redrive/{redrive_id:str}",
    tags=["dead letters"],
    summary="Stop a redrive",
    status_code=200,
)
async def stop_redrive(context: Shared, topic: FromPath[str], redrive_id: FromPath[str]) -> ShownRedrive:
    """After the message in hand."""
    pending = context.service.dead_letters.stop_redrive(topic, redrive_id)
    return _redrive(await context.answered(pending, "stop redrive"))


def _filter(context: RequestContext, body: FilterBody) -> reports.DeadLetterFilter:
    now_ns = context.clock.wall_ns()
    return reports.DeadLetterFilter(
        reason=body.reason,
        group=body.group,
        key=key_bytes(body.key, body.key_base64),
        key_prefix=None if body.key_prefix is None else body.key_prefix.encode(),
        headers=body.header or {},
        error_contains=body.error_contains,
        from_time_ns=time_ns(body.from_time, "filter.from_time", now_ns=now_ns),
        to_time_ns=time_ns(body.to_time, "filter.to_time", now_ns=now_ns),
        partition=body.partition,
        offsets=body.offsets,
        min_attempts=body.min_attempts,
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise InvalidRequest(f"invalid header: {text[:40]!r} is not name:value", path="header")
    return name, value


def _letters(
    topic: str, found: Sequence[reports.DeadLetter], encoding: Encoding, values: Values
) -> list[ShownDeadLetter]:
    letters: list[ShownDeadLetter] = []
    total = 0
    for letter in found:
        (message,) = kernel.decode(letter.record, TopicPartition(dead_letter_topic(topic), letter.partition), Message)
        view, size = show(message, encoding, values, ShownDeadLetter)
        total += size
        if letters and total > READ_BYTES_MAX:
            break
        view.reason, view.error, view.group = letter.reason, letter.error, letter.group
        view.attempts, view.redrives = letter.attempts, letter.redrives
        view.origin = Origin(topic=letter.origin_topic, partition=letter.origin_partition, offset=letter.origin_offset)
        view.dead_at = time_text(letter.dead_at_ns)
        letters.append(view)
    return letters


def _queue(queue: reports.DeadLetterQueue) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "dlq_topic": queue.dlq_topic,
        "messages": queue.messages,
        "oldest": None if queue.oldest_ns is None else time_text(queue.oldest_ns),
        "newest": None if queue.newest_ns is None else time_text(queue.newest_ns),
        "by_reason": queue.by_reason,
        "by_group": queue.by_group,
    }


def _redrive(info: reports.RedriveInfo) -> ShownRedrive:
    return ShownRedrive(
        id=info.id,
        topic=info.topic,
        state=info.state,
        matched=info.matched,
        redriven=info.redriven,
        skipped_loop=info.skipped_loop,
        failed=info.failed,
        rate=info.rate,
        to=info.to,
        started_at=time_text(info.started_at_ns),
        finished_at=UNSET if info.finished_at_ns is None else time_text(info.finished_at_ns),
        error=info.error or UNSET,
    )
