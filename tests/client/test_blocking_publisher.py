"""One message at a time, in the thread that publishes it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from goqueue import Client, MessageTooLarge
from tests.client.faulty_network import Proxy

THREADS = 8
WAIT_S = 20


def test_a_limit_that_was_raised_is_noticed_at_once(gq: Client) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=100)
    with pytest.raises(MessageTooLarge):
        gq.publish("t", b"v" * 150)

    gq.alter_topic("t", max_message_bytes=200)

    assert gq.publish("t", b"v" * 150).offset == 0


def test_a_limit_that_was_lowered_is_told_by_the_broker(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    gq.publish("t", b"v")

    gq.alter_topic("t", max_message_bytes=100)

    with pytest.raises(MessageTooLarge) as caught:
        gq.publish("t", b"v" * 150)
    assert (caught.value.field, caught.value.size, caught.value.limit) == ("value", 150, 100)
    assert gq.publish("t", b"again").offset == 1


def test_a_topic_that_is_made_anew_is_published_to_by_the_same_client(gq: Client) -> None:
    for partitions in (3, 1, 2, 2):
        gq.create_topic("t", partitions=partitions)
        for number in range(10):
            gq.publish("t", b"%d" % number, key="k" if number % 2 else None)
        assert sorted(message.value for message in gq.read("t")) == [b"%d" % number for number in range(10)]
        gq.delete_topic("t")


def test_threads_that_publish_one_by_one_share_a_client(gq: Client) -> None:
    gq.create_topic("t", partitions=2)

    def publish(thread: int) -> list[tuple[bytes, int, int]]:
        values = [b"%d-%d" % (thread, number) for number in range(50)]
        return [(value, *gq.publish("t", value, key=b"%d" % thread)[1:3]) for value in values]

    with ThreadPoolExecutor(THREADS) as threads:
        places = [place for found in threads.map(publish, range(THREADS)) for place in found]

    stored = {(message.partition, message.offset): message for message in gq.read("t")}
    assert len(stored) == len(places) == THREADS * 50
    for value, partition, offset in places:
        assert stored[partition, offset].value == value
    for thread in range(THREADS):
        mine = [message.value for message in stored.values() if message.key == b"%d" % thread]
        assert mine == [b"%d-%d" % (thread, number) for number in range(50)]


def test_only_one_thread_at_a_time_is_served(gq: Client, address: str) -> None:
    """The client publishes for the others, over its event loop."""
    gq.create_topic("t", partitions=1)

    with Proxy(address) as proxy, Client(proxy.address) as client, ThreadPoolExecutor(1) as threads:
        publisher = client._client.blocking_publisher()
        assert publisher.publish("t", b"first")
        proxy.mute()
        waiting = threads.submit(publisher.publish, "t", b"second")
        proxy.wait_for_muted_answer()
        assert publisher.publish("t", b"third") is None
        proxy.mute(False)
        proxy.cut()
        second = waiting.result(timeout=WAIT_S)
        publisher.close()

    assert second is not None
    assert second.offset == 1
    assert [message.value for message in gq.read("t")] == [b"first", b"second"]


def test_a_closed_publisher_takes_nothing(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    publisher = gq._client.blocking_publisher()
    assert publisher.publish("t", b"v")

    publisher.close()

    assert publisher.publish("t", b"v") is None
    assert gq.offsets("t") == [1]
