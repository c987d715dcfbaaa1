"""Rows: what happened to the messages of a batch; and moments: what happened to one of them.

    publish  [4200, 4700)   received 12.001, written 12.002, persisted 12.004
    consume.fetched  {4200..4299}   billing/worker-1, attempt 1, except 4207: 2

A row is made once per batch and costs the same for one message and for ten thousand. Facts that differ between messages
are in small tables by offset, and only for the messages that have them. A publish is one row with three times, which
are three moments.

Rows have rising sequence numbers. Those of a process begin with its start time, so that rows stored before a restart
come first. Moments are ordered by time, then by sequence.
"""

from array import array
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.times import format_time


class EventType(StrEnum):
    """What can happen to a message or a group."""

    RECEIVED = "publish.received"
    PARTITIONED = "publish.partitioned"
    PERSISTED = "publish.persisted"
    FETCHED = "consume.fetched"
    ACKED = "consume.acked"
    NACKED = "consume.nacked"
    REJECTED = "consume.rejected"
    SCHEDULED = "delay.scheduled"
    READY = "delay.ready"
    CANCELLED = "delay.cancelled"
    EXPIRED = "delay.expired"
    TIMEOUT = "visibility.timeout"
    EXTENDED = "visibility.extended"
    ROUTED = "dlq.routed"
    REBALANCE_STARTED = "rebalance.started"
    REBALANCE_ENDED = "rebalance.ended"
    REVOKED = "rebalance.revoked"
    ASSIGNED = "rebalance.assigned"


PUBLISH = "publish"
"""The kind of a row that stands for the three moments of a publish."""
ERRORS = frozenset((EventType.NACKED, EventType.REJECTED, EventType.TIMEOUT, EventType.EXPIRED, EventType.ROUTED))
"""These are recorded even if their message was not sampled."""
_RANKS: Mapping[str, int] = {EventType.PARTITIONED: 1, EventType.PERSISTED: 2}
NOWHERE = TopicPartition("", -1)
"""The source of rows that concern no partition."""


class MessageLocation(NamedTuple):
    """The topic, partition and offset of a message."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Facts(NamedTuple):
    """The facts of one message of a row that differ between messages."""

    attempt: int | None = None
    deliver_at_ns: int | None = None
    dlq_partition: int | None = None
    dlq_offset: int | None = None
    origin_offset: int | None = None


NO_FACTS = Facts()


class ByOffset(Mapping[int, int]):
    """A number per message, in little more than eight bytes each: there may be millions of them."""

    __slots__ = ("_numbers", "_offsets")

    def __init__(self, offsets: BitMap64, numbers: "array[int]") -> None:
        self._offsets = offsets
        self._numbers = numbers  # in the order of the offsets

    def __getitem__(self, offset: int) -> int:
        if offset not in self._offsets:
            raise KeyError(offset)
        return self._numbers[self._offsets.rank(offset) - 1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._numbers)


class EventRow(msgspec.Struct, eq=False):
    """One event of some messages of a partition or, without offsets, of a group."""

    sequence: int
    kind: str  # an `EventType`, or PUBLISH
    time_ns: int
    source: TopicPartition
    first: int = 0
    end: int = 0  # all offsets are in [first, end)
    offsets: BitMap64 | None = None  # None: all of [first, end)
    count: int = 0
    group: str = ""
    member: str = ""
    error: str = ""
    reason: str = ""
    duration_ns: int | None = None
    attempts: Mapping[int, int] = {}  # above 1
    deliver_at_ns: Mapping[int, int] = {}
    dlq_topic: str = ""
    dead_letters: Mapping[int, tuple[int, int]] = {}
    origin: TopicPartition = NOWHERE  # of copies
    origin_offsets: Mapping[int, int] = {}
    written_ns: int = 0  # of a publish, likewise the rest
    persisted_ns: int = 0  # 0: not yet
    timestamp_ns: int | None = None  # the records', from which ids are derived
    is_explicit: bool = False  # some of the records name their trace

    @property
    def event_count(self) -> int:
        """The number of moments in the row."""
        return 3 * self.count if self.kind == PUBLISH else max(1, self.count)

    def offset_set(self) -> BitMap64:
        """The offsets as a bitmap, also if the row has them as a range."""
        if self.offsets is not None:
            return self.offsets
        found = BitMap64()
        if self.first < self.end:
            found.add_range(self.first, self.end)
        return found

    def among(self, wanted: BitMap64) -> BitMap64:
        """The wanted offsets that are in the row."""
        if self.offsets is not None:
            return wanted & self.offsets
        if not wanted or wanted.max() < self.first or wanted.min() >= self.end:
            return BitMap64()
        start, end = max(self.first, wanted.min()), min(self.end, wanted.max() + 1)
        found = BitMap64()
        found.add_range(start, end)
        return found & wanted

    def has(self, offset: int) -> bool:
        """Whether the offset is in the row."""
        return self.first <= offset < self.end and (self.offsets is None or offset in self.offsets)

    @property
    def is_plain(self) -> bool:
        """Whether all messages have the same facts."""
        return not (self.attempts or self.deliver_at_ns or self.dead_letters or self.origin_offsets)

    def facts(self, offset: int) -> Facts:
        attempt = self.attempts.get(offset, 1) if self.kind == EventType.FETCHED else None
        if self.is_plain:
            return NO_FACTS if attempt is None else Facts(attempt)
        dlq_partition, dlq_offset = self.dead_letters.get(offset, (None, None))
        return Facts(
            attempt, self.deliver_at_ns.get(offset), dlq_partition, dlq_offset, self.origin_offsets.get(offset)
        )

    def times(self) -> Iterator[tuple[str, int, int | None]]:
        """The moments of the row: type, time and duration."""
        if self.kind != PUBLISH:
            yield self.kind, self.time_ns, self.duration_ns
            return
        yield EventType.RECEIVED, self.time_ns, None
        yield EventType.PARTITIONED, self.written_ns, self.written_ns - self.time_ns
        if self.persisted_ns:
            yield EventType.PERSISTED, self.persisted_ns, self.persisted_ns - self.time_ns


class Moment(NamedTuple):
    """One event of one message."""

    time_ns: int
    sequence: int
    rank: int
    event_type: str
    place: MessageLocation
    group: str = ""
    member: str = ""
    duration_ns: int | None = None
    error: str = ""
    attributes: Mapping[str, str] = MappingProxyType({})


def moments(row: EventRow, offset: int) -> Iterator[Moment]:
    """The moments of one message in the row."""
    place = MessageLocation(*row.source, offset)
    facts = row.facts(offset)
    attributes = _attributes(row, facts)
    for event_type, time_ns, duration_ns in row.times():
        rank = _RANKS.get(event_type, 0)
        own = {} if event_type in _RANKS else attributes
        yield Moment(time_ns, row.sequence, rank, event_type, place, row.group, row.member, duration_ns, row.error, own)


def _attributes(row: EventRow, facts: Facts) -> dict[str, str]:
    named = {
        "attempt": facts.attempt,
        "reason": row.reason or None,
        "deliver_at": None if facts.deliver_at_ns is None else format_time(facts.deliver_at_ns),
        "dlq_topic": row.dlq_topic or None,
        "dlq_partition": facts.dlq_partition,
        "dlq_offset": facts.dlq_offset,
        "copied_from": None if facts.origin_offset is None else MessageLocation(*row.origin, facts.origin_offset),
    }
    return {name: str(value) for name, value in named.items() if value is not None}
