"""Many threads hand messages over while batches are sealed under their hands: each message is stored once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from goqueue import Client, Handle, Producer

THREADS = 8
PER_THREAD = 400


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads lose their turn wherever they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def hammer(producer: Producer, topic: str, *, flush_every: int = 0) -> list[tuple[bytes, Handle]]:
    """What each thread sent, with its handle."""
    barrier = Barrier(THREADS)

    def send(thread: int) -> list[tuple[bytes, Handle]]:
        barrier.wait()
        sent = []
        for number in range(PER_THREAD):
            value = b"%d-%d" % (thread, number)
            if number % 17 == thread:  # now and then one that takes the long way
                handle = producer.send(topic, value, key=b"key-%d" % thread)
            elif number % 50 == thread:
                handle = producer.send(topic, value, partition=thread % 2)
            else:
                handle = producer.send(topic, value)
            sent.append((value, handle))
            if flush_every and number % flush_every == 0:
                producer.flush()
        return sent

    with ThreadPoolExecutor(THREADS) as threads:
        return [one for sent in threads.map(send, range(THREADS)) for one in sent]


@pytest.mark.parametrize("round_", range(20))
@pytest.mark.usefixtures("frequent_switches")
def test_every_handle_resolves_to_its_own_message_however_threads_are_interleaved(gq: Client, round_: int) -> None:
    gq.create_topic("t", partitions=2)
    batch_count, linger = ((2, "1ms"), (3, "0.1ms"), (7, "5ms"), (1, "1ms"), (5, 0))[round_ % 5]

    with gq.producer(batch_count=batch_count, linger=linger) as producer:
        sent = hammer(producer, "t", flush_every=97 if round_ % 2 else 0)

    places = [handle.result(timeout="10s") for _, handle in sent]
    stored = {(message.partition, message.offset): message.value for message in gq.read("t")}
    assert len(stored) == len(sent) == len(set(stored.values()))
    for (value, _), place in zip(sent, places, strict=True):
        assert stored[place.partition, place.offset] == value


@pytest.mark.usefixtures("frequent_switches")
def test_every_handle_is_settled_when_the_producer_is_closed_while_threads_send(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    producer = gq.producer(batch_count=3, linger="1ms")
    producer.send("t", b"first").result()
    barrier = Barrier(THREADS + 1)

    def send(thread: int) -> list[tuple[bytes, Handle]]:
        barrier.wait()
        sent: list[tuple[bytes, Handle]] = []
        try:
            for number in range(100_000):
                value = b"%d-%d" % (thread, number)
                sent.append((value, producer.send("t", value)))
        except Exception as error:
            assert "closed" in str(error)
        return sent

    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(send, thread) for thread in range(THREADS)]
        barrier.wait()
        try:
            producer.close()
        except Exception as error:
            assert "closed" in str(error)
        sent = [one for future in running for one in future.result()]

    stored = [message.value for message in gq.read("t")]
    assert len(stored) == len(set(stored))
    for value, handle in sent:
        try:
            place = handle.result(timeout="10s")
        except Exception as error:
            assert "closed" in str(error)
        else:
            assert place.offset >= 0
            assert value in stored
