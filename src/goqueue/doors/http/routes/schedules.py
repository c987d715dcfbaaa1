"""Recurring messages: published by a cron expression or at an interval."""

from typing import Any

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody

from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.new_messages import MessageBody, delay_ns, given_fields, new_message, ttl_ns
from goqueue.doors.http.shapes import Text, Time, duration_ns, time_ns, time_text
from goqueue.errors import InvalidRequest
from goqueue.times import format_duration
from goqueue.wire import reports

UNSET = msgspec.UNSET


class ChangeScheduleBody(MessageBody, kw_only=True, gc=False):
    """Fields of a recurring message. Delay and time to live count from each run."""

    cron: Text = None
    every: Text = None
    timezone: Text = None
    catch_up: Text = None
    start: Time = None
    end: Time = None
    paused: bool | None = None


class CreateScheduleBody(ChangeScheduleBody, kw_only=True, gc=False):
    """A recurring message to create."""

    name: str


class ShownSchedule(msgspec.Struct, kw_only=True):
    """A recurring message; `next_at` is null if no run is to come."""

    name: str
    topic: str
    cron: str | msgspec.UnsetType = UNSET
    every: str | msgspec.UnsetType = UNSET
    timezone: str
    catch_up: str
    paused: bool
    next_at: str | None
    last_at: str | msgspec.UnsetType = UNSET
    runs: int
    missed: int
    created_at: str


class ShownRun(msgspec.Struct, kw_only=True):
    """One run. Fields are null if the run failed, or is older than the broker remembers."""

    due_at: str
    published_at: str | None
    partition: int
    offset: int | None
    error: str | msgspec.UnsetType = UNSET


class ScheduleWithHistory(ShownSchedule, kw_only=True):
    """A recurring message and its last runs."""

    history: list[ShownRun]


class ScheduleList(msgspec.Struct, kw_only=True):
    """The recurring messages of a topic."""

    schedules: list[ShownSchedule]
    count: int


class DeletedSchedule(msgspec.Struct, kw_only=True):
    """The answer to the deletion of a recurring message."""

    deleted: bool
    name: str


@post("/topics/{topic:str}/schedules", tags=["schedules"], summary="Create a recurring message")
async def create_schedule(context: Shared, topic: FromPath[str], data: JSONBody[CreateScheduleBody]) -> ShownSchedule:
    """Create a recurring message; the answer is sent once it is durable. Each run is published exactly once."""
    message = msgspec.structs.replace(data, delay=None, ttl=None)
    _check_fields(data)
    pending = context.service.schedules.create(
        topic, data.name, new_message(message, 0, context.clock.wall_ns()), **_times(context, data)
    )
    return ShownSchedule(**_schedule(await context.answered(pending, "create schedule")))


@get("/topics/{topic:str}/schedules", tags=["schedules"], summary="List recurring messages")
async def list_schedules(context: Shared, topic: FromPath[str]) -> ScheduleList:
    """The recurring messages of a topic, ordered by name."""
    schedules = [
        ShownSchedule(**_schedule(info)) for info in (await context.answered(context.service.schedules.list(topic)))
    ]
    return ScheduleList(schedules=schedules, count=len(schedules))


@get("/topics/{topic:str}/schedules/{name:str}", tags=["schedules"], summary="Get a recurring message")
async def show_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ScheduleWithHistory:
    """A recurring message with its last 100 runs."""
    info = await context.answered(context.service.schedules.get(topic, name))
    return ScheduleWithHistory(**_schedule(info), history=[_run(run) for run in info.history])


@patch("/topics/{topic:str}/schedules/{name:str}", tags=["schedules"], summary="Change a recurring message")
async def change_schedule(
    context: Shared, topic: FromPath[str], name: FromPath[str], data: JSONBody[ChangeScheduleBody]
) -> ShownSchedule:
    """Change any field except the name. New times apply from now on."""
    _check_fields(data)
    changes = {**_times(context, data), **given_fields(data)}
    pending = context.service.schedules.alter(topic, name, changes)
    return ShownSchedule(**_schedule(await context.answered(pending, "change schedule")))


@delete(
    "/topics/{topic:str}/schedules/{name:str}",
    tags=["schedules"],
    summary="Delete a recurring message",
    status_code=200,
)
async def delete_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> DeletedSchedule:
    """Delete the recurring message; it is not published again."""
    await context.answered(context.service.schedules.delete(topic, name), "delete schedule")
    return DeletedSchedule(deleted=True, name=name)


@post(
    "/topics/{topic:str}/schedules/{name:str}/pause",
    tags=["schedules"],
    summary="Pause a recurring message",
    status_code=200,
)
async def pause_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """The message is not published until it is resumed."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.pause(topic, name), "pause")))


@post(
    "/topics/{topic:str}/schedules/{name:str}/resume",
    tags=["schedules"],
    summary="Resume a recurring message",
    status_code=200,
)
async def resume_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """Continue with the next run. Runs that were due during the pause are skipped."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.resume(topic, name), "resume")))


@post(
    "/topics/{topic:str}/schedules/{name:str}/run",
    tags=["schedules"],
    summary="Publish a recurring message now",
    status_code=200,
)
async def run_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """Publish the message once, in addition to its schedule."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.run(topic, name), "run")))


def _check_fields(body: ChangeScheduleBody) -> None:
    """Refuse message fields that do not apply to recurring messages."""
    for name in ("deliver_at", "deliver_at_camel", "expires_at", "created_at", "sequence"):
        if getattr(body, name) is not None:
            shown = "deliverAt" if name == "deliver_at_camel" else name
            raise InvalidRequest(f"invalid {shown}: not valid for a recurring message", path=shown)


def _times(context: RequestContext, body: ChangeScheduleBody) -> dict[str, Any]:
    """The given fields of the schedule, without those of the message."""
    now_ns = context.clock.wall_ns()
    times = {
        "cron": body.cron,
        "every_ns": None if body.every is None else duration_ns(body.every, "every"),
        "timezone": body.timezone,
        "catch_up": body.catch_up,
        "start_ns": time_ns(body.start, "start", now_ns=now_ns),
        "end_ns": time_ns(body.end, "end", now_ns=now_ns),
        "delay_ns": None if body.delay is None else delay_ns(body.delay),
        "ttl_ns": None if body.ttl is None else ttl_ns(body.ttl),
        "paused": body.paused,
    }
    return {name: value for name, value in times.items() if value is not None}


def _schedule(info: reports.ScheduleInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "topic": info.topic,
        "cron": UNSET if info.cron is None else info.cron,
        "every": UNSET if info.every_ns is None else format_duration(info.every_ns),
        "timezone": info.timezone,
        "catch_up": info.catch_up,
        "paused": info.paused,
        "next_at": None if info.next_at_ns is None else time_text(info.next_at_ns),
        "last_at": UNSET if info.last_at_ns is None else time_text(info.last_at_ns),
        "runs": info.runs,
        "missed": info.missed,
        "created_at": time_text(info.created_at_ns),
    }


def _run(run: reports.ScheduleRun) -> ShownRun:
    return ShownRun(
        due_at=time_text(run.due_at_ns),
        published_at=time_text(run.published_at_ns) if run.published_at_ns > 0 else None,
        partition=run.partition,
        offset=run.offset if run.offset >= 0 else None,
        error=run.error or UNSET,
    )
