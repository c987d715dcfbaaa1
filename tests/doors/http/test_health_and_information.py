import platform
import re
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from goqueue.doors.http.door import Build
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.doors.http.doors import OpenDoor

NOW = "2024-01-01T00:00:00.000000000Z"


def test_a_broker_that_is_well_says_so(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        assert door.get("/health").json == {"status": "ok", "timestamp": NOW}
        for path in ("/healthz", "/livez", "/readyz"):
            assert door.get(path).json == {"status": "pass", "timestamp": NOW, "uptime": "0s"}


def test_uptime_is_a_duration(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        clock.advance(5.5)

        assert door.get("/livez").json["uptime"] == "5.5s"


@pytest.mark.parametrize("flag", ["true", "True", "1"])
def test_readiness_tells_more_when_asked(tmp_path: Path, flag: str) -> None:
    with OpenDoor(tmp_path, node_id=7) as door:
        door.post("/topics", {"name": "orders"})

        answer = door.get(f"/readyz?verbose={flag}").json

    passed = {"status": "pass"}
    assert answer["checks"] == {"broker": passed, "storage": passed, "cluster": passed}
    assert answer["broker"] == {"node_id": 7, "topic_count": 1, "total_size": 0}


@pytest.mark.parametrize("query", ["", "?verbose", "?verbose=", "?verbose=false", "?verbose=yes"])
def test_readiness_tells_no_more_than_that_otherwise(door: OpenDoor, query: str) -> None:
    assert door.get(f"/readyz{query}").json.keys() == {"status", "timestamp", "uptime"}


def test_a_broker_that_is_stopping_is_not_ready_but_alive(door: OpenDoor) -> None:
    door.inside(door.broker.drain)

    ready, alive = door.get("/readyz"), door.get("/livez")

    assert (ready.status, ready.json["status"]) == (503, "fail")
    assert (alive.status, alive.json["status"]) == (200, "pass")


def test_a_log_that_has_failed_is_a_reason_to_start_again() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    with OpenDoor(Path("/data"), disk=disk) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        disk.fail_next("sync", EIO)

        refused = door.post("/topics/orders/messages", {"value": "a"})
        health, alive, ready = door.get("/health"), door.get("/livez"), door.get("/readyz")

    assert (refused.status, refused.code) == (503, "STORAGE_FAILED")
    assert (health.status, health.json["status"]) == (503, "fail")
    for answer in (alive, ready):
        assert answer.status == 503
        assert answer.json["status"] == "fail"
        assert "orders-0" in answer.json["message"]


def test_a_loop_that_stood_still_is_a_reason_to_start_again(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        assert door.get("/livez").status == 200
        clock.advance(11)

        stalled = door.get("/livez")

        assert (stalled.status, stalled.json["message"]) == (503, "the event loop was blocked")


def test_the_version_says_what_runs_on_what(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, build=Build("1.2.3", "abcdef", "2026-01-01")) as door:
        assert door.get("/version").json == {
            "version": "1.2.3",
            "git_commit": "abcdef",
            "build_time": "2026-01-01",
            "python_version": platform.python_version(),
        }


def test_the_stats_count_topics_messages_and_bytes(door: OpenDoor) -> None:
    for name in ("b", "a"):
        door.post("/topics", {"name": name, "partitions": 2})
    door.post("/topics/a/messages", {"messages": [{"value": "one"}, {"value": "two"}, {"value": "three"}]})

    stats = door.get("/stats").json

    assert (stats["node_id"], stats["topics"], stats["topic_list"]) == (0, 2, ["a", "b"])
    assert re.fullmatch(r"[\d.]+(ms|s)", stats["uptime"])
    size = stats["total_size_bytes"]
    assert size > 3 * 34
    assert stats["topic_stats"] == {
        "a": {"name": "a", "partitions": 2, "total_messages": 3, "total_size_bytes": size},
        "b": {"name": "b", "partitions": 2, "total_messages": 0, "total_size_bytes": 0},
    }


def test_metrics_are_text_in_the_format_that_was_asked_for(tmp_path: Path) -> None:
    def metrics(openmetrics: bool) -> tuple[bytes, str]:
        return b"up 1\n", "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"

    with OpenDoor(tmp_path, metrics=metrics) as door:
        plain = door.get("/metrics")
        open_metrics = door.get("/metrics", Accept="application/openmetrics-text; version=1.0.0, text/plain;q=0.5")

    assert (plain.body, plain.headers["content-type"]) == (b"up 1\n", "text/plain; version=0.0.4")
    assert open_metrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0"


def test_a_broker_without_metrics_has_an_empty_page(door: OpenDoor) -> None:
    answer = door.get("/metrics")

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_full_disk_degrades_it_and_the_check_names_the_topic() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    with OpenDoor(Path("/data"), disk=disk) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        disk.fail_next("pwrite", ENOSPC, path_suffix="orders/0/log/00000000000000000000.log")

        refused = door.post("/topics/orders/messages", {"value": "a"})
        health, alive, ready = door.get("/health"), door.get("/livez"), door.get("/readyz?verbose=true")
        taken = door.post("/topics/orders/messages", {"value": "a"})
        again = door.get("/health")

    assert (refused.status, refused.code) == (507, "STORAGE_FULL")
    assert (health.status, health.json["status"]) == (200, "degraded")
    assert (alive.status, ready.status) == (200, 200)
    check = ready.json["checks"]["storage"]
    assert check["status"] == "warn"
    assert "writes to orders-0 are refused (No space left on device)" in check["message"]
    assert taken.status == 200
    assert again.json["status"] == "ok"


def test_a_damaged_topic_degrades_it_and_answers_with_the_cure(tmp_path: Path) -> None:
    with OpenDoor(tmp_path) as door:
        for name in ("orders", "payments"):
            door.post("/topics", {"name": name, "partitions": 1})
    (tmp_path / "topics/orders/topic.json").write_text("{}")

    with OpenDoor(tmp_path) as door:
        health, alive, ready = door.get("/health"), door.get("/livez"), door.get("/readyz?verbose=true")
        refused = door.post("/topics/orders/messages", {"value": "a"})
        taken = door.post("/topics/payments/messages", {"value": "a"})

    assert (health.status, health.json["status"]) == (200, "degraded")
    assert (alive.status, ready.status) == (200, 200)
    assert "not served: orders" in ready.json["checks"]["storage"]["message"]
    assert (refused.status, refused.code) == (503, "STORAGE_FAILED")
    assert "topic.json" in refused.json["error"]
    assert taken.status == 200


def test_the_first_page_leads_to_the_others(door: OpenDoor) -> None:
    for path in ("/", "/v1", "/v1/"):
        page = door.get(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for link in ("/docs", "/openapi.json", "/health", "/metrics"):
            assert f'href="{link}"'.encode() in page.body
            assert door.get(link).status == 200
