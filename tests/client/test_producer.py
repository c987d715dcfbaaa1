"""Producers: how they batch, wait, fail, close and fork."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

from goqueue import (
    Client,
    Conflict,
    GoQueueWarning,
    Handle,
    InvalidConfig,
    InvalidMessage,
    InvalidRequest,
    MessageTooLarge,
    PartitionNotFound,
    Published,
    RequestTimeout,
    RequestTooLarge,
    TopicNotFound,
)
from goqueue.client.accumulator import SMALL_RECORD_BYTES, MessageBatch
from goqueue.record.header import HEADER_BYTES
from goqueue.testing import EmbeddedBroker
from tests.client.faulty_network import Proxy

WAIT = "10s"


def values(gq: Client, topic: str = "t") -> list[bytes]:
    return [message.value for message in gq.read(topic)]


def batches(handles: list[Handle]) -> list[int]:
    """How many messages are in each batch, in the order of their batches."""
    counts: Counter[MessageBatch] = Counter(handle.batch for handle in handles)
    return list(counts.values())


def test_leaving_the_block_flushes(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h", batch_count=1_000) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(10)]

    assert all(handle.is_done for handle in handles)
    assert values(gq) == [b"%d" % number for number in range(10)]


def test_a_handle_says_where_the_message_is(gq: Client) -> None:
    gq.create_topic("t", partitions=3)

    with gq.producer() as producer:
        place = producer.send("t", b"v", partition=2).result(timeout=WAIT)

    (message,) = gq.read("t", partition=2)
    assert place == Published("t", 2, 0, message.timestamp)


def test_what_lingers_goes_out_by_itself(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="20ms", batch_count=1_000) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(3)]
        assert handles[-1].result(timeout=WAIT).offset == 2

    assert batches(handles) == [3]


def test_without_linger_each_message_goes_at_once(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger=0) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(5)]
        assert [handle.result(timeout=WAIT).offset for handle in handles] == [0, 1, 2, 3, 4]

    assert batches(handles) == [1] * 5


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_is_sealed_when_it_has_as_many_messages_as_it_may(gq: Client, keyed: bool) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h", batch_count=4) as producer:
        handles = [producer.send("t", b"v", key=b"k" if keyed else None) for _ in range(10)]
        assert handles[7].result(timeout=WAIT).offset == 7
        assert not handles[8].is_done

    assert batches(handles) == [4, 4, 2]


def test_a_batch_is_sealed_when_it_has_as_many_bytes_as_it_may(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h", batch_count=1_000, batch_bytes=10_000) as producer:
        handles = [producer.send("t", b"v" * (3_000 - HEADER_BYTES)) for _ in range(9)]
        assert handles[7].result(timeout=WAIT).offset == 7

    assert batches(handles) == [4, 4, 1]


def test_small_values_fill_a_batch_as_if_they_were_not_so_small(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h", batch_count=1_000, batch_bytes=10 * SMALL_RECORD_BYTES) as producer:
        handles = [producer.send("t", b"v") for _ in range(21)]

    assert batches(handles) == [10, 10, 1]


def test_a_batch_of_small_and_large_messages_is_over_its_limit_by_one_message_at_most(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    limit = 20 * SMALL_RECORD_BYTES
    sent: list[tuple[Handle, int]] = []

    with gq.producer(linger="1h", batch_count=1_000, batch_bytes=limit) as producer:
        for number in range(200):
            size = 1_000 if number % 7 == 0 else 200
            sent.append((producer.send("t", b"v" * size), size + HEADER_BYTES))

    sizes: Counter[MessageBatch] = Counter()
    last: dict[MessageBatch, int] = {}
    for handle, size in sent:
        sizes[handle.batch] += size
        last[handle.batch] = size
    assert all(size - last[batch] < limit for batch, size in sizes.items())
    assert len(sizes) < 40


def test_messages_without_a_key_change_the_partition_with_each_batch(gq: Client) -> None:
    gq.create_topic("t", partitions=3)

    with gq.producer(linger="1h", batch_count=2) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(12)]

    partitions = [handle.result().partition for handle in handles]
    first = partitions[0]
    assert partitions == [(first + turn) % 3 for turn in range(6) for _ in range(2)]


def test_messages_of_one_key_stay_in_order_in_one_partition(gq: Client) -> None:
    gq.create_topic("t", partitions=4)

    with gq.producer(batch_count=3, linger="1ms") as producer:
        for number in range(200):
            producer.send("t", b"%d" % (number // 10), key=f"key-{number % 10}")

    for key in range(10):
        mine = [message for message in gq.read("t") if message.key == b"key-%d" % key]
        assert len({message.partition for message in mine}) == 1
        assert [message.value for message in mine] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("acks", ["none", "leader", "all", None])
def test_any_acks_tell_the_offset(gq: Client, acks: str | None) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(acks=acks) as producer:
        assert [producer.send("t", b"v").result(timeout=WAIT).offset for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("by", ["producer", "topic"])
def test_compressed_values_come_back_as_they_were(gq: Client, compression: str, by: str) -> None:
    gq.create_topic("t", partitions=1, compression=compression if by == "topic" else "none")
    sent = [b"a" * 5_000, b"", b"small", bytes(range(256)) * 40]

    with gq.producer(compression=compression if by == "producer" else None) as producer:
        for value in sent:
            producer.send("t", value, key="k")

    assert values(gq) == sent
    (state,) = gq.describe_topic("t").partitions
    assert (state.size_bytes < 5_000) == (compression != "none")


def test_a_producer_that_is_not_idempotent_publishes_as_well(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(idempotent=False) as producer:
        assert producer.send("t", b"v").result(timeout=WAIT).offset == 0

    assert values(gq) == [b"v"]


def test_one_producer_serves_many_topics(gq: Client) -> None:
    for name in ("a", "b", "c"):
        gq.create_topic(name, partitions=2)

    with gq.producer(batch_count=2, linger="1ms") as producer:
        handles = [producer.send("abc"[number % 3], b"%d" % number) for number in range(30)]

    assert [handle.result().topic for handle in handles] == list("abc" * 10)
    assert [len(values(gq, name)) for name in "abc"] == [10, 10, 10]


def test_whoever_sends_waits_while_too_much_is_on_its_way(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    with Proxy(address) as proxy, Client(proxy.address) as slow:
        producer = slow.producer(linger=0, buffer_bytes=10_000)
        producer.send("t", b"first").result(timeout=WAIT)
        proxy.mute()
        sent: Queue[int] = Queue()

        def send() -> None:
            for number in range(10):
                producer.send("t", b"v" * 3_000)
                sent.put(number)

        thread = threading.Thread(target=send)
        thread.start()
        assert [sent.get(timeout=10) for _ in range(4)] == [0, 1, 2, 3]
        thread.join(timeout=0.2)
        assert thread.is_alive()
        assert sent.empty()

        proxy.mute(False)
        proxy.cut()
        thread.join(timeout=20)
        producer.close()

    assert len(values(gq)) == 11


def test_whoever_waits_for_room_is_told_when_the_producer_is_closed(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    with Proxy(address) as proxy, Client(proxy.address) as slow, ThreadPoolExecutor(1) as threads:
        producer = slow.producer(linger=0, buffer_bytes=1_000, delivery_timeout="20s")
        producer.send("t", b"first").result(timeout=WAIT)
        proxy.mute()
        handle = producer.send("t", b"v" * 3_000)
        waiting = threads.submit(producer.send, "t", b"v" * 3_000)
        producer._run(producer._publisher.close(flush=False))

        with pytest.raises(Conflict, match="closed"):
            waiting.result(timeout=10)
        with pytest.raises(Conflict, match="closed before"):
            handle.result(timeout=WAIT)


def test_flush_waits_for_everything_that_was_sent(gq: Client) -> None:
    gq.create_topic("t", partitions=4)

    with gq.producer(linger="1h", batch_count=1_000) as producer:
        handles = [producer.send("t", b"v", key=f"{number}") for number in range(50)]
        producer.flush()
        assert all(handle.is_done for handle in handles)
        producer.flush()


def test_the_block_raises_what_could_not_be_stored_with_the_handle_of_the_message(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    gq.create_topic("gone", partitions=1)
    producer = gq.producer(linger="1h")
    producer.send("gone", b"known")
    producer.flush()
    good, bad = producer.send("t", b"good"), producer.send("gone", b"bad")
    gq.delete_topic("gone")

    with pytest.raises(TopicNotFound) as caught:
        producer.close()

    assert caught.value.topic == "gone"
    assert caught.value.handle is bad  # type: ignore[attr-defined]
    assert good.result().offset == 0
    producer.close()


def test_a_failure_that_somebody_saw_is_not_raised_again(gq: Client) -> None:
    gq.create_topic("gone", partitions=1)

    with gq.producer(linger=0) as producer:
        producer.send("gone", b"v").result(timeout=WAIT)
        gq.delete_topic("gone")
        handle = producer.send("gone", b"v")
        with pytest.raises(TopicNotFound):
            handle.result(timeout=WAIT)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_what_was_sent_is_flushed_when_an_exception_leaves_the_block(gq: Client, error: type[BaseException]) -> None:
    gq.create_topic("t", partitions=1)

    producer = gq.producer(linger="1h")
    handle = producer.send("t", b"v")

    with pytest.raises(error), producer:
        raise error

    assert handle.result(timeout=WAIT).offset == 0
    assert values(gq) == [b"v"]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_what_was_sent_is_flushed_when_an_exception_leaves_the_block_of_the_client(
    gq: Client, address: str, error: type[BaseException]
) -> None:
    gq.create_topic("t", partitions=1)

    client = Client(address)
    producer = client.producer(linger="1h")
    producer.send("t", b"v")
    with pytest.raises(error), client:
        raise error

    assert values(gq) == [b"v"]


def test_a_failure_to_flush_does_not_replace_the_exception_that_leaves_the_block(gq: Client) -> None:
    gq.create_topic("gone", partitions=1)
    producer = gq.producer(linger="1h")
    handle = producer.send("gone", b"v")
    gq.delete_topic("gone")

    with pytest.raises(ZeroDivisionError) as caught, producer:
        raise ZeroDivisionError

    assert caught.value.__notes__ == ["1 message was sent and not stored: 1 of gone (topic not found: gone)"]
    with pytest.raises(TopicNotFound):
        handle.result(timeout=WAIT)


def test_an_exit_has_no_traceback_so_a_failure_to_flush_is_a_warning(gq: Client) -> None:
    gq.create_topic("gone", partitions=1)
    producer = gq.producer(linger="1h")
    producer.send("gone", b"v")
    gq.delete_topic("gone")

    with pytest.warns(GoQueueWarning, match="1 of gone"), pytest.raises(SystemExit), producer:
        raise SystemExit


def test_a_failure_to_flush_does_not_replace_the_exception_that_leaves_the_block_of_the_client(
    gq: Client, address: str
) -> None:
    gq.create_topic("gone", partitions=1)

    client = Client(address)
    producer = client.producer(linger="1h")
    producer.send("gone", b"v")
    gq.delete_topic("gone")
    with pytest.raises(ZeroDivisionError) as caught, client:
        raise ZeroDivisionError

    assert caught.value.__notes__ == ["1 message was sent and not stored: 1 of gone (topic not found: gone)"]


def test_a_closed_producer_takes_nothing_more(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    producer = gq.producer()
    producer.send("t", b"v").result(timeout=WAIT)
    producer.close()

    for use in (lambda: producer.send("t", b"v"), lambda: producer.send("t", b"v", key="k"), producer.flush):
        with pytest.raises(Conflict, match="closed"):
            use()
    producer.close()


def test_closing_the_client_flushes_its_producers(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    with Client(address) as other:
        producers = [other.producer(linger="1h") for _ in range(3)]
        handles = [producer.send("t", b"v") for producer in producers]

    assert sorted(handle.result(timeout=0).offset for handle in handles) == [0, 1, 2]
    producers[0].close()
    with pytest.raises(Conflict):
        producers[0].send("t", b"v")


def test_closing_the_client_flushes_all_producers_though_one_of_them_fails(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    gq.create_topic("gone", partitions=1)
    other = Client(address)
    failing, good = other.producer(linger="1h"), other.producer(linger="1h")
    failing.send("gone", b"v")
    failing.flush()
    gq.delete_topic("gone")
    failing.send("gone", b"v")
    handle = good.send("t", b"v")

    with pytest.raises(TopicNotFound):
        other.close()

    assert handle.result(timeout=0).offset == 0


def test_a_callback_is_called_with_the_handle_once_or_at_once(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    called: Queue[Handle] = Queue()

    with gq.producer(linger="1h") as producer:
        handle = producer.send("t", b"v")
        handle.add_callback(called.put)
        assert called.empty()

    assert called.get(timeout=10) is handle
    handle.add_callback(called.put)
    assert called.get(timeout=10) is handle
    assert called.empty()


def test_a_callback_that_raises_harms_nobody(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    called: Queue[Handle] = Queue()

    def fail(handle: Handle) -> None:
        called.put(handle)
        raise ZeroDivisionError

    with gq.producer(linger=0) as producer:
        for _ in range(10):
            handle = producer.send("t", b"v")
            handle.add_callback(fail)
            handle.add_callback(called.put)
            assert handle.result(timeout=WAIT)

    assert called.qsize() == 20


def test_whoever_does_not_want_to_wait_for_ever_gets_a_request_timeout(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h") as producer:
        handle = producer.send("t", b"v")
        for timeout in (0, "10ms", 0.01, -1):
            with pytest.raises(RequestTimeout):
                handle.result(timeout=timeout)
        with pytest.raises(InvalidRequest):
            handle.result(timeout="soon")

    assert handle.result(timeout=0).offset == 0
    assert handle.result().offset == 0


def test_many_threads_wait_for_one_handle(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with ThreadPoolExecutor(8) as threads, gq.producer(linger="1h") as producer:
        handle = producer.send("t", b"v")
        waiting = [threads.submit(handle.result) for _ in range(8)]
        producer.flush()

        assert {future.result(timeout=10) for future in waiting} == {handle.result()}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"value": object()}, InvalidMessage),
        ({"value": b"v", "key": 3}, InvalidMessage),
        ({"value": b"v", "priority": "urgent"}, InvalidMessage),
        ({"value": b"v", "headers": {"gq-own": "x"}}, InvalidMessage),
        ({"value": b"v", "delay": "soon"}, InvalidMessage),
        ({"value": b"v", "partition": 9}, PartitionNotFound),
        ({"value": b"v" * 1_001}, MessageTooLarge),
        ({"value": b"v", "key": b"k" * 70_000}, MessageTooLarge),
    ],
)
def test_a_message_that_cannot_be_is_refused_where_it_is_sent(
    gq: Client, wrong: dict[str, object], error: type[Exception]
) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=1_000)

    with gq.producer() as producer:
        with pytest.raises(error):
            producer.send("t", **wrong)  # type: ignore[arg-type]
        assert producer.send("t", b"good").result(timeout=WAIT).offset == 0


def test_a_topic_that_does_not_exist_is_refused_where_it_is_named(gq: Client) -> None:
    with gq.producer() as producer:
        with pytest.raises(TopicNotFound) as caught:
            producer.send("nowhere", b"v")
        gq.create_topic("nowhere", partitions=1)
        assert producer.send("nowhere", b"v").result(timeout=WAIT).offset == 0

    assert caught.value.topic == "nowhere"


def test_a_limit_that_was_raised_is_noticed(gq: Client) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=100)

    with gq.producer() as producer:
        with pytest.raises(MessageTooLarge):
            producer.send("t", b"v" * 101)
        gq.alter_topic("t", max_message_bytes=200)
        assert producer.send("t", b"v" * 200).result(timeout=WAIT).offset == 0


def test_a_batch_that_is_too_large_for_one_request_fails_alone(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with gq.producer(linger="1h", batch_bytes=2**31) as producer:
        large = [producer.send("t", bytes(12 * 1024 * 1024)) for _ in range(3)]
        producer.flush()
        with pytest.raises(RequestTooLarge):
            large[0].result(timeout=WAIT)
        assert producer.send("t", b"v", key="k") is not None

    assert values(gq) == [b"v"]


def test_a_setting_that_cannot_be_is_refused(gq: Client) -> None:
    with pytest.raises(InvalidConfig):
        gq.producer(batch_count=0)
    with pytest.raises(InvalidRequest):
        gq.producer(linger="soon")
    with pytest.raises(InvalidConfig):
        gq.producer(delivery_timeout=0)


def test_a_topic_that_is_made_anew_goes_on_under_a_live_producer(gq: Client) -> None:
    gq.create_topic("t", partitions=2)

    with gq.producer(linger=0) as producer:
        for number in range(20):
            producer.send("t", b"old-%d" % number, partition=number % 2).result(timeout=WAIT)
        gq.delete_topic("t")
        gq.create_topic("t", partitions=2)
        places = [
            producer.send("t", b"new-%d" % number, partition=number % 2).result(timeout=WAIT) for number in range(20)
        ]

    assert [place.offset for place in places] == [number // 2 for number in range(20)]
    assert sorted(values(gq)) == sorted(b"new-%d" % number for number in range(20))


def test_a_topic_that_is_made_anew_with_fewer_partitions_loses_nothing_silently(gq: Client) -> None:
    gq.create_topic("t", partitions=3)

    with gq.producer(linger=0) as producer:
        producer.send("t", b"old", partition=0).result(timeout=WAIT)
        gq.delete_topic("t")
        gq.create_topic("t", partitions=1)
        assert producer.send("t", b"new-0", partition=0).result(timeout=WAIT).offset == 0
        with pytest.raises(PartitionNotFound):
            producer.send("t", b"nowhere", partition=2).result(timeout=WAIT)
        with pytest.raises(PartitionNotFound):
            producer.send("t", b"nowhere", partition=2)
        assert producer.send("t", b"new-1", partition=0).result(timeout=WAIT).offset == 1

    assert values(gq) == [b"new-0", b"new-1"]


def test_a_producer_gives_up_after_its_delivery_timeout_and_then_rests() -> None:
    with EmbeddedBroker(http=False, topics_partitions=1) as broker:
        client = Client(broker.address)
        client.create_topic("t")
        producer = client.producer(linger=0, delivery_timeout="1500ms")
        producer.send("t", b"v").result(timeout=WAIT)
    handle = producer.send("t", b"v")

    with pytest.raises(RequestTimeout):
        handle.result(timeout=WAIT)

    tasks = client._loop.call(lambda: len(producer._publisher._tasks))
    assert tasks == 0
    client.close()
