"""The connection of a consumer to its broker, which its messages share: they are settled over it.

`AsyncConsumerConnection` belongs to an event loop. `BlockingConsumerConnection` is for threads without one: it talks
to the broker over a socket of its own, in the thread that calls it, and leaves heartbeats and extensions to the event
loop of its client. An application that polls again at once finds the messages here: the next poll is sent along with
the ack of the previous one, or earlier.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from goqueue.client import forks
from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.connections import Connections
from goqueue.client.consumer_core import Batch, ConsumerConfig, ConsumerCore, Request, Settles, Steps
from goqueue.client.loop_thread import LoopThread
from goqueue.client.member import AHEAD_NS_MAX, Member
from goqueue.client.retries import Retries
from goqueue.client.session import ANSWER_TIMEOUT_S, decode
from goqueue.client.settling import settlement_of
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import AvailabilityError, Conflict, GoQueueError, InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record.message import Message
from goqueue.wire.frames import Frame
from goqueue.wire.reports import DeliveredBatch, PollAnswer, Settlement
from goqueue.wire.verbs import PollRequest, Verb

HAND_OVER_TIMEOUT_S = 5.0
QUICK_NS = 50 * MS
"""Who comes back for more within that time is likely to do so again."""
LARGE_BATCH = 100
"""From so many messages on, making them takes about as long as the broker needs for the next ones."""

T = TypeVar("T")


class ConsumerConnection(Settles, ABC):
    """A consumer without what it has polled: all that a message has to know of it.

    Messages have a line, and so does their consumer, which alone may have messages: the garbage collector does not see
    through them, and a circle would last for ever. When nobody has the line any more, the member leaves.
    """

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self.core = ConsumerCore(config, clock)
        self.member: Member
        self.unsettled_id = 0  # the identity of the message that a loop has shown last, until it is settled

    def note_settled(self, messages: Message | Sequence[Message], settlement: Settlement) -> None:
        """The application has seen to the messages."""
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
        """Settle in the background what a block is left of; an error on its way is not covered by another."""
        if error is None or not self.is_closed:
            self.settle_soon(message, settlement_of(error))

    def give_back_ahead(self, *, older_than_ns: int = 0) -> None:
        """Nobody has come for what was asked for ahead, if anything was."""

    @abstractmethod
    def post(self, function: Callable[[], None]) -> None:
        """Call the function in the loop."""

    def pump_now(self) -> None:
        """See to it that what is due is done in time."""
        if self.member.must_pump and not self.is_closed:
            self.post(self.member.poke)


class AsyncConsumerConnection(ConsumerConnection):
    """The line of a consumer that lives in an event loop."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        super().__init__(config, clock)
        self.member = Member(self.core, connections, clock, self)

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


class Ahead(NamedTuple):
    """A poll that was sent before it was asked for."""

    session: BlockingSession
    correlation: int
    asked: PollRequest
    sent_ns: int


class BlockingConsumerConnection(ConsumerConnection):
    """The line of a consumer for threads: a socket of its own, for one of them at a time."""

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
        self._ahead: Ahead | None = None
        self._next_poll: PollRequest | None = None  # what may be asked ahead
        self._may_look_ahead = False
        self._polled_ns = 0
        self._one_by_one_until_ns = 0  # nothing came of asking while other messages are in flight
        self.member = loop.call(lambda: Member(self.core, connections, clock, self))

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

    def is_coming(self, batches: Sequence[DeliveredBatch], max_messages: int) -> None:
        """If the application has been quick so far, see to it that the next messages are here when it is.

        They are leased from then on. If nobody comes for them, they are given back, as if never delivered. Where many
        come at a time and nobody else could have them, the broker is asked for the next ones while these are made of
        what came; else together with the ack of all of these.
        """
        now_ns = self._clock.monotonic_ns()
        is_quick, self._polled_ns = now_ns - self._polled_ns < QUICK_NS, now_ns
        self._next_poll = self.core.next_poll(batches, max_messages) if is_quick else None
        is_large = max_messages >= LARGE_BATCH and self.core.config.mode == "partitioned"
        if self._next_poll is not None and is_large and now_ns >= self._one_by_one_until_ns:
            with suppress(AvailabilityError):  # the next request will find out
                session: Any = run_now(self._connections.any())
                correlation = session.send_ahead(Verb.POLL, self._next_poll)
                self._ahead = Ahead(session, correlation, self._next_poll, now_ns)
            self._next_poll = None

    def ack_whole(self, batch: Batch) -> None:
        """The whole batch is done, and the next one may come with the answer."""
        self._may_look_ahead = self._clock.monotonic_ns() - self._polled_ns < QUICK_NS
        try:
            self.drive(self.core.ack_whole(batch))
        finally:
            self._may_look_ahead = False
            self._next_poll = None

    def give_back_ahead(self, *, older_than_ns: int = 0) -> None:
        """Nobody has come for what was asked for ahead. Called in the loop, and never waits for the broker."""
        ahead = self._ahead
        if ahead is None or self._clock.monotonic_ns() - ahead.sent_ns < older_than_ns:
            return
        if self._lock.acquire(blocking=False):
            try:
                if self._ahead is not None:
                    frame = self._came_ahead(self._ahead)
                    self._ahead = None
                    if frame is not None:
                        self.member.give_back(frame)
            finally:
                self._lock.release()

    def _came_ahead(self, ahead: Ahead) -> Frame | None:
        """The answer to what was sent ahead; None if there is none. It may have come before the connection was lost."""
        try:
            return ahead.session.receive_ahead(Verb.POLL, ahead.correlation)
        except GoQueueError:
            return None

    def close(self, done: dict[TopicPartition, int] | None = None) -> None:
        """Send what is left and leave; whoever else is using the line is interrupted."""
        if self.is_forked or self._is_closing:
            return
        self._is_closing = True
        self._pause.set()
        has_lock = False
        if self._user != threading.get_ident():  # else this is a signal that came while we waited
            has_lock = self._lock.acquire(blocking=False)
            if not has_lock:
                self._connections.interrupt()
                has_lock = self._lock.acquire(timeout=HAND_OVER_TIMEOUT_S)
        try:
            if not self._loop.is_closed:
                self._loop.run(self._give_back_and_close(done, has_lock))
        finally:
            self._connections.hang_up()
            if has_lock:
                self._lock.release()

    async def _give_back_and_close(self, done: dict[TopicPartition, int] | None, has_lock: bool) -> None:
        ahead, self._ahead = self._ahead, None
        frame = self._came_ahead(ahead) if ahead is not None and has_lock else None
        if frame is not None:
            with suppress(GoQueueError):
                await self.member.drive(self.core.give_back(frame))
        await self.member.close(done)

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)
        if connections is not None:
            connections.hang_up()

    def _ask(self, request: Request) -> Frame:
        began_s = self._clock.monotonic_ns() / SECOND
        deadline_s = began_s + self._connections.timeout_s + request.wait_ms / 1000
        retries = Retries(self._connections.reach, began_s=began_s, deadline_s=deadline_s)
        while True:
            self.check_open()
            try:
                return self._exchange(request)
            except GoQueueError as error:
                may_repeat = not (request.only_once and request.was_lost)
                wait_s = retries.wait_s(error, now_s=self._clock.monotonic_ns() / SECOND, may_repeat=may_repeat)
                self.check_open()
                self._pause.wait(wait_s)

    def _exchange(self, request: Request) -> Frame:
        if request.verb is Verb.POLL and self._ahead is not None:
            came = self._take_ahead(request)
            if came is not None:
                return came
        session: Any = run_now(self._connections.any())
        timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000
        following, self._next_poll = self._next_poll if self._may_look_ahead else None, None
        ahead = (Verb.POLL, following) if following is not None else None
        try:
            frame: Frame = session.exchange_frame(
                request.verb, request.meta, request.payload, timeout_s=timeout_s, ahead=ahead
            )
        except AvailabilityError:
            request.was_lost = True
            self.check_open()
            raise
        finally:
            if following is not None:
                self._ahead = Ahead(session, session.last_correlation, following, self._clock.monotonic_ns())
        return frame

    def _take_ahead(self, request: Request) -> Frame | None:
        """What was asked for ahead, if it is what is asked for now and has brought something."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        asked = request.meta
        is_same = isinstance(asked, PollRequest) and (asked.number, asked.max_messages) == (
            ahead.asked.number,
            ahead.asked.max_messages,
        )
        if not is_same or self._clock.monotonic_ns() - ahead.sent_ns > AHEAD_NS_MAX:
            ahead.session.forget_ahead(ahead.correlation)
            return None
        frame = self._came_ahead(ahead)
        if frame is not None and (len(frame.payload) or decode(frame.meta, PollAnswer).gaps):
            return frame
        self._one_by_one_until_ns = self._clock.monotonic_ns() + AHEAD_NS_MAX
        return None
