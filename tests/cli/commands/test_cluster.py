"""`goqueue cluster`, end to end: on a broker that is alone, and on one that pretends to have peers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from goqueue.wire.cluster_reports import (
    ClusterHealth,
    ElectionResult,
    NodeDetails,
    NodeLiveness,
    PartitionPlacement,
    RemovalProgress,
)
from tests.cli.command_line import fail, run, succeed


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        with Client(broker.address) as client:
            client.create_topic("orders", partitions=2)
        yield broker


class PretendCluster:
    """Node 0 of two, of which node 1 is leaving."""

    def __init__(self) -> None:
        self.removed: list[int] = []
        self.elected: list[tuple[object, ...]] = []

    def health(self) -> ClusterHealth:
        nodes = [NodeLiveness(0, "online", 1_700_000_000 * 10**9), NodeLiveness(1, "fenced", None)]
        return ClusterHealth("degraded", 2, 1, 1, -1, 7, 9, 0, 3, 1, False, nodes)

    def node(self, node_id: int) -> NodeDetails:
        addresses = ("h:1", "h:2", "", "")
        return NodeDetails(
            node_id, *addresses, "r1", "stopping", False, 5, True, [], ["orders-0"], "1", None, None, None, None
        )

    def partitions(self, topic: str | None = None) -> list[PartitionPlacement]:
        return [PartitionPlacement("orders", 0, -1, 4, 9, (1, 0), (), (0,), (), (), "offline")] if topic else []

    def remove_node(self, node_id: int) -> RemovalProgress:
        self.removed.append(node_id)
        return RemovalProgress(node_id, max(0, 2 - len(self.removed)))

    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: object = None,
        is_unclean: bool = False,
        replica: int | None = None,
    ) -> list[ElectionResult]:
        self.elected.append((topic, partitions, is_unclean, replica))
        return [ElectionResult("orders", 0, -1, False, "node 1 is fenced")]


@pytest.fixture
def pretended(broker: EmbeddedBroker) -> PretendCluster:
    cluster: Any = PretendCluster()
    broker._in_loop(lambda inner: setattr(inner, "cluster", cluster))
    return cluster  # type: ignore[no-any-return]


def words(*arguments: str, server: str) -> list[list[str]]:
    return [line.split() for line in succeed("cluster", *arguments, server=server).splitlines()]


def test_info_shows_the_node_and_its_addresses(broker: EmbeddedBroker) -> None:
    lines = words("info", server=broker.address)
    data = json.loads(succeed("cluster", "info", "-o", "json", server=broker.address))

    assert ["controller", "0,", "epoch", "0"] in lines
    assert ["metadata", "file,", "available,", "index", "0"] in lines
    (node,) = data["nodes"]
    assert (node["client_address"], f"http://{node['http_address']}") == (broker.address, broker.http_address)
    assert (data["cluster_id"], data["feature_level"], data["metadata"]["kind"]) == ("", 0, "file")
    assert yaml.safe_load(succeed("cluster", "info", "-o", "yaml", server=broker.address)).keys() == data.keys()


def test_health_ends_with_an_error_only_if_the_cluster_fails(broker: EmbeddedBroker) -> None:
    assert ["status", "ok"] in words("health", server=broker.address)

    broker.resign("orders", 1)

    failed = run("cluster", "health", "-o", "json", server=broker.address)
    assert (failed.code, failed.complaint) == (1, "")
    assert (json.loads(failed.output)["status"], json.loads(failed.output)["offline_partitions"]) == ("fail", 1)


def test_health_shows_who_is_not_well(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    lines = words("health", server=broker.address)

    assert ["status", "degraded"] in lines
    assert ["nodes", "1", "of", "2", "online"] in lines
    assert ["controller", "none,", "epoch", "7"] in lines
    assert ["metadata", "not", "available"] in lines
    assert ["0", "online", "2023-11-14T22:13:20Z"] in lines
    assert ["1", "fenced", "-"] in lines


def test_nodes_lists_them_or_shows_one(broker: EmbeddedBroker) -> None:
    assert any(row[:3] == ["0", "online", "yes"] for row in words("nodes", server=broker.address))
    data = json.loads(succeed("cluster", "nodes", "0", "-o", "json", server=broker.address))

    assert {"orders-0", "orders-1"} <= set(data["leaders"])
    assert data["disk"]["free_bytes"] > 0
    assert [one["id"] for one in json.loads(succeed("cluster", "nodes", "-o", "json", server=broker.address))] == [0]
    assert "node 7" in fail("cluster", "nodes", "7", server=broker.address)[1]


def test_what_another_node_does_not_know_is_unknown(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    lines = words("nodes", "1", server=broker.address)

    assert ["status", "stopping,", "leaving"] in lines
    assert ["disk", "unknown"] in lines
    assert ["follows", "1", "partition"] in lines
    assert ["quarantined", "unknown"] in lines


def test_partitions_shows_who_has_them(broker: EmbeddedBroker) -> None:
    data = json.loads(succeed("cluster", "partitions", "orders", "-o", "json", server=broker.address))

    assert [(one["partition"], one["leader"], one["isr"], one["status"]) for one in data] == [
        (0, 0, [0], "online"),
        (1, 0, [0], "online"),
    ]
    assert ["orders-1", "0", "0", "0", "0", "-", "online"] in words("partitions", server=broker.address)
    assert "topic not found" in fail("cluster", "partitions", "nothing", server=broker.address)[1]


def test_a_partition_without_a_leader_has_none(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    assert ["orders-0", "none", "4", "1,0", "-", "0", "offline"] in words("partitions", "orders", server=broker.address)
    assert succeed("cluster", "partitions", server=broker.address) == "there are no topics\n"


def test_the_metadata_are_printed_as_they_are(broker: EmbeddedBroker) -> None:
    text = succeed("cluster", "metadata", "dump", server=broker.address)

    with Client(broker.address) as client:
        assert text == client.cluster.metadata() + "\n"


def test_an_election_on_a_broker_alone_has_nothing_to_do(broker: EmbeddedBroker) -> None:
    assert succeed("cluster", "elect", server=broker.address) == "every partition has its preferred leader\n"
    assert ["orders-1", "0", "no", "-"] in words("elect", "orders", "-p", "1", server=broker.address)


def test_an_election_that_does_not_do_what_it_should_is_an_error(
    broker: EmbeddedBroker, pretended: PretendCluster
) -> None:
    outcome = run("cluster", "elect", "orders", "--unclean", "--replica", "1", "--yes", server=broker.address)

    assert (outcome.code, outcome.complaint) == (1, "")
    assert b"node 1 is fenced" in outcome.output
    assert pretended.elected == [("orders", None, True, 1)]


def test_an_unclean_election_is_confirmed(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    assert "pass --yes" in fail("cluster", "elect", "--unclean", server=broker.address)[1]
    assert "names the replica" in fail("cluster", "elect", "--replica", "1", server=broker.address)[1]
    assert "name the topic" in fail("cluster", "elect", "-p", "1", server=broker.address)[1]
    assert pretended.elected == []


def test_a_node_is_removed_step_by_step(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    assert "pass --yes" in fail("cluster", "remove", "1", server=broker.address)[1]

    first = succeed("cluster", "remove", "1", "--yes", server=broker.address)
    second = json.loads(succeed("cluster", "remove", "1", "--yes", "-o", "json", server=broker.address))

    assert first == "node 1 is leaving; 1 partition still to move\n"
    assert second == {"node": 1, "partitions_left": 0, "removed": True}


def test_a_removal_can_be_waited_for(broker: EmbeddedBroker, pretended: PretendCluster) -> None:
    assert succeed("cluster", "remove", "1", "--yes", "--wait", server=broker.address) == "node 1 is removed\n"
    assert pretended.removed == [1, 1]


def test_the_only_node_cannot_be_removed(broker: EmbeddedBroker) -> None:
    assert "alone and cannot be removed" in fail("cluster", "remove", "0", "--yes", server=broker.address)[1]
