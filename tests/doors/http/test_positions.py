"""Where groups stand."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, poll, publish, settle, take, values
from tests.doors.http.doors import OpenDoor

OFFSETS = "/groups/billing/offsets"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders` with ten messages in each of two partitions."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        for partition in (0, 1):
            publish(door, *(f"{partition}/{number}" for number in range(10)), partition=partition)
        yield door


def test_a_group_that_is_not_there_stands_nowhere(orders: OpenDoor) -> None:
    assert orders.get(OFFSETS).json == {
        "group_id": "billing",
        "topics": {},
        "offsets": {},
        "details": [],
        "generation": 0,
        "updated_at": "2024-01-01T00:00:00.000000000Z",
    }
    assert orders.get(f"{OFFSETS}?topic=nope").json["details"] == []


def test_a_group_stands_at_the_start_until_something_is_done(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders)
    clock.advance(5)
    for message in take(orders, member, max_messages=20)[:3]:
        settle(orders, "ack", message)

    shown = orders.get(OFFSETS).json

    assert shown["offsets"] == shown["topics"]
    assert sum(shown["offsets"]["orders"].values()) == 3
    assert shown["generation"] == 1
    assert {detail["partition"]: detail["offset"] for detail in shown["details"]} == {
        int(partition): offset for partition, offset in shown["offsets"]["orders"].items()
    }
    for detail in shown["details"]:
        assert detail["lag"] == 10 - detail["offset"]
        assert (detail["end_offset"], detail["lag_seconds"], detail["metadata"]) == (10, 5.0, "")


@pytest.mark.parametrize(("start", "offset"), [(None, 0), ("earliest", 0), ("latest", 10)])
def test_a_group_begins_where_its_first_member_says(orders: OpenDoor, start: str | None, offset: int) -> None:
    join(orders, start=start)

    assert orders.get(OFFSETS).json["offsets"] == {"orders": {"0": offset, "1": offset}}


@pytest.mark.parametrize(("auto_commit", "offset"), [(None, 10), (True, 10), (False, 0)])
def test_positions_are_committed_on_leave_unless_that_is_done_by_hand(
    orders: OpenDoor, auto_commit: bool | None, offset: int
) -> None:
    member = join(orders, ack="offsets", auto_commit=auto_commit)
    assert len(take(orders, member)) == 20

    orders.post("/groups/billing/leave", {"member_id": member["member_id"]})

    assert orders.get(OFFSETS).json["offsets"] == {"orders": {"0": offset, "1": offset}}


def test_only_one_topic_is_shown_when_asked_for(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "refunds", "partitions": 1})
    join(orders, topics=["orders", "refunds"])

    assert orders.get(OFFSETS).json["offsets"] == {"orders": {"0": 0, "1": 0}, "refunds": {"0": 0}}
    assert orders.get(f"{OFFSETS}?topic=refunds").json["offsets"] == {"refunds": {"0": 0}}


@pytest.mark.parametrize(
    "offsets",
    [
        {"orders": {"0": 4, "1": 2}},
        [{"topic": "orders", "partition": 0, "offset": 4}, {"topic": "orders", "partition": 1, "offset": 2}],
    ],
)
def test_positions_are_committed_as_a_map_or_as_a_list(orders: OpenDoor, offsets: Any) -> None:
    member = join(orders)

    answer = orders.post(OFFSETS, {"member_id": member["member_id"], "generation": 1, "offsets": offsets})

    assert (answer.status, answer.json) == (
        200,
        {
            "status": "committed",
            "committed": True,
            "group": "billing",
            "group_id": "billing",
            "offsets": {"orders": {"0": 4, "1": 2}},
        },
    )
    assert orders.get(OFFSETS).json["offsets"] == {"orders": {"0": 4, "1": 2}}
    assert sorted(values(poll(orders, member)))[0] == "0/4"


def test_metadata_are_kept_with_a_position(orders: OpenDoor) -> None:
    entry = {"topic": "orders", "partition": 1, "offset": 2, "metadata": "by hand"}

    orders.post(OFFSETS, {"offsets": [entry]})

    details = {detail["partition"]: detail for detail in orders.get(OFFSETS).json["details"]}
    assert (details[1]["offset"], details[1]["metadata"]) == (2, "by hand")


def test_past_the_end_means_the_end_and_nothing_goes_back(orders: OpenDoor) -> None:
    stored = [orders.post(OFFSETS, {"offsets": {"orders": {"0": offset}}}).json["offsets"] for offset in (99, 3)]

    assert stored == [{"orders": {"0": 10}}, {"orders": {"0": 10}}]


def test_a_position_goes_back_if_that_is_allowed(orders: OpenDoor) -> None:
    member = join(orders)
    take(orders, member)
    orders.post(OFFSETS, {"member_id": member["member_id"], "offsets": {"orders": {"0": 10, "1": 10}}})

    body = {"member_id": member["member_id"], "offsets": {"orders": {"0": 8, "1": 99}}, "allow_backwards": True}
    answer = orders.post(OFFSETS, body)

    assert (answer.status, answer.json["offsets"]) == (200, {"orders": {"0": 8, "1": 10}})
    assert values(poll(orders, member)) == ["0/8", "0/9"]


@pytest.mark.parametrize("absent", [{}, {"offsets": None}, {"offsets": {}}, {"offsets": []}])
def test_offsets_are_required(orders: OpenDoor, absent: dict[str, Any]) -> None:
    answer = orders.post(OFFSETS, absent)

    assert (answer.status, answer.json["error"]) == (400, "offsets are required")


@pytest.mark.parametrize(
    ("offsets", "code", "path"),
    [
        ({"orders": {"0": -1}}, "INVALID_REQUEST", "offsets[...][...]"),
        ({"orders": {"0": 2**63}}, "INVALID_REQUEST", "offsets[...][...]"),
        ({"orders": {"0": "5"}}, "INVALID_REQUEST", "offsets[...][...]"),
        ({"orders": 5}, "INVALID_REQUEST", "offsets[...]"),
        ({"orders": {"first": 5}}, "INVALID_PARTITION", None),
        ([{"topic": "orders", "partition": 0}], "INVALID_REQUEST", "offsets[0].offset"),
        ([{"topic": "orders", "partition": -1, "offset": 0}], "INVALID_REQUEST", "offsets[0].partition"),
        ("latest", "INVALID_REQUEST", "offsets"),
    ],
)
def test_an_offset_that_cannot_be_is_refused(orders: OpenDoor, offsets: Any, code: str, path: str | None) -> None:
    answer = orders.post(OFFSETS, {"offsets": offsets})

    assert (answer.status, answer.code, answer.json["details"].get("path")) == (400, code, path)


def test_only_those_who_have_a_partition_commit_in_it(orders: OpenDoor) -> None:
    member = join(orders)
    offsets = {"orders": {"7": 1}}

    not_there = orders.post(OFFSETS, {"member_id": member["member_id"], "offsets": offsets})
    stranger = orders.post(OFFSETS, {"member_id": "stranger", "offsets": {"orders": {"0": 1}}})
    old = orders.post(OFFSETS, {"member_id": member["member_id"], "generation": 0, "offsets": {"orders": {"0": 1}}})

    assert (not_there.status, not_there.code) == (403, "PARTITION_NOT_ASSIGNED")
    assert not_there.json["error"].startswith("partition not assigned")
    assert (stranger.status, stranger.code) == (404, "NOT_GROUP_MEMBER")
    assert (old.status, old.code) == (409, "INVALID_GENERATION")
    assert orders.get(OFFSETS).json["offsets"] == {"orders": {"0": 0, "1": 0}}


@pytest.mark.parametrize(
    ("how", "offsets"),
    [
        ({"strategy": "latest"}, {"0": 10, "1": 10}),
        ({"strategy": "latest", "topic": "orders"}, {"0": 10, "1": 10}),
        ({"strategy": "latest", "topic": "orders", "partition": 1}, {"0": 5, "1": 10}),
        ({"strategy": "latest", "partition": -1}, {"0": 10, "1": 10}),
        ({"strategy": "earliest"}, {"0": 0, "1": 0}),
        ({"strategy": "offset", "offset": 3}, {"0": 3, "1": 3}),
        ({"strategy": "timestamp", "timestamp": "2h ago"}, {"0": 0, "1": 0}),
        ({"strategy": "timestamp", "timestamp": 1704067201}, {"0": 10, "1": 10}),
        ({"strategy": "timestamp", "timestamp": "2024-01-01T00:00:00Z"}, {"0": 0, "1": 0}),
    ],
)
def test_positions_can_be_set(orders: OpenDoor, how: dict[str, Any], offsets: dict[str, int]) -> None:
    join(orders)
    orders.post(f"{OFFSETS}/reset", {"strategy": "offset", "offset": 5})

    dry = orders.post(f"{OFFSETS}/reset", {**how, "dry_run": True}).json
    untouched = orders.get(OFFSETS).json["offsets"]["orders"]
    real = orders.post(f"{OFFSETS}/reset", how).json

    assert untouched == {"0": 5, "1": 5}
    assert orders.get(OFFSETS).json["offsets"]["orders"] == offsets
    assert (dry.pop("dry_run"), real.pop("dry_run")) == (True, False)
    assert dry == real
    assert (real["group_id"], real["reset_count"]) == ("billing", len(real["new_offsets"]))
    for new in real["new_offsets"]:
        assert new == {
            "topic": "orders",
            "partition": new["partition"],
            "offset": offsets[str(new["partition"])],
            "old_offset": 5,
        }


def test_a_reset_under_a_live_member_ends_its_leases(orders: OpenDoor) -> None:
    member = join(orders)
    (message,) = take(orders, member, max_messages=1)

    orders.post(f"{OFFSETS}/reset", {"strategy": "earliest"})

    refused = settle(orders, "ack", message)
    assert (refused.status, refused.code) == (410, "RECEIPT_HANDLE_EXPIRED")
    assert len(take(orders, member, max_messages=100)) == 20


def test_a_reset_past_the_end_is_refused_with_the_ends(orders: OpenDoor) -> None:
    join(orders)

    answer = orders.post(f"{OFFSETS}/reset", {"strategy": "offset", "topic": "orders", "partition": 0, "offset": 999})

    assert (answer.status, answer.code) == (400, "OFFSET_OUT_OF_RANGE")
    assert (answer.json["details"]["start"], answer.json["details"]["offset"]) == (0, 999)
    assert answer.json["details"]["end"] < 999


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "strategy is required"),
        ({"strategy": "sideways"}, "invalid strategy"),
        ({"strategy": "timestamp"}, "timestamp is required"),
        ({"strategy": "timestamp", "timestamp": "yesterday"}, "invalid timestamp"),
        ({"strategy": "offset"}, "offset is required"),
        ({"strategy": "offset", "offset": -1}, "invalid offset"),
        ({"strategy": "latest", "partition": -2}, "invalid partition"),
        ({"strategy": "latest", "dry_run": "yes"}, "invalid dry_run"),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(orders: OpenDoor, body: dict[str, Any], words: str) -> None:
    join(orders)

    answer = orders.post(f"{OFFSETS}/reset", body)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(words)


def test_a_reset_of_what_is_not_there_is_not_found(orders: OpenDoor) -> None:
    join(orders)

    topic = orders.post(f"{OFFSETS}/reset", {"strategy": "latest", "topic": "nope"})
    partition = orders.post(f"{OFFSETS}/reset", {"strategy": "latest", "topic": "orders", "partition": 7})

    assert (topic.status, topic.code) == (404, "TOPIC_NOT_FOUND")
    assert (partition.status, partition.code) == (404, "PARTITION_NOT_FOUND")
