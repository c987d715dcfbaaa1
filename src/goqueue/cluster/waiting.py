"""Waiting in the event loop for what is not of the event loop: a `Pending` of pure code, or a time of a node."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from goqueue.cluster.node_time import NodeTime
from goqueue.service.pending import Pending

T = TypeVar("T")


async def settled(pending: Pending[T]) -> T:
    """The answer, or what was raised instead of it."""
    if not pending.is_done:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending.then(lambda _: None if done.done() else done.set_result(None))
        await done
    return pending.result()


def drop(task: "asyncio.Future[T]") -> None:
    """Cancel what nobody waits for any more, and whatever comes of it."""
    task.cancel()
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())


async def within(time: NodeTime, duration_ns: int, awaitable: Awaitable[T]) -> T:
    """The result, or `TimeoutError` if it does not come in so long by the clock of the node; it is cancelled then."""
    waiting = asyncio.ensure_future(awaitable)
    sleeping = asyncio.ensure_future(time.sleep(duration_ns))
    try:
        await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise TimeoutError
    finally:
        drop(waiting)
        drop(sleeping)


async def set_or_later(time: NodeTime, duration_ns: int | None, event: asyncio.Event) -> None:
    """Return when the event is set, at the latest after so long; the event is cleared."""
    if duration_ns is None:
        await event.wait()
    else:
        try:
            await within(time, duration_ns, event.wait())
        except TimeoutError:
            return
    event.clear()
