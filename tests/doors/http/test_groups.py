"""Consumer groups: who is in them and who has which partitions."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, poll, publish
from tests.doors.http.doors import OpenDoor

BILLING = "/groups/billing"
NOW = "2024-01-01T00:00:00.000000000Z"
REBALANCE_FIELDS = {
    "total_rebalances",
    "successful_rebalances",
    "failed_rebalances",
    "total_partitions_revoked",
    "total_partitions_assigned",
    "total_revocation_timeouts",
    "last_rebalance_duration_ms",
    "average_rebalance_duration_ms",
    "rebalances_by_reason",
}


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        yield door


def test_the_first_member_leads_and_has_everything(orders: OpenDoor) -> None:
    joined = join(orders)

    member_id = joined.pop("member_id")
    assert member_id.startswith("worker-")
    assert joined == {
        "generation": 1,
        "leader_id": member_id,
        "leader": True,
        "partitions": [0, 1, 2],
        "assigned_partitions": ["orders-0", "orders-1", "orders-2"],
        "members": [member_id],
        "rebalance_required": False,
        "mode": "partitioned",
        "protocol": "cooperative",
        "session_timeout": "30s",
        "heartbeat_interval": "3s",
    }


def test_a_member_says_what_it_wants(orders: OpenDoor) -> None:
    wanted = {"mode": "shared", "protocol": "eager", "assignor": "range", "session_timeout": "1m30s"}

    joined = join(orders, member_id="static-1", start="latest", ack="offsets", auto_commit=False, **wanted)

    assert joined["member_id"] == "static-1"
    assert {name: joined[name] for name in ("mode", "protocol", "session_timeout")} == {
        "mode": "shared",
        "protocol": "eager",
        "session_timeout": "1m30s",
    }
    assert orders.get(BILLING).json["assignor"] == "range"


def test_a_short_session_asks_for_more_heartbeats(orders: OpenDoor) -> None:
    assert join(orders, session_timeout="1s")["heartbeat_interval"] == "333ms"


def test_the_interval_of_auto_commit_is_asked_for(orders: OpenDoor) -> None:
    assert join(orders, ack="offsets", auto_commit_interval="250ms")["generation"] == 1

    asked = {"client_id": "c", "topics": ["orders"], "auto_commit_interval": "1ms"}
    answer = orders.post(f"{BILLING}/join", asked)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["details"] == {"path": "auto_commit_interval"}


@pytest.mark.parametrize("absent", [{}, {"client_id": None}, {"client_id": ""}])
def test_a_member_has_a_client_id(orders: OpenDoor, absent: dict[str, Any]) -> None:
    answer = orders.post(f"{BILLING}/join", {"topics": ["orders"], **absent})

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("client_id is required")
    assert answer.json["details"] == {"path": "client_id"}


@pytest.mark.parametrize("absent", [{}, {"topics": None}, {"topics": []}])
def test_a_member_reads_at_least_one_topic(orders: OpenDoor, absent: dict[str, Any]) -> None:
    answer = orders.post(f"{BILLING}/join", {"client_id": "worker", **absent})

    assert (answer.status, answer.json["error"]) == (400, "at least one topic is required")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"client_id": "a/b"}, "client_id"),
        ({"client_id": 5}, "client_id"),
        ({"topics": "orders"}, "topics"),
        ({"topics": [None]}, "topics[0]"),
        ({"topics": ["orders", 7]}, "topics[1]"),
        ({"member_id": "x" * 256}, "member_id"),
        ({"session_timeout": "30"}, "session_timeout"),
        ({"session_timeout": 30}, "session_timeout"),
        ({"session_timeout": "1ms"}, "session_timeout"),
        ({"mode": "alone"}, "mode"),
        ({"protocol": "lazy"}, "protocol"),
        ({"assignor": "random"}, "assignor"),
        ({"start": "middle"}, "start"),
        ({"ack": "never"}, "ack"),
        ({"auto_commit": "yes"}, "auto_commit"),
        ({"visibility_timeout": "0s"}, "visibility_timeout"),
        ({"visibility_timeout": "13h"}, "visibility_timeout"),
        ({"max_in_flight": 0}, "max_in_flight"),
    ],
)
@pytest.mark.parametrize("route", ["join", "join/cooperative"])
def test_what_cannot_be_is_refused_with_its_place(
    orders: OpenDoor, route: str, fields: dict[str, Any], path: str
) -> None:
    answer = orders.post(f"{BILLING}/{route}", {"client_id": "worker", "topics": ["orders"], **fields})

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", path)
    assert orders.get("/groups").json["count"] == 0


def test_a_topic_that_is_not_there_cannot_be_joined(orders: OpenDoor) -> None:
    answer = orders.post(f"{BILLING}/join", {"client_id": "worker", "topics": ["orders", "nope"]})

    assert (answer.status, answer.code, answer.json["error"]) == (404, "TOPIC_NOT_FOUND", "topic not found: nope")


def test_a_group_has_a_name_of_a_sane_length(orders: OpenDoor) -> None:
    body = {"client_id": "worker", "topics": ["orders"]}

    assert orders.post(f"/groups/{'x' * 255}/join", body).status == 200
    assert orders.post(f"/groups/{'x' * 256}/join", body).status == 400
    assert orders.post("/groups/caf%C3%A9%20%231/join", body).status == 200
    assert "café #1" in orders.get("/groups").json["groups"]


def test_another_mode_than_the_group_has_is_a_conflict(orders: OpenDoor) -> None:
    join(orders)

    answer = orders.post(f"{BILLING}/join", {"client_id": "other", "topics": ["orders"], "mode": "shared"})

    assert (answer.status, answer.code) == (409, "GROUP_MODE_CONFLICT")
    assert answer.json["details"]["setting"] == "mode"


def test_groups_are_listed(orders: OpenDoor) -> None:
    publish(orders, "a", "b", "c")
    join(orders)
    join(orders, "audit", mode="shared")

    assert orders.get("/groups").json == {
        "groups": ["audit", "billing"],
        "details": [
            {
                "id": name,
                "group_id": name,
                "state": "Stable",
                "members": 1,
                "generation": 1,
                "topics": ["orders"],
                "mode": mode,
                "protocol": "cooperative",
                "lag": 3,
            }
            for name, mode in (("audit", "shared"), ("billing", "partitioned"))
        ],
        "count": 2,
    }


def test_no_groups_are_an_empty_list(orders: OpenDoor) -> None:
    assert orders.get("/groups").json == {"groups": [], "details": [], "count": 0}


def test_a_group_shows_its_members(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders)
    poll(orders, member)

    assert orders.get(BILLING).json == {
        "id": "billing",
        "group_id": "billing",
        "state": "Stable",
        "generation": 1,
        "mode": "partitioned",
        "protocol": "cooperative",
        "assignor": "sticky",
        "leader_id": member["member_id"],
        "topics": ["orders"],
        "created_at": NOW,
        "lag": 2,
        "expired_leases": 0,
        "members": [
            {
                "id": member["member_id"],
                "member_id": member["member_id"],
                "client_id": "worker",
                "assigned_partitions": ["orders-0", "orders-1", "orders-2"],
                "assignments": [{"topic": "orders", "partition": number} for number in range(3)],
                "in_flight": 2,
                "expired_leases": 0,
                "last_heartbeat": NOW,
                "joined_at": NOW,
            }
        ],
    }


def test_a_group_shows_leases_that_expire(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "a", "b")
    member = join(orders)
    poll(orders, member, visibility_timeout="5s")
    clock.advance(6)
    orders.until(lambda: orders.broker.groups.describe("billing").expired_leases == 2)

    shown = orders.get(BILLING).json

    assert (shown["expired_leases"], shown["members"][0]["expired_leases"]) == (2, 2)
    assert orders.get(f"{BILLING}/cooperative").json["expired_leases"] == 2


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/cooperative", None),
        ("GET", "/assignment?member_id=a", None),
        ("GET", "/blocked", None),
        ("GET", "/rebalance/stats", None),
        ("GET", "/poll?member_id=a", None),
        ("POST", "/heartbeat", {"member_id": "a"}),
        ("POST", "/heartbeat/cooperative", {"member_id": "a"}),
        ("POST", "/revoke", {"member_id": "a"}),
        ("POST", "/leave", {"member_id": "a"}),
        ("POST", "/leave/cooperative", {"member_id": "a"}),
        ("POST", "/offsets", {"member_id": "a", "offsets": {"orders": {"0": 1}}}),
        ("POST", "/offsets/reset", {"strategy": "earliest"}),
    ],
)
def test_a_group_that_is_not_there_is_not_found(orders: OpenDoor, method: str, path: str, body: Any) -> None:
    answer = orders.request(method, f"/groups/nobody{path}", body)

    assert (answer.status, answer.code) == (404, "GROUP_NOT_FOUND")
    assert answer.json["error"].startswith("group not found")


@pytest.mark.parametrize("route", ["heartbeat", "heartbeat/cooperative", "revoke", "leave", "leave/cooperative"])
def test_a_member_that_is_not_there_is_not_found(orders: OpenDoor, route: str) -> None:
    join(orders)

    answer = orders.post(f"{BILLING}/{route}", {"member_id": "stranger"})

    assert (answer.status, answer.code) == (404, "NOT_GROUP_MEMBER")
    assert answer.json["error"].startswith("member not found")
    assert orders.post(f"{BILLING}/{route}", {}).json["error"] == "member_id is required"
    assert orders.post(f"{BILLING}/{route}", {"member_id": None}).json["error"] == "member_id is required"


def test_a_heartbeat_keeps_a_member_alive(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders)
    for _ in range(3):
        clock.advance(20)
        orders.let_time_work()
        beat = orders.post(f"{BILLING}/heartbeat", {"member_id": member["member_id"], "generation": 1})
        assert (beat.status, beat.json) == (
            200,
            {"status": "ok", "rebalance_required": False, "state": "Stable", "generation": 1},
        )

    assert orders.get(BILLING).json["members"][0]["last_heartbeat"] == "2024-01-01T00:01:00.000000000Z"


def test_a_silent_member_is_put_out_and_told_why(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders)
    clock.advance(31)
    orders.until(lambda: not orders.broker.groups.describe("billing").members)

    answer = orders.post(f"{BILLING}/heartbeat", {"member_id": member["member_id"]})

    assert (answer.status, answer.code) == (404, "SESSION_TIMEOUT")
    assert answer.json["error"].startswith("member not found: session expired")
    assert orders.get(BILLING).json["state"] == "Empty"


def test_a_member_of_an_older_generation_is_told_what_it_has(orders: OpenDoor) -> None:
    first = join(orders)
    join(orders, client_id="second")

    answer = orders.post(f"{BILLING}/heartbeat", {"member_id": first["member_id"], "generation": 1})

    assert (answer.status, answer.code) == (409, "INVALID_GENERATION")
    assert answer.json["error"].startswith("stale generation")
    details = answer.json["details"]
    assert (details["generation"], len(details["assigned_partitions"])) == (2, 2)
    again = {"member_id": first["member_id"], "generation": details["generation"]}
    assert orders.post(f"{BILLING}/heartbeat", again).status == 200


def test_a_member_that_wants_to_be_asked_is_asked(orders: OpenDoor) -> None:
    first = join(orders, path="join/cooperative")
    second = join(orders, path="join/cooperative", client_id="second")
    assert (second["assigned_partitions"], second["rebalance_required"]) == ([], True)

    beat = {"member_id": first["member_id"], "generation": 1}
    asked = orders.post(f"{BILLING}/heartbeat/cooperative", beat).json

    assert (asked["rebalance_required"], asked["state"], asked["protocol"]) == (True, "pending_revoke", "cooperative")
    assert asked["generation"] == 2
    assert len(asked["partitions_to_revoke"]) == 1
    assert asked["revocation_deadline"] == "2024-01-01T00:00:30.000000000Z"
    assert len(orders.get(BILLING).json["members"][0]["assignments"]) == 3

    revoked = orders.post(
        f"{BILLING}/revoke",
        {**beat, "generation": asked["generation"], "revoked_partitions": asked["partitions_to_revoke"]},
    )
    assert (revoked.status, revoked.json["status"], revoked.json["pending_count"]) == (200, "acknowledged", 0)
    calm = orders.post(f"{BILLING}/heartbeat/cooperative", {"member_id": second["member_id"]}).json
    assert (calm["rebalance_required"], calm["partitions_assigned"]) == (False, asked["partitions_to_revoke"])
    assert "revocation_deadline" not in calm


def test_partitions_are_given_back_one_by_one_or_all_at_once(orders: OpenDoor) -> None:
    first = join(orders, path="join/cooperative")
    for number in (2, 3):
        join(orders, path="join/cooperative", client_id=f"worker {number}")
    beat = {"member_id": first["member_id"]}
    asked = orders.post(f"{BILLING}/heartbeat/cooperative", beat).json["partitions_to_revoke"]
    assert len(asked) == 2

    one = orders.post(f"{BILLING}/revoke", {**beat, "revoked_partitions": asked[:1]}).json
    rest = orders.post(f"{BILLING}/revoke", beat).json

    assert (one["pending_count"], rest["pending_count"]) == (1, 0)
    assert len(orders.get(f"{BILLING}/assignment?member_id={first['member_id']}").json["partitions"]) == 1


@pytest.mark.parametrize("partitions", [[{"topic": "orders"}], [{"topic": "orders", "partition": -1}], "orders-0"])
def test_what_was_revoked_is_named_in_full(orders: OpenDoor, partitions: object) -> None:
    member = join(orders)

    answer = orders.post(f"{BILLING}/revoke", {"member_id": member["member_id"], "revoked_partitions": partitions})

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["details"]["path"].startswith("revoked_partitions")


@pytest.mark.parametrize("route", ["leave", "leave/cooperative"])
def test_what_a_member_leaves_behind_is_due_again_at_once(orders: OpenDoor, route: str) -> None:
    publish(orders, "a")
    first = join(orders)
    assert len(poll(orders, first)["messages"]) == 1

    answer = orders.post(f"{BILLING}/{route}", {"member_id": first["member_id"]})

    assert (answer.status, answer.json) == (200, {"status": "left", "left": True})
    assert [message["value"] for message in poll(orders, join(orders))["messages"]] == ["a"]


def test_a_group_can_be_deleted(orders: OpenDoor) -> None:
    member = join(orders)

    answer = orders.request("DELETE", BILLING)

    assert (answer.status, answer.json) == (200, {"deleted": True, "group": "billing", "group_id": "billing"})
    assert orders.get("/groups").json["groups"] == []
    assert orders.post(f"{BILLING}/heartbeat", {"member_id": member["member_id"]}).status == 404
    assert orders.request("DELETE", BILLING).status == 404


def test_a_member_can_look_at_its_partitions(orders: OpenDoor) -> None:
    member = join(orders)["member_id"]

    assert orders.get(f"{BILLING}/assignment?member_id={member}").json == {
        "member_id": member,
        "generation": 1,
        "partitions": [{"topic": "orders", "partition": number} for number in range(3)],
    }
    assert orders.get(f"{BILLING}/assignment?member_id=stranger").code == "NOT_GROUP_MEMBER"
    assert orders.get(f"{BILLING}/assignment").json["error"] == "member_id query param is required"


def test_a_group_shows_how_it_is_rebalanced(orders: OpenDoor) -> None:
    first, second = join(orders), join(orders, client_id="second")

    shown = orders.get(f"{BILLING}/cooperative").json

    assert orders.get(BILLING).json.items() <= shown.items()
    assert shown["assignment_strategy"] == "sticky"
    assert shown["member_assignments"].keys() == {first["member_id"], second["member_id"]}
    assert sum(map(len, shown["member_assignments"].values())) == 3
    assert shown["rebalance_metrics"] == orders.get(f"{BILLING}/rebalance/stats").json


def test_rebalances_are_counted_for_one_group_and_for_all(orders: OpenDoor) -> None:
    none = orders.get("/rebalance/stats").json
    join(orders)
    join(orders, "audit")
    join(orders, client_id="second")

    one, everything = orders.get(f"{BILLING}/rebalance/stats").json, orders.get("/rebalance/stats").json

    assert (none.keys(), none["total_rebalances"]) == (REBALANCE_FIELDS, 0)
    assert one.keys() == everything.keys() == REBALANCE_FIELDS | {"last_rebalance_at"}
    assert (one["total_rebalances"], everything["total_rebalances"]) == (2, 3)
    assert one["rebalances_by_reason"] == {"join": 2}
    assert one["last_rebalance_at"] == NOW


def test_a_message_that_holds_back_its_key_is_named(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "a", "b", "c", key="k", partition=0)
    publish(orders, "d", "e", key_base64="/w==", partition=1)
    member = join(orders, mode="key-shared")
    taken = [*poll(orders, member, max_messages=1)["messages"], *poll(orders, member, max_messages=1)["messages"]]
    assert {message["partition"] for message in taken} == {0, 1}
    clock.advance(5)
    poll(orders, join(orders, mode="key-shared", client_id="other"))

    answer = orders.get(f"{BILLING}/blocked").json

    assert answer["count"] == 2
    first, second = sorted(answer["blocked"], key=lambda one: one["partition"])
    assert first == {
        "topic": "orders",
        "partition": 0,
        "key": "k",
        "offset": 0,
        "member_id": member["member_id"],
        "since": NOW,
        "delivery_count": 1,
        "waiting": 2,
    }
    assert (second["key"], second["key_base64"], second["waiting"]) == (None, "/w==", 1)
    (encoded, _) = sorted(
        orders.get(f"{BILLING}/blocked?encoding=base64").json["blocked"], key=lambda one: one["partition"]
    )
    assert (encoded["key"], encoded["key_base64"]) == (None, "aw==")


def test_nothing_is_held_back_where_keys_do_not_matter(orders: OpenDoor) -> None:
    publish(orders, "a", "b", key="k")
    poll(orders, join(orders), max_messages=1)

    assert orders.get(f"{BILLING}/blocked").json == {"blocked": [], "count": 0}


def test_a_join_that_is_repeated_does_not_interrupt_other_members(orders: OpenDoor) -> None:
    join(orders, member_id="static-1")
    other = join(orders)

    join(orders, member_id="static-1")

    body = {"member_id": other["member_id"], "generation": other["generation"]}
    assert orders.post(f"{BILLING}/heartbeat", body).status == 200


def test_a_join_that_is_repeated_has_the_same_answer(orders: OpenDoor) -> None:
    first = join(orders, member_id="static-1")

    assert join(orders, member_id="static-1") == first


@pytest.mark.parametrize("route", ["heartbeat", "heartbeat/cooperative", "revoke"])
def test_a_generation_is_checked_only_if_it_is_given(orders: OpenDoor, route: str) -> None:
    member = join(orders, path="join/cooperative")["member_id"]

    assert orders.post(f"{BILLING}/{route}", {"member_id": member}).status == 200
    assert orders.post(f"{BILLING}/{route}", {"member_id": member, "generation": None}).status == 200


@pytest.mark.parametrize("route", ["heartbeat", "revoke"])
def test_the_generation_before_the_first_is_stale(orders: OpenDoor, route: str) -> None:
    member = join(orders, path="join/cooperative")["member_id"]

    refused = orders.post(f"{BILLING}/{route}", {"member_id": member, "generation": 0})

    assert (refused.status, refused.json["code"]) == (409, "INVALID_GENERATION")
    assert refused.json["details"]["generation"] == 1


def test_a_cooperative_heartbeat_with_an_old_generation_is_told_the_new_one(orders: OpenDoor) -> None:
    member = join(orders, path="join/cooperative")

    beat = orders.post(f"{BILLING}/heartbeat/cooperative", {"member_id": member["member_id"], "generation": 0})

    assert (beat.status, beat.json["generation"], beat.json["state"]) == (200, 1, "complete")
