"""Dead letters: how many there are and why, what they hold, and putting them back."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, publish, settle, take
from tests.doors.http.doors import OpenDoor

DLQ = "/topics/orders/dlq"
NOW = "2024-01-01T00:00:00.000000000Z"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2, "config": {"max_deliveries": 1}})
        yield door


def kill(door: OpenDoor, *values: str, reason: str = "rotten", group: str = "billing", **fields: Any) -> None:
    """Publish messages, and have them rejected by a group that has them all."""
    publish(door, *values, **fields)
    member = join(door, group)
    for message in take(door, member, group=group):
        is_victim = message["value"] in values
        settled = settle(door, "reject", message, reason=reason) if is_victim else settle(door, "ack", message)
        assert settled.status == 200
    door.post(f"/groups/{group}/leave", {"member_id": member["member_id"]})


def finished(door: OpenDoor, redrive: dict[str, Any]) -> dict[str, Any]:
    """The redrive, once it runs no more."""
    door.until(lambda: door.broker.dead_letters.redrive_info("orders", redrive["id"]).state != "running")
    shown: dict[str, Any] = door.get(f"{DLQ}/redrive/{redrive['id']}").json
    return shown


def test_nobody_is_dead(orders: OpenDoor) -> None:
    assert orders.get("/dlq").json == {"dlqs": [], "count": 0}
    assert orders.get(DLQ).json == {
        "topic": "orders",
        "dlq_topic": "orders.dlq",
        "messages": 0,
        "oldest": None,
        "newest": None,
        "by_reason": {},
        "by_group": {},
        "by_error": {},
        "redrives": [],
    }
    assert orders.get(f"{DLQ}/messages").json == {"messages": [], "count": 0}


def test_the_dead_are_counted(orders: OpenDoor, clock: ManualClock) -> None:
    kill(orders, "a", "b", partition=0)
    clock.advance(60)
    kill(orders, "c", partition=1, reason="mouldy", group="audit")

    shown = orders.get(DLQ).json

    assert shown == {
        "topic": "orders",
        "dlq_topic": "orders.dlq",
        "messages": 3,
        "oldest": NOW,
        "newest": "2024-01-01T00:01:00.000000000Z",
        "by_reason": {"REJECTED": 3},
        "by_group": {"billing": 2, "audit": 1},
        "by_error": {"rotten": 2, "mouldy": 1},
        "redrives": [],
    }
    del shown["by_error"], shown["redrives"]
    assert orders.get("/dlq").json == {"dlqs": [shown], "count": 1}


def test_a_dead_letter_is_what_it_was_and_says_why(orders: OpenDoor) -> None:
    publish(orders, "lives", partition=1)
    kill(orders, "a", partition=1, key="k", headers={"h": "v"}, priority="high")

    listed = orders.get(f"{DLQ}/messages").json

    (letter,) = listed["messages"]
    assert listed["count"] == 1
    headers = letter.pop("headers")
    assert (headers["h"], headers["gq-reason"], headers["gq-origin"]) == ("v", "REJECTED", "orders:1:1")
    assert letter == {
        "topic": "orders.dlq",
        "partition": 1,
        "offset": 0,
        "timestamp": NOW,
        "key": "k",
        "value": "a",
        "priority": "high",
        "reason": "REJECTED",
        "error": "rotten",
        "group": "billing",
        "attempts": 1,
        "origin": {"topic": "orders", "partition": 1, "offset": 1},
        "dead_at": NOW,
        "redrives": 0,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["a1", "a2", "b"]),
        ("limit=2", ["a1", "a2"]),
        ("limit=2&skip=1", ["a2", "b"]),
        ("reason=REJECTED", ["a1", "a2", "b"]),
        ("reason=TIMEOUT", []),
        ("group=audit", ["b"]),
        ("key=ka", ["a1", "a2"]),
        ("key_base64=a2E=", ["a1", "a2"]),
        ("key_prefix=k", ["a1", "a2", "b"]),
        ("key_prefix=kb", ["b"]),
        ("header=colour:red", ["b"]),
        ("header=colour:red&header=size:xl", ["b"]),
        ("header=colour:red&header=size:s", []),
        ("error_contains=ouldy", ["b"]),
        ("from_time=2024-01-01T00:00:30Z", ["b"]),
        ("to_time=2024-01-01T00:00:30Z", ["a1", "a2"]),
        ("partition=1", ["b"]),
        ("offsets=1", ["a2"]),
        ("partition=0&offsets=0,%201", ["a1", "a2"]),
        ("min_attempts=1", ["a1", "a2", "b"]),
        ("min_attempts=2", []),
        ("group=audit&key=ka", []),
    ],
)
def test_dead_letters_are_filtered_and_paged(
    orders: OpenDoor, clock: ManualClock, query: str, found: list[str]
) -> None:
    kill(orders, "a1", "a2", partition=0, key="ka")
    clock.advance(60)
    kill(
        orders,
        "b",
        partition=1,
        key="kb",
        headers={"colour": "red", "size": "xl"},
        reason="mouldy",
        group="audit",
    )

    answer = orders.get(f"{DLQ}/messages?{query}")

    assert answer.status == 200, answer.body
    assert [message["value"] for message in answer.json["messages"]] == found
    assert answer.json["count"] == len(found)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "skip=-1",
        "key=a&key_base64=YQ==",
        "key_base64=!",
        "header=colour",
        "header=:red",
        "from_time=yesterday",
        "to_time=later",
        "partition=-1",
        "partition=x",
        "offsets=1,x",
        "offsets=",
        "min_attempts=many",
        "encoding=hex",
    ],
)
def test_a_query_that_makes_no_sense_is_refused(orders: OpenDoor, query: str) -> None:
    answer = orders.get(f"{DLQ}/messages?{query}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["details"]["path"] == query.partition("=")[0] or "two names" in answer.json["error"]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_page_of_large_letters_ends_early(orders: OpenDoor, compression: str) -> None:
    orders.request("PATCH", "/topics/orders/config", {"compression": compression})
    for number in range(3):
        kill(orders, f"{number}" + "x" * 7_000_000, partition=0)

    counts = [orders.get(f"{DLQ}/messages?skip={skip}").json["count"] for skip in (0, 2)]

    assert counts == [2, 1]


@pytest.mark.parametrize("body", [None, {}, {"filter": None}, {"filter": {}}])
def test_all_dead_letters_can_be_put_back(orders: OpenDoor, body: Any) -> None:
    kill(orders, "a", "b", partition=0, key="k", headers={"h": "v"})
    kill(orders, "c", partition=1)

    started = orders.post(f"{DLQ}/redrive", b"" if body is None else body)
    done = finished(orders, started.json)

    assert started.status == 202
    assert started.json.keys() >= {"id", "topic", "state", "matched", "redriven", "skipped_loop", "failed", "rate"}
    assert (started.json["topic"], started.json["started_at"]) == ("orders", NOW)
    assert (done["state"], done["matched"], done["redriven"], done["failed"]) == ("done", 3, 3, 0)
    assert (done["skipped_loop"], done["rate"], done["finished_at"]) == (0, 0, NOW)
    assert "error" not in done
    shown = orders.get(DLQ).json
    assert (shown["messages"], shown["redrives"]) == (0, [done])
    back = take(orders, join(orders))
    assert sorted(message["value"] for message in back) == ["a", "b", "c"]
    by_value = {message["value"]: message for message in back}
    assert (by_value["a"]["key"], by_value["a"]["partition"], by_value["c"]["partition"]) == ("k", 0, 1)
    assert by_value["a"]["headers"]["h"] == "v"


def test_only_what_matches_is_put_back(orders: OpenDoor) -> None:
    kill(orders, "a1", "a2", "a3", partition=0, key="ka", headers={"colour": "red"})
    kill(orders, "b", partition=1, key="kb", reason="mouldy")
    wanted = {
        "reason": "REJECTED",
        "group": "billing",
        "key": "ka",
        "key_prefix": "k",
        "header": {"colour": "red"},
        "error_contains": "rot",
        "from_time": "2h ago",
        "to_time": "2024-01-01T00:00:01Z",
        "partition": 0,
        "offsets": [0, 1, 2],
        "min_attempts": 1,
    }

    done = finished(orders, orders.post(f"{DLQ}/redrive", {"filter": wanted, "limit": 2}).json)

    assert (done["state"], done["redriven"]) == ("done", 2)
    assert [letter["value"] for letter in orders.get(f"{DLQ}/messages").json["messages"]] == ["a3", "b"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"reason": "REJECTED"}, ["a1", "a2", "b"]),
        ({"reason": "TIMEOUT"}, []),
        ({"group": "audit"}, ["b"]),
        ({"key": "ka"}, ["a1", "a2"]),
        ({"key_base64": "a2I="}, ["b"]),
        ({"key_prefix": "kb"}, ["b"]),
        ({"header": {"colour": "red"}}, ["b"]),
        ({"header": {"colour": "red", "size": "s"}}, []),
        ({"error_contains": "ouldy"}, ["b"]),
        ({"from_time": "2024-01-01T00:00:30Z"}, ["b"]),
        ({"to_time": 1704067230}, ["a1", "a2"]),
        ({"partition": 1}, ["b"]),
        ({"offsets": [1]}, ["a2"]),
        ({"min_attempts": 2}, []),
        ({"key": None}, ["a1", "a2", "b"]),
    ],
)
def test_each_field_of_a_filter_counts(
    orders: OpenDoor, clock: ManualClock, wanted: dict[str, Any], found: list[str]
) -> None:
    kill(orders, "a1", "a2", partition=0, key="ka")
    clock.advance(60)
    headers = {"colour": "red", "size": "xl"}
    kill(orders, "b", partition=1, key="kb", headers=headers, reason="mouldy", group="audit")

    plan = orders.post(f"{DLQ}/redrive", {"filter": wanted, "dry_run": True}).json

    assert [letter["value"] for letter in plan["sample"]] == found
    assert plan["matched"] == len(found)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(orders: OpenDoor) -> None:
    kill(orders, "a", "b", partition=0)

    answer = orders.post(f"{DLQ}/redrive?encoding=base64", {"dry_run": True})

    assert answer.status == 200
    assert (answer.json["dry_run"], answer.json["matched"], answer.json["skipped_loop"]) == (True, 2, 0)
    assert [letter["value_base64"] for letter in answer.json["sample"]] == ["YQ==", "Yg=="]
    assert answer.json["sample"][0]["origin"] == {"topic": "orders", "partition": 0, "offset": 0}
    assert orders.get(DLQ).json["messages"] == 2


def test_a_message_is_not_put_back_for_ever(orders: OpenDoor) -> None:
    kill(orders, "a", partition=0)
    finished(orders, orders.post(f"{DLQ}/redrive", {}).json)
    member = join(orders)
    (message,) = take(orders, member)
    settle(orders, "reject", message)
    assert orders.get(f"{DLQ}/messages").json["messages"][0]["redrives"] == 1

    dry = orders.post(f"{DLQ}/redrive", {"max_redrives": 1, "dry_run": True}).json
    done = finished(orders, orders.post(f"{DLQ}/redrive", {"max_redrives": 1}).json)

    assert (dry["skipped_loop"], dry["sample"]) == (1, [])
    assert (done["redriven"], done["skipped_loop"]) == (0, 1)
    assert orders.get(DLQ).json["messages"] == 1


def test_dead_letters_may_go_elsewhere(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "hospital", "partitions": 1})
    kill(orders, "a", partition=1)

    done = finished(orders, orders.post(f"{DLQ}/redrive", {"target_topic": "hospital"}).json)

    assert done["redriven"] == 1
    assert orders.get("/topics/hospital/messages").json["messages"][0]["value"] == "a"
    nowhere = orders.post(f"{DLQ}/redrive", {"target_topic": "nope"})
    assert (nowhere.status, nowhere.code) == (404, "TOPIC_NOT_FOUND")


def test_dead_letters_go_to_the_topic_that_is_set(orders: OpenDoor) -> None:
    altered = orders.request("PATCH", "/topics/orders/config", {"dead_letter_topic": "graveyard"})
    assert altered.json["config"]["dead_letter_topic"] == "graveyard"
    kill(orders, "a", partition=1)

    assert orders.get(DLQ).json["dlq_topic"] == "graveyard"
    assert [(one["topic"], one["dlq_topic"]) for one in orders.get("/dlq").json["dlqs"]] == [("orders", "graveyard")]
    (letter,) = orders.get(f"{DLQ}/messages").json["messages"]
    assert (letter["value"], letter["partition"]) == ("a", 1)
    assert finished(orders, orders.post(f"{DLQ}/redrive", {}).json)["redriven"] == 1
    assert orders.get(DLQ).json["messages"] == 0
    for wrong in ("orders", "__groups", "a/b", 7):
        refused = orders.request("PATCH", "/topics/orders/config", {"dead_letter_topic": wrong})
        assert (refused.status, refused.code) == (400, "INVALID_TOPIC")


def test_dead_letters_go_back_to_the_group_that_gave_them_up_or_to_all(orders: OpenDoor) -> None:
    kill(orders, "a", partition=0)
    audit = join(orders, "audit")
    settle(orders, "ack", *take(orders, audit, group="audit"))

    done = finished(orders, orders.post(f"{DLQ}/redrive", {"to": "group"}).json)
    assert (done["redriven"], done["to"]) == (1, "group")
    assert take(orders, audit, group="audit") == []
    billing = join(orders, "billing")
    (again,) = take(orders, billing, group="billing")
    assert (again["value"], again["headers"]["gq-for-group"]) == ("a", "billing")

    settle(orders, "reject", again)
    assert finished(orders, orders.post(f"{DLQ}/redrive", {"to": "all"}).json)["to"] == "all"
    for member, group in ((audit, "audit"), (billing, "billing")):
        assert [message["value"] for message in take(orders, member, group=group)] == ["a"]


def test_a_redrive_that_takes_its_time_can_be_stopped(orders: OpenDoor) -> None:
    kill(orders, *"abcde", partition=0)
    started = orders.post(f"{DLQ}/redrive", {"rate": 0.001}).json
    assert (started["state"], started["rate"]) == ("running", 0.001)

    stopped = orders.request("DELETE", f"{DLQ}/redrive/{started['id']}")

    assert (stopped.status, stopped.json["state"]) == (200, "stopped")
    assert orders.get(f"{DLQ}/redrive/{started['id']}").json["state"] == "stopped"
    assert orders.get(DLQ).json["messages"] >= 4


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"rate": -1}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"limit": -1}, "limit"),
        ({"max_redrives": -1}, "max_redrives"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"to": "nobody"}, "to"),
        ({"to": ["group"]}, "to"),
        ({"filter": []}, "filter"),
        ({"filter": {"key": 5}}, "filter.key"),
        ({"filter": {"header": {"a": 1}}}, "filter.header[...]"),
        ({"filter": {"offsets": [-1]}}, "filter.offsets[0]"),
        ({"filter": {"partition": -1}}, "filter.partition"),
        ({"filter": {"from_time": "yesterday"}}, "filter.from_time"),
        ({"filter": {"key": "a", "key_base64": "YQ=="}}, "key"),
        ([], "$"),
    ],
)
def test_a_redrive_that_makes_no_sense_is_refused(orders: OpenDoor, body: Any, path: str) -> None:
    answer = orders.post(f"{DLQ}/redrive", body)

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", path)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_redrive_that_is_not_there_is_not_found(orders: OpenDoor, method: str) -> None:
    answer = orders.request(method, f"{DLQ}/redrive/nope")

    assert (answer.status, answer.code) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/messages"), ("POST", "/redrive"), ("GET", "/redrive/1")]
)
def test_a_topic_that_is_not_there_has_no_dead_letters(orders: OpenDoor, method: str, path: str) -> None:
    assert orders.request(method, f"/topics/nope/dlq{path}").status == 404
