"""A broker that is alone answers as a cluster of one."""

import pytest

from goqueue.broker.cluster_of_one import ListeningAddresses
from goqueue.broker.config import BrokerConfig
from goqueue.broker.local_service import LocalService
from goqueue.errors import Conflict, InvalidRequest, NotFound, PartitionNotFound, TopicNotFound
from goqueue.service.node import Check
from goqueue.service.topics import NO_LEADER
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    return Node(disk, clock, config=BrokerConfig(node_id=7))


def test_it_is_its_own_controller_and_has_no_metadata_log(node: Node, clock: ManualClock) -> None:
    began_ns = clock.wall_ns()
    clock.advance(5)

    state = node.broker.alone.state()

    assert (state.controller_id, state.controller_epoch, state.cluster_id, state.version) == (7, 0, "", 0)
    assert (state.metadata.kind, state.metadata.applied_index, state.metadata.available) == ("file", 0, True)
    assert state.metadata.endpoints == []
    assert state.updated_at_ns == began_ns
    assert [one.id for one in state.nodes] == [7]


def test_it_has_the_addresses_that_its_doors_listen_on(node: Node) -> None:
    node.broker.alone.addresses = ListeningAddresses("h:7000", "h:8080")

    (alone,) = node.broker.alone.nodes()

    assert (alone.client_address, alone.http_address, alone.grpc_address, alone.peer_address) == (
        "h:7000",
        "h:8080",
        "",
        "",
    )
    assert (alone.status, alone.is_controller, alone.broker_epoch) == ("online", True, 0)


def test_it_leads_all_partitions(node: Node, clock: ManualClock) -> None:
    node.create("orders", partitions=2)
    clock.advance(3)

    details = node.broker.alone.node(7)

    assert (details.leaders, details.followers, details.quarantined) == (["orders-0", "orders-1"], [], [])
    assert details.uptime_ns == 3 * 10**9
    assert details.disk_total_bytes == details.disk_free_bytes == 2**40
    placed = node.broker.alone.partitions("orders")[1]
    assert (placed.topic, placed.partition, placed.leader, placed.status) == ("orders", 1, 7, "online")
    assert (placed.replicas, placed.isr, placed.elr) == ((7,), (7,), ())


def test_internal_topics_are_shown_too(node: Node) -> None:
    node.create("orders")
    node.done(node.broker.coordinators.journals("__schemas").open("x"))

    topics = {placed.topic for placed in node.broker.alone.partitions()}

    assert topics == {"orders", "__schemas"}


def test_a_partition_that_was_resigned_is_offline_and_fails_the_cluster(node: Node) -> None:
    node.create("orders", partitions=2)
    assert node.broker.alone.health().status == "ok"

    node.broker.partitions.resign("orders", 1)

    health = node.broker.alone.health()
    assert (health.status, health.partition_count, health.offline_partitions) == ("fail", 2, 1)
    assert (health.healthy, health.unhealthy, health.nodes[0].status) == (1, 0, "online")
    placed = node.broker.alone.partitions("orders")[1]
    assert (placed.leader, placed.status) == (NO_LEADER, "offline")
    assert node.broker.alone.node(7).followers == ["orders-1"]


def test_a_broker_that_stops_says_so(node: Node) -> None:
    node.broker.drain()

    assert node.broker.alone.nodes()[0].status == "stopping"
    assert node.broker.alone.gauges().nodes_healthy == 0


def test_an_election_changes_nothing_because_there_is_nobody_else(node: Node) -> None:
    node.create("orders", partitions=2)
    node.broker.partitions.resign("orders", 1)
    elect = node.broker.alone.elect_leaders

    assert elect() == elect("orders") == []
    led, resigned = elect("orders", partitions=[0, 1])

    assert (led.leader, led.changed, led.error) == (7, False, "")
    assert (resigned.leader, resigned.changed, bool(resigned.error)) == (NO_LEADER, False, True)


def test_an_election_of_what_is_not_there_is_refused(node: Node) -> None:
    node.create("orders")
    elect = node.broker.alone.elect_leaders

    with pytest.raises(TopicNotFound):
        elect("nothing")
    with pytest.raises(PartitionNotFound):
        elect("orders", partitions=[1])
    with pytest.raises(NotFound, match="node 3"):
        elect("orders", partitions=[0], is_unclean=True, replica=3)
    with pytest.raises(InvalidRequest, match="without a topic"):
        elect(partitions=[0])
    with pytest.raises(InvalidRequest, match="unclean"):
        elect("orders", replica=7)


def test_the_only_node_cannot_be_removed(node: Node) -> None:
    with pytest.raises(Conflict, match="node 7 is alone and cannot be removed"):
        node.broker.alone.remove_node(7)
    with pytest.raises(NotFound, match="node 3; node 7 is alone"):
        node.broker.alone.remove_node(3)
    with pytest.raises(NotFound):
        node.broker.alone.node(3)


def test_there_is_no_feature_level_without_a_metadata_log(node: Node) -> None:
    assert node.broker.alone.feature_level().level == 0
    with pytest.raises(Conflict, match="no metadata log"):
        node.broker.alone.set_feature_level(1)


def test_the_dump_shows_topics_and_their_leaders(node: Node) -> None:
    node.create("orders", partitions=2, retention="1h")
    topic_id = node.broker.topics.describe("orders").topic_id

    lines = node.broker.alone.metadata().splitlines()

    assert lines[0] == "no cluster: the node is alone, and has no metadata log"
    assert lines[-3:] == [
        f"topic orders {topic_id} settings {{'retention': '1h'}}",
        "  0: leader 7 epoch 0",
        "  1: leader 7 epoch 0",
    ]


def test_metrics_show_one_node(node: Node, clock: ManualClock) -> None:
    node.create("orders", partitions=3)
    node.broker.partitions.resign("orders", 0)
    clock.advance(2)

    gauges = node.broker.cluster.gauges()

    assert (gauges.nodes, gauges.nodes_healthy, gauges.is_controller) == ({7: "online"}, 1, True)
    assert (gauges.leaders, gauges.partitions, gauges.offline) == ({7: 2}, 3, 1)
    assert (gauges.controller_age_ns, gauges.is_metadata_available) == (2 * 10**9, True)


def test_the_health_of_the_node_has_a_check_of_the_cluster(node: Node) -> None:
    assert node.broker.node.checks()["cluster"] == Check("pass")


def test_the_service_offers_what_the_server_puts_in_its_place(node: Node) -> None:
    assert LocalService.of(node.broker).cluster.nodes().result()[0].id == 7
    with pytest.raises(Conflict):
        LocalService.of(node.broker).cluster.remove_node(7).result()
