"""The journey of a message: its moments in order, over all places it was at, and how it stands.

A message that dies is copied to the dead letters, and from there, if it is put back, to a topic again. Its trace
follows it: each copy is another place of the same journey. How it stands is told by the places it was not moved away
from; a letter that nobody put back leaves the journey where the message died.

    failed       dead-lettered or rejected, for some group
    expired      its time was over before anybody had processed it
    retrying     given back or not acknowledged in time; it will be delivered again
    delayed      not due yet
    completed    acknowledged by every group that got it; or its delivery was called off
    in_progress  none of these: nobody got it yet, or somebody works on it
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
    """All that is known of one trace."""

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
    """The journey that these moments make; at least one."""
    ordered = sorted(moments, key=lambda moment: moment[:3])
    return Journey(trace_id, ordered[0].place, ordered, _status(ordered))


def span_id(trace_id: str, moment: Moment) -> str:
    """The id of a moment as a span; that of the publish is known to whoever knows the place."""
    if moment.event_type == EventType.RECEIVED:
        return span_id_of(trace_id, moment.place)
    return span_id_of(trace_id, moment.place, moment.event_type, moment.time_ns, moment.sequence, moment.group)


def parent_span_id(trace_id: str, moment: Moment, context: TraceContext | None) -> str:
    """What a moment belongs to: the publish; and this to the message it is a copy of, or to whoever published it."""
    if moment.event_type != EventType.RECEIVED:
        return span_id_of(trace_id, moment.place)
    if "copied_from" in moment.attributes:
        return span_id_of(trace_id, moment.attributes["copied_from"])
    return context.span_id if context is not None else ""


def _status(moments: Sequence[Moment]) -> str:
    origins: dict[str, str] = {}  # of each copy, the place it was copied from
    letters: set[str] = set()
    by_place: dict[str, list[Moment]] = {}
    for moment in moments:
        place, attributes = str(moment.place), moment.attributes
        by_place.setdefault(place, []).append(moment)
        if "copied_from" in attributes:
            origins[place] = attributes["copied_from"]
        if moment.event_type == EventType.ROUTED and "dlq_offset" in attributes:
            letter = f"{attributes['dlq_topic']}:{attributes['dlq_partition']}:{attributes['dlq_offset']}"
            letters.add(letter)
            origins.setdefault(letter, place)
    moved_from: set[str] = set()
    for place in by_place.keys() - letters:
        origin = origins.get(place)
        while origin is not None and origin not in moved_from:
            moved_from.add(origin)
            origin = origins.get(origin)
    standing = by_place.keys() - letters - moved_from or by_place.keys()
    found = {_standing(by_place[place]) for place in standing}
    return next(status for status in STATUSES if status in found)


def _standing(moments: Sequence[Moment]) -> str:
    """How a message stands at one place."""
    groups: dict[str, str] = {}
    delay = ""
    for moment in moments:
        if moment.group and moment.event_type in _OF_GROUP:
            groups[moment.group] = _OF_GROUP[moment.event_type]
        elif moment.event_type in _OF_DELAY:
            delay = _OF_DELAY[moment.event_type]
    found = {*groups.values()} or {delay or "in_progress"}
    return next(status for status in STATUSES if status in found)
