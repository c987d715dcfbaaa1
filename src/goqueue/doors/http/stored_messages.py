"""Stored messages as JSON.

Bytes that are UTF-8 are shown as text, other bytes as base64 in a second field, and the first field is null. With
`values=json`, values that are JSON are shown in `value_json`, and `value` is null. Compressed values are shown
decompressed; if that fails, the value is null and `error` says why. Headers that say how a message
was published are not shown.
"""

from base64 import b64encode
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from goqueue.doors.http.large_values import LARGE_BYTES, LargeValue
from goqueue.doors.http.shapes import PRIORITIES, time_text
from goqueue.errors import CorruptRecord
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.compression import decompress
from goqueue.record.header import Buffer, Flags
from goqueue.record.headers import CREATED, EXPIRES_AT, NOT_SHOWN, parse_time, split_headers
from goqueue.record.message import StoredMessage

_TIMES_SHOWN: Final = {EXPIRES_AT.encode(): "expires_at", CREATED.encode(): "created_at"}
_NOT_SHOWN: Final = frozenset(name.encode() for name in NOT_SHOWN)
_COMPRESSED: Final = int(Flags.COMPRESSED)  # plain ints: operations on an IntFlag are slow, and run per message
_TOMBSTONE: Final = int(Flags.TOMBSTONE)


class Encoding(StrEnum):
    """How bytes are shown: UTF-8 as text and other bytes as base64, or all bytes as base64."""

    TEXT = "text"
    BASE64 = "base64"


class Values(StrEnum):
    """How values are shown: as text, or as JSON if they are valid JSON."""

    TEXT = "text"
    JSON = "json"


class ShownHeader(msgspec.Struct, gc=False):
    """The value of a header that is not UTF-8."""

    base64: str


class ShownMessage(msgspec.Struct, kw_only=True, gc=False):
    """A stored message."""

    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    value: str | None  # value_base64 must come after it: see LargeValue.encoded
    value_json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET
    priority: str
    headers: dict[str, str | ShownHeader | None]
    tombstone: bool | msgspec.UnsetType = msgspec.UNSET
    expires_at: str | msgspec.UnsetType = msgspec.UNSET
    created_at: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET  # why the value is missing
    code: str | msgspec.UnsetType = msgspec.UNSET  # of that error


class ShownGap(msgspec.Struct):
    """Offsets [first_offset, next_offset) whose records are damaged on disk."""

    partition: int
    first_offset: int
    next_offset: int
    reason: str


class ShownKey(NamedTuple):
    """The values of the fields `key` and `key_base64`."""

    key: str | msgspec.UnsetType | None
    key_base64: str | msgspec.UnsetType


M = TypeVar("M", bound=ShownMessage)


def shown(
    records: Buffer, origin: TopicPartition, encoding: Encoding, values: Values
) -> Iterator[tuple[StoredMessage, ShownMessage, int]]:
    """Each message of the records with its JSON shape and the size of its value in bytes."""
    for message in kernel.decode(records, origin, StoredMessage):
        yield message, *show(message, encoding, values, ShownMessage)


def show(message: StoredMessage, encoding: Encoding, values: Values, shape: type[M]) -> tuple[M, int]:
    """The JSON shape of the message, and the size of its value in bytes, decompressed."""
    topic, partition = message.origin
    as_text = encoding is Encoding.TEXT
    value, flags = message.value, message.flags
    unreadable: CorruptRecord | None = None
    if flags & _COMPRESSED:
        try:
            value = decompress(value)
        except CorruptRecord as error:
            unreadable = error
    view = shape(
        topic=topic,
        partition=partition,
        offset=message.offset,
        timestamp=time_text(message.timestamp_ns),
        value=None,
        priority=PRIORITIES[message.priority_code],
        headers={},
    )
    if message.key is not None:
        view.key = _text(message.key) if as_text else None
        if view.key is None:
            view.key_base64 = b64encode(message.key).decode()
    if flags & _TOMBSTONE:
        view.tombstone = True
    elif unreadable is not None:
        view.error = f"the value cannot be decompressed: {unreadable.reason}"
        view.code = unreadable.code
    elif values is Values.JSON and (raw := _json(value)) is not None:
        view.value_json = raw
    elif len(value) > LARGE_BYTES:
        view.value = LargeValue(value, as_text=as_text)  # type: ignore[assignment]  # replaced while encoding
    else:
        view.value = _text(value) if as_text else None
        if view.value is None:
            view.value_base64 = b64encode(value).decode()
    if message.encoded_headers is not None:
        _show_headers(message.encoded_headers, view, as_text)
    return view, len(value)


def show_key(key: bytes | None, encoding: Encoding) -> ShownKey:
    """The fields of a key without its message."""
    if key is None:
        return ShownKey(msgspec.UNSET, msgspec.UNSET)
    text = _text(key) if encoding is Encoding.TEXT else None
    return ShownKey(text, b64encode(key).decode() if text is None else msgspec.UNSET)


def _show_headers(raw: bytes, view: ShownMessage, as_text: bool) -> None:
    for name, value in split_headers(raw):
        if name in _NOT_SHOWN:
            if name in _TIMES_SHOWN and (time_ns := parse_time(value or b"")) is not None:
                setattr(view, _TIMES_SHOWN[name], time_text(time_ns))
            continue
        view.headers[name.decode("utf-8", "backslashreplace")] = None if value is None else _header(value, as_text)


def _header(value: bytes, as_text: bool) -> str | ShownHeader:
    text = _text(value) if as_text else None
    return ShownHeader(b64encode(value).decode()) if text is None else text


def _json(data: bytes) -> msgspec.Raw | None:
    """The value, reformatted to one line, if it is JSON. Numbers keep all of their digits."""
    if _text(data) is None:
        return None
    try:
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
