"""Which dead letters match a filter, and what the headers of a dead letter say.

A filter is prepared once and then applied to every dead letter of a queue, so it checks the cheapest conditions first:
partition and offset, then bytes that the headers must contain, and only for what is left are the headers decoded. No
key is the same as an empty key, and a missing header the same as an empty one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery import dead_letter
from goqueue.record.header import OFFSET_MAX
from goqueue.times import parse_time
from goqueue.wire.reports import DeadLetterFilter


class DeadLetterHeaders(NamedTuple):
    """What the headers of a dead letter say; a missing header is empty, or 0."""

    reason: str
    error: str
    group: str
    member: str
    attempts: int
    origin: tuple[str, int, int] | None  # topic, partition, offset
    redrives: int
    dead_at: str
    stored_at_ns: int

    @property
    def dead_at_ns(self) -> int:
        """When it was dead-lettered or, if the header is missing, stored."""
        try:
            return parse_time(self.dead_at, now_ns=self.stored_at_ns) if self.dead_at else self.stored_at_ns
        except ValueError:
            return self.stored_at_ns


def read_dead_letter(headers: Mapping[str, str], *, timestamp_ns: int) -> DeadLetterHeaders:
    """The headers of a dead letter that was stored at that time."""
    attempts = headers.get(dead_letter.ATTEMPTS, "")
    return DeadLetterHeaders(
        headers.get(dead_letter.REASON, ""),
        headers.get(dead_letter.ERROR, ""),
        headers.get(dead_letter.GROUP, ""),
        headers.get(dead_letter.MEMBER, ""),
        int(attempts) if attempts.isascii() and attempts.isdecimal() and len(attempts) <= 18 else 0,
        dead_letter.parse_origin(headers.get(dead_letter.ORIGIN, "")),
        dead_letter.redrives(headers),
        headers.get(dead_letter.DEAD_AT, ""),
        timestamp_ns,
    )


class OriginTopics(NamedTuple):
    """The topics whose dead letters are meant, where several share a dead-letter topic."""

    only: str = ""  # if set, those of this topic
    without: frozenset[str] = frozenset()  # if not, all but those of these topics

    def include(self, topic: str) -> bool:
        """Whether dead letters of that topic are meant."""
        return topic == self.only if self.only else topic not in self.without


ALL_TOPICS = OriginTopics()


class DeadLetterMatcher:
    """A `DeadLetterFilter`, prepared."""

    def __init__(self, wanted: DeadLetterFilter, origins: OriginTopics = ALL_TOPICS) -> None:
        self._wanted = wanted
        self._origins = origins
        self._offsets = _possible(wanted.offsets)
        self._needles = _needles(wanted, origins)

    def among(self, partition: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets of a partition that can match, by partition and offset."""
        if self._needles is None or self._wanted.partition not in (None, partition):
            return BitMap64()
        return offsets if self._offsets is None else offsets & self._offsets

    def may_match(self, key: bytes | None, encoded_headers: bytes | None) -> bool:
        """Whether the dead letter can match: a cheap check that is never wrong when it says no."""
        wanted = self._wanted
        if wanted.key is not None and key != wanted.key:
            return False
        if wanted.key_prefix and not (key or b"").startswith(wanted.key_prefix):
            return False
        raw = encoded_headers or b""
        return self._needles is not None and all(needle in raw for needle in self._needles)

    def matches(self, key: bytes | None, headers: Mapping[str, str], told: DeadLetterHeaders) -> bool:
        """Whether the dead letter matches, apart from partition and offset."""
        wanted = self._wanted
        return (
            self._origins.include(told.origin[0] if told.origin else "")
            and (wanted.reason is None or told.reason == wanted.reason)
            and (wanted.group is None or told.group == wanted.group)
            and (wanted.key is None or key == wanted.key)
            and (wanted.key_prefix is None or (key or b"").startswith(wanted.key_prefix))
            and all(headers.get(name) == value for name, value in wanted.headers.items())
            and (wanted.error_contains is None or wanted.error_contains in told.error)
            and (wanted.from_time_ns is None or told.dead_at_ns >= wanted.from_time_ns)
            and (wanted.to_time_ns is None or told.dead_at_ns < wanted.to_time_ns)
            and (wanted.min_attempts is None or told.attempts >= wanted.min_attempts)
        )


def _possible(offsets: list[int] | None) -> BitMap64 | None:
    if offsets is None:
        return None
    return BitMap64([offset for offset in offsets if 0 <= offset <= OFFSET_MAX])


def _needles(wanted: DeadLetterFilter, origins: OriginTopics) -> list[bytes] | None:
    """Bytes that the headers of every match contain; None if no headers can contain them."""
    pairs = list(wanted.headers.items())
    pairs += [(dead_letter.REASON, wanted.reason)] if wanted.reason else []
    pairs += [(dead_letter.GROUP, wanted.group)] if wanted.group else []
    try:
        needles = [_sized(_utf8(name)) + (_sized(_utf8(value)) if value else b"") for name, value in pairs]
        needles += [_utf8(f"{origins.only}:")] if origins.only else []
        return [*needles, _utf8(wanted.error_contains)] if wanted.error_contains else needles
    except (UnicodeEncodeError, OverflowError):
        return None


def _sized(text: bytes) -> bytes:
    """The text as encoded in headers; raises `OverflowError` if it is too long for them."""
    return len(text).to_bytes(2) + text


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
