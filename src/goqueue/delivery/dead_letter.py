"""Dead letters: the headers of a message that could not be processed, and of its copy after a redrive.

A dead letter is the original message with more headers: the reason, the error, the group and member, the time, and the
original place. A redrive removes these headers and adds `gq-redrives`, a count, and `gq-origin`, the place of the dead
letter; so a message that fails repeatedly differs from a new one. `gq-for-group` names the group that dead-lettered the
message: the index of the partition hides the copy from all other groups, which have received the message.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from goqueue.record.header import HEADERS_BYTES_MAX
from goqueue.record.headers import (
    CREATED,
    DELIVER_AT,
    EXPIRES_AT,
    FOR_GROUP,
    PRODUCER,
    HeaderPair,
    as_text,
    decode_headers,
    split_headers,
)
from goqueue.times import format_time

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
REDRIVEN: Final = "REDRIVEN"  # only in the ledger: no dead letter has it

_OF_LIFE = (DELIVER_AT, EXPIRES_AT, PRODUCER, FOR_GROUP)
_OF_DEATH = (REASON, ERROR, GROUP, MEMBER, ATTEMPTS, ORIGIN, FIRST_DELIVERY, DEAD_AT)
ERROR_CHARACTERS_MAX = 2_000
_ROOM_FOR_PRODUCER = 100


class Death(NamedTuple):
    """Why, when and by which group a message was dead-lettered."""

    reason: str
    error: str
    group: str
    member: str
    attempts: int
    origin: str  # topic:partition:offset
    first_delivery_ns: int | None
    dead_at_ns: int


def origin_of(topic: str, partition: int, offset: int) -> str:
    """The place of a message as in the header `gq-origin`."""
    return f"{topic}:{partition}:{offset}"


def parse_origin(text: str) -> tuple[str, int, int] | None:
    """The place in a `gq-origin`; None if it is malformed."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not topic or not _is_number(partition) or not _is_number(offset):
        return None
    return topic, int(partition), int(offset)


def dead_headers(headers: Mapping[str, str], death: Death) -> dict[str, str]:
    """The headers of the dead letter.

    If not all fit beside those of the message, the text of the error is left out first, then the least needed ones. If
    there is no room at all, the headers of the message are dropped; its payload and key are kept.
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
        if _fits({**own, **told}.items()):
            break
        told.pop(last, None)
    return {**own, **told} if _fits({**own, **told}.items()) else told


def redriven_headers(headers: Mapping[str, str], place: str, *, for_group: str = "") -> dict[str, str]:
    """The headers of a message that is redriven, for one group or for all."""
    own = {name: value for name, value in headers.items() if name not in _OF_LIFE and name not in _OF_DEATH}
    addressed = {FOR_GROUP: for_group} if for_group else {}
    return {**own, ORIGIN: place, REDRIVES: str(redrives(headers) + 1), **addressed}


def as_stored(headers: Mapping[str, str], encoded_headers: bytes | None) -> list[HeaderPair]:
    """The headers of a copy: those that the message had keep their bytes, their order, and names that stand twice.

    Text cannot tell a null value from an empty one, or show two headers of one name. The time at which the message was
    made goes with it. If not all of that fits, the text is stored.
    """
    encoded = encoded_headers or b""
    before = decode_headers(encoded)
    stored = [(as_text(name), value) for name, value in split_headers(encoded)]
    kept = [(name, value) for name, value in stored if name == CREATED or headers.get(name) == before[name]]
    names = {name for name, _ in kept}
    pairs: list[HeaderPair] = [*kept, *((name, text) for name, text in headers.items() if name not in names)]
    return pairs if _fits(pairs) else [*headers.items()]


def addressee(headers: Mapping[str, str], *, dlq_topic: str) -> str:
    """The group that dead-lettered the message; empty if the dead letter names none.

    A dead letter that a consumer of the dead-letter topic has rejected names the group of that consumer. The group of
    the original topic is then no longer known.
    """
    origin = parse_origin(headers.get(ORIGIN, ""))
    return "" if origin is not None and origin[0] == dlq_topic else headers.get(GROUP, "")


def redrives(headers: Mapping[str, str]) -> int:
    """How often the message was redriven."""
    text = headers.get(REDRIVES, "")
    return int(text) if _is_number(text) else 0


def _fits(headers: Iterable[HeaderPair]) -> bool:
    size = 2 + sum(4 + len(_utf8(name)) + len(_utf8(value or b"")) for name, value in headers)
    return size <= HEADERS_BYTES_MAX - _ROOM_FOR_PRODUCER


def _utf8(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
