"""Dead letters: what a message looks like that could not be processed, and how it gets back.

A dead letter is the message as it was, payload, key and headers, with headers that tell why, of whom, when and from
where. Put back, it loses these and has `gq-redrives` instead, which counts, and `gq-origin`, which says where it was
dead; so a message that dies again and again can be told from a new one. `gq-for-group` names the group that gave the
message up: the index of the partition hides the copy from all other groups, which have had the message.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from goqueue.record.header import HEADERS_BYTES_MAX
from goqueue.record.headers import DELIVER_AT, EXPIRES_AT, FOR_GROUP, PRODUCER
from goqueue.times import format_time

DLQ_SUFFIX: Final = ".dlq"

REASON: Final = "gq-reason"
ERROR: Final = "gq-error"
GROUP: Final = "gq-group"
MEMBER: Final = "gq-member"
ATTEMPTS: Final = "gq-attempts"
ORIGIN: Final = "gq-origin"
FIRST_DELIVERY: Final = "gq-first-delivery"
DEAD_AT: Final = "gq-dead-at"
REDRIVES: Final = "gq-redrives"

MAX_DELIVERIES: Final = "MAX_DELIVERIES"
TIMEOUT: Final = "TIMEOUT"
REJECTED: Final = "REJECTED"
EXPIRED: Final = "EXPIRED"

_OF_LIFE = (DELIVER_AT, EXPIRES_AT, PRODUCER, FOR_GROUP)
_OF_DEATH = (REASON, ERROR, GROUP, MEMBER, ATTEMPTS, ORIGIN, FIRST_DELIVERY, DEAD_AT)
ERROR_CHARACTERS_MAX = 2_000
_ROOM_FOR_PRODUCER = 100


class Death(NamedTuple):
    """How a message died."""

    reason: str
    error: str
    group: str
    member: str
    attempts: int
    origin: str  # topic:partition:offset
    first_delivery_ns: int | None
    dead_at_ns: int


def dead_letter_topic(topic: str) -> str:
    """Where the dead letters of a topic go; those of a dead-letter topic go back to its end."""
    return topic if topic.endswith(DLQ_SUFFIX) else topic + DLQ_SUFFIX


def origin_of(topic: str, partition: int, offset: int) -> str:
    """The place of a message as it stands in `gq-origin`."""
    return f"{topic}:{partition}:{offset}"


def parse_origin(text: str) -> tuple[str, int, int] | None:
    """The way back; None if it is no place."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not topic or not _is_number(partition) or not _is_number(offset):
        return None
    return topic, int(partition), int(offset)


def dead_headers(headers: Mapping[str, str], death: Death) -> dict[str, str]:
    """The headers of the dead letter.

    What does not fit beside those of the message is left out: the text of the error first, then what is least needed.
    Where there is no room at all, the message keeps its payload and key, and its headers make way.
    """
    own = {name: value for name, value in headers.items() if name not in _OF_LIFE and name not in _OF_DEATH}
    told = {
        REASON: death.reason,
        ORIGIN: death.origin,
        GROUP: death.group,
        ATTEMPTS: str(death.attempts),
        DEAD_AT: format_time(death.dead_at_ns),
        REDRIVES: own.pop(REDRIVES, "0"),
        MEMBER: death.member,
        FIRST_DELIVERY: "" if death.first_delivery_ns is None else format_time(death.first_delivery_ns),
        ERROR: death.error[:ERROR_CHARACTERS_MAX],
    }
    told = {name: value for name, value in told.items() if value}
    for last in (ERROR, FIRST_DELIVERY, MEMBER, DEAD_AT, ATTEMPTS):
        if _fits({**own, **told}):
            break
        told.pop(last, None)
    return {**own, **told} if _fits({**own, **told}) else told


def redriven_headers(headers: Mapping[str, str], place: str, *, for_group: str = "") -> dict[str, str]:
    """The headers of a message that is redriven, for one group or for all."""
    own = {name: value for name, value in headers.items() if name not in _OF_LIFE and name not in _OF_DEATH}
    addressed = {FOR_GROUP: for_group} if for_group else {}
    return {**own, ORIGIN: place, REDRIVES: str(redrives(headers) + 1), **addressed}


def addressee(headers: Mapping[str, str], *, dlq_topic: str) -> str:
    """The group that gave the message up; empty if the dead letter names none.

    A letter that died a second time, where it was read as a dead letter, names the group that read the dead-letter
    topic. Which group of the original topic gave it up is not known any more.
    """
    origin = parse_origin(headers.get(ORIGIN, ""))
    return "" if origin is not None and origin[0] == dlq_topic else headers.get(GROUP, "")


def redrives(headers: Mapping[str, str]) -> int:
    """How often the message was redriven."""
    text = headers.get(REDRIVES, "")
    return int(text) if _is_number(text) else 0


def _fits(headers: Mapping[str, str]) -> bool:
    size = 2 + sum(
        4 + len(name.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
    )
    return size <= HEADERS_BYTES_MAX - _ROOM_FOR_PRODUCER


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
