"""What a node says of its cluster, made from histories of the metadata log."""

from collections.abc import Mapping
from typing import Any

import pytest

from goqueue.clock import MS, SECOND
from goqueue.cluster import reports
from goqueue.cluster.records import BrokerChanged, BrokerStatus, Recovered, TopicAdded, TopicRemoved
from goqueue.cluster.reports import Sight
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import NotFound, TopicNotFound
from goqueue.service.cluster import PartitionCounts
from goqueue.wire.reports import NodeHealth
from tests.cluster.history import CLUSTER_ID, History, formed, partition, with_topic

WALL_NS, NOW_NS = 1_000 * SECOND, 100 * SECOND
HEALTH = NodeHealth("ok", 1, "1", 5 * SECOND, {}, 10, 20, {"orders": "damaged"})


def sight(heard: Mapping[int, int | None] | None = None, **changes: Any) -> Sight:
    """What node 1 knows; with `heard` it is the controller."""
    known: dict[str, Any] = {
        "node": 1,
        "kind": "etcd",
        "endpoints": ("h1:2379", "h2:2379"),
        "is_available": True,
        "wall_ns": WALL_NS,
        "monotonic_ns": NOW_NS,
        "updated_at_ns": 7,
        "controller_since_ns": NOW_NS - 4 * SECOND,
        "timing": ClusterTiming(),
        "last_heard_ns": None if heard is None else heard.get,
    }
    return Sight(**known | changes)


def statuses(history: History, seen: Sight) -> dict[int, str]:
    return {node.id: node.status for node in reports.nodes(history.metadata, seen)}


def counts_of(history: History) -> PartitionCounts:
    return reports.count_partitions(history.metadata)


def test_the_state_is_that_of_the_metadata_and_the_log() -> None:
    history = with_topic()

    state = reports.state(history.metadata, sight())

    assert (state.cluster_id, state.controller_id, state.controller_epoch) == (CLUSTER_ID, 1, 1)
    assert state.version == state.metadata.applied_index == len(history.entries)
    assert (state.metadata.kind, state.metadata.endpoints) == ("etcd", ["h1:2379", "h2:2379"])
    assert [(node.id, node.is_controller) for node in state.nodes] == [(1, True), (2, False), (3, False)]
    assert (state.nodes[1].client_address, state.nodes[1].peer_address) == ("host-2:7000", "host-2:7001")
    assert state.updated_at_ns == 7


def test_a_node_is_shown_as_it_is_registered() -> None:
    history = formed()
    history.register(1)
    fenced = history.register(2, online=False, rack="r2")
    leaving = history.register(3)
    history.append(BrokerChanged(3, leaving, BrokerStatus.STOPPING, is_leaving=True))

    nodes = reports.nodes(history.metadata, sight())

    assert [(node.id, node.status, node.is_leaving) for node in nodes] == [
        (1, "online", False),
        (2, "fenced", False),
        (3, "stopping", True),
    ]
    assert (nodes[1].rack, nodes[1].broker_epoch) == ("r2", fenced)


def test_only_the_controller_suspects_a_node_that_it_has_not_heard_for_two_heartbeats() -> None:
    history = with_topic()
    limit_ns = 2 * ClusterTiming().heartbeat_ns
    heard = {2: NOW_NS - limit_ns + MS, 3: NOW_NS - limit_ns}

    assert statuses(history, sight(heard)) == {1: "online", 2: "online", 3: "suspect"}
    assert statuses(history, sight()) == {1: "online", 2: "online", 3: "online"}


def test_a_node_that_a_new_controller_has_not_heard_yet_is_not_suspect() -> None:
    assert statuses(with_topic(), sight({2: None})) == {1: "online", 2: "online", 3: "online"}


def test_a_node_is_seen_when_the_controller_heard_it_by_the_wall_clock() -> None:
    history = with_topic()

    of_controller = reports.health(history.metadata, sight({2: NOW_NS - SECOND}), counts_of(history))
    of_another = reports.health(history.metadata, sight(node=2), counts_of(history))

    assert [node.last_seen_ns for node in of_controller.nodes] == [WALL_NS, WALL_NS - SECOND, None]
    assert [node.last_seen_ns for node in of_another.nodes] == [None, WALL_NS, None]


def test_a_cluster_is_ok_while_every_node_is_online_and_every_replica_in_sync() -> None:
    history = with_topic()

    health = reports.health(history.metadata, sight(), counts_of(history))

    assert (health.status, health.node_count, health.healthy, health.unhealthy) == ("ok", 3, 3, 0)
    assert (health.partition_count, health.offline_partitions, health.under_replicated_partitions) == (1, 0, 0)


@pytest.mark.parametrize(
    ("changes", "counts", "status"),
    [
        ({}, (0, 0, 0), "online"),
        ({"isr": (1, 2)}, (0, 1, 0), "under_replicated"),
        ({"isr": (1,), "elr": (2,)}, (0, 1, 1), "under_min_isr"),
        ({"leader": None, "isr": ()}, (1, 1, 1), "offline"),
        ({"isr": (1, 2), "adding": (3,)}, (0, 0, 0), "online"),
    ],
)
def test_a_partition_is_counted_and_named_by_the_worst_that_it_has(
    changes: dict[str, Any], counts: tuple[int, int, int], status: str
) -> None:
    history = with_topic(**changes)

    counted = counts_of(history)

    assert (counted.offline, counted.under_replicated, counted.under_min_isr) == counts
    assert [placed.status for placed in reports.partitions(history.metadata)] == [status]


def test_a_partition_without_a_leader_fails_the_cluster_and_a_missing_replica_degrades_it() -> None:
    offline, degraded = with_topic(leader=None, isr=()), with_topic(isr=(1, 2))

    assert reports.health(offline.metadata, sight(), counts_of(offline)).status == "fail"
    assert reports.health(degraded.metadata, sight(), counts_of(degraded)).status == "degraded"


def test_a_cluster_without_controller_has_none_in_its_answers() -> None:
    history = with_topic()
    history.append(Recovered(1, 5), node=2)

    state = reports.state(history.metadata, sight())
    health = reports.health(history.metadata, sight(), counts_of(history))

    assert state.controller_id == health.controller_id == -1
    assert health.status == "fail"  # all nodes are fenced
    assert reports.gauges(history.metadata, sight(), counts_of(history)).controller_age_ns is None


def test_partitions_are_shown_by_topic_and_number() -> None:
    history = with_topic()
    history.append(
        TopicAdded("t0", "invoices", 0, 2), partition(0, topic_id="t0"), partition(1, topic_id="t0", replicas=(2, 1, 3))
    )

    placed = reports.partitions(history.metadata)

    assert [(one.topic, one.partition) for one in placed] == [("invoices", 0), ("invoices", 1), ("orders", 0)]
    assert (placed[1].replicas, placed[1].leader, placed[1].leader_epoch) == ((2, 1, 3), 1, 1)
    assert [one.topic for one in reports.partitions(history.metadata, "orders")] == ["orders"]
    with pytest.raises(TopicNotFound):
        reports.partitions(history.metadata, "nothing")


def test_a_node_has_its_partitions_and_only_itself_knows_its_disk() -> None:
    history = with_topic()

    own = reports.node_details(history.metadata, sight(), 1, lambda: HEALTH)
    other = reports.node_details(history.metadata, sight(), 2, lambda: HEALTH)

    assert (own.leaders, own.followers, own.quarantined) == (["orders-0"], [], ["orders-0"])
    assert (own.disk_free_bytes, own.disk_total_bytes, own.uptime_ns) == (10, 20, 5 * SECOND)
    assert (other.leaders, other.followers, other.quarantined) == ([], ["orders-0"], None)
    assert (other.disk_free_bytes, other.disk_total_bytes, other.uptime_ns) == (None, None, None)
    with pytest.raises(NotFound, match="node 9"):
        reports.node_details(history.metadata, sight(), 9, lambda: HEALTH)


def test_the_feature_level_that_can_be_set_is_the_lowest_of_what_the_nodes_know() -> None:
    history = formed()
    assert reports.feature_level(history.metadata).level_max == 1
    history.register(1, feature_level_max=3)
    history.register(2, feature_level_max=2)

    level = reports.feature_level(history.metadata)

    assert (level.level, level.level_max) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "wanted", "error"),
    [
        ({}, 1, ""),
        ({}, None, ""),
        ({"leader": 2}, 1, "node 1 was not chosen"),
        ({"leader": 2, "isr": (2, 3)}, 1, "node 1 is not in sync"),
        ({"leader": None, "isr": ()}, 9, "node 9 has no replica of it"),
        ({"leader": None, "isr": ()}, None, "no replica can lead"),
    ],
)
def test_an_election_says_why_the_wanted_replica_does_not_lead(
    changes: dict[str, Any], wanted: int | None, error: str
) -> None:
    history = with_topic(**changes)

    result = reports.election_result(history.metadata, ("t1", 0), "orders", before=1, wanted=wanted, is_unclean=False)

    assert (result.error, result.changed) == (error, False)


def test_an_election_has_changed_a_partition_if_its_leader_epoch_is_another() -> None:
    result = reports.election_result(with_topic().metadata, ("t1", 0), "orders", before=0, wanted=1, is_unclean=False)

    assert (result.leader, result.changed, result.error) == (1, True, "")


@pytest.mark.parametrize(("is_unclean", "error"), [(False, ""), (True, "node 3 is not in sync")])
def test_an_unclean_election_may_end_with_a_clean_leader_but_not_with_another_unclean_one(
    is_unclean: bool, error: str
) -> None:
    history = with_topic(leader=None, isr=(), elr=(2,))
    history.append(partition(leader=2, isr=(2,), leader_epoch=2, partition_epoch=1, is_unclean=is_unclean))

    result = reports.election_result(history.metadata, ("t1", 0), "orders", before=1, wanted=3, is_unclean=True)

    assert (result.leader, result.changed, result.error) == (2, True, error)


def test_an_election_of_a_partition_that_is_deleted_meanwhile_is_no_error_of_the_others() -> None:
    history = with_topic()
    history.append(TopicRemoved("t1", 0))

    result = reports.election_result(history.metadata, ("t1", 0), "orders", before=1, wanted=1, is_unclean=False)

    assert (result.leader, result.changed, result.error) == (-1, False, "the partition does not exist any more")


def test_metrics_count_leaders_followers_and_partitions_without_their_preferred_leader() -> None:
    history = with_topic(replicas=(2, 1, 3))

    gauges = reports.gauges(history.metadata, sight({2: NOW_NS, 3: NOW_NS - SECOND}), counts_of(history))

    assert (gauges.leaders, gauges.followers) == ({1: 1, 2: 0, 3: 0}, {1: 0, 2: 1, 3: 1})
    assert (gauges.misplaced, gauges.partitions) == (1, 1)
    assert (gauges.nodes, gauges.nodes_healthy) == ({1: "online", 2: "online", 3: "suspect"}, 2)
    assert (gauges.is_controller, gauges.controller_epoch, gauges.controller_age_ns) == (True, 1, 4 * SECOND)
    assert gauges.applied_index == len(history.entries)


def test_a_node_is_controller_only_while_it_acts_as_it() -> None:
    history = with_topic()

    assert not reports.gauges(history.metadata, sight(), counts_of(history)).is_controller
    assert not reports.gauges(history.metadata, sight({}, node=2), counts_of(history)).is_controller
