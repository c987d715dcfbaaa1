"""Three nodes in one process, with everything that is simulated elsewhere: files, threads, sockets and clocks."""

import asyncio
from pathlib import Path

from goqueue.clock import SystemClock
from goqueue.cluster.controller import ClusterDefaults
from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.link import Greeting, PeerLinks, PeerServer
from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.messages import CreateTopic, TopicDecided
from goqueue.cluster.node import Node, NodeIdentity
from goqueue.cluster.node_time import SystemTime
from goqueue.cluster.records import BrokerAddresses
from goqueue.cluster.timing import ClusterTiming
from goqueue.runtime.entropy import SeededEntropy
from goqueue.server.workers import ThreadWorkers
from goqueue.storage.file import OsDisk
from tests.cluster.test_link import until


class Server:
    """What a server does with a node."""

    def __init__(self, path: Path, number: int, starts: int = 1) -> None:
        self.path = path
        self.number = number
        self.incarnation = f"{number}.{starts}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        entropy, time = SeededEntropy(10 * self.number + len(self.incarnation)), SystemTime(SystemClock())
        self.workers = ThreadWorkers(loop, threads_max=1)
        self.log = await FileMetadataLog.open(OsDisk(), str(self.path / "log"))
        directory = str(self.path / f"node-{self.number}")
        copy = LocalCopy.open(OsDisk(), directory, node=self.number, entropy=entropy, workers=self.workers)
        calls = PeerServer(self._greeting, self._answer)
        self.server = calls
        host, port = await calls.start("127.0.0.1", 0)
        identity = NodeIdentity(
            node=self.number,
            incarnation=self.incarnation,
            addresses=BrokerAddresses(client="127.0.0.1:1", peer=f"{host}:{port}"),
            version="1",
        )
        self.copy = copy
        self.links = PeerLinks(self._greeting, lost=self._lost)
        self.node = Node(
            identity,
            self.log,
            self.links,
            copy,
            time=time,
            entropy=entropy,
            timing=ClusterTiming(),
            defaults=ClusterDefaults(),
        )
        await self.node.start()

    def _greeting(self) -> Greeting:
        return Greeting(cluster=self.copy.cluster_id, node=self.number, incarnation=self.incarnation)

    async def _answer(self, peer: object, request: bytes) -> bytes:
        return await self.node.answer(peer, request)  # type: ignore[arg-type]

    def _lost(self, node: int, was_refused: bool) -> None:
        self.node.peer_lost(node, was_refused)

    async def kill(self) -> None:
        """End everything without a word, as far as one can from inside."""
        self.node.abandon()
        await self._close()

    async def stop(self) -> None:
        await self.node.stop(controlled=True)
        await self._close()

    async def _close(self) -> None:
        await self.server.stop()
        await self.links.close()
        await self.log.close()
        await self.workers.idle(grace_s=5)
        self.workers.close()


def is_whole(servers: list[Server]) -> bool:
    state = max((server.node.metadata for server in servers), key=lambda metadata: metadata.position.index)
    return all(
        server.node.metadata.position == state.position
        and (broker := state.broker(server.number)) is not None
        and broker.is_online
        and broker.registration.incarnation == server.incarnation
        for server in servers
    ) and any(server.node.controller is not None for server in servers)


async def run(path: Path) -> None:
    loop = asyncio.get_running_loop()
    servers = [Server(path, number) for number in (1, 2, 3)]
    await asyncio.gather(*(server.start() for server in servers))
    await until(lambda: is_whole(servers))
    asked = CreateTopic("r1", "orders", 3, 3)
    for server in servers:
        assert isinstance(await server.node.decide(asked), TopicDecided)

    (killed,) = [server for server in servers if server.node.controller is not None]
    left = [server for server in servers if server is not killed]
    began = loop.time()
    await killed.kill()
    await until(lambda: is_whole(left))
    took_s = loop.time() - began

    assert took_s < 2
    again = Server(path, killed.number, starts=2)
    await again.start()
    servers = [*left, again]
    await until(lambda: is_whole(servers))
    await left[0].node.decide(CreateTopic("r2", "payments", 3, 3))
    await until(lambda: len({server.node.metadata.encode() for server in servers}) == 1)
    assert len(again.node.metadata.topics) == 2
    for server in servers:
        await server.stop()


def test_three_nodes_form_a_cluster_and_replace_their_controller(tmp_path: Path) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await run(tmp_path)

    asyncio.run(bounded())
