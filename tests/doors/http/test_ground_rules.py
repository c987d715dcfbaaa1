"""What holds for every route."""

import json
import logging
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.broker import Broker
from goqueue.doors.http.door import HttpConfig, RequestAnswered
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.doors.http.doors import OpenDoor, exchange


def test_every_route_stands_below_v1_as_well_and_a_trailing_slash_is_ignored(door: OpenDoor) -> None:
    door.post("/v1/topics/", {"name": "orders"})

    for path in ("/topics", "/topics/", "/v1/topics", "/v1/topics/"):
        assert door.get(path).json == {"topics": ["orders"], "count": 1}
    for path in ("/health", "/v1/health", "/v1/healthz/", "/v1/version"):
        assert door.get(path).status == 200
    assert door.post("/v1/topics/orders/messages/", {"value": "a"}).status == 200
    assert door.get("/v1/topics/orders/messages/").json["messages"][0]["value"] == "a"


@pytest.mark.parametrize("path", ["/nope", "/v11/topics", "/topics/a/b", "/topics/orders/messages/batch/x"])
def test_a_route_that_does_not_exist_is_refused_in_the_usual_shape(door: OpenDoor, path: str) -> None:
    answer = door.get(path)

    assert answer.status == 404
    assert answer.json == {
        "error": f"not found: GET {path}",
        "code": "NOT_FOUND",
        "status": 404,
        "retryable": False,
        "details": {"what": f"GET {path}"},
    }


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/topics", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/health", "GET, HEAD, OPTIONS"),
        ("PATCH", "/topics/orders", "DELETE, GET, HEAD, OPTIONS"),
        ("DELETE", "/topics/orders/messages", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/topics/orders/messages/batch", "OPTIONS, POST"),
        ("HEAD", "/topics/orders/stream", "GET, OPTIONS"),
        ("HEAD", "/v1/groups/billing/poll/", "GET, OPTIONS"),
        ("PUT", "/topics/stream", "DELETE, GET, HEAD, OPTIONS"),
        ("PUT", "/groups/poll", "DELETE, GET, HEAD, OPTIONS"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_which_are(door: OpenDoor, method: str, path: str, allowed: str) -> None:
    answer = door.request(method, path)

    assert answer.status == 405
    assert answer.headers["allow"] == allowed
    assert method == "HEAD" or answer.code == "METHOD_NOT_ALLOWED"


def test_options_says_what_can_be_done(door: OpenDoor) -> None:
    answer = door.request("OPTIONS", "/topics/orders")

    assert (answer.status, answer.headers["allow"], answer.body) == (204, "DELETE, GET, HEAD, OPTIONS", b"")


def test_head_is_get_without_a_body(door: OpenDoor) -> None:
    with door.connection() as connection:
        head = exchange(connection, "HEAD", "/topics")
        get = exchange(connection, "GET", "/topics")

    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_a_request_keeps_the_id_it_came_with(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders"})

    for method, path, body in (("GET", "/health", None), ("POST", "/topics/orders/messages", {"value": "a"})):
        answer = door.request(method, path, body, {"X-Request-ID": "order 66"})
        assert answer.headers["x-request-id"] == "order 66"
    assert door.get("/nope", **{"X-Request-ID": "of an error"}).headers["x-request-id"] == "of an error"


@pytest.mark.parametrize("given", [None, "", "x" * 129, "caf\xe9"])
def test_a_request_without_a_sane_id_is_given_one(door: OpenDoor, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-ID": given}

    first, second = door.get("/health", **headers), door.get("/health", **headers)

    assert first.headers["x-request-id"] not in ("", given)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_is_json_whatever_its_content_type_says(door: OpenDoor, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}

    created = door.request("POST", "/topics", {"name": "orders"}, headers)
    published = door.request("POST", "/topics/orders/messages", {"value": "a"}, headers)

    assert (created.status, published.status) == (201, 200)


def test_null_means_absent(door: OpenDoor) -> None:
    body = {"name": "orders", "num_partitions": None, "config": None}

    assert door.post("/topics", body).json["partitions"] == 3
    assert door.post("/topics/orders/messages", {"value": "a", "key": None, "messages": None}).status == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/topics", {"name": 5}, "name"),
        ("/topics", {"name": "a", "num_partitions": "3"}, "num_partitions"),
        ("/topics", {"name": "a", "config": []}, "config"),
        ("/topics", [], "$"),
        ("/topics", {}, "name"),
        ("/topics/orders/messages", {"value": 5}, "value"),
        ("/topics/orders/messages", {"messages": [{"value": "a"}, {"value": True}]}, "messages[1].value"),
        ("/topics/orders/messages", {"messages": {}}, "messages"),
        ("/topics/orders/messages", {"value": "a", "partition": 1.5}, "partition"),
        ("/topics/orders/messages", {"value": "a", "headers": {"a": 1}}, "headers[...]"),
        ("/topics/orders/messages", {"value": "a", "producer_id": 0, "epoch": 0}, "producer_id"),
        ("/topics/orders/messages", "text", "$"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place(door: OpenDoor, path: str, body: object, field: str) -> None:
    door.post("/topics", {"name": "orders"})

    answer = door.post(path, body)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["details"]["path"] == field


def test_a_required_field_is_named(door: OpenDoor) -> None:
    for absent in ({}, {"name": None}):
        answer = door.post("/topics", {"partitions": 3, **absent})
        assert answer.json["error"] == "name is required"
        assert answer.json["details"] == {"path": "name"}


@pytest.mark.parametrize("body", [b"", b" ", b"null", b"{", b"\xff"])
def test_a_body_that_is_none_is_refused(door: OpenDoor, body: bytes) -> None:
    answer = door.request("POST", "/topics", body)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_something_to_be_tried_again_says_when(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders"})
    door.inside(door.broker.drain)

    answer = door.post("/topics/orders/messages", {"value": "a"})

    assert (answer.status, answer.code, answer.json["retryable"]) == (503, "BROKER_NOT_AVAILABLE", True)
    assert answer.headers["retry-after"] == "1"


def test_a_full_disk_is_507_and_may_be_tried_again() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    with OpenDoor(Path("/data"), disk=disk) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        disk.fail_next("pwrite", ENOSPC)

        refused = door.post("/topics/orders/messages", {"value": "a"})
        again = door.post("/topics/orders/messages", {"value": "a"})

    assert (refused.status, refused.code, refused.headers["retry-after"]) == (507, "STORAGE_FULL", "1")
    assert refused.json["results"][0]["retryable"] is True
    assert again.json["results"][0]["offset"] == 0


class BuggyBroker(Broker):
    """Fails in a way that was never thought of."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.topics.list = self._fail  # type: ignore[method-assign]
        self.messages.publish = self._fail  # type: ignore[method-assign]

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret")


def test_a_bug_is_logged_and_the_client_is_told_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with OpenDoor(tmp_path, broker=BuggyBroker) as door, caplog.at_level(logging.ERROR, "goqueue.http"):
        listed = door.get("/topics", **{"X-Request-ID": "first"})
        published = door.request("POST", "/topics/orders/messages", {"value": "a"}, {"X-Request-ID": "second"})

    for answer, request_id in ((listed, "first"), (published, "second")):
        assert (answer.status, answer.code) == (500, "INTERNAL")
        assert answer.json["details"] == {"request_id": request_id}
        assert b"secret" not in answer.body
    assert ["ZeroDivisionError: secret" in caplog.text, "first" in caplog.text, "second" in caplog.text] == [True] * 3


def test_other_origins_are_not_let_in(door: OpenDoor) -> None:
    answer = door.get("/health", Origin="https://example.com")

    assert "access-control-allow-origin" not in answer.headers


@pytest.fixture
def shared(tmp_path: Path) -> OpenDoor:
    return OpenDoor(tmp_path / "data", config=HttpConfig(cors_origins=("https://example.com",)))


def test_origins_that_were_named_are_let_in_on_every_route(shared: OpenDoor) -> None:
    with shared as door:
        door.post("/topics", {"name": "orders"})
        origin = {"Origin": "https://example.com"}

        for method, path, body in (
            ("GET", "/health", None),
            ("GET", "/nope", None),
            ("POST", "/topics/orders/messages", {"value": "a"}),
        ):
            answer = door.request(method, path, body, origin)
            assert answer.headers["access-control-allow-origin"] == "https://example.com"
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in answer.headers
        stranger = door.get("/health", Origin="https://example.org")
        assert "access-control-allow-origin" not in stranger.headers
        assert stranger.status == 200


def test_a_preflight_is_answered(shared: OpenDoor) -> None:
    with shared as door:
        asked = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}

        answer = door.request("OPTIONS", "/topics/orders/messages", None, asked)

        assert answer.status == 204
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "Content-Type" in answer.headers["access-control-allow-headers"]
        assert answer.headers["access-control-max-age"] == "300"


def test_whoever_observes_is_told_of_every_answer(tmp_path: Path) -> None:
    seen: list[RequestAnswered] = []
    with OpenDoor(tmp_path / "data", observe=seen.append) as door:
        door.post("/v1/topics", {"name": "orders"})
        door.get("/topics/orders")
        door.post("/topics/orders/messages", {"value": "a"})
        door.post("/topics/none/messages", {"value": "a"})
        door.get("/nope")
        door.until(lambda: len(seen) == 5)

    assert [(one.method, one.route, one.status) for one in seen] == [
        ("POST", "/topics", 201),
        ("GET", "/topics/{topic}", 200),
        ("POST", "/topics/{topic}/messages", 200),
        ("POST", "/topics/{topic}/messages", 404),
        ("GET", "", 404),
    ]
    assert all(0 < one.duration_ns < 10**10 for one in seen)


def test_answers_are_one_line_of_json(door: OpenDoor) -> None:
    body = door.get("/topics").body

    assert body == json.dumps({"topics": [], "count": 0}, separators=(",", ":")).encode() + b"\n"
