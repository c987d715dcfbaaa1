"""A cluster of three nodes on this machine: creating topics, standing idle, and losing its controller.

Run as `python -m benchmarks.bench_cluster`; data goes to `GOQUEUE_BENCH_DIR`, or to the temporary directory. Takeovers
are measured over each kind of metadata log that can be had here. What it takes to load the metadata of a large cluster
is measured in this process.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness import Result, main
from goqueue.client.client import AsyncClient
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.records import (
    FEATURE_LEVEL,
    BrokerAddresses,
    BrokerChanged,
    BrokerRegistered,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    PartitionChanged,
    Record,
    TopicAdded,
    encode_batch,
)
from tests.cluster.etcd_cluster import EtcdCluster, etcd_program
from tests.crash.cluster_processes import ClusterProcesses, wait_until

# topics, partitions in memory, seconds of idleness, takeovers
SIZES = {"small": (20, 2_000, 1.0, 1), "full": (1_000, 100_000, 20.0, 20)}
NODES: Final = (1, 2, 3)
PARTITIONS: Final = 3
AT_ONCE: Final = 64
"""Requests that one client has open."""
LOG_SHARE: Final = 10
"""One partition of so many was changed after the snapshot."""


def run(size: str) -> list[Result]:
    topics, partitions, idle_s, takeovers = SIZES[size]
    results = _loading(partitions)
    with _directory() as directory, ClusterProcesses.over_files(directory, len(NODES)) as cluster:
        results += _idling(cluster, idle_s, "over files", is_judged=size == "full")
        results += _creating(cluster, topics)
        results += _idling(cluster, idle_s, f"{topics:,} topics", is_judged=False)
    with _directory() as directory, ClusterProcesses.over_files(directory, len(NODES)) as cluster:
        results += _taking_over(cluster, takeovers, "file")
    if etcd_program() is not None:
        with (
            _directory() as directory,
            EtcdCluster.running(directory, 3) as etcd,
            ClusterProcesses.over_etcd(directory / "nodes", etcd.endpoints, "bench", len(NODES)) as cluster,
        ):
            results += _idling(cluster, idle_s, "over etcd", is_judged=size == "full")
            results += _taking_over(cluster, takeovers, "etcd")
            results += _taking_over_with_etcd(cluster, etcd, takeovers)
    return results


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-", dir=os.environ.get("GOQUEUE_BENCH_DIR")) as directory:
        yield Path(directory)


# --- loading -------------------------------------------------------------------------------------


def _loading(partitions: int) -> list[Result]:
    """The state of a cluster from its snapshot, and the entries since then."""
    state, changes = Metadata(), partitions // LOG_SHARE
    for batch in _history(partitions):
        _append(state, batch)
    snapshot = state.encode()
    encoded = [_append(state, batch).encode() for batch in _batched(_changes(state, changes), 1_000)]

    started = time.perf_counter()
    loaded = Metadata.decode(snapshot)
    for raw in encoded:
        loaded.apply(MetadataEntry.decode(raw))
    seconds = time.perf_counter() - started

    assert loaded.encode() == state.encode()
    note = f"snapshot of {len(snapshot) / 1e6:.1f} MB, {changes:,} records after it"
    name = f"{partitions:,} partitions: load from snapshot and log"
    return [Result(name, seconds, "s", "<= 2", seconds <= 2, note)]


def _history(partitions: int) -> Iterator[list[Record]]:
    yield [ClusterCreated("0" * 32, FEATURE_LEVEL, 1)]
    yield [ControllerElected(1, 1, "process-1")]
    for node in NODES:
        addresses = BrokerAddresses(client=f"10.0.0.{node}:7000", peer=f"10.0.0.{node}:7001")
        yield [
            BrokerRegistered(
                node=node,
                incarnation=f"process-{node}",
                directories=(f"{node:032}",),
                addresses=addresses,
                version="1",
                feature_level_max=FEATURE_LEVEL,
                registered_at_ns=1,
            )
        ]
    yield [BrokerChanged(node, 3 + index, BrokerStatus.ONLINE) for index, node in enumerate(NODES)]
    for topic in range(partitions // 10):
        topic_id = f"{topic:032x}"
        yield [
            TopicAdded(topic_id, f"topic-{topic}", 1, 10),
            *(_partition(topic_id, number, leader_epoch=1) for number in range(10)),
        ]


def _partition(topic_id: str, number: int, *, leader_epoch: int) -> PartitionChanged:
    replicas = NODES[number % 3 :] + NODES[: number % 3]
    return PartitionChanged(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        leader=replicas[(leader_epoch - 1) % 3],
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch - 1,
        isr=replicas,
    )


def _changes(state: Metadata, count: int) -> list[Record]:
    keys = list(state.partitions)[:count]
    return [_partition(topic_id, number, leader_epoch=2) for topic_id, number in keys]


def _batched(records: list[Record], size: int) -> Iterator[list[Record]]:
    for first in range(0, len(records), size):
        yield records[first : first + size]


def _append(state: Metadata, records: list[Record]) -> MetadataEntry:
    position, epoch = state.position, min(1, state.position.index)  # that of the only controller
    entry = MetadataEntry(position.index + 1, os.urandom(16), position.id, epoch, 1, encode_batch(records))
    state.apply(entry)
    return entry


# --- real nodes ----------------------------------------------------------------------------------


def _creating(cluster: ClusterProcesses, topics: int) -> list[Result]:
    """Until all of them are answered, and until all nodes have all of them."""
    started = time.perf_counter()
    asyncio.run(_create(cluster.nodes[1].native, topics))
    seconds = time.perf_counter() - started
    cluster.wait_agreed()
    everywhere = time.perf_counter() - started
    assert len(cluster.witness.metadata.partitions) >= PARTITIONS * topics
    name = f"create {topics:,} topics x {PARTITIONS} partitions, replication {len(NODES)}"
    note = f"{topics / seconds:,.0f} topics/s, {AT_ONCE} at a time; after {everywhere:.1f} s all nodes have them"
    return [Result(name, seconds, "s", "<= 5", seconds <= 5, note)]


async def _create(address: str, topics: int) -> None:
    names = iter(range(topics))

    async def create(client: AsyncClient) -> None:
        for number in names:
            await client.create_topic(f"topic-{number}", partitions=PARTITIONS, replication_factor=len(NODES))

    async with AsyncClient(address, timeout="60s") as client:
        await asyncio.gather(*(create(client) for _ in range(AT_ONCE)))


def _idling(cluster: ClusterProcesses, seconds: float, what: str, *, is_judged: bool) -> list[Result]:
    """The processor time of the nodes while nobody asks them for anything."""
    processes = list(cluster.nodes.values())
    used, started = [process.cpu_s() for process in processes], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - started
    shares = [100 * (process.cpu_s() - before) / took for process, before in zip(processes, used, strict=True)]
    controller = shares[processes.index(cluster.controller)]
    mean = sum(shares) / len(shares)
    note = f"controller {controller:.2f} %, highest {max(shares):.2f} %"
    target, met = ("<= 0.7", max(shares) <= 0.7) if is_judged else ("", None)
    return [Result(f"CPU of an idle node, {what}", mean, "%", target, met, note)]


def _taking_over(cluster: ClusterProcesses, count: int, kind: str) -> list[Result]:
    took = []
    for _ in range(count):
        controller, epoch = cluster.controller, cluster.witness.metadata.epoch
        killed_s = time.monotonic()
        controller.kill()
        elected_s, _ = cluster.witness.wait_for_election(epoch)
        took.append(elected_s - killed_s)
        controller.start()
        cluster.witness.wait_online(*cluster.nodes)
    return _takeover(f"kill -9 of the controller until another one appends ({kind})", took, 2.0)


def _taking_over_with_etcd(cluster: ClusterProcesses, etcd: EtcdCluster, count: int) -> list[Result]:
    took = []
    for _ in range(count):
        leader = asyncio.run(etcd.leader())
        controller, epoch = cluster.controller, cluster.witness.metadata.epoch
        killed_s = time.monotonic()
        controller.kill()
        leader.kill()
        elected_s, _ = cluster.witness.wait_for_election(epoch)
        took.append(elected_s - killed_s)
        leader.start()
        etcd.wait_until_healthy()
        controller.start()
        cluster.witness.wait_online(*cluster.nodes)
        wait_until(lambda: all(process.is_running for process in cluster.nodes.values()), "all nodes run")
    return _takeover("the same, and of etcd's leader", took, 3.0)


def _takeover(name: str, took: list[float], promised: float) -> list[Result]:
    took.sort()
    p50, worst = took[len(took) // 2], took[-1]
    return [
        Result(f"{name}, p50", p50, "s", "<= 0.7" if promised < 3 else "", p50 <= 0.7 if promised < 3 else None),
        Result(f"{name}, max of {len(took)}", worst, "s", f"<= {promised:g}", worst <= promised),
    ]


if __name__ == "__main__":
    main(run)
