"""Consumers: members of a group that poll messages and settle them.

`AsyncConsumer` lives in an event loop. `Consumer` is for threads without one: it talks to the broker over a socket of
its own, in the thread that calls it, and leaves heartbeats and extensions to the loop of its client. Both drive
`ConsumerCore`, which knows what is to be said.

A loop over a consumer (`consume`) settles in the background: leaving the `with` block of a message notes the ack, which
is sent with others a few milliseconds later, and before the next poll at the latest. What is settled by a call is
settled when the call returns, or it raises.

A consumer leaves its group when it is closed, when its client is, or when nobody has it any more. A loop that is left
early gives back what it has polled and not shown to anybody, as if it had never been delivered.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from weakref import ref

from goqueue.client import forks, telemetry
from goqueue.client import messages as asked
from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.connections import Connections, retry_wait_ns
from goqueue.client.consumer_core import (
    EXTENDED_NS_MAX,
    HEARTBEAT_NS,
    Batch,
    ConsumerConfig,
    ConsumerCore,
    Delivery,
    Request,
    Settles,
    Steps,
)
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import Duration
from goqueue.client.received import Message as ReceivedMessage
from goqueue.client.session import ANSWER_TIMEOUT_S
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import AvailabilityError, Conflict, GoQueueError, InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record.message import Message
from goqueue.wire.frames import Frame
from goqueue.wire.reports import DeliveredBatch, PartitionName, Settlement
from goqueue.wire.verbs import Poll, Verb

POLL_MESSAGES_MAX = 1_000
BACKGROUND_NS = 10 * MS
"""How long a settlement that nobody waits for may be kept, so that it travels with others."""
TOGETHER_MAX = 10_000
REASON_CHARACTERS_MAX = 1_000
NAP_NS_MIN = 5 * MS
LEAVE_TIMEOUT_S = 2.0
"""A broker that cannot be told in that time that a member has gone will notice by itself."""
HAND_OVER_TIMEOUT_S = 5.0
QUICK_NS = 50 * MS
"""Who comes back for more within that time is likely to do so again."""
AHEAD_NS_MAX = SECOND
"""What was asked for ahead is given back if nobody comes for it within that time."""
LARGE_BATCH = 100
"""From so many messages on, making them takes about as long as the broker needs for the next ones."""

T = TypeVar("T")
logger = logging.getLogger("goqueue.consumer")


class _Delivered(ReceivedMessage):
    """A message that was delivered to a member of a group."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """The right to settle this delivery of the message."""
        batch = self._delivery.batch
        return f"{batch.topic}:{batch.partition}:{self.offset}:{self.delivery_count}:{batch.nonce}"

    @property
    def delivery_count(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self._delivery.batch.counts.get(self.offset, 1)

    @property
    def _delivery(self) -> Delivery:
        delivery: Delivery = self.origin
        return delivery

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return ReceivedMessage, (TopicPartition(*self._delivery), *self._fields()[1:])


class Delivered(_Delivered):
    """A message that is to be settled: by `ack` and the like, or by leaving `with message:`."""

    __slots__ = ()

    @property
    def _line(self) -> "_BlockingLine":
        line: _BlockingLine = self._delivery.line  # type: ignore[assignment]
        return line

    def ack(self) -> None:
        """The message is done."""
        self._line.settle(self, Settlement("ack"))

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        self._line.settle(self, _nack(delay, reason))

    def reject(self, *, reason: str = "") -> None:
        """Put the message to the dead letters."""
        self._line.settle(self, _reject(reason))

    def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        self._line.settle(self, _extension(by))

    def __enter__(self) -> Self:
        if telemetry.is_in_use() and self._line.core.config.telemetry:
            telemetry.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        telemetry.leave(self)
        self._line.leave_block(self, error)


class AsyncDelivered(_Delivered):
    """The same, where settling is awaited."""

    __slots__ = ()

    @property
    def _line(self) -> "_AsyncLine":
        line: _AsyncLine = self._delivery.line  # type: ignore[assignment]
        return line

    async def ack(self) -> None:
        """The message is done."""
        await self._line.settle(self, Settlement("ack"))

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        await self._line.settle(self, _nack(delay, reason))

    async def reject(self, *, reason: str = "") -> None:
        """Put the message to the dead letters."""
        await self._line.settle(self, _reject(reason))

    async def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        await self._line.settle(self, _extension(by))

    async def __aenter__(self) -> Self:
        if telemetry.is_in_use() and self._line.core.config.telemetry:
            telemetry.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        telemetry.leave(self)
        self._line.leave_block(self, error)


def by_line(messages: Any) -> Iterable[tuple[Any, Sequence[Any]]]:
    """Messages, of which there may be one, by the consumer that they came to."""
    lines: dict[int, tuple[Any, list[Any]]] = {}
    for message in [messages] if isinstance(messages, Message) else messages:
        if not isinstance(message, Delivered | AsyncDelivered):
            raise InvalidRequest("only a message that a group has delivered can be acknowledged")
        line = message._line
        lines.setdefault(id(line), (line, []))[1].append(message)
    return lines.values()


class Standing(NamedTuple):
    """Who a consumer is in its group, and the positions behind everything that it has polled."""

    group: str
    member_id: str
    generation: int | None
    positions: dict[tuple[str, int], int]


def standing_of(consumer: "_Shell") -> Standing:
    """How the consumer stands now."""
    core = consumer._line.core
    positions = {(topic, partition): offset for (topic, partition), offset in core.positions.items()}
    return Standing(core.config.group, core.config.member_id, core.generation, positions)


def _settlement_of(error: BaseException | None) -> Settlement:
    """What leaving the block of a message means."""
    if error is None:
        return Settlement("ack")
    if not isinstance(error, Exception):
        return Settlement("release")  # Ctrl-C, cancellation, exit: it is not the message's fault
    return Settlement("nack", None, f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX])


class _Background:
    """Settlements that nobody waits for, those of one kind together."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, int | None, str], list[Message]] = {}
        self._lock = threading.Lock()  # one thread notes, another one takes

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, messages: Sequence[Message], settlement: Settlement) -> bool:
        """Settle them some time; whether there was nothing to do before."""
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
            (Settlement(*kind), together[start : start + TOGETHER_MAX])
            for kind, together in noted.items()
            for start in range(0, len(together), TOGETHER_MAX)
        ]


class _Member:
    """The part of a consumer that lives in an event loop: heartbeats, extensions, background settlements."""

    def __init__(self, core: ConsumerCore, connections: Connections, clock: Clock, owner: object) -> None:
        self.core = core
        self.background = _Background()
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
    def must_hurry(self) -> bool:
        """Whether something is to be done before it is looked at next."""
        extend_at_ns = self.core.extend_at_ns
        return self.core.must_beat or (extend_at_ns is not None and extend_at_ns < self.wakes_at_ns)

    def poke(self) -> None:
        """Look now."""
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

    async def _ask(self, request: Request) -> Frame:
        timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000
        late = self.give_back if request.verb is Verb.POLL else None

        async def attempt() -> Frame:
            session = await self._connections.any()
            try:
                return await session.ask_frame(
                    request.verb, request.meta, request.payload, timeout_s=timeout_s, late=late
                )
            except AvailabilityError:
                request.was_lost = True
                raise

        return await self._connections.retrying(attempt, only_unsent=request.only_once, extra_s=request.wait_ms / 1000)

    def give_back(self, frame: Frame) -> None:
        """Have the messages of an answer that nobody wants delivered as if for the first time."""
        self._start(self._quietly(self.core.give_back(frame)))

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
        """Send what is noted in the background; whoever stops waiting for it stops nothing else."""
        await asyncio.shield(self._start(self._flush()))

    async def _flush(self) -> None:
        async with self._sending:
            self._is_flushing = False
            for settlement, together in self.background.take():
                try:
                    await self.drive(self.core.settle(together, settlement))
                except GoQueueError as error:
                    logger.warning("%s of %d messages failed: %s", settlement.action, len(together), error)

    async def _keep(self) -> None:
        beat_ns = self._clock.monotonic_ns() + HEARTBEAT_NS
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
            if isinstance(owner, _BlockingLine):
                owner.give_back_ahead(older_than_ns=AHEAD_NS_MAX)
            del owner
            try:
                await self.drive(self.core.extend_leases())
                if now_ns >= beat_ns or self.core.must_beat:
                    beat_ns = now_ns + HEARTBEAT_NS
                    await self.drive(self.core.heartbeat())
            except GoQueueError as error:
                logger.warning("cannot keep the membership of %s: %s", self.core.config.group, error)
            except Exception:
                logger.exception("cannot keep the membership of %s", self.core.config.group)
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
                await self.drive(self.core.leave() if done is None else self.core.abandon(done))


class _Line(Settles, ABC):
    """A consumer without what it has polled: all that a message has to know of it.

    Messages have a line, and so does their consumer, which alone may have messages: the garbage collector does not see
    through them, and a circle would last for ever. When nobody has the line any more, the member leaves.
    """

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self.core = ConsumerCore(config, clock)
        self.member: _Member

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
        if self.member.background.note([messages] if isinstance(messages, Message) else messages, settlement):
            self.post(self.member.flush_soon)

    def leave_block(self, message: Message, error: BaseException | None) -> None:
        """Settle in the background what a block is left of; an error on its way is not covered by another."""
        if error is None or not self.is_closed:
            self.settle_soon(message, _settlement_of(error))

    @abstractmethod
    def post(self, function: Callable[[], None]) -> None:
        """Call the function in the loop."""

    def hurry(self) -> None:
        """See to it that what is due is done in time."""
        if self.member.must_hurry and not self.is_closed:
            self.post(self.member.poke)


class _AsyncLine(_Line):
    """The line of a consumer that lives in an event loop."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        super().__init__(config, clock)
        self.member = _Member(self.core, connections, clock, self)

    def post(self, function: Callable[[], None]) -> None:
        """Call the function."""
        function()

    async def settle(self, messages: Message | Iterable[Message], settlement: Settlement) -> None:
        """Settle, and return when that is done."""
        await self.drive(self.core.settle(messages, settlement))
        self.hurry()

    async def drive(self, steps: Steps[T]) -> T:
        """The result of the steps."""
        return await self.member.drive(steps, self.check_open)


class _Shell:
    """What both forms of a consumer have in common."""

    _line: _Line
    _last: Batch = Batch([])  # what the last poll has brought

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._line.core.config.group

    @property
    def member_id(self) -> str:
        """The id in the group."""
        return self._line.core.config.member_id

    @property
    def partitions(self) -> list[PartitionName]:
        """What it takes messages from."""
        return list(self._line.core.partitions)

    def settle_soon(self, messages: Message | Sequence[Message], settlement: Settlement) -> None:
        """Settle in the background; any thread may ask for it."""
        self._line.settle_soon(messages, settlement)

    def _has_nothing_more(self, limits: "Limits") -> bool:
        """Whether a poll that brought nothing is the end of a loop."""
        return limits.ends(self._line.core.reason)

    def _done_before(self, batch: Sequence[Message], index: int) -> dict[TopicPartition, int] | None:
        """What is done when a loop ends in the middle of a batch, at the last message that anybody saw.

        What nobody saw is given back. Without leases that is a matter of positions, and whether the last message is
        done is not certain.
        """
        line = self._line
        if line.core.config.ack == "each":
            if not line.is_closed:
                line.settle_soon(batch[index + 1 :], Settlement("release"))
            return None
        done = dict(line.core.positions)
        for message in batch[index:]:
            name = TopicPartition(message.topic, message.partition)
            done[name] = min(done.get(name, message.offset), message.offset)
        return done

    def __repr__(self) -> str:
        state = "closed" if self._line.is_closed else "joined" if self._line.core.is_member else "not joined"
        return f"<{type(self).__name__} {self.member_id} of {self.group}, {state}>"


class AsyncConsumer(_Shell):
    """A member of a group. One task at a time polls; any may settle."""

    _line: _AsyncLine

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        self._arguments = (config, connections, clock)
        self._line = _AsyncLine(config, connections, clock)
        self._is_polling = False

    def blocking(self, loop: LoopThread) -> "Consumer":
        """The same for a thread without an event loop."""
        return Consumer(*self._arguments, loop)

    async def join(self) -> None:
        """Become a member now, and not with the first poll."""
        self._line.check_open()
        self._line.member.watch()
        if not self._line.core.is_member:
            await self._line.drive(self._line.core.join())

    async def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[AsyncDelivered]:
        """The next messages, as soon as there are any; none if there are none in time."""
        line = self._line
        line.check_open()
        timeout_ms = _poll_arguments(max_messages, timeout)
        if self._is_polling:
            raise Conflict("a consumer belongs to one task at a time, and another one is polling")
        self._is_polling = True
        try:
            line.member.watch()
            if line.member.background:
                await line.member.flush()
            self._last = await line.drive(line.core.poll(max_messages, timeout_ms, line, AsyncDelivered))
            return self._last.messages.copy()
        finally:
            self._is_polling = False
            line.hurry()

    async def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        if self._last.is_whole(messages):
            await self._line.drive(self._line.core.ack_whole(self._last))
        else:
            await self._line.settle(messages, Settlement("ack"))

    async def nack(
        self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = ""
    ) -> None:
        """Deliver them again, after a backoff or the delay."""
        await self._line.settle(messages, _nack(delay, reason))

    async def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Put them to the dead letters."""
        await self._line.settle(messages, _reject(reason))

    async def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        await self._line.settle(messages, _extension(by))

    async def commit(self) -> None:
        """Commit the positions behind everything that was polled; not of partitions that others have by now."""
        await self._line.drive(self._line.core.commit())

    async def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        await self._line.member.close()

    async def _close_within(self, batch: Sequence[Message], index: int) -> None:
        """Close in the middle of a batch."""
        await self._line.member.close(self._done_before(batch, index))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConsumption:
    """An endless, or limited, loop over the messages of a consumer, which it closes."""

    def __init__(self, consumer: AsyncConsumer, limits: "Limits") -> None:
        self._consumer = consumer
        self._limits = limits

    def blocking(self, loop: LoopThread) -> "Consumption":
        """The same for a thread without an event loop."""
        return Consumption(self._consumer.blocking(loop), self._limits)

    async def __aiter__(self) -> AsyncIterator[AsyncDelivered]:
        consumer, limits, left = self._consumer, self._limits, self._limits.limit
        try:
            while left is None or left > 0:
                batch = await consumer.poll(limits.count(left), limits.timeout)
                if not batch and consumer._has_nothing_more(limits):
                    return
                for index, message in enumerate(batch):
                    try:
                        yield message
                    except BaseException:
                        await consumer._close_within(batch, index)
                        raise
                left = None if left is None else left - len(batch)
        finally:
            await consumer.close()


class Limits:
    """When a loop over messages ends."""

    def __init__(self, stop: str | None, limit: int | None, idle: Duration | None, batch: int) -> None:
        if stop not in (None, "empty"):
            raise InvalidRequest(f"invalid stop {stop!r}: must be empty", path="stop")
        wanted: object = limit
        if wanted is not None and (not isinstance(wanted, int) or wanted < 0):
            raise InvalidRequest(f"invalid limit {limit!r}: must be 0 or more", path="limit")
        _check_count(batch, "batch")
        if idle is not None:
            asked.asked_duration_ns(idle, "idle")
        self.limit = limit
        self.timeout: Duration = idle if idle is not None else "200ms" if stop else "20s"
        self._has_end = stop is not None or idle is not None
        self._batch = batch

    def ends(self, reason: str) -> bool:
        """Whether nothing came for long enough; `reason` says why."""
        return self._has_end and reason != "rebalancing"

    def count(self, left: int | None) -> int:
        """How many to poll."""
        return self._batch if left is None else max(1, min(self._batch, left))


class _Ahead(NamedTuple):
    """A poll that was sent before it was asked for."""

    session: BlockingSession
    correlation: int
    asked: Poll
    sent_ns: int


class _BlockingLine(_Line):
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
        self._ahead: _Ahead | None = None
        self._next_poll: Poll | None = None  # what may be asked ahead
        self._may_look_ahead = False
        self._polled_ns = 0
        self._one_by_one_until_ns = 0  # nothing came of asking while other messages are in flight
        self.member = loop.call(lambda: _Member(self.core, connections, clock, self))

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
        self.drive(self.core.settle(messages, settlement))
        self.hurry()

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
                self._ahead = _Ahead(session, correlation, self._next_poll, now_ns)
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

    def _came_ahead(self, ahead: _Ahead) -> Frame | None:
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
        deadline_ns = self._clock.monotonic_ns() + int(self._connections.timeout_s * SECOND) + request.wait_ms * MS
        tries = 0
        while True:
            self.check_open()
            try:
                return self._exchange(request)
            except GoQueueError as error:
                tries += 1
                wait_ns = retry_wait_ns(tries)
                is_late = self._clock.monotonic_ns() + wait_ns > deadline_ns
                if not error.retryable or is_late or (request.only_once and request.was_lost):
                    raise
                self.check_open()
                self._pause.wait(wait_ns / SECOND)

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
                self._ahead = _Ahead(session, session.last_correlation, following, self._clock.monotonic_ns())
        return frame

    def _take_ahead(self, request: Request) -> Frame | None:
        """What was asked for ahead, if it is what is asked for now and has brought something."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        asked = request.meta
        is_same = isinstance(asked, Poll) and (asked.number, asked.max_messages) == (
            ahead.asked.number,
            ahead.asked.max_messages,
        )
        if not is_same or self._clock.monotonic_ns() - ahead.sent_ns > AHEAD_NS_MAX:
            ahead.session.forget_ahead(ahead.correlation)
            return None
        frame = self._came_ahead(ahead)
        if frame is not None and len(frame.payload):
            return frame
        self._one_by_one_until_ns = self._clock.monotonic_ns() + AHEAD_NS_MAX
        return None


class Consumer(_Shell):
    """A member of a group, for a thread without an event loop. Belongs to one thread at a time."""

    _line: _BlockingLine

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock, loop: LoopThread) -> None:
        self._line = _BlockingLine(config, connections, clock, loop)

    def join(self) -> None:
        """Become a member now, and not with the first poll."""
        self._line.check_open()
        self._line.watch()
        if not self._line.core.is_member:
            self._line.drive(self._line.core.join())

    def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[Delivered]:
        """The next messages, as soon as there are any; none if there are none in time."""
        line = self._line
        line.check_open()
        timeout_ms = _poll_arguments(max_messages, timeout)
        if not line.is_watched:
            line.watch()
        if line.member.background:
            line.flush()
        try:
            self._last = line.drive(line.core.poll(max_messages, timeout_ms, line, Delivered))
            return self._last.messages.copy()
        finally:
            line.hurry()

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        if self._last.is_whole(messages):
            self._line.ack_whole(self._last)
        else:
            self._line.settle(messages, Settlement("ack"))

    def nack(self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver them again, after a backoff or the delay."""
        self._line.settle(messages, _nack(delay, reason))

    def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Put them to the dead letters."""
        self._line.settle(messages, _reject(reason))

    def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        self._line.settle(messages, _extension(by))

    def commit(self) -> None:
        """Commit the positions behind everything that was polled; not of partitions that others have by now."""
        self._line.drive(self._line.core.commit())

    def flush(self) -> None:
        """Settle what is noted in the background, and return when that is done."""
        self._line.check_open()
        self._line.flush()

    def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        self._line.close()

    def _close_within(self, batch: Sequence[Message], index: int) -> None:
        """Close in the middle of a batch."""
        self._line.close(self._done_before(batch, index))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumption:
    """An endless, or limited, loop over the messages of a consumer, which it closes."""

    def __init__(self, consumer: Consumer, limits: Limits) -> None:
        self._consumer = consumer
        self._limits = limits

    def __iter__(self) -> Iterator[Delivered]:
        consumer, limits, left = self._consumer, self._limits, self._limits.limit
        try:
            while left is None or left > 0:
                batch = consumer.poll(limits.count(left), limits.timeout)
                if not batch and consumer._has_nothing_more(limits):
                    return
                for index, message in enumerate(batch):
                    try:
                        yield message
                    except BaseException:
                        consumer._close_within(batch, index)
                        raise
                left = None if left is None else left - len(batch)
        finally:
            consumer.close()


def _poll_arguments(max_messages: int, timeout: Duration) -> int:
    _check_count(max_messages, "max_messages")
    return max(0, asked.asked_duration_ns(timeout, "timeout")) // MS


def _check_count(count: object, name: str) -> None:
    if not isinstance(count, int) or not 1 <= count <= POLL_MESSAGES_MAX:
        raise InvalidRequest(f"invalid {name} {count!r}: must be 1 to {POLL_MESSAGES_MAX}", path=name)


def _nack(delay: Duration | None, reason: str) -> Settlement:
    delay_ns = None if delay is None else max(0, asked.asked_duration_ns(delay, "delay"))
    return Settlement("nack", delay_ns, _checked(reason))


def _reject(reason: str) -> Settlement:
    return Settlement("reject", None, _checked(reason))


def _extension(by: Duration) -> Settlement:
    by_ns = asked.asked_duration_ns(by, "by")
    if not 0 < by_ns <= EXTENDED_NS_MAX:
        raise InvalidRequest(f"invalid by {by!r}: must be more than 0 and at most 12h", path="by")
    return Settlement("extend", by_ns)


def _checked(reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidRequest(f"invalid reason {reason!r:.100}: must be text", path="reason")
    return reason[:REASON_CHARACTERS_MAX]
