"""What happened, told once per batch to whoever listens.

The cores call an `Observer` and know nothing of metrics or traces; those are observers. An observer is
called in the thread that owns the log and must not block or raise. Events of hot paths are not frozen: to
make one is to be cheap.
"""

from collections.abc import Callable
from dataclasses import dataclass


class Event:
    """Something that happened."""

    __slots__ = ()


@dataclass(slots=True)
class Published(Event):
    """A batch was appended to a partition."""

    topic: str
    partition: int
    count: int
    bytes: int


@dataclass(slots=True)
class DuplicateFound(Event):
    """A batch came that is stored already."""

    topic: str
    partition: int


@dataclass(slots=True)
class Consumed(Event):
    """Records were handed out, to a group or, where it is empty, to whoever asked."""

    topic: str
    partition: int
    group: str
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


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does not care."""
