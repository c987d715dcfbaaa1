"""From offsets to tasks: what there is to read, how much of it now, and which task reads what. Without I/O.

A *world* is the state of the topics at one moment: their ids, and the start and end of each partition. *Positions* are
how far a reader has read; a stream keeps them in its checkpoint, as JSON:

    {"orders": {"id": "0d4c...", "0": 5, "1": 9}}     the id of the topic, and the next offset of each partition
    {"orders": {..., "pending": {"1": "2,4-5"}}}      and earlier offsets that are still to be read: delayed messages
                                                      that were not due, or messages that a group has not done

A topic that was deleted and created again has another id. A partition that positions do not name was added later, and
starts at offset 0. An entry changes only if there is something to read, so equal positions mean that nothing is new.

    world, positions  -> backlog         ranges that can be read, and losses: offsets that should be there and are not
    backlog, limits   -> admitted        what one micro-batch reads: in proportion, and no range is starved
    admitted          -> tasks           cut into pieces, then packed in the order of the log

Rows of a partition are in the order of the log within a task, and tasks are in that order, too. Small ranges share a
task, since the start of a task has a cost, too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from goqueue.errors import InvalidConfig, InvalidRequest, PartitionNotFound, StorageError, lost_text
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.spark.options import EARLIEST, LATEST, Edge, Place, Timestamp, TopicOffsets
from goqueue.spark.spans import Spans, covering, first_of, from_text, minus, offset_count, to_text, union, within
from goqueue.wire.scan_reports import Piece

TASK_BYTES_MIN: Final = 4 * 1024 * 1024
"""Below it, a task costs more to start than it saves the others."""
TASK_BYTES_MAX: Final = 64 * 1024 * 1024
PIECES_OF_A_TASK: Final = 8
"""Pieces are finer than tasks, so that tasks are of about equal size."""
LOSSES_SHOWN: Final = 3
PENDING_GAP: Final = 1_000
"""Pending offsets closer than this are read as one range; the offsets between them are dropped after the read."""

_ID = "id"
_PENDING = "pending"
_NO_PENDING: Final[Mapping[int, Spans]] = {}
_PARTITION = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_US = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class Bounds(NamedTuple):
    """The start and end of a partition for its reader, and about how many bytes are between them."""

    start: int
    end: int
    size_bytes: int = 0


class TopicBounds(NamedTuple):
    """The current state of a topic."""

    topic_id: str
    partitions: Mapping[int, Bounds]


class TopicPositions(NamedTuple):
    """The next offset of each partition of one topic, and the offsets before it that are still to be read."""

    topic_id: str
    offsets: Mapping[int, int]
    pending: Mapping[int, Spans] = _NO_PENDING


World = Mapping[str, TopicBounds]
Positions = Mapping[str, TopicPositions]


class Loss(NamedTuple):
    """Messages that should be there and are not; without a partition, those of the whole topic."""

    topic: str
    partition: int | None
    reason: str


class Judged(NamedTuple):
    """What can be read, in the order of topics, partitions and offsets, and what cannot."""

    ranges: list[OffsetRange]
    losses: list[Loss]


class Sized(NamedTuple):
    """A range, and about how many bytes it takes."""

    range: OffsetRange
    size_bytes: int


class Condition(NamedTuple):
    """A filter on one column; the value of `in` is a tuple."""

    column: str
    operator: str  # = in > >= < <=
    value: object


class DataLost(StorageError):
    """Offsets that a reader needs are gone. With failOnDataLoss=false it skips them."""

    code = "OFFSET_OUT_OF_RANGE"

    def __init__(self, losses: Sequence[Loss]) -> None:
        assert losses
        shown = "; ".join(loss.reason for loss in losses[:LOSSES_SHOWN])
        more = f"; and {len(losses) - LOSSES_SHOWN} more" if len(losses) > LOSSES_SHOWN else ""
        super().__init__(f"data lost: {shown}{more} (failOnDataLoss=false skips it)")
        self.losses = [tuple(loss) for loss in losses]


# --- positions -----------------------------------------------------------------------------------


def to_json(positions: Positions) -> dict[str, dict[str, Any]]:
    """The positions as a checkpoint keeps them; equal positions are equal text."""
    found: dict[str, dict[str, Any]] = {}
    for topic, (topic_id, offsets, pending) in sorted(positions.items()):
        found[topic] = {_ID: topic_id, **{str(partition): offsets[partition] for partition in sorted(offsets)}}
        texts = {str(partition): to_text(left) for partition, left in sorted(pending.items()) if left}
        if texts:
            found[topic][_PENDING] = texts
    return found


def from_json(found: object) -> Positions:
    """The positions of a checkpoint. Raises `InvalidRequest` for anything that `to_json` does not write."""
    if not isinstance(found, dict):
        raise InvalidRequest(f"malformed offset in the checkpoint: {found!r:.100} is not an object")
    positions = {}
    for topic, entry in found.items():
        if not isinstance(topic, str) or not isinstance(entry, dict) or not isinstance(entry.get(_ID), str):
            raise InvalidRequest(f"malformed offset in the checkpoint: {topic!r:.100} has no partitions with an id")
        offsets = {}
        for partition, offset in entry.items():
            if partition in (_ID, _PENDING):
                continue
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= OFFSET_MAX
            if not isinstance(partition, str) or not _PARTITION.fullmatch(partition) or not is_offset:
                raise InvalidRequest(
                    f"malformed offset in the checkpoint: {topic} has {partition!r:.100}: {offset!r:.100}"
                )
            offsets[int(partition)] = offset
        positions[topic] = TopicPositions(entry[_ID], offsets, _pending_of(topic, entry.get(_PENDING, {}), offsets))
    return positions


def _pending_of(topic: str, found: object, offsets: Mapping[int, int]) -> Mapping[int, Spans]:
    texts = found if isinstance(found, dict) else {"": found}
    pending = {}
    for name, text in texts.items():
        partition = int(name) if isinstance(name, str) and _PARTITION.fullmatch(name) else -1
        left = from_text(text) if isinstance(text, str) else None
        if not left or partition not in offsets or left[-1][1] > offsets[partition]:
            raise InvalidRequest(f"malformed offset in the checkpoint: {topic} has pending {name!r:.20}: {text!r:.100}")
        pending[partition] = left
    return pending or _NO_PENDING


def ends(world: World) -> Positions:
    """The end of every partition."""
    return {
        topic: TopicPositions(topic_id, {partition: bounds.end for partition, bounds in partitions.items()})
        for topic, (topic_id, partitions) in world.items()
    }


def resolved(
    world: World,
    place: Place,
    *,
    option: str,
    at_time: Mapping[str, Sequence[int]] | None = None,
) -> Positions:
    """The offset at which each partition starts or ends, by the option `place`.

    `at_time` holds the offsets that the broker found for a timestamp. Offsets must name every partition that is read,
    and no other. An offset out of range is not an error here; `between` reports it as a loss.
    """
    if isinstance(place, TopicOffsets):
        _check_named(world, place, option)
    found = {}
    for topic, (topic_id, partitions) in world.items():
        offsets = {}
        for partition, bounds in partitions.items():
            match place:
                case Timestamp():
                    assert at_time is not None
                    offsets[partition] = min(max(at_time[topic][partition], bounds.start), bounds.end)
                case TopicOffsets():
                    offset = place.by_topic[topic][partition]
                    offsets[partition] = {EARLIEST: bounds.start, LATEST: bounds.end}.get(offset, offset)
                case Edge.EARLIEST:
                    offsets[partition] = bounds.start
                case Edge.LATEST:
                    offsets[partition] = bounds.end
        found[topic] = TopicPositions(topic_id, offsets)
    return found


def _check_named(world: World, place: TopicOffsets, option: str) -> None:
    for topic, offsets in place.by_topic.items():
        if topic not in world:
            raise InvalidConfig(option, topic, "is not a topic that is read")
        for partition in offsets:
            if partition not in world[topic].partitions:
                raise InvalidConfig(option, f"{topic}-{partition}", "is not a partition that is read")
    unnamed = [
        f"{topic}-{partition}"
        for topic, (_, partitions) in sorted(world.items())
        for partition in sorted(partitions)
        if partition not in place.by_topic.get(topic, {})
    ]
    if unnamed:
        shown = ", ".join(unnamed[:LOSSES_SHOWN]) + (", ..." if len(unnamed) > LOSSES_SHOWN else "")
        raise InvalidRequest(f"{option} lacks {shown}: name each partition, -2 is earliest and -1 latest")


def committed(
    world: World,
    group: Mapping[TopicPartition, int],
    default: Edge,
    done: Mapping[TopicPartition, Spans] | None = None,
) -> Positions:
    """The positions of a group. A topic of which the group has no position starts at the default.

    A partition without a position in a topic that has some was added later, and starts at its beginning. What the group
    has done above its position is not read again: reading continues after the last of it, and the gaps are pending.
    """
    known = {topic for topic, _ in group}
    found = {}
    for topic, (topic_id, partitions) in world.items():
        offsets: dict[int, int] = {}
        pending: dict[int, Spans] = {}
        for partition, bounds in partitions.items():
            at_edge = bounds.start if default is Edge.EARLIEST or topic in known else bounds.end
            name = TopicPartition(topic, partition)
            floor = offsets[partition] = group.get(name, at_edge)
            above = minus((done or {}).get(name, ()), ((0, floor),))
            if above:
                offsets[partition] = above[-1][1]
                pending[partition] = minus(((floor, above[-1][1]),), above)
        found[topic] = TopicPositions(topic_id, offsets, pending)
    return found


def matured(
    start: Positions, end: Positions, waiting: Mapping[TopicPartition, Spans], *, limit: int | None = None
) -> Positions:
    """The end of a micro-batch that also reads pending offsets that are due by now, at most `limit` of them.

    New offsets that are not due become pending.
    """
    found = {}
    for topic, known in end.items():
        begin = start.get(topic)
        is_same = begin is not None and begin.topic_id == known.topic_id
        pending: dict[int, Spans] = {}
        for partition, offset in known.offsets.items():
            first = begin.offsets.get(partition, 0) if begin is not None and is_same else 0
            before = begin.pending.get(partition, ()) if begin is not None and is_same else ()
            still = waiting.get(TopicPartition(topic, partition), ())
            due = minus(before, still)
            if limit is not None:
                due = first_of(due, limit)
                limit -= offset_count(due)
            left = union(minus(before, due), within(((first, offset),), still))
            if left:
                pending[partition] = left
        found[topic] = known._replace(pending=pending or _NO_PENDING)
    return found


def pending_before(positions: Positions, end: Positions) -> Positions:
    """The positions, without pending offsets at or after the end."""
    found = {}
    for topic, known in positions.items():
        limits = end[topic].offsets if topic in end else {}
        pending = {
            partition: within(left, ((0, limits[partition]),)) if partition in limits else left
            for partition, left in known.pending.items()
        }
        found[topic] = known._replace(pending=pending)
    return found


def skipped(start: Positions, end: Positions) -> dict[TopicPartition, Spans]:
    """The offsets in the ranges of `between` that are not read: done before, or still pending at the end."""
    found = {}
    for topic, (_, offsets, pending) in end.items():
        for partition in offsets:
            old, new = _reads(start, end, topic, partition)
            between_old = minus(covering(old, PENDING_GAP), old)
            left_out = union(between_old, within(new, pending.get(partition, ())))
            if left_out:
                found[TopicPartition(topic, partition)] = left_out
    return found


def _reads(start: Positions, end: Positions, topic: str, partition: int) -> tuple[Spans, Spans]:
    """Of one partition, the offsets that are no longer pending, and the new ones."""
    begin = start.get(topic)
    last = end[topic].offsets[partition]
    if begin is None or begin.topic_id != end[topic].topic_id:
        return (), ((0, last),) if last else ()
    first = begin.offsets.get(partition, 0)
    old = minus(begin.pending.get(partition, ()), end[topic].pending.get(partition, ()))
    return old, ((first, last),) if first < last else ()


def latest_of(one: Positions, other: Positions) -> Positions:
    """The later of two positions in each partition of the second."""
    return {
        topic: TopicPositions(
            topic_id,
            {partition: max(offset, one[topic].offsets.get(partition, 0)) for partition, offset in offsets.items()},
        )
        for topic, (topic_id, offsets, _) in other.items()
    }


def advanced(positions: Positions, admitted: Iterable[OffsetRange], world: World) -> Positions:
    """The positions after the admitted ranges are read. A topic with another id starts without offsets."""
    moved = dict(positions)
    for topic, partition, start, end in admitted:
        if start >= end:
            continue
        topic_id = world[topic].topic_id
        known = moved.get(topic)
        if known is None or known.topic_id != topic_id:
            known = TopicPositions(topic_id, {})
        moved[topic] = known._replace(offsets={**known.offsets, partition: end})
    return moved


# --- what there is to read -----------------------------------------------------------------------


def backlog(positions: Positions, world: World, *, target: Positions | None = None) -> Judged:
    """All that a reader has not read yet, at most up to the target."""
    ranges: list[OffsetRange] = []
    losses = [replaced(topic, None) for topic in sorted(positions) if topic not in world]
    for topic, (topic_id, partitions) in sorted(world.items()):
        known = positions.get(topic)
        if known and known.topic_id != topic_id:
            losses.append(replaced(topic, world[topic]))
            known = None
        aim = None if target is None else target.get(topic)
        if target is not None and (aim is None or aim.topic_id != topic_id):
            continue
        for partition, bounds in sorted(partitions.items()):
            start = known.offsets.get(partition, 0) if known else 0
            end = bounds.end if aim is None else min(bounds.end, aim.offsets.get(partition, 0))
            if bounds.end < start:
                losses.append(ends_early(OffsetRange(topic, partition, start, start), bounds.end))
            elif start < end:
                _judge(OffsetRange(topic, partition, start, end), bounds, ranges, losses)
    return Judged(ranges, losses)


def between(start: Positions, end: Positions, world: World) -> Judged:
    """The ranges between two positions that still exist, and the losses."""
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for topic, (topic_id, offsets, _) in sorted(end.items()):
        begin = start.get(topic)
        if begin and begin.topic_id != topic_id:
            begin = None
        pending = [
            OffsetRange(topic, partition, *each)
            for partition in sorted(begin.pending if begin else ())
            if partition in offsets
            for each in covering(_reads(start, end, topic, partition)[0], PENDING_GAP)
        ]
        wanted = [
            OffsetRange(topic, partition, begin.offsets.get(partition, 0) if begin else 0, last)
            for partition, last in sorted(offsets.items())
        ]
        losses += [
            Loss(topic, one.partition, f"{_name(one)} is to be read from {one.start}, but ends at {one.end}")
            for one in wanted
            if one.start > one.end
        ]
        wanted = sorted(pending + [one for one in wanted if one.start < one.end])
        current = world.get(topic)
        if current is None or current.topic_id != topic_id:
            if wanted:
                losses.append(replaced(topic, current))
            continue
        for one in wanted:
            if one.partition not in current.partitions:
                raise PartitionNotFound(topic, one.partition)
            _judge(one, current.partitions[one.partition], ranges, losses)
    return Judged(ranges, losses)


def _judge(wanted: OffsetRange, bounds: Bounds, ranges: list[OffsetRange], losses: list[Loss]) -> None:
    start, end = max(wanted.start, bounds.start), min(wanted.end, bounds.end)
    if wanted.start < bounds.start:
        losses.append(passed(wanted, bounds.start))
    if bounds.end < wanted.end:
        losses.append(ends_early(wanted, bounds.end))
    if start < end:
        ranges.append(wanted._replace(start=start, end=end))


def passed(wanted: OffsetRange, log_start: int) -> Loss:
    """The loss of offsets that retention removed before they were read."""
    last = min(log_start, wanted.end) - 1
    reason = f"offsets {wanted.start} to {last} of {_name(wanted)} are gone, its log begins at {log_start}"
    return Loss(wanted.topic, wanted.partition, reason)


def damaged(topic: str, partition: int, first_offset: int, next_offset: int, reason: str) -> Loss:
    """The loss of records that cannot be read."""
    return Loss(topic, partition, lost_text(topic, partition, first_offset, next_offset, reason))


def ends_early(wanted: OffsetRange, end: int) -> Loss:
    """The loss at the end of a log that is shorter than it was."""
    asked = max(wanted.start, wanted.end)
    return Loss(wanted.topic, wanted.partition, f"{_name(wanted)} is to be read to {asked}, but ends at {end}")


def replaced(topic: str, current: TopicBounds | None) -> Loss:
    """The loss of a topic that was deleted, or deleted and created again."""
    return Loss(topic, None, f"topic {topic} was deleted" + ("" if current is None else " and created again"))


def _name(one: OffsetRange) -> str:
    return f"{one.topic}-{one.partition}"


# --- how much of it now --------------------------------------------------------------------------


def limit_offsets(ahead: Sequence[OffsetRange], limit: int, *, turn: int) -> list[OffsetRange]:
    """At most `limit` offsets of all ranges together: each range in proportion to its length, and at least one offset.

    With more ranges than `limit`, `turn` selects the next ones in a round-robin.
    """
    lengths = [one.end - one.start for one in ahead]
    count, total = len(ahead), sum(lengths)
    if total <= limit:
        return list(ahead)
    if limit <= count:
        chosen = {(turn * limit + step) % count for step in range(limit)}
        shares = [int(index in chosen) for index in range(count)]
    else:
        spare = limit - count
        shares = [1 + spare * (length - 1) // (total - count) for length in lengths]
        for index in _from(turn, count):
            if sum(shares) == limit:
                break
            shares[index] += shares[index] < lengths[index]
    return [one._replace(end=one.start + share) for one, share in zip(ahead, shares, strict=True)]


def limit_bytes(
    ahead: Sequence[OffsetRange], pieces: Sequence[Sequence[Piece]], limit: int, *, turn: int
) -> list[OffsetRange]:
    """At most `limit` bytes of all ranges together, cut between pieces: each range in proportion to its size.

    The range that `turn` selects gives at least one piece, however large, so that no range is starved.
    """
    sizes = [[piece.size_bytes for piece in cut] for cut in pieces]
    total = sum(map(sum, sizes))
    if total <= limit or not ahead:
        return list(ahead)
    taken, spent = [0] * len(ahead), [0] * len(ahead)
    order = list(_from(turn, len(ahead)))

    def take(index: int, most: int) -> bool:
        if taken[index] == len(sizes[index]):
            return False
        size = sizes[index][taken[index]]
        if spent[index] + size > most or sum(spent) + size > limit:
            return False
        taken[index] += 1
        spent[index] += size
        return True

    first = order[0]
    taken[first], spent[first] = 1, sizes[first][0]
    for index in order:
        share = limit * sum(sizes[index]) // total
        while take(index, share):
            pass
    while sum(take(index, limit) for index in order):
        pass
    return [
        one if taken[index] == len(cut) else one._replace(end=cut[taken[index]].first_offset)
        for index, (one, cut) in enumerate(zip(ahead, pieces, strict=True))
    ]


def window(one: OffsetRange, bounds: Bounds, size_bytes: int) -> OffsetRange:
    """The first part of the range, which likely holds more than `size_bytes`, so that it has few pieces."""
    average = max(1, bounds.size_bytes // max(1, bounds.end - bounds.start))
    return one._replace(end=min(one.end, one.start + max(1_000, 4 * size_bytes // average)))


def _from(turn: int, count: int) -> Iterable[int]:
    return ((turn + step) % count for step in range(count))


# --- which task reads what ------------------------------------------------------------------------


def estimated_bytes(one: OffsetRange, bounds: Bounds) -> int:
    """About how many bytes the range takes, assuming records of equal size."""
    return bounds.size_bytes * (one.end - one.start) // max(1, bounds.end - bounds.start)


def task_count(total_bytes: int, *, parallelism: int, max_bytes: int, min_count: int = 1) -> int:
    """The number of tasks: full rounds of all cores, with no task too small or too large."""
    worth = min(parallelism, -(-total_bytes // TASK_BYTES_MIN))
    needed = -(-total_bytes // max_bytes)
    if needed > parallelism:
        needed = -(-needed // parallelism) * parallelism
    return max(1, worth, needed, min_count)


def piece_bytes(total_bytes: int, count: int) -> int:
    """The size of the pieces for `count` tasks."""
    return max(1, total_bytes // (count * PIECES_OF_A_TASK))


def cut(one: OffsetRange, pieces: Sequence[Piece]) -> list[Sized]:
    """The range in its pieces."""
    found = []
    for index, piece in enumerate(pieces):
        start = one.start if index == 0 else max(one.start, piece.first_offset)
        end = pieces[index + 1].first_offset if index + 1 < len(pieces) else one.end
        if start < min(end, one.end):
            found.append(Sized(one._replace(start=start, end=min(end, one.end)), piece.size_bytes))
    return found or [Sized(one, 0)]


def at_least(sized: Sequence[Sized], count: int) -> list[Sized]:
    """At least `count` ranges, if there are as many offsets: the longest one is halved until there are enough."""
    # negative lengths: the longest is the first of the heap
    parts = [(one.start - one.end, one, size_bytes) for one, size_bytes in sized]
    heapify(parts)
    while 0 < len(parts) < count and parts[0][0] < -1:
        _, one, size_bytes = heappop(parts)
        middle, half = (one.start + one.end) // 2, size_bytes // 2
        heappush(parts, (one.start - middle, one._replace(end=middle), half))
        heappush(parts, (middle - one.end, one._replace(start=middle), size_bytes - half))
    return sorted(Sized(one, size_bytes) for _, one, size_bytes in parts)


def pack(sized: Sequence[Sized], count: int) -> list[list[OffsetRange]]:
    """The ranges in `count` tasks of about equal size, in their order; in fewer if there are fewer ranges. Adjacent
    ranges become one.
    """
    total = sum(one.size_bytes for one in sized)
    tasks: list[list[OffsetRange]] = [[]] if sized else []
    filled = 0
    for index, (one, size_bytes) in enumerate(sized):
        open_after = count - len(tasks)
        # a range belongs to the task in whose share its middle is
        is_full = (filled + size_bytes / 2) * count > total * len(tasks)
        if tasks[-1] and open_after > 0 and (is_full or len(sized) - index <= open_after):
            tasks.append([])
        _append(tasks[-1], one)
        filled += size_bytes
    return tasks


def _append(ranges: list[OffsetRange], one: OffsetRange) -> None:
    if ranges and ranges[-1][:2] == one[:2] and ranges[-1].end == one.start:
        ranges[-1] = ranges[-1]._replace(end=one.end)
    else:
        ranges.append(one)


# --- filters -------------------------------------------------------------------------------------


def narrowed(ranges: Iterable[OffsetRange], conditions: Iterable[Condition]) -> list[OffsetRange]:
    """The parts of the ranges that can meet the conditions on topic, partition and offset; others are ignored."""
    found = list(ranges)
    for column, operator, value in conditions:
        values = value if operator == "in" and isinstance(value, tuple) else (value,)
        kind = str if column == "topic" else int
        if not all(isinstance(one, kind) and not isinstance(one, bool) for one in values):
            continue
        match column, operator:
            case "topic", "=" | "in":
                found = [one for one in found if one.topic in values]
            case "partition", _:
                found = [one for one in found if _holds(one.partition, operator, values)]
            case "offset", _:
                found = [part for one in found for part in _of_offsets(one, operator, values)]
    return found


def time_bounds(conditions: Iterable[Condition]) -> tuple[int | None, int | None]:
    """The times [from, to) in nanoseconds of records that can meet the conditions on timestamp.

    Spark sees microseconds, rounded down: one of its times is 1,000 of ours.
    """
    start: int | None = None
    end: int | None = None
    for column, operator, value in conditions:
        if column != "timestamp" or not isinstance(value, datetime) or value.tzinfo is None:
            continue
        delta = value - _EPOCH
        moment = ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * _US
        if operator in ("=", ">", ">="):
            begin = moment + _US if operator == ">" else moment
            start = begin if start is None else max(start, begin)
        if operator in ("=", "<", "<="):
            stop = moment if operator == "<" else moment + _US
            end = stop if end is None else min(end, stop)
    return start, end


def clipped(
    ranges: Iterable[OffsetRange],
    *,
    starts: Mapping[str, Sequence[int]] | None = None,
    ends: Mapping[str, Sequence[int]] | None = None,
) -> list[OffsetRange]:
    """The parts of the ranges between the given offsets of each partition of each topic."""
    found = []
    for one in ranges:
        start = max(one.start, starts[one.topic][one.partition]) if starts is not None else one.start
        end = min(one.end, ends[one.topic][one.partition]) if ends is not None else one.end
        if start < end:
            found.append(one._replace(start=start, end=end))
    return found


def _holds(number: int, operator: str, values: tuple[object, ...]) -> bool:
    if operator in ("=", "in"):
        return number in values
    (value,) = values
    assert isinstance(value, int)
    return {">": number > value, ">=": number >= value, "<": number < value, "<=": number <= value}[operator]


def _of_offsets(one: OffsetRange, operator: str, values: tuple[object, ...]) -> list[OffsetRange]:
    offsets = sorted({value for value in values if isinstance(value, int)})
    if operator in ("=", "in"):
        found: list[OffsetRange] = []
        for offset in offsets:
            if one.start <= offset < one.end:
                _append(found, one._replace(start=offset, end=offset + 1))
        return found
    (value,) = offsets
    start = {">": value + 1, ">=": value}.get(operator, one.start)
    end = {"<": value, "<=": value + 1}.get(operator, one.end)
    part = one._replace(start=max(one.start, start), end=min(one.end, end))
    return [part] if part.start < part.end else []
