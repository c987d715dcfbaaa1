"""A network between simulated nodes: slow, lossy, cut in one direction or both, all from one seed.

It has the semantics of `cluster/link.py` over TCP, without bytes and sockets:

    call      connects first if there is no connection. A request and its answer travel for a while each; either may be
              lost, be late (then it is overtaken by what was sent after it), and a request may arrive twice
    cut       what goes from one node to another is lost, or arrives after the cut if the sender's machine still
              retransmits it then. Nobody is told: callers wait until their timeout
    no listener   a process that has ended refuses connections at once, if its machine is still there; the machine ends
              the connections that the process had. Callers learn that in milliseconds, and reconnect, once, to find
              out: `lost(node, was_refused)`
    no machine    neither refuses nor answers

Requests are answered in the process of the node that is called, and answers wake the process that calls: a process that
is stopped answers nothing, though connections to it can be made (its machine accepts them).
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final, Protocol

from goqueue.cluster.link import CONNECT_S, Answerer, CallingNode, PeerRefused, PeerUnreachable
from goqueue.errors import GoQueueError, RequestTimeout
from goqueue.runtime.entropy import Entropy
from goqueue.testing.simulated_process import SimulatedProcess
from goqueue.testing.simulated_time import SimulatedTime

RETRANSMITTED: Final = 0.5
"""The part of what is sent into a cut that arrives after it."""

Address = tuple[str, int]


@dataclass(slots=True)
class NetworkFaults:
    """What every message suffers by chance; times in seconds are drawn between two bounds."""

    delay_s: tuple[float, float] = (0.000_2, 0.002)
    loss: float = 0.0  # of requests, and of answers
    duplicate: float = 0.0  # of requests
    late: float = 0.0
    late_s: tuple[float, float] = (0.05, 1.0)


class NetworkObserver(Protocol):
    """Is told what nodes say to each other."""

    def requested(self, caller: CallingNode, node: int, request: bytes) -> None:
        """A request arrives."""

    def answered(self, caller: CallingNode, node: int, request: bytes, answer: bytes) -> None:
        """A node answers a request; the answer may still get lost."""


class NobodyListens:
    """A `NetworkObserver` to whom all is the same."""

    def requested(self, caller: CallingNode, node: int, request: bytes) -> None: ...

    def answered(self, caller: CallingNode, node: int, request: bytes, answer: bytes) -> None: ...


class SimulatedNetwork:
    """All machines and what lies between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, entropy: Entropy, observer: NetworkObserver | None = None
    ) -> None:
        self.faults = NetworkFaults()
        self.loop = loop
        self.observer: NetworkObserver = observer or NobodyListens()
        self._entropy = entropy
        self._listeners: dict[Address, _Listener] = {}
        self._dark: dict[str, None] = {}  # hosts without power
        self._cuts: dict[tuple[str, str], None] = {}
        self._retransmitted: list[tuple[str, str, Callable[[], None]]] = []
        self._context = copy_context()  # what is on its way belongs to no process

    def listen(self, address: Address, caller: CallingNode, process: SimulatedProcess, answer: Answerer) -> None:
        """Let a process answer calls to this address, for as long as it lives."""
        assert address not in self._listeners
        listener = self._listeners[address] = _Listener(self, address, caller, process, answer)
        process.at_kill.append(listener.close)

    def connect(
        self,
        host: str,
        caller: CallingNode,
        process: SimulatedProcess,
        time: SimulatedTime,
        lost: Callable[[int, bool], None],
    ) -> "SimulatedPeers":
        """The other nodes, as this process sees them."""
        return SimulatedPeers(self, host, caller, process, time, lost)

    def forget_listener(self, address: Address) -> None:
        del self._listeners[address]

    def listener(self, address: Address) -> "_Listener | None":
        return self._listeners.get(address)

    def cut(self, source: str, target: str) -> None:
        """Let nothing arrive that goes from one host to the other."""
        self._cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        """End the cut. What was sent into it may arrive now."""
        self._cuts.pop((source, target), None)
        waiting, self._retransmitted = self._retransmitted, []
        for message in waiting:
            if message[:2] == (source, target):
                self.later(self._between(self.faults.delay_s), message[2])
            else:
                self._retransmitted.append(message)

    def heal(self) -> None:
        """End all cuts and all chance. What was late is still to come."""
        self.faults.loss = self.faults.duplicate = self.faults.late = 0.0
        for source, target in list(self._cuts):
            self.mend(source, target)

    def switch_off(self, host: str) -> None:
        """The machine has no power: it does not even refuse."""
        self._dark[host] = None

    def switch_on(self, host: str) -> None:
        """The machine is there again; nothing runs on it yet."""
        self._dark.pop(host, None)

    def is_dark(self, host: str) -> bool:
        return host in self._dark

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts or source in self._dark or target in self._dark

    def reset(self, address: Address) -> None:
        """Break all connections to this address, as a firewall does that was restarted."""
        listener = self._listeners.get(address)
        if listener is not None:
            listener.break_all()

    def send(self, source: str, target: str, deliver: Callable[[], None], *, is_request: bool) -> None:
        """Let a message travel."""
        if self._by_chance(self.faults.loss):
            return
        self._travel(source, target, deliver)
        if is_request and self._by_chance(self.faults.duplicate):
            self._travel(source, target, deliver)

    def _travel(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        delay_s = self._between(self.faults.delay_s)
        if self._by_chance(self.faults.late):
            delay_s += self._between(self.faults.late_s)
        self.later(delay_s, lambda: self._arrive(source, target, deliver))

    def _arrive(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if not self.is_cut(source, target):
            deliver()
        elif (source, target) in self._cuts and self._by_chance(RETRANSMITTED):
            self._retransmitted.append((source, target, deliver))

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Do it outside of all processes."""
        self.loop.call_later(delay_s, callback, context=self._context)

    async def round_trip(self, one: str, other: str) -> bool:
        """Whether a packet reaches the other host, and its answer comes back."""
        await asyncio.sleep(self._between(self.faults.delay_s))
        if self.is_cut(one, other):
            return False
        await asyncio.sleep(self._between(self.faults.delay_s))
        return not self.is_cut(other, one)

    def _by_chance(self, probability: float) -> bool:
        return probability > 0 and self._entropy.fraction() < probability

    def _between(self, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * self._entropy.fraction()


class _Listener:
    """A process that answers calls."""

    def __init__(
        self,
        network: SimulatedNetwork,
        address: Address,
        node: CallingNode,
        process: SimulatedProcess,
        answer: Answerer,
    ) -> None:
        self.node = node.node
        self.process = process
        self.connections: dict[_PeerConnection, None] = {}
        self._network = network
        self._address = address
        self._answer = answer

    def close(self) -> None:
        """The process has ended; its machine ends the connections."""
        self._network.forget_listener(self._address)
        self.break_all()

    def break_all(self) -> None:
        host = self._address[0]
        for connection in list(self.connections):
            caller = connection.peers.host
            self._network.send(host, caller, connection.broke, is_request=False)
        self.connections.clear()

    def received(self, connection: "_PeerConnection", request: bytes, answered: "asyncio.Future[bytes]") -> None:
        """A request arrives."""
        if connection not in self.connections:  # of a process before this one, or broken meanwhile
            self._network.send(self._address[0], connection.peers.host, connection.broke, is_request=False)
            return
        self._network.observer.requested(connection.peers.caller, self.node, request)
        self.process.spawn(self._answered(connection, request, answered))

    async def _answered(self, connection: "_PeerConnection", request: bytes, answered: "asyncio.Future[bytes]") -> None:
        answer: bytes | GoQueueError
        try:
            answer = await self._answer(connection.peers.caller, request)
        except GoQueueError as error:
            answer = PeerRefused(self.node, str(error))
        if not self.process.is_alive:
            return
        network, peers = self._network, connection.peers
        if isinstance(answer, bytes):
            network.observer.answered(peers.caller, self.node, request, answer)
        network.send(self._address[0], peers.host, lambda: settle(answered, answer), is_request=False)


class _PeerConnection:
    """A connection from one process to another."""

    def __init__(self, peers: "SimulatedPeers", node: int, listener: _Listener) -> None:
        self.peers = peers
        self.node = node
        self.listener = listener
        self.waiting: dict[asyncio.Future[bytes], None] = {}
        self.is_open = True

    def broke(self) -> None:
        """The other end has ended it."""
        if self.is_open:
            self.close("the connection broke")
            self.peers.broke(self)

    def left(self) -> None:
        """The other end hears that this one has ended it."""
        self.listener.connections.pop(self, None)

    def close(self, reason: str) -> None:
        self.is_open = False
        for answered in list(self.waiting):
            settle(answered, PeerUnreachable(self.node, reason))


class SimulatedPeers:
    """The `Peers` of one process."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: str,
        caller: CallingNode,
        process: SimulatedProcess,
        time: SimulatedTime,
        lost: Callable[[int, bool], None],
    ) -> None:
        self.host = host
        self.caller = caller
        self._network = network
        self._process = process
        self._time = time
        self._lost = lost
        self._addresses: dict[int, Address] = {}
        self._connections: dict[int, _PeerConnection] = {}
        self._is_closed = False
        process.at_kill.append(self._close)

    def set_address(self, node: int, host: str, port: int) -> None:
        """Where a node listens from now on."""
        if self._addresses.get(node) != (host, port):
            self.forget(node)
            self._addresses[node] = (host, port)

    def forget(self, node: int) -> None:
        """The node is no member any more."""
        address = self._addresses.pop(node, None)
        connection = self._connections.pop(node, None)
        if connection is not None and address is not None:
            connection.close("it is no member any more")
            # What was sent before arrives before, so it is still answered.
            self._network.send(self.host, address[0], connection.left, is_request=False)

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        """The answer of the node. Raises `PeerUnreachable`, `PeerRefused` or `RequestTimeout`."""
        try:
            async with asyncio.timeout(self._time.real_s(timeout_s)):
                connection = self._connections.get(node) or await self._connected(node)
                return await self._ask(connection, request)
        except TimeoutError:
            raise RequestTimeout(f"a request to node {node}", timeout_s) from None

    async def close(self) -> None:
        """End all connections."""
        self._close()

    def broke(self, connection: _PeerConnection) -> None:
        """Find out whether the node is still there."""
        if self._connections.get(connection.node) is connection:
            del self._connections[connection.node]
        if not self._is_closed and connection.node in self._addresses:
            self._process.spawn(self._reconnect(connection.node))

    def _close(self) -> None:
        self._is_closed = True
        for node in list(self._addresses):
            self.forget(node)

    async def _ask(self, connection: _PeerConnection, request: bytes) -> bytes:
        answered: asyncio.Future[bytes] = self._network.loop.create_future()
        connection.waiting[answered] = None
        listener = connection.listener
        self._network.send(
            self.host,
            self._addresses[connection.node][0],
            lambda: listener.received(connection, request, answered),
            is_request=True,
        )
        try:
            return await answered
        finally:
            connection.waiting.pop(answered, None)

    async def _connected(self, node: int) -> _PeerConnection:
        address = self._addresses.get(node)
        if address is None:
            raise PeerUnreachable(node, "its address is not known")
        where = f"{address[0]}:{address[1]}"
        if not await self._network.round_trip(self.host, address[0]):
            await asyncio.sleep(self._time.real_s(CONNECT_S))
            raise PeerUnreachable(node, f"{where} did not answer in {CONNECT_S} s")
        listener = self._network.listener(address)
        if listener is None:
            raise PeerUnreachable(node, f"nothing listens at {where}", was_refused=True)
        if listener.node != node:
            raise PeerRefused(node, f"this is node {listener.node}, not {node}: one of two addresses is wrong")
        if self._addresses.get(node) != address:
            raise PeerUnreachable(node, "it is no member any more")
        connection = self._connections.get(node)  # another call may have made one meanwhile
        if connection is None:
            connection = self._connections[node] = _PeerConnection(self, node, listener)
            listener.connections[connection] = None
        return connection

    async def _reconnect(self, node: int) -> None:
        """Once: a process that has died refuses, and whoever watches should know at once."""
        try:
            if node not in self._connections:
                await self._connected(node)
        except PeerUnreachable as error:
            self._lost(node, error.was_refused)
        except PeerRefused:
            self._lost(node, False)


def settle(answered: "asyncio.Future[bytes]", answer: bytes | Exception) -> None:
    """Give the answer to the caller, if it still waits."""
    if answered.done():
        return
    if isinstance(answer, bytes):
        answered.set_result(answer)
    else:
        answered.set_exception(answer)
        answered.exception()  # it is no news if nobody waits any more
