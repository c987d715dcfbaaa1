"""A broker is killed again and again under eight producers: what was acknowledged is there once, and in order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from goqueue import Client, Message, Producer, Published
from tests.server.served import Served

PATIENCE = "5m"  # of who publishes: on a busy machine one may meet many a broker that is about to be killed
KILLS = 20
THREADS = 8
PARTITIONS = 3
ACKS_MAX = 400
TIMEOUT_S = 60


Sender = Callable[[bytes, bytes], None]
"""Hands a value and its key over; where the message is becomes known later."""


class Acknowledged:
    """What was acknowledged, and a bell for whoever counts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.places: dict[bytes, Published] = {}
        self.failures: list[Exception] = []

    def __call__(self, value: bytes, result: Callable[[], Published]) -> None:
        with self._changed:
            try:
                self.places[value] = result()
            except Exception as error:
                self.failures.append(error)
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self._changed:
            wanted = len(self.places) + count
            assert self._changed.wait_for(lambda: len(self.places) >= wanted or self.failures, TIMEOUT_S)
            assert not self.failures, self.failures[0]


class Killable:
    """A real broker process that comes back on the same port with the same data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._served = self._serve("127.0.0.1:0")
        self.address = self._served.facts["native"]

    def kill(self) -> None:
        self._served.signal(signal.SIGKILL)
        self._served.finish()

    def restart(self) -> None:
        self._served = self._serve(self.address)
        assert self._served.facts["native"] == self.address

    def stop(self) -> None:
        if self._served.process.poll() is None:
            assert self._served.stop()[0] == 0

    def _serve(self, address: str) -> Served:
        return Served("--data", str(self._data), "--native", address, "--http", "off", "--log-level", "error")


@contextmanager
def killable(data: Path) -> Iterator[Killable]:
    broker = Killable(data)
    try:
        yield broker
    finally:
        broker.stop()


def senders(address: str, acknowledged: Acknowledged, opened: ExitStack) -> list[Sender]:
    """Eight: three with a producer of their own, three that share one, two that publish one by one."""
    shared = opened.enter_context(Client(address, timeout=PATIENCE))
    shared_producer = opened.enter_context(shared.producer(linger="1ms", batch_count=20, buffer_bytes=100_000))

    def through(producer: Producer) -> Sender:
        def send(value: bytes, key: bytes) -> None:
            handle = producer.send("t", value, key=key)
            handle.add_callback(lambda done: acknowledged(value, done.result))

        return send

    def one_by_one(value: bytes, key: bytes) -> None:
        place = shared.publish("t", value, key=key)
        acknowledged(value, lambda: place)

    own = []
    for linger, batch_count in ((0, 1), ("2ms", 7), ("5ms", 100)):
        client = opened.enter_context(Client(address, timeout=PATIENCE))
        own.append(opened.enter_context(client.producer(linger=linger, batch_count=batch_count, buffer_bytes=50_000)))
    return [*map(through, own), *[through(shared_producer)] * 3, one_by_one, one_by_one]


def test_no_acknowledged_message_is_lost_or_doubled_when_the_broker_is_killed_twenty_times(tmp_path: Path) -> None:
    rng = Random(11)
    acknowledged = Acknowledged()
    is_over = threading.Event()
    sent: list[int] = [0] * THREADS

    def produce(thread: int, send: Sender) -> None:
        while not is_over.is_set():
            send(b"%d-%06d" % (thread, sent[thread]), b"key-%d" % thread)
            sent[thread] += 1

    with killable(tmp_path / "data") as broker:
        with Client(broker.address) as gq:
            gq.create_topic("t", partitions=PARTITIONS, segment_bytes=64 * 1024)
        with ExitStack() as opened:
            threads = [
                threading.Thread(target=produce, args=(number, send))
                for number, send in enumerate(senders(broker.address, acknowledged, opened))
            ]
            for thread in threads:
                thread.start()
            try:
                for _ in range(KILLS):
                    acknowledged.wait_for_more(rng.choice((0, 1, 10, rng.randrange(ACKS_MAX))))
                    broker.kill()
                    broker.restart()
                acknowledged.wait_for_more(1)
            finally:
                is_over.set()
                for thread in threads:
                    thread.join(timeout=TIMEOUT_S)
        with Client(broker.address) as gq:
            stored = list(gq.read("t"))

    assert not acknowledged.failures
    check(stored, acknowledged.places, sent)


def check(stored: list[Message], places: dict[bytes, Published], sent: list[int]) -> None:
    values = [message.value for message in stored]
    assert len(values) == len(set(values))
    assert len(places) == sum(sent)
    by_place = {(message.partition, message.offset): message.value for message in stored}
    for value, place in places.items():
        assert by_place[place.partition, place.offset] == value
    for thread, count in enumerate(sent):
        mine = [message.value for message in stored if message.key == b"key-%d" % thread]
        assert mine == [b"%d-%06d" % (thread, number) for number in range(count)]
