"""Statistics by priority: how many messages of each lane are waiting, in flight and done."""

from collections.abc import Sequence

import msgspec
from litestar import get
from litestar.params import FromQuery

from goqueue.doors.http.context import Shared
from goqueue.doors.http.shapes import PRIORITIES, time_text
from goqueue.times import format_duration
from goqueue.wire import reports

LANES = range(len(PRIORITIES))


class LaneCounts(msgspec.Struct, kw_only=True):
    """One partition by lane. `oldest_pending` is empty if nothing waits in the lane."""

    total: list[int]
    pending: list[int]
    ready: list[int]
    in_flight: list[int]
    consumed: list[int]
    enqueue_rate: list[float]
    dequeue_rate: list[float]
    oldest_pending: list[str]


class TopicLanes(msgspec.Struct, kw_only=True):
    """The messages of a topic in each lane, from critical to background."""

    total_by_priority: list[int]
    partitions: dict[str, LaneCounts]


class PriorityStats(msgspec.Struct, kw_only=True):
    """All topics by lane."""

    total_by_priority: list[int]
    messages_by_priority: dict[str, int]
    avg_wait_time_by_priority: dict[str, str]
    topics: dict[str, TopicLanes]


@get("/priority/stats", tags=["priorities"], summary="Count messages by priority")
async def priority_stats(
    context: Shared, topic: FromQuery[str | None] = None, group: FromQuery[str | None] = None
) -> PriorityStats:
    """Counts of one topic or all, for one group or all together. Lists are ordered from critical to background."""
    lanes = await context.answered(context.service.groups.lanes(topic, group))
    by_topic: dict[str, list[reports.LaneReport]] = {}
    for lane in lanes:
        by_topic.setdefault(lane.topic, []).append(lane)
    total = _total(lanes)
    return PriorityStats(
        total_by_priority=total,
        messages_by_priority=dict(zip(PRIORITIES, total, strict=True)),
        avg_wait_time_by_priority={
            name: format_duration(_wait_ns(lanes, lane)) for lane, name in enumerate(PRIORITIES)
        },
        topics={name: _topic(of_topic) for name, of_topic in by_topic.items()},
    )


def _topic(lanes: Sequence[reports.LaneReport]) -> TopicLanes:
    return TopicLanes(
        total_by_priority=_total(lanes), partitions={str(lane.partition): _counts(lane) for lane in lanes}
    )


def _counts(lane: reports.LaneReport) -> LaneCounts:
    return LaneCounts(
        total=lane.total,
        pending=lane.pending,
        ready=lane.ready,
        in_flight=lane.in_flight,
        consumed=lane.consumed,
        enqueue_rate=lane.enqueue_rate,
        dequeue_rate=lane.dequeue_rate,
        oldest_pending=["" if ns is None else time_text(ns) for ns in lane.oldest_pending_ns],
    )


def _total(lanes: Sequence[reports.LaneReport]) -> list[int]:
    return [sum(report.total[lane] for report in lanes) for lane in LANES]


def _wait_ns(lanes: Sequence[reports.LaneReport], lane: int) -> int:
    """The average over the partitions, weighted by the number of delivered messages."""
    delivered = [report.delivered[lane] for report in lanes]
    waited_ns = sum(report.average_wait_ns[lane] * count for report, count in zip(lanes, delivered, strict=True))
    return waited_ns // max(1, sum(delivered))
