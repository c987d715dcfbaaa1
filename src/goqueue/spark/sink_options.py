"""The options of the sink, parsed once into one frozen object.

Names follow Spark: camel case, compared without case. An empty option counts as not given. An unknown option is refused
with the nearest known name. An error is one sentence that names the option.

    topic               the topic of rows without a column `topic`
    transactionalId     the id of the transactions; a stream uses its query id by default
    marker              identifies a batch write, such as a date: a write with this marker happens once
    valueFormat         json: the columns that are not a part of the message itself become one object
    rate                messages per second
    transactionTimeout  how long staged rows outlive the last running task of their write; 60 s, at most 15 minutes
    compression         none, zstd or lz4; default: that of the topic
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Self

from goqueue.client import environment
from goqueue.client.session import split_address
from goqueue.clock import MS
from goqueue.errors import InvalidConfig, InvalidRequest
from goqueue.record import compression
from goqueue.times import parse_duration

OPTIONS: Final = (
    "server",
    "apiKey",
    "tls",
    "topic",
    "transactionalId",
    "marker",
    "valueFormat",
    "rate",
    "transactionTimeout",
    "compression",
)
TIMEOUT_MS: Final = 60_000
TIMEOUT_MS_MAX: Final = 15 * 60_000
"""The limit of the broker: an abandoned transaction blocks readers of its partitions for that long."""
TRANSACTIONAL_ID_CHARACTERS_MAX: Final = 200
"""Leaves room for the number of the task."""
MARKER_CHARACTERS_MAX: Final = 500
"""Leaves room for the transactional id, which precedes it."""
_SPARKS_OWN: Final = frozenset(("path", "paths", "checkpointlocation", "queryname", "serialization.format"))
_OF_THE_SOURCE: Final = {"subscribe": "topic", "topics": "topic"}
_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of the sink, checked."""

    server: str
    api_key: str = field(repr=False)
    topic: str | None = None
    transactional_id: str | None = None
    marker: str | None = None
    is_json: bool = False
    rate: float | None = None  # messages per second
    transaction_timeout_ms: int = TIMEOUT_MS  # starts again while tasks of the write run
    compression: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options, checked. Raises `InvalidConfig` or `InvalidRequest`, which name the option."""
        given = _given(options)
        tls = given.get("tls", "false").lower()
        if tls not in ("true", "false"):
            raise InvalidConfig("tls", _shown(tls), "must be true or false")
        if tls == "true":
            raise InvalidConfig("tls", True, "the client does not speak TLS yet")
        value_format = given.get("valueFormat")
        if value_format not in (None, "json"):
            raise InvalidConfig("valueFormat", _shown(value_format), "must be json, if it is given")
        algorithm = given.get("compression")
        if algorithm not in (None, *compression.NAMES):
            raise InvalidConfig("compression", _shown(algorithm), f"must be one of {', '.join(compression.NAMES)}")
        return cls(
            server=_server(given.get("server")),
            api_key=given.get("apiKey", environment.default_api_key()),
            topic=given.get("topic"),
            transactional_id=_name(given, "transactionalId", TRANSACTIONAL_ID_CHARACTERS_MAX),
            marker=_name(given, "marker", MARKER_CHARACTERS_MAX),
            is_json=value_format == "json",
            rate=_rate(given.get("rate")),
            transaction_timeout_ms=_timeout_ms(given.get("transactionTimeout")),
            compression=algorithm,
        )

    def check_batch(self) -> None:
        """Raise for options that make no sense in a batch write."""
        if self.marker is not None and self.transactional_id is None:
            raise InvalidConfig("marker", _shown(self.marker), "needs a transactionalId")

    def check_stream(self) -> None:
        """Raise for options that make no sense in a stream."""
        if self.marker is not None:
            reason = "is for batch writes: each batch of a stream has a marker of its own"
            raise InvalidConfig("marker", _shown(self.marker), reason)


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names, without those that are Spark's own."""
    known = {name.lower(): name for name in OPTIONS}
    given: dict[str, str] = {}
    for asked, value in options.items():
        name = asked.lower()
        if name in known:
            if value.strip():
                given[known[name]] = value.strip()
        elif name not in _SPARKS_OWN and not name.startswith("spark."):
            raise InvalidRequest(f"unknown option {_shown(asked)}{_hint(name, known)}", path=asked)
    return given


def _hint(name: str, known: Mapping[str, str]) -> str:
    nearest = [_OF_THE_SOURCE[name]] if name in _OF_THE_SOURCE else get_close_matches(name, known, n=1)
    if nearest:
        return f": did you mean {known[nearest[0]]}?"
    return f": the options of the sink are {', '.join(known.values())}"


def _server(server: str | None) -> str:
    name = "server" if server else "GOQUEUE_SERVER"
    server = server or environment.default_server()
    addresses = [part for part in server.split(",") if part.strip()]
    try:
        for address in addresses:
            split_address(address)
    except InvalidRequest:
        addresses = []
    if not addresses:
        raise InvalidConfig(name, _shown(server), "must be host:port[,host:port...]")
    return server


def _name(given: Mapping[str, str], option: str, characters_max: int) -> str | None:
    name = given.get(option)
    if name is not None and (len(name) > characters_max or not name.isprintable()):
        raise InvalidConfig(option, _shown(name), f"must be 1 to {characters_max} printable characters")
    return name


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise InvalidConfig("rate", _shown(text), "must be a number of messages per second, more than 0")
    return rate


def _timeout_ms(text: str | None) -> int:
    if text is None:
        return TIMEOUT_MS
    try:
        timeout_ms = parse_duration(text) // MS
    except ValueError as error:
        raise InvalidConfig("transactionTimeout", _shown(text), str(error)) from None
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidConfig("transactionTimeout", _shown(text), "must be more than 0 and at most 15m")
    return timeout_ms


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
