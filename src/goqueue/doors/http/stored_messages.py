"""A stored message as JSON shows it.

Bytes that are text are shown as text, others as base64 beside a null. If that was asked for, values that are JSON are
shown as such, in `value_json` beside a null. Compressed values are shown as they were before; one that cannot be
decompressed is a null beside an `error`. The broker's own note of who published a batch is not shown.
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
from goqueue.record.headers import EXPIRES_AT, PRODUCER, parse_time, split_headers
from goqueue.record.message import Message

_EXPIRES_AT: Final = EXPIRES_AT.encode()
_PRODUCER: Final = PRODUCER.encode()
_COMPRESSED: Final = int(Flags.COMPRESSED)  # plain numbers: an IntFlag takes its time, message by message
_TOMBSTONE: Final = int(Flags.TOMBSTONE)


class Encoding(StrEnum):
    """How bytes are shown: as text where they are text, or all as base64."""

    TEXT = "text"
    BASE64 = "base64"


class Values(StrEnum):
    """How values are shown: as text where they are text, or as JSON where they are JSON."""

    TEXT = "text"
    JSON = "json"


class ShownHeader(msgspec.Struct, gc=False):
    """A header that is not text."""

    base64: str


class ShownMessage(msgspec.Struct, kw_only=True, gc=False):
    """One stored message."""

    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    value: str | None  # what follows must stay: a large value may turn out to be base64
    value_json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET
    priority: str
    headers: dict[str, str | ShownHeader]
    tombstone: bool | msgspec.UnsetType = msgspec.UNSET
    expires_at: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET  # why the value is not shown
    code: str | msgspec.UnsetType = msgspec.UNSET  # of that error


class ShownGap(msgspec.Struct):
    """Offsets [first_offset, next_offset) whose records are damaged on the disk."""

    partition: int
    first_offset: int
    next_offset: int
    reason: str


class ShownKey(NamedTuple):
    """The two fields that show a key."""

    key: str | msgspec.UnsetType | None
    key_base64: str | msgspec.UnsetType


M = TypeVar("M", bound=ShownMessage)


def shown(
    records: Buffer, origin: TopicPartition, encoding: Encoding, values: Values
) -> Iterator[tuple[Message, ShownMessage, int]]:
    """Each message of the records with what is shown of it, and how many bytes that stands for."""
    for message in kernel.decode(records, origin, Message):
        yield message, *show(message, encoding, values, ShownMessage)


def show(message: Message, encoding: Encoding, values: Values, shape: type[M]) -> tuple[M, int]:
    """What is shown of the message, and how many bytes that stands for."""
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
        view.value = LargeValue(value, as_text=as_text)  # type: ignore[assignment]  # until it is encoded
    else:
        view.value = _text(value) if as_text else None
        if view.value is None:
            view.value_base64 = b64encode(value).decode()
    if message.raw_headers is not None:
        _show_headers(message.raw_headers, view, as_text)
    return view, len(value)


def show_key(key: bytes | None, encoding: Encoding) -> ShownKey:
    """The key on its own, as a message shows it."""
    if key is None:
        return ShownKey(msgspec.UNSET, msgspec.UNSET)
    text = _text(key) if encoding is Encoding.TEXT else None
    return ShownKey(text, b64encode(key).decode() if text is None else msgspec.UNSET)


def _show_headers(raw: bytes, view: ShownMessage, as_text: bool) -> None:
    for name, value in split_headers(raw):
        if name == _PRODUCER:
            continue
        if name == _EXPIRES_AT and (expires_at_ns := parse_time(value)) is not None:
            view.expires_at = time_text(expires_at_ns)
            continue
        text = _text(value) if as_text else None
        view.headers[name.decode("utf-8", "backslashreplace")] = (
            ShownHeader(b64encode(value).decode()) if text is None else text
        )


def _json(data: bytes) -> msgspec.Raw | None:
    """The value as it stands in an answer, if it is JSON: numbers keep all of their digits, line breaks go."""
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
