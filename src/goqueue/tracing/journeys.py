"""The journey of a message: all its moments in order, over all its copies, and its status.

A dead letter is a copy in the dead-letter topic, and a redrive copies it to a topic again. All copies share one trace
and are places of one journey. The status is that of the places that the message was not moved away from; a dead letter
that was not redriven leaves the journey at the place where the message failed.

    failed       dead-lettered or rejected, for at least one group
    expired      its time to live ended before it was acked
    retrying     nacked, or its lease expired; it will be redelivered
    delayed      not due yet
    completed    acked by every group that got it; or its delivery was cancelled
    in_progress  none of these: not delivered yet, or leased
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from goqueue.tracing.context import TraceContext, span_id_of
from goqueue.tracing.rows import EventType, MessageLocation, Moment

STATUSES = ("failed", "expired", "retrying", "in_progress", "delayed", "completed")
"""The first one that holds for any message of a trace holds for the trace."""

_OF_GROUP: Mapping[str, str] = {
    EventType.FETCHED: "in_progress",
    EventType.ACKED: "completed",
    EventType.NACKED: "retrying",
    EventType.TIMEOUT: "retrying",
    EventType.REJECTED: "failed",
    EventType.ROUTED: "failed",
    EventType.EXPIRED: "expired",
}
_OF_DELAY: Mapping[str, str] = {
    EventType.SCHEDULED: "delayed",
    EventType.READY: "in_progress",
    EventType.CANCELLED: "completed",
    EventType.EXPIRED: "expired",
}


class Journey(NamedTuple):
    """All events of one trace, as the way of a message and its copies."""

    trace_id: str
    start: MessageLocation
    moments: Sequence[Moment]
    status: str

    @property
    def start_ns(self) -> int:
        return self.moments[0].time_ns

    @property
    def end_ns(self) -> int:
        return self.moments[-1].time_ns


def journey(trace_id: str, moments: Iterable[Moment]) -> Journey:
    """The journey of these moments, of which there is at least one."""
    ordered = sorted(moments, key=lambda moment: moment[:3])
    return Journey(trace_id, ordered[0].place, ordered, _status(ordered))


def span_id(trace_id: str, moment: Moment) -> str:
    """The id of a moment as a span. The id of a publish follows from its place, so that children can name it."""
    if moment.event_type == EventType.RECEIVED:
        return span_id_of(trace_id, moment.place)
    return span_id_of(trace_id, moment.place, moment.event_type, moment.time_ns, moment.sequence, moment.group)


def parent_span_id(trace_id: str, moment: Moment, context: TraceContext | None) -> str:
    """The parent of a moment: the publish. Its parent is the original of a copy, or the span of the publisher."""
    if moment.event_type != EventType.RECEIVED:
        return span_id_of(trace_id, moment.place)
    if "copied_from" in moment.attributes:
        return span_id_of(trace_id, moment.attributes["copied_from"])
    return context.span_id if context is not None else ""


def _status(moments: Sequence[Moment]) -> str:
    origins: dict[str, str] = {}  # for each copy, the place it was copied from
    dead_letters: set[str] = set()
    by_place: dict[str, list[Moment]] = {}
    for moment in moments:
        place, attributes = str(moment.place), moment.attributes
        by_place.setdefault(place, []).append(moment)
        if "copied_from" in attributes:
            origins[place] = attributes["copied_from"]
        if moment.event_type == EventType.ROUTED and "dlq_offset" in attributes:
            dead_letter = f"{attributes['dlq_topic']}:{attributes['dlq_partition']}:{attributes['dlq_offset']}"
            dead_letters.add(dead_letter)
            origins.setdefault(dead_letter, place)
    moved_from: set[str] = set()
    for place in by_place.keys() - dead_letters:
        origin = origins.get(place)
        while origin is not None and origin not in moved_from:
            moved_from.add(origin)
            origin = origins.get(origin)
    standing = by_place.keys() - dead_letters - moved_from or by_place.keys()
    found = {_standing(by_place[place]) for place in standing}
    return next(status for status in STATUSES if status in found)


def _standing(moments: Sequence[Moment]) -> str:
    """The status of a message at one place."""
    groups: dict[str, str] = {}
    delay = ""
    for moment in moments:
        if moment.group and moment.event_type in _OF_GROUP:
            groups[moment.group] = _OF_GROUP[moment.event_type]
        elif moment.event_type in _OF_DELAY:
            delay = _OF_DELAY[moment.event_type]
    found = {*groups.values()} or {delay or "in_progress"}
    return next(status for status in STATUSES if status in found)
