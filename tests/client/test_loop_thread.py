"""An event loop in a thread of its own: results come back, and nobody waits for one that cannot come."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue

import pytest

from goqueue import Client, Conflict, Handle
from goqueue.client.loop_thread import LoopThread

WAIT_S = 20


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


async def share(count: int) -> int:
    return 10 // count


def test_a_result_and_an_error_come_back_to_the_thread_that_asked(loop: LoopThread) -> None:
    assert loop.run(share(5)) == 2
    with pytest.raises(ZeroDivisionError):
        loop.run(share(0))
    assert loop.call(threading.get_ident) != threading.get_ident()


def test_what_is_posted_is_called_in_order_and_nobody_waits(loop: LoopThread) -> None:
    called: Queue[int] = Queue()

    for number in range(10):
        loop.post(partial(called.put, number))

    assert [called.get(timeout=WAIT_S) for _ in range(10)] == list(range(10))


def test_a_closed_loop_refuses_work_and_can_be_closed_again(loop: LoopThread) -> None:
    called: Queue[int] = Queue()
    loop.close()
    loop.close()

    for _ in range(2):
        with pytest.raises(Conflict, match="after close"):
            loop.run(share(1))
    loop.post(partial(called.put, 1))

    assert loop.is_closed
    assert called.empty()


def test_whoever_waits_is_told_when_another_thread_closes_the_loop(loop: LoopThread) -> None:
    has_begun = threading.Event()

    async def wait() -> None:
        has_begun.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(loop.run, wait())
        assert has_begun.wait(WAIT_S)
        loop.close()

        with pytest.raises(Conflict, match="closed by another thread"):
            waiting.result(timeout=WAIT_S)


def test_a_callback_must_not_wait_for_its_own_client(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    told: Queue[Exception | None] = Queue()

    def wait(_: Handle) -> None:
        try:
            told.put(gq.topics())  # type: ignore[arg-type]
        except Conflict as error:
            told.put(error)

    with gq.producer(linger=0) as producer:
        producer.send("t", b"v").add_callback(wait)
        assert isinstance(told.get(timeout=10), Conflict)
