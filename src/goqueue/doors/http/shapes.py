"""Small shapes that several routes share: texts for times, flags, pairs of names, keys, lists of offsets."""

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
Key = Annotated[str | None, QueryParameter(description="of which key")]
KeyBase64 = Annotated[str | None, QueryParameter(description="the same for a key that is not text")]
PageLimit = Annotated[int, QueryParameter(ge=1, description="how many at most")]
PageSkip = Annotated[int, QueryParameter(ge=0, le=SKIP_MAX, description="how many to pass over")]

T = TypeVar("T")
_PLUS_LOST = re.compile(r"(\d) (\d\d:\d\d)$")
_PREFER_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


def time_text(ns: int) -> str:
    """The time as RFC 3339. Most times that are shown lie within a few seconds of each other."""
    seconds, fraction = divmod(ns, SECOND)
    return f"{_second_text(seconds)}.{fraction:09d}Z"


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str:
    return format_time(seconds * SECOND)[:-11]


def is_true(flag: str | None) -> bool:
    """A flag of a query."""
    return flag in ("true", "True", "1")


def one_of(first: T | None, second: T | None, names: str) -> T | None:
    """Whichever of the two names of one thing was used; both at once are refused."""
    if first is not None and second is not None:
        raise InvalidRequest(f"{names} are two names of one thing; give one", path=names.partition(" ")[0])
    return second if first is None else first


class ShownPartitionName(msgspec.Struct, gc=False):
    """One partition of a topic."""

    topic: str
    partition: int


def shown_partitions(names: Iterable[PartitionName]) -> list[ShownPartitionName]:
    """The partitions as objects."""
    return [ShownPartitionName(name.topic, name.partition) for name in names]


def duration_ns(text: str, name: str) -> int:
    """A duration in a body or a query."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name} format: {error}", path=name) from None


def duration_ms(text: str | None, name: str) -> int | None:
    """A duration, if there is one; what is not zero does not become zero."""
    return None if text is None else -(-duration_ns(text, name) // MS)


def time_ns(value: Time, name: str, *, now_ns: int) -> int | None:
    """A time in a body, if there is one."""
    if value is None:
        return None
    try:
        return parse_time(value, now_ns=now_ns)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name}: {error}", path=name) from None


def from_base64(text: str, name: str) -> bytes:
    """The bytes that the text stands for."""
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"invalid {name}: not base64", path=name) from None


def key_bytes(text: str | None, base64: str | None, name: str = "key") -> bytes | None:
    """A key, under whichever of its names it came."""
    if base64 is not None:
        one_of(text, base64, f"{name} and {name}_base64")
        return from_base64(base64, f"{name}_base64")
    return None if text is None else text.encode()


def parse_time_query(text: str, name: str, *, now_ns: int) -> int:
    """A time in a query, where an unquoted `+` of a time zone has become a space."""
    try:
        return parse_time(_PLUS_LOST.sub(r"\1+\2", text), now_ns=now_ns)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name}: {error}", path=name) from None


def parse_partition(text: str) -> int:
    """The number of a partition in a path."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidPartition(text)
    return int(text) if len(text) <= 10 else PARTITION_MAX


def parse_offset(text: str, name: str = "offset") -> int:
    """An offset in a path or a query; one that is too large to be is behind all others."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"invalid {name}: {text[:40]!r} is no whole number from 0 on", path=name)
    return int(text) if len(text) <= 19 and int(text) <= OFFSET_MAX else OFFSET_MAX


def parse_partitions(text: str) -> list[int]:
    """`0,2` as numbers."""
    return sorted({parse_partition(part.strip()) for part in text.split(",")})


def parse_offsets(text: str, name: str) -> dict[int, int]:
    """`0:42,1:17` as offsets by partition."""
    offsets: dict[int, int] = {}
    for part in text.split(",") if text.strip() else ():
        partition, _, offset = part.strip().partition(":")
        if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise InvalidRequest(f"invalid {name}: {part[:40]!r} is not partition:offset", path=name)
        if len(offset) > 19 or int(offset) > OFFSET_MAX:
            raise InvalidRequest(f"invalid {name}: {offset[:40]} is no offset", path=name)
        offsets[parse_partition(partition)] = int(offset)
    return offsets


def format_offsets(offsets: dict[int, int]) -> str:
    """The other way round."""
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())


def wait_ms(wait: str | None, prefer: str | None, config: HttpConfig, *, name: str = "wait") -> int:
    """How long to hold a long poll: what was asked for, as far as the client can wait for the answer."""
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
