"""The connection of a consumer: for one thread at a time, until it is closed or nobody has it any more."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from goqueue import Client, Conflict
from tests.client.test_consumer import WAIT_S, eventually, floor, values


def test_two_threads_at_once_are_told(one: Client) -> None:
    with ThreadPoolExecutor(1) as threads, one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        waiting = threads.submit(consumer.poll, timeout="20s")
        eventually(lambda: one.groups() and consumer._connection.is_busy)
        for use in (lambda: consumer.poll(timeout=0), batch[0].ack, consumer.commit):
            with pytest.raises(Conflict, match="one thread at a time"):
                use()
        one.publish("t", b"10")
        assert values(waiting.result(timeout=WAIT_S)) == [10]


def test_a_consumer_may_wander_from_thread_to_thread(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        for number in range(10):
            with ThreadPoolExecutor(1) as threads:
                (message,) = threads.submit(consumer.poll, 1).result()
                assert int(message.value) == number
                threads.submit(message.ack).result()


def test_nothing_can_be_done_after_close(one: Client) -> None:
    consumer = one.consumer("t", group="g")
    batch = consumer.poll()
    consumer.close()
    consumer.close()

    def leave_a_block() -> None:
        with batch[0]:
            pass

    uses: list[Callable[[], object]] = [
        consumer.poll,
        consumer.join,
        consumer.commit,
        batch[0].ack,
        leave_a_block,
        lambda: consumer.ack(batch),
        lambda: consumer.extend(batch, "1m"),
    ]
    for use in uses:
        with pytest.raises(Conflict, match="after close"):
            use()
    with pytest.raises(ZeroDivisionError), batch[0]:
        raise ZeroDivisionError
    assert one.describe_group("g").members == []


def test_a_client_that_is_closed_takes_its_consumers_along(address: str, one: Client) -> None:
    with Client(address) as client:
        consumer = client.consumer("t", group="g")
        (message,) = consumer.poll(1)
        with message:
            pass
        idle = client.consumer("t", group="idle")

    assert floor(one) == 1
    assert one.describe_group("g").members == []
    for use in (consumer.poll, idle.poll, message.ack):
        with pytest.raises(Conflict, match="after close"):
            use()
    consumer.close()
    idle.close()


def test_a_consumer_that_nobody_has_leaves_the_group(one: Client) -> None:
    consumer = one.consumer("t", group="g")
    consumer.poll(1)
    gone = weakref.ref(consumer)
    del consumer
    gc.collect()

    assert gone() is None
    eventually(lambda: not one.describe_group("g").members)


def test_another_thread_may_close_a_consumer_that_polls(one: Client) -> None:
    consumer = one.consumer("t", group="g", start="latest")
    with ThreadPoolExecutor(1) as threads:
        consumer.join()
        waiting = threads.submit(consumer.poll, timeout="10m")
        eventually(lambda: one.groups() and consumer._connection.is_busy)
        began = monotonic()
        consumer.close()

        with pytest.raises(Conflict, match="after close"):
            waiting.result(timeout=WAIT_S)
        assert monotonic() - began < 5
    assert one.describe_group("g").members == []


def test_messages_that_are_settled_may_come_from_a_generator(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        consumer.ack(message for message in batch if int(message.value) < 4)

        assert floor(one) == 4
