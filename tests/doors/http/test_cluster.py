"""The cluster over HTTP: a broker that is alone answers with itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.cluster_of_one import ListeningAddresses
from goqueue.names import VERSION
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock
from goqueue.wire.cluster_reports import ElectionResult, NodeDetails, NodeLiveness
from tests.doors.http.doors import OpenDoor

NOW = "2024-01-01T00:00:00.000000000Z"
ALONE = {
    "id": 0,
    "client_address": "h:7000",
    "peer_address": "",
    "http_address": "h:8080",
    "grpc_address": "",
    "rack": "",
    "status": "online",
    "is_controller": True,
    "broker_epoch": 0,
}


@pytest.fixture
def door(tmp_path: Path, clock: ManualClock) -> Iterator[OpenDoor]:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.broker.alone.addresses = ListeningAddresses("h:7000", "h:8080")
        yield door


def test_the_state_has_the_node_and_the_metadata_log(door: OpenDoor) -> None:
    assert door.get("/cluster/state").json == {
        "version": 0,
        "controller_id": 0,
        "controller_epoch": 0,
        "cluster_id": "",
        "nodes": [ALONE],
        "metadata": {"kind": "file", "applied_index": 0, "available": True, "endpoints": []},
        "updated_at": NOW,
    }


def test_the_health_counts_nodes_and_partitions(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 2})
    healthy = door.get("/cluster/health").json
    door.inside(lambda: door.broker.partitions.resign("orders", 1))

    failing = door.get("/cluster/health")

    assert healthy == {
        "status": "ok",
        "node_count": 1,
        "healthy": 1,
        "unhealthy": 0,
        "controller_id": 0,
        "controller_epoch": 0,
        "offline_partitions": 0,
        "under_replicated_partitions": 0,
        "metadata_available": True,
        "nodes": [{"id": 0, "status": "online", "last_seen": NOW}],
    }
    assert (failing.status, failing.json["status"], failing.json["offline_partitions"]) == (200, "fail", 1)


def test_nodes_are_listed_and_shown(door: OpenDoor, clock: ManualClock) -> None:
    door.post("/topics", {"name": "orders", "partitions": 2})
    clock.advance(2)

    shown = door.get("/v1/cluster/nodes/0").json

    assert door.get("/cluster/nodes").json == {"nodes": [ALONE], "count": 1}
    disk = shown.pop("disk")
    assert 0 < disk["free_bytes"] <= disk["total_bytes"]
    assert shown == ALONE | {
        "leaders": ["orders-0", "orders-1"],
        "followers": [],
        "quarantined": [],
        "version": VERSION,
        "uptime": "2s",
    }


def test_a_node_that_is_not_there_is_not_found(door: OpenDoor) -> None:
    unknown, no_number = door.get("/cluster/nodes/7"), door.get("/cluster/nodes/seven")

    assert (unknown.status, unknown.code) == (404, "NOT_FOUND")
    assert "node 7" in unknown.json["error"]
    assert (no_number.status, no_number.code) == (400, "INVALID_REQUEST")


def test_an_election_on_a_single_node_changes_nothing(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 2})
    named = {"partitions": [{"topic": "orders", "partition": 1}]}

    assert door.request("POST", "/admin/elections").json == {"results": []}
    assert door.post("/admin/elections", {"partitions": []}).json == {"results": []}
    assert door.post("/admin/elections", named).json == {
        "results": [{"topic": "orders", "partition": 1, "leader": 0, "changed": False}]
    }


@pytest.mark.parametrize(
    ("body", "status", "code", "path"),
    [
        ({"type": "unclean", "confirm": True}, 400, "INVALID_REQUEST", "replica"),
        ({"type": "unclean", "replica": 0}, 400, "INVALID_REQUEST", "confirm"),
        ({"type": "unclean", "replica": 0, "confirm": False}, 400, "INVALID_REQUEST", "confirm"),
        ({"replica": 0}, 400, "INVALID_REQUEST", "replica"),
        ({"type": "quick"}, 400, "INVALID_REQUEST", "type"),
        ({"partition": []}, 400, "INVALID_REQUEST", "partition"),
        ({"partitions": [{"topic": "none", "partition": 0}]}, 404, "TOPIC_NOT_FOUND", None),
        ({"partitions": [{"topic": "orders", "partition": 1}]}, 404, "PARTITION_NOT_FOUND", None),
        ({"partitions": [{"topic": "__groups", "partition": 0}]}, 403, "FORBIDDEN", None),
        ({"type": "unclean", "replica": 5, "confirm": True}, 404, "NOT_FOUND", None),
    ],
)
def test_an_election_that_cannot_be_is_refused(
    door: OpenDoor, body: dict[str, Any], status: int, code: str, path: str | None
) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})

    refused = door.post("/admin/elections", body)

    assert (refused.status, refused.code) == (status, code)
    if path:
        assert refused.json["details"]["path"] == path


class PretendCluster:
    """What the door needs of a node that is not alone."""

    def __init__(self) -> None:
        self.elected: list[tuple[object, ...]] = []

    def node(self, node_id: int) -> NodeDetails:
        return NodeDetails(
            id=node_id,
            client_address="h:1",
            peer_address="h:2",
            http_address="",
            grpc_address="",
            rack="r1",
            status="suspect",
            is_controller=False,
            broker_epoch=9,
            is_leaving=True,
            leaders=[],
            followers=["orders-0"],
            version="1",
            quarantined=None,
            uptime_ns=None,
            disk_total_bytes=None,
            disk_free_bytes=None,
        )

    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: object = None,
        is_unclean: bool = False,
        replica: int | None = None,
    ) -> Pending[list[ElectionResult]]:
        self.elected.append((topic, partitions, is_unclean, replica))
        return Pending.of([ElectionResult("orders", 0, 3, True, ""), ElectionResult("orders", 1, -1, False, "none")])


def test_what_only_another_node_knows_is_absent(door: OpenDoor) -> None:
    door.broker.cluster = PretendCluster()  # type: ignore[assignment]

    shown = door.get("/cluster/nodes/2").json

    assert shown.keys() == ALONE.keys() | {"leaders", "followers", "version"}
    assert (shown["status"], shown["followers"], shown["broker_epoch"]) == ("suspect", ["orders-0"], 9)


def test_an_unclean_election_names_the_replica(door: OpenDoor) -> None:
    cluster = PretendCluster()
    door.broker.cluster = cluster  # type: ignore[assignment]

    results = door.post("/admin/elections", {"type": "unclean", "replica": 3, "confirm": True}).json["results"]

    assert cluster.elected == [(None, None, True, 3)]
    assert results == [
        {"topic": "orders", "partition": 0, "leader": 3, "changed": True},
        {"topic": "orders", "partition": 1, "leader": -1, "changed": False, "error": "none"},
    ]


def test_a_node_that_is_not_heard_was_never_seen(door: OpenDoor) -> None:
    health = door.inside(door.broker.alone.health)
    health.nodes = [NodeLiveness(0, "fenced", None)]
    door.broker.cluster = type("Unheard", (), {"health": staticmethod(lambda: health)})()

    assert door.get("/cluster/health").json["nodes"] == [{"id": 0, "status": "fenced", "last_seen": None}]
