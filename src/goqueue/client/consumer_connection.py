"""The connection of a consumer to its broker. The messages that it delivers share it: they are settled over it.

`AsyncConsumerConnection` belongs to an event loop. `BlockingConsumerConnection` is for threads without one: it talks
to the broker over a socket of its own, in the thread that calls it, and leaves heartbeats and extensions to the event
loop of its client. It prefetches (`goqueue.client.prefetch`).
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from goqueue.client import forks
from goqueue.client.blocking import BlockingConnections, run_now
from goqueue.client.connections import Connections
from goqueue.client.consumer_core import ConsumerConfig, ConsumerCore, ConsumerRequest, PolledBatch, Settles, Steps
from goqueue.client.loop_thread import LoopThread
from goqueue.client.membership import Membership
from goqueue.client.prefetch import Prefetch
from goqueue.client.received import Message
from goqueue.client.session import ANSWER_TIMEOUT_S
from goqueue.client.settling import settlement_of
from goqueue.clock import SECOND, Clock
from goqueue.errors import AvailabilityError, Conflict, GoQueueError, InvalidRequest, NotLeader
from goqueue.names import TopicPartition
from goqueue.wire.frames import Frame
from goqueue.wire.reports import DeliveredBatch, Settlement
from goqueue.wire.verbs import Verb

HAND_OVER_TIMEOUT_S = 5.0

T = TypeVar("T")


class ConsumerConnection(Settles, ABC):
    """A consumer without what it has polled: all that a message has to know of it.

    Messages refer to the connection, and so does their consumer; only the consumer may refer to messages. They are
    invisible to the garbage collector, so a cycle through them would never be collected. When neither a consumer nor a
    message refers to the connection any more, the member leaves the group.
    """

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self.core = ConsumerCore(config, clock)
        self.member: Membership
        self.unsettled_id = 0  # the `id` of the message that a loop has yielded last, until it is settled

    def note_settled(self, messages: Message | Sequence[Message], settlement: Settlement) -> None:
        """The application has settled the messages."""
        shown = self.unsettled_id
        if shown and settlement.action != "extend":
            given = (messages,) if isinstance(messages, Message) else messages
            if shown in map(id, given):
                self.unsettled_id = 0

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self.member.is_closed

    def check_open(self) -> None:
        """Raise `Conflict` after close."""
        if self.is_closed:
            raise Conflict("a consumer cannot be used after close")

    def settle_soon(self, messages: Message | Sequence[Message], settlement: Settlement) -> None:
        """Settle in the background."""
        self.check_open()
        self.note_settled(messages, settlement)
        if self.member.background.note([messages] if isinstance(messages, Message) else messages, settlement):
            self.post(self.member.flush_soon)

    def leave_block(self, message: Message, error: BaseException | None) -> None:
        """Settle in the background the message whose block is left. An error that leaves it goes before `Conflict`."""
        if error is None or not self.is_closed:
            self.settle_soon(message, settlement_of(error))

    def release_prefetched(self, *, older_than_ns: int = 0) -> None:
        """Release what was prefetched so long ago, if anything was."""

    @abstractmethod
    def post(self, function: Callable[[], None]) -> None:
        """Call the function in the loop."""

    def pump_now(self) -> None:
        """Wake the member if a heartbeat or an extension is due before it wakes by itself."""
        if self.member.must_pump and not self.is_closed:
            self.post(self.member.poke)


class AsyncConsumerConnection(ConsumerConnection):
    """The connection of a consumer that lives in an event loop."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        super().__init__(config, clock)
        self.member = Membership(self.core, connections, clock, self)

    def post(self, function: Callable[[], None]) -> None:
        """Call the function."""
        function()

    async def settle(self, messages: Message | Iterable[Message], settlement: Settlement) -> None:
        """Settle, and return when that is done."""
        messages = listed(messages)
        self.note_settled(messages, settlement)
        await self.drive(self.core.settle(messages, settlement))
        self.pump_now()

    async def drive(self, steps: Steps[T]) -> T:
        """The result of the steps."""
        return await self.member.drive(steps, self.check_open)


def listed(messages: Message | Iterable[Message]) -> Message | Sequence[Message]:
    """The message, or several that can be gone through twice."""
    if isinstance(messages, Message | list):
        return messages
    try:
        return list(messages)
    except TypeError:
        text = f"invalid messages {messages!r:.100}: must be a message or several"
        raise InvalidRequest(text, path="messages") from None


class BlockingConsumerConnection(ConsumerConnection):
    """The connection of a consumer for threads: a socket of its own, for one of them at a time."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock, loop: LoopThread) -> None:
        super().__init__(config, clock)
        self.is_watched = False
        self._connections = BlockingConnections(connections)
        self._loop = loop
        self._clock = clock
        self._fork = forks.generation
        self._lock = threading.Lock()
        self._user: int | None = None  # the thread that has the lock
        self._pause = threading.Event()
        self._is_closing = False
        self._prefetch = Prefetch(self.core, self._connections, clock)
        self.member = loop.call(lambda: Membership(self.core, connections, clock, self))

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy of a child."""
        return self._fork != forks.generation

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._is_closing or self.member.is_closed or self.is_forked

    @property
    def is_busy(self) -> bool:
        """Whether a thread is waiting for an answer."""
        return self._lock.locked()

    def check_open(self) -> None:
        """Raise `Conflict` after close, and in a child."""
        if self.is_forked:
            raise Conflict("a consumer cannot be used after a fork")
        super().check_open()

    def post(self, function: Callable[[], None]) -> None:
        """Have the function called in the loop."""
        self._loop.post(function)

    def watch(self) -> None:
        """Begin to keep the membership and the leases."""
        if not self.is_watched:
            self._loop.call(self.member.watch)
            self.is_watched = True

    def flush(self) -> None:
        """Settle what is noted."""
        self._loop.run(self.member.flush())

    def settle(self, messages: Message | Iterable[Message], settlement: Settlement) -> None:
        """Settle, and return when that is done."""
        messages = listed(messages)
        self.note_settled(messages, settlement)
        self.drive(self.core.settle(messages, settlement))
        self.pump_now()

    def drive(self, steps: Steps[T]) -> T:
        """Carry the requests of the steps to the broker and the answers back, in this thread."""
        self.check_open()
        if not self._lock.acquire(blocking=False):
            raise Conflict("a consumer belongs to one thread at a time, and another one is using it")
        try:
            self._user = threading.get_ident()
            request = next(steps)
            while True:
                try:
                    frame = self._ask(request)
                except GoQueueError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(frame)
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            steps.close()
            self._user = None
            self._lock.release()

    def prefetch_after_poll(self, batches: Sequence[DeliveredBatch], max_messages: int) -> None:
        """If the application has been quick so far, see to it that the next messages are here when it polls."""
        self._prefetch.prefetch_after_poll(batches, max_messages)

    def ack_whole(self, batch: PolledBatch) -> None:
        """The whole batch is done, and the next one may come with the answer."""
        self._prefetch.begin_ack()
        try:
            self.drive(self.core.ack_whole(batch))
        finally:
            self._prefetch.end_ack()

    def release_prefetched(self, *, older_than_ns: int = 0) -> None:
        """Release what was prefetched so long ago. Called in the loop, which never waits: not for the lock either."""
        if self._prefetch.is_stale(older_than_ns) and self._lock.acquire(blocking=False):
            try:
                frame = self._prefetch.release_prefetched()
                if frame is not None:
                    self.member.release(frame)
            finally:
                self._lock.release()

    def close(self, done: dict[TopicPartition, int] | None = None) -> None:
        """Send what is left and leave; a thread that is using the connection is interrupted."""
        if self.is_forked or self._is_closing:
            return
        self._is_closing = True
        self._pause.set()
        has_lock = False
        if self._user != threading.get_ident():  # else a signal handler closes what this thread is waiting for
            has_lock = self._lock.acquire(blocking=False)
            if not has_lock:
                self._connections.interrupt()
                has_lock = self._lock.acquire(timeout=HAND_OVER_TIMEOUT_S)
        try:
            if not self._loop.is_closed:
                self._loop.run(self._release_and_close(done, has_lock))
        finally:
            self._connections.hang_up()
            if has_lock:
                self._lock.release()

    async def _release_and_close(self, done: dict[TopicPartition, int] | None, has_lock: bool) -> None:
        frame = self._prefetch.release_prefetched() if has_lock else None
        if frame is not None:
            with suppress(GoQueueError):
                await self.member.drive(self.core.release(frame))
        await self.member.close(done)

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)
        if connections is not None:
            connections.hang_up()

    def _ask(self, request: ConsumerRequest) -> Frame:
        timeout_s = self._connections.timeout_s + request.wait_ms / 1000
        return self._connections.retrying_in_thread(
            lambda: self._exchange(request),
            clock=self._clock,
            pause=self._pause,
            deadline_ns=self._clock.monotonic_ns() + int(timeout_s * SECOND),
            may_repeat=lambda: True,
        )

    def _exchange(self, request: ConsumerRequest) -> Frame:
        self.check_open()
        if request.verb is Verb.POLL and self._prefetch.prefetched is not None:
            prefetched = self._prefetch.take_prefetched(request)
            if prefetched is not None:
                return prefetched
        session: Any = run_now(self._connections.any())
        timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000
        following = self._prefetch.poll_along()
        then = None if following is None else (Verb.POLL, following)
        try:
            frame: Frame = session.exchange_frame(
                request.verb, request.meta, request.payload, timeout_s=timeout_s, then=then
            )
        except NotLeader:
            raise
        except AvailabilityError:
            request.was_lost = True
            self.check_open()
            raise
        finally:
            if following is not None:
                self._prefetch.sent_along(session, following)
        request.take(frame)
        return frame
