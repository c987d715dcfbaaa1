"""The headers of a record: names and values beside key and value.

    0       2        4          |        |
    +-------+--------+----------+--------+-----------+
    | count | keylen | key ...  | vallen | value ... |   keylen to value once for each header
    +-------+--------+----------+--------+-----------+

Names and values are UTF-8. Other bytes become surrogate escapes when they are read, and the same bytes again when they
are written, so headers of any client survive a copy. No headers are no bytes, not a count of 0: a record has one
encoding. Names that start with `gq-` belong to GoQueue.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final

from goqueue.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from goqueue.record.header import HEADERS_BYTES_MAX, OFFSET_MAX, TIMESTAMP_MIN

RESERVED_PREFIX: Final = "gq-"
DELIVER_AT: Final = "gq-deliver-at"
"""The message is not delivered before this time: nanoseconds since 1970, in decimal ASCII."""
EXPIRES_AT: Final = "gq-expires-at"
"""The message is not delivered from this time on, written as above."""
FOR_GROUP: Final = "gq-for-group"
"""Only the group of this name gets the message; a redrive writes it. Plain reads ignore it."""
PRODUCER: Final = "gq-producer"
"""The producer of the batch that begins with this record (`identity.py`). Not shown to users."""

_U16 = struct.Struct(">H")
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")


def encode_headers(headers: Mapping[str, str | bytes]) -> bytes:
    """The headers in their order, as they follow a value; no bytes for no headers."""
    if not headers:
        return b""
    texts: list[bytes] = []
    for name, value in headers.items():
        _check_types(name, value)
        texts += (_utf8(name), value if isinstance(value, bytes) else _utf8(value))
    size = _U16.size + sum(_U16.size + len(text) for text in texts)
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge("headers", size, HEADERS_BYTES_MAX)
    return _U16.pack(len(texts) // 2) + b"".join(_U16.pack(len(text)) + text for text in texts)


def split_headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values as raw bytes; raises `CorruptRecord` if a count or length is wrong."""
    if not raw:
        return []
    count, at = _length(raw, 0)
    if not count:
        raise CorruptRecord("malformed headers", 0)
    pairs = []
    for _ in range(count):
        name, at = _string(raw, at)
        value, at = _string(raw, at)
        pairs.append((name, value))
    if at != len(raw):
        raise CorruptRecord("malformed headers", at)
    return pairs


def decode_headers(raw: bytes) -> dict[str, str]:
    """The headers as text; of several with one name, the last one."""
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in split_headers(raw)
    }


def parse_time(raw: bytes) -> int | None:
    """The value of `DELIVER_AT` or `EXPIRES_AT`, or None when it is not a decimal number of 64 bits."""
    if not _DECIMAL.fullmatch(raw):
        return None
    time_ns = int(raw)
    return time_ns if TIMESTAMP_MIN <= time_ns <= OFFSET_MAX else None


def _check_types(name: object, value: object) -> None:
    if not isinstance(name, str):
        raise InvalidMessage(f"header name must be str, got {type(name).__name__}")
    if not isinstance(value, str | bytes):
        raise InvalidMessage(f"header value must be str or bytes, got {type(value).__name__}")


def _utf8(text: str) -> bytes:
    try:
        return str.encode(text, "utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidMessage("headers must be text that UTF-8 can hold") from None


def _length(raw: bytes, at: int) -> tuple[int, int]:
    end = at + _U16.size
    if end > len(raw):
        raise CorruptRecord("malformed headers", at)
    return int.from_bytes(raw[at:end]), end


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    size, start = _length(raw, at)
    end = start + size
    if end > len(raw):
        raise CorruptRecord("malformed headers", at)
    return raw[start:end], end
