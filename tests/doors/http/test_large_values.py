"""Large values are encoded in slices, and others have their turn between them."""

import asyncio
import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from goqueue.doors.http.config import MIB
from goqueue.doors.http.large_values import LARGE_BYTES, SLICE_BYTES, Encoded, LargeValue, base64_decoded
from tests.doors.http.consumers import join, poll_path
from tests.doors.http.doors import OpenDoor

VALUES = {
    "ascii": b'x"\\' * (5 * MIB),
    "utf-8": "\u20ac\U0001f600\x01".encode() * (2 * MIB),
    "bytes": b"text" * (3 * MIB) + b"\xff",
    "cut": "\u20ac".encode() * (4 * MIB) + b"\xe2\x82",
}


def shown(value: bytes) -> dict[str, Any]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value": None, "value_base64": b64encode(value).decode()}


class View(msgspec.Struct):
    """Something that has a large value."""

    value: Any
    more: str = "after"


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("as_text", [True, False])
def test_the_loop_turns_between_the_slices_of_a_value(name: str, as_text: bool) -> None:
    value = VALUES[name]
    encoded = Encoded([View(LargeValue(value, as_text=as_text)), View("small"), View(LargeValue(b"", as_text=True))])
    turns = 0

    def count_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count_turn)

    async def encode() -> list[bytes]:
        count_turn()
        return await encoded.pieces()

    pieces = asyncio.run(encode())

    wanted = shown(value) if as_text else {"value": None, "value_base64": b64encode(value).decode()}
    assert json.loads(b"".join(pieces)) == [
        {**wanted, "more": "after"},
        {"value": "small", "more": "after"},
        {"value": "", "more": "after"},
    ]
    assert turns >= len(value) // SLICE_BYTES
    assert max(map(len, pieces)) <= 6 * SLICE_BYTES


@pytest.mark.parametrize("name", VALUES)
def test_large_values_are_shown_as_small_ones_are(door: OpenDoor, name: str) -> None:
    value = VALUES[name]
    door.post("/topics", {"name": "orders", "partitions": 1})
    raw = b64encode(value).decode()
    assert door.post("/topics/orders/messages", {"value_base64": raw, "key": "k"}).status == 200

    answers = [
        door.get(path).json["messages"]
        for path in (
            "/topics/orders/messages",
            "/topics/orders/partitions/0/messages",
            poll_path(join(door)),
        )
    ]
    stream = door.get("/topics/orders/stream?start=earliest&limit=1").body
    (event,) = (part for part in stream.split(b"\n\n") if b"event: message" in part)
    answers.append([json.loads(event.partition(b"data: ")[2])])

    for (message,) in answers:
        assert {name: message[name] for name in message if name.startswith("value")} == shown(value)
    (encoded,) = door.get("/topics/orders/messages?encoding=base64").json["messages"]
    assert (encoded["value"], encoded["value_base64"], encoded["key_base64"]) == (None, raw, "aw==")


def test_a_connection_can_be_used_after_a_large_answer(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    door.post("/topics/orders/messages", {"value": "x" * (LARGE_BYTES + 1)})
    with door.connection() as connection:
        for _ in range(2):
            connection.request("GET", "/topics/orders/messages")
            response = connection.getresponse()
            assert int(response.headers["content-length"]) == len(response.read())
        connection.request("HEAD", "/topics/orders/messages")
        head = connection.getresponse()
        assert (head.read(), int(head.headers["content-length"]) > LARGE_BYTES) == (b"", True)


def test_a_large_json_value_is_stored_compactly(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    value = {"a": ["b"] * LARGE_BYTES}
    assert door.post("/topics/orders/messages", {"value_json": value}).status == 200

    (as_text,) = door.get("/topics/orders/messages").json["messages"]
    (as_json,) = door.get("/topics/orders/messages?values=json").json["messages"]

    assert as_text["value"] == json.dumps(value, separators=(",", ":"))
    assert (as_json["value"], as_json["value_json"]) == (None, value)


@pytest.mark.parametrize("length", [MIB, MIB + 1, MIB + 2, SLICE_BYTES * 4])
def test_base64_is_decoded_in_slices(length: int) -> None:
    value = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    text = b64encode(value).decode()

    assert asyncio.run(base64_decoded(text)) == value
    for wrong in (text[:-1], text[:5000] + "\n" + text[5000:], text[:8] + "QQ==" + text[12:], "!" + text[1:]):
        assert asyncio.run(base64_decoded(wrong)) is None


def test_a_large_value_that_is_not_base64_is_refused(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    answer = door.post("/topics/orders/messages", {"value_base64": "QQ==" * LARGE_BYTES})

    assert (answer.status, answer.json["error"]) == (400, "invalid value_base64: not base64")
