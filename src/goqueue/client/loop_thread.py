"""An event loop in a thread of its own, for a client whose application has none.

It starts with the client and ends with `close`. The thread is a daemon: an application that forgets to close its client
can still end; what was sent is flushed then (`goqueue.client.exits`). Everything that is made from a client refers to
its `LoopThread`, but the thread does not: when the application has dropped all of that, the client is closed.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from goqueue.client import forks
from goqueue.client.exits import OpenClient, Unstored
from goqueue.errors import Conflict

T = TypeVar("T")
NAP_S = 0.5


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self._fork = forks.generation
        self._loop = _new_loop()
        self._is_closed = False
        self._kept: OpenClient | None = None
        self._closers: tuple[Callable[[], None], ...] = ()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="goqueue-client", daemon=True)
        self._thread.start()

    def keep(self, keeping: Callable[[asyncio.AbstractEventLoop], OpenClient], *closers: Callable[[], None]) -> None:
        """Close the client, and call the closers, when the last reference to it is gone."""
        self._kept = keeping(self._loop)
        self._closers = closers

    @property
    def is_closed(self) -> bool:
        is_ended = self._kept is not None and self._kept.is_ended
        return self._is_closed or is_ended or self._fork != forks.generation

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine; Ctrl-C ends the wait and the coroutine."""
        if self.is_closed:
            work.close()
            why = "after a fork" if self._fork != forks.generation else "after close"
            raise Conflict(f"a client cannot be used {why}")
        if threading.current_thread() is self._thread:
            work.close()
            raise Conflict(
                "a client cannot be used in a callback of its own: the thread that would answer is calling it"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return _result(future)
        except CancelledError:
            if self._is_closed:
                raise Conflict("the client was closed by another thread") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The result of a plain function, called in the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def post(self, function: Callable[[], None]) -> None:
        """Have a plain function called in the loop some time, and do not wait for it."""
        if not self.is_closed:
            with suppress(RuntimeError):  # another thread has closed it since
                self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop."""
        if self._is_closed or self._fork != forks.generation:
            return
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __del__(self) -> None:
        kept = getattr(self, "_kept", None)
        if kept is None or self.is_closed:
            return
        ending = kept.begin_end(None)
        if ending is not None:
            ending.add_done_callback(lambda ended: _dropped_client_ended(kept, ended))
        for close in self._closers:
            close()
        kept.warn_unclosed()


def _dropped_client_ended(kept: OpenClient, ended: "Future[Unstored]") -> None:
    """Called in the loop."""
    kept.ended()
    kept.loop.stop()
    if not ended.cancelled() and not ended.exception():
        ended.result().warn()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    """Cancel the tasks that still run, and wake the threads that wait for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


def _result(future: Future[T]) -> T:
    """The result, once it is there.

    The wait is cut into pieces: a Ctrl-C that comes just before a thread sleeps is not noticed until it wakes.
    """
    while True:
        try:
            return future.result(NAP_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
