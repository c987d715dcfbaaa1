r"""A message as a line: for people, for programs, or by a template.

    text     2026-01-31T12:00:00.250Z 0:42 key=customer-42 hello        with several topics: orders-0:42
    json     {"topic": "orders", "partition": 0, "offset": 42, ..., "value": "hello"}   as in the HTTP API
    yaml     the same as a document, after a line of ---
    raw      the bytes of the value
    else     a template: '{partition}:{offset} {key} {value}'; \n is a line feed, \t a tab

The line of a message that was delivered to a member of a group has its delivery count, in text from 2 on. In text and
templates a message stays on its line and its control characters are escaped; raw prints its bytes unchanged.
"""

import base64
import json
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING

import yaml

from goqueue.cli.output import one_line
from goqueue.times import format_time

if TYPE_CHECKING:
    from goqueue.record.message import StoredMessage

Render = Callable[["StoredMessage"], bytes]

_FIELDS: dict[str, Callable[["StoredMessage"], object]] = {
    "topic": lambda message: message.topic,
    "partition": lambda message: message.partition,
    "offset": lambda message: message.offset,
    "timestamp": lambda message: format_time(message.timestamp_ns),
    "priority": lambda message: message.priority.name.lower(),
    "key": lambda message: one_line(message.key or b""),
    "value": lambda message: one_line(message.value),
    "delivery_count": lambda message: message.delivery_count,
    "headers": lambda message: one_line(
        json.dumps(_headers(message), ensure_ascii=False).encode("utf-8", "backslashreplace")
    ),
}
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def renderer(format: str, *, topics: int = 1) -> Render:
    """The renderer of a format; text names the topic if there are several. Raises `ValueError` for any other format."""
    match format:
        case "text" | "table":
            return _text if topics == 1 else _text_with_topic
        case "json":
            return _json
        case "yaml":
            return _yaml
        case "raw":
            return _raw
        case _ if "{" in format:
            return _template(format)
    raise ValueError(f"{format!r} is not text, json, yaml, raw or a template such as '{{offset}} {{value}}'")


def as_data(message: "StoredMessage") -> dict[str, object]:
    """The message in the types of JSON. Bytes that are not UTF-8 become base64."""
    data: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": format_time(message.timestamp_ns),
    }
    data |= key_data(message.key) | _either("value", message.value)
    data |= {"priority": message.priority.name.lower(), "headers": _headers(message)}
    if message.created_at is not None:
        data["created_at"] = message.created_at.isoformat().replace("+00:00", "Z")
    if message.tombstone:
        data["tombstone"] = True
    if message.delivery_count:
        data["delivery_count"] = message.delivery_count
    return data


def _headers(message: "StoredMessage") -> dict[str, str | None]:
    """The headers as text; one without a value is null in JSON."""
    return {
        name: None if value is None else value.decode("utf-8", "surrogateescape") for name, value in message.raw_headers
    }


def key_data(key: bytes | None) -> dict[str, object]:
    """The key in the types of JSON; empty without a key."""
    return {} if key is None else _either("key", key)


def _either(name: str, content: bytes) -> dict[str, object]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(content).decode()}


def _text(message: "StoredMessage") -> bytes:
    return _connection(message, f"{message.partition}:{message.offset}")


def _text_with_topic(message: "StoredMessage") -> bytes:
    return _connection(message, f"{message.topic}-{message.partition}:{message.offset}")


def _connection(message: "StoredMessage", place: str) -> bytes:
    time = f"{format_time(message.timestamp_ns)[:23]}Z"
    key = "" if message.key is None else f" key={one_line(message.key)}"
    again = f" delivery={message.delivery_count}" if message.delivery_count > 1 else ""
    value = "(tombstone)" if message.tombstone else one_line(message.value)
    return f"{time} {place}{key}{again} {value}\n".encode()


def _json(message: "StoredMessage") -> bytes:
    return json.dumps(as_data(message)).encode() + b"\n"


def _yaml(message: "StoredMessage") -> bytes:
    return yaml.safe_dump(as_data(message), sort_keys=False, explicit_start=True).encode()


def _raw(message: "StoredMessage") -> bytes:
    return message.value + b"\n"


def _template(template: str) -> Render:
    for written, meant in _ESCAPES.items():
        template = template.replace(written, meant)
    names = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None:
            if name not in _FIELDS or spec or conversion:
                raise ValueError(f"{{{name}}} is not a field of a message; the fields are {', '.join(_FIELDS)}")
            names.append(name)
    needed = {name: _FIELDS[name] for name in names}

    def render(message: "StoredMessage") -> bytes:
        line = template.format(**{name: field(message) for name, field in needed.items()})
        return line.encode("utf-8", "backslashreplace") + b"\n"

    return render
