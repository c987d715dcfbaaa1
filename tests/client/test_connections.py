"""Brokers that go away and come back, connections that are cut, and Ctrl-C: nothing is lost, nothing is there twice."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from goqueue import (
    BrokerUnavailable,
    Client,
    Conflict,
    Consumer,
    InternalError,
    NotLeader,
    Published,
    RequestTimeout,
    StorageFull,
    TopicNotFound,
)
from goqueue.testing import EmbeddedBroker
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb
from tests.client.faulty_network import Proxy

WAIT = "20s"


class RestartingBroker:
    """A broker that comes back on the same port with the same data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._broker = self._new("127.0.0.1:0")
        self.address = self._broker.address

    def stop(self) -> None:
        self._broker.stop()

    def start(self) -> None:
        self._broker = self._new(self.address)

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _new(self, address: str) -> EmbeddedBroker:
        settings = {"housekeeping_maintenance_interval": "100ms"}
        return EmbeddedBroker(http=False, data=self._data, native=address, **settings).start()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RestartingBroker]:
    with RestartingBroker(tmp_path / "data") as broker:
        yield broker


def values(gq: Client, topic: str = "t") -> list[bytes]:
    return [message.value for message in gq.read(topic)]


# --- restarts -----------------------------------------------------------------------------------


def test_a_client_goes_on_after_a_restart(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        for number in range(3):
            gq.publish("t", b"%d" % number)
            broker.restart()
            assert gq.topics() == ["t"]
            assert values(gq) == [b"%d" % one for one in range(number + 1)]


@pytest.mark.parametrize("way", ["publish", "many", "producer", "loop"])
def test_what_is_published_during_an_outage_is_stored_after_it(broker: RestartingBroker, way: str) -> None:
    with Client(broker.address) as gq, ThreadPoolExecutor(1) as threads, gq.producer(linger=0) as producer:
        gq.create_topic("t", partitions=1)
        gq.publish("t", b"before")
        producer.send("t", b"before").result(timeout=WAIT)
        ways: dict[str, Callable[[], Any]] = {
            "publish": lambda: gq.publish("t", b"during"),
            "many": lambda: gq.publish_many("t", [b"during"])[0],
            "producer": lambda: producer.send("t", b"during").result(timeout=WAIT),
            "loop": lambda: gq._loop.run(gq._client.publish("t", b"during")),
        }
        broker.stop()

        waiting = threads.submit(ways[way])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        broker.start()

        assert waiting.result(timeout=20).offset == 2
        assert values(gq) == [b"before", b"before", b"during"]


def test_a_producer_goes_on_through_restarts_in_order_and_exactly_once(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=3)
        with gq.producer(linger="1ms", batch_count=7) as producer:
            handles = []
            for part in range(4):
                handles += [
                    producer.send("t", b"%05d" % number, key=b"%d" % (number % 10))
                    for number in range(1_000 * part, 1_000 * (part + 1))
                ]
                broker.restart()

        stored = {(message.partition, message.offset): message.value for message in gq.read("t")}
        assert sorted(stored.values()) == [b"%05d" % number for number in range(4_000)]
        for number, handle in enumerate(handles):
            place = handle.result(timeout=WAIT)
            assert stored[place.partition, place.offset] == b"%05d" % number
        for partition in range(3):
            found = list(gq.read("t", partition=partition))
            for key in {message.key for message in found}:
                mine = [message.value for message in found if message.key == key]
                assert mine == sorted(mine)


def test_an_outage_that_lasts_too_long_is_reported_within_the_timeout(broker: RestartingBroker) -> None:
    with Client(broker.address, timeout="1500ms") as gq:
        gq.create_topic("t", partitions=1)
        gq.publish("t", b"direct")
        gq._loop.run(gq._client.publish("t", b"by the loop"))
        broker.stop()

        for ask in (
            lambda: gq.publish("t", b"v"),
            lambda: gq._loop.run(gq._client.publish("t", b"v")),
            lambda: gq.publish_many("t", [b"v"]),
            gq.topics,
            lambda: list(gq.read("t")),
        ):
            with pytest.raises((RequestTimeout, BrokerUnavailable)) as caught:
                ask()
            assert caught.value.retryable
        broker.start()

        assert gq.publish("t", b"after").offset == 2
        assert gq._loop.run(gq._client.publish("t", b"after")).offset == 3


# --- answers that get lost ----------------------------------------------------------------------


@contextmanager
def cut_off(address: str, *, timeout: str = "20s") -> Iterator[tuple[Proxy, Client]]:
    with Proxy(address) as proxy, Client(proxy.address, timeout=timeout) as client:
        yield proxy, client


@pytest.mark.parametrize("way", ["publish", "many", "loop"])
def test_a_message_is_stored_once_though_its_answer_is_lost_three_times(gq: Client, address: str, way: str) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address) as (proxy, client):
        ways: dict[str, Callable[[bytes], Any]] = {
            "publish": lambda value: client.publish("t", value),
            "many": lambda value: client.publish_many("t", [value])[0],
            "loop": lambda value: client._loop.run(client._client.publish("t", value)),
        }
        for number in range(5):
            proxy.lose_answers(Verb.PUBLISH, 3)
            assert ways[way](b"%d" % number).offset == number
        assert proxy.lost == 15

    assert values(gq) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("batch_count", [1, 3, 100])
def test_a_producer_stores_everything_once_and_in_order_though_answers_are_lost(
    gq: Client, address: str, batch_count: int
) -> None:
    gq.create_topic("t", partitions=2)

    with cut_off(address) as (proxy, client), client.producer(linger="1ms", batch_count=batch_count) as producer:
        handles = []
        for number in range(500):
            if number % 100 == 0:
                proxy.lose_answers(Verb.PUBLISH, 4)
            handles.append(producer.send("t", b"%04d" % number, partition=number % 2))
        producer.flush()
        assert proxy.lost >= 4

    for partition in range(2):
        stored = [message.value for message in gq.read("t", partition=partition)]
        assert stored == [b"%04d" % number for number in range(partition, 500, 2)]
    assert [handle.result().offset for handle in handles] == [number // 2 for number in range(500)]


def test_what_was_given_up_is_not_mixed_up_with_what_follows(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address, timeout="1500ms") as (proxy, client):
        assert client.publish("t", b"first").offset == 0
        for number in range(3):
            proxy.lose_answers(Verb.PUBLISH, 1_000)
            with pytest.raises((RequestTimeout, BrokerUnavailable)):
                client.publish("t", b"lost-%d" % number)
            proxy.lose_answers(Verb.PUBLISH, 0)
            assert client.publish("t", b"found-%d" % number).offset == 2 * number + 2

    assert values(gq) == [b"first", *(b"%s-%d" % (what, n) for n in range(3) for what in (b"lost", b"found"))]


FULL = verbs.error_meta(StorageFull("disk"))
BUG = verbs.error_meta(InternalError("a bug"))
NEW = verbs.ErrorMeta("FROM_THE_FUTURE", "something new is the matter", True, {"what": "new"})


@pytest.mark.parametrize("error", [FULL, NEW])
def test_what_the_broker_refuses_for_now_is_tried_again(gq: Client, address: str, error: verbs.ErrorMeta) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address) as (proxy, client), client.producer(linger=0) as producer:
        proxy.replace_answers(Verb.PUBLISH, error, 3)
        assert client.publish("t", b"0").offset == 0
        proxy.replace_answers(Verb.PUBLISH, error, 3)
        assert producer.send("t", b"1").result(timeout=WAIT).offset == 1
        proxy.replace_answers(Verb.LIST_TOPICS, error, 3)
        assert client.topics() == ["t"]

    assert values(gq) == [b"0", b"1"]


def test_what_the_broker_refuses_for_ever_fails_with_its_reason_after_the_delivery_timeout(
    gq: Client, address: str
) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address, timeout="1500ms") as (proxy, client):
        producer = client.producer(linger=0, delivery_timeout="1500ms")
        client.publish("t", b"known")
        producer.send("t", b"known").result(timeout=WAIT)
        proxy.replace_answers(Verb.PUBLISH, FULL, 1_000_000)
        with pytest.raises(StorageFull):
            client.publish("t", b"v")
        with pytest.raises(StorageFull):
            producer.send("t", b"v").result(timeout=WAIT)
        producer.send("t", b"v")
        with pytest.raises(StorageFull):
            producer.close()


@pytest.mark.parametrize("way", ["publish", "producer"])
def test_a_bug_of_the_broker_fails_one_message_and_no_other(gq: Client, address: str, way: str) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address) as (proxy, client), client.producer(linger=0) as producer:
        publish: Callable[[bytes], Any] = {
            "publish": lambda value: client.publish("t", value),
            "producer": lambda value: producer.send("t", value).result(timeout=WAIT),
        }[way]
        for number in range(3):
            publish(b"good-%d" % number)
            proxy.replace_answers(Verb.PUBLISH, BUG, 1)
            with pytest.raises(InternalError) as caught:
                publish(b"said to have failed")
            assert caught.value.request_id == "a bug"
            publish(b"next-%d" % number)

    stored = [value for value in values(gq) if value != b"said to have failed"]
    assert stored == [b"%s-%d" % (what, n) for n in range(3) for what in (b"good", b"next")]


def test_a_complaint_about_the_connection_fails_no_request(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    complaint = verbs.ErrorMeta("INVALID_REQUEST", "a frame fails its checksum", False, {})

    with cut_off(address) as (proxy, client), ThreadPoolExecutor(2) as threads, client.producer(linger=0) as producer:
        client.publish("t", b"known")
        producer.send("t", b"known").result(timeout=WAIT)
        proxy.mute()
        handle = producer.send("t", b"v")
        waiting: list[Future[Any]] = [threads.submit(client.publish, "t", b"v"), threads.submit(client.topics)]
        for _ in range(3):
            proxy.wait_for_muted_answer()
        proxy.mute(False)
        proxy.say_to_all(complaint)

        assert handle.result(timeout=WAIT).offset in (2, 3)
        assert {type(future.result(timeout=20)) for future in waiting} == {Published, list}

    assert len(values(gq)) == 4


def test_what_was_given_up_before_it_was_sent_leaves_nothing_behind(broker: RestartingBroker) -> None:
    with Client(broker.address, timeout="1500ms") as gq:
        gq.create_topic("t", partitions=1)
        gq.publish("t", b"first")
        with gq.producer(linger=0, delivery_timeout="1500ms") as producer:
            producer.send("t", b"second").result(timeout=WAIT)
            broker.stop()
            handle = producer.send("t", b"lost")
            with pytest.raises((RequestTimeout, BrokerUnavailable)):
                gq.publish("t", b"lost")
            with pytest.raises(RequestTimeout):
                handle.result(timeout=WAIT)
            broker.start()
            gq.topics()
            assert producer.send("t", b"third").result(timeout=WAIT).offset == 2
            assert gq.publish("t", b"fourth").offset == 3

        assert values(gq) == [b"first", b"second", b"third", b"fourth"]


def test_a_topic_is_made_once_though_its_answer_is_lost(gq: Client, address: str) -> None:
    with cut_off(address) as (proxy, client):
        proxy.lose_answers(Verb.CREATE_TOPIC, 2)
        with pytest.raises(BrokerUnavailable):
            client.create_topic("once")
        assert client.create_topic("once", exist_ok=True).name == "once"
        proxy.lose_answers(Verb.DELETE_TOPIC, 1)
        client.delete_topic("once", missing_ok=True)

    assert gq.topics() == []


def test_reading_goes_on_over_connections_that_are_cut(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=2)
    gq.publish_many("t", [(b"%d" % (number % 7), b"%d" % number * 3_000) for number in range(1_000)])

    with cut_off(address) as (proxy, client):
        messages = client.read("t")
        found = []
        while batch := messages.next_batch():
            found += batch
            proxy.lose_answers(Verb.READ, 1)

    assert len({(message.partition, message.offset) for message in found}) == len(found) == 1_000
    assert proxy.lost >= 2


# --- Ctrl-C -------------------------------------------------------------------------------------


@contextmanager
def interrupted(proxy: Proxy) -> Iterator[None]:
    """Ctrl-C reaches this thread once the proxy has kept back an answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    me = threading.main_thread().ident
    assert me

    def interrupt() -> None:
        proxy.wait_for_muted_answer()
        signal.pthread_kill(me, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    proxy.mute()
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        proxy.mute(False)
        proxy.cut()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", ["publish", "loop", "many", "producer", "flush", "read", "follow", "topics"])
def test_ctrl_c_ends_the_wait_and_leaves_the_client_usable(gq: Client, address: str, way: str) -> None:
    gq.create_topic("t", partitions=1)

    with cut_off(address) as (proxy, client), client.producer(linger=0) as producer:
        client.publish("t", b"first")
        producer.send("t", b"first").result(timeout=WAIT)

        def send_and_flush() -> None:
            producer.send("t", b"interrupted")
            producer.flush()

        uses: dict[str, Callable[[], Any]] = {
            "publish": lambda: client.publish("t", b"interrupted"),
            "loop": lambda: client._loop.run(client._client.publish("t", b"interrupted")),
            "many": lambda: client.publish_many("t", [b"interrupted"]),
            "producer": lambda: producer.send("t", b"interrupted").result(),
            "flush": send_and_flush,
            "read": lambda: list(client.read("t")),
            "follow": lambda: list(client.follow("t", start="earliest")),
            "topics": client.topics,
        }
        for _ in range(3):
            with interrupted(proxy):
                uses[way]()
            assert client.publish("t", b"after")
            assert producer.send("t", b"after").result(timeout=WAIT)
            assert client.topics() == ["t"]

    stored = values(gq)
    assert stored.count(b"first") == 2
    assert stored.count(b"after") == 6
    assert stored.count(b"interrupted") <= 3


def test_a_thread_that_follows_is_told_when_the_client_is_closed(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    client = Client(address)
    gq.publish("t", b"v")
    messages = client.follow("t", start="earliest")
    assert len(messages.next_batch()) == 1

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(messages.next_batch)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        client.close()
        with pytest.raises(Conflict):
            waiting.result(timeout=10)


def test_a_topic_that_is_deleted_in_an_outage_is_reported(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq, Client(broker.address) as other:
        gq.create_topic("t", partitions=1)
        with other.producer(linger=0) as producer:
            producer.send("t", b"v").result(timeout=WAIT)
            other.publish("t", b"v")
            gq.delete_topic("t")
            broker.restart()

            with pytest.raises(TopicNotFound):
                producer.send("t", b"v").result(timeout=WAIT)
            with pytest.raises(TopicNotFound):
                other.publish("t", b"v")


# --- leaders ------------------------------------------------------------------------------------

NOT_LEADER = verbs.ErrorMeta("NOT_LEADER", "not the leader of t-0", True, {"topic": "t", "partition": 0, "leader": ""})


@pytest.mark.parametrize(
    ("verb", "ask"),
    [
        (Verb.PUBLISH, lambda gq, _: gq.publish("t", b"v").offset == 1),
        (Verb.PUBLISH, lambda gq, _: gq._loop.run(gq._client.publish("t", b"v")).offset == 1),
        (Verb.READ, lambda gq, _: values(gq) == [b"first"]),
        (Verb.READ, lambda gq, _: len(list(gq.scan("t", 0, 0, 1))) == 1),
        (Verb.OFFSETS, lambda gq, _: gq.offsets("t") == [1]),
        (Verb.SUBSCRIBE, lambda gq, _: [one.value for one in gq.follow("t", start="earliest", limit=1)] == [b"first"]),
        (Verb.JOIN, lambda _, consumer: [one.value for one in consumer.poll()] == [b"first"]),
        (Verb.POLL, lambda _, consumer: [one.value for one in consumer.poll()] == [b"first"]),
        (Verb.CALL, lambda gq, _: gq.commit_group("other", {("t", 0): 1}) is None),
        (Verb.CREATE_TOPIC, lambda gq, _: gq.create_topic("t", partitions=1, exist_ok=True).name == "t"),
    ],
)
def test_what_is_refused_for_want_of_a_leader_is_asked_again(
    broker: RestartingBroker, verb: Verb, ask: Callable[[Client, Consumer], bool]
) -> None:
    with Client(broker.address) as direct, Proxy(broker.address) as proxy, Client(proxy.address) as gq:
        direct.create_topic("t", partitions=1)
        direct.publish("t", b"first")
        with gq.consumer("t", group="g") as consumer:
            proxy.replace_answers(verb, NOT_LEADER, 3)

            assert ask(gq, consumer)


def test_a_partition_without_a_leader_fails_a_request_when_its_time_is_over(broker: RestartingBroker) -> None:
    with Client(broker.address) as direct, Proxy(broker.address) as proxy:
        direct.create_topic("t", partitions=1)
        with Client(proxy.address, timeout="300ms") as gq:
            gq.topics()
            proxy.replace_answers(Verb.READ, NOT_LEADER, 1_000_000)

            with pytest.raises(NotLeader):
                values(gq)
