"""One real node on a simulated metadata log, without a network."""

import asyncio
from collections.abc import Sequence
from typing import Any

from goqueue.cluster.controller import ClusterDefaults
from goqueue.cluster.link import PeerUnreachable
from goqueue.cluster.local_copy import DEFAULT_POLICY, LocalCopy, SnapshotPolicy
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.node import Node, NodeIdentity
from goqueue.cluster.records import BrokerAddresses, Record, encode_batch
from goqueue.cluster.timing import ClusterTiming
from goqueue.events import Event
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import MemoryDisk
from goqueue.testing.simulated_metadata_log import SimulatedEngine, SimulatedMetadataLog
from goqueue.testing.simulated_time import SimulatedTime

PATH = "/data/metadata"


class NoPeers:
    """A network on which nobody answers."""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}

    def set_address(self, node: int, host: str, port: int) -> None:
        self.addresses[node] = f"{host}:{port}"

    def forget(self, node: int) -> None:
        self.addresses.pop(node, None)

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        raise PeerUnreachable(node, "there is no network", was_refused=True)

    async def close(self) -> None: ...


class Machine:
    """The disk of a node and its processes, one after the other."""

    def __init__(self, engine: SimulatedEngine, number: int = 1, *, policy: SnapshotPolicy = DEFAULT_POLICY) -> None:
        self.engine = engine
        self.number = number
        self.policy = policy
        self.disk = MemoryDisk()
        self.time = SimulatedTime(asyncio.get_running_loop())
        self.starts = 0
        self.applied: list[Record] = []
        self.events: list[Event] = []
        self.log: SimulatedMetadataLog
        self.copy: LocalCopy
        self.peers: NoPeers
        self.node: Node

    def make(self, **more: Any) -> Node:
        """A new process."""
        self.starts += 1
        entropy = SeededEntropy(100 * self.number + self.starts)
        self.log = self.engine.connect(self.number)
        self.copy = LocalCopy.open(self.disk, PATH, node=self.number, entropy=entropy, policy=self.policy)
        self.peers = NoPeers()
        self.node = Node(
            NodeIdentity(
                node=self.number,
                incarnation=f"{self.number}.{self.starts}",
                addresses=BrokerAddresses(client=f"host-{self.number}:7000", peer=f"host-{self.number}:7001"),
                version="1",
            ),
            self.log,
            self.peers,
            self.copy,
            time=self.time,
            entropy=entropy,
            timing=ClusterTiming(),
            defaults=ClusterDefaults(),
            applied=self.applied.extend,
            observe=self.events.append,
            unproven=lambda: {},
            **more,
        )
        return self.node

    async def start(self, **more: Any) -> Node:
        node = self.make(**more)
        await node.start()
        return node

    async def online(self, **more: Any) -> Node:
        """Start, and wait until the controller has let the broker in."""
        node = await self.start(**more)
        await until(lambda: self.is_online)
        return node

    def kill(self) -> None:
        self.node.abandon()

    @property
    def is_online(self) -> bool:
        broker = self.node.metadata.broker(self.number)
        return (
            broker is not None
            and broker.is_online
            and broker.registration.incarnation == f"{self.number}.{self.starts}"
        )


async def until(holds: Any, within_s: float = 60.0) -> float:
    """Let time pass until this holds; returns how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds():
        assert loop.time() - began < within_s, "it never came true"
        await passed(0.01)
    return loop.time() - began


async def passed(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    loop.call_later(seconds, waiting.set_result, None)
    await waiting


def write(engine: SimulatedEngine, records: Sequence[Record], *, epoch: int = 0, node: int = 1) -> MetadataEntry:
    """Append an entry behind the back of all nodes."""
    after, entropy = engine.tail(), SeededEntropy(engine.tail().index)
    entry = MetadataEntry(after.index + 1, entropy.bytes(16), after.id, epoch, node, encode_batch(records))
    engine.append(entry)
    return entry
