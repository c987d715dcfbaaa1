"""The membership of a consumer in its group: heartbeats, lease extensions and background settlements, in an event loop.

A settlement in the background is sent together with others, a few milliseconds later. When the last reference to its
consumer is gone, the member leaves the group by itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import ref

from goqueue.client.connections import Connections
from goqueue.client.consumer_core import ConsumerCore, ConsumerRequest, Steps
from goqueue.client.prefetch import PREFETCHED_NS_MAX
from goqueue.client.received import Message
from goqueue.client.session import ANSWER_TIMEOUT_S
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import AvailabilityError, GoQueueError, NotLeader
from goqueue.names import TopicPartition
from goqueue.wire.frames import Frame
from goqueue.wire.reports import Settlement
from goqueue.wire.verbs import Verb

BACKGROUND_NS = 10 * MS
"""How long a background settlement is held back, so that it shares a request with others."""
TOGETHER_MAX = 10_000
NAP_NS_MIN = 5 * MS
LEAVE_TIMEOUT_S = 2.0
"""How long leaving may take. A broker that was not told removes the member when its session expires."""

T = TypeVar("T")
logger = logging.getLogger("goqueue.consumer")


class Owner(Protocol):
    """The connection that the membership belongs to."""

    def release_prefetched(self, *, older_than_ns: int = 0) -> None:
        """Release what was prefetched so long ago."""


class Background:
    """Settlements that no caller waits for, those of one kind together."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, int | None, str], list[Message]] = {}
        self._lock = threading.Lock()  # one thread notes, another one takes

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, messages: Sequence[Message], settlement: Settlement) -> bool:
        """Settle them with the next flush; whether nothing was noted before."""
        kind = settlement.action, settlement.delay_ns, settlement.reason
        with self._lock:
            is_first = not self._noted
            self._noted.setdefault(kind, []).extend(messages)
        return is_first

    def take(self) -> list[tuple[Settlement, list[Message]]]:
        """All that is noted, in pieces that fit a request."""
        with self._lock:
            noted, self._noted = self._noted, {}
        return [
            (Settlement(action, delay_ns, reason), together[start : start + TOGETHER_MAX])
            for (action, delay_ns, reason), together in noted.items()
            for start in range(0, len(together), TOGETHER_MAX)
        ]


class Membership:
    """The part of a consumer that lives in an event loop: heartbeats, extensions, background settlements."""

    def __init__(self, core: ConsumerCore, connections: Connections, clock: Clock, owner: Owner) -> None:
        self.core = core
        self.background = Background()
        self.is_closed = False
        self.wakes_at_ns = 0  # when leases are looked at next
        self._connections = connections
        self._clock = clock
        self._owner = ref(owner)
        self._poked = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._is_flushing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Begin to keep the membership and the leases."""
        if self._keeping is None and not self.is_closed:
            self._connections.close_first(self)
            self._keeping = asyncio.ensure_future(self._keep())

    @property
    def must_pump(self) -> bool:
        """Whether a heartbeat or an extension is due before the loop wakes by itself."""
        extend_at_ns = self.core.extend_at_ns
        return self.core.must_beat or (extend_at_ns is not None and extend_at_ns < self.wakes_at_ns)

    def poke(self) -> None:
        """Wake the loop now."""
        self._poked.set()

    async def drive(self, steps: Steps[T], check: Callable[[], None] = lambda: None) -> T:
        """Carry the requests of the steps to the broker and the answers back, for as long as the check is passed."""
        try:
            request = next(steps)
            while True:
                check()
                try:
                    frame = await self._ask(request)
                except GoQueueError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(frame)
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            steps.close()

    async def _ask(self, request: ConsumerRequest) -> Frame:
        timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000
        late = self.release if request.verb is Verb.POLL else None

        async def attempt() -> Frame:
            session = await self._connections.any()
            try:
                frame = await session.ask_frame(
                    request.verb, request.meta, request.payload, timeout_s=timeout_s, late=late
                )
            except NotLeader:
                raise
            except AvailabilityError:
                request.was_lost = True
                raise
            request.take(frame)
            return frame

        return await self._connections.retrying(attempt, extra_s=request.wait_ms / 1000)

    def release(self, frame: Frame) -> None:
        """Release the messages of an answer that came too late: they are delivered as if for the first time."""
        self._start(self._quietly(self.core.release(frame)))

    async def _quietly(self, steps: Steps[None]) -> None:
        with suppress(GoQueueError):
            await self.drive(steps)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def flush_soon(self) -> None:
        """Send what is noted in the background, together with what comes in the next moment."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_later(BACKGROUND_NS / SECOND, self._flush_now)

    def _flush_now(self) -> None:
        self._start(self._flush())

    async def flush(self) -> None:
        """Send what is noted in the background. A caller that is cancelled cancels none of it."""
        await asyncio.shield(self._start(self._flush()))

    async def _flush(self) -> None:
        async with self._sending:
            self._is_flushing = False
            for settlement, together in self.background.take():
                try:
                    await self.drive(self.core.settle(together, settlement))
                except GoQueueError as error:
                    logger.warning("background %s failed messages=%d: %s", settlement.action, len(together), error)

    async def _keep(self) -> None:
        beat_ns = self._clock.monotonic_ns() + self.core.heartbeat_ns
        while self._owner() is not None:
            now_ns = self._clock.monotonic_ns()
            extend_ns = self.core.next_extension_ns()
            self.wakes_at_ns = beat_ns if extend_ns is None else min(beat_ns, max(extend_ns, now_ns + NAP_NS_MIN))
            with suppress(TimeoutError):
                async with asyncio.timeout((self.wakes_at_ns - now_ns) / SECOND):
                    await self._poked.wait()
            self._poked.clear()
            now_ns = self._clock.monotonic_ns()
            owner = self._owner()
            if owner is not None:
                owner.release_prefetched(older_than_ns=PREFETCHED_NS_MAX)
            del owner
            try:
                await self.drive(self.core.extend_leases())
                if now_ns >= beat_ns or self.core.must_beat:
                    beat_ns = now_ns + self.core.heartbeat_ns
                    await self.drive(self.core.heartbeat())
            except GoQueueError as error:
                logger.warning("heartbeat or lease extension failed group=%s: %s", self.core.config.group, error)
            except Exception:
                logger.exception("heartbeat or lease extension failed group=%s", self.core.config.group)
        self._keeping = None
        self._start(self.close())

    async def close(self, done: dict[TopicPartition, int] | None = None) -> None:
        """Send what is left, and leave the group; with `done`, no more than that is committed."""
        self.is_closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(done))
        await asyncio.shield(self._closing)

    async def _close(self, done: dict[TopicPartition, int] | None) -> None:
        if self._keeping:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self._flush()
        with suppress(GoQueueError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.drive(self.core.close(done))
