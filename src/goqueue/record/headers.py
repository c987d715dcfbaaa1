"""The headers of a record: names and values beside key and value.

    0       2        4          |        |
    +-------+--------+----------+--------+-----------+
    | count | keylen | key ...  | vallen | value ... |   keylen to value once for each header
    +-------+--------+----------+--------+-----------+

A `vallen` of 65,535 is a null value, without bytes: Kafka has them, and they differ from empty ones. No real value is
that long, because all headers together are at most that long.

Names are UTF-8, and values mostly are. Other bytes become surrogate escapes when they are read as text, and the same
bytes again when they are written, so headers of any client survive a copy. No headers are no bytes, not a count of 0: a
record has one encoding. Names that start with `gq-` belong to GoQueue.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from goqueue.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from goqueue.record.header import HEADERS_BYTES_MAX, OFFSET_MAX, TIMESTAMP_MIN

HeaderValue: TypeAlias = str | bytes | None
Headers: TypeAlias = Mapping[str, HeaderValue]
"""Headers as they are published; text is UTF-8."""
HeaderPair: TypeAlias = tuple[str, HeaderValue]

RESERVED_PREFIX: Final = "gq-"
DELIVER_AT: Final = "gq-deliver-at"
"""The message is not delivered before this time: nanoseconds since 1970, in decimal ASCII."""
EXPIRES_AT: Final = "gq-expires-at"
"""The message is not delivered from this time on, written as above."""
FOR_GROUP: Final = "gq-for-group"
"""Only the group of this name gets the message; a redrive writes it. Plain reads ignore it."""
PRODUCER: Final = "gq-producer"
"""The producer of the batch that begins with this record (`identity.py`)."""
CREATED: Final = "gq-created"
"""When the producer made the message, by its own clock, written as above."""
NOT_SHOWN: Final = (DELIVER_AT, EXPIRES_AT, PRODUCER, CREATED)
"""How a message was published, not what its publisher said in headers: users do not see these among them."""

_U16 = struct.Struct(">H")
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
_NULL = b"\xff\xff"  # as the length of a value


def encode_headers(headers: Headers | Iterable[HeaderPair]) -> bytes:
    """The headers in their order, as they follow a value; no bytes for no headers. Pairs may repeat a name."""
    encoded = [_encoded(pair) for pair in (headers.items() if isinstance(headers, Mapping) else headers)]
    if not encoded:
        return b""
    size = _U16.size + sum(map(len, encoded))
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge("headers", size, HEADERS_BYTES_MAX)
    return _U16.pack(len(encoded)) + b"".join(encoded)


def encoded_size(headers: Headers) -> int:
    """About how many bytes they take: characters are counted as bytes."""
    return sum(2 * _U16.size + len(name) + len(value or b"") for name, value in headers.items())


def split_headers(encoded: bytes) -> list[tuple[bytes, bytes | None]]:
    """Names and values as bytes; raises `CorruptRecord` if a count or length is wrong."""
    if not encoded:
        return []
    count, at = _length(encoded, 0)
    if not count:
        raise CorruptRecord("malformed headers", 0)
    pairs: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, at = _string(encoded, at)
        if encoded.startswith(_NULL, at):
            pairs.append((name, None))
            at += len(_NULL)
        else:
            value, at = _string(encoded, at)
            pairs.append((name, value))
    if at != len(encoded):
        raise CorruptRecord("malformed headers", at)
    return pairs


def decode_headers(encoded: bytes) -> dict[str, str]:
    """The headers as text; of several with one name, the last one. A null value is an empty text here."""
    return {as_text(name): as_text(value or b"") for name, value in split_headers(encoded)}


def as_text(raw: bytes) -> str:
    """The name or value; bytes that are not UTF-8 become surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def parse_time(raw: bytes) -> int | None:
    """The value of `DELIVER_AT` and the like, or None when it is not a decimal number of 64 bits."""
    if not _DECIMAL.fullmatch(raw):
        return None
    time_ns = int(raw)
    return time_ns if TIMESTAMP_MIN <= time_ns <= OFFSET_MAX else None


def _encoded(pair: object) -> bytes:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidMessage("headers must be a dict or a list of pairs")
    name, value = pair
    if not isinstance(name, str):
        raise InvalidMessage(f"header name must be str, got {type(name).__name__}")
    if value is not None and not isinstance(value, str | bytes):
        raise InvalidMessage(f"header value must be str, bytes or None, got {type(value).__name__}")
    return _sized(_utf8(name)) + (_NULL if value is None else _sized(_utf8(value) if isinstance(value, str) else value))


def _sized(text: bytes) -> bytes:
    """The text after its length. If it is too long the length is wrong, but then the headers are refused as a whole."""
    return _U16.pack(min(len(text), HEADERS_BYTES_MAX)) + text


def _utf8(text: str) -> bytes:
    try:
        return str.encode(text, "utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidMessage("headers must be text that UTF-8 can hold") from None


def _length(encoded: bytes, at: int) -> tuple[int, int]:
    end = at + _U16.size
    if end > len(encoded):
        raise CorruptRecord("malformed headers", at)
    return int.from_bytes(encoded[at:end]), end


def _string(encoded: bytes, at: int) -> tuple[bytes, int]:
    size, start = _length(encoded, at)
    end = start + size
    if end > len(encoded):
        raise CorruptRecord("malformed headers", at)
    return encoded[start:end], end
