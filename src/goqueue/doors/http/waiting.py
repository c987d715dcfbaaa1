"""Awaiting a `Pending` of the service in a coroutine.

A `Pending` calls back in the thread of the event loop, so a plain future suffices. Every wait is bounded: an answer
that is late raises `RequestTimeout`, and a long poll ends early when its client disconnects or the door closes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from litestar.types import Receive

from goqueue.errors import BrokerUnavailable, RequestTimeout
from goqueue.service.pending import Pending

T = TypeVar("T")
TURNS_TO_NOTICE = 3
"""Iterations of the event loop until a disconnect is seen: read the socket, call the protocol, wake the task."""


async def answered(pending: Pending[T], what: str, *, limit_s: float) -> T:
    """The result. Raises `RequestTimeout` after `limit_s`."""
    if pending.is_done:
        return pending.result()
    future = _future(pending)
    timer = future.get_loop().call_later(limit_s, pending_is_late, future, what, limit_s)
    try:
        await future
    finally:
        timer.cancel()
    return pending.result()


def pending_is_late(future: "asyncio.Future[None]", what: str, limit_s: float) -> None:
    """Fail the future with `RequestTimeout`, unless it is done."""
    if not future.done():
        future.set_exception(RequestTimeout(what, limit_s))


async def held(pending: Pending[T], *, unless: "asyncio.Future[None]", limit_s: float) -> bool:
    """Whether the result came before `unless` was done and before the time was over. If not, `pending` is abandoned."""
    if not pending.is_done:
        await asyncio.wait({_future(pending), unless}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    if pending.is_done:
        return True
    pending.fail(BrokerUnavailable("the request was abandoned"))
    return False


@asynccontextmanager
async def leaving(receive: Receive, closing: "asyncio.Future[None]") -> AsyncIterator["asyncio.Future[None]"]:
    """A future that is done once the client has disconnected or the door is closing."""
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    listener = asyncio.create_task(_until_gone(receive))

    def leave(_: object) -> None:
        if not left.done():
            left.set_result(None)

    listener.add_done_callback(leave)
    closing.add_done_callback(leave)
    try:
        yield left
    finally:
        closing.remove_done_callback(leave)
        listener.cancel()


async def has_left(receive: Receive) -> bool:
    """Whether the client has disconnected, also if it did so right after its request."""
    listener = asyncio.create_task(_until_gone(receive))
    for _ in range(TURNS_TO_NOTICE):
        await asyncio.sleep(0)
    listener.cancel()
    return listener.done()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _future(pending: Pending[T]) -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(_: Pending[T]) -> None:
        if not future.done():
            future.set_result(None)

    pending.then(settle)
    return future
