"""Statistics of the lanes of a partition: messages pending, ready, in flight and done, and rates."""

from collections.abc import Sequence

from pyroaring import BitMap64

from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.clock import SECOND
from goqueue.delivery.cursor import Cursor
from goqueue.delivery.lane_stats import WINDOW_SECONDS
from goqueue.delivery.lanes import LANE_COUNT
from goqueue.delivery.offsets import between, span
from goqueue.wire import reports

US = 1_000
SCANNED_MAX = 16
"""How many stretches of a log that are not in the index are read for one report."""


def lane_report(delivery: PartitionDelivery, group: str | None, *, now_ns: int, wall_ns: int) -> reports.LaneReport:
    """One partition by lane: for one group, or all of them together; without any group, everything is ready."""
    leader, index = delivery.leader, delivery.index
    start, end = leader.log.start_offset, leader.last_stable_offset
    for _ in range(SCANNED_MAX):
        if not (delivery.cover_next(start, end) or delivery.find_removed()):
            break
    everything = between(index.covered, start, end) - delivery.never
    total = _by_lane(delivery, everything)
    groups = [found for name, found in delivery.groups.items() if group in (None, name)]
    visible = everything - delivery.delays.table.waiting
    if group is None and not groups:
        pending = ready = [len(part) for part in _by_lane(delivery, visible)]
        in_flight = consumed = [0] * LANE_COUNT
        oldest = _by_lane(delivery, visible)
    else:
        for found in groups:
            found.feed(1)
        cursors = [found.cursor for found in groups]
        mine = [everything - delivery.hidden_from(found.group) for found in groups]
        left = [part - cursor.acked - span(0, cursor.floor) for part, cursor in zip(mine, cursors, strict=True)]
        pending = _sizes(delivery, left)
        ready = [  # what compaction has removed stays in a lane until it is fetched
            sum(
                cursor.lanes.ready[lane].intersection_cardinality(part)
                for part, cursor in zip(mine, cursors, strict=True)
            )
            for lane in range(LANE_COUNT)
        ]
        in_flight = _sizes(delivery, [_leased(cursor) for cursor in cursors])
        consumed = [all_of - waits for all_of, waits in zip(_sizes(delivery, mine), pending, strict=True)]
        oldest = _by_lane(delivery, BitMap64().union(*left) if left else BitMap64())
    stats = [found.lane_stats for found in groups]
    delivered = [sum(one.delivered[lane] for one in stats) for lane in range(LANE_COUNT)]
    waited_us = [sum(one.waited_us(lane) for one in stats) for lane in range(LANE_COUNT)]
    served_ns = [[at for one in stats if (at := one.served_ns[lane]) is not None] for lane in range(LANE_COUNT)]
    return reports.LaneReport(
        topic=leader.origin.topic,
        partition=leader.origin.partition,
        total=[len(part) for part in total],
        pending=pending,
        ready=ready,
        in_flight=in_flight,
        consumed=consumed,
        enqueue_rate=_enqueue_rates(delivery, everything, wall_ns=wall_ns),
        dequeue_rate=[round(sum(one.done_per_second(lane, now_ns) for one in stats), 3) for lane in range(LANE_COUNT)],
        oldest_pending_ns=[delivery.fetcher.timestamp_of(part.min()) if part else None for part in oldest],
        average_wait_ns=[us * US // max(1, count) for us, count in zip(waited_us, delivered, strict=True)],
        delivered=delivered,
        boosts=[sum(one.boosts[lane] for one in stats) for lane in range(LANE_COUNT)],
        last_served_ns=[max(times, default=None) for times in served_ns],
    )


def _enqueue_rates(delivery: PartitionDelivery, everything: BitMap64, *, wall_ns: int) -> list[float]:
    """Messages per second, by the log, in the last minute, or since the first message if that is shorter."""
    log = delivery.leader.log
    since = log.offset_at_time(wall_ns - WINDOW_SECONDS * SECOND)
    parts = _by_lane(delivery, between(everything, since, log.next_offset))
    first_ns = delivery.fetcher.timestamp_of(since) if any(parts) and since == log.start_offset else None
    seconds = WINDOW_SECONDS if first_ns is None else min(WINDOW_SECONDS, max(1, -(-(wall_ns - first_ns) // SECOND)))
    return [round(len(part) / seconds, 3) for part in parts]


def _leased(cursor: Cursor) -> BitMap64:
    deliveries = cursor.deliveries.values()
    return BitMap64().union(*(delivery.offsets for delivery in deliveries)) if deliveries else BitMap64()


def _by_lane(delivery: PartitionDelivery, offsets: BitMap64) -> list[BitMap64]:
    found = [BitMap64() for _ in range(LANE_COUNT)]
    for lane, part in delivery.index.split(offsets):
        found[lane] = part
    return found


def _sizes(delivery: PartitionDelivery, sets: Sequence[BitMap64]) -> list[int]:
    sizes = [0] * LANE_COUNT
    for offsets in sets:
        for lane, part in enumerate(_by_lane(delivery, offsets)):
            sizes[lane] += len(part)
    return sizes
