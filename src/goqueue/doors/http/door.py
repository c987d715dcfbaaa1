"""The HTTP door: listens on an address, serves requests, and stops within a grace period."""

import asyncio
from typing import Any

from goqueue.clock import Clock
from goqueue.doors.http.app import routes
from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.context import Build, Context, Metrics, Observer, RequestAnswered
from goqueue.doors.http.cors import CrossOrigin
from goqueue.doors.http.front import Front
from goqueue.doors.http.listener import Listener
from goqueue.service.service import Service

__all__ = ["Build", "HttpConfig", "HttpDoor", "RequestAnswered"]


class HttpDoor:
    """Offers a service over HTTP, in the event loop that `start` is called in."""

    def __init__(
        self,
        service: Service,
        *,
        clock: Clock,
        config: HttpConfig | None = None,
        node_id: int = 0,
        metrics: Metrics | None = None,
        observe: Observer | None = None,
        build: Build | None = None,
    ) -> None:
        self._service = service
        self._clock = clock
        self._config = config or HttpConfig()
        self._node_id = node_id
        self._metrics = metrics
        self._observe = observe
        self._build = build or Build()
        self._context: Context | None = None
        self._front: Front | None = None
        self._listener: Listener | None = None

    @property
    def requests_in_flight(self) -> int:
        """Number of requests that are not answered yet."""
        return self._front.requests_in_flight if self._front else 0

    @property
    def connections_open(self) -> int:
        return self._listener.connections_open if self._listener else 0

    @property
    def streams_open(self) -> int:
        """Number of open event streams."""
        return self._context.streams_open if self._context else 0

    @property
    def polls_held(self) -> int:
        """Number of long polls that are waiting."""
        return self._context.polls_held if self._context else 0

    @property
    def is_closing(self) -> bool:
        """Whether the door has begun to stop."""
        return self._context is not None and self._context.closing.done()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address, with the actual port if `port` is 0. Raises `OSError`."""
        context = Context(
            self._service,
            clock=self._clock,
            config=self._config,
            node_id=self._node_id,
            build=self._build,
            metrics=self._metrics,
            loop=asyncio.get_running_loop(),
        )
        front = Front(context, routes(), observe=self._observe)
        app: Any = CrossOrigin(front, self._config.cors_origins) if self._config.cors_origins else front
        listener = Listener(app, clock=self._clock, config=self._config, tick=context.beat)
        bound = await listener.start(host, port)
        self._context, self._front, self._listener = context, front, listener
        return bound

    async def stop(self, grace_s: float) -> None:
        """Stop listening, end long polls and streams, and finish the other requests.

        Connections that are still open after `grace_s` are aborted.
        """
        if self._context and self._listener:
            self._context.close()
            await self._listener.stop(grace_s)
