"""A native door on loopback, the broker behind it in memory, and peers that speak frames, or whatever they like."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import TypeVar

import msgspec
import uvloop

from goqueue.broker.broker import Broker
from goqueue.broker.local_service import LocalService
from goqueue.doors.native.config import NativeConfig
from goqueue.doors.native.connection import Connection
from goqueue.doors.native.door import NativeDoor
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.jobs import Job
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire import codes, frames, verbs
from goqueue.wire.frames import Frame, FrameFlags, FrameReader
from goqueue.wire.verbs import Verb

M = TypeVar("M", bound=msgspec.Struct)
WAIT_S = 20


class LoopWorkers:
    """Runs jobs in the loop, one at a time; not while they are held."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: list[tuple[Job, Callable[[Exception | None], None]]] = []

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        self._waiting.append((job, done))
        asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        while self._waiting and not self.held:
            job, done = self._waiting.pop(0)
            job.run()
            done(None)

    def release(self) -> None:
        self.held = False
        self.run()


class Peer:
    """One connection, from the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader()
        self.arrived: list[Frame] = []
        self.correlation = 100

    def send(
        self, verb: int, meta: msgspec.Struct | bytes = b"", payload: bytes = b"", *, correlation: int | None = None
    ) -> int:
        """Write a request, and wait for nothing."""
        self.correlation += 1
        number = self.correlation if correlation is None else correlation
        self.writer.write(request(verb, meta, payload, correlation=number))
        return number

    async def receive(self) -> Frame:
        """The next frame; `EOFError` when the door has hung up."""
        while not self.arrived:
            data = await asyncio.wait_for(self.reader.read(65_536), WAIT_S)
            if not data:
                raise EOFError
            while data:
                buffer = self.frames.get_buffer()
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                data = data[size:]
                self.arrived += self.frames.received(size)
        return self.arrived.pop(0)

    async def answer_to(self, correlation: int) -> Frame:
        """The next frame must be this answer; an error is raised."""
        frame = await self.receive()
        assert frame.correlation == correlation
        if frame.flags & FrameFlags.ERROR:
            raise error_in(frame)
        return frame

    async def call(self, verb: Verb, meta: msgspec.Struct | bytes = b"", payload: bytes = b"") -> Frame:
        return await self.answer_to(self.send(verb, meta, payload))

    async def ask(self, verb: Verb, meta: msgspec.Struct, answer: type[M]) -> M:
        return msgspec.msgpack.decode((await self.call(verb, meta)).meta, type=answer)

    async def publish(self, *values: bytes, topic: str = "orders", partition: int = 0) -> verbs.PublishAnswer:
        frame = await self.call(Verb.PUBLISH, verbs.PublishRequest(topic, partition), bytes(kernel.encode(values)))
        return msgspec.msgpack.decode(frame.meta, type=verbs.PublishAnswer)

    async def hung_up(self) -> GoQueueError | None:
        """The door has hung up; what it said before that."""
        said: GoQueueError | None = None
        try:
            while True:
                frame = await self.receive()
                if frame.flags & FrameFlags.ERROR:
                    said = error_in(frame)
        except (EOFError, ConnectionError):
            return said

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


class LookedAtClock(ManualClock):
    """It counts how often somebody looks at it."""

    looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return super().monotonic_ns()


class House:
    """The door, and what lies behind it."""

    def __init__(self, config: NativeConfig | None = None, busy_poll_ns: int = 0) -> None:
        self.clock = LookedAtClock()
        self.workers = LoopWorkers()
        self.disk = MemoryDisk()
        self.broker = Broker.open(self.disk, "/data", clock=self.clock, workers=self.workers)
        self.door = NativeDoor(
            LocalService.of(self.broker), clock=self.clock, config=config, node_id=0, busy_poll_ns=busy_poll_ns
        )
        self.address = ("", 0)
        self.peers: list[Peer] = []

    async def peer(self, *, hello: bool = True, small_buffers: bool = False) -> Peer:
        raw = socket.socket()
        raw.setblocking(False)
        if small_buffers:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        try:
            await asyncio.get_running_loop().sock_connect(raw, self.address)
        except OSError:
            raw.close()
            raise
        peer = Peer(*await asyncio.open_connection(sock=raw, limit=4_096))
        self.peers.append(peer)
        if hello:
            await peer.call(Verb.HELLO, verbs.HelloRequest())
        return peer

    async def create(self, topic: str = "orders", *, partitions: int = 1, **settings: object) -> None:
        peer = await self.peer()
        await peer.call(Verb.CREATE_TOPIC, verbs.CreateTopicRequest(topic, partitions, settings))
        await peer.close()

    def connection_of(self, peer: Peer) -> Connection:
        host, port = peer.writer.get_extra_info("sockname")
        return next(one for one in self.door.connections if one.peer == f"{host}:{port}")

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.broker.tick()
        self.door.sweep()


def at_a_door(
    test: Callable[[House], Awaitable[None]], config: NativeConfig | None = None, busy_poll_ns: int = 0
) -> None:
    """Run the test at a door of its own."""

    async def main() -> None:
        house = House(config, busy_poll_ns)
        house.address = await house.door.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(test(house), 60)
        finally:
            await house.door.stop(0)
            for peer in house.peers:
                await peer.close()
            house.broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@coroutine
def turn_of_the_loop() -> Generator[None, None, None]:
    """Let the event loop go round once."""
    yield


def request(verb: int, meta: msgspec.Struct | bytes = b"", payload: bytes = b"", *, correlation: int = 1) -> bytes:
    raw = meta if isinstance(meta, bytes) else verbs.encode(meta)
    return frames.pack_checked(verb, correlation, raw, payload) + payload


def error_in(frame: Frame) -> GoQueueError:
    told = msgspec.msgpack.decode(frame.meta, type=verbs.ErrorMeta)
    return codes.restore(told.code, told.text, told.facts)


def values_in(frame: Frame) -> list[bytes]:
    return [message.value for message in kernel.decode(frame.payload, TopicPartition("orders", 0), StoredMessage)]


async def until(fact: Callable[[], bool]) -> None:
    """Let the loop go round until it is so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while not fact():
        assert loop.time() < deadline
        turned = loop.create_future()
        loop.call_later(0.001, turned.set_result, None)
        await turned
