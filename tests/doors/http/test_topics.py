from pathlib import Path
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from goqueue.testing import ManualClock
from tests.doors.http.doors import OpenDoor


def test_a_topic_is_created_with_what_was_asked_for(door: OpenDoor) -> None:
    answer = door.post("/topics", {"name": "orders", "num_partitions": 2, "config": {"flush": "interval"}})

    assert answer.status == 201
    config = answer.json.pop("config")
    assert answer.json | {"config": None, "id": None} == {
        "name": "orders",
        "id": None,
        "partitions": 2,
        "num_partitions": 2,
        "replication_factor": 1,
        "created": True,
        "config": None,
    }
    assert (config["flush"], config["retention"]) == ("interval", "168h")


@pytest.mark.parametrize("name", ["partitions", "num_partitions"])
def test_the_number_of_partitions_has_two_names(door: OpenDoor, name: str) -> None:
    assert door.post("/topics", {"name": "orders", name: 5}).json["num_partitions"] == 5


@pytest.mark.parametrize("name", ["replication_factor", "replicationFactor"])
def test_the_replication_factor_has_two_names(door: OpenDoor, name: str) -> None:
    assert door.post("/topics", {"name": "orders", name: 1}).status == 201
    refused = door.post("/topics", {"name": "more", name: 3})

    assert (refused.status, refused.code) == (400, "INVALID_TOPIC")
    assert refused.json["details"]["path"] == refused.json["details"]["setting"] == name
    assert name in refused.json["error"]


@pytest.mark.parametrize(("hours", "shown"), [(1, "1h"), (0.5, "30m"), (1000, "1000h")])
def test_retention_can_be_given_in_hours(door: OpenDoor, hours: float, shown: str) -> None:
    answer = door.post("/topics", {"name": "orders", "retention_hours": hours})

    assert answer.json["config"]["retention"] == shown


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "a", "partitions": 1, "num_partitions": 1}, "INVALID_REQUEST"),
        ({"name": "a", "replication_factor": 1, "replicationFactor": 1}, "INVALID_REQUEST"),
        ({"name": "a", "retention_hours": 1, "config": {"retention": "1h"}}, "INVALID_REQUEST"),
        ({"name": "a", "retention_hours": -1}, "INVALID_TOPIC"),
        ({"name": "a", "retention_hours": 1e300}, "INVALID_TOPIC"),
        ({"name": "a", "partitions": 0}, "INVALID_TOPIC"),
        ({"name": "a", "partitions": -(10**30)}, "INVALID_TOPIC"),
        ({"name": "a", "config": {"flush": "maybe"}}, "INVALID_TOPIC"),
        ({"name": "a", "config": {"colour": "blue"}}, "INVALID_TOPIC"),
        ({"name": ""}, "INVALID_TOPIC"),
        ({"name": ".."}, "INVALID_TOPIC"),
        ({"name": "a/b"}, "INVALID_TOPIC"),
        ({"name": "x" * 250}, "INVALID_TOPIC"),
        ({"name": "\ud83d\ude00"}, "INVALID_TOPIC"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(door: OpenDoor, body: dict[str, Any], code: str) -> None:
    answer = door.post("/topics", body)

    assert (answer.status, answer.code) == (400, code)
    assert door.get("/topics").json["count"] == 0


def test_a_topic_is_created_once(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders"})

    answer = door.post("/topics", {"name": "orders"})

    assert (answer.status, answer.code) == (409, "TOPIC_ALREADY_EXISTS")
    assert answer.json["error"].startswith("topic already exists")


def test_topics_are_listed_by_name(door: OpenDoor) -> None:
    assert door.get("/topics").json == {"topics": [], "count": 0}
    for name in ("b", "a", "c"):
        door.post("/topics", {"name": name})

    assert door.get("/topics?internal=true").json == {"topics": ["a", "b", "c"], "count": 3}


def test_a_topic_shows_how_large_it_is_and_where_its_partitions_end(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        door.post(
            "/topics/orders/messages", {"messages": [{"value": "a", "partition": 1}, {"value": "b", "partition": 1}]}
        )

        topic = door.get("/topics/orders").json

    assert (topic["name"], topic["partitions"], topic["num_partitions"]) == ("orders", 2, 2)
    assert (topic["replication_factor"], topic["total_messages"]) == (1, 2)
    assert topic["total_size_bytes"] == 2 * 35
    assert topic["partition_offsets"] == {
        "0": {"earliest": 0, "latest": -1, "high_watermark": 0, "last_stable_offset": 0},
        "1": {"earliest": 0, "latest": 1, "high_watermark": 2, "last_stable_offset": 2},
    }
    assert topic["config"]["cleanup"] == "delete"
    assert topic["created_at"] == "2024-01-01T00:00:00.000000000Z"


def test_a_topic_that_was_deleted_is_gone(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders"})

    answer = door.request("DELETE", "/topics/orders")

    assert (answer.status, answer.json) == (200, {"deleted": True, "name": "orders"})
    assert door.get("/topics/orders").code == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/topics/none"),
        ("DELETE", "/topics/none"),
        ("GET", "/topics/none/config"),
        ("PATCH", "/topics/none/config"),
        ("GET", "/topics/none/partitions"),
        ("GET", "/topics/none/offsets"),
        ("GET", "/topics/none/offsets?time=1h%20ago"),
        ("GET", "/topics/none/messages"),
        ("GET", "/topics/none/partitions/0/messages"),
        ("GET", "/topics/none/stream"),
        ("POST", "/topics/none/messages"),
    ],
)
def test_a_topic_that_does_not_exist_is_404_everywhere(door: OpenDoor, method: str, path: str) -> None:
    body = {"value": "a"} if method in ("POST", "PATCH") else None

    answer = door.request(method, path, body)

    assert (answer.status, answer.code) == (404, "TOPIC_NOT_FOUND")
    assert answer.json["error"] == "topic not found: none"


def test_settings_can_be_changed_and_reset(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "config": {"retention": "2h"}})

    before = door.get("/topics/orders/config").json
    changed = door.request("PATCH", "/topics/orders/config", {"max_deliveries": 7, "retention": None}).json

    assert before["name"] == "orders"
    assert (before["config"]["retention"], "retention" in before["defaults"]) == ("2h", False)
    assert (changed["config"]["retention"], "retention" in changed["defaults"]) == ("168h", True)
    assert (changed["config"]["max_deliveries"], "max_deliveries" in changed["defaults"]) == (7, False)
    assert door.get("/topics/orders/config").json == changed


@pytest.mark.parametrize("body", [{"flush": 1}, {"nonsense": 1}, {"retention": "soon"}])
def test_a_setting_that_cannot_be_changes_nothing(door: OpenDoor, body: dict[str, Any]) -> None:
    door.post("/topics", {"name": "orders"})
    before = door.get("/topics/orders/config").json

    answer = door.request("PATCH", "/topics/orders/config", body)

    assert (answer.status, answer.code) == (400, "INVALID_TOPIC")
    assert answer.json["details"]["setting"] in body
    assert door.get("/topics/orders/config").json == before


def test_partitions_are_listed_with_all_that_is_known_of_them(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 2})
    door.post("/topics/orders/messages", {"value": "a", "partition": 1})

    answer = door.get("/topics/orders/partitions").json

    assert answer["topic"] == "orders"
    assert [partition["partition"] for partition in answer["partitions"]] == [0, 1]
    assert answer["partitions"][1] == {
        "partition": 1,
        "leader": 0,
        "replicas": [0],
        "isr": [0],
        "elr": [],
        "version": 0,
        "leader_epoch": 0,
        "high_watermark": 1,
        "log_start_offset": 0,
        "log_end_offset": 1,
        "size_bytes": 35,
        "state": "online",
    }


def test_offsets_are_found_by_time(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        for _ in range(3):
            door.post("/topics/orders/messages", {"value": "a", "partition": 0})
            clock.advance(60)

        def offsets(time: str) -> Any:
            answer = door.get(f"/topics/orders/offsets?time={time}").json
            assert answer["topic"] == "orders"
            return answer["offsets"]

        assert offsets("earliest") == {"0": 0, "1": 0}
        assert offsets("latest") == {"0": 3, "1": 0}
        assert offsets("2m%20ago") == {"0": 1, "1": 0}
        assert offsets("2024-01-01T00:01:00Z") == {"0": 1, "1": 0}
        assert offsets("2024-01-01T01:01:00+01:00") == {"0": 1, "1": 0}, "an unquoted plus"
        assert offsets("1704067260.5") == {"0": 2, "1": 0}
        assert offsets("2030-01-01T00:00:00Z") == {"0": 3, "1": 0}
        assert door.get("/topics/orders/offsets").json["offsets"] == {"0": 3, "1": 0}
        assert door.get("/topics/orders/offsets?time=whenever").code == "INVALID_REQUEST"


def test_a_name_in_a_path_is_percent_decoded(door: OpenDoor) -> None:
    door.post("/topics", {"name": "a.b_c-1"})

    assert door.get("/topics/%61%2Eb_c%2D1").json["name"] == "a.b_c-1"
    assert door.post("/topics/%61%2Eb_c%2D1/messages", {"value": "x"}).status == 200
    assert door.get("/topics/caf%C3%A9").json["error"] == "topic not found: café"
    assert door.get("/topics/%FF%00").code == "TOPIC_NOT_FOUND"
    assert door.get("/topics/a%2Fb").status == 404


def test_an_error_names_the_field_that_was_sent(door: OpenDoor) -> None:
    for field, value in (("partitions", 0), ("num_partitions", 0), ("retention_hours", -1)):
        refused = door.post("/topics", {"name": "orders", field: value})
        assert (refused.status, refused.json["details"]["path"]) == (400, field)
        assert f"setting {field}:" in refused.json["error"]


def test_a_topic_has_an_id_of_its_own(door: OpenDoor) -> None:
    created = door.post("/topics", {"name": "orders"}).json["id"]
    assert str(UUID(created)) == created
    assert (UUID(created).version, UUID(created).variant) == (4, RFC_4122)
    assert door.get("/topics/orders").json["id"] == created

    door.request("DELETE", "/topics/orders")

    assert door.post("/topics", {"name": "orders"}).json["id"] != created


def test_records_before_an_offset_are_deleted(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    door.post("/topics/orders/messages", {"messages": [{"value": str(number)} for number in range(5)]})

    answer = door.post("/topics/orders/partitions/0/truncate", {"before_offset": 3})

    assert (answer.status, answer.json) == (200, {"topic": "orders", "partition": 0, "log_start_offset": 3})
    read = door.get("/topics/orders/partitions/0/messages?offset=3")
    assert [message["value"] for message in read.json["messages"]] == ["3", "4"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("orders/partitions/0", {}, 400, "INVALID_REQUEST"),
        ("orders/partitions/0", {"before": 1}, 400, "INVALID_REQUEST"),
        ("orders/partitions/0", {"before_offset": 6}, 400, "OFFSET_OUT_OF_RANGE"),
        ("orders/partitions/0", {"before_offset": -2}, 400, "INVALID_REQUEST"),
        ("orders/partitions/9", {"before_offset": 1}, 404, "PARTITION_NOT_FOUND"),
        ("orders/partitions/x", {"before_offset": 1}, 400, "INVALID_PARTITION"),
        ("nothing/partitions/0", {"before_offset": 1}, 404, "TOPIC_NOT_FOUND"),
        ("__groups/partitions/0", {"before_offset": 1}, 403, "FORBIDDEN"),
    ],
)
def test_a_truncation_that_cannot_be_is_refused(
    door: OpenDoor, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    door.post("/topics/orders/messages", {"messages": [{"value": "kept"}]})

    answer = door.post(f"/topics/{path}/truncate", body)

    assert (answer.status, answer.code) == (status, code)
    assert door.get("/topics/orders").json["total_messages"] == 1
