"""Recurring messages: published again and again, by a cron text or at an interval."""

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
    """Fields of a recurring message. A delay and the time to live count from each run."""

    cron: Text = None
    every: Text = None
    timezone: Text = None
    catch_up: Text = None
    start: Time = None
    end: Time = None
    paused: bool | None = None


class CreateScheduleBody(ChangeScheduleBody, kw_only=True, gc=False):
    """A message to publish again and again."""

    name: str


class ShownSchedule(msgspec.Struct, kw_only=True):
    """A recurring message; `next_at` is null while nothing is to come."""

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
    """One run; null is what is not known, because it failed or was long ago."""

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
    """A recurring message that is gone."""

    deleted: bool
    name: str


@post("/topics/{topic:str}/schedules", tags=["schedules"], summary="Create a recurring message")
async def create_schedule(context: Shared, topic: FromPath[str], data: JSONBody[CreateScheduleBody]) -> ShownSchedule:
    """Returns once it is on the medium. Each run is published once, also over restarts."""
    message = msgspec.structs.replace(data, delay=None, ttl=None)
    _check_fields(data)
    pending = context.service.schedules.create(
        topic, data.name, new_message(message, 0, context.clock.wall_ns()), **_times(context, data)
    )
    return ShownSchedule(**_schedule(await context.answered(pending, "create schedule")))


@get("/topics/{topic:str}/schedules", tags=["schedules"], summary="List recurring messages")
async def list_schedules(context: Shared, topic: FromPath[str]) -> ScheduleList:
    """Those of one topic, by name."""
    schedules = [
        ShownSchedule(**_schedule(info)) for info in (await context.answered(context.service.schedules.list(topic)))
    ]
    return ScheduleList(schedules=schedules, count=len(schedules))


@get("/topics/{topic:str}/schedules/{name:str}", tags=["schedules"], summary="Look at a recurring message")
async def show_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ScheduleWithHistory:
    """With its last 100 runs."""
    info = await context.answered(context.service.schedules.get(topic, name))
    return ScheduleWithHistory(**_schedule(info), history=[_run(run) for run in info.history])


@patch("/topics/{topic:str}/schedules/{name:str}", tags=["schedules"], summary="Change a recurring message")
async def change_schedule(
    context: Shared, topic: FromPath[str], name: FromPath[str], data: JSONBody[ChangeScheduleBody]
) -> ShownSchedule:
    """Any field but the name. Where its times change, they count from now on."""
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
    """It is published no more."""
    await context.answered(context.service.schedules.delete(topic, name), "delete schedule")
    return DeletedSchedule(deleted=True, name=name)


@post(
    "/topics/{topic:str}/schedules/{name:str}/pause",
    tags=["schedules"],
    summary="Pause a recurring message",
    status_code=200,
)
async def pause_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """It is not published until it is resumed."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.pause(topic, name), "pause")))


@post(
    "/topics/{topic:str}/schedules/{name:str}/resume",
    tags=["schedules"],
    summary="Resume a recurring message",
    status_code=200,
)
async def resume_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """It goes on from now; what was paused is not made up for."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.resume(topic, name), "resume")))


@post(
    "/topics/{topic:str}/schedules/{name:str}/run",
    tags=["schedules"],
    summary="Publish a recurring message now",
    status_code=200,
)
async def run_schedule(context: Shared, topic: FromPath[str], name: FromPath[str]) -> ShownSchedule:
    """Once, out of turn."""
    return ShownSchedule(**_schedule(await context.answered(context.service.schedules.run(topic, name), "run")))


def _check_fields(body: ChangeScheduleBody) -> None:
    """Refuse fields of a message that mean nothing to one that recurs."""
    for name in ("deliver_at", "deliver_at_camel", "expires_at", "sequence"):
        if getattr(body, name) is not None:
            shown = "deliverAt" if name == "deliver_at_camel" else name
            raise InvalidRequest(f"invalid {shown}: a recurring message has none", path=shown)


def _times(context: RequestContext, body: ChangeScheduleBody) -> dict[str, Any]:
    """What is given of everything that is not the message."""
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
