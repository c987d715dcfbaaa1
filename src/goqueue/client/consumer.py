"""Consumers: members of a group that poll messages and settle them.

`AsyncConsumer` lives in an event loop. `Consumer` is for threads without one: it talks to the broker over a socket of
its own, in the thread that calls it, and leaves heartbeats and extensions to the loop of its client. Both drive
`ConsumerCore`, which knows what is to be said.

A loop over a consumer (`consume`) settles in the background: leaving the `with` block of a message notes the ack, which
is sent with others a few milliseconds later, and before the next poll at the latest. What is settled by a call is
settled when the call returns, or it raises.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from goqueue.client import messages as asked
from goqueue.client.blocking import BlockingConnections, run_now
from goqueue.client.connections import Connections, retry_wait_ns
from goqueue.client.consumer_core import (
    HEARTBEAT_NS,
    ConsumerConfig,
    ConsumerCore,
    Delivery,
    Request,
    Settles,
    Steps,
)
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import Duration
from goqueue.client.session import ANSWER_TIMEOUT_S
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import Conflict, GoQueueError, InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record.message import Message
from goqueue.wire.reports import PartitionName, Settlement

POLL_MESSAGES_MAX = 1_000
BACKGROUND_NS = 10 * MS
"""How long a settlement that nobody waits for may be kept, so that it travels with others."""
TOGETHER_MAX = 10_000
WATCH_NS = SECOND

T = TypeVar("T")
logger = logging.getLogger("goqueue.consumer")


class _Delivered(Message):
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

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return Message, (TopicPartition(*self._delivery), *self._fields()[1:])


class Delivered(_Delivered):
    """A message that is to be settled: by `ack` and the like, or by leaving `with message:`."""

    __slots__ = ()

    @property
    def _consumer(self) -> "Consumer":
        consumer: Consumer = self._delivery.consumer  # type: ignore[assignment]
        return consumer

    def ack(self) -> None:
        """The message is done."""
        self._consumer.ack(self)

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        self._consumer.nack(self, delay=delay, reason=reason)

    def reject(self, *, reason: str = "") -> None:
        """Put the message to the dead letters."""
        self._consumer.reject(self, reason=reason)

    def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        self._consumer.extend(self, by)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.settle_soon(self, _settlement_of(error))


class AsyncDelivered(_Delivered):
    """The same, where settling is awaited."""

    __slots__ = ()

    @property
    def _consumer(self) -> "AsyncConsumer":
        consumer: AsyncConsumer = self._delivery.consumer  # type: ignore[assignment]
        return consumer

    async def ack(self) -> None:
        """The message is done."""
        await self._consumer.ack(self)

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        await self._consumer.nack(self, delay=delay, reason=reason)

    async def reject(self, *, reason: str = "") -> None:
        """Put the message to the dead letters."""
        await self._consumer.reject(self, reason=reason)

    async def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        await self._consumer.extend(self, by)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.settle_soon(self, _settlement_of(error))


def _settlement_of(error: BaseException | None) -> Settlement:
    """What leaving the block of a message means."""
    if error is None:
        return Settlement("ack")
    if isinstance(error, GeneratorExit | KeyboardInterrupt | asyncio.CancelledError):
        return Settlement("release")  # it is not the message's fault
    return Settlement("nack", None, f"{type(error).__name__}: {error}"[:1_000])


class _Background:
    """Settlements that nobody waits for, in the order in which they came, those of one kind together."""

    def __init__(self) -> None:
        self._noted: list[tuple[Settlement, list[Message]]] = []
        self._lock = threading.Lock()  # one thread notes, another one takes

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, message: Message, settlement: Settlement) -> int:
        """Settle it some time; how many of this kind there are."""
        with self._lock:
            if not self._noted or self._noted[-1][0] != settlement or len(self._noted[-1][1]) >= TOGETHER_MAX:
                self._noted.append((settlement, []))
            together = self._noted[-1][1]
            together.append(message)
            return len(together)

    def take(self) -> list[tuple[Settlement, list[Message]]]:
        """All that is noted."""
        with self._lock:
            noted, self._noted = self._noted, []
        return noted


class _Member:
    """The part of a consumer that lives in an event loop: heartbeats, extensions, background settlements."""

    def __init__(self, core: ConsumerCore, connections: Connections, clock: Clock) -> None:
        self.core = core
        self.background = _Background()
        self._connections = connections
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._sending: asyncio.Lock = asyncio.Lock()
        self._is_flushing = False
        self._flushing: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to keep the membership and the leases."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep())

    async def drive(self, steps: Steps[T]) -> T:
        """Carry the requests of the steps to the broker and the answers back."""
        try:
            request = next(steps)
            while True:
                try:
                    frame = await self._ask(request)
                except GoQueueError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(frame)
        except StopIteration as finished:
            result: T = finished.value
            return result

    async def _ask(self, request: Request) -> Any:
        timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000

        async def attempt() -> Any:
            session = await self._connections.any()
            return await session.ask_frame(request.verb, request.meta, request.payload, timeout_s=timeout_s)

        return await self._connections.retrying(attempt, extra_s=request.wait_ms / 1000)

    def flush_soon(self) -> None:
        """Send what is noted in the background, together with what comes in the next moment."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_later(BACKGROUND_NS / SECOND, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = asyncio.ensure_future(self.flush())

    async def flush(self) -> None:
        """Send what is noted in the background."""
        async with self._sending:
            self._is_flushing = False
            for settlement, together in self.background.take():
                try:
                    await self.drive(self.core.settle(together, settlement))
                except GoQueueError as error:
                    logger.warning("%s of %d messages failed: %s", settlement.action, len(together), error)

    async def _keep(self) -> None:
        beat_ns = self._clock.monotonic_ns() + HEARTBEAT_NS
        while True:
            now_ns = self._clock.monotonic_ns()
            extend_ns = self.core.next_extension_ns()
            due_ns = min(beat_ns, now_ns + WATCH_NS, beat_ns if extend_ns is None else extend_ns)
            await asyncio.sleep(max(0.01, (due_ns - now_ns) / SECOND))
            now_ns = self._clock.monotonic_ns()
            try:
                if now_ns >= beat_ns:
                    beat_ns = now_ns + HEARTBEAT_NS
                    await self.drive(self.core.heartbeat())
                await self.drive(self.core.extend_leases())
            except GoQueueError as error:
                logger.warning("cannot keep the membership of %s: %s", self.core.config.group, error)
            except Exception:
                logger.exception("cannot keep the membership of %s", self.core.config.group)

    async def close(self) -> None:
        """Send what is left, and leave the group."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self.flush()
        with suppress(GoQueueError):  # who cannot be told will notice
            await self.drive(self.core.leave())


class AsyncConsumer(Settles):
    """A member of a group. Belongs to one task at a time."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        self._arguments = (config, connections, clock)
        self._core = ConsumerCore(config, clock)
        self._member = _Member(self._core, connections, clock)
        self._is_closed = False

    def blocking(self, loop: LoopThread) -> "Consumer":
        """The same for a thread without an event loop."""
        return Consumer(*self._arguments, loop)

    @property
    def member_id(self) -> str | None:
        """The id in the group, once it has joined."""
        return self._core.member_id

    @property
    def partitions(self) -> list[PartitionName]:
        """What it takes messages from."""
        return list(self._core.partitions)

    async def join(self) -> None:
        """Become a member now, and not with the first poll."""
        if not self._core.is_member:
            await self._member.drive(self._core.join())
        self._member.watch()

    async def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[Message]:
        """The next messages, as soon as there are any; none if there are none in time."""
        _check_open(self._is_closed, max_messages)
        self._member.watch()
        if self._member.background:
            await self._member.flush()
        timeout_ms = asked.asked_duration_ns(timeout, "timeout") // MS
        return await self._member.drive(self._core.poll(max_messages, timeout_ms, self, AsyncDelivered))

    async def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        await self._member.drive(self._core.settle(messages, Settlement("ack")))

    async def nack(
        self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = ""
    ) -> None:
        """Deliver them again, after a backoff or the delay."""
        await self._member.drive(self._core.settle(messages, _nack(delay, reason)))

    async def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Put them to the dead letters."""
        await self._member.drive(self._core.settle(messages, Settlement("reject", None, reason)))

    async def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        await self._member.drive(self._core.settle(messages, _extension(by)))

    async def commit(self) -> None:
        """Commit the positions behind everything that was polled."""
        await self._member.drive(self._core.commit())

    def settle_soon(self, message: Message, settlement: Settlement) -> None:
        """Settle it in the background."""
        self._member.background.note(message, settlement)
        self._member.flush_soon()

    async def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        if not self._is_closed:
            self._is_closed = True
            await self._member.close()

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
        limits, left = self._limits, self._limits.limit
        try:
            while left is None or left > 0:
                batch = await self._consumer.poll(limits.count(left), limits.timeout)
                if not batch and limits.ends:
                    return
                for message in batch:
                    assert isinstance(message, AsyncDelivered)
                    yield message
                left = None if left is None else left - len(batch)
        finally:
            await self._consumer.close()


class Limits:
    """When a loop over messages ends."""

    def __init__(self, stop: str | None, limit: int | None, idle: Duration | None, batch: int) -> None:
        if stop not in (None, "empty"):
            raise InvalidRequest(f"invalid stop {stop!r}: must be empty", path="stop")
        if limit is not None and limit < 0:
            raise InvalidRequest(f"invalid limit {limit}: must be 0 or more", path="limit")
        self.limit = limit
        self.ends = stop is not None or idle is not None
        self.timeout: Duration = idle if idle is not None else "200ms" if stop else "20s"
        self._batch = batch

    def count(self, left: int | None) -> int:
        """How many to poll."""
        return self._batch if left is None else max(1, min(self._batch, left))


class Consumer(Settles):
    """A member of a group, for a thread without an event loop. Belongs to one thread at a time."""

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock, loop: LoopThread) -> None:
        self._core = ConsumerCore(config, clock)
        self._loop = loop
        self._clock = clock
        self._member = loop.call(lambda: _Member(self._core, connections, clock))
        self._connections = BlockingConnections(connections)
        self._lock = threading.Lock()
        self._pause = threading.Event()
        self._is_watched = False
        self._is_closed = False

    @property
    def member_id(self) -> str | None:
        """The id in the group, once it has joined."""
        return self._core.member_id

    @property
    def partitions(self) -> list[PartitionName]:
        """What it takes messages from."""
        return list(self._core.partitions)

    def join(self) -> None:
        """Become a member now, and not with the first poll."""
        if not self._core.is_member:
            self._drive(self._core.join())
        self._watch()

    def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[Message]:
        """The next messages, as soon as there are any; none if there are none in time."""
        _check_open(self._is_closed, max_messages)
        if not self._is_watched:
            self._watch()
        if self._member.background:
            self.flush()
        timeout_ms = asked.asked_duration_ns(timeout, "timeout") // MS
        return self._drive(self._core.poll(max_messages, timeout_ms, self, Delivered))

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        self._drive(self._core.settle(messages, Settlement("ack")))

    def nack(self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver them again, after a backoff or the delay."""
        self._drive(self._core.settle(messages, _nack(delay, reason)))

    def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Put them to the dead letters."""
        self._drive(self._core.settle(messages, Settlement("reject", None, reason)))

    def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        self._drive(self._core.settle(messages, _extension(by)))

    def commit(self) -> None:
        """Commit the positions behind everything that was polled."""
        self._drive(self._core.commit())

    def settle_soon(self, message: Message, settlement: Settlement) -> None:
        """Settle it in the background."""
        if self._member.background.note(message, settlement) == 1:
            self._loop.post(self._member.flush_soon)

    def flush(self) -> None:
        """Settle what is noted."""
        self._loop.run(self._member.flush())

    def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        if not self._is_closed:
            self._is_closed = True
            self._pause.set()
            try:
                if not self._loop.is_closed:
                    self._loop.run(self._member.close())
            finally:
                self._connections.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        self._is_watched = True
        self._loop.call(self._member.watch)

    def _drive(self, steps: Steps[T]) -> T:
        """Carry the requests of the steps to the broker and the answers back, in this thread."""
        if not self._lock.acquire(blocking=False):
            raise Conflict("a consumer belongs to one thread at a time, and another one is using it")
        try:
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
            self._lock.release()

    def _ask(self, request: Request) -> Any:
        deadline_ns = self._clock.monotonic_ns() + int(self._connections.timeout_s * SECOND) + request.wait_ms * MS
        tries = 0
        while True:
            try:
                session: Any = run_now(self._connections.any())
                timeout_s = ANSWER_TIMEOUT_S + request.wait_ms / 1000
                return session.exchange_frame(request.verb, request.meta, request.payload, timeout_s=timeout_s)
            except GoQueueError as error:
                tries += 1
                wait_ns = retry_wait_ns(tries)
                is_late = self._clock.monotonic_ns() + wait_ns > deadline_ns
                if not error.retryable or is_late or self._is_closed:
                    raise
                self._pause.wait(wait_ns / SECOND)


class Consumption:
    """An endless, or limited, loop over the messages of a consumer, which it closes."""

    def __init__(self, consumer: Consumer, limits: Limits) -> None:
        self._consumer = consumer
        self._limits = limits

    def __iter__(self) -> Iterator[Delivered]:
        limits, left = self._limits, self._limits.limit
        try:
            while left is None or left > 0:
                batch = self._consumer.poll(limits.count(left), limits.timeout)
                if not batch and limits.ends:
                    return
                for message in batch:
                    assert isinstance(message, Delivered)
                    yield message
                left = None if left is None else left - len(batch)
        finally:
            self._consumer.close()


def _check_open(is_closed: bool, max_messages: int) -> None:
    if is_closed:
        raise Conflict("a consumer cannot be used after close")
    if not 1 <= max_messages <= POLL_MESSAGES_MAX:
        text = f"invalid max_messages {max_messages}: must be 1 to {POLL_MESSAGES_MAX}"
        raise InvalidRequest(text, path="max_messages")


def _nack(delay: Duration | None, reason: str) -> Settlement:
    return Settlement("nack", None if delay is None else max(0, asked.asked_duration_ns(delay, "delay")), reason)


def _extension(by: Duration) -> Settlement:
    return Settlement("extend", asked.asked_duration_ns(by, "timeout"))
