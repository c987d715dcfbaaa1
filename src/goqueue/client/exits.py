"""The end of a process or of an event loop, for clients that the application has not closed.

Messages that were sent are flushed then, for at most `FLUSH_TIMEOUT_S` over all clients together. A `GoQueueWarning`
counts those that could not be stored, a `ResourceWarning` names an unclosed client.

What notices the end depends on the loop that the client runs in:

- a loop in a thread of its own (`Client`): `atexit`, which runs when all threads but daemons have ended, while the
  daemon thread of the client still runs; or the finalizer of `LoopThread`, when the application has dropped the client
  and everything that was made from it. A worker of `multiprocessing` ends without `atexit`, but has finalizers.
- the loop of the application (`AsyncClient`): an asynchronous generator that waits in the loop. `asyncio.run` closes
  such generators at its end, while the loop still runs, and so does the garbage collector. `atexit` finds the clients
  of loops that ended in another way.

A child of a fork has copies of its parent's clients; it closes only those that it made itself. A process that ends by
`os._exit`, by SIGKILL, or by a SIGTERM without a handler runs none of this.
"""

import asyncio
import atexit
import sys
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import AsyncGeneratorType
from typing import Final, Protocol
from weakref import WeakSet

from goqueue.client import forks
from goqueue.clock import SECOND, SystemClock
from goqueue.errors import GoQueueError, GoQueueWarning

FLUSH_TIMEOUT_S: Final = 10.0
GRACE_S: Final = 1.0
"""How long after that the loop of a client may take to say what it did not store."""
NAP_S: Final = 0.25
"""Waits are cut into such pieces: a Ctrl-C that comes just before a thread falls asleep is noticed when it wakes."""


class Unstored:
    """Messages that were sent and are not stored: how many of which topic, and the first reason."""

    def __init__(self, counts: Counter[str] | None = None, error: GoQueueError | None = None) -> None:
        self.counts: Counter[str] = counts or Counter()
        self.error = error

    def __bool__(self) -> bool:
        return self.counts.total() > 0

    def add(self, other: "Unstored") -> None:
        """Those of the other, too."""
        self.counts.update(other.counts)
        self.error = self.error or other.error

    def __str__(self) -> str:
        total = self.counts.total()
        topics = ", ".join(f"{count:,} of {topic}" for topic, count in sorted(self.counts.items()) if count)
        reason = f" ({self.error})" if self.error else ""
        return f"{total:,} message{'s were' if total != 1 else ' was'} sent and not stored: {topics}{reason}"

    def warn(self) -> None:
        """Say so on standard error, if there is anything to say."""
        if self:
            warnings.warn_explicit(str(self), GoQueueWarning, "goqueue", 1)

    def note_on(self, error: BaseException) -> None:
        """Say so along with an exception that is on its way; one that has no traceback to show it needs a warning."""
        if self:
            error.add_note(str(self))
            if not isinstance(error, Exception):
                self.warn()


class Ends(Protocol):
    """A client as far as its end is concerned."""

    async def end(self, timeout_s: float | None) -> Unstored:
        """Flush for so long, close, and return what is not stored; the sender of which was not told."""

    def unstored(self) -> Unstored:
        """What is not stored now."""


class OpenClient:
    """A client that is in use, and not closed."""

    def __init__(self, client: Ends, loop: asyncio.AbstractEventLoop, *, has_thread: bool) -> None:
        self.is_ended = False
        self.loop = loop
        self._client = client
        self._fork = forks.generation
        self._has_thread = has_thread
        self._ending: Future[Unstored] | None = None
        self._watcher: AsyncGenerator[None, None] | None = None
        _open.add(self)
        if has_thread:
            _with_thread.add(self)
        _watch_worker_process()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a copy of a client of the parent process."""
        return self._fork != forks.generation

    def watch_loop(self) -> None:
        """Have the end of the loop, in which this is called, close the client."""
        self._watcher = _until_the_loop_ends(self)
        with suppress(StopIteration):
            self._watcher.__anext__().send(None)

    async def closed(self) -> None:
        """The application has closed the client."""
        self.ended()
        watcher, self._watcher = self._watcher, None
        if isinstance(watcher, AsyncGeneratorType) and not watcher.ag_running:
            await watcher.aclose()

    def ended(self) -> None:
        """There is nothing left to do."""
        self.is_ended = True
        _open.discard(self)
        _with_thread.discard(self)

    async def end_with_loop(self) -> None:
        """The client was not closed, and its loop ends or the last reference to it is gone."""
        if self.is_ended or self.is_foreign:
            return
        _ending.add(self)
        try:
            unstored = await self._client.end(FLUSH_TIMEOUT_S)
        finally:
            _ending.discard(self)
        self.ended()
        unstored.warn()
        self.warn_unclosed()

    def begin_end(self, timeout_s: float | None) -> "Future[Unstored] | None":
        """Let the client be closed in its loop, if that is running."""
        if self._ending is None and self.loop.is_running():
            work = self._client.end(timeout_s)
            try:
                self._ending = asyncio.run_coroutine_threadsafe(work, self.loop)
            except RuntimeError:  # it was closed in this moment
                work.close()
        return self._ending

    def end_here(self, timeout_s: float) -> Unstored:
        """Close the client in this thread, if its loop can still run; what is not stored."""
        if self.loop.is_closed() or self.loop.is_running():
            return self._client.unstored()
        return self.loop.run_until_complete(self._client.end(timeout_s))

    def unstored(self) -> Unstored:
        """What is not stored now."""
        return self._client.unstored()

    def warn_unclosed(self) -> None:
        """Say that the application forgot to close the client."""
        name = "Client" if self._has_thread else "AsyncClient"
        block = "with" if self._has_thread else "async with"
        text = f"unclosed {name}: use `{block} {name}(...) as gq:`, or call its close()"
        warnings.warn_explicit(text, ResourceWarning, "goqueue", 1, source=self._client)


_open: WeakSet[OpenClient] = WeakSet()
_with_thread: set[OpenClient] = set()  # those that live as long as their thread
_ending: set[OpenClient] = set()  # those without any other reference
_watched_fork = -1


async def _until_the_loop_ends(opened: OpenClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await opened.end_with_loop()


def _at_exit() -> None:
    """Close what is open. Ctrl-C cuts it short."""
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(FLUSH_TIMEOUT_S * SECOND)
    found = [one for one in {*_open, *_ending} if not one.is_ended and not one.is_foreign]
    ended: dict[OpenClient, Unstored] = {}
    with suppress(KeyboardInterrupt):
        _end_all(found, ended, deadline_ns, clock)
    unstored = Unstored()
    for one in found:
        unstored.add(ended.get(one) or one.unstored())
        one.ended()
    try:
        unstored.warn()
    finally:  # warnings may be errors
        for one in found:
            one.warn_unclosed()


def _end_all(
    found: Sequence[OpenClient], ended: dict[OpenClient, Unstored], deadline_ns: int, clock: SystemClock
) -> None:
    """Close them at the same time, and note what each has not stored. What is not noted has not ended in time."""
    waiting = [(one, one.begin_end(FLUSH_TIMEOUT_S)) for one in found]
    for one, ending in waiting:
        if ending is None:
            ended[one] = one.end_here(max(0.0, (deadline_ns - clock.monotonic_ns()) / SECOND))
    for one, ending in waiting:
        while ending is not None and one not in ended and clock.monotonic_ns() < deadline_ns + GRACE_S * SECOND:
            try:
                ended[one] = ending.result(NAP_S)
            except TimeoutError:
                continue
            except Exception:  # its loop was stopped, or it cannot be closed; what it has not stored is known
                break


def _watch_worker_process() -> None:
    """Have a worker of `multiprocessing` close its clients: it ends with `os._exit`, after its own finalizers."""
    global _watched_fork  # noqa: PLW0603
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or _watched_fork == forks.generation or process.parent_process() is None:
        return
    _watched_fork = forks.generation
    util.Finalize(None, _at_exit, exitpriority=100)


atexit.register(_at_exit)
