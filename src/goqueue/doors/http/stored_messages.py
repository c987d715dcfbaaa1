"""A stored message as JSON shows it.

Bytes that are text are shown as text, others as base64 beside a null. Compressed values are shown as they were before. The broker's
own note of who published a batch is not shown.
"""

from base64 import b64encode
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from goqueue.doors.http.shapes import PRIORITIES, time_text
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.compression import decompress
from goqueue.record.header import Buffer, Flags
from goqueue.record.headers import EXPIRES_AT, PRODUCER, parse_time, split_headers
from goqueue.record.message import Message

_EXPIRES_AT: Final = EXPIRES_AT.encode()
_PRODUCER: Final = PRODUCER.encode()


class Encoding(StrEnum):
    """How bytes are shown: as text where they are text, or all as base64."""

    TEXT = "text"
    BASE64 = "base64"


class ShownHeader(msgspec.Struct, gc=False):
    """A header that is not text."""

    base64: str


class ShownMessage(msgspec.Struct, kw_only=True, gc=False):
    """One stored message."""

    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | None | msgspec.UnsetType = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    value: str | None
    value_base64: str | msgspec.UnsetType = msgspec.UNSET
    priority: str
    headers: dict[str, str | ShownHeader]
    tombstone: bool | msgspec.UnsetType = msgspec.UNSET
    expires_at: str | msgspec.UnsetType = msgspec.UNSET


def stored_messages(records: Buffer, origin: TopicPartition) -> list[Message]:
    """The messages of some records as they were read."""
    return kernel.decode(records, origin, Message)


def shown(messages: list[Message], encoding: Encoding) -> Iterator[tuple[Message, ShownMessage, int]]:
    """Each message with what is shown of it, and how many bytes that stands for."""
    as_text = encoding is Encoding.TEXT
    for message in messages:
        value = _plain_value(message)
        yield message, _show(message, value, as_text), len(value) + len(message.key or b"")


def _show(message: Message, value: bytes, as_text: bool) -> ShownMessage:
    result = ShownMessage(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=time_text(message.timestamp_ns),
        value=None,
        priority=PRIORITIES[message.priority_code],
        headers={},
    )
    if message.key is not None:
        result.key = _text(message.key) if as_text else None
        if result.key is None:
            result.key_base64 = b64encode(message.key).decode()
    if message.flags & Flags.TOMBSTONE:
        result.tombstone = True
    else:
        result.value = _text(value) if as_text else None
        if result.value is None:
            result.value_base64 = b64encode(value).decode()
    if message.raw_headers is not None:
        _show_headers(message.raw_headers, result, as_text)
    return result


def _show_headers(raw: bytes, result: ShownMessage, as_text: bool) -> None:
    for name, value in split_headers(raw):
        if name == _PRODUCER:
            continue
        if name == _EXPIRES_AT and (expires_at_ns := parse_time(value)) is not None:
            result.expires_at = time_text(expires_at_ns)
        text = _text(value) if as_text else None
        result.headers[name.decode("utf-8", "backslashreplace")] = (
            ShownHeader(b64encode(value).decode()) if text is None else text
        )


def _plain_value(message: Message) -> bytes:
    """The value before it was compressed; a producer's fake is shown as it is, lest it bar the way to what follows."""
    if not message.flags & Flags.COMPRESSED:
        return message.value
    try:
        return decompress(message.value)
    except GoQueueError:
        return message.value


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
