"""A request says only what its route knows; a misspelt field is refused instead of ignored."""

from typing import Any

import pytest

from tests.doors.http.consumers import join, publish, settle, take
from tests.doors.http.doors import Answer, OpenDoor

LENIENT = {"Prefer": "handling=lenient"}
SCHEMA = '{"type": "object"}'


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    door.post("/topics", {"name": "orders", "partitions": 1})
    return door


def assert_unknown(answer: Answer, path: str, nearest: str) -> None:
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST"), answer.body
    assert (answer.json["details"]["path"], answer.json["details"]["nearest"]) == (path, nearest)
    assert path.rpartition(".")[2] in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body", "field", "nearest"),
    [
        ("/topics", {"name": "a", "num_partition": 3}, "num_partition", "num_partitions"),
        ("/topics/orders/messages", {"value": "a", "dealy": "1h"}, "dealy", "delay"),
        ("/topics/orders/messages", {"messages": [{"value": "a"}], "ack": "none"}, "ack", "acks"),
        (
            "/topics/orders/messages/batch",
            {"messages": [{"value": "a"}, {"value": "b", "dealy": "1h"}]},
            "messages[1].dealy",
            "delay",
        ),
        ("/topics/orders/dlq/redrive", {"filter": {"reasn": "TIMEOUT"}}, "filter.reasn", "reason"),
        ("/topics/orders/dlq/redrive", {"filters": {"reason": "TIMEOUT"}}, "filters", "filter"),
        ("/topics/orders/schedules", {"name": "a", "cron": "@daily", "value": "a", "timzone": "UTC"},
         "timzone", "timezone"),
        ("/groups/billing/join", {"client_id": "a", "topics": ["orders"], "modes": "shared"}, "modes", "mode"),
        ("/groups/billing/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 1, "meta": ""}]},
         "offsets[0].meta", "metadata"),
        ("/groups/billing/offsets/reset", {"strategy": "earliest", "dryrun": True}, "dryrun", "dry_run"),
        ("/groups/g/revoke", {"member_id": "a", "revoked_partitions": [{"topic": "a", "partition": 0, "part": 1}]},
         "revoked_partitions[0].part", "partition"),
        ("/messages/nack", {"receipt_handle": "a:0:0:1:x", "dely": "1h"}, "dely", "delay"),
        ("/producers/init", {"transactional": "a"}, "transactional", "transactional_id"),
        (
            "/transactions/commit",
            {"producer_id": 1, "epoch": 0, "transactional_id": "a", "transactions": [
                {"producer_id": 1, "epoch": 0, "transactional_id": "a", "transactional": "a"}]},
            "transactions[0].transactional",
            "transactional_id",
        ),
        (
            "/transactions/publish",
            {"producer_id": 1, "epoch": 0, "messages": [{"topic": "orders", "value": "a", "tll": "1h"}]},
            "messages[0].tll",
            "ttl",
        ),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_with_the_nearest_known_one(
    orders: OpenDoor, path: str, body: Any, field: str, nearest: str
) -> None:
    assert_unknown(orders.post(path, body), field, nearest)
    assert orders.get("/topics/orders").json["total_messages"] == 0


@pytest.mark.parametrize(
    ("method", "path", "field", "nearest"),
    [
        ("GET", "/topics/orders/messages?offest=1", "offest", "offset"),
        ("GET", "/topics/orders/partitions/0/messages?offst=1", "offst", "offset"),
        ("GET", "/topics/orders/delayed?stat=pending", "stat", "state"),
        ("GET", "/topics/orders/dlq/messages?reasn=TIMEOUT", "reasn", "reason"),
        ("GET", "/topics/orders/stream?form_time=1", "form_time", "from_time"),
        ("GET", "/groups/billing/poll?member_id=a&max_mesages=1", "max_mesages", "max_messages"),
        ("GET", "/traces/search?consumergroup=a", "consumergroup", "consumer_group"),
        ("GET", "/v1/topics?internl=true", "internl", "internal"),
        ("DELETE", "/topics/orders/delayed?keys=a", "keys", "key"),
    ],
)
def test_an_unknown_query_parameter_is_refused_with_the_nearest_known_one(
    orders: OpenDoor, method: str, path: str, field: str, nearest: str
) -> None:
    if "offest" in path:
        nearest = "offsets"
    assert_unknown(orders.request(method, path), field, nearest)


def test_a_route_without_parameters_knows_none(orders: OpenDoor) -> None:
    for method, path in (("GET", "/topics/orders?verbose=1"), ("DELETE", "/topics/orders?force=true")):
        answer = orders.request(method, path)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert answer.json["details"] == {"path": path.partition("?")[2].partition("=")[0]}
    answer = orders.request("POST", "/topics/orders/messages?delay=1h", {"value": "a"})
    assert (answer.status, answer.json["details"]["path"]) == (400, "delay")
    assert orders.get("/topics/orders").json["total_messages"] == 0


def test_a_route_without_a_body_knows_no_field(orders: OpenDoor) -> None:
    refused = orders.request("DELETE", "/topics/orders", {"dry_run": True})

    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    assert refused.json["details"] == {"path": "dry_run"}
    assert orders.request("DELETE", "/topics/orders", {}).status == 200


def test_a_lenient_request_is_taken_without_what_the_route_does_not_know(orders: OpenDoor) -> None:
    bodies: list[tuple[str, Any]] = [
        ("/topics", {"name": "a", "colour": {"of": ["the", "sky"]}, "config": {"retenton": "1h", "retention": "2h"}}),
        ("/topics/orders/messages", {"value": "a", "dealy": "1h", "headers": {"a": {"base64": "YQ==", "b": 1}}}),
        ("/topics/orders/messages", {"messages": [{"value": "b", "headers": {"x": "y"}, "dealy": "1h"}], "x": None}),
        ("/topics/orders/dlq/redrive", {"filter": {"reasn": "TIMEOUT", "group": "billing"}, "dry_run": True}),
        ("/producers/init", {"x": 1}),
    ]
    for path, body in bodies:
        assert orders.request("POST", path, body).status == 400, path
        assert orders.request("POST", path, body, LENIENT).status in (200, 201, 202), path
    assert orders.get("/topics/a/config").json["config"]["retention"] == "2h"
    stored = orders.get("/topics/orders/messages?colour=red", Prefer='wait=5, handling="lenient"').json["messages"]
    assert [(message["value"], message["headers"]) for message in stored] == [("a", {"a": "a"}), ("b", {"x": "y"})]


def test_a_lenient_request_is_still_checked(orders: OpenDoor) -> None:
    wrong_type = orders.request("POST", "/topics/orders/messages", {"value": 5, "colour": 1}, LENIENT)
    missing = orders.request("POST", "/topics", {"colour": 1}, LENIENT)

    assert (wrong_type.status, wrong_type.json["details"]) == (400, {"path": "value"})
    assert (missing.status, missing.json["error"]) == (400, "name is required")


def test_the_registry_is_always_lenient(door: OpenDoor) -> None:
    answer = door.post("/schemas/subjects/a/versions?colour=red", {"schema": SCHEMA, "colour": "red"})

    assert answer.status == 200
    assert door.get("/schemas/subjects?x=1").status == 200


def test_what_is_accepted_and_not_needed_is_known(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders)
    first, second = take(orders, member)

    assert settle(orders, "ack", first, consumer_id="me").status == 200
    assert settle(orders, "reject", second, consumer_id="me").status == 200


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/topics", {"name": "a", "num_partitions": 1, "partitions": 1}, "num_partitions"),
        ("/topics", {"name": "a", "replication_factor": 1, "replicationFactor": 1}, "replication_factor"),
        ("/topics", {"name": "a", "retention_hours": 1, "config": {"retention": "1h"}}, "retention_hours"),
        ("/messages/ack", {"receipt_handle": "a", "receipt_handles": ["a"]}, "receipt_handle"),
    ],
)
def test_two_names_of_one_thing_are_refused(orders: OpenDoor, path: str, body: Any, named: str) -> None:
    answer = orders.post(path, body)

    assert (answer.status, answer.code, answer.json["details"]) == (400, "INVALID_REQUEST", {"path": named})


def test_two_names_of_one_query_parameter_are_refused(orders: OpenDoor) -> None:
    for path, named in (
        ("/topics/orders/messages?wait=1s&timeout=1s", "wait"),
        ("/groups/billing/poll?member_id=a&limit=1&max_messages=1", "max_messages"),
        ("/topics/orders/delayed?key=a&key_base64=YQ==", "key"),
    ):
        answer = orders.get(path)
        assert (answer.status, answer.json["details"]) == (400, {"path": named})


def test_an_unknown_setting_of_a_topic_is_refused_with_the_nearest(orders: OpenDoor) -> None:
    created = orders.post("/topics", {"name": "a", "config": {"retenton": "1h"}})
    changed = orders.request("PATCH", "/topics/orders/config", {"retenton": "1h"})

    for answer, path in ((created, "config.retenton"), (changed, "retenton")):
        assert (answer.status, answer.code) == (400, "INVALID_TOPIC")
        assert answer.json["details"]["path"] == path
        assert answer.json["details"]["setting"] == "retenton"
        assert answer.json["details"]["nearest"] == "retention"
        assert "retention" in answer.json["error"]
    lenient = orders.request("PATCH", "/topics/orders/config", {"retenton": "1h", "ttl": "5s"}, LENIENT)
    assert (lenient.status, lenient.json["config"]["ttl"]) == (200, "5s")


def test_a_setting_with_a_wrong_value_is_named_with_its_path(orders: OpenDoor) -> None:
    created = orders.post("/topics", {"name": "a", "config": {"retention": 5}})
    changed = orders.request("PATCH", "/topics/orders/config", {"retention": 5})

    assert created.json["details"]["path"] == "config.retention"
    assert changed.json["details"]["path"] == "retention"


def test_a_name_that_is_long_is_not_sent_back_as_a_whole(orders: OpenDoor) -> None:
    answer = orders.post("/topics", {"name": "a", "x" * 500_000: 1})

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert len(answer.body) < 2_000


@pytest.mark.parametrize("name", ["wait", "timeout"])
def test_a_time_to_wait_that_is_none_is_named_as_it_was_sent(orders: OpenDoor, name: str) -> None:
    for path in ("/topics/orders/messages?", "/topics/orders/partitions/0/messages?", "/groups/g/poll?member_id=a&"):
        answer = orders.get(f"{path}{name}=5")
        assert (answer.status, answer.json["details"]) == (400, {"path": name})
        assert answer.json["error"].startswith("invalid timeout format")
