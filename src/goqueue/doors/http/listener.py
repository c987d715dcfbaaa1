"""The socket: uvicorn's HTTP parser on a server of our own.

uvicorn's own server is a program: it takes the signals, ends the process when an address is taken, and looks ten times a second
whether it should stop. A door is a part of a program, so only the protocol of uvicorn is used here. It is bounded where it is
not by itself: the size of a request's head, the time a request may take to arrive, the number of connections. And what
is no HTTP at all is refused in the same shape as everything else.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from goqueue.clock import SECOND, Clock
from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.refusals import body_of, encode, headers_of
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest, RequestTimeout

TICK_S = 1.0
_PHRASES = {400: "Bad Request", 503: "Service Unavailable", 504: "Gateway Timeout"}


class Listener:
    """A listening socket and its connections."""

    def __init__(self, app: Any, *, clock: Clock, config: HttpConfig, tick: Callable[[], None]) -> None:
        self._clock = clock
        self._config = config
        self._tick = tick
        self._state = ServerState()
        self._uvicorn = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type]  # a float will do
        )
        self._uvicorn.load()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address that was bound. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, backlog=2_048)
        self._run_tick(loop)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no more connections, and let the requests end that are there; those that do not in time are cut off."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._emptied(), grace_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        ...

    def _connection(self) -> "Connection":
        return Connection(self, ...)
