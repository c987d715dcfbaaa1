"""Positions of groups: get, commit and reset them."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody

from goqueue.doors.http.context import Shared
from goqueue.doors.http.shapes import Offset, Partition, Text, Time, parse_partition, time_ns, time_text
from goqueue.doors.http.strictness import Body
from goqueue.errors import GroupNotFound, InvalidRequest
from goqueue.record.header import OFFSET_MAX
from goqueue.wire import reports

ALL_PARTITIONS = -1

OffsetMap = dict[str, dict[str, int]]


class ShownPosition(msgspec.Struct, kw_only=True):
    """The position of a group in one partition."""

    topic: str
    partition: int
    offset: int
    end_offset: int
    lag: int
    lag_seconds: float
    metadata: str


class Positions(msgspec.Struct, kw_only=True):
    """The positions of a group: as a map, in the equal fields `topics` and `offsets`, and in detail."""

    group_id: str
    topics: OffsetMap
    offsets: OffsetMap
    details: list[ShownPosition]
    generation: int
    updated_at: str


class CommitEntry(Body, kw_only=True):
    """A position to commit."""

    topic: str
    partition: Partition
    offset: Offset
    metadata: Text = None


class CommitBody(Body, kw_only=True):
    """Positions to commit, as a map or as a list."""

    member_id: Text = None
    generation: int | None = None
    offsets: dict[str, dict[str, Offset]] | list[CommitEntry] | None = None
    allow_backwards: bool | None = None


class ShownCommit(msgspec.Struct, kw_only=True):
    """The positions that were stored."""

    status: str
    committed: bool
    group: str
    group_id: str
    offsets: OffsetMap


class ResetBody(Body, kw_only=True):
    """The partitions to reset, and the position to set."""

    strategy: str
    topic: Text = None
    partition: Annotated[int, msgspec.Meta(ge=ALL_PARTITIONS, le=2**31 - 1)] | None = None
    timestamp: Time = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] | None = None
    dry_run: bool | None = None


class ShownReset(msgspec.Struct, kw_only=True):
    """A position that was set, or would be with `dry_run`."""

    topic: str
    partition: int
    offset: int
    old_offset: int


class Reset(msgspec.Struct, kw_only=True):
    """The positions that were set, or would be with `dry_run`."""

    group_id: str
    reset_count: int
    new_offsets: list[ShownReset]
    dry_run: bool


@get("/groups/{group:str}/offsets", tags=["groups"], summary="Get the positions of a group")
async def show_positions(context: Shared, group: FromPath[str], topic: FromQuery[str | None] = None) -> Positions:
    """The next offset to read in each partition, and the lag; empty if the group does not exist."""
    groups = context.service.groups
    positions = await context.answered(groups.positions(group, topic))
    try:
        generation = (await context.answered(groups.describe(group))).generation
    except GroupNotFound:
        generation = 0
    offsets = offset_map(positions)
    return Positions(
        group_id=group,
        topics=offsets,
        offsets=offsets,
        details=[ShownPosition(**msgspec.structs.asdict(position)) for position in positions],
        generation=generation,
        updated_at=time_text(context.clock.wall_ns()),
    )


@post("/groups/{group:str}/offsets", tags=["groups"], summary="Commit positions", status_code=200)
async def commit_positions(context: Shared, group: FromPath[str], data: JSONBody[CommitBody]) -> ShownCommit:
    """Commit all positions or none. A position after the end becomes the end.

    A position below the committed one is ignored, unless `allow_backwards` is set: then messages from there on are
    delivered again, as after a reset of that partition.
    """
    if not data.offsets:
        raise InvalidRequest("offsets are required", path="offsets")
    pending = context.service.groups.commit(
        group,
        list(commits_of(data.offsets)),
        member_id=data.member_id,
        generation=data.generation,
        allow_backwards=bool(data.allow_backwards),
    )
    stored = await context.answered(pending, "commit")
    return ShownCommit(status="committed", committed=True, group=group, group_id=group, offsets=offset_map(stored))


@post("/groups/{group:str}/offsets/reset", tags=["groups"], summary="Reset positions", status_code=200)
async def reset_positions(context: Shared, group: FromPath[str], data: JSONBody[ResetBody]) -> Reset:
    """Set positions to the start, the end, a time or an offset. Leases of the affected partitions end."""
    is_dry = bool(data.dry_run)
    pending = context.service.groups.reset(
        group,
        data.strategy,
        topic=data.topic,
        partition=None if data.partition == ALL_PARTITIONS else data.partition,
        time_ns=time_ns(data.timestamp, "timestamp", now_ns=context.clock.wall_ns()),
        offset=data.offset,
        dry_run=is_dry,
    )
    resets = [ShownReset(**msgspec.structs.asdict(reset)) for reset in await context.answered(pending, "reset")]
    return Reset(group_id=group, reset_count=len(resets), new_offsets=resets, dry_run=is_dry)


def commits_of(offsets: OffsetMap | list[CommitEntry]) -> Iterator[reports.PositionCommit]:
    """The positions of a request."""
    if isinstance(offsets, list):
        for entry in offsets:
            yield reports.PositionCommit(entry.topic, entry.partition, entry.offset, entry.metadata or "")
    else:
        for topic, by_partition in offsets.items():
            for partition, offset in by_partition.items():
                yield reports.PositionCommit(topic, parse_partition(partition), offset)


def offset_map(positions: Iterable[reports.Position | reports.PositionCommit]) -> OffsetMap:
    """Offsets by topic and partition."""
    offsets: OffsetMap = {}
    for position in positions:
        offsets.setdefault(position.topic, {})[str(position.partition)] = position.offset
    return offsets
