"""Values, keys, times and priorities as applications give them, checked and converted to what a record holds."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypeVar

import msgspec

from goqueue.client.accumulator import NORMAL, OutgoingMessage
from goqueue.client.options import Duration, Time
from goqueue.errors import InvalidMessage, InvalidRequest, MessageTooLarge
from goqueue.record.header import HEADERS_BYTES_MAX, KEY_BYTES_MAX, Priority
from goqueue.record.headers import (
    CREATED,
    DELIVER_AT,
    EXPIRES_AT,
    RESERVED_PREFIX,
    Headers,
    HeaderValue,
    encode_headers,
)
from goqueue.times import NS_MAX, parse_delay, parse_duration, parse_time, parse_ttl

T = TypeVar("T")
_encode_json = msgspec.json.Encoder().encode
_NULL = b"null"
_ORIGIN = "gq-origin"
_ROOM_FOR_PRODUCER = 100
"""Kept free in the headers of each message: the first one of a batch carries the identity of the producer."""


def value_bytes(value: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON, which has no NaN and no infinities."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _utf8(value, "value")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        encoded = _encode_json(value)
        if _NULL in encoded and not _is_finite(msgspec.to_builtins(value)):  # an encoder writes NaN as null
            raise ValueError("NaN and infinities are no numbers in JSON")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"value cannot be written as JSON: {error}") from error
    return encoded


def _is_finite(value: object) -> bool:
    """Whether all numbers in the value are finite."""
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value)) and all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def several(items: Iterable[T]) -> list[T]:
    """The items as a list. A text is one value, not a list of letters."""
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        raise InvalidRequest(f"a list of items is required, not one {type(items).__name__}", path="items")
    return list(items)


def key_and_value(item: Any) -> tuple[bytes | str | None, Any]:
    """An item of `publish_many`: a value, or a (key, value) pair."""
    return item if isinstance(item, tuple) and len(item) == 2 else (None, item)


def key_bytes(key: bytes | str | None) -> bytes | None:
    """The key; an empty one is a key, too."""
    if key is None:
        return None
    raw = _utf8(key, "key") if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise InvalidMessage(f"key must be bytes or str, got {type(key).__name__}")
    if len(raw) > KEY_BYTES_MAX:
        raise MessageTooLarge("key", len(raw), KEY_BYTES_MAX)
    return raw


def priority_code(priority: Priority | int | str | None) -> int:
    """The lane: a name in any case, or 0 to 4."""
    if priority is None:
        return Priority.NORMAL
    try:
        return Priority[priority.upper()] if isinstance(priority, str) else Priority(priority)
    except (KeyError, ValueError):
        names = ", ".join(lane.name.lower() for lane in Priority)
        raise InvalidMessage(f"invalid priority {priority!r}: must be one of {names}, or 0 to 4") from None


def message(
    value: Any,
    key: bytes | str | None = None,
    priority: Priority | int | str | None = None,
    headers: Headers | None = None,
    delay: Duration | None = None,
    deliver_at: Time | None = None,
    ttl: Duration | None = None,
    tombstone: bool = False,
    created_at: Time | None = None,
    *,
    now_ns: int,
) -> OutgoingMessage:
    """The message, checked, with times as headers. A value of None is a tombstone. A delay of zero, or a time in the
    past, means now.
    """
    if headers is None and deliver_at is None and ttl is None and not tombstone and created_at is None:
        delay_ns = 0 if delay is None else _delay_ns(delay)
        due = {DELIVER_AT: _stamp(now_ns + delay_ns, "delay")} if delay_ns > 0 else None
        if type(value) is bytes and key is None and priority is None:  # as most are that come in great numbers
            return OutgoingMessage(value, None, due, NORMAL)
        raw_key = key_bytes(key)
        return OutgoingMessage(_value(value, raw_key), raw_key, due, priority_code(priority))
    own: dict[str, HeaderValue] = {}
    if delay is not None and deliver_at is not None:
        raise InvalidMessage("delay and deliver_at both say when the message is due; give one of them")
    if delay is not None:
        due_ns = now_ns + _delay_ns(delay)
    elif deliver_at is not None:
        due_ns = time_ns(deliver_at, "deliverAt", now_ns)
    else:
        due_ns = now_ns
    if due_ns > now_ns:
        own[DELIVER_AT] = _stamp(due_ns, "delay")
    if ttl is not None:
        own[EXPIRES_AT] = _stamp(max(due_ns, now_ns) + ttl_ns(ttl), "ttl")
    if created_at is not None:
        own[CREATED] = str(time_ns(created_at, "created_at", now_ns))
    if headers:
        for name in headers:
            if str(name).startswith(RESERVED_PREFIX) and name != _ORIGIN:
                reserved = f"names that start with {RESERVED_PREFIX} are the broker's own"
                raise InvalidMessage(f"header name {name!r}: {reserved}")
        own.update(headers)
        if len(encode_headers(own)) > HEADERS_BYTES_MAX - _ROOM_FOR_PRODUCER:
            raise MessageTooLarge("headers", len(encode_headers(own)), HEADERS_BYTES_MAX - _ROOM_FOR_PRODUCER)
    raw_key = key_bytes(key)
    if tombstone:
        if value is not None and value not in (b"", ""):
            raise InvalidMessage("a tombstone has no value: publish None, or an empty value")
        value = None
    return OutgoingMessage(_value(value, raw_key), raw_key, own or None, priority_code(priority))


def _value(value: Any, key: bytes | None) -> bytes | None:
    """The value as it is stored: None, which deletes the key, or bytes."""
    if value is not None:
        return value_bytes(value)
    if key is None:
        raise InvalidMessage("value is required: None is a tombstone, and a tombstone needs the key that it deletes")
    return None


def _delay_ns(value: Duration) -> int:
    try:
        return parse_delay(value)
    except ValueError as error:
        raise InvalidMessage(f"invalid delay format: {error}") from None


def ttl_ns(value: Duration) -> int:
    """How long a message may be delivered."""
    try:
        return parse_ttl(value)
    except ValueError as error:
        raise InvalidMessage(f"invalid ttl format: {error}") from None


def time_ns(value: Time, name: str, now_ns: int) -> int:
    """A time in the message; `name` says whose."""
    try:
        return parse_time(value, now_ns=now_ns)
    except ValueError as error:
        raise InvalidMessage(f"invalid {name} format: {error}") from None


def asked_duration_ns(value: Duration, name: str) -> int:
    """A duration in a request."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name} format: {error}", path=name) from None


def asked_delay_ns(value: Duration) -> int:
    """A delay in a request."""
    try:
        return parse_delay(value)
    except ValueError as error:
        raise InvalidRequest(f"invalid delay format: {error}", path="delay") from None


def asked_time_ns(value: Time | None, name: str, now_ns: int) -> int | None:
    """A time in a request."""
    if value is None:
        return None
    try:
        return parse_time(value, now_ns=now_ns)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name} format: {error}", path=name) from None


def _stamp(ns: int, name: str) -> str:
    if ns > NS_MAX:
        raise InvalidMessage(f"invalid {name}: it ends after the year 2262")
    return str(ns)


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{field} is text that UTF-8 cannot hold: {error.reason}") from None
