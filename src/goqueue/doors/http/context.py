"""What the routes share: the service, for the caller of a request, and the door that the request came through."""

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
"""A loop that stood still for so long has broken its promises to everyone."""
CONTEXT: Final = "goqueue_context"
"""In the state of a request: the door that it came through."""
WAITED: Final = "goqueue_waited_ns"
"""In the state of a request: for how long it was held because nothing was there."""
AGENT_CHARACTERS_MAX: Final = 100
"""So much of a User-Agent names the caller in the audit log."""
SHOWS_INTERNAL: Final = "shows_internal"
"""The option of a route that takes the name of an internal topic."""

T = TypeVar("T")
Metrics = Callable[[bool], tuple[bytes, str]]
"""The metrics and their content type; OpenMetrics if true, else Prometheus text."""


class Build(NamedTuple):
    """What is running here."""

    version: str = "unknown"
    git_commit: str = "unknown"
    build_time: str = "unknown"


class RequestAnswered(NamedTuple):
    """A request has its answer. The time that a long poll waited, or a stream was open, does not count."""

    method: str
    route: str  # the template, such as /topics/{topic}; empty if there is none
    status: int
    duration_ns: int


Observer = Callable[[RequestAnswered], None]


def context_of(scope: Scope) -> "Context":
    """The door that the request came through."""
    context: Context = scope["state"][CONTEXT]
    return context


def request_context(scope: Scope) -> "RequestContext":
    """The door that the request came through, and the service for its caller."""
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    address = f"{client[0]}:{client[1]}" if client else ""
    caller = Caller("http", address, agent.decode("latin-1")[:AGENT_CHARACTERS_MAX])
    return RequestContext(context_of(scope), caller)


def note_wait(scope: Mapping[str, Any], duration_ns: int) -> None:
    """The request was held for so long because there was nothing to do."""
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
        self.turn = 0  # which partition is read first when all of them are: each in turn, so that none starves
        self._last_beat_ns = clock.monotonic_ns()
        self._stalled_ns: int | None = None

    async def answered(self, pending: Pending[T], what: str = "a request") -> T:
        """The answer, within the time that an answer may take."""
        return await answered(pending, what, limit_s=self.config.answer_s_max)

    async def held(
        self,
        ask: Callable[[int], Pending[T]],
        wait_ms: int,
        client: Request[Any, Any, Any],
        *,
        give_back: Callable[[T], None] | None = None,
    ) -> T:
        """What `ask` is answered when it may wait that long.

        A door that closes asks again without waiting. A client that hangs up is told nothing: `ClientGone`. Then what
        came for it all the same is given back.
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
        """Let everyone who waits know that they should not."""
        if not self.closing.done():
            self.closing.set_result(None)

    def beat(self) -> None:
        """The loop is running. To be called every second."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._last_beat_ns >= STALL_NS:
            self._stalled_ns = now_ns
        self._last_beat_ns = now_ns

    def is_stalled(self) -> bool:
        """Whether the loop stood still for too long, now or a moment ago."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._last_beat_ns >= STALL_NS:
            return True
        return self._stalled_ns is not None and now_ns - self._stalled_ns < STALL_NS


class RequestContext:
    """One request: the service for its caller, and the door that it came through."""

    __slots__ = ("answered", "clock", "config", "door", "held", "service")

    def __init__(self, door: Context, caller: Caller) -> None:
        self.door = door
        self.service = door.service.called_by(caller)
        self.clock = door.clock
        self.config = door.config
        self.answered = door.answered
        self.held = door.held


Shared = NamedDependency[RequestContext]
"""How a route asks for it, under the name `context`."""
