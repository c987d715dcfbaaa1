r"""A message as a line: for people, for programs, or as a template says.

    text     2026-01-31T12:00:00.250Z 0:42 key=customer-42 hello        of several topics: orders-0:42
    json     {"topic": "orders", "partition": 0, "offset": 42, ..., "value": "hello"}   as the HTTP door has it
    yaml     the same as a document, after a line of ---
    raw      the bytes of the value
    else     a template: '{partition}:{offset} {key} {value}'; \n and \t mean what they mean elsewhere

A message that was delivered to a member of a group says which delivery it is, in text from the second on. In text and
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
    from goqueue.record.message import Message

Render = Callable[["Message"], bytes]

_FIELDS: dict[str, Callable[["Message"], object]] = {
    "topic": lambda message: message.topic,
    "partition": lambda message: message.partition,
    "offset": lambda message: message.offset,
    "timestamp": lambda message: format_time(message.timestamp_ns),
    "priority": lambda message: message.priority.name.lower(),
    "key": lambda message: one_line(message.key or b""),
    "value": lambda message: one_line(message.value),
    "delivery_count": lambda message: message.delivery_count,
    "headers": lambda message: one_line(
        json.dumps(message.headers, ensure_ascii=False).encode("utf-8", "backslashreplace")
    ),
}
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def renderer(format: str, *, topics: int = 1) -> Render:
    """How to render messages of so many topics in that format; `ValueError` if it is a template that cannot be."""
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
    raise ValueError(f"{format!r} is none of text, json, yaml, raw, and no template such as '{{offset}} {{value}}'")


def as_data(message: "Message") -> dict[str, object]:
    """The message in types that JSON has. Bytes that are not UTF-8 come as base64."""
    data: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": format_time(message.timestamp_ns),
    }
    data |= key_data(message.key) | _either("value", message.value)
    data |= {"priority": message.priority.name.lower(), "headers": message.headers}
    if message.tombstone:
        data["tombstone"] = True
    if message.delivery_count:
        data["delivery_count"] = message.delivery_count
    return data


def key_data(key: bytes | None) -> dict[str, object]:
    """The key in types that JSON has; nothing for none."""
    return {} if key is None else _either("key", key)


def _either(name: str, content: bytes) -> dict[str, object]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(content).decode()}


def _text(message: "Message") -> bytes:
    return _connection(message, f"{message.partition}:{message.offset}")


def _text_with_topic(message: "Message") -> bytes:
    return _connection(message, f"{message.topic}-{message.partition}:{message.offset}")


def _connection(message: "Message", place: str) -> bytes:
    time = f"{format_time(message.timestamp_ns)[:23]}Z"
    key = "" if message.key is None else f" key={one_line(message.key)}"
    again = f" delivery={message.delivery_count}" if message.delivery_count > 1 else ""
    value = "(tombstone)" if message.tombstone else one_line(message.value)
    return f"{time} {place}{key}{again} {value}\n".encode()


def _json(message: "Message") -> bytes:
    return json.dumps(as_data(message)).encode() + b"\n"


def _yaml(message: "Message") -> bytes:
    return yaml.safe_dump(as_data(message), sort_keys=False, explicit_start=True).encode()


def _raw(message: "Message") -> bytes:
    return message.value + b"\n"


def _template(template: str) -> Render:
    for written, meant in _ESCAPES.items():
        template = template.replace(written, meant)
    names = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None:
            if name not in _FIELDS or spec or conversion:
                raise ValueError(f"{{{name}}} is no field of a message; there are {', '.join(_FIELDS)}")
            names.append(name)
    needed = {name: _FIELDS[name] for name in names}

    def render(message: "Message") -> bytes:
        line = template.format(**{name: field(message) for name, field in needed.items()})
        return line.encode("utf-8", "backslashreplace") + b"\n"

    return render
