"""The native door: frames over TCP.

    bytes ──> FrameReader ──> one handler per frame ──> Service ──> Pending ──> answer frame

`NativeDoor` listens and keeps what all connections share; a `Connection` (connection.py) is one peer; its `Requests`
(requests.py) turn frames into verbs, and its `Pushes` (pushes.py) send records to subscriptions.

Everything is bounded. A connection with too many open requests, or whose peer does not read, is not read from until
that is over: it slows only itself. A length that is claimed costs no memory, a frame that is never finished costs its
connection, and the unfinished frames of all connections together have a limit, too.
"""

import asyncio
from collections.abc import Callable

from goqueue.clock import Clock
from goqueue.doors.native.config import NativeConfig
from goqueue.doors.native.connection import Connection
from goqueue.runtime.adaptive_spin import AdaptiveSpin, yield_processor
from goqueue.service.service import Service

BUSY_NAP_S = 0.005
HANG_UP_NAP_S = 0.001
HANG_UP_GRACE_S = 0.1
"""For what was written to go out, once the door is closed."""


class NativeDoor:
    """Listens, and keeps what all connections share.

    `busy_poll_ns` is how long it polls its sockets for the next small request before it sleeps.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock: Clock,
        config: NativeConfig | None = None,
        node_id: int = 0,
        busy_poll_ns: int = 0,
    ) -> None:
        self.service = service
        self.clock = clock
        self.config = config or NativeConfig()
        self.node_id = node_id
        self.connections: set[Connection] = set()
        self.congested: set[Connection] = set()  # whose peers do not read what they asked for
        self.inbound_bytes = 0
        self._holders: dict[Connection, None] = {}  # of large unfinished frames, in the order in which these began
        self._starved: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._due: list[Callable[[], None]] = []  # pushes
        self._unsent: dict[Connection, None] = {}
        self._is_handling = False
        self._is_turn_scheduled = False
        self.is_stopped = False
        self._spin = AdaptiveSpin(busy_poll_ns)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; where, in case the port was left open."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, loop), host, port, backlog=4_096)
        self._sweep_regularly(loop)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let open requests be answered, then hang up. A peer that does not read its answers is cut
        off in the middle of them.
        """
        if self._server is None:
            return
        self._server.close()
        if self._sweeper:
            self._sweeper.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        await asyncio.sleep(0)  # the loop tells of connections that it accepted just before
        while any(connection.is_busy for connection in self.connections) and loop.time() < deadline:
            await asyncio.sleep(BUSY_NAP_S)
        self.is_stopped = True
        for connection in list(self.connections):
            connection.hang_up(now=connection in self.congested)
        deadline = loop.time() + HANG_UP_GRACE_S
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(HANG_UP_NAP_S)
        for connection in list(self.connections):
            connection.hang_up(now=True)
        await asyncio.sleep(0)

    def read_bytes_max(self) -> int:
        """How much one answer may hold: less when many peers do not read what they asked for."""
        congested = len(self.congested)
        if congested < 8:
            return 16 * 1024 * 1024
        return 1024 * 1024 if congested < 64 else 64 * 1024

    def account(self, connection: "Connection", size: int) -> None:
        """The connection now holds that much of an unfinished frame.

        When all hold too much, only the one whose frame began first goes on; so there is always one that gets finished.
        """
        self.inbound_bytes += size - connection.held_bytes
        connection.held_bytes = size
        if size:
            self._holders[connection] = None
        else:
            self._holders.pop(connection, None)
        first = next(iter(self._holders), None)
        if self.inbound_bytes <= self.config.inbound_bytes_max:
            starved, self._starved = self._starved, set()
            for waiting in starved:
                waiting.starve(False)
            return
        if size and connection is not first:
            self._starved.add(connection)
            connection.starve(True)
        if first in self._starved:
            self._starved.discard(first)
            first.starve(False)

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""
        self.connections.discard(connection)
        self.congested.discard(connection)
        self._starved.discard(connection)
        self.account(connection, 0)

    def handle(self, frames_handler: Callable[[], None]) -> None:
        """Handle frames, then push what came of them, then send all of it: one call of the system per connection."""
        self._is_handling = True
        try:
            frames_handler()
            due, self._due = self._due, []
            for push in due:
                push()
        finally:
            self._is_handling = False
            unsent, self._unsent = self._unsent, {}
            for connection in unsent:
                connection.flush()
            if self._due:
                self._come_back()

    def push_soon(self, push: Callable[[], None]) -> None:
        """Push when the frames at hand are handled, or, if there are none, when the loop comes round."""
        self._due.append(push)
        self._come_back()

    def flush_soon(self, connection: "Connection") -> None:
        """Likewise send what was written to the connection."""
        self._unsent[connection] = None
        self._come_back()

    def _come_back(self) -> None:
        if not self._is_handling and not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._came_back)

    def _came_back(self) -> None:
        self._is_turn_scheduled = False
        self.handle(_nothing)

    def busy_poll(self) -> None:
        """A small request was answered; its client may have waited for that before it sends the next one."""
        if self._spin.start(self.clock.monotonic_ns()):
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._spin.should_spin(self.clock.monotonic_ns()):
            yield_processor()
            asyncio.get_running_loop().call_soon(self._look_again)

    def sweep(self) -> None:
        """Hang up on the peers that let us wait for too long."""
        now_ns = self.clock.monotonic_ns()
        for connection in list(self.connections):
            connection.check_time(now_ns)

    def _sweep_regularly(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep()
        self._sweeper = loop.call_later(1, self._sweep_regularly, loop)


def _nothing() -> None:
    pass
