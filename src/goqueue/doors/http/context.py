"""State that the routes share: the open door, and per request the service bound to its caller."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from litestar import Request
from litestar.di import NamedDependency
from litestar.types import Scope

from goqueue.clock import SECOND, Clock
from goqueue.doors.http.bodies import Bodies, ClientGone
from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.waiting import answered, has_left, held, leaving
from goqueue.errors import RequestTimeout
from goqueue.service.caller import Caller
from goqueue.service.pending import Pending
from goqueue.service.service import Service

STALL_NS = 10 * SECOND
"""A loop that was blocked this long fails the liveness check: sessions and leases may have expired."""
CONTEXT: Final = "goqueue_context"
"""The key of the `Context` in the state of a request."""
WAITED: Final = "goqueue_waited_ns"
"""The key of the time that a long poll waited, in the state of a request."""
AGENT_CHARACTERS_MAX: Final = 100
"""The length that a User-Agent is cut to in the audit log."""
SHOWS_INTERNAL: Final = "shows_internal"
"""The option of a route that accepts internal topics."""

T = TypeVar("T")
Metrics = Callable[[bool], tuple[bytes, str]]
"""Returns the metrics and their content type: OpenMetrics if the argument is true, else Prometheus text."""


class Build(NamedTuple):
    """The build of the running broker."""

    version: str = "unknown"
    git_commit: str = "unknown"
    build_time: str = "unknown"


class RequestAnswered(NamedTuple):
    """A request was answered. `duration_ns` excludes the time that a long poll waited or a stream was open."""

    method: str
    route: str  # the template, such as /topics/{topic}; empty if no route matched
    status: int
    duration_ns: int


Observer = Callable[[RequestAnswered], None]


def context_of(scope: Scope) -> "Context":
    """The door that received the request."""
    context: Context = scope["state"][CONTEXT]
    return context


def request_context(scope: Scope) -> "RequestContext":
    """The context of one request. Litestar injects it into the handlers."""
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    address = f"{client[0]}:{client[1]}" if client else ""
    caller = Caller("http", address, agent.decode("latin-1")[:AGENT_CHARACTERS_MAX])
    return RequestContext(context_of(scope), caller)


def note_wait(scope: Mapping[str, Any], duration_ns: int) -> None:
    """Add to the waiting time of the request, which its duration excludes."""
    scope["state"][WAITED] = scope["state"].get(WAITED, 0) + duration_ns


class Context:
    """One open door. Belongs to one event loop."""

    def __init__(
        self,
        service: Service,
        *,
        clock: Clock,
        config: HttpConfig,
        node_id: int,
        build: Build,
        metrics: Metrics | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.service = service
        self.clock = clock
        self.config = config
        self.node_id = node_id
        self.build = build
        self.metrics = metrics
        self.bodies = Bodies(arriving_bytes_max=config.bodies_bytes_max)
        self.closing: asyncio.Future[None] = loop.create_future()
        self.streams_open = 0
        self.polls_held = 0
        self.turn = 0  # rotates the first partition of reads over a whole topic, so that none starves
        self._last_beat_ns = clock.monotonic_ns()
        self._stalled_ns: int | None = None

    async def answered(self, pending: Pending[T], what: str = "the request") -> T:
        """The result of the service. Raises `RequestTimeout` after `answer_s_max`."""
        return await answered(pending, what, limit_s=self.config.answer_s_max)

    async def held(
        self,
        ask: Callable[[int], Pending[T]],
        wait_ms: int,
        client: Request[Any, Any, Any],
        *,
        give_back: Callable[[T], None] | None = None,
    ) -> T:
        """The result of `ask(wait_ms)`, a long poll.

        When the door closes, `ask` is called again without waiting. When the client disconnects, `ClientGone` is
        raised, and a result that came for it is passed to `give_back`.
        """
        pending = ask(wait_ms)
        if not pending.is_done:
            began_ns = self.clock.monotonic_ns()
            limit_s = wait_ms / 1_000 + self.config.answer_s_max
            self.polls_held += 1
            try:
                async with leaving(client.receive, self.closing) as left:
                    came = await held(pending, unless=left, limit_s=limit_s)
            finally:
                self.polls_held -= 1
            note_wait(client.scope, self.clock.monotonic_ns() - began_ns)
            if not came:
                if not left.done():
                    raise RequestTimeout("long poll", limit_s)
                if not self.closing.done():
                    raise ClientGone
                pending = ask(0)
        answer = await self.answered(pending, "long poll")
        if give_back and await has_left(client.receive):
            give_back(answer)
            raise ClientGone
        return answer

    def close(self) -> None:
        """End long polls and streams."""
        if not self.closing.done():
            self.closing.set_result(None)

    def beat(self) -> None:
        """Record that the event loop is running. Called every second."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._last_beat_ns >= STALL_NS:
            self._stalled_ns = now_ns
        self._last_beat_ns = now_ns

    def is_stalled(self) -> bool:
        """Whether the event loop was blocked for `STALL_NS`, within the last `STALL_NS`."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._last_beat_ns >= STALL_NS:
            return True
        return self._stalled_ns is not None and now_ns - self._stalled_ns < STALL_NS


class RequestContext:
    """The context of one request: the service bound to its caller, and the door."""

    __slots__ = ("answered", "clock", "config", "door", "held", "service")

    def __init__(self, door: Context, caller: Caller) -> None:
        self.door = door
        self.service = door.service.called_by(caller)
        self.clock = door.clock
        self.config = door.config
        self.answered = door.answered
        self.held = door.held


Shared = NamedDependency[RequestContext]
"""The type of the handler parameter `context`, which Litestar injects."""
