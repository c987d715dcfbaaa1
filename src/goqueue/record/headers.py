"""The headers of a record: names and values beside the payload.

    0       2        4          |        |
    +-------+--------+----------+--------+-----------+
    | count | keylen | key ...  | vallen | value ... |   keylen to value once for each header
    +-------+--------+----------+--------+-----------+

Names and values are UTF-8. Bytes that are not are kept as surrogate escapes, both ways, so that whatever
another client wrote survives being read and written again. No headers are no bytes at all. Names that
start with `gq-` are GoQueue's own.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final

from goqueue.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from goqueue.record.header import HEADERS_BYTES_MAX, OFFSET_MAX, TIMESTAMP_MIN

RESERVED_PREFIX: Final = "gq-"
DELIVER_AT: Final = "gq-deliver-at"
"""Not before this time is the message delivered: nanoseconds since 1970, in decimal ASCII."""
EXPIRES_AT: Final = "gq-expires-at"
"""From this time on the message is not delivered any more: as above."""
FOR_GROUP: Final = "gq-for-group"
"""Only the group of this name gets the message; a redrive writes it. Plain reads are not bound by it."""
PRODUCER: Final = "gq-producer"
"""Who published the batch that begins with this record; `transactions/sequences.py` reads it. Not shown to users."""

_U16 = struct.Struct(">H")
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")


def encode_headers(headers: Mapping[str, str | bytes]) -> bytes:
    """The headers in their order, ready to stand behind a value; nothing for none."""
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
    """Names and values as they stand there; raises `CorruptRecord` where a count or length lies."""
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
    """The headers as text; the last one wins where a name stands twice."""
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
