"""What happened, told once per batch to whoever listens.

The cores call an `Observer` and know nothing of metrics or traces; those are observers. An observer is
called in the thread that owns the log and must not block or raise.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the log in `log` (its directory)."""

    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(Event):
    """Bytes became durable."""

    bytes: int
    durable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailed(Event):
    """A disk error stopped the log from taking writes."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRolled(Event):
    """A segment was sealed and the next one begun."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted(Event):
    """Retention or a truncation removed segments."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTruncated(Event):
    """Recovery cut off what a crash had left unfinished behind the last durable point."""

    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(Event):
    """Stored bytes fail their checks; the offsets [first_offset, next_offset) may be affected."""

    path: str
    position: int
    bytes: int
    first_offset: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRebuilt(Event):
    """The indexes of a segment were missing or wrong and were made anew from its records."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """A compaction was put in place."""

    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does not care."""
