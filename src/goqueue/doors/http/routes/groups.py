"""Consumer groups: membership, assignments and rebalances.

A member that joins by `/join/cooperative` learns from its heartbeats which partitions are revoked, and confirms when it
has released them. From a member that joins by `/join`, partitions are revoked without confirmation. Otherwise the two
are the same.
"""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody

from goqueue.clock import MS
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.shapes import (
    Partition,
    ShownPartitionName,
    Text,
    duration_ms,
    shown_partitions,
    time_text,
)
from goqueue.doors.http.stored_messages import Encoding, show_key
from goqueue.doors.http.strictness import Body
from goqueue.errors import GroupNotFound, InvalidRequest, NotGroupMember
from goqueue.service.groups import Join
from goqueue.times import format_duration
from goqueue.wire import reports

UNSET = msgspec.UNSET


class JoinBody(Body, kw_only=True):
    """The client that joins, and the settings that it asks for."""

    client_id: str
    topics: list[str] | None = None
    member_id: Text = None
    session_timeout: Text = None
    mode: Text = None
    protocol: Text = None
    assignor: Text = None
    start: Text = None
    ack: Text = None
    auto_commit: bool | None = None
    visibility_timeout: Text = None
    max_in_flight: int | None = None
    auto_commit_interval: Text = None


class JoinedGroup(msgspec.Struct, kw_only=True):
    """The membership: id, generation, assigned partitions and timeouts."""

    member_id: str
    generation: int
    leader_id: str
    leader: bool
    partitions: list[int]
    assigned_partitions: list[str]
    members: list[str]
    rebalance_required: bool
    mode: str
    protocol: str
    session_timeout: str
    heartbeat_interval: str


class MemberBody(Body, kw_only=True):
    """The member that sends the request."""

    member_id: str


class HeartbeatBody(MemberBody, kw_only=True):
    """The member that sends the heartbeat, and the generation that it knows."""

    generation: int | None = None


class ShownHeartbeat(msgspec.Struct, kw_only=True):
    """The answer to a heartbeat."""

    status: str
    rebalance_required: bool
    state: str
    generation: int


class CooperativeHeartbeat(msgspec.Struct, kw_only=True):
    """The answer to a heartbeat of a cooperative member: the partitions to revoke and those to keep."""

    rebalance_required: bool
    partitions_to_revoke: list[ShownPartitionName]
    partitions_assigned: list[ShownPartitionName]
    generation: int
    protocol: str
    state: str
    revocation_deadline: str | msgspec.UnsetType = UNSET


class RevokedPartition(Body, kw_only=True):
    """A partition that the member has released."""

    topic: str
    partition: Partition


class RevokeBody(HeartbeatBody, kw_only=True):
    """The revoked partitions that the member has released; if absent, all that are being revoked."""

    revoked_partitions: list[RevokedPartition] | None = None


class Revoked(msgspec.Struct, kw_only=True):
    """The answer to the confirmation of a revocation."""

    status: str
    pending_count: int
    rebalance_state: str


class Left(msgspec.Struct, kw_only=True):
    """The answer to a member that leaves."""

    status: str
    left: bool


class GroupLine(msgspec.Struct, kw_only=True):
    """A group in the list of groups."""

    id: str
    group_id: str
    state: str
    members: int
    generation: int
    topics: list[str]
    mode: str
    protocol: str
    lag: int


class GroupList(msgspec.Struct, kw_only=True):
    """All groups: their names, and the state of each."""

    groups: list[str]
    details: list[GroupLine]
    count: int


class ShownMember(msgspec.Struct, kw_only=True):
    """A member of a group."""

    id: str
    member_id: str
    client_id: str
    assigned_partitions: list[str]
    assignments: list[ShownPartitionName]
    in_flight: int
    expired_leases: int
    last_heartbeat: str
    joined_at: str


class ShownGroup(msgspec.Struct, kw_only=True):
    """The state of a group."""

    id: str
    group_id: str
    state: str
    generation: int
    mode: str
    protocol: str
    assignor: str
    leader_id: str
    topics: list[str]
    created_at: str
    lag: int
    expired_leases: int
    members: list[ShownMember]


class ShownRebalanceStats(msgspec.Struct, kw_only=True):
    """Counts and durations of rebalances."""

    total_rebalances: int
    successful_rebalances: int
    failed_rebalances: int
    total_partitions_revoked: int
    total_partitions_assigned: int
    total_revocation_timeouts: int
    last_rebalance_duration_ms: float
    average_rebalance_duration_ms: float
    last_rebalance_at: str | msgspec.UnsetType = UNSET
    rebalances_by_reason: dict[str, int]


class CooperativeGroup(ShownGroup, kw_only=True):
    """The state of a group and of its rebalance."""

    assignment_strategy: str
    rebalance_state: str
    member_assignments: dict[str, list[ShownPartitionName]]
    rebalance_metrics: ShownRebalanceStats


class DeletedGroup(msgspec.Struct, kw_only=True):
    """The answer to the deletion of a group."""

    deleted: bool
    group: str
    group_id: str


class Assignment(msgspec.Struct, kw_only=True):
    """The partitions of one member."""

    member_id: str
    generation: int
    partitions: list[ShownPartitionName]


class ShownBlockedKey(msgspec.Struct, kw_only=True):
    """An unsettled message that blocks the later messages with its key."""

    topic: str
    partition: int
    key: str | msgspec.UnsetType | None = UNSET
    key_base64: str | msgspec.UnsetType = UNSET
    offset: int
    member_id: str
    since: str
    delivery_count: int
    waiting: int


class BlockedKeys(msgspec.Struct, kw_only=True):
    """The messages that block their keys."""

    blocked: list[ShownBlockedKey]
    count: int


# --- membership --------------------------------------------------------------------------------


@post("/groups/{group:str}/join", tags=["groups"], summary="Join a group", status_code=200)
async def join_group(context: Shared, group: FromPath[str], data: JSONBody[JoinBody]) -> JoinedGroup:
    """A later rebalance revokes partitions from this member without its confirmation."""
    return await _join(context, group, data, confirms_revocations=False)


@post("/groups/{group:str}/join/cooperative", tags=["groups"], summary="Join as a cooperative member", status_code=200)
async def join_group_cooperatively(context: Shared, group: FromPath[str], data: JSONBody[JoinBody]) -> JoinedGroup:
    """A later rebalance announces the partitions to revoke in the heartbeats of this member."""
    return await _join(context, group, data, confirms_revocations=True)


@post("/groups/{group:str}/heartbeat", tags=["groups"], summary="Send a heartbeat", status_code=200)
async def heartbeat(context: Shared, group: FromPath[str], data: JSONBody[HeartbeatBody]) -> ShownHeartbeat:
    """Renew the session of the member. A poll does the same."""
    beat = await context.answered(context.service.groups.heartbeat(group, data.member_id, data.generation))
    return ShownHeartbeat(
        status="ok", rebalance_required=beat.rebalance_required, state=beat.state, generation=beat.generation
    )


@post(
    "/groups/{group:str}/heartbeat/cooperative",
    tags=["groups"],
    summary="Send a heartbeat as a cooperative member",
    status_code=200,
)
async def heartbeat_cooperatively(
    context: Shared, group: FromPath[str], data: JSONBody[HeartbeatBody]
) -> CooperativeHeartbeat:
    """Renew the session; returns the partitions to revoke. An older generation is answered with the current one."""
    beat = await context.answered(
        context.service.groups.heartbeat(group, data.member_id, data.generation, is_cooperative=True)
    )
    return CooperativeHeartbeat(
        rebalance_required=beat.rebalance_required,
        partitions_to_revoke=shown_partitions(beat.partitions_to_revoke),
        partitions_assigned=shown_partitions(beat.partitions_assigned),
        generation=beat.generation,
        protocol=beat.protocol,
        state=beat.rebalance_state,
        revocation_deadline=_time_or_unset(beat.revocation_deadline_ns),
    )


@post("/groups/{group:str}/revoke", tags=["groups"], summary="Confirm revoked partitions", status_code=200)
async def revoke(context: Shared, group: FromPath[str], data: JSONBody[RevokeBody]) -> Revoked:
    """The released partitions are assigned to their new owners."""
    partitions = None
    if data.revoked_partitions is not None:
        partitions = [reports.PartitionName(name.topic, name.partition) for name in data.revoked_partitions]
    revoked = await context.answered(context.service.groups.revoke(group, data.member_id, data.generation, partitions))
    return Revoked(status="acknowledged", pending_count=revoked.pending_count, rebalance_state=revoked.rebalance_state)


@post(
    ["/groups/{group:str}/leave", "/groups/{group:str}/leave/cooperative"],
    tags=["groups"],
    summary="Leave a group",
    status_code=200,
)
async def leave_group(context: Shared, group: FromPath[str], data: JSONBody[MemberBody]) -> Left:
    """Messages that the member has leased are redelivered at once."""
    await context.answered(context.service.groups.leave(group, data.member_id), "leave")
    return Left(status="left", left=True)


# --- reading -----------------------------------------------------------------------------------


@get("/groups", tags=["groups"], summary="List groups")
async def list_groups(context: Shared) -> GroupList:
    """All groups with state, members and lag."""
    groups = context.service.groups
    details = []
    for name in await context.answered(groups.names()):
        with suppress(GroupNotFound):  # deleted since the names were read
            details.append(_group_line(await context.answered(groups.describe(name))))
        await asyncio.sleep(0)  # a thousand groups must not block the event loop
    return GroupList(groups=[group.id for group in details], details=details, count=len(details))


@get("/groups/{group:str}", tags=["groups"], summary="Get a group")
async def show_group(context: Shared, group: FromPath[str]) -> ShownGroup:
    """The members of the group, their partitions, and its lag."""
    return ShownGroup(**_group(await context.answered(context.service.groups.describe(group))))


@get("/groups/{group:str}/cooperative", tags=["groups"], summary="Get the rebalance of a group")
async def show_cooperative_group(context: Shared, group: FromPath[str]) -> CooperativeGroup:
    """The group, the assignment of its partitions, and the statistics of its rebalances."""
    info = await context.answered(context.service.groups.describe(group))
    return CooperativeGroup(
        **_group(info),
        assignment_strategy=info.assignor,
        rebalance_state=info.rebalance_state,
        member_assignments={member.member_id: shown_partitions(member.partitions) for member in info.members},
        rebalance_metrics=_rebalances(await context.answered(context.service.groups.rebalance_stats(group))),
    )


@delete("/groups/{group:str}", tags=["groups"], summary="Delete a group", status_code=200)
async def delete_group(context: Shared, group: FromPath[str]) -> DeletedGroup:
    """Remove the members of the group and delete its positions."""
    await context.answered(context.service.groups.delete(group), "delete group")
    return DeletedGroup(deleted=True, group=group, group_id=group)


@get("/groups/{group:str}/assignment", tags=["groups"], summary="Get the assignment of a member")
async def show_assignment(context: Shared, group: FromPath[str], member_id: FromQuery[str | None] = None) -> Assignment:
    """The partitions that the member may poll now."""
    if not member_id:
        raise InvalidRequest("member_id query param is required", path="member_id")
    info = await context.answered(context.service.groups.describe(group))
    for member in info.members:
        if member.member_id == member_id:
            partitions = shown_partitions(member.partitions)
            return Assignment(member_id=member_id, generation=info.generation, partitions=partitions)
    raise NotGroupMember(group, member_id)


@get("/groups/{group:str}/blocked", tags=["groups"], summary="List blocked keys")
async def list_blocked(
    context: Shared, group: FromPath[str], encoding: FromQuery[Encoding] = Encoding.TEXT
) -> BlockedKeys:
    """For a key-shared group: the unsettled messages that block later messages with the same key."""
    blocked = [_blocked(one, encoding) for one in (await context.answered(context.service.groups.blocked(group)))]
    return BlockedKeys(blocked=blocked, count=len(blocked))


@get("/groups/{group:str}/rebalance/stats", tags=["groups"], summary="Count the rebalances of a group")
async def group_rebalance_stats(context: Shared, group: FromPath[str]) -> ShownRebalanceStats:
    """Counts and durations of the group's rebalances."""
    return _rebalances(await context.answered(context.service.groups.rebalance_stats(group)))


@get("/rebalance/stats", tags=["groups"], summary="Count the rebalances of all groups")
async def rebalance_stats(context: Shared) -> ShownRebalanceStats:
    """Counts and durations of all groups together, deleted groups included."""
    return _rebalances(await context.answered(context.service.groups.rebalance_stats()))


async def _join(context: RequestContext, group: str, body: JoinBody, *, confirms_revocations: bool) -> JoinedGroup:
    wanted: dict[str, Any] = {
        "member_id": body.member_id,
        "session_timeout_ms": duration_ms(body.session_timeout, "session_timeout"),
        "mode": body.mode,
        "protocol": body.protocol,
        "assignor": body.assignor,
        "start": body.start,
        "ack": body.ack,
        "auto_commit": body.auto_commit,
        "visibility_timeout_ms": duration_ms(body.visibility_timeout, "visibility_timeout"),
        "max_in_flight": body.max_in_flight,
        "auto_commit_interval_ms": duration_ms(body.auto_commit_interval, "auto_commit_interval"),
    }
    asked = Join(
        body.client_id,
        tuple(body.topics or ()),
        confirms_revocations=confirms_revocations,
        **{name: value for name, value in wanted.items() if value is not None},
    )
    joined = await context.answered(context.service.groups.join(group, asked), "join")
    return JoinedGroup(
        member_id=joined.member_id,
        generation=joined.generation,
        leader_id=joined.leader_id,
        leader=joined.leader_id == joined.member_id,
        partitions=[name.partition for name in joined.partitions],
        assigned_partitions=[str(name) for name in joined.partitions],
        members=joined.members,
        rebalance_required=joined.rebalance_required,
        mode=joined.mode,
        protocol=joined.protocol,
        session_timeout=format_duration(joined.session_timeout_ms * MS),
        heartbeat_interval=format_duration(joined.heartbeat_interval_ms * MS),
    )


def _group_line(info: reports.GroupInfo) -> GroupLine:
    return GroupLine(
        id=info.group,
        group_id=info.group,
        state=info.state,
        members=len(info.members),
        generation=info.generation,
        topics=info.topics,
        mode=info.mode,
        protocol=info.protocol,
        lag=info.lag,
    )


def _group(info: reports.GroupInfo) -> dict[str, Any]:
    return {
        "id": info.group,
        "group_id": info.group,
        "state": info.state,
        "generation": info.generation,
        "mode": info.mode,
        "protocol": info.protocol,
        "assignor": info.assignor,
        "leader_id": info.leader_id,
        "topics": info.topics,
        "created_at": time_text(info.created_at_ns),
        "lag": info.lag,
        "expired_leases": info.expired_leases,
        "members": [_member(member) for member in info.members],
    }


def _member(member: reports.MemberInfo) -> ShownMember:
    return ShownMember(
        id=member.member_id,
        member_id=member.member_id,
        client_id=member.client_id,
        assigned_partitions=[str(name) for name in member.partitions],
        assignments=shown_partitions(member.partitions),
        in_flight=member.in_flight,
        expired_leases=member.expired_leases,
        last_heartbeat=time_text(member.last_heartbeat_ns),
        joined_at=time_text(member.joined_at_ns),
    )


def _rebalances(report: reports.RebalanceReport) -> ShownRebalanceStats:
    facts = msgspec.structs.asdict(report)
    return ShownRebalanceStats(last_rebalance_at=_time_or_unset(facts.pop("last_rebalance_at_ns")), **facts)


def _blocked(blocked: reports.BlockedKey, encoding: Encoding) -> ShownBlockedKey:
    shown = show_key(blocked.key, encoding)
    return ShownBlockedKey(
        topic=blocked.topic,
        partition=blocked.partition,
        key=shown.key,
        key_base64=shown.key_base64,
        offset=blocked.offset,
        member_id=blocked.member_id,
        since=time_text(blocked.since_ns),
        delivery_count=blocked.delivery_count,
        waiting=blocked.waiting,
    )


def _time_or_unset(ns: int | None) -> str | msgspec.UnsetType:
    return UNSET if ns is None else time_text(ns)
