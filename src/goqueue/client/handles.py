"""Handles: what `send` returns, and what becomes of it.

A handle belongs to a batch, and the batch is what gets settled. Then each handle knows its offset, waiting threads and
tasks are woken, and callbacks are called, each once, whichever thread settles the batch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from threading import TIMEOUT_MAX, Lock
from typing import Any, NamedTuple

from goqueue.client import messages
from goqueue.client.accumulator import NO_CALLBACKS, AnyHandle, MessageBatch
from goqueue.client.options import Duration
from goqueue.clock import SECOND
from goqueue.errors import RequestTimeout

logger = logging.getLogger("goqueue.client")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAP_S = 0.5


class Published(NamedTuple):
    """Where a message is. `offset` is -1 for one that was sent twice, so long ago that the broker forgot where."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime


def published(handle: AnyHandle) -> Published:
    """Where the message went; raises why it went nowhere."""
    batch = handle.batch
    if batch.error is not None:
        batch.is_seen = True
        raise batch.error
    assert type(handle.item) is int
    offset = batch.first_offset + handle.item if batch.first_offset >= 0 else -1
    timestamp = _EPOCH + timedelta(microseconds=batch.timestamp_ns // 1000)
    return Published(batch.queue.topic, batch.queue.partition, offset, timestamp)


def when_done(batch: MessageBatch, callback: Callable[[], None]) -> None:
    """Call once the batch is settled, in the thread that settles it, or at once."""
    if batch.callbacks is NO_CALLBACKS:
        with _callbacks_lock:
            if batch.callbacks is NO_CALLBACKS:
                batch.callbacks = deque()
    batch.callbacks.append(callback)
    if batch.is_done:
        call_all(batch.callbacks)


def wait_for(lock: Lock) -> None:
    """Take the lock, however long that takes; in pieces, so that Ctrl-C is noticed whenever it comes."""
    while not lock.acquire(timeout=NAP_S):
        pass


_callbacks_lock = Lock()


class Handle(AnyHandle, gc=False, eq=False):
    """A message on its way."""

    @property
    def is_done(self) -> bool:
        """Whether it is known what became of the message."""
        return self.batch.is_done

    def add_callback(self, callback: "Callable[[Handle], None]") -> None:
        """Call with this handle once it is done, at once if it is; in the thread that sends, so be quick."""
        when_done(self.batch, lambda: _call_back(callback, self))

    def result(self, timeout: Duration | None = None) -> Published:
        """Where the message is; waits until that is known. Raises why it could not be stored."""
        seconds = -1.0 if timeout is None else max(0, messages.asked_duration_ns(timeout, "timeout")) / SECOND
        if not self.batch.is_done:
            waiting = Lock()
            waiting.acquire()
            when_done(self.batch, waiting.release)
            if timeout is None:
                wait_for(waiting)
            elif not waiting.acquire(timeout=min(seconds, TIMEOUT_MAX)):
                raise RequestTimeout(f"publish to {self.batch.queue.topic}", seconds)
        return published(self)


class AsyncHandle(AnyHandle, gc=False, eq=False):
    """A message on its way; can be awaited."""

    @property
    def is_done(self) -> bool:
        """Whether it is known what became of the message."""
        return self.batch.is_done

    def add_callback(self, callback: "Callable[[AsyncHandle], None]") -> None:
        """Call with this handle once it is done, at once if it is."""
        when_done(self.batch, lambda: _call_back(callback, self))

    async def result(self, timeout: Duration | None = None) -> Published:
        """Where the message is; waits until that is known. Raises why it could not be stored."""
        seconds = None if timeout is None else messages.asked_duration_ns(timeout, "timeout") / SECOND
        if not self.batch.is_done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            when_done(self.batch, lambda: None if done.done() else done.set_result(None))
            try:
                async with asyncio.timeout(seconds):
                    await done
            except TimeoutError:
                raise RequestTimeout(f"publish to {self.batch.queue.topic}", seconds or 0) from None
        return published(self)

    def __await__(self) -> Generator[Any, None, Published]:
        return self.result().__await__()


def call_all(callbacks: deque[Callable[[], None]]) -> None:
    """Call each of them once, though several threads may be calling. `popleft` decides which thread calls which."""
    while True:
        try:
            callback = callbacks.popleft()
        except IndexError:
            return
        callback()


def _call_back(callback: "Callable[[Any], None]", handle: AnyHandle) -> None:
    """Call a callback of the application. Its errors are logged: raised, they would end the thread that sends."""
    try:
        callback(handle)
    except Exception:
        logger.exception("a callback of a handle failed")
