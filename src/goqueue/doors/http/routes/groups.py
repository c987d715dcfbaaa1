"""Consumer groups: who is in them, who has which partitions, and how that changes.

A member that came by `/join/cooperative` is asked to give partitions back and says when it has; one that came by
`/join` is not asked. In everything else the two are the same.
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
    """Who joins, and what it wants."""

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
    """What a member has and has to know."""

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
    """Which member it is."""

    member_id: str


class HeartbeatBody(MemberBody, kw_only=True):
    """Which member is alive, and which generation it knows."""

    generation: int | None = None


class ShownHeartbeat(msgspec.Struct, kw_only=True):
    """The answer to a heartbeat."""

    status: str
    rebalance_required: bool
    state: str
    generation: int


class CooperativeHeartbeat(msgspec.Struct, kw_only=True):
    """The answer to a heartbeat of a member that gives partitions back when it is asked to."""

    rebalance_required: bool
    partitions_to_revoke: list[ShownPartitionName]
    partitions_assigned: list[ShownPartitionName]
    generation: int
    protocol: str
    state: str
    revocation_deadline: str | msgspec.UnsetType = UNSET


class RevokedPartition(Body, kw_only=True):
    """A partition that was given back."""

    topic: str
    partition: Partition


class RevokeBody(HeartbeatBody, kw_only=True):
    """Which partitions a member has given back; all that it was asked for if it does not say."""

    revoked_partitions: list[RevokedPartition] | None = None


class Revoked(msgspec.Struct, kw_only=True):
    """The answer to a revocation."""

    status: str
    pending_count: int
    rebalance_state: str


class Left(msgspec.Struct, kw_only=True):
    """A member that is gone."""

    status: str
    left: bool


class GroupLine(msgspec.Struct, kw_only=True):
    """A group in the list of them."""

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
    """All groups."""

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
    """A group as it is now."""

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


class RebalanceStats(msgspec.Struct, kw_only=True):
    """How the rebalances went."""

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
    """A group as it is now, and how it is being rebalanced."""

    assignment_strategy: str
    rebalance_state: str
    member_assignments: dict[str, list[ShownPartitionName]]
    rebalance_metrics: RebalanceStats


class DeletedGroup(msgspec.Struct, kw_only=True):
    """A group that is gone."""

    deleted: bool
    group: str
    group_id: str


class Assignment(msgspec.Struct, kw_only=True):
    """The partitions of one member."""

    member_id: str
    generation: int
    partitions: list[ShownPartitionName]


class ShownBlockedKey(msgspec.Struct, kw_only=True):
    """A message that holds back its key."""

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
    """The messages that hold back their keys."""

    blocked: list[ShownBlockedKey]
    count: int


# --- membership --------------------------------------------------------------------------------


@post("/groups/{group:str}/join", tags=["groups"], summary="Join a group", status_code=200)
async def join_group(context: Shared, group: FromPath[str], data: JSONBody[JoinBody]) -> JoinedGroup:
    """What moves because of later changes is taken from this member without asking it."""
    return await _join(context, group, data, confirms_revocations=False)


@post("/groups/{group:str}/join/cooperative", tags=["groups"], summary="Join, to be asked", status_code=200)
async def join_group_cooperatively(context: Shared, group: FromPath[str], data: JSONBody[JoinBody]) -> JoinedGroup:
    """What moves because of later changes is asked back from this member in its heartbeats."""
    return await _join(context, group, data, confirms_revocations=True)


@post("/groups/{group:str}/heartbeat", tags=["groups"], summary="Say that a member is alive", status_code=200)
async def heartbeat(context: Shared, group: FromPath[str], data: JSONBody[HeartbeatBody]) -> ShownHeartbeat:
    """The session of the member begins anew. A poll does the same."""
    beat = await context.answered(context.service.groups.heartbeat(group, data.member_id, data.generation))
    return ShownHeartbeat(
        status="ok", rebalance_required=beat.rebalance_required, state=beat.state, generation=beat.generation
    )


@post(
    "/groups/{group:str}/heartbeat/cooperative",
    tags=["groups"],
    summary="Say that a member is alive, and learn what it is to give back",
    status_code=200,
)
async def heartbeat_cooperatively(
    context: Shared, group: FromPath[str], data: JSONBody[HeartbeatBody]
) -> CooperativeHeartbeat:
    """An older generation is told the new one, not refused."""
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


@post("/groups/{group:str}/revoke", tags=["groups"], summary="Give partitions back", status_code=200)
async def revoke(context: Shared, group: FromPath[str], data: JSONBody[RevokeBody]) -> Revoked:
    """The partitions that the member was asked for go to those who are to have them."""
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
    """What the member still leased is due again at once."""
    await context.answered(context.service.groups.leave(group, data.member_id), "leave")
    return Left(status="left", left=True)


# --- looking -----------------------------------------------------------------------------------


@get("/groups", tags=["groups"], summary="List groups")
async def list_groups(context: Shared) -> GroupList:
    """All groups, with how they are."""
    groups = context.service.groups
    details = []
    for name in await context.answered(groups.names()):
        with suppress(GroupNotFound):  # which it may have become meanwhile
            details.append(_connection(await context.answered(groups.describe(name))))
        await asyncio.sleep(0)  # a thousand groups must not keep the loop from everyone else
    return GroupList(groups=[group.id for group in details], details=details, count=len(details))


@get("/groups/{group:str}", tags=["groups"], summary="Look at a group")
async def show_group(context: Shared, group: FromPath[str]) -> ShownGroup:
    """Its members, their partitions and how far it is behind."""
    return ShownGroup(**_group(await context.answered(context.service.groups.describe(group))))


@get("/groups/{group:str}/cooperative", tags=["groups"], summary="Look at the rebalancing of a group")
async def show_cooperative_group(context: Shared, group: FromPath[str]) -> CooperativeGroup:
    """The group, who has which partitions, and how the last rebalances went."""
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
    """Its members are put out, its positions dropped."""
    await context.answered(context.service.groups.delete(group), "delete group")
    return DeletedGroup(deleted=True, group=group, group_id=group)


@get("/groups/{group:str}/assignment", tags=["groups"], summary="Look at the partitions of a member")
async def show_assignment(context: Shared, group: FromPath[str], member_id: FromQuery[str | None] = None) -> Assignment:
    """What the member may take from now."""
    if not member_id:
        raise InvalidRequest("member_id query param is required", path="member_id")
    info = await context.answered(context.service.groups.describe(group))
    for member in info.members:
        if member.member_id == member_id:
            partitions = shown_partitions(member.partitions)
            return Assignment(member_id=member_id, generation=info.generation, partitions=partitions)
    raise NotGroupMember(group, member_id)


@get("/groups/{group:str}/blocked", tags=["groups"], summary="Find out what holds back which key")
async def list_blocked(
    context: Shared, group: FromPath[str], encoding: FromQuery[Encoding] = Encoding.TEXT
) -> BlockedKeys:
    """For a key-shared group: the messages whose keys have others waiting behind them."""
    blocked = [_blocked(one, encoding) for one in (await context.answered(context.service.groups.blocked(group)))]
    return BlockedKeys(blocked=blocked, count=len(blocked))


@get("/groups/{group:str}/rebalance/stats", tags=["groups"], summary="Count the rebalances of a group")
async def group_rebalance_stats(context: Shared, group: FromPath[str]) -> RebalanceStats:
    """How the rebalances of the group went."""
    return _rebalances(await context.answered(context.service.groups.rebalance_stats(group)))


@get("/rebalance/stats", tags=["groups"], summary="Count the rebalances of all groups")
async def rebalance_stats(context: Shared) -> RebalanceStats:
    """How the rebalances of all groups went."""
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


def _connection(info: reports.GroupInfo) -> GroupLine:
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


def _rebalances(report: reports.RebalanceReport) -> RebalanceStats:
    facts = msgspec.structs.asdict(report)
    return RebalanceStats(last_rebalance_at=_time_or_unset(facts.pop("last_rebalance_at_ns")), **facts)


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
