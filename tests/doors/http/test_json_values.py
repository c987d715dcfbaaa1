"""Values as JSON: `value_json` in requests, `?values=json` in answers."""

import base64
import json
from typing import Any

import pytest

from tests.doors.http.consumers import join, poll_path, publish, settle, take
from tests.doors.http.doors import OpenDoor

URL = "/topics/orders/messages"
VALUES: list[Any] = [{"b": [1, 2.5, None], "a": "é"}, [], "text", 7, True, 2**70, {}]


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    door.post("/topics", {"name": "orders", "partitions": 1})
    return door


def test_any_json_value_is_stored_compactly_as_utf_8(orders: OpenDoor) -> None:
    body = json.dumps({"messages": [{"value_json": value} for value in VALUES]}, indent=4)
    assert orders.request("POST", URL, body.encode()).json["failed"] == 0

    stored = [message["value"] for message in orders.get(URL).json["messages"]]
    assert stored == [json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in VALUES]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"value_json": None}, "value is required"),
        ({"value": None}, "value is required"),
        ({"value_json": 1, "value": "1"}, "value and value_json are two names of one thing"),
        ({"value_json": 1, "value_base64": "MQ=="}, "value_json and value_base64 are two names of one thing"),
        ({"value_json": {}, "tombstone": True, "key": "k"}, "a tombstone has no value"),
    ],
)
def test_a_value_has_one_name(orders: OpenDoor, fields: dict[str, Any], error: str) -> None:
    answer = orders.post(URL, fields)

    assert (answer.status, answer.code) == (400, "INVALID_MESSAGE")
    assert answer.json["error"].startswith(error)


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"[1,NaN]", b"{,}", b"'a'", b'"\xff"'])
def test_what_is_no_json_is_no_value(orders: OpenDoor, value: bytes) -> None:
    answer = orders.request("POST", URL, b'{"value_json": ' + value + b"}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("invalid JSON")


@pytest.mark.parametrize("value", [b"1e999", b'"\\ud800"', b"[" * 900 + b"]" * 900 + b" "])
def test_json_that_cannot_be_kept_is_refused_or_kept(orders: OpenDoor, value: bytes) -> None:
    answer = orders.request("POST", URL, b'{"value_json": ' + value + b"}")

    if answer.status == 200:
        assert orders.get(URL).json["messages"][0]["value"] == value.strip().decode()
    else:
        assert (answer.status, answer.json["error"][:7]) == (400, "invalid")


def test_schedules_and_transactions_take_json_values_as_well(orders: OpenDoor) -> None:
    schedule = {"name": "daily", "cron": "@daily", "value_json": {"a": 1}}
    assert orders.post("/topics/orders/schedules", schedule).status == 201
    assert orders.request("PATCH", "/topics/orders/schedules/daily", {"value_json": {"a": 2}}).status == 200
    assert orders.post("/topics/orders/schedules/daily/run", None).status == 200
    producer = orders.post("/producers/init", {"transactional_id": "t"}).json
    orders.post("/transactions/begin", {**producer, "transactional_id": "t"})
    body = {**producer, "topic": "orders", "value_json": [1, 2]}
    assert orders.post("/transactions/publish", body).status == 200
    orders.post("/transactions/commit", {**producer, "transactional_id": "t"})

    assert [message["value"] for message in orders.get(URL).json["messages"]] == ['{"a":2}', "[1,2]"]


def publish_all(door: OpenDoor) -> list[dict[str, Any]]:
    """Publish values of each kind; how they are shown as JSON."""
    raw = base64.b64encode(b"\xff").decode()
    messages = [
        {"value_json": {"a": [1]}},
        {"value": ' {"a":\n1} '},
        {"value": "NaN"},
        {"value": "7"},
        {"value": ""},
        {"value_base64": raw},
        {"value": '{"a": 12345678901234567890.50}'},
        {"tombstone": True, "key": "k"},
    ]
    assert door.post(URL, {"messages": messages}).json["failed"] == 0
    return [
        {"value": None, "value_json": {"a": [1]}},
        {"value": None, "value_json": {"a": 1}},
        {"value": "NaN"},
        {"value": None, "value_json": 7},
        {"value": ""},
        {"value": None, "value_base64": raw},
        {"value": None, "value_json": {"a": 12345678901234567890.50}},
        {"value": None},
    ]


def shown(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in message.items() if name.startswith("value")} for message in messages]


def test_answers_show_values_that_are_json_as_json(orders: OpenDoor) -> None:
    wanted = publish_all(orders)

    of_topic = orders.get(f"{URL}?values=json").json["messages"]
    of_partition = orders.get("/topics/orders/partitions/0/messages?values=json").json["messages"]
    stream = orders.get("/topics/orders/stream?start=earliest&limit=8&values=json")
    polled = orders.get(poll_path(join(orders), values="json")).json["messages"]

    events = [event.split("data: ", 1)[1] for event in stream.body.decode().split("\n\n") if "event: message" in event]
    for messages in (of_topic, of_partition, [json.loads(event) for event in events], polled):
        assert shown(messages) == wanted
    assert b"12345678901234567890.50" in orders.get(f"{URL}?values=json").body


def test_dead_letters_are_shown_as_json(orders: OpenDoor) -> None:
    publish(orders, '{"a": 1}')
    for message in take(orders, join(orders)):
        settle(orders, "reject", message)

    listed = orders.get("/topics/orders/dlq/messages?values=json").json["messages"]
    planned = orders.post("/topics/orders/dlq/redrive?values=json", {"dry_run": True}).json["sample"]

    assert shown(listed) == shown(planned) == [{"value": None, "value_json": {"a": 1}}]


def test_what_is_no_json_comes_as_base64_if_that_is_asked_for(orders: OpenDoor) -> None:
    publish(orders, "a b", "[1]")

    messages = orders.get(f"{URL}?values=json&encoding=base64").json["messages"]

    assert shown(messages) == [{"value": None, "value_base64": "YSBi"}, {"value": None, "value_json": [1]}]


def test_values_are_shown_as_text_or_json_only(orders: OpenDoor) -> None:
    answer = orders.get(f"{URL}?values=xml")

    assert (answer.status, answer.json["details"]["path"]) == (400, "values")
