r"""The options of the source, parsed once into one frozen object.

Names follow Spark: camel case, compared without case. An unknown option is refused with the nearest known name, so that
a misspelled option is never silently ignored. An error is one sentence that names the option; the API key is never in
it.

    subscribe          orders,payments            exactly one of these three
    subscribePattern   orders\..*                 a regular expression that matches whole names
    assign             {"orders": [0, 2]}

    startingOffsets    earliest | latest | {"orders": {"0": 5, "1": -2}}      -2 is earliest, -1 latest
    startingTimestamp  2026-11-15T00:00:00Z | 1763164800 | 2h ago

Sizes are bytes, or have a unit: 512k, 64m, 1g.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from goqueue.client import environment
from goqueue.client.session import split_address
from goqueue.errors import InvalidConfig, InvalidRequest
from goqueue.record.header import OFFSET_MAX
from goqueue.times import parse_time

EARLIEST: Final = -2
LATEST: Final = -1
PARTITIONS_MAX: Final = 100_000
"""The most tasks that can be requested; the driver would be busy with scheduling more of them."""

OPTIONS: Final = (
    "server",
    "apiKey",
    "tls",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "group",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxBytesPerPartition",
    "failOnDataLoss",
    "columns",
    "filterPushdown",
    "isolation",
    "delayed",
    "readFrom",
    "dataDir",
    "includeHeaders",
    "headersFormat",
    "valueSchema",
)
_SPARKS_OWN: Final = frozenset(("path", "paths", "checkpointlocation", "serialization.format"))
_OF_THE_SINK: Final = frozenset(("topic", "transactionalid", "marker", "rate", "valueformat"))
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SHOWN_MAX = 100

_E = TypeVar("_E", bound=StrEnum)


class ReadIsolation(StrEnum):
    """How far a partition is read: to the last stable offset, or to the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class DelayedMessages(StrEnum):
    """Which delayed messages are read: all that are not cancelled, or only the due ones."""

    INCLUDE = "include"
    DUE = "due"


class HeadersFormat(StrEnum):
    """The type of the column `headers`: pairs of a name and bytes, or a map of strings."""

    ARRAY = "array"
    MAP = "map"


class ReadFrom(StrEnum):
    """Where records come from."""

    BROKER = "broker"
    FILES = "files"


class Edge(StrEnum):
    """One end of every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """An offset for each partition of each topic; `EARLIEST` and `LATEST` are its start and its end."""

    by_topic: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time as it was written: an age such as `2h ago` depends on when it is resolved."""

    text: str

    def ns(self, *, now_ns: int) -> int:
        """Nanoseconds since 1970."""
        return parse_time(self.text, now_ns=now_ns)


Place = Edge | TopicOffsets | Timestamp
"""Where reading starts or ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of the source, checked."""

    server: str
    api_key: str = field(repr=False)
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    start: Place | None = None  # None: the positions of the group, else the default of batch or stream
    end: Place | None = None
    group: str | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_bytes_per_partition: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] | None = None
    filter_pushdown: bool = False
    isolation: ReadIsolation = ReadIsolation.READ_COMMITTED
    delayed: DelayedMessages = DelayedMessages.INCLUDE
    read_from: ReadFrom = ReadFrom.BROKER
    data_dir: str | None = None
    include_headers: bool = False
    headers_format: HeadersFormat = HeadersFormat.ARRAY
    value_schema: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options, checked. Raises `InvalidConfig` or `InvalidRequest`, which name the option."""
        given = _GivenOptions(options)
        parsed = cls(
            server=_server(given),
            api_key=environment.default_api_key() if (key := given.text("apiKey")) is None else key,
            subscribe=_names(given, "subscribe") or (),
            subscribe_pattern=_pattern(given),
            assign=_assign(given),
            start=_place(given, "startingOffsets", "startingTimestamp"),
            end=_place(given, "endingOffsets", "endingTimestamp"),
            group=given.text("group"),
            max_offsets_per_trigger=_count(given, "maxOffsetsPerTrigger"),
            max_bytes_per_trigger=_size(given, "maxBytesPerTrigger"),
            min_partitions=_count(given, "minPartitions", PARTITIONS_MAX),
            max_bytes_per_partition=_size(given, "maxBytesPerPartition"),
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
            columns=_names(given, "columns"),
            filter_pushdown=_flag(given, "filterPushdown", False),
            isolation=_choice(given, "isolation", ReadIsolation.READ_COMMITTED),
            delayed=_choice(given, "delayed", DelayedMessages.INCLUDE),
            read_from=_choice(given, "readFrom", ReadFrom.BROKER),
            data_dir=given.text("dataDir"),
            include_headers=_flag(given, "includeHeaders", False),
            headers_format=_choice(given, "headersFormat", HeadersFormat.ARRAY),
            value_schema=given.text("valueSchema"),
        )
        if _flag(given, "tls", False):
            raise InvalidConfig("tls", True, "the client does not speak TLS yet")
        chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
        if len(chosen) != 1:
            asked = " and ".join(chosen) + " were given" if chosen else "none was given"
            raise InvalidRequest(
                f"one of subscribe, subscribePattern and assign is required: {asked}", path="subscribe"
            )
        if (parsed.read_from is ReadFrom.FILES) != (parsed.data_dir is not None):
            reason = "readFrom=files needs dataDir, and dataDir needs readFrom=files"
            raise InvalidRequest(reason, path="dataDir")
        return parsed

    def check_batch(self) -> None:
        """Raise for options that make no sense in a batch read."""
        if _is_at(self.start, LATEST):
            raise InvalidConfig("startingOffsets", "latest", "a batch read that begins at the end reads nothing")
        if _is_at(self.end, EARLIEST):
            raise InvalidConfig("endingOffsets", "earliest", "a batch read that ends at the beginning reads nothing")

    def check_stream(self) -> None:
        """Raise for options that make no sense in a stream."""
        if self.end is not None:
            raise InvalidRequest("a stream has no end: endingOffsets and endingTimestamp are for batch reads")
        if self.filter_pushdown:
            raise InvalidConfig("filterPushdown", True, "Spark pushes filters into batch reads only")


class _GivenOptions:
    """The options by their lower-case names; an empty one counts as not given."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in OPTIONS}
        for name in self._options:
            if name in known or name in _SPARKS_OWN or name.startswith("spark."):
                continue
            raise InvalidRequest(f"unknown option {name}{_hint(name, known)}", path=name)

    def text(self, name: str) -> str | None:
        """The value, if one was given."""
        value = self._options.get(name.lower())
        return value.strip() or None if isinstance(value, str) else value


def _hint(name: str, known: Mapping[str, str]) -> str:
    if name in _OF_THE_SINK:
        return ": it is an option of the sink"
    nearest = get_close_matches(name, known, n=1)
    return f": did you mean {known[nearest[0]]}?" if nearest else f": the options are {', '.join(known.values())}"


def _server(given: _GivenOptions) -> str:
    server = given.text("server")
    name = "server" if server else "GOQUEUE_SERVER"
    server = server or environment.default_server()
    addresses = [part for part in server.split(",") if part.strip()]
    try:
        for address in addresses:
            split_address(address)
    except InvalidRequest:
        addresses = []
    if not addresses:
        raise InvalidConfig(name, server, "must be host:port[,host:port...]")
    return server


def _names(given: _GivenOptions, option: str) -> tuple[str, ...] | None:
    text = given.text(option)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidConfig(option, text, "must be names with commas between them")
    if len(set(names)) < len(names):
        raise InvalidConfig(option, text, "a name is there twice")
    return names


def _pattern(given: _GivenOptions) -> str | None:
    text = given.text("subscribePattern")
    if text is not None:
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidConfig("subscribePattern", _shown(text), f"is not a regular expression: {error}") from None
    return text


def _assign(given: _GivenOptions) -> dict[str, tuple[int, ...]] | None:
    text = given.text("assign")
    if text is None:
        return None
    shape = 'must be JSON like {"orders": [0, 1]}'
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json_object("assign", text, shape):
        if not isinstance(partitions, list) or not partitions or not all(_is_offset(one, 0) for one in partitions):
            raise InvalidConfig("assign", _shown(text), shape)
        if len(set(partitions)) < len(partitions):
            raise InvalidConfig("assign", _shown(text), f"a partition of {topic} is there twice")
        assigned[topic] = tuple(sorted(partitions))
    return assigned


def _place(given: _GivenOptions, offsets_option: str, time_option: str) -> Place | None:
    offsets, time = given.text(offsets_option), given.text(time_option)
    if offsets is not None and time is not None:
        raise InvalidRequest(f"either {offsets_option} or {time_option}, not both", path=offsets_option)
    if time is not None:
        try:
            parse_time(time, now_ns=0)
        except ValueError as error:
            raise InvalidConfig(time_option, _shown(time), str(error)) from None
        return Timestamp(time)
    if offsets is None:
        return None
    if offsets.lower() in list(Edge):
        return Edge(offsets.lower())
    return _offsets(offsets_option, offsets)


def _offsets(option: str, text: str) -> TopicOffsets:
    shape = 'must be earliest, latest or JSON like {"orders": {"0": 5, "1": -2}}'
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(option, text, shape):
        if not isinstance(partitions, dict) or not partitions:
            raise InvalidConfig(option, _shown(text), shape)
        by_topic[topic] = {}
        for partition, offset in partitions.items():
            if not re.fullmatch(r"0|[1-9]\d{0,8}", partition, re.ASCII) or not _is_offset(offset, EARLIEST):
                raise InvalidConfig(option, _shown(text), shape)
            by_topic[topic][int(partition)] = offset
    return TopicOffsets(by_topic)


def _json_object(option: str, text: str, shape: str) -> Iterable[tuple[str, Any]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name is there twice")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found or not all(found):
        raise InvalidConfig(option, _shown(text), shape)
    return found.items()


def _is_offset(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= OFFSET_MAX


def _count(given: _GivenOptions, option: str, highest: int = OFFSET_MAX) -> int | None:
    text = given.text(option)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not 0 < int(text) <= highest:
        limit = "on" if highest == OFFSET_MAX else f"to {highest}"
        raise InvalidConfig(option, _shown(text), f"must be a whole number from 1 {limit}")
    return int(text)


def _size(given: _GivenOptions, option: str) -> int | None:
    text = given.text(option)
    if text is None:
        return None
    match = _SIZE.fullmatch(text) if len(text) < _SHOWN_MAX else None
    size = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < size <= OFFSET_MAX:
        raise InvalidConfig(option, _shown(text), "must be a number of bytes from 1 on, such as 67108864, 64m or 1g")
    return size


def _flag(given: _GivenOptions, option: str, default: bool) -> bool:
    text = given.text(option)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidConfig(option, _shown(text), "must be true or false")
    return text.lower() == "true"


def _choice(given: _GivenOptions, option: str, default: _E) -> _E:
    text = given.text(option)
    if text is None:
        return default
    choices = type(default)
    if text.lower() not in list(choices):
        raise InvalidConfig(option, _shown(text), f"must be {' or '.join(choices)}")
    return choices(text.lower())


def _is_at(place: Place | None, edge: int) -> bool:
    """Whether all partitions start, or end, at that edge."""
    if isinstance(place, TopicOffsets):
        return all(offset == edge for offsets in place.by_topic.values() for offset in offsets.values())
    return place is (Edge.EARLIEST if edge == EARLIEST else Edge.LATEST)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
