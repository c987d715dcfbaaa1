"""Tests in which waiting takes no time."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

from goqueue.testing.simulated_process import ProcessLoop


def in_virtual_time(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=ProcessLoop) as runner:
            runner.run(test())

    return run


async def after(seconds: float) -> None:
    """Let that much time of the simulation pass."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed
