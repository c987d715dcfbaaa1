"""A broker and its HTTP door, in a thread of the test's own process, and the plainest of clients."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import uvloop

from goqueue.broker.broker import Broker
from goqueue.broker.local_service import LocalService
from goqueue.clock import MS, Clock, SystemClock
from goqueue.doors.http.door import HttpConfig, HttpDoor
from goqueue.server.ticker import Ticker
from goqueue.server.workers import ThreadWorkers
from goqueue.storage.file import Disk, OsDisk

T = TypeVar("T")
LIMIT_S = 20


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body of an ordinary answer, which is one line of JSON."""
        assert self.headers["content-type"] == "application/json"
        assert self.body.endswith(b"\n")
        assert not self.body.endswith(b"\n\n")
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a refusal, which has the one shape that all have."""
        body = self.json
        assert {"error", "code", "status", "retryable"} <= body.keys()
        assert body["status"] == self.status
        code: str = body["code"]
        return code


class OpenDoor:
    """A door that is open inside a `with` block."""

    def __init__(
        self,
        data: Path,
        *,
        config: HttpConfig | None = None,
        clock: Clock | None = None,
        broker: type[Broker] = Broker,
        disk: Disk | None = None,
        **options: Any,
    ) -> None:
        self.data = data
        self._broker_type = broker
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()
        self._config = config or HttpConfig()
        self._options = options
        self._ended = asyncio.Event()
        self._ticks = 0
        self.grace_s = 5.0
        self.port = 0

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.result(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the door, then the broker."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def inside(self, function: Callable[[], T]) -> T:
        """What the function returns in the thread of the broker."""
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self.loop.call_soon_threadsafe(call)
        return result.result(LIMIT_S)

    def until(self, condition: Callable[[], object]) -> None:
        """Return once the condition holds in the thread of the broker; it is looked at again and again."""
        done: Future[None] = Future()

        def look() -> None:
            if condition():
                done.set_result(None)
            elif not done.cancelled():
                self.loop.call_later(0.002, look)

        self.loop.call_soon_threadsafe(look)
        done.result(LIMIT_S)

    def let_time_work(self) -> None:
        """Return once the broker has looked at its clock again."""
        ticks = self._ticks
        self.until(lambda: self._ticks >= ticks + 2)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        with self.connection() as connection:
            return exchange(connection, method, path, body, headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any) -> Answer:
        return self.request("POST", path, body)

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """A connection that can be used more than once."""
        connection = http.client.HTTPConnection(*self.address, timeout=LIMIT_S)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def raw(self, data: bytes = b"") -> Iterator[socket.socket]:
        """A bare socket, to which the data were sent."""
        with socket.create_connection(self.address, timeout=LIMIT_S) as connection:
            connection.sendall(data)
            yield connection

    def _tick(self) -> None:
        self._ticks += 1
        self.broker.tick()

    def _run(self, started: "Future[None]") -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: "Future[None]") -> None:
        self.loop = asyncio.get_running_loop()
        workers = ThreadWorkers(self.loop, threads_max=2)
        self.broker = self._broker_type.open(self._disk, str(self.data), clock=self._clock, workers=workers)
        ticker = Ticker(self.loop, SystemClock(), self._tick, interval_ns=5 * MS)
        self.door = HttpDoor(LocalService.of(self.broker), clock=self._clock, config=self._config, **self._options)
        try:
            self.address = await self.door.start("127.0.0.1", self.port)
            started.set_result(None)
            await self._ended.wait()
            await self.door.stop(self.grace_s)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            ticker.stop()
            await workers.idle(grace_s=LIMIT_S)
            self.broker.close()
            workers.close()


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request and its answer."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def receive_all(connection: socket.socket) -> bytes:
    """Everything until the other end closes."""
    chunks = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)
