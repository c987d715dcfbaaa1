"""Messages in a publish request, and their conversion to `NewMessage`.

JSON types are checked while the body is decoded, and a wrong type refuses the whole request. The content of each
message is checked here, and an invalid message does not affect the others.
"""

from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from goqueue.doors.http.large_values import LARGE_BYTES, base64_decoded
from goqueue.doors.http.shapes import Text, Time
from goqueue.doors.http.strictness import Body
from goqueue.errors import InvalidMessage, InvalidPartition
from goqueue.record.header import OFFSET_MAX, Priority
from goqueue.record.headers import RESERVED_PREFIX, HeaderValue
from goqueue.service.new_message import NewMessage
from goqueue.times import parse_duration, parse_time

ORIGIN: Final = "gq-origin"
"""The only reserved header that clients may set: the message that this one is a copy of."""

SHOWN_MAX: Final = 40
UNSET: Final = msgspec.UNSET
_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
_PRIORITY_CODES: Final = {priority.name.lower(): int(priority) for priority in Priority}

SequenceNumber = Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]
ProducerId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class HeaderBytes(Body, gc=False):
    """A header that is not text."""

    base64: str


class DueBody(Body, kw_only=True, gc=False):
    """When to deliver a message: after a delay, or at a time."""

    delay: Text = None
    deliver_at: Time = None
    deliver_at_camel: Time = msgspec.field(default=None, name="deliverAt")


class MessageBody(DueBody, kw_only=True, gc=False):
    """One message to publish."""

    value: Text = None
    value_json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_base64: Text = None
    tombstone: bool | None = None
    key: Text = None
    key_base64: Text = None
    headers: dict[str, str | HeaderBytes | None] | None = None
    partition: int | None = None
    priority: str | int | None = None
    ttl: Text = None
    expires_at: Time = None
    created_at: Time = None
    sequence: SequenceNumber | None = None


class PublishBody(MessageBody, kw_only=True, gc=False):
    """Messages to publish, or the fields of a single message without a list."""

    messages: list[MessageBody] | None = None
    acks: Text = None
    producer_id: ProducerId | None = None
    epoch: Epoch | None = None
    transaction_id: Text = None


def new_message(body: MessageBody, index: int, now_ns: int) -> NewMessage:
    """The message to store. Raises `InvalidMessage` or `InvalidPartition` for the message at `index`."""
    # The most common case, spelled out: it is tested once per message of the busiest route.
    if body.value is not None and body.value_base64 is None and body.value_json is UNSET and not body.tombstone:
        value: bytes | None = body.value.encode()
    else:
        value = _value(body, index)
    if body.key_base64 is None:
        key = None if body.key is None else body.key.encode()
    else:
        key = _either(body.key, body.key_base64, "key", index)
    if value is None and key is None:
        raise InvalidMessage("a tombstone needs a key", index=index)
    partition = body.partition
    if partition is not None and partition < 0:
        raise InvalidPartition(partition)
    due_at_ns = due_ns(body, index, now_ns)
    deliver_at_ns = None if due_at_ns is None or due_at_ns <= now_ns else due_at_ns
    return NewMessage(
        value,
        key,
        None if body.headers is None else _headers(body.headers, index),
        partition,
        Priority.NORMAL if body.priority is None else _priority(body.priority, index),
        deliver_at_ns,
        _expires_at_ns(body, index, now_ns, deliver_at_ns),
        body.sequence,
        None if body.created_at is None else _time_ns(body.created_at, "created_at", index, now_ns),
    )


def given_fields(body: MessageBody, index: int = 0) -> dict[str, object]:
    """The fields among value, key, headers, partition and priority that are set; text as UTF-8."""
    given: dict[str, object] = {}
    if body.tombstone or _values_given(body):
        given["value"] = _value(body, index)
    if body.key is not None or body.key_base64 is not None:
        given["key"] = _either(body.key, body.key_base64, "key", index)
    if body.headers is not None:
        headers = _headers(body.headers, index)
        given["headers"] = {name: text.encode() if isinstance(text, str) else text for name, text in headers.items()}
    if body.partition is not None:
        given["partition"] = body.partition
    if body.priority is not None:
        given["priority"] = _priority(body.priority, index)
    return given


def due_ns(body: DueBody, index: int, now_ns: int) -> int | None:
    """The delivery time, if one is given. It may be in the past."""
    if body.deliver_at is None and body.deliver_at_camel is None:
        return None if body.delay is None else min(now_ns + delay_ns(body.delay, index), OFFSET_MAX)
    if body.deliver_at is not None and body.deliver_at_camel is not None:
        raise InvalidMessage("deliver_at and deliverAt are two names of one thing; give one", index=index)
    if body.delay is not None:
        name = "deliverAt" if body.deliver_at is None else "deliver_at"
        raise InvalidMessage(f"delay and {name} exclude each other; give one", index=index)
    given = body.deliver_at_camel if body.deliver_at is None else body.deliver_at
    return min(_time_ns(given, "deliverAt", index, now_ns), OFFSET_MAX)


def delay_ns(text: str, index: int = 0) -> int:
    """Parse a delay. Raises `InvalidMessage` if it is negative."""
    delay = _duration_ns(text, "delay", index)
    if delay < 0:
        raise InvalidMessage(f"invalid delay: {text[:SHOWN_MAX]} is negative", index=index)
    return delay


def ttl_ns(text: str, index: int = 0) -> int:
    """Parse a time to live. Raises `InvalidMessage` unless it is positive."""
    ttl = _duration_ns(text, "ttl", index)
    if ttl <= 0:
        raise InvalidMessage(f"invalid ttl: {text[:SHOWN_MAX]} is not positive", index=index)
    return ttl


async def decode_large(messages: Sequence[MessageBody]) -> None:
    """Decode large base64 values in slices, so that the event loop is not blocked.

    Values that are not base64 are left as they are; `new_message` refuses them.
    """
    for message in messages:
        if message.value_base64 is not None and len(message.value_base64) > LARGE_BYTES:
            value = await base64_decoded(message.value_base64)
            if value is not None:
                message.value_base64 = value  # type: ignore[assignment]  # `_from_base64` accepts bytes


def base64_chars(body: MessageBody) -> int:
    """The number of characters of the message that are base64."""
    return len(body.value_base64 or "") + len(body.key_base64 or "")


def _value(body: MessageBody, index: int) -> bytes | None:
    given = _values_given(body)
    if body.tombstone:
        if given:
            raise InvalidMessage("a tombstone has no value", index=index)
        return None
    if not given:
        raise InvalidMessage("value is required", index=index)
    if len(given) > 1:
        raise InvalidMessage(f"{given[0]} and {given[1]} are two names of one thing; give one", index=index)
    if isinstance(body.value_json, msgspec.Raw) and given == ["value_json"]:
        return _from_json(body.value_json, index)
    return _either(body.value, body.value_base64, "value", index)


def _values_given(body: MessageBody) -> list[str]:
    """The fields that hold a value; null counts as absent."""
    values = {
        "value": body.value is not None,
        "value_json": body.value_json is not UNSET and bytes(body.value_json) != b"null",
        "value_base64": body.value_base64 is not None,
    }
    return [name for name, is_given in values.items() if is_given]


def _from_json(raw: msgspec.Raw, index: int) -> bytes:
    """The value as compact UTF-8. A large value keeps its escapes: decoding it would block the event loop."""
    try:
        if len(bytes(raw)) > LARGE_BYTES:
            return msgspec.json.format(bytes(raw), indent=-1)
        return _encode_json(_decode_json(raw))
    except RecursionError:
        raise InvalidMessage("invalid value_json: nested too deeply", index=index) from None
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"invalid value_json: {error}", index=index) from None


def _either(text: Text, base64: Text, name: str, index: int) -> bytes:
    if base64 is None:
        return (text or "").encode()
    if text is not None:
        raise InvalidMessage(f"{name} and {name}_base64 are two names of one thing; give one", index=index)
    return _from_base64(base64, f"{name}_base64", index)


def _from_base64(text: str | bytes, name: str, index: int) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        raise InvalidMessage(f"invalid {name}: not base64", index=index) from None


def _headers(headers: Mapping[str, str | HeaderBytes | None], index: int) -> dict[str, HeaderValue]:
    taken: dict[str, HeaderValue] = {}
    for name, value in headers.items():
        if name.startswith(RESERVED_PREFIX) and name != ORIGIN:
            raise InvalidMessage(f"invalid header {name[:100]!r}: prefix {RESERVED_PREFIX} is reserved", index=index)
        if isinstance(value, HeaderBytes):
            taken[name] = _from_base64(value.base64, f"header {name[:100]!r}", index)
        else:
            taken[name] = value
    return taken


def _priority(priority: str | int, index: int) -> int:
    if isinstance(priority, str):
        code = _PRIORITY_CODES.get(priority.lower())
    else:
        code = priority if 0 <= priority <= Priority.BACKGROUND else None
    if code is None:
        shown = str(priority)[:SHOWN_MAX]
        raise InvalidMessage(f"invalid priority {shown}: must be {', '.join(_PRIORITY_CODES)} or 0 to 4", index=index)
    return code


def _expires_at_ns(body: MessageBody, index: int, now_ns: int, deliver_at_ns: int | None) -> int | None:
    """When the message expires. The time to live counts from the delivery time."""
    if body.ttl is None:
        return None if body.expires_at is None else _time_ns(body.expires_at, "expires_at", index, now_ns)
    if body.expires_at is not None:
        raise InvalidMessage("ttl and expires_at are two names of one thing; give one", index=index)
    born_ns = now_ns if deliver_at_ns is None else deliver_at_ns
    return min(born_ns + ttl_ns(body.ttl, index), OFFSET_MAX)


def _duration_ns(text: str, name: str, index: int) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidMessage(f"invalid {name} format: {error}", index=index) from None


def _time_ns(value: Time, name: str, index: int, now_ns: int) -> int:
    assert value is not None
    try:
        return parse_time(value, now_ns=now_ns)
    except ValueError as error:
        raise InvalidMessage(f"invalid {name} format: {error}", index=index) from None
