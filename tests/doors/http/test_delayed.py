"""Delayed messages: what waits, and how to change that."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, publish, take
from tests.doors.http.doors import OpenDoor

DELAYED = "/topics/orders/delayed"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        yield door


def places(answer: dict[str, Any]) -> list[tuple[int, int]]:
    return [(message["partition"], message["offset"]) for message in answer["messages"]]


def test_delayed_messages_are_listed_by_the_time_they_are_due(orders: OpenDoor) -> None:
    publish(orders, "now", partition=0)
    publish(orders, "second", partition=0, delay="2h", key="k", priority="high")
    publish(orders, "first", partition=2, delay="1h")

    listed = orders.get(DELAYED)

    assert (listed.status, listed.json) == (
        200,
        {
            "topic": "orders",
            "messages": [
                {
                    "topic": "orders",
                    "partition": 2,
                    "offset": 0,
                    "deliver_at": "2024-01-01T01:00:00.000000000Z",
                    "time_remaining": "1h",
                    "state": "pending",
                    "priority": "normal",
                },
                {
                    "topic": "orders",
                    "partition": 0,
                    "offset": 1,
                    "key": "k",
                    "deliver_at": "2024-01-01T02:00:00.000000000Z",
                    "time_remaining": "2h",
                    "state": "pending",
                    "priority": "high",
                },
            ],
            "count": 2,
            "limit": 100,
            "skip": 0,
        },
    )


def test_a_topic_that_is_not_there_has_none(orders: OpenDoor) -> None:
    assert orders.get("/topics/nope/delayed").json == {
        "topic": "nope",
        "messages": [],
        "count": 0,
        "limit": 100,
        "skip": 0,
    }


def test_a_list_is_paged_and_filtered(orders: OpenDoor) -> None:
    for number in range(6):
        publish(orders, str(number), partition=number % 3, delay=f"{number + 1}m", key=f"k{number % 2}")

    page = orders.get(f"{DELAYED}?limit=2&skip=3").json
    assert (places(page), page["count"], page["limit"], page["skip"]) == ([(0, 1), (1, 1)], 2, 2, 3)
    assert places(orders.get(f"{DELAYED}?partition=1").json) == [(1, 0), (1, 1)]
    assert places(orders.get(f"{DELAYED}?key=k1").json) == [(1, 0), (0, 1), (2, 1)]
    assert places(orders.get(f"{DELAYED}?key=k1&limit=1&skip=1").json) == [(0, 1)]
    assert places(orders.get(f"{DELAYED}?key=nobody").json) == []
    assert orders.get(f"{DELAYED}?limit=999999").json["limit"] == 10_000


def test_a_key_that_is_not_text_comes_and_goes_as_base64(orders: OpenDoor) -> None:
    publish(orders, "a", delay="1h", key_base64="/w==")
    publish(orders, "b", delay="1h", key="k")

    (message,) = orders.get(f"{DELAYED}?key_base64={quote('/w==')}").json["messages"]

    assert (message["key"], message["key_base64"]) == (None, "/w==")
    (encoded,) = orders.get(f"{DELAYED}?key=k&encoding=base64").json["messages"]
    assert (encoded["key"], encoded["key_base64"]) == (None, "aw==")


def test_a_message_has_a_state(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "due", partition=0, delay="1m")
    publish(orders, "cancelled", partition=1, delay="1h")
    publish(orders, "pending", partition=2, delay="1h")
    orders.request("DELETE", f"{DELAYED}/1/0")
    clock.advance(61)
    orders.let_time_work()

    listed = {
        state: places(orders.get(f"{DELAYED}?state={state}").json)
        for state in ("pending", "delivered", "cancelled", "expired")
    }

    assert listed == {"pending": [(2, 0)], "delivered": [(0, 0)], "cancelled": [(1, 0)], "expired": []}
    shown = orders.get(f"{DELAYED}/0/0").json
    assert (shown["state"], shown["time_remaining"]) == ("delivered", "0s")
    assert orders.get(f"{DELAYED}/1/0").json["time_remaining"] == "0s"
    assert orders.get(f"{DELAYED}/2/0").json["time_remaining"] == "58m59s"


def test_a_message_is_found_by_its_offset(orders: OpenDoor) -> None:
    publish(orders, "now", partition=0)
    publish(orders, "a", partition=1, delay="1h")
    publish(orders, "b", partition=2, delay="2h")

    assert orders.get(f"{DELAYED}/0").json["partition"] == 1
    assert orders.get(f"{DELAYED}/0?partition=2").json["deliver_at"] == "2024-01-01T02:00:00.000000000Z"
    assert orders.get(f"{DELAYED}/2/0").json == orders.get(f"{DELAYED}/0?partition=2").json


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/0"),
        ("GET", "/5?partition=1"),
        ("GET", "/0/0"),
        ("GET", f"/0/{2**64}"),
        ("DELETE", "/0/0"),
        ("PATCH", "/0/0"),
        ("PATCH", "/1/99"),
    ],
)
def test_what_does_not_wait_is_not_found(orders: OpenDoor, method: str, path: str) -> None:
    publish(orders, "now", partition=0)

    answer = orders.request(method, f"{DELAYED}{path}", {"delay": "1s"} if method == "PATCH" else None)

    assert (answer.status, answer.code) == (404, "MESSAGE_NOT_FOUND")
    assert answer.json["error"].startswith("delayed message not found")


def test_a_message_that_is_cancelled_is_never_delivered(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "never", partition=1, delay="1m")
    member = join(orders)

    answer = orders.request("DELETE", f"{DELAYED}/1/0")

    assert (answer.status, answer.json) == (200, {"cancelled": True, "topic": "orders", "partition": 1, "offset": 0})
    again = orders.request("DELETE", f"{DELAYED}/1/0")
    assert (again.status, again.json["error"][:46]) == (404, "delayed message not found or already delivered")
    clock.advance(3)
    orders.post("/groups/billing/heartbeat", {"member_id": member["member_id"]})
    clock.advance(25)
    orders.post("/groups/billing/heartbeat", {"member_id": member["member_id"]})
    clock.advance(29)
    orders.post("/groups/billing/heartbeat", {"member_id": member["member_id"]})
    clock.advance(5)
    orders.let_time_work()
    assert take(orders, member) == []
    assert orders.get("/topics/orders/messages").json["messages"] == []


def test_a_message_that_was_delivered_cannot_be_cancelled(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "a", partition=1, delay="1m")
    clock.advance(61)
    orders.let_time_work()

    answer = orders.request("DELETE", f"{DELAYED}/1/0")

    assert (answer.status, answer.code) == (404, "MESSAGE_NOT_FOUND")
    assert answer.json["error"].startswith("delayed message not found or already delivered")


@pytest.mark.parametrize(
    ("due", "deliver_at"),
    [
        ({"delay": "5m"}, "2024-01-01T00:05:00.000000000Z"),
        ({"deliver_at": "2024-01-01T00:07:00Z"}, "2024-01-01T00:07:00.000000000Z"),
        ({"deliverAt": 1704067800}, "2024-01-01T00:10:00.000000000Z"),
        ({"delay": "106000d"}, "2262-04-11T23:47:16.854775807Z"),
    ],
)
def test_a_message_can_be_put_off_or_forward(orders: OpenDoor, due: dict[str, Any], deliver_at: str) -> None:
    publish(orders, "a", partition=1, delay="1h")

    answer = orders.request("PATCH", f"{DELAYED}/1/0", due)

    assert (answer.status, answer.json["deliver_at"], answer.json["state"]) == (200, deliver_at, "pending")
    assert orders.get(f"{DELAYED}/1/0").json == answer.json


@pytest.mark.parametrize("due", [{"delay": "0s"}, {"deliver_at": "2h ago"}])
def test_a_time_that_is_over_means_now(orders: OpenDoor, due: dict[str, Any]) -> None:
    publish(orders, "a", partition=1, delay="1h")
    member = join(orders)

    assert orders.request("PATCH", f"{DELAYED}/1/0", due).status == 200
    orders.let_time_work()

    assert [message["value"] for message in take(orders, member)] == ["a"]


@pytest.mark.parametrize("path", [f"{DELAYED}/1/0", f"{DELAYED}?key=k"])
@pytest.mark.parametrize(
    ("due", "words"),
    [
        ({}, "delay is required"),
        ({"delay": None}, "delay is required"),
        ({"delay": "soon"}, "invalid delay format"),
        ({"delay": 5}, "invalid delay"),
        ({"deliver_at": "tomorrow"}, "invalid deliverAt format"),
        ({"deliverAt": "2024-01-01"}, "invalid deliverAt format"),
        ({"deliverAt": 1, "deliver_at": 1}, "deliver_at and deliverAt are two names"),
    ],
)
def test_a_time_that_makes_no_sense_changes_nothing(
    orders: OpenDoor, path: str, due: dict[str, Any], words: str
) -> None:
    publish(orders, "a", partition=1, delay="1h", key="k")

    answer = orders.request("PATCH", path, due)

    assert answer.status == 400
    assert answer.json["error"].startswith(words)
    assert orders.get(f"{DELAYED}/1/0").json["time_remaining"] == "1h"


def test_all_of_a_key_can_be_cancelled(orders: OpenDoor) -> None:
    for partition in range(3):
        publish(orders, "a", partition=partition, delay=f"{3 - partition}h", key="k")
        publish(orders, "b", partition=partition, delay="1h", key="other")

    answer = orders.request("DELETE", f"{DELAYED}?key=k")

    assert (answer.status, answer.json["topic"], answer.json["key"], answer.json["count"]) == (200, "orders", "k", 3)
    assert {message["state"] for message in answer.json["messages"]} == {"cancelled"}
    assert {message["key"] for message in orders.get(DELAYED).json["messages"]} == {"other"}
    assert orders.request("DELETE", f"{DELAYED}?key=k").json["count"] == 0


def test_all_of_a_key_can_be_put_off(orders: OpenDoor) -> None:
    for partition in range(3):
        publish(orders, "a", partition=partition, delay="1h", key_base64="/w==")

    answer = orders.request("PATCH", f"{DELAYED}?key_base64={quote('/w==')}", {"delay": "2h"})

    assert (answer.status, answer.json["key"], answer.json["key_base64"]) == (200, None, "/w==")
    assert [message["time_remaining"] for message in answer.json["messages"]] == ["2h"] * 3


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
def test_a_key_is_required_to_change_all_of_it(orders: OpenDoor, method: str) -> None:
    body = {"delay": "1h"} if method == "PATCH" else None
    answer = orders.request(method, DELAYED, body)

    assert (answer.status, answer.json["error"]) == (400, "key is required")


@pytest.mark.parametrize("query", ["key=", "key_base64="])
def test_an_empty_key_names_the_messages_that_have_one(orders: OpenDoor, query: str) -> None:
    for key in ("", None, "k"):
        orders.post("/topics/orders/messages", {"value": "v", "key": key, "delay": "1h"})

    answer = orders.request("DELETE", f"{DELAYED}?{query}")

    assert (answer.json["count"], answer.json["messages"][0]["key"]) == (1, "")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("?limit=0", "INVALID_REQUEST"),
        ("?limit=x", "INVALID_REQUEST"),
        ("?skip=-1", "INVALID_REQUEST"),
        ("?partition=-1", "INVALID_REQUEST"),
        ("?state=lost", "INVALID_REQUEST"),
        ("?key=a&key_base64=YQ==", "INVALID_REQUEST"),
        ("?key_base64=!", "INVALID_REQUEST"),
        ("/first", "INVALID_REQUEST"),
        ("/-1", "INVALID_REQUEST"),
        ("/first/0", "INVALID_PARTITION"),
        ("/0/first", "INVALID_REQUEST"),
    ],
)
def test_what_makes_no_sense_is_refused(orders: OpenDoor, path: str, code: str) -> None:
    answer = orders.get(f"{DELAYED}{path}")

    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [("DELETE", "?key=k"), ("PATCH", "?key=k"), ("DELETE", "/0/0"), ("PATCH", "/0/0"), ("GET", "/0")],
)
def test_a_topic_that_is_not_there_cannot_be_changed(orders: OpenDoor, method: str, path: str) -> None:
    answer = orders.request(method, f"/topics/nope/delayed{path}", {"delay": "1h"} if method == "PATCH" else None)

    assert answer.status == 404


def test_delays_are_counted(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "due", partition=0, delay="1m")
    publish(orders, "cancelled", partition=1, delay="2m")
    publish(orders, "pending", partition=2, delay="3m")
    orders.request("DELETE", f"{DELAYED}/1/0")
    clock.advance(61)
    orders.let_time_work()

    stats = orders.get("/delay/stats").json

    assert stats.pop("timer_wheel").keys() == {
        "total_scheduled",
        "total_fired",
        "total_cancelled",
        "current_active",
        "current_tick",
    }
    assert stats == {
        "total_scheduled": 3,
        "total_delivered": 1,
        "total_cancelled": 1,
        "total_expired": 0,
        "total_pending": 1,
        "avg_delay": "2m",
        "by_topic": {"orders": 1},
    }


@pytest.mark.parametrize("due", [{"delay": "-1h"}, {"delay": "5m", "deliver_at": "2024-01-01T00:07:00Z"}])
@pytest.mark.parametrize("path", ["/1/0", "?key=k"])
def test_a_delay_is_not_negative_and_not_beside_a_time(orders: OpenDoor, path: str, due: dict[str, Any]) -> None:
    publish(orders, "a", partition=1, key="k", delay="1h")
    before = orders.get(f"{DELAYED}/1/0").json

    answer = orders.request("PATCH", f"{DELAYED}{path}", due)

    assert (answer.status, answer.code) == (400, "INVALID_MESSAGE")
    assert "delay" in answer.json["error"]
    assert orders.get(f"{DELAYED}/1/0").json == before


def test_an_unknown_state_is_named(orders: OpenDoor) -> None:
    answer = orders.get(f"{DELAYED}?state=bogus")

    assert (answer.status, answer.json["details"]) == (400, {"path": "state"})
    assert answer.json["error"].startswith("invalid state: ")
