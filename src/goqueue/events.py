"""Events: what happened, told to observers once per batch.

The cores call an `Observer` and know nothing of metrics or traces, which are observers. An observer is called in the
thread that owns the log, and must neither block nor raise. Events of hot paths are not frozen: a frozen dataclass is
slower to create. Sets of offsets and records still belong to the caller: an observer that keeps them copies them.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyroaring import BitMap64

Buffer = bytes | bytearray | memoryview


class Event:
    """Something that happened."""

    __slots__ = ()


class CopyOrigin(NamedTuple):
    """The messages that a batch holds copies of, in the order of their offsets."""

    topic: str
    partition: int
    offsets: BitMap64


@dataclass(slots=True)
class BatchPublished(Event):
    """A batch was appended to a partition.

    Its records have one time, `timestamp_ns`, which never goes back. `records` are those that may have headers.
    """

    topic: str
    partition: int
    count: int
    bytes: int
    first_offset: int = 0
    timestamp_ns: int = 0
    received_ns: int = 0
    flags: int = 0
    records: Buffer = b""
    copied_from: CopyOrigin | None = None


@dataclass(slots=True)
class Persisted(Event):
    """The records of a partition below the offset may be acknowledged, and are visible."""

    topic: str
    partition: int
    end_offset: int


@dataclass(slots=True)
class DuplicateFound(Event):
    """A producer sent a batch again that is stored already."""

    topic: str
    partition: int


@dataclass(slots=True)
class SchemaChecked(Event):
    """A batch was checked against the schemas of its topic before it is published."""

    topic: str
    accepted: int
    refused: int
    duration_ns: int


@dataclass(slots=True)
class Consumed(Event):
    """Records were read, by a group or, if `group` is empty, without one."""

    topic: str
    partition: int
    group: str
    count: int
    bytes: int


@dataclass(slots=True)
class MessagesDelivered(Event):
    """Messages were delivered to a member of a group, `redelivered` of them not for the first time."""

    topic: str
    partition: int
    group: str
    count: int
    bytes: int
    redelivered: int
    member: str = ""
    offsets: BitMap64 = field(default_factory=BitMap64)
    attempts: Mapping[int, int] = field(default_factory=dict)  # of the redelivered ones


@dataclass(slots=True)
class MessagesSettled(Event):
    """Messages were settled; `kind` is ack, nack, reject or extend."""

    topic: str
    partition: int
    group: str
    kind: str
    count: int
    member: str = ""
    offsets: BitMap64 = field(default_factory=BitMap64)
    delivered_ns: int = 0
    reason: str = ""


@dataclass(slots=True)
class LeasesExpired(Event):
    """Leases reached their deadline."""

    topic: str
    partition: int
    group: str
    count: int
    member: str = ""
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class LeasesLost(Event):
    """Leases ended because their member was lost or its transaction aborted."""

    topic: str
    partition: int
    group: str
    member: str
    offsets: BitMap64
    reason: str


@dataclass(slots=True)
class MessagesPassedOver(Event):
    """A commit moved the position past these messages: they are done, leased or not."""

    topic: str
    partition: int
    group: str
    offsets: BitMap64


@dataclass(slots=True)
class LaneBoosted(Event):
    """A lane that had waited for too long was served before higher ones."""

    topic: str
    lane: int


@dataclass(slots=True)
class MessagesExpired(Event):
    """The time to live of messages ended before they were acked."""

    topic: str
    partition: int
    group: str
    count: int
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class PollAnswered(Event):
    """A poll was answered."""

    group: str
    count: int
    waited_ns: int


@dataclass(slots=True)
class PositionCommitted(Event):
    """The position of a group in a partition advanced, by a commit or by acks; once per request."""

    topic: str
    partition: int
    group: str
    offset: int


@dataclass(slots=True)
class DeadLettered(Event):
    """Messages were written to the dead-letter topic."""

    topic: str
    group: str
    reason: str
    count: int
    partition: int = 0
    member: str = ""
    error: str = ""
    began_ns: int = 0
    dlq_topic: str = ""
    dead_letters: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # partition and offset of each, by offset


@dataclass(slots=True)
class DeadLetteringFailed(Event):
    """Dead letters could not be written, or their topic could not be created; the broker retries."""

    topic: str
    in_creation: bool


@dataclass(slots=True)
class DeadLettersRedriven(Event):
    """Dead letters were redriven to their topic; `topic` is the name of that topic, without the suffix."""

    topic: str
    count: int


@dataclass(slots=True)
class DelaysScheduled(Event):
    """Delayed messages were stored."""

    topic: str
    count: int


@dataclass(slots=True)
class DelaysBegun(Event):
    """Messages wait until they are due; `due_ns` is in the order of the offsets."""

    topic: str
    partition: int
    offsets: BitMap64
    due_ns: "array[int]"


@dataclass(slots=True)
class DelaysFired(Event):
    """Delayed messages became deliverable; `lateness_ns` is that of the earliest one."""

    topic: str
    count: int
    lateness_ns: int
    partition: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class DelaysCancelled(Event):
    """Delayed messages were cancelled."""

    topic: str
    count: int
    partition: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class DelaysExpired(Event):
    """Retention removed delayed messages before they were due."""

    topic: str
    count: int
    partition: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class LedgerWritten(Event):
    """Facts were appended to the ledger of a partition."""

    topic: str
    partition: int
    count: int
    bytes: int


@dataclass(slots=True)
class TopicCreated(Event):
    """A topic was created, or found when the broker started."""

    topic: str
    partitions: int
    internal: bool


@dataclass(slots=True)
class TopicDeleted(Event):
    """A topic was deleted."""

    topic: str
    internal: bool


@dataclass(frozen=True, slots=True)
class Administered(Event):
    """A caller has created, altered or deleted something: `verb` says what was done to which resource.

    A schedule or redrive is named after its topic: `orders/daily`.
    """

    verb: str
    resource: str
    caller: str
    door: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent(Event):
    """Something that happened to a log; `log` is its directory."""

    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(LogEvent):
    """Bytes became durable."""

    bytes: int
    durable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailed(LogEvent):
    """A disk error stopped the log from taking writes."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused(LogEvent):
    """There was no room for a batch. Nothing was written, and the next append may succeed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRolled(LogEvent):
    """A segment was sealed and the next one created."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted(LogEvent):
    """Retention or a truncation removed segments."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTruncated(LogEvent):
    """Recovery cut off incomplete records after the durable checkpoint."""

    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(LogEvent):
    """Stored bytes fail their checks; at most the offsets [first_offset, next_offset) are affected."""

    path: str
    position: int
    bytes: int
    first_offset: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineStarted(LogEvent):
    """The files of a topic cannot be used, so it is not served; `log` is its directory."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalsConverted(LogEvent):
    """The internal topics of a data directory were spread over more partitions; `log` is the data directory."""

    topics: tuple[str, ...]
    facts: int
    data_format: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FactUnreadable(LogEvent):
    """A fact in a journal or a ledger cannot be decoded. It is left where it is, and ignored."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRebuilt(LogEvent):
    """The indexes of a segment were missing or wrong, and were rebuilt from its records."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(LogEvent):
    """Compacted copies replaced segments."""

    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent(Event):
    """Something that happened to a consumer group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(GroupEvent):
    """A member joined, for the first time or again under its old id."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(GroupEvent):
    """A member left: `graceful` at its own request, `timeout` without heartbeats, `error` if it was removed."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(GroupEvent):
    """Members or assignments changed; once per call, after all its changes."""

    generation: int
    members: int
    assigned_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStateChanged(GroupEvent):
    """The group is in another state: Empty, Stable, Rebalancing or Dead."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetached(GroupEvent):
    """The group is coordinated by another node from now on; nothing in it has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStarted(GroupEvent):
    """A rebalance began because of a join, leave, timeout, partition_added or topic_change."""

    trigger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceEnded(GroupEvent):
    """All members have their new assignment; or, if `failed`, another change came first."""

    kind: str  # cooperative or eager
    duration_ns: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsRevoked(GroupEvent):
    """A rebalance revoked partitions of a member; `timed_out` if it did not release them in time."""

    member_id: str
    partitions: tuple[tuple[str, int], ...]
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssigned(GroupEvent):
    """A rebalance assigned partitions to a member."""

    member_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(GroupEvent):
    """A heartbeat of a member arrived."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLate(GroupEvent):
    """A member missed two heartbeats; once until the next one arrives."""

    member_id: str


@dataclass(slots=True)
class TransactionEvent(Event):
    """Something that happened to a transaction; `open_count` is the number of open ones after it."""

    open_count: int


@dataclass(slots=True)
class TransactionStarted(TransactionEvent):
    """A transaction was begun."""


@dataclass(slots=True)
class CommitCompleted(TransactionEvent):
    """A commit is complete; `duration_ns` is the time since the transaction was begun."""

    duration_ns: int


@dataclass(slots=True)
class AbortCompleted(TransactionEvent):
    """An abort is complete; `reason` is one of `transactions/states.py`."""

    reason: str


@dataclass(frozen=True, slots=True)
class ControllerChanged(Event):
    """The cluster has another controller, as far as this node has applied the metadata log; None: nobody is."""

    epoch: int
    controller: int | None
    is_here: bool


@dataclass(frozen=True, slots=True)
class BrokerStatusChanged(Event):
    """A broker of the cluster is `online`, `fenced` or `stopping` now, as this node has applied it."""

    node: int
    status: str


@dataclass(frozen=True, slots=True)
class MetadataAppended(Event):
    """An append to the metadata log by this node was `appended`, `lost`, or is `unknown` so far."""

    outcome: str
    bytes: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class MetadataApplied(Event):
    """This node has applied the metadata log up to an index."""

    index: int


@dataclass(frozen=True, slots=True)
class HeartbeatMissed(Event):
    """The controller did not answer a heartbeat of this node."""

    controller: int


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does nothing."""


class Handlers:
    """An observer with one handler per kind of event."""

    __slots__ = ("_by_kind",)

    def __init__(self, by_kind: Mapping[type[Event], Callable[[Any], None]]) -> None:
        self._by_kind = by_kind

    def __call__(self, event: Event) -> None:
        for handle in self.of_kind(type(event)):
            handle(event)

    def of_kind(self, kind: type[Event]) -> tuple[Observer, ...]:
        """The handlers of such an event."""
        handle = self._by_kind.get(kind)
        return () if handle is None else (handle,)


class Observers:
    """Several observers as one. Each event goes only to observers that handle its kind."""

    __slots__ = ("_known", "_observers")

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._known: dict[type[Event], tuple[Observer, ...]] = {}

    def __call__(self, event: Event) -> None:
        kind = type(event)
        handlers = self._known.get(kind)
        if handlers is None:
            handlers = self._known[kind] = self.of_kind(kind)
        for observe in handlers:
            observe(event)

    def of_kind(self, kind: type[Event]) -> tuple[Observer, ...]:
        """The handlers of such an event."""
        found: list[Observer] = []
        for observer in self._observers:
            found += observer.of_kind(kind) if isinstance(observer, Handlers | Observers) else (observer,)
        return tuple(found)
