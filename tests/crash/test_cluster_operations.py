"""What an operator does with real nodes: move the metadata, recover it, remove a node. The data stay."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from goqueue import Client
from goqueue.cluster.etcd_client import TXN, EtcdClient
from goqueue.cluster.etcd_messages import DeleteRangeRequest, RequestOp, TxnRequest
from goqueue.runtime.entropy import SystemEntropy
from tests.cli.command_line import goqueue, run
from tests.cluster.etcd_cluster import EtcdCluster
from tests.crash.cluster_processes import NodeProcess, wait_until

MESSAGES = [b"%d" % number for number in range(30)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.running(tmp_path_factory.mktemp("etcd"), 1, is_durable=False) as cluster:
        yield cluster


@contextmanager
def running(nodes: Sequence[NodeProcess], metadata: str, *, are_all: bool = True) -> Iterator[Client]:
    """The nodes with this metadata log, all online; they are stopped in order at the end."""
    for node in nodes:
        node.metadata = metadata
        node.native = node.peer = "127.0.0.1:0"
        node.begin()
    try:
        for node in nodes:
            node.wait_ready()
        with Client(",".join(node.native for node in nodes), timeout=30) as client:
            wait_until(lambda: client.cluster.health().healthy >= len(nodes), "all nodes are online")
            if are_all:
                wait_until(lambda: not client.cluster.health().offline_partitions, "all partitions have a leader")
            yield client
        for node in reversed(nodes):
            assert node.stop() == 0, node.last_words()
    finally:
        for node in nodes:
            node.kill()


def new_nodes(directory: Path, count: int) -> list[NodeProcess]:
    return [NodeProcess(node, directory, "off", env={}) for node in range(1, count + 1)]


def cluster_command(*arguments: str) -> tuple[int, str]:
    """Exit code, and everything that was said."""
    done = run("cluster", *arguments)
    return done.code, done.output.decode() + done.complaint


def move(old: str, new: str) -> str:
    code, said = cluster_command("move-metadata", "--from", old, "--to", new)
    assert code == 0, said
    return said


def recover(metadata: str, nodes: Sequence[NodeProcess]) -> tuple[int, str]:
    directories = [argument for node in nodes for argument in ("--data", str(node.data))]
    return cluster_command("recover", "--metadata", metadata, "--yes", "-o", "json", *directories)


def fill(client: Client, nodes: Sequence[NodeProcess]) -> None:
    client.create_topic("orders", partitions=3)
    for node in nodes:  # one that has not applied the creation yet says that there is no such topic
        with node.client() as asked:
            wait_until(lambda asked=asked: "orders" in asked.topics(), f"node {node.node} knows the topic")
    client.publish_many("orders", [(value, value) for value in MESSAGES])


def check_filled(client: Client) -> None:
    assert sorted(message.value for message in client.read("orders")) == sorted(MESSAGES)


def wipe(etcd: EtcdCluster, prefix: str) -> None:
    """Lose all keys below the prefix."""

    async def delete() -> None:
        client = EtcdClient(etcd.options(), entropy=SystemEntropy())
        request = DeleteRangeRequest(key=f"/{prefix}/".encode(), range_end=f"/{prefix}0".encode())
        await client.ask(TXN, TxnRequest(success=[RequestOp(delete_range=request)]), timeout_s=5.0, deadline_s=30.0)
        await client.close()

    asyncio.run(delete())


# Moving


def move_one_node(directory: Path, old: str, new: str) -> None:
    (node,) = nodes = new_nodes(directory, 1)
    with running(nodes, old) as client:
        fill(client, nodes)
        client.publish("orders", b"later", delay="1h")
        with client.consumer("orders", group="readers") as consumer:
            taken = consumer.poll(12, "10s")
            consumer.ack(taken)
        positions = read_up_to(client)
        state = client.cluster.state()
    assert taken

    assert f"start the nodes with --metadata {new}" in move(old, new)

    assert f"this metadata log was moved to {new}: start the node with --metadata {new}" in node.refused()
    with running(nodes, new) as client:
        check_filled(client)
        assert len(client.delayed("orders")) == 1
        assert read_up_to(client) == positions
        moved = client.cluster.state()
        assert moved.cluster_id == state.cluster_id
        assert moved.metadata.applied_index > state.metadata.applied_index
        assert moved.controller_epoch > state.controller_epoch
        client.create_topic("payments")
        with client.consumer("orders", group="readers") as consumer:
            rest = 0
            while rest < len(MESSAGES) - len(taken):
                batch = consumer.poll(100, "10s")
                assert batch
                consumer.ack(batch)
                rest += len(batch)
    assert "was moved" in move(old, new)


def read_up_to(client: Client) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in client.group_positions("readers")]


def test_one_node_moves_to_another_directory(tmp_path: Path) -> None:
    move_one_node(tmp_path, f"file:{tmp_path}/old", f"file:{tmp_path}/new")


def test_one_node_moves_to_etcd(tmp_path: Path, etcd: EtcdCluster) -> None:
    move_one_node(tmp_path, f"file:{tmp_path}/old", f"etcd://{etcd.endpoints[0]}/one")


def test_three_nodes_move_to_etcd_and_back(tmp_path: Path, etcd: EtcdCluster) -> None:
    nodes = new_nodes(tmp_path, 3)
    old, there, new = f"file:{tmp_path}/old", f"etcd://{etcd.endpoints[0]}/three", f"file:{tmp_path}/new"
    with running(nodes, old) as client:
        fill(client, nodes)
        code, said = cluster_command("move-metadata", "--from", old, "--to", there)
        assert code == 1
        assert f"something listens where nodes are registered (node 1 at {nodes[0].peer}" in said
        client.create_topic("payments")

    move(old, there)
    with running(nodes, there) as client:
        check_filled(client)
        client.create_topic("refunds")
    move(there, new)

    with running(nodes, new) as client:
        check_filled(client)
        assert {"orders", "payments", "refunds"} <= set(client.topics())


def test_a_move_that_cannot_be_is_refused(tmp_path: Path) -> None:
    old = f"file:{tmp_path}/old"
    for target in (old, f"file:{tmp_path}/x/../old", "off", "nowhere"):
        code, said = cluster_command("move-metadata", "--from", old, "--to", target)
        assert code == 2, said
    code, said = cluster_command("move-metadata", "--from", old, "--to", f"file:{tmp_path}/new")
    assert (code, said) == (1, f"error there is no metadata log in {tmp_path}/old\n")
    assert list(tmp_path.iterdir()) == []


# Recovering


def test_a_log_that_was_emptied_is_rebuilt(tmp_path: Path) -> None:
    first, second, third = nodes = new_nodes(tmp_path, 3)
    metadata = f"file:{tmp_path}/metadata"
    with running(nodes, metadata) as client:
        fill(client, nodes)
        code, said = recover(metadata, nodes)
        assert code == 1
        assert "a node has this data directory open; stop all nodes first" in said
    with running([first, second], metadata, are_all=False) as client:
        client.create_topic("payments", partitions=1)
    shutil.rmtree(tmp_path / "metadata")
    assert "the metadata log went back" in first.refused()

    code, said = recover(metadata, [third])  # the one that knows the least

    assert (code, json.loads(said)["node"]) == (0, 3)
    for node in (first, second):
        assert "the metadata log went back" in node.refused()
    shutil.rmtree(tmp_path / "metadata")
    code, said = recover(metadata, [third, first, second])
    assert code == 0
    done = json.loads(said)
    assert (done["was"], done["generation"]) == ("empty", 1)
    assert done["node"] in (1, 2)
    with running(nodes, metadata) as client:
        check_filled(client)
        assert {"orders", "payments"} <= set(client.topics())
        assert client.cluster.state().controller_epoch > done["epoch_floor"]
        assert min(one.leader_epoch for one in client.cluster.partitions()) > done["epoch_floor"]
        client.create_topic("refunds")
    code, said = recover(metadata, nodes)
    assert code == 1
    assert "nothing has to be recovered" in said


def lose_what_came_later(nodes: Sequence[NodeProcess], metadata: str, log: Path) -> None:
    """Restore an older copy of the metadata log."""
    with running(nodes, metadata) as client:
        fill(client, nodes)
    shutil.copytree(log, log.with_name("backup"))
    with running(nodes, metadata) as client:
        client.create_topic("payments")
    shutil.rmtree(log)
    shutil.copytree(log.with_name("backup"), log)


def test_a_log_that_was_restored_from_an_older_copy_is_rebuilt(tmp_path: Path) -> None:
    nodes = new_nodes(tmp_path, 2)
    metadata = f"file:{tmp_path}/metadata"
    lose_what_came_later(nodes, metadata, tmp_path / "metadata")
    assert "the metadata log went back" in nodes[0].refused()

    code, said = recover(metadata, nodes)

    assert code == 0, said
    assert "ends at entry" in json.loads(said)["was"]
    with running(nodes, metadata) as client:
        check_filled(client)
        assert "payments" in client.topics()


def test_a_log_with_damaged_files_is_rebuilt(tmp_path: Path) -> None:
    nodes = new_nodes(tmp_path, 1)
    metadata = f"file:{tmp_path}/metadata"
    with running(nodes, metadata) as client:
        fill(client, nodes)
    (segment,) = (tmp_path / "metadata").glob("*.entries")
    segment.write_bytes(segment.read_bytes()[:200])
    assert "rebuild the log with `goqueue cluster recover`" in nodes[0].refused()

    code, said = recover(metadata, nodes)

    assert code == 0, said
    with running(nodes, metadata) as client:
        check_filled(client)


def test_a_log_in_an_etcd_that_was_wiped_is_rebuilt(tmp_path: Path, etcd: EtcdCluster) -> None:
    nodes = new_nodes(tmp_path, 2)
    metadata = f"etcd://{etcd.endpoints[0]}/wiped"
    with running(nodes, metadata) as client:
        fill(client, nodes)
    wipe(etcd, "wiped")
    assert "the metadata log went back" in nodes[1].refused()

    code, said = recover(metadata, nodes)

    assert code == 0, said
    with running(nodes, metadata) as client:
        check_filled(client)
        client.create_topic("payments")


def test_a_recovery_says_what_it_will_do_and_asks(tmp_path: Path) -> None:
    nodes = new_nodes(tmp_path, 1)
    metadata = f"file:{tmp_path}/metadata"
    with running(nodes, metadata) as client:
        fill(client, nodes)
    shutil.rmtree(tmp_path / "metadata")
    code, said = cluster_command("recover", "--metadata", metadata, "--data", str(tmp_path))
    assert (code, "pass --yes" in said) == (2, True)
    code, said = cluster_command("recover", "--metadata", metadata, "--data", str(tmp_path), "--yes")
    assert (code, said) == (1, f"error {tmp_path} is not the data directory of a node that was in a cluster\n")
    code, said = cluster_command("recover", "--data", str(nodes[0].data), "--yes")
    assert (code, "say where the metadata log is" in said) == (2, True)

    done = goqueue(
        *("cluster", "recover", "--metadata", metadata, "--data", str(nodes[0].data), "--yes"), env={"COLUMNS": "400"}
    )

    assert done.returncode == 0
    said = done.stdout.decode()
    for words in ("most advanced", f"{metadata}: empty", "with 1 node, 1 topic and 3 partitions", "epochs go on above"):
        assert words in said


# Removing


def test_a_node_without_replicas_is_removed_and_stays_away(tmp_path: Path) -> None:
    first, second, third = nodes = new_nodes(tmp_path, 3)
    metadata = f"file:{tmp_path}/metadata"
    with running([first, second], metadata) as client:
        fill(client, [first, second])
        third.metadata = metadata
        third.start()
        try:
            wait_until(lambda: client.cluster.health().healthy == 3, "node 3 is online")
            code, said = cluster_command("remove", "3", "--yes", "--server", first.native)
            assert (code, said) == (0, "node 3 is removed\n")
            assert third.wait_end() == 6
        finally:
            third.kill()
        assert "node 3 was removed from the cluster with this data directory: start it with an empty" in third.refused()
        assert [node.id for node in client.cluster.nodes()] == [1, 2]
        code, said = cluster_command("remove", "3", "--yes", "--server", second.native)
        assert (code, said) == (1, "error not found: node 3\n")
        check_filled(client)
        shutil.rmtree(third.data)
        third.start()
        try:
            wait_until(lambda: client.cluster.health().healthy == 3, "node 3 is back")
        finally:
            third.kill()
    assert "was removed" not in nodes[0].written()


def test_a_node_with_replicas_leaves_only_when_they_have_moved(tmp_path: Path) -> None:
    nodes = new_nodes(tmp_path, 2)
    metadata = f"file:{tmp_path}/metadata"
    with running(nodes, metadata) as client:
        fill(client, nodes)
        leaving = client.cluster.node(2)
        code, said = cluster_command("remove", "2", "--yes", "--server", nodes[0].native)
        count = len(leaving.leaders)
        assert code == 0
        assert said == f"node 2 is leaving; {count} partition{'s' * (count > 1)} still to move\n"
        assert client.cluster.node(2).is_leaving
        check_filled(client)
        client.create_topic("payments", partitions=4)
        assert {tuple(one.replicas) for one in client.cluster.partitions("payments")} == {(1,)}
