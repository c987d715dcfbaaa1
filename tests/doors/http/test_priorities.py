"""Priorities in numbers."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, publish, settle, take
from tests.doors.http.doors import OpenDoor

STATS = "/priority/stats"
NAMES = ["critical", "high", "normal", "low", "background"]
NOW = "2024-01-01T00:00:00.000000000Z"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders` with some messages of three priorities in two partitions."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        publish(door, "a", "b", partition=0, priority="critical")
        publish(door, "c", partition=0)
        publish(door, "d", partition=1, priority="background")
        yield door


def test_nothing_is_nothing(door: OpenDoor) -> None:
    assert door.get(STATS).json == {
        "total_by_priority": [0] * 5,
        "messages_by_priority": dict.fromkeys(NAMES, 0),
        "avg_wait_time_by_priority": dict.fromkeys(NAMES, "0s"),
        "topics": {},
    }


def test_without_groups_everything_is_pending_and_ready(orders: OpenDoor) -> None:
    stats = orders.get(STATS).json

    assert stats["total_by_priority"] == [2, 0, 1, 0, 1]
    assert stats["messages_by_priority"] == dict(zip(NAMES, [2, 0, 1, 0, 1], strict=True))
    assert stats["avg_wait_time_by_priority"] == dict.fromkeys(NAMES, "0s")
    topic = stats["topics"]["orders"]
    assert topic["total_by_priority"] == [2, 0, 1, 0, 1]
    rates = {name: topic["partitions"]["0"].pop(name) for name in ("enqueue_rate", "dequeue_rate")}
    assert [len(rate) for rate in rates.values()] == [5, 5]
    assert topic["partitions"]["0"] == {
        "total": [2, 0, 1, 0, 0],
        "pending": [2, 0, 1, 0, 0],
        "ready": [2, 0, 1, 0, 0],
        "in_flight": [0] * 5,
        "consumed": [0] * 5,
        "oldest_pending": [NOW, "", NOW, "", ""],
    }
    assert topic["partitions"]["1"]["ready"] == [0, 0, 0, 0, 1]


def test_a_group_has_its_own_numbers(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders)
    join(orders, "audit")
    clock.advance(2)
    messages = take(orders, member)
    for message in messages[:2]:
        settle(orders, "ack", message)

    one = orders.get(f"{STATS}?topic=orders&group=billing").json["topics"]["orders"]["partitions"]
    both = orders.get(STATS).json["topics"]["orders"]["partitions"]

    assert (one["0"]["consumed"], one["0"]["in_flight"], one["0"]["ready"]) == (
        [2, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0] * 5,
    )
    assert (one["0"]["pending"], one["1"]["in_flight"]) == ([0, 0, 1, 0, 0], [0, 0, 0, 0, 1])
    assert (both["0"]["pending"], both["0"]["consumed"]) == ([2, 0, 2, 0, 0], [2, 0, 0, 0, 0])


def test_waiting_is_averaged_over_all_messages(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders)
    clock.advance(2)
    for message in take(orders, member):
        settle(orders, "ack", message)
    publish(orders, "e", partition=1, priority="critical")
    clock.advance(5)
    assert len(take(orders, member)) == 1

    waits = orders.get(STATS).json["avg_wait_time_by_priority"]

    assert waits == {"critical": "3s", "high": "0s", "normal": "2s", "low": "0s", "background": "2s"}


def test_what_is_not_there_is_not_found(orders: OpenDoor) -> None:
    assert orders.get(f"{STATS}?topic=nope").code == "TOPIC_NOT_FOUND"
    assert orders.get(f"{STATS}?group=nobody").code == "GROUP_NOT_FOUND"
