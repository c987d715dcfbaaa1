"""Clients that nobody closed, at the end of their loop: flushed, and told about.

Whole processes that end in all kinds of ways are in tests/careless/test_exit.py.
"""

import asyncio
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from goqueue import GoQueueWarning, TopicNotFound
from goqueue.client.exits import FLUSH_TIMEOUT_S, OpenClient, Unstored
from goqueue.client.loop_thread import LoopThread

WAIT_S = 20


class Unclosed:
    """A client as far as its end is concerned: it has messages that no broker takes."""

    def __init__(self, *topics: str) -> None:
        self._left = Counter(topics)
        self.ended_within: list[float | None] = []

    async def end(self, timeout_s: float | None) -> Unstored:
        self.ended_within.append(timeout_s)
        return self.unstored()

    def unstored(self) -> Unstored:
        return Unstored(Counter(self._left))


@contextmanager
def told() -> Iterator[list[str]]:
    """What is said about clients inside of the block, by category."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [f"{one.category.__name__}: {one.message}" for one in caught if one.filename == "goqueue"]


# --- what is not stored --------------------------------------------------------------------------


def test_what_is_not_stored_is_counted_by_topic_with_the_first_reason() -> None:
    unstored = Unstored(Counter(a=1))
    assert str(unstored) == "1 message was sent and not stored: 1 of a"

    unstored.add(Unstored(Counter(b=1_200, a=2), TopicNotFound("b")))
    unstored.add(Unstored(Counter(), TopicNotFound("c")))

    assert str(unstored) == "1,203 messages were sent and not stored: 3 of a, 1,200 of b (topic not found: b)"


def test_nothing_is_said_when_all_is_stored() -> None:
    unstored, error = Unstored(Counter(a=0)), SystemExit()

    unstored.warn()
    unstored.note_on(error)

    assert not unstored
    assert not hasattr(error, "__notes__")


def test_an_exception_on_its_way_says_it_and_one_without_a_traceback_needs_a_warning() -> None:
    unstored = Unstored(Counter(a=1))
    error, interrupt = ZeroDivisionError(), KeyboardInterrupt()

    unstored.note_on(error)
    with pytest.warns(GoQueueWarning, match="1 of a"):
        unstored.note_on(interrupt)

    assert error.__notes__ == interrupt.__notes__ == [str(unstored)]


# --- loops ---------------------------------------------------------------------------------------


def test_a_client_that_nobody_closed_is_flushed_when_its_loop_ends() -> None:
    client, kept = Unclosed("orders", "orders"), list[OpenClient]()

    async def main() -> None:
        kept.append(OpenClient(client, asyncio.get_running_loop(), has_thread=False))
        kept[0].watch_loop()

    with told() as said:
        asyncio.run(main())

    assert (client.ended_within, kept[0].is_ended) == ([FLUSH_TIMEOUT_S], True)
    assert said == [
        "GoQueueWarning: 2 messages were sent and not stored: 2 of orders",
        "ResourceWarning: unclosed AsyncClient: use `async with AsyncClient(...) as gq:`, or call its close()",
    ]


def test_a_client_that_was_closed_is_left_alone() -> None:
    client = Unclosed("orders")

    async def main() -> None:
        opened = OpenClient(client, asyncio.get_running_loop(), has_thread=False)
        opened.watch_loop()
        await opened.closed()
        assert opened.is_ended

    with told() as said:
        asyncio.run(main())

    assert (client.ended_within, said) == ([], [])


def test_a_client_is_ended_once_in_the_loop_of_its_thread() -> None:
    client, loop, kept = Unclosed("orders"), LoopThread(), list[OpenClient]()

    def keeping(running: asyncio.AbstractEventLoop) -> OpenClient:
        kept.append(OpenClient(client, running, has_thread=True))
        return kept[0]

    loop.keep(keeping)
    ending = kept[0].begin_end(1.5)

    assert ending is not None
    assert str(ending.result(timeout=WAIT_S)) == "1 message was sent and not stored: 1 of orders"
    assert kept[0].begin_end(9) is ending
    assert client.ended_within == [1.5]
    kept[0].ended()
    loop.close()


def test_a_client_is_ended_in_a_loop_that_was_stopped_but_not_in_one_that_is_closed() -> None:
    client, loop = Unclosed("orders"), asyncio.new_event_loop()
    opened = OpenClient(client, loop, has_thread=False)
    assert opened.begin_end(1) is None

    assert opened.end_here(2.5).counts == {"orders": 1}
    loop.close()
    assert opened.end_here(2.5).counts == {"orders": 1}

    assert client.ended_within == [2.5]
    opened.ended()
