"""Internal topics are closed over HTTP: every route that names one answers 403, but for a look at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.doors.http.app import ROUTES
from tests.doors.http.doors import OpenDoor

PARAMETERS = {
    "topic": "__groups",
    "partition": "0",
    "offset": "0",
    "name": "nightly",
    "redrive_id": "1",
}


def routes_with_a_topic() -> Iterator[tuple[str, str]]:
    for handler in ROUTES:
        for path in sorted(handler.paths):  # a set; workers must agree on the order
            for method in sorted(handler.http_methods - {"HEAD", "OPTIONS"}):
                if "{topic:str}" in path:
                    yield method, path


@pytest.mark.parametrize(("method", "path"), list(routes_with_a_topic()))
@pytest.mark.parametrize("topic", ["__groups", "__traces"])
def test_a_route_that_names_an_internal_topic_is_refused(door: OpenDoor, method: str, path: str, topic: str) -> None:
    door.post("/groups/workers/join", {"client_id": "c", "topics": ["orders"]})
    url = path
    for name, value in (PARAMETERS | {"topic": topic}).items():
        url = url.replace(f"{{{name}:str}}", value)
    body = None if method == "GET" else {"value": "x"}

    answer = door.request(method, url, body)

    if (method, path) == ("GET", "/topics/{topic:str}"):
        assert (answer.status, answer.code) == (404, "TOPIC_NOT_FOUND")  # there is none yet
    else:
        assert (answer.status, answer.code) == (403, "FORBIDDEN")


def test_a_body_that_names_an_internal_topic_is_refused(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    session = door.post("/producers/init", {"transactional_id": "t"}).json
    owner = {**session, "transactional_id": "t"}
    door.post("/transactions/begin", owner)

    answers = [
        door.post("/topics", {"name": "__mine"}),
        door.post("/groups/g/join", {"client_id": "c", "topics": ["__groups"]}),
        door.post("/groups/g/offsets", {"offsets": {"__groups": {"0": 1}}}),
        door.post("/transactions/publish", {**session, "topic": "__transactions", "value": "x"}),
        door.post("/transactions/add-partition", {**owner, "topic": "__groups", "partition": 0}),
        door.post("/transactions/offsets", {**session, "group": "g", "offsets": {"__groups": {"0": 1}}}),
        door.post("/topics/orders/dlq/redrive", {"target_topic": "__groups"}),
    ]

    assert [(answer.status, answer.code) for answer in answers] == [(403, "FORBIDDEN")] * len(answers)


def test_an_internal_topic_is_listed_and_shown_when_asked_for(door: OpenDoor) -> None:
    door.post("/producers/init", {"transactional_id": "t"})

    assert door.get("/topics").json["topics"] == []
    assert door.get("/topics?internal=true").json["topics"] == ["__transactions"]
    assert door.get("/topics/__transactions").json["name"] == "__transactions"


def test_a_record_for_an_internal_topic_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    with OpenDoor(tmp_path) as door:
        door.post("/producers/init", {"transactional_id": "t"})
        refused = door.post("/topics/__transactions/messages", {"key": "evil", "value": "x"})
    with OpenDoor(tmp_path) as door:
        health = door.get("/health")

    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert health.json["status"] == "ok"
