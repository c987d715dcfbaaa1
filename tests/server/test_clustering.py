"""Servers that are nodes of a cluster: several in one event loop, over a metadata log in files."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue import AsyncClient, TopicExists, TopicNotFound, events
from goqueue.clock import SystemClock
from goqueue.errors import ClusterError, MetadataUnavailable
from goqueue.server.assemble import CannotListen, Server, running
from goqueue.server.config import load
from tests.cluster.certificates import Certificates

BOUND_S = 60


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def bounded(tmp_path: Path) -> None:
        async def within() -> None:
            async with asyncio.timeout(BOUND_S):
                await test(tmp_path)

        asyncio.run(within())

    bounded.__name__ = test.__name__
    return bounded


@asynccontextmanager
async def node(directory: Path, number: int, **settings: object) -> AsyncIterator[Server]:
    """A node of the cluster whose metadata log is in the directory; `metadata="off"` for a broker alone."""
    flags = {
        "data": str(directory / f"node-{number}"),
        "node_id": number,
        "metadata": f"file:{directory / 'metadata'}",
        "native": "127.0.0.1:0",
        "http": "off",
        "cluster.peer": "127.0.0.1:0",
        "housekeeping.busy_poll": "0s",
    }
    config = load(flags=flags | settings)
    async with running(config, clock=SystemClock(), observe=events.ignore) as server:
        yield server


@asynccontextmanager
async def nodes(directory: Path, count: int, **settings: object) -> AsyncIterator[list[Server]]:
    """A cluster in which all nodes are online."""
    async with AsyncExitStack() as opened:
        servers = [await opened.enter_async_context(node(directory, one + 1, **settings)) for one in range(count)]
        for server in servers:
            await until(lambda server=server: online(server) == count)
        yield servers


def online(server: Server) -> int:
    assert server.cluster is not None
    return len(server.cluster.node.metadata.online())


def retention(server: Server) -> object:
    found = server.broker.partitions.find("orders")
    return None if found is None else found.topic.settings.get("retention")


def has_numbers(server: Server) -> bool:
    try:
        server.broker.messages.init_producer()
    except MetadataUnavailable:
        return False
    return True


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for what other nodes bring about."""
    loop = asyncio.get_running_loop()
    while not is_true():
        turn = asyncio.Event()
        loop.call_later(0.005, turn.set)
        await turn.wait()


def client(*servers: Server) -> AsyncClient:
    return AsyncClient(",".join(str(server.native) for server in servers), timeout="20s")


async def values(gq: AsyncClient, topic: str, partitions: int) -> list[bytes]:
    """What is readable; each partition is asked from its leader."""
    found: list[bytes] = []
    for partition in range(partitions):
        found += [message.value async for message in gq.read(topic, partition=partition)]
    return sorted(found)


@run
async def test_three_nodes_form_one_cluster_with_one_controller(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as servers:
        states = []
        for server in servers:
            async with client(server) as gq:
                states.append(await gq.cluster.state())

    assert len({state.cluster_id for state in states}) == 1
    assert {state.controller_id for state in states} == {1}
    assert all([node.id for node in state.nodes] == [1, 2, 3] for state in states)
    assert all(node.client_address == str(servers[node.id - 1].native) for node in states[0].nodes)


@run
async def test_a_topic_is_spread_over_the_nodes_and_clients_find_each_leader(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as servers, client(servers[1]) as gq:
        await gq.create_topic("orders", partitions=6)
        placed = await gq.cluster.partitions("orders")
        for server in servers:
            await until(lambda server=server: server.broker.partitions.find("orders") is not None)

        stored = [await gq.publish("orders", b"%d" % number, partition=number) for number in range(6)]

        assert sorted(one.leader for one in placed) == [1, 1, 2, 2, 3, 3]
        assert [one.partition for one in stored] == list(range(6))
        assert await values(gq, "orders", 6) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@run
async def test_topics_are_altered_and_deleted_on_all_nodes(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as servers, client(servers[1]) as gq:
        await gq.create_topic("orders", partitions=2)
        with pytest.raises(TopicExists):
            await gq.create_topic("orders")

        await gq.alter_topic("orders", retention="1h")
        await until(lambda: retention(servers[0]) is not None)
        await gq.delete_topic("orders")
        await until(lambda: servers[0].broker.partitions.find("orders") is None)

        with pytest.raises(TopicNotFound):
            await gq.describe_topic("orders")
    assert not list((tmp_path / "node-1" / "topics").iterdir())


@run
async def test_the_controller_stops_and_another_node_decides(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        controller = await opened.enter_async_context(AsyncExitStack())
        servers = [await controller.enter_async_context(node(tmp_path, 1))]
        servers += [await opened.enter_async_context(node(tmp_path, number)) for number in (2, 3)]
        await until(lambda: online(servers[2]) == 3)

        await controller.aclose()
        async with client(servers[1]) as gq:
            await gq.create_topic("orders", partitions=2)
            state = await gq.cluster.state()

    assert state.controller_id in (2, 3)
    assert state.controller_epoch == 2


@run
async def test_a_node_comes_back_with_its_messages(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (server,), client(server) as gq:
        await gq.create_topic("orders", partitions=1)
        await gq.publish("orders", b"before")

    async with nodes(tmp_path, 1) as (server,), client(server) as gq:
        await gq.publish("orders", b"later")

        assert await values(gq, "orders", 1) == [b"before", b"later"]
        (placed,) = await gq.cluster.partitions("orders")
        assert placed.leader_epoch > 1


@run
async def test_a_broker_that_was_alone_forms_a_cluster_with_everything_it_has(tmp_path: Path) -> None:
    async with node(tmp_path, 1, metadata="off") as server, client(server) as gq:
        await gq.create_topic("orders", partitions=2, retention="3d")
        for number in range(4):
            await gq.publish("orders", b"%d" % number, partition=number % 2)
        await gq.publish("orders", b"late", partition=0, delay="1h")
        async with gq.consumer("orders", group="billing") as consumer:
            await consumer.ack(await consumer.poll(3))
        described = await gq.describe_topic("orders")
        positions = {(one.partition, one.offset, one.lag) for one in await gq.group_positions("billing")}

    async with nodes(tmp_path, 1) as (server,), client(server) as gq:
        same = await gq.describe_topic("orders")
        assert (same.topic_id, same.settings) == (described.topic_id, described.settings)
        assert await values(gq, "orders", 2) == [b"0", b"1", b"2", b"3"]
        assert {(one.partition, one.offset, one.lag) for one in await gq.group_positions("billing")} == positions
        assert len(await gq.delayed("orders")) == 1


@run
async def test_a_broker_with_topics_of_its_own_cannot_join_another_cluster(tmp_path: Path) -> None:
    async with node(tmp_path, 2, metadata="off") as server, client(server) as gq:
        await gq.create_topic("orders")

    async with nodes(tmp_path, 1):
        with pytest.raises(ClusterError, match="topics of its own"):
            async with node(tmp_path, 2):
                pass

    async with node(tmp_path, 2, metadata="off") as server, client(server) as gq:
        assert (await gq.describe_topic("orders")).name == "orders"


@run
async def test_what_was_deleted_while_a_node_was_away_is_deleted_there(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (first,), client(first) as gq:
        async with node(tmp_path, 2) as second:
            await until(lambda: online(second) == 2)
            await gq.create_topic("orders", partitions=2)
            await until(lambda: second.broker.partitions.find("orders") is not None)
        await gq.delete_topic("orders")

        async with node(tmp_path, 2) as second:
            await until(lambda: online(second) == 2)
            await until(lambda: not list((tmp_path / "node-2" / "topics").iterdir()))
    assert not (tmp_path / "node-2" / "stray").exists()


@run
async def test_producers_of_all_nodes_have_ids_of_their_own(tmp_path: Path) -> None:
    ids = []
    async with nodes(tmp_path, 2) as servers:
        for server in servers:
            await until(lambda server=server: has_numbers(server))
            ids += [server.broker.messages.init_producer().producer_id for _ in range(3)]

    assert len(set(ids)) == 6


@run
async def test_with_certificates_nodes_find_each_other_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    cert, key = certificates.write("node")
    tls = {"cluster.ca_file": str(certificates.ca_path), "cluster.cert_file": str(cert), "cluster.key_file": str(key)}

    async with nodes(tmp_path, 2, **tls) as servers:
        assert all(online(server) == 2 for server in servers)


@run
async def test_a_peer_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (server,):
        assert server.cluster is not None
        with pytest.raises(CannotListen, match=r"cannot listen on .* \(peer\)"):
            async with node(tmp_path, 2, **{"cluster.peer": str(server.cluster.peer)}):
                pass
