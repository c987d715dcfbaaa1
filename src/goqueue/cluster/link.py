"""Connections between the nodes of a cluster: requests with answers, over TCP or TLS.

    connect ──> Greeting{cluster, node, incarnation, wanted} ──> Greeting of the other side, or a refusal and the end
            ──> CALL frames, many at a time ──> answers, in any order

Frames are those of the native protocol (`wire/frames.py`): bounded, and with a checksum. What a call says is opaque
here; `messages.py` knows it. A node speaks only with nodes of its own cluster: who cannot name the cluster in its first
frame, within seconds and within a few hundred bytes, is told so and cut off. With mutual TLS a stranger does not get
even that far. What may be wrong with a node that is of the cluster (an old incarnation, a fenced broker) is decided by
those who answer calls.

A connection that breaks is made again at once, once: a node whose process has died refuses, and whoever watches the
link learns of the death in milliseconds. A node that is only slow, or cut off, does not refuse: that takes the silence
of heartbeats.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from goqueue.errors import AvailabilityError, GoQueueError, RequestTimeout
from goqueue.wire import frames
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader

PROTOCOL: Final = 1
GREETING_BYTES_MAX: Final = 2_048
GREETING_S: Final = 5.0
CONNECT_S: Final = 1.0
CONNECTIONS_MAX: Final = 1_024
"""Of strangers and nodes together; a cluster has two for each pair of nodes."""
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""A peer that reads nothing is cut off when so much waits for it."""
_GREETING: Final = 1
CALL: Final = 2
FETCH: Final = 3
"""Fetches of followers: what they bring must not hold up a heartbeat, so they have a connection of their own."""
_SMALL_BYTES: Final = 64 * 1024


class Greeting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The first frame of each side."""

    protocol: int = PROTOCOL
    cluster: str
    node: int
    incarnation: str
    wanted: int = -1  # the node that the caller wants to speak with; -1 for any
    refusal: str = ""  # of the side that was called: why it ends the connection


class CallingNode(NamedTuple):
    """Who calls."""

    node: int
    incarnation: str


Greeter = Callable[[], Greeting]
"""What a node says of itself, asked for each connection: a node learns its cluster only after it has begun to listen.
Until then the cluster is empty, and the node speaks with no other.
"""

Answerer = Callable[[CallingNode, bytes], Awaitable[bytes]]
"""Answers a call. What it raises as `GoQueueError` reaches the caller as `PeerRefused`."""


class PeerUnreachable(AvailabilityError):
    """The node cannot be reached, or the connection to it broke: whether the request was received is unknown."""

    code = "BROKER_NOT_AVAILABLE"

    def __init__(self, node: int, reason: str, *, was_refused: bool = False) -> None:
        super().__init__(f"node {node} cannot be reached: {reason}")
        self.node = node
        self.reason = reason
        self.was_refused = was_refused  # nothing listens there: the process has ended


class PeerRefused(GoQueueError):
    """The node has refused the connection or the request, for a reason of its own."""

    code = "INVALID_REQUEST"

    def __init__(self, node: int, reason: str) -> None:
        super().__init__(f"node {node}: {reason}")
        self.node = node
        self.reason = reason


class Peers(Protocol):
    """The other nodes, as a node sees them; the simulator has a network of its own."""

    def set_address(self, node: int, host: str, port: int) -> None:
        """Where a node listens from now on."""

    def forget(self, node: int) -> None:
        """The node is no member any more."""

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        """The answer of the node. Raises `PeerUnreachable`, `PeerRefused` or `RequestTimeout`."""

    async def close(self) -> None:
        """End all connections."""


class _Connection(asyncio.BufferedProtocol):
    """What both sides have in common: frames in, frames out."""

    def __init__(self) -> None:
        self._reader = FrameReader(frame_bytes_max=GREETING_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                self.frame_received(frame)
                if self._transport is None:
                    return
        except (
            BadFrame,
            msgspec.MsgspecError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:  # nothing after it can be trusted
            self.refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed.set_result(None)

    def frame_received(self, frame: Frame) -> None:
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """End the connection: the peer does not follow the protocol."""
        self.close()

    def greeted(self) -> None:
        """The peer is a node of the cluster: frames may be large from now on."""
        self._reader.frame_bytes_max = frames.FRAME_BYTES_MAX

    def send(self, kind: int, correlation: int, payload: bytes, *, flags: int = 0) -> None:
        """Send a frame, if the connection still exists."""
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            transport.abort()
            return
        head = frames.pack_checked(kind, correlation, b"", payload, flags=flags)
        transport.write(head + payload if len(payload) < _SMALL_BYTES else head)
        if len(payload) >= _SMALL_BYTES:
            transport.write(payload)

    def close(self) -> None:
        """End the connection after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


# --- the side that is called ---------------------------------------------------------------------


class PeerServer:
    """Listens for the other nodes, and has their calls answered."""

    def __init__(
        self,
        greeting: Greeter,
        answer: Answerer,
        *,
        answer_fetch: Answerer | None = None,
        greeting_s: float = GREETING_S,
    ) -> None:
        self.greeting = greeting
        self.greeting_s = greeting_s  # how long a stranger may say nothing
        self.answerers = {CALL: answer} | ({FETCH: answer_fetch} if answer_fetch else {})
        self.connections: set[_Called] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen. With a TLS context that asks for certificates, only nodes that have one get a word in."""
        loop = asyncio.get_running_loop()
        handshake_s = self.greeting_s if tls else None
        self._server = await loop.create_server(
            lambda: _Called(self), host, port, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def stop(self) -> None:
        """End all connections; calls that are being answered are cancelled."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


class _Called(_Connection):
    """A connection from another node."""

    def __init__(self, server: PeerServer) -> None:
        super().__init__()
        self._server = server
        self._peer: CallingNode | None = None
        self._deadline = asyncio.get_running_loop().call_later(server.greeting_s, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        if len(self._server.connections) > CONNECTIONS_MAX:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._server.connections.discard(self)
        super().connection_lost(exc)

    def frame_received(self, frame: Frame) -> None:
        if self._peer is None:
            self._greet(frame)
        elif (answerer := self._server.answerers.get(frame.kind)) is not None:
            task = asyncio.get_running_loop().create_task(
                self._answer(answerer, self._peer, frame.kind, frame.correlation, bytes(frame.payload))
            )
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)
        else:
            self.refuse(f"frames of kind {frame.kind} are not known")

    def _greet(self, frame: Frame) -> None:
        if frame.kind != _GREETING:
            self.refuse("the first frame has to be a greeting")
            return
        greeting, own = _decode_greeting(frame.payload), self._server.greeting()
        if greeting.protocol != PROTOCOL:
            self.refuse(f"protocol {greeting.protocol} is not spoken here, only {PROTOCOL}: update GoQueue")
        elif not own.cluster:
            self.refuse(f"node {own.node} has not joined its cluster yet")
        elif greeting.cluster != own.cluster:
            self.refuse(f"this is a node of the cluster {own.cluster}, not of {greeting.cluster}")
        elif greeting.wanted not in (-1, own.node):
            self.refuse(f"this is node {own.node}, not {greeting.wanted}: one of two addresses is wrong")
        else:
            self._deadline.cancel()
            self._peer = CallingNode(greeting.node, greeting.incarnation)
            self.greeted()
            self.send(_GREETING, 0, _encode(own), flags=FrameFlags.RESPONSE)

    def refuse(self, reason: str) -> None:
        """Tell why, and end the connection."""
        refusal = msgspec.structs.replace(self._server.greeting(), refusal=reason)
        self.send(_GREETING, 0, _encode(refusal), flags=FrameFlags.RESPONSE | FrameFlags.ERROR)
        self.close()

    async def _answer(self, answerer: Answerer, peer: CallingNode, kind: int, correlation: int, request: bytes) -> None:
        try:
            answer, flags = await answerer(peer, request), FrameFlags.RESPONSE
        except GoQueueError as error:
            answer, flags = str(error).encode(), FrameFlags.RESPONSE | FrameFlags.ERROR
        self.send(kind, correlation, answer, flags=flags)


# --- the side that calls -------------------------------------------------------------------------


class PeerLinks:
    """The other nodes of a cluster, over one connection each, which is made when it is needed."""

    def __init__(
        self,
        greeting: Greeter,
        *,
        tls: ssl.SSLContext | None = None,
        lost: Callable[[int, bool], None] = lambda node, was_refused: None,
        kind: int = CALL,
    ) -> None:
        self._greeting = greeting
        self._tls = tls
        self._lost = lost
        self._kind = kind
        self._links: dict[int, _Link] = {}

    def set_address(self, node: int, host: str, port: int) -> None:
        """Where a node listens from now on."""
        link = self._links.get(node)
        if link is None or link.address != (host, port):
            self.forget(node)
            self._links[node] = _Link(node, (host, port), self._greeting, self._tls, self._lost)

    def forget(self, node: int) -> None:
        """The node is no member any more."""
        link = self._links.pop(node, None)
        if link is not None:
            link.stop()

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        """The answer of the node. Raises `PeerUnreachable`, `PeerRefused` or `RequestTimeout`."""
        link = self._links.get(node)
        if link is None:
            raise PeerUnreachable(node, "its address is not known")
        try:
            async with asyncio.timeout(timeout_s):
                return await link.call(request, self._kind)
        except TimeoutError:
            raise RequestTimeout(f"a request to node {node}", timeout_s) from None

    async def close(self) -> None:
        """End all connections."""
        for node in list(self._links):
            self.forget(node)


class LinksWithFetches:
    """The other nodes over two connections each: one for all calls, and one of which only the addresses are set here,
    because fetches go over it.
    """

    def __init__(self, calls: PeerLinks, fetches: PeerLinks) -> None:
        self._calls = calls
        self._fetches = fetches

    def set_address(self, node: int, host: str, port: int) -> None:
        """Where a node listens from now on."""
        for links in (self._calls, self._fetches):
            links.set_address(node, host, port)

    def forget(self, node: int) -> None:
        """The node is no member any more."""
        for links in (self._calls, self._fetches):
            links.forget(node)

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        """The answer of the node. Raises `PeerUnreachable`, `PeerRefused` or `RequestTimeout`."""
        return await self._calls.call(node, request, timeout_s=timeout_s)

    async def close(self) -> None:
        """End all connections."""
        await self._calls.close()
        await self._fetches.close()


class _Link:
    """The connection to one node. `lost(node, was_refused)` is called when it broke and could not be made again."""

    def __init__(
        self,
        node: int,
        address: tuple[str, int],
        greeting: Greeter,
        tls: ssl.SSLContext | None,
        lost: Callable[[int, bool], None],
    ) -> None:
        self.node = node
        self.address = address
        self._greeting = greeting
        self._tls = tls
        self._lost = lost
        self._connection: _Calling | None = None
        self._connecting: asyncio.Task[_Calling] | None = None
        self._again: asyncio.Task[None] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the connection, and make no other."""
        self._is_stopped = True
        for task in (self._connecting, self._again):
            if task is not None:
                task.cancel()
        if self._connection is not None:
            self._connection.abort()

    async def call(self, request: bytes, kind: int) -> bytes:
        connection = self._connection
        if connection is None:
            connection = await self._connected()
        return await connection.call(request, kind)

    async def _connected(self) -> "_Calling":
        """The connection; callers that come while it is being made wait for the same one."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        return await asyncio.shield(self._connecting)

    def _connect_ended(self, task: "asyncio.Task[_Calling]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody did, it is no news

    async def _connect(self) -> "_Calling":
        if self._is_stopped:
            raise PeerUnreachable(self.node, "it is no member any more")
        greeting = msgspec.structs.replace(self._greeting(), wanted=self.node)
        if not greeting.cluster:
            raise PeerUnreachable(self.node, "this node has not joined its cluster yet")
        loop = asyncio.get_running_loop()
        host, port = self.address
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(lambda: _Calling(self.node), host, port, ssl=self._tls)
        except ConnectionRefusedError:
            raise PeerUnreachable(self.node, f"nothing listens at {host}:{port}", was_refused=True) from None
        except TimeoutError:
            raise PeerUnreachable(self.node, f"{host}:{port} did not answer in {CONNECT_S} s") from None
        except (OSError, ssl.SSLError) as error:
            raise PeerUnreachable(self.node, f"{host}:{port}: {error}") from None
        try:
            await connection.greet(greeting)
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        connection.closed.add_done_callback(lambda _: self._broke(connection))
        return connection

    def _broke(self, connection: "_Calling") -> None:
        if self._connection is connection:
            self._connection = None
        if not self._is_stopped and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Once: a process that has died refuses, and whoever watches should know at once."""
        try:
            await self._connected()
        except PeerUnreachable as error:
            self._lost(self.node, error.was_refused)
        except PeerRefused:
            self._lost(self.node, False)
        finally:
            self._again = None


class _Calling(_Connection):
    """A connection to another node."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self._node = node
        self._greeted: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._correlation = 0

    async def greet(self, greeting: Greeting) -> None:
        """Name the cluster. Raises `PeerUnreachable` or `PeerRefused`."""
        self._greeted = asyncio.get_running_loop().create_future()
        self.send(_GREETING, 0, _encode(greeting))
        try:
            async with asyncio.timeout(GREETING_S):
                await self._greeted
        except TimeoutError:
            raise PeerUnreachable(self._node, "it does not greet") from None

    async def call(self, request: bytes, kind: int = CALL) -> bytes:
        """The answer. Raises `PeerUnreachable` or `PeerRefused`."""
        if self._transport is None:
            raise PeerUnreachable(self._node, "the connection broke")
        correlation = self._correlation = (self._correlation + 1) & 0xFFFF_FFFF
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = answered
        self.send(kind, correlation, request)
        try:
            return await answered
        finally:
            self._waiting.pop(correlation, None)

    def frame_received(self, frame: Frame) -> None:
        if frame.kind == _GREETING:
            greeting = _decode_greeting(frame.payload)
            refused = PeerRefused(self._node, greeting.refusal) if greeting.refusal else None
            if refused is None:
                self.greeted()
            self._end_greeting(refused)
            if refused is not None:
                self._fail_all(refused)
            return
        answered = self._waiting.get(frame.correlation)
        if answered is None or answered.done():  # its caller has given up
            return
        if frame.flags & FrameFlags.ERROR:
            answered.set_exception(PeerRefused(self._node, bytes(frame.payload).decode(errors="replace")))
        else:
            answered.set_result(bytes(frame.payload))

    def connection_lost(self, exc: Exception | None) -> None:
        broke = PeerUnreachable(self._node, "the connection broke")
        self._end_greeting(broke)
        self._fail_all(broke)
        super().connection_lost(exc)

    def _end_greeting(self, error: Exception | None) -> None:
        if self._greeted is None or self._greeted.done():
            return
        if error is None:
            self._greeted.set_result(None)
        else:
            self._greeted.set_exception(error)

    def _fail_all(self, error: Exception) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)


_encode = msgspec.msgpack.Encoder().encode
_decode_greeting = msgspec.msgpack.Decoder(Greeting).decode
