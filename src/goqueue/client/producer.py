"""Producers: `send` hands a message over and returns; a handle says later where it went.

Any number of threads add messages; one event loop sends them (`goqueue.client.loop_publisher`). A small value costs
its `send` a handle and an append to a list, without a lock (`MessageBatch` says why that is safe); everything else is
done once per batch.

What was sent is flushed however the block of a producer is left, also by an exception, Ctrl-C and `sys.exit`; and at
the end of the process or the loop (`goqueue.client.exits`).
"""

import warnings
from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, Self

from goqueue.client import forks, messages
from goqueue.client.accumulator import NO_BATCH, SMALL_VALUE_BYTES
from goqueue.client.handles import AsyncHandle, Handle, wait_for
from goqueue.client.loop_publisher import LoopPublisher
from goqueue.client.options import Duration, Time
from goqueue.record.header import Priority
from goqueue.record.headers import Headers

# The keywords of `send` are written out, twice: they may be given by position, and small values need no dict that way.


class AsyncProducer:
    """Publishes messages in batches. Made by `AsyncClient.producer`; leaving its block flushes.

    One that `is_own` belongs to the application: to drop it without closing it is a `ResourceWarning`.
    """

    def __init__(self, publisher: LoopPublisher, *, is_own: bool = False) -> None:
        self._publisher = publisher
        self._is_own = is_own

    def blocking(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> "Producer":
        """The same for threads without an event loop."""
        self._is_own = False
        return Producer(self._publisher, run, is_own=True)

    @property
    def publisher(self) -> LoopPublisher:
        """The driver of its engine."""
        return self._publisher

    async def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Headers | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
        created_at: Time | None = None,
    ) -> AsyncHandle:
        """Hand a message over; the handle tells where it is stored. Waits only while the buffer is full."""
        publisher = self._publisher
        engine = publisher.engine
        if engine.unusable or publisher.fork != forks.generation:
            publisher.check_usable()
        if (inject := publisher.inject) is not None:
            headers = inject(headers)
        message = messages.message(
            value, key, priority, headers, delay, deliver_at, ttl, tombstone, created_at, now_ns=publisher.wall_ns()
        )
        if not engine.is_ready_for(topic, message):
            await publisher.learn(topic)
        if engine.is_full:
            await publisher.room()
        handle = AsyncHandle(NO_BATCH, message)
        publisher.add(topic, handle, partition)
        publisher.pump_now()
        return handle

    async def flush(self) -> None:
        """Return when everything sent so far is stored, or has failed."""
        await self._publisher.flush()

    async def close(self) -> None:
        """Flush; raises why a message was not stored, unless its handle has already raised that."""
        await self._publisher.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._publisher.leave(error)

    def __del__(self) -> None:
        if getattr(self, "_is_own", False):
            _dropped(self, self._publisher)


class Producer:
    """Publishes messages in batches, from any thread. Made by `Client.producer`; leaving its block flushes."""

    __slots__ = ("_bare", "_context", "_engine", "_is_own", "_open", "_publisher", "_run")

    def __init__(
        self, publisher: LoopPublisher, run: Callable[[Coroutine[Any, Any, None]], None], *, is_own: bool = False
    ) -> None:
        publisher.share()
        self._is_own = is_own
        self._publisher = publisher
        self._run = run
        self._engine = publisher.engine
        self._open = publisher.engine.open
        self._context = publisher.context
        self._bare: object = None  # a context that had no span in it

    def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Headers | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
        created_at: Time | None = None,
    ) -> Handle:
        """Hand a message over; the handle tells where it is stored. Waits only while the buffer is full."""
        if (context := self._context) is not None and context() is not self._bare:
            headers = self._with_context(headers)
        if (
            type(value) is not bytes
            or key is not None
            or partition is not None
            or priority is not None
            or headers is not None
            or delay is not None
            or deliver_at is not None
            or ttl is not None
            or tombstone
            or created_at is not None
            or len(value) > SMALL_VALUE_BYTES
        ):
            message = messages.message(
                value,
                key,
                priority,
                headers,
                delay,
                deliver_at,
                ttl,
                tombstone,
                created_at,
                now_ns=self._publisher.wall_ns(),
            )
            batch = self._open.get(topic)
            is_large = message.value is None or len(message.value) > SMALL_VALUE_BYTES
            if batch is None or is_large or message.key is not None or partition is not None or headers is not None:
                return self._add(topic, Handle(NO_BATCH, message), partition)
            batch.has_messages = True  # before it can be sealed: the loop may encode it at once
            handle = Handle(batch, message)
        else:
            batch = self._open.get(topic)
            if batch is None:
                return self._add(topic, Handle(NO_BATCH, value), None)
            handle = Handle(batch, value)
        handles = batch.handles
        handles.append(handle)
        if batch.is_sealed:
            if not self._publisher.made_it(handle):
                return self._add(topic, handle, None)
        elif len(handles) >= batch.count_max:
            self._publisher.seal(batch)
        return handle

    def _add(self, topic: str, handle: Handle, partition: int | None) -> Handle:
        """What is done once per batch, or for a message that is more than a small value."""
        publisher, engine = self._publisher, self._engine
        if engine.unusable or publisher.fork != forks.generation:
            publisher.check_usable()
        if self._context is None:
            self._context = publisher.context
        if not engine.is_ready_for(topic, handle.item):
            self._run(publisher.learn(topic))
        if engine.is_full:
            room = Lock()
            room.acquire()
            publisher.when_room(room.release)
            wait_for(room)
        publisher.add(topic, handle, partition)
        return handle

    def _with_context(self, headers: Headers | None) -> Headers | None:
        """The headers with the current context. One without a span is remembered: the next `send` skips all this."""
        inject = self._publisher.inject
        assert inject is not None
        context = inject.current()
        if not inject.fields(context):
            self._bare = context
        return inject(headers)

    def flush(self) -> None:
        """Return when everything sent so far is stored, or has failed."""
        self._publisher.check_usable()
        self._run(self._publisher.flush())

    def close(self) -> None:
        """Flush; raises why a message was not stored, unless its handle has already raised that."""
        self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        if self._publisher.fork == forks.generation and not self._publisher.is_closed:
            self._run(self._publisher.leave(error))

    def __del__(self) -> None:
        if getattr(self, "_is_own", False):
            _dropped(self, self._publisher)


def _dropped(producer: AsyncProducer | Producer, publisher: LoopPublisher) -> None:
    """The last reference to the producer is gone. One that is not closed is flushed in the background."""
    if not publisher.is_closed and publisher.fork == forks.generation:
        publisher.finish_dropped()
        text = f"unclosed {type(producer).__name__}: use it in a `with` block, or call its close()"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=producer)
