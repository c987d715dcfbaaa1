"""The controller is killed again and again while topics are created; each time another one appends soon, and every
creation that was answered is there, once.

`GOQUEUE_KILLS=50` kills more often, and then the times have to keep what they promise: that is for a machine which does
nothing else.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

import pytest

from tests.cluster.etcd_cluster import EtcdCluster
from tests.crash.cluster_processes import PATIENCE_S, ClusterProcesses, NodeProcess, check_creations, creators

KILLS = int(os.environ.get("GOQUEUE_KILLS", "0"))
TAKEOVER_S = 2.0
TAKEOVER_WITH_ETCD_S = 3.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.running(tmp_path_factory.mktemp("etcd"), 3, is_durable=False) as cluster:
        yield cluster


def kill_controllers(cluster: ClusterProcesses, count: int) -> list[float]:
    """Kill it so often, and restart it each time; how long each cluster was without one, in seconds."""
    took = []
    for _ in range(count):
        controller, epoch = cluster.controller, cluster.witness.metadata.epoch
        killed_s = monotonic()
        controller.kill()
        elected_s, elected = cluster.witness.wait_for_election(epoch)
        assert elected.node != controller.node
        took.append(elected_s - killed_s)
        come_back(cluster, controller)
    return took


def come_back(cluster: ClusterProcesses, killed: NodeProcess) -> None:
    killed.start()
    cluster.witness.wait_online(*cluster.nodes)


def check_times(what: str, took: Sequence[float], promised_s: float) -> None:
    """Print how long it took. That the promise is kept is required only of runs that ask for it."""
    ordered = sorted(took)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    print(f"{what}: p50 {ordered[len(ordered) // 2]:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s of {len(ordered)}")
    assert p99 <= (promised_s if KILLS else PATIENCE_S)


def test_over_files_another_controller_appends_and_no_creation_is_lost_or_doubled(tmp_path: Path) -> None:
    with ClusterProcesses.over_files(tmp_path) as cluster:
        with creators(list(cluster.nodes.values())) as started:
            took = kill_controllers(cluster, KILLS or 3)
        cluster.wait_agreed()

        check_times("the controller killed, over files", took, TAKEOVER_S)
        check_creations(cluster.witness, started)


def test_over_etcd_another_controller_appends_and_no_creation_is_lost_or_doubled(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    with ClusterProcesses.over_etcd(tmp_path, etcd.endpoints, "killed") as cluster:
        with creators(list(cluster.nodes.values())) as started:
            took = kill_controllers(cluster, KILLS or 2)
        cluster.wait_agreed()

        check_times("the controller killed, over etcd", took, TAKEOVER_S)
        check_creations(cluster.witness, started)


def test_the_controller_and_the_leader_of_etcd_are_killed_together(tmp_path: Path, etcd: EtcdCluster) -> None:
    took = []
    with ClusterProcesses.over_etcd(tmp_path, etcd.endpoints, "both") as cluster:
        with creators(list(cluster.nodes.values())) as started:
            for _ in range(KILLS or 1):
                controller, epoch = cluster.controller, cluster.witness.metadata.epoch
                leader = asyncio.run(etcd.leader())
                killed_s = monotonic()
                controller.kill()
                leader.kill()
                elected_s, _ = cluster.witness.wait_for_election(epoch)
                took.append(elected_s - killed_s)
                leader.start()
                etcd.wait_until_healthy()
                come_back(cluster, controller)
        cluster.wait_agreed()

        check_times("the controller and the leader of etcd killed", took, TAKEOVER_WITH_ETCD_S)
        check_creations(cluster.witness, started)


def test_all_nodes_are_killed_at_once_and_go_on_where_they_were(tmp_path: Path) -> None:
    with ClusterProcesses.over_files(tmp_path) as cluster:
        with cluster.nodes[2].client() as client:
            client.create_topic("orders", partitions=3)
            client.publish("orders", "before")
        for process in cluster.nodes.values():
            process.kill()
        epoch = cluster.witness.metadata.epoch
        for process in cluster.nodes.values():
            process.begin()
        for process in cluster.nodes.values():
            process.wait_ready()
        cluster.witness.wait_for_election(epoch)
        cluster.witness.wait_online(*cluster.nodes)
        cluster.wait_agreed()

        with cluster.nodes[1].client() as client:
            client.create_topic("payments")
            assert {"orders", "payments"} <= {placed.topic for placed in client.cluster.partitions()}
