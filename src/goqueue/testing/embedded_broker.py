"""A whole server in a thread of this process, for an application's own tests.

    with EmbeddedBroker() as broker:
        client = Client(broker.address)

It is the real thing: the native and the HTTP door on ports that the system chooses, logs on a disk. Its data are in a
temporary directory that goes when it stops, or in `data`, which stays. Any number of them can run at once.

`resign` and `lead` let a partition lose its leader and get another one, as in a failover: an application's tests can
see that it loses and doubles nothing then.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from tempfile import TemporaryDirectory
from typing import Self

import uvloop

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.clock import SystemClock
from goqueue.server.assemble import Server, running
from goqueue.server.config import ServerConfig, load, setting_of_keyword


class EmbeddedBroker:
    """A server that `start` starts and `stop` stops; as a context manager, both.

    `settings` are those of the server's configuration with underscores for dots: `topics_partitions=1`.
    """

    def __init__(self, *, data: str | os.PathLike[str] | None = None, http: bool = True, **settings: object) -> None:
        self._given_data = data
        self._http = http
        self._settings = {setting_of_keyword(name): value for name, value in settings.items()}
        self._temporary: TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._stop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ended: Future[None] = Future()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """Where clients connect, as host:port."""
        return str(self._running.native)

    @property
    def http_address(self) -> str:
        """The URL of the HTTP door."""
        if self._running.http is None:
            raise RuntimeError("this broker was started with http=False")
        return f"http://{self._running.http}"

    @property
    def data(self) -> str:
        """The data directory."""
        return str(self._running.data)

    def start(self) -> Self:
        """Return when requests are served; raises what keeps the server from it."""
        if self._server:
            raise RuntimeError("this broker is running")
        started: Future[Server] = Future()
        self._ended = Future()
        try:
            # A daemon: a test that forgets to stop its broker does not hang at its end.
            self._thread = threading.Thread(target=self._run, args=(self._config(), started), daemon=True)
            self._thread.start()
            self._server = started.result()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Answer what was received, seal the logs, and return; raises what went wrong then. Stopping twice is fine."""
        if self._stop:
            loop, stop = self._stop
            loop.call_soon_threadsafe(stop.set)
        if self._thread:
            self._thread.join()
        if self._temporary:
            self._temporary.cleanup()
        self._thread = self._stop = self._server = self._temporary = None
        if self._ended.done():
            self._ended.result()

    def resign(self, topic: str, partition: int = 0) -> None:
        """Let the partition have no leader: requests about it are refused with `NotLeader`, which clients retry."""
        self._in_loop(lambda broker: broker.partitions.resign(topic, partition))

    def lead(self, topic: str, partition: int = 0) -> None:
        """Let the partition have a leader again, in the next epoch."""
        self._in_loop(lambda broker: broker.partitions.become_leader(topic, partition))

    def _in_loop(self, call: Callable[[Broker], None]) -> None:
        broker = self._running.broker
        assert self._stop is not None
        called: Future[None] = Future()

        def run() -> None:
            try:
                call(broker)
            except BaseException as error:
                called.set_exception(error)
            else:
                called.set_result(None)

        self._stop[0].call_soon_threadsafe(run)
        called.result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("this broker is not running")
        return self._server

    def _config(self) -> ServerConfig:
        if self._given_data is None:
            self._temporary = TemporaryDirectory(prefix="goqueue-")
        data = self._temporary.name if self._temporary else os.fspath(self._given_data or "")
        http = "127.0.0.1:0" if self._http else "off"
        return load(flags={"native": "127.0.0.1:0", "http": http, "data": data, **self._settings})

    def _run(self, config: ServerConfig, started: "Future[Server]") -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(config, started))
        except BaseException as error:
            (self._ended if started.done() else started).set_exception(error)

    async def _serve(self, config: ServerConfig, started: "Future[Server]") -> None:
        stop = asyncio.Event()
        async with running(config, clock=SystemClock(), observe=events.ignore) as server:
            self._stop = asyncio.get_running_loop(), stop
            started.set_result(server)
            await stop.wait()
