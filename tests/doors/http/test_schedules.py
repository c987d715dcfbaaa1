"""Recurring messages."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.doors import Answer, OpenDoor

SCHEDULES = "/topics/orders/schedules"
NOW = "2024-01-01T00:00:00.000000000Z"
DAILY = {"name": "daily", "cron": "30 6 * * *", "value": "good morning"}


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        yield door


def create(door: OpenDoor, **fields: Any) -> Answer:
    answer = door.post(SCHEDULES, {**DAILY, **fields})
    assert answer.status == 201, answer.body
    return answer


def stored(door: OpenDoor) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = door.get("/topics/orders/messages").json["messages"]
    return messages


def test_a_schedule_says_when_it_is_due(orders: OpenDoor) -> None:
    assert create(orders).json == {
        "name": "daily",
        "topic": "orders",
        "cron": "30 6 * * *",
        "timezone": "UTC",
        "catch_up": "skip",
        "paused": False,
        "next_at": "2024-01-01T06:30:00.000000000Z",
        "runs": 0,
        "missed": 0,
        "created_at": NOW,
    }


def test_a_schedule_has_a_zone_or_an_interval_and_a_beginning(orders: OpenDoor) -> None:
    berlin = create(orders, name="berlin", timezone="Europe/Berlin", catch_up="all").json
    every = create(orders, name="every", cron=None, every="1h30m", start="2024-02-01T00:00:00Z", end=1735689600).json

    assert (berlin["next_at"], berlin["timezone"], berlin["catch_up"]) == (
        "2024-01-01T05:30:00.000000000Z",
        "Europe/Berlin",
        "all",
    )
    assert (every["every"], every["next_at"]) == ("1h30m", "2024-02-01T00:00:00.000000000Z")
    assert "cron" not in every


def test_schedules_are_listed_by_name(orders: OpenDoor) -> None:
    assert orders.get(SCHEDULES).json == {"schedules": [], "count": 0}
    created = [create(orders, name=name).json for name in ("b", "a")]

    assert orders.get(SCHEDULES).json == {"schedules": created[::-1], "count": 2}


def test_a_due_run_is_published_and_remembered(orders: OpenDoor, clock: ManualClock) -> None:
    create(orders, cron=None, every="1m", key="k", headers={"h": "v"}, priority="high", partition=1, ttl="5m")
    clock.advance(60)
    orders.until(lambda: orders.broker.schedules.get("orders", "daily").runs == 1)

    (message,) = stored(orders)
    shown = orders.get(f"{SCHEDULES}/daily").json

    assert (message["value"], message["key"], message["priority"]) == ("good morning", "k", "high")
    assert (message["partition"], message["headers"]["h"]) == (1, "v")
    assert message["expires_at"] == "2024-01-01T00:06:00.000000000Z"
    assert (shown["runs"], shown["last_at"], shown["next_at"]) == (
        1,
        "2024-01-01T00:01:00.000000000Z",
        "2024-01-01T00:02:00.000000000Z",
    )
    assert shown["history"] == [
        {
            "due_at": "2024-01-01T00:01:00.000000000Z",
            "published_at": "2024-01-01T00:01:00.000000000Z",
            "partition": 1,
            "offset": 0,
        }
    ]


def test_a_delay_counts_from_each_run(orders: OpenDoor) -> None:
    create(orders, delay="1h")

    assert orders.post(f"{SCHEDULES}/daily/run", None).status == 200

    (delayed,) = orders.get("/topics/orders/delayed").json["messages"]
    assert delayed["time_remaining"] == "1h"


def test_a_run_can_be_had_at_once(orders: OpenDoor) -> None:
    create(orders, paused=True)

    answer = orders.post(f"{SCHEDULES}/daily/run", None)

    assert (answer.status, answer.json["runs"], answer.json["paused"]) == (200, 1, True)
    assert [message["value"] for message in stored(orders)] == ["good morning"]


def test_a_schedule_is_paused_and_resumed(orders: OpenDoor) -> None:
    created = create(orders).json

    paused = orders.post(f"{SCHEDULES}/daily/pause", None)
    resumed = orders.post(f"{SCHEDULES}/daily/resume", None)

    assert (paused.status, paused.json["paused"], paused.json["next_at"]) == (200, True, None)
    assert (resumed.status, resumed.json) == (200, created)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"cron": "0 7 * * *"}, {"cron": "0 7 * * *", "next_at": "2024-01-01T07:00:00.000000000Z"}),
        ({"every": "2h"}, {"every": "2h", "next_at": "2024-01-01T02:00:00.000000000Z"}),
        ({"timezone": "Europe/Berlin"}, {"timezone": "Europe/Berlin", "next_at": "2024-01-01T05:30:00.000000000Z"}),
        ({"catch_up": "once"}, {"catch_up": "once"}),
        ({"start": "2024-03-01T00:00:00Z"}, {"next_at": "2024-03-01T06:30:00.000000000Z"}),
        ({"end": "2024-01-01T05:00:00Z"}, {"next_at": None}),
        ({"paused": True}, {"paused": True, "next_at": None}),
        ({}, {}),
        ({"cron": None}, {}),
    ],
)
def test_any_field_can_be_changed(orders: OpenDoor, change: dict[str, Any], shown: dict[str, Any]) -> None:
    created = create(orders).json
    if "every" in change:
        del created["cron"]

    answer = orders.request("PATCH", f"{SCHEDULES}/daily", change)

    assert (answer.status, answer.json) == (200, {**created, **shown})


def test_the_message_can_be_changed_field_by_field(orders: OpenDoor) -> None:
    create(orders, key="k", headers={"h": "v"}, partition=0)

    headers = {"i": "w", "j": {"base64": "/w=="}, "k": None}
    for change in ({"value": "good evening"}, {"priority": "low"}, {"partition": 1}, {"headers": headers}):
        assert orders.request("PATCH", f"{SCHEDULES}/daily", change).status == 200
    orders.post(f"{SCHEDULES}/daily/run", None)

    (message,) = stored(orders)
    assert (message["value"], message["key"], message["priority"]) == ("good evening", "k", "low")
    assert (message["partition"], message["headers"]) == (1, {"i": "w", "j": {"base64": "/w=="}, "k": None})


def test_a_schedule_can_be_deleted(orders: OpenDoor) -> None:
    create(orders)

    answer = orders.request("DELETE", f"{SCHEDULES}/daily")

    assert (answer.status, answer.json) == (200, {"deleted": True, "name": "daily"})
    assert orders.get(SCHEDULES).json["count"] == 0
    assert create(orders).status == 201


def test_a_name_is_taken_once(orders: OpenDoor) -> None:
    create(orders)

    answer = orders.post(SCHEDULES, DAILY)

    assert (answer.status, answer.code) == (409, "ALREADY_EXISTS")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": None}, "name is required"),
        ({"name": ""}, "invalid name"),
        ({"name": "a/b"}, "invalid name"),
        ({"cron": None}, "cron is required"),
        ({"every": "1h"}, "cron and every"),
        ({"cron": "61 * * * *"}, "invalid cron '61 * * * *': bad minute"),
        ({"cron": "* * * *"}, "invalid cron"),
        ({"cron": "@sometimes"}, "invalid cron"),
        ({"cron": None, "every": "soon"}, "invalid every format"),
        ({"cron": None, "every": 60}, "invalid every"),
        ({"cron": None, "every": "1ms"}, "invalid every"),
        ({"timezone": "Middle/Earth"}, "invalid timezone"),
        ({"catch_up": "maybe"}, "invalid catch_up"),
        ({"start": "tomorrow"}, "invalid start"),
        ({"start": 10, "end": 5}, "invalid end"),
        ({"paused": "yes"}, "invalid paused"),
        ({"value": None}, "value is required"),
        ({"value": 5}, "invalid value"),
        ({"value_base64": "YQ=="}, "value and value_base64 are two names"),
        ({"value_base64": "!", "value": None}, "invalid value_base64"),
        ({"priority": "urgent"}, "invalid priority"),
        ({"headers": {"gq-x": "y"}}, "invalid header"),
        ({"partition": -1}, "invalid partition ID"),
        ({"delay": "soon"}, "invalid delay format"),
        ({"delay": "-1s"}, "invalid delay"),
        ({"ttl": "long"}, "invalid ttl format"),
        ({"ttl": "0s"}, "invalid ttl"),
        ({"deliver_at": "2024-02-01T00:00:00Z"}, "invalid deliver_at"),
        ({"deliverAt": 5}, "invalid deliverAt"),
        ({"expires_at": 5}, "invalid expires_at"),
        ({"sequence": 5}, "invalid sequence"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(orders: OpenDoor, fields: dict[str, Any], words: str) -> None:
    answer = orders.post(SCHEDULES, {**DAILY, **fields})

    assert answer.status == 400, answer.body
    assert answer.json["error"].startswith(words)
    assert orders.get(SCHEDULES).json["count"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cron": "* 25 * * *"}, "invalid cron '* 25 * * *': bad hour"),
        ({"every": "1h", "cron": "* * * * *"}, "cron and every"),
        ({"timezone": "Middle/Earth"}, "invalid timezone"),
        ({"value": "a", "value_base64": "YQ=="}, "value and value_base64"),
        ({"tombstone": True}, "a tombstone needs a key"),
        ({"expires_at": 5}, "invalid expires_at"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(orders: OpenDoor, change: dict[str, Any], words: str) -> None:
    created = create(orders).json

    answer = orders.request("PATCH", f"{SCHEDULES}/daily", change)

    assert answer.status == 400
    assert answer.json["error"].startswith(words)
    assert {**orders.get(f"{SCHEDULES}/daily").json, "history": None} == {**created, "history": None}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run")]
)
def test_what_is_not_there_is_not_found(orders: OpenDoor, method: str, path: str) -> None:
    body = {"paused": True} if method == "PATCH" else None

    schedule = orders.request(method, f"{SCHEDULES}/nope{path}", body)
    topic = orders.request(method, f"/topics/nope/schedules/daily{path}", body)

    assert (schedule.status, schedule.code) == (404, "NOT_FOUND")
    assert topic.status == 404


def test_a_topic_that_is_not_there_has_no_schedules(orders: OpenDoor) -> None:
    assert orders.post("/topics/nope/schedules", DAILY).code == "TOPIC_NOT_FOUND"
    assert orders.get("/topics/nope/schedules").code == "TOPIC_NOT_FOUND"
