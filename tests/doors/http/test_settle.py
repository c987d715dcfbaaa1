"""Settling: what becomes of messages that a member has."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, publish, settle, take
from tests.doors.http.doors import OpenDoor

VERBS = ["ack", "nack", "reject", "visibility"]
FIELDS: dict[str, dict[str, Any]] = {"visibility": {"timeout": "1m"}}
NEVER = "orders:0:0:1:" + "0" * 44


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders` of one partition with five messages, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 1, "config": {"max_deliveries": 2}})
        publish(door, *"abcde")
        yield door


@pytest.fixture
def messages(orders: OpenDoor) -> list[dict[str, Any]]:
    """All of them, leased."""
    return take(orders, join(orders))


def test_an_acked_message_is_done(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    second, first = settle(orders, "ack", messages[1]), settle(orders, "ack", messages[0])

    assert (second.status, second.json) == (
        200,
        {
            "success": True,
            "acknowledged": True,
            "topic": "orders",
            "partition": 0,
            "offset": 1,
            "committed_offset": 0,
            "offset_advanced": False,
            "in_flight_count": 4,
        },
    )
    assert (first.json["committed_offset"], first.json["offset_advanced"], first.json["in_flight_count"]) == (
        2,
        True,
        3,
    )


def test_a_nacked_message_comes_again_after_a_while(
    orders: OpenDoor, clock: ManualClock, messages: list[dict[str, Any]]
) -> None:
    answer = settle(orders, "nack", messages[0], reason="no luck")

    assert (answer.status, answer.json) == (
        200,
        {
            "success": True,
            "requeued": True,
            "action": "requeued",
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "delivery_count": 2,
            "next_visible_at": answer.json["next_visible_at"],
        },
    )
    assert "2024-01-01T00:00:00" < answer.json["next_visible_at"] <= "2024-01-01T00:00:02"


def test_the_caller_may_say_how_long(orders: OpenDoor, clock: ManualClock, messages: list[dict[str, Any]]) -> None:
    answer = settle(orders, "nack", messages[0], delay="1m30s")

    assert answer.json["next_visible_at"] == "2024-01-01T00:01:30.000000000Z"


def test_a_negative_delay_is_refused(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    answer = settle(orders, "nack", messages[0], delay="-5s")

    assert (answer.status, answer.json["error"]) == (400, "invalid delay: -5s is negative")


def test_no_delay_means_now(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    assert settle(orders, "nack", messages[0], delay="0s").status == 200

    (again,) = take(orders, orders.get("/groups/billing").json["leader_id"])
    assert (again["offset"], again["delivery_count"]) == (0, 2)


def test_after_the_last_attempt_a_message_is_dead(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    settle(orders, "nack", messages[0], delay="0s")
    (again,) = take(orders, orders.get("/groups/billing").json["leader_id"])

    answer = settle(orders, "nack", again)

    assert (answer.status, answer.json) == (
        200,
        {
            "success": True,
            "requeued": False,
            "action": "dlq",
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "dlq_topic": "orders.dlq",
        },
    )


@pytest.mark.parametrize(("given", "reason"), [({}, "rejected by consumer"), ({"reason": "rotten"}, "rotten")])
def test_a_rejected_message_is_dead(
    orders: OpenDoor, messages: list[dict[str, Any]], given: dict[str, str], reason: str
) -> None:
    answer = settle(orders, "reject", messages[3], **given)

    assert (answer.status, answer.json) == (
        200,
        {
            "success": True,
            "rejected": True,
            "action": "rejected",
            "topic": "orders",
            "partition": 0,
            "offset": 3,
            "dlq_topic": "orders.dlq",
            "dlq_partition": 0,
            "dlq_offset": 0,
            "reason": reason,
        },
    )
    (dead,) = orders.get("/topics/orders.dlq/partitions/0/messages").json["messages"]
    assert (dead["value"], dead["headers"]["gq-reason"], dead["headers"]["gq-error"]) == ("d", "REJECTED", reason)


@pytest.mark.parametrize(
    ("given", "extended_by"), [({"timeout": "1h30m"}, "1h30m"), ({"extension_seconds": 5400}, "1h30m")]
)
def test_a_lease_can_be_extended(
    orders: OpenDoor, clock: ManualClock, messages: list[dict[str, Any]], given: dict[str, Any], extended_by: str
) -> None:
    clock.advance(10)

    answer = settle(orders, "visibility", messages[0], **given)

    assert (answer.status, answer.json) == (
        200,
        {
            "success": True,
            "extended": True,
            "new_deadline": "2024-01-01T01:30:10.000000000Z",
            "extended_by": extended_by,
        },
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "timeout is required"),
        ({"extension_seconds": 0}, "extension_seconds must be positive"),
        ({"extension_seconds": -1}, "extension_seconds must be positive"),
        ({"extension_seconds": 43_201}, "extension_seconds must be at most 12h"),
        ({"extension_seconds": 10**30}, "extension_seconds must be at most 12h"),
        ({"extension_seconds": "30"}, "invalid extension_seconds"),
        ({"extension_seconds": 1.5}, "invalid extension_seconds"),
        ({"timeout": "0s"}, "timeout must be positive"),
        ({"timeout": "13h"}, "timeout must be at most 12h"),
        ({"timeout": "30"}, "invalid timeout format"),
        ({"timeout": 30}, "invalid timeout"),
        ({"timeout": "1s", "extension_seconds": 1}, "timeout and extension_seconds are two names"),
    ],
)
def test_an_extension_that_makes_no_sense_changes_nothing(
    orders: OpenDoor, messages: list[dict[str, Any]], given: dict[str, Any], words: str
) -> None:
    answer = settle(orders, "visibility", messages[0], **given)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(words)
    assert settle(orders, "ack", messages[0]).status == 200


def test_a_delay_that_is_none_changes_nothing(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    answer = settle(orders, "nack", messages[0], delay="soon")

    assert answer.status == 400
    assert answer.json["error"].startswith("invalid delay format")
    assert settle(orders, "ack", messages[0]).status == 200


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("suffix", ["", "/batch"])
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "receipt_handle"),
        ({"receipt_handle": None}, "receipt_handle"),
        ({"receipt_handle": ""}, "receipt_handle"),
        ({"receipt_handle": 5}, "receipt_handle"),
        ({"receipt_handles": []}, "receipt_handles"),
        ({"receipt_handles": "a"}, "receipt_handles"),
        ({"receipt_handles": [5]}, "receipt_handles[0]"),
        ({"receipt_handle": "a", "receipt_handles": ["b"]}, "receipt_handle"),
        ({"receipt_handle": "a", "consumer_id": 5}, "consumer_id"),
    ],
)
def test_a_receipt_is_required(orders: OpenDoor, verb: str, suffix: str, body: dict[str, Any], path: str) -> None:
    answer = orders.post(f"/messages/{verb}{suffix}", {**FIELDS.get(verb, {}), **body})

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", path)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("receipt", "status", "code"),
    [
        ("rubbish", 400, "RECEIPT_HANDLE_INVALID"),
        ("orders:0:0:1:xyz", 400, "RECEIPT_HANDLE_INVALID"),
        ("orders:-1:0:1:" + "0" * 44, 400, "RECEIPT_HANDLE_INVALID"),
        ("\u0000:\ud83d", 400, None),
        (NEVER, 404, "RECEIPT_HANDLE_UNKNOWN"),
        (NEVER.replace("orders", "nope"), 404, "RECEIPT_HANDLE_UNKNOWN"),
        (NEVER.replace(":0:0:1", ":9:0:1"), 404, "RECEIPT_HANDLE_UNKNOWN"),
        (NEVER.replace(":0:0:1", f":{'9' * 19}:{'9' * 19}:1"), 404, "RECEIPT_HANDLE_UNKNOWN"),
    ],
)
def test_a_receipt_that_was_made_up_is_refused(
    orders: OpenDoor, messages: list[dict[str, Any]], verb: str, receipt: str, status: int, code: str | None
) -> None:
    answer = orders.post(f"/messages/{verb}", {"receipt_handle": receipt, **FIELDS.get(verb, {})})

    assert answer.status == status
    assert code in (None, answer.code)
    if code == "RECEIPT_HANDLE_INVALID":
        assert answer.json["error"].startswith("malformed receipt handle")


@pytest.mark.parametrize("verb", VERBS)
def test_a_message_is_settled_once(orders: OpenDoor, messages: list[dict[str, Any]], verb: str) -> None:
    settle(orders, "ack", messages[0])

    again = settle(orders, verb, messages[0], **FIELDS.get(verb, {}))

    assert (again.status, again.code, again.json["details"]["reason"]) == (404, "RECEIPT_HANDLE_UNKNOWN", "settled")


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_that_is_over_settles_nothing(
    orders: OpenDoor, clock: ManualClock, messages: list[dict[str, Any]], verb: str
) -> None:
    clock.advance(31)
    orders.let_time_work()

    answer = settle(orders, verb, messages[0], **FIELDS.get(verb, {}))

    assert (answer.status, answer.code) == (410, "RECEIPT_HANDLE_EXPIRED")


def test_a_late_receipt_is_expired_also_while_another_of_its_poll_was_extended(
    orders: OpenDoor, clock: ManualClock
) -> None:
    messages = take(orders, join(orders), visibility_timeout="5s")
    assert settle(orders, "visibility", messages[0], timeout="10m").status == 200
    clock.advance(6)
    orders.until(lambda: orders.broker.groups.reliability().expired == 4)

    late = settle(orders, "ack", messages[1])

    assert (late.status, late.code) == (410, "RECEIPT_HANDLE_EXPIRED")
    assert settle(orders, "ack", messages[0]).status == 200


def test_who_settles_does_not_matter(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    assert settle(orders, "ack", messages[0], consumer_id="somebody").status == 200


def test_a_transaction_that_is_not_there_is_not_found(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    answer = settle(orders, "ack", messages[0], transaction_id="t")

    assert (answer.status, answer.code, answer.json["details"]) == (
        404,
        "TRANSACTION_NOT_FOUND",
        {"transaction_id": "t"},
    )


@pytest.mark.parametrize("path", ["/messages/ack", "/messages/ack/batch", "/v1/messages/ack/batch/"])
def test_each_of_a_list_has_its_own_result(orders: OpenDoor, messages: list[dict[str, Any]], path: str) -> None:
    receipts = [message["receipt_handle"] for message in messages[:2]]

    answer = orders.post(path, {"receipt_handles": [receipts[1], "rubbish", receipts[0], receipts[0]]})

    assert (answer.status, answer.json["success"], answer.json["failed"]) == (200, False, 2)
    assert answer.json.keys() == {"success", "results", "failed"}
    results = answer.json["results"]
    assert [result["receipt_handle"] for result in results] == [receipts[1], "rubbish", receipts[0], receipts[0]]
    assert [result.get("offset") for result in results] == [1, None, 0, None]
    assert [result.get("code") for result in results] == [
        None,
        "RECEIPT_HANDLE_INVALID",
        None,
        "RECEIPT_HANDLE_UNKNOWN",
    ]
    assert (results[0]["success"], results[0]["acknowledged"], results[1]["status"]) == (True, True, 400)
    assert results[3]["details"]["reason"] == "settled"


@pytest.mark.parametrize("verb", VERBS)
def test_a_list_in_which_all_went_well_says_so(orders: OpenDoor, messages: list[dict[str, Any]], verb: str) -> None:
    receipts = [message["receipt_handle"] for message in messages]

    answer = orders.post(f"/messages/{verb}", {"receipt_handles": receipts, **FIELDS.get(verb, {})})

    assert (answer.status, answer.json["success"], answer.json["failed"]) == (200, True, 0)
    assert [result["receipt_handle"] for result in answer.json["results"]] == receipts
    assert all(result["success"] for result in answer.json["results"])


@pytest.mark.parametrize("verb", VERBS)
def test_a_list_in_which_all_failed_has_the_status_of_the_first(orders: OpenDoor, verb: str) -> None:
    body = {"receipt_handles": [NEVER, "rubbish"], **FIELDS.get(verb, {})}

    answer = orders.post(f"/messages/{verb}/batch", body)

    assert (answer.status, answer.code) == (404, "RECEIPT_HANDLE_UNKNOWN")
    assert (answer.json["success"], answer.json["failed"]) == (False, 2)
    assert [result["status"] for result in answer.json["results"]] == [404, 400]
    assert [result["receipt_handle"] for result in answer.json["results"]] == [NEVER, "rubbish"]


def test_a_list_has_a_limit(orders: OpenDoor) -> None:
    most = orders.post("/messages/ack", {"receipt_handles": [NEVER] * 1_000})
    more = orders.post("/messages/ack", {"receipt_handles": [NEVER] * 1_001})

    assert (most.status, most.json["failed"]) == (404, 1_000)
    assert (more.status, more.code) == (413, "REQUEST_TOO_LARGE")
    assert more.json["error"] == "request too large: 1001 receipts are over the limit of 1000"
    assert more.json["details"] == {"size": 1_001, "limit": 1_000}


def test_what_happened_is_counted(orders: OpenDoor, messages: list[dict[str, Any]]) -> None:
    settle(orders, "ack", messages[0])
    settle(orders, "nack", messages[1], delay="1h")
    settle(orders, "reject", messages[2])
    settle(orders, "visibility", messages[3], timeout="1m")

    assert orders.get("/reliability/stats").json == {
        "acks_total": 1,
        "nacks_total": 1,
        "rejects_total": 1,
        "dlq_messages": 1,
        "visibility_extensions": 1,
        "ack_manager": {
            "total_acks": 1,
            "total_nacks": 1,
            "total_rejects": 1,
            "total_expired": 0,
            "total_retries": 0,
            "total_dlq": 1,
            "current_queued": 1,
        },
        "visibility_tracker": {
            "total_tracked": 5,
            "current_in_flight": 2,
            "total_expired": 0,
            "total_acked": 1,
            "total_extended": 1,
        },
        "dlq": {
            "total_routed": 1,
            "routes_by_reason": {"REJECTED": 1},
            "routes_by_topic": {"orders": 1},
            "create_errors": 0,
            "publish_errors": 0,
        },
    }


def test_dead_letters_are_counted_after_a_restart_too(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        publish(door, "a", "b")
        member = join(door)
        settle(door, "reject", take(door, member)[0])

    with OpenDoor(tmp_path / "data", clock=clock) as again:
        stats = again.get("/reliability/stats").json

    assert (stats["dlq_messages"], stats["dlq"]["total_routed"]) == (1, 0)
