"""What happened, told once per batch to whoever listens.

The cores call an `Observer` and know nothing of metrics or traces; those are observers. An observer is
called in the thread that owns the log and must not block or raise. Events of hot paths are not frozen: to
make one is to be cheap. Sets of offsets and records still belong to whoever tells: an observer that keeps them
copies them.
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


class Origin(NamedTuple):
    """Messages that a batch holds copies of, in the order of their offsets."""

    topic: str
    partition: int
    offsets: BitMap64


@dataclass(slots=True)
class Published(Event):
    """A batch was appended to a partition. Its records have one time, `timestamp_ns`, which never goes back; `records`
    are those that may have headers.
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
    copied_from: Origin | None = None


@dataclass(slots=True)
class Persisted(Event):
    """The records of a partition below the offset may be acknowledged, and are visible."""

    topic: str
    partition: int
    end_offset: int


@dataclass(slots=True)
class DuplicateFound(Event):
    """A batch came that is stored already."""

    topic: str
    partition: int


@dataclass(slots=True)
class SchemaChecked(Event):
    """A batch that is to be published was held against the schemas of its topic."""

    topic: str
    accepted: int
    refused: int
    duration_ns: int


@dataclass(slots=True)
class Consumed(Event):
    """Records were handed out, to a group or, where it is empty, to whoever asked."""

    topic: str
    partition: int
    group: str
    count: int
    bytes: int


@dataclass(slots=True)
class Delivered(Event):
    """Messages went to a member of a group, some of them not for the first time."""

    topic: str
    partition: int
    group: str
    count: int
    bytes: int
    redelivered: int
    member: str = ""
    offsets: BitMap64 = field(default_factory=BitMap64)
    attempts: Mapping[int, int] = field(default_factory=dict)  # of those that are delivered again


@dataclass(slots=True)
class Settled(Event):
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
    """Leases ran out."""

    topic: str
    partition: int
    group: str
    count: int
    member: str = ""
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class LeasesLost(Event):
    """Messages failed because of whoever had them: the member was lost, or its transaction aborted."""

    topic: str
    partition: int
    group: str
    member: str
    offsets: BitMap64
    reason: str


@dataclass(slots=True)
class PassedOver(Event):
    """A position was committed: messages are done, whoever had them."""

    topic: str
    partition: int
    group: str
    offsets: BitMap64


@dataclass(slots=True)
class LaneBoosted(Event):
    """A lane that had waited for too long was served first."""

    topic: str
    lane: int


@dataclass(slots=True)
class MessagesExpired(Event):
    """The time to live of messages ended before anybody had processed them."""

    topic: str
    partition: int
    group: str
    count: int
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class Polled(Event):
    """A poll was answered."""

    group: str
    count: int
    waited_ns: int


@dataclass(slots=True)
class PositionCommitted(Event):
    """The position of a group in a partition advanced, by a commit or by acks; told once per request."""

    topic: str
    partition: int
    group: str
    offset: int


@dataclass(slots=True)
class DeadLettered(Event):
    """Messages were put to the dead letters."""

    topic: str
    group: str
    reason: str
    count: int
    partition: int = 0
    member: str = ""
    error: str = ""
    began_ns: int = 0
    dlq_topic: str = ""
    graves: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by offset: partition and offset there


@dataclass(slots=True)
class TransferFailed(Event):
    """Dead letters could not be written, or their topic not be made; it is tried again."""

    topic: str
    in_creation: bool


@dataclass(slots=True)
class Redriven(Event):
    """Dead letters were put back; `topic` is the dead-letter topic."""

    topic: str
    count: int


@dataclass(slots=True)
class DelaysScheduled(Event):
    """Delayed messages were stored."""

    topic: str
    count: int


@dataclass(slots=True)
class DelaysBegun(Event):
    """Messages wait for their time, from now on or anew; when they are due stands in the order of their offsets."""

    topic: str
    partition: int
    offsets: BitMap64
    due_ns: "array[int]"


@dataclass(slots=True)
class DelaysFired(Event):
    """Delayed messages are due; the first of them was that late."""

    topic: str
    count: int
    lateness_ns: int
    partition: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class DelaysCancelled(Event):
    """Delayed messages will not be delivered."""

    topic: str
    count: int
    partition: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)


@dataclass(slots=True)
class DelaysExpired(Event):
    """Delayed messages left the log before their time."""

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
    """A topic is there: a new one, or one that was found at the start."""

    topic: str
    partitions: int
    internal: bool


@dataclass(slots=True)
class TopicDeleted(Event):
    """A topic is gone."""

    topic: str
    internal: bool


@dataclass(frozen=True, slots=True)
class Administered(Event):
    """A caller has created, altered or deleted something: `verb` says what was done to which resource."""

    verb: str
    resource: str
    caller: str
    door: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent(Event):
    """Something that happened to the log in `log` (its directory)."""

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
    """There was no room for a batch. Nothing of it was written, and the next one may find room."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRolled(LogEvent):
    """A segment was sealed and the next one begun."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted(LogEvent):
    """Retention or a truncation removed segments."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTruncated(LogEvent):
    """Recovery cut off what a crash had left unfinished behind the last durable point."""

    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(LogEvent):
    """Stored bytes fail their checks; the offsets [first_offset, next_offset) may be affected."""

    path: str
    position: int
    bytes: int
    first_offset: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuarantined(LogEvent):
    """The files of a topic cannot be used, so it is not served; `log` is its directory."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactUnreadable(LogEvent):
    """A fact in a journal or a ledger cannot be understood. It stays where it is, and counts for nothing."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRebuilt(LogEvent):
    """The indexes of a segment were missing or wrong and were made anew from its records."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(LogEvent):
    """A compaction was put in place."""

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
    """A member is in, for the first time or again under its old id."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(GroupEvent):
    """A member is out: `graceful` by its own wish, `timeout` by its silence, `error` against its will."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(GroupEvent):
    """Members or assignments are not what they were; told once per call, after all that led to it."""

    generation: int
    members: int
    assigned_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStateChanged(GroupEvent):
    """The group went over to another state."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStarted(GroupEvent):
    """Partitions are to be dealt out anew: join, leave, timeout, partition_added or topic_change."""

    trigger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceEnded(GroupEvent):
    """Everybody has what it is to have; or, `failed`, another change came before that."""

    kind: str  # cooperative or eager
    duration_ns: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsRevoked(GroupEvent):
    """A rebalance took partitions from a member; `timed_out` if it was asked and did not give them in time."""

    member_id: str
    partitions: tuple[tuple[str, int], ...]
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssigned(GroupEvent):
    """A rebalance gave partitions to a member."""

    member_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(GroupEvent):
    """A member said that it lives."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLate(GroupEvent):
    """A member was silent for two heartbeats; told once per silence."""

    member_id: str


@dataclass(slots=True)
class TransactionEvent(Event):
    """Something that happened to a transaction; so many are open after it."""

    open_count: int


@dataclass(slots=True)
class TransactionBegun(TransactionEvent):
    """A transaction was begun."""


@dataclass(slots=True)
class TransactionCommitted(TransactionEvent):
    """A commit is complete, that long after the transaction was begun."""

    duration_ns: int


@dataclass(slots=True)
class TransactionAborted(TransactionEvent):
    """An abort is complete: client, timeout, admin, fenced, marker (committed before) or restart."""

    reason: str


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does not care."""


class Handlers:
    """An observer of some kinds of events, each of which it handles in its own way."""

    __slots__ = ("_by_kind",)

    def __init__(self, by_kind: Mapping[type[Event], Callable[[Any], None]]) -> None:
        self._by_kind = by_kind

    def __call__(self, event: Event) -> None:
        for handle in self.of_kind(type(event)):
            handle(event)

    def of_kind(self, kind: type[Event]) -> tuple[Observer, ...]:
        """Whom such an event concerns."""
        handle = self._by_kind.get(kind)
        return () if handle is None else (handle,)


class Observers:
    """Several observers as one. Each event goes straight to those whom its kind concerns."""

    __slots__ = ("_known", "_observers")

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._known: dict[type[Event], tuple[Observer, ...]] = {}

    def __call__(self, event: Event) -> None:
        kind = type(event)
        concerned = self._known.get(kind)
        if concerned is None:
            concerned = self._known[kind] = self.of_kind(kind)
        for observe in concerned:
            observe(event)

    def of_kind(self, kind: type[Event]) -> tuple[Observer, ...]:
        """Whom such an event concerns."""
        found: list[Observer] = []
        for observer in self._observers:
            found += observer.of_kind(kind) if isinstance(observer, Handlers | Observers) else (observer,)
        return tuple(found)
