"""The series about the cluster: as they are when they are scraped."""

from typing import Any

from goqueue.clock import SECOND
from goqueue.metrics.cluster import ClusterGauges
from goqueue.metrics.registry import Metrics
from goqueue.service.cluster import NODE_STATES
from tests.metrics.test_registry import value

NAMES = {
    "cluster_nodes_total": 2,
    "cluster_nodes_healthy": 1,
    "cluster_partition_count": 9,
    "cluster_offline_partitions": 1,
    "cluster_under_replicated_partitions": 3,
    "cluster_under_min_isr_partitions": 2,
    "cluster_preferred_leader_imbalance": 4,
    "cluster_controller_age_seconds": 1.5,
    "metadata_controller_epoch": 7,
    "metadata_applied_index": 42,
    "metadata_available": 1,
    'cluster_is_controller{node_id="3"}': 1,
    'cluster_leaders_per_node{node_id="3"}': 5,
    'cluster_leaders_per_node{node_id="4"}': 0,
    'cluster_followers_per_node{node_id="4"}': 6,
    'cluster_node_state{node_id="3",state="online"}': 1,
    'cluster_node_state{node_id="3",state="fenced"}': 0,
    'cluster_node_state{node_id="4",state="online"}': 0,
    'cluster_node_state{node_id="4",state="fenced"}': 1,
}


def gauges(**changes: Any) -> ClusterGauges:
    known = ClusterGauges(
        node_id=3,
        states=NODE_STATES,
        nodes={3: "online", 4: "fenced"},
        nodes_healthy=1,
        leaders={3: 5, 4: 0},
        followers={3: 0, 4: 6},
        partitions=9,
        offline=1,
        under_replicated=3,
        under_min_isr=2,
        misplaced=4,
        is_controller=True,
        controller_age_ns=3 * SECOND // 2,
        controller_epoch=7,
        applied_index=42,
        is_metadata_available=True,
    )
    return known._replace(**changes)


def test_there_is_nothing_before_a_broker_is_watched() -> None:
    assert b"goqueue_cluster" not in Metrics().render(False)[0]


def test_every_series_shows_what_the_node_sees_now() -> None:
    metrics = Metrics()
    seen = [gauges()]
    metrics.cluster.watch(lambda: seen[-1])

    assert {name: value(metrics, name) for name in NAMES} == NAMES

    seen.append(gauges(nodes={3: "online"}, leaders={3: 9}, is_controller=False, is_metadata_available=False))
    assert value(metrics, "cluster_nodes_total") == 1
    assert value(metrics, 'cluster_is_controller{node_id="3"}') == 0
    assert value(metrics, "metadata_available") == 0
    assert b'node_id="4"' not in metrics.render(False)[0].partition(b"cluster_leaders_per_node")[2].splitlines()[1]


def test_a_cluster_without_controller_has_no_age_of_it() -> None:
    metrics = Metrics()
    metrics.cluster.watch(lambda: gauges(controller_age_ns=None))

    assert b"goqueue_cluster_controller_age_seconds" not in metrics.render(False)[0]
