"""Dead letters: counts by reason, reading them, and redriving them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

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
from goqueue.record.message import StoredMessage
from goqueue.service.messages import READ_BYTES_MAX
from goqueue.wire import reports

UNSET = msgspec.UNSET
REDRIVES_MAX = 3
COUNT_MAX = 2**31 - 1


RedriveTo = Annotated[
    Literal["group", "all"],
    msgspec.Meta(
        description="which groups receive them: the group that dead-lettered each message (default), or all groups"
        " (default if target_topic is another topic)"
    ),
]


class FilterBody(Body, kw_only=True):
    """Selects dead letters: every given field must match."""

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
    """Which dead letters to redrive, to which topic and how fast."""

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
    """Counts of the dead letters of a topic. Times are null if it has none."""

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
    """Counts of the dead letters of a topic, and its redrives."""

    by_error: dict[str, int]
    redrives: list[ShownRedrive]


class Origin(msgspec.Struct, kw_only=True, gc=False):
    """The position of a message before it was dead-lettered."""

    topic: str
    partition: int
    offset: int


class ShownDeadLetter(ShownMessage, kw_only=True, gc=False):
    """A dead letter and why it was dead-lettered."""

    reason: str = ""
    error: str = ""
    group: str = ""
    attempts: int = 0
    origin: Origin | msgspec.UnsetType = UNSET
    dead_at: str = ""
    redrives: int = 0


class DeadLetters(msgspec.Struct, kw_only=True):
    """Dead letters, ordered by partition and offset."""

    messages: list[ShownDeadLetter]
    count: int


class ShownPlan(msgspec.Struct, kw_only=True):
    """The effect that a redrive would have."""

    dry_run: bool
    matched: int
    skipped_loop: int
    sample: list[ShownDeadLetter]


@get("/dlq", tags=["dead letters"], summary="Count the dead letters of all topics")
async def list_queues(context: Shared) -> QueueList:
    """List every topic that has dead letters."""
    queues = [ShownQueue(**_queue(queue)) for queue in (await context.answered(context.service.dead_letters.queues()))]
    return QueueList(dlqs=queues, count=len(queues))


@get("/topics/{topic:str}/dlq", tags=["dead letters"], summary="Count the dead letters of a topic")
async def show_queue(context: Shared, topic: FromPath[str]) -> QueueInDetail:
    """Counts by reason, group and error, and the redrives."""
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
    header: Annotated[list[str] | None, QueryParameter(description="headers to match, each as name:value")] = None,
    error_contains: FromQuery[str | None] = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    partition: Annotated[int | None, QueryParameter(ge=0, le=PARTITION_MAX)] = None,
    offsets: Annotated[str | None, QueryParameter(description="only these offsets, such as 3,4,17")] = None,
    min_attempts: FromQuery[int | None] = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> DeadLetters:
    """Read the dead letters that match all given filters.

    A page of large messages ends before `limit` is reached: `count` is the number of messages in it.
    """
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
    messages = _letters(found, encoding, values)
    return DeadLetters(messages=messages, count=len(messages))


@post(
    "/topics/{topic:str}/dlq/redrive",
    tags=["dead letters"],
    summary="Redrive dead letters",
    status_code=202,
    responses={200: ResponseSpec(ShownPlan, description="The plan, with dry_run", generate_examples=False)},
)
async def redrive(
    context: Shared,
    topic: FromPath[str],
    data: JSONBody[RedriveBody | None] = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> JsonResponse[ShownRedrive]:
    """Redrive the dead letters that match the filter, or all. Each is published and marked as redriven atomically."""
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
            sample=_letters(plan.sample, encoding, values),
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


@get("/topics/{topic:str}/dlq/redrive/{redrive_id:str}", tags=["dead letters"], summary="Get a redrive")
async def show_redrive(context: Shared, topic: FromPath[str], redrive_id: FromPath[str]) -> ShownRedrive:
    """The progress of a redrive."""
    return _redrive(await context.answered(context.service.dead_letters.redrive_info(topic, redrive_id)))


@delete(
    "/topics/{topic:str}/dlq/redrive/{redrive_id:str}",
    tags=["dead letters"],
    summary="Stop a redrive",
    status_code=200,
)
async def stop_redrive(context: Shared, topic: FromPath[str], redrive_id: FromPath[str]) -> ShownRedrive:
    """The redrive stops after the message that is in progress."""
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


def _letters(found: Sequence[reports.DeadLetter], encoding: Encoding, values: Values) -> list[ShownDeadLetter]:
    letters: list[ShownDeadLetter] = []
    total = 0
    for letter in found:
        origin = TopicPartition(letter.dlq_topic, letter.partition)
        (message,) = kernel.decode(letter.record, origin, StoredMessage)
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
