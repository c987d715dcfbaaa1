"""The listening socket: uvicorn's HTTP protocol class on an asyncio server.

uvicorn's own server expects to own the process: it installs signal handlers, exits if the address is in use, and polls
ten times a second whether to stop. A door is part of a larger process, so only uvicorn's protocol class is used. This
module adds limits that it lacks: the size of the request head, the time to receive a request, the number of
connections. Bytes that are not HTTP get an error answer in the common shape.

A connection that is closed before its request has been received completely lingers: the answer is followed by the end
of the stream, and further input is read and dropped until the client closes or the time to receive a request is over.
If the socket were closed at once, the kernel would reset the connection and the client would lose the answer.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from goqueue.clock import SECOND, Clock
from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.refusals import body_of, encode, headers_of
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest, RequestTimeout

TICK_S = 1.0
CUT_OFF_S = 1.0
BACKLOG = 2_048


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
            timeout_keep_alive=round(config.keep_alive_s),
        )
        self._uvicorn.load()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=BACKLOG)
        self._every_second(loop)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Stop listening and finish the requests in progress. After `grace_s`, abort the connections that are left."""
        if self._server:
            self._server.close()
        await asyncio.sleep(0)  # lets connections that were just accepted register themselves
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._until_empty(grace_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await self._until_empty(CUT_OFF_S)
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_OFF_S)
        if self._timer:
            self._timer.cancel()

    @property
    def connections_open(self) -> int:
        return len(self._state.connections)

    def _connect(self) -> "HttpConnection":
        return HttpConnection(self._uvicorn, self._state, self._config, self._lost)

    def _lost(self) -> None:
        if not self._state.connections:
            self._emptied.set()

    async def _until_empty(self, limit_s: float) -> None:
        self._emptied.clear()
        self._lost()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), limit_s)

    def _every_second(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_S, self._every_second, loop)
        date = formatdate(self._clock.wall_ns() / SECOND, usegmt=True)
        self._state.default_headers = [(b"date", date.encode())]
        now_s = loop.time()
        for connection in list(self._state.connections):
            assert isinstance(connection, HttpConnection)
            connection.check(now_s)
        self._tick()


class HttpConnection(HttpToolsProtocol):
    """One client connection, with limits on the request head and on the time to receive a request."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, limits: HttpConfig, lost: Callable[[], None]
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._lost = lost
        self._arriving_since_s: float | None = self.loop.time()  # when the current request, or the connection, began
        self._is_request = False
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._output = _Output(transport, self.loop, is_arriving=lambda: self._is_request)
        super().connection_made(self._output)
        if len(self.connections) > self._limits.connections_max:
            self.refuse(BrokerUnavailable(f"the limit of {self._limits.connections_max} connections is reached"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost()

    def data_received(self, data: bytes) -> None:
        if self._output.is_lingering:
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes_max:
                limit = self._limits.head_bytes_max
                self.refuse(InvalidRequest(f"request line and headers are over the limit of {limit} bytes"))
        elif self._arriving_since_s is None and self.cycle.response_complete:
            # Bytes that begin no request, such as empty lines, cancel uvicorn's keep-alive timer. Without this deadline
            # they would keep the connection open without any limit.
            self._arriving_since_s = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving_since_s = self.loop.time()
        self._is_request = self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving_since_s = None
        self._is_request = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(InvalidRequest("the request is not HTTP/1.1"))

    def check(self, now_s: float) -> None:
        """Close the connection if its request is late; without an answer if no request has begun."""
        since_s, limit_s = self._arriving_since_s, self._limits.arrival_s_max
        if since_s is None or now_s - since_s <= limit_s:
            return
        if self._output.is_lingering:
            self.transport.abort()
        elif self._is_request:
            self.refuse(RequestTimeout("the incomplete request", limit_s))
        else:
            self.transport.close()

    def refuse(self, error: GoQueueError) -> None:
        """Write an error, unless the application has begun to answer, and close the connection."""
        cycle: RequestResponseCycle | None = self.cycle
        is_answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_answering and not self.transport.is_closing():
            self.transport.write(_raw_answer(error))
        self.transport.close()


class _Output(asyncio.Transport):
    """A transport that joins all writes of one loop iteration, and closes without resetting the connection.

    uvicorn writes the head and the body of an answer separately. Each would cost a system call and a packet, and the
    client would wake up for half an answer.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, is_arriving: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._is_arriving = is_arriving
        self._gathered: list[Any] = []
        self.is_lingering = False

    def write(self, data: Any) -> None:
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)

    def close(self) -> None:
        """Close. While a request is being received, close only the write side; a second call closes both sides."""
        self._flush()
        if self.is_lingering or not self._is_arriving() or self._transport.is_closing():
            self._transport.close()
        else:
            self.is_lingering = True
            self._transport.write_eof()
            self._transport.resume_reading()

    def abort(self) -> None:
        self._gathered.clear()
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            if not self._transport.is_closing():
                self._transport.write(b"".join(gathered))


def _raw_answer(error: GoQueueError) -> bytes:
    body = body_of(error)
    content = encode(body)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
        **headers_of(error),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {body.status} {HTTPStatus(body.status).phrase}\r\n{lines}\r\n".encode() + content
