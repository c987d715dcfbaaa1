"""Parsing and formatting that several routes share: times, flags, aliases, keys, lists of offsets."""

import re
from binascii import a2b_base64
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar.params import QueryParameter

from goqueue.clock import MS, SECOND
from goqueue.doors.http.config import HttpConfig
from goqueue.errors import InvalidPartition, InvalidRequest
from goqueue.record.header import OFFSET_MAX, Priority
from goqueue.times import format_time, parse_duration, parse_time
from goqueue.wire.reports import PartitionName

PRIORITIES: Final = tuple(priority.name.lower() for priority in Priority)
PARTITION_MAX: Final = 2**31 - 1
SKIP_MAX: Final = 2**31 - 1

Client = Request[Any, Any, Any]
Text = str | None
Time = str | int | float | None
Partition = Annotated[int, msgspec.Meta(ge=0, le=PARTITION_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Key = Annotated[str | None, QueryParameter(description="only messages with this key")]
KeyBase64 = Annotated[str | None, QueryParameter(description="the key as base64, for keys that are not text")]
PageLimit = Annotated[int, QueryParameter(ge=1, description="maximum number of entries")]
PageSkip = Annotated[int, QueryParameter(ge=0, le=SKIP_MAX, description="number of entries to skip")]

T = TypeVar("T")
_PLUS_LOST = re.compile(r"(\d) (\d\d:\d\d)$")
_PREFER_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


def time_text(ns: int) -> str:
    """The time as RFC 3339. The text of the second is cached: the messages of an answer share few seconds."""
    seconds, fraction = divmod(ns, SECOND)
    return f"{_second_text(seconds)}.{fraction:09d}Z"


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str:
    return format_time(seconds * SECOND)[:-11]


def is_true(flag: str | None) -> bool:
    """Whether a query flag is set."""
    return flag in ("true", "True", "1")


def one_of(first: T | None, second: T | None, names: str) -> T | None:
    """The value of a field that has two names. Refuses a request that uses both."""
    if first is not None and second is not None:
        raise InvalidRequest(f"{names} are two names of one thing; give one", path=names.partition(" ")[0])
    return second if first is None else first


class ShownPartitionName(msgspec.Struct, gc=False):
    """A partition, by its topic and number."""

    topic: str
    partition: int


def shown_partitions(names: Iterable[PartitionName]) -> list[ShownPartitionName]:
    return [ShownPartitionName(name.topic, name.partition) for name in names]


def duration_ns(text: str, name: str) -> int:
    """Parse a duration of a body or a query."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name} format: {error}", path=name) from None


def duration_ms(text: str | None, name: str) -> int | None:
    """Parse an optional duration; rounds up, so that a duration below 1 ms does not become 0."""
    return None if text is None else -(-duration_ns(text, name) // MS)


def time_ns(value: Time, name: str, *, now_ns: int) -> int | None:
    """Parse an optional time of a body."""
    if value is None:
        return None
    try:
        return parse_time(value, now_ns=now_ns)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name}: {error}", path=name) from None


def from_base64(text: str, name: str) -> bytes:
    """Decode base64. Raises `InvalidRequest`."""
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"invalid {name}: not base64", path=name) from None


def key_bytes(text: str | None, base64: str | None, name: str = "key") -> bytes | None:
    """A key, given as text or as base64."""
    if base64 is not None:
        one_of(text, base64, f"{name} and {name}_base64")
        return from_base64(base64, f"{name}_base64")
    return None if text is None else text.encode()


def parse_time_query(text: str, name: str, *, now_ns: int) -> int:
    """Parse a time of a query. An unescaped `+` of its time zone has been decoded to a space."""
    try:
        return parse_time(_PLUS_LOST.sub(r"\1+\2", text), now_ns=now_ns)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name}: {error}", path=name) from None


def parse_partition(text: str) -> int:
    """Parse the partition of a path. A number that is too large becomes one that no topic has."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidPartition(text)
    return int(text) if len(text) <= 10 else PARTITION_MAX


def parse_offset(text: str, name: str = "offset") -> int:
    """Parse an offset of a path or a query. A number that is too large becomes the largest offset."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"invalid {name}: {text[:40]!r} is not a whole number >= 0", path=name)
    return int(text) if len(text) <= 19 and int(text) <= OFFSET_MAX else OFFSET_MAX


def parse_partitions(text: str) -> list[int]:
    """Parse partitions such as `0,2`."""
    return sorted({parse_partition(part.strip()) for part in text.split(",")})


def parse_offsets(text: str, name: str) -> dict[int, int]:
    """Parse offsets by partition such as `0:42,1:17`."""
    offsets: dict[int, int] = {}
    for part in text.split(",") if text.strip() else ():
        partition, _, offset = part.strip().partition(":")
        if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise InvalidRequest(f"invalid {name}: {part[:40]!r} is not partition:offset", path=name)
        if len(offset) > 19 or int(offset) > OFFSET_MAX:
            raise InvalidRequest(f"invalid {name}: {offset[:40]} is not an offset", path=name)
        offsets[parse_partition(partition)] = int(offset)
    return offsets


def format_offsets(offsets: dict[int, int]) -> str:
    """The inverse of `parse_offsets`."""
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())


def wait_ms(wait: str | None, prefer: str | None, config: HttpConfig, *, name: str = "wait") -> int:
    """How long to hold a long poll: the requested time, at most as long as the client waits for the answer."""
    if wait is None:
        return 0
    try:
        asked_ms = parse_duration(wait) // MS
    except ValueError as error:
        raise InvalidRequest(f"invalid timeout format: {error}", path=name) from None
    limit_s = config.wait_s_max
    preferred = _PREFER_WAIT.search(prefer or "")
    if preferred:
        limit_s = min(float(preferred[1]), config.wait_preferred_s_max)
    return max(0, min(asked_ms, int(limit_s * 1_000)))
