"""A message as a line, in each format."""

import json

import pytest
import yaml

from goqueue import Message, TopicPartition
from goqueue.cli.rendering import renderer
from goqueue.record import kernel

TIME_NS = 1_704_067_200_250_000_001


def message(
    value: bytes | None = b'{"id": 1}', *, key: bytes | None = b"c-42", headers: dict[str, str | None] | None = None
) -> Message:
    records = kernel.encode([value], keys=[key], headers=[headers])
    kernel.stamp(records, first_offset=7, timestamp=TIME_NS)
    (decoded,) = kernel.decode(records, TopicPartition("orders", 2), Message)
    return decoded


def test_text_is_for_people() -> None:
    assert renderer("text")(message()) == b'2024-01-01T00:00:00.250Z 2:7 key=c-42 {"id": 1}\n'
    assert renderer("text")(message(key=None)) == b'2024-01-01T00:00:00.250Z 2:7 {"id": 1}\n'
    assert renderer("table") is renderer("text")


def test_text_stays_on_its_line_and_does_not_steer_the_terminal() -> None:
    hostile = message(b"a\nb\x1b[31m\xff", key=b"\r")

    assert renderer("text")(hostile).endswith(b"key=\\x0d a\\nb\\x1b[31m\\xff\n")
    assert renderer("{key}|{value}")(hostile) == b"\\x0d|a\\nb\\x1b[31m\\xff\n"


def test_json_is_what_the_http_door_says() -> None:
    line = renderer("json")(message(headers={"source": "web"}))

    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": "2024-01-01T00:00:00.250000001Z",
        "key": "c-42",
        "value": '{"id": 1}',
        "priority": "normal",
        "headers": {"source": "web"},
    }
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_bytes_that_are_no_text_come_as_base64() -> None:
    data = json.loads(renderer("json")(message(b"\xff\x00", key=b"\xfe")))

    assert (data["value"], data["value_base64"]) == (None, "/wA=")
    assert (data["key"], data["key_base64"]) == (None, "/g==")


def test_a_message_without_a_key_has_none_in_json() -> None:
    assert "key" not in json.loads(renderer("json")(message(key=None)))


def test_yaml_holds_the_same_as_json() -> None:
    found = message(b"line 1\nline 2: \xc3\xa4", headers={"a": "b"})

    assert yaml.safe_load(renderer("yaml")(found)) == json.loads(renderer("json")(found))
    assert len(list(yaml.safe_load_all(renderer("yaml")(found) * 3))) == 3


def test_a_tombstone_is_named_as_one() -> None:
    assert renderer("text")(message(None)).endswith(b"key=c-42 (tombstone)\n")
    assert json.loads(renderer("json")(message(None)))["tombstone"] is True


def test_raw_is_the_value_as_it_is() -> None:
    assert renderer("raw")(message(b"\x00\xff\n")) == b"\x00\xff\n\n"


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{partition}:{offset} {key} {value}", b'2:7 c-42 {"id": 1}\n'),
        ("{topic}\\t{priority}\\n{{{offset}}}", b"orders\tnormal\n{7}\n"),
        ("{timestamp}", b"2024-01-01T00:00:00.250000001Z\n"),
        ("{headers}", b'{"source": "web", "none": null}\n'),
    ],
)
def test_a_template_names_fields(template: str, line: bytes) -> None:
    assert renderer(template)(message(headers={"source": "web", "none": None})) == line


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{valu}", "{valu} is not a field of a message; the fields are topic, partition, offset, timestamp"),
        ("{value.__class__}", "is not a field of a message"),
        ("{value[0]}", "is not a field of a message"),
        ("{}", "is not a field of a message"),
        ("{value", "expected '}'"),
        ("csv", "'csv' is not text, json, yaml, raw or a template such as '{offset} {value}'"),
    ],
)
def test_what_is_no_format_is_refused(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=".*") as caught:
        renderer(template)

    assert reason in str(caught.value)
