"""Reading and following: what was there, in order, once; and then what comes, through restarts and retention."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from goqueue import AsyncClient, Client, InvalidRequest, Message, Messages, TopicNotFound
from goqueue.client import reading
from goqueue.client.reading import TopicFollow, TopicRead
from tests.client.faulty_network import Proxy
from tests.client.test_connections import RestartingBroker

SEGMENT_BYTES = 4_096
WAIT_S = 20


def fill(gq: Client, count: int, *, partitions: int, value: Callable[[int], bytes] = lambda n: b"%06d" % n) -> None:
    """A topic with that many messages, partition by partition in turn, over many segments."""
    gq.create_topic("t", partitions=partitions, segment_bytes=SEGMENT_BYTES)
    with gq.producer(batch_count=10, linger="1ms") as producer:
        for number in range(count):
            producer.send("t", value(number), partition=number % partitions)


def by_partition(messages: Iterable[Message]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.partition, []).append(message.value)
    return found


# --- read ---------------------------------------------------------------------------------------


def test_everything_is_read_in_order_within_each_partition(gq: Client) -> None:
    fill(gq, 3_000, partitions=3)

    found = by_partition(gq.read("t"))

    assert found == {number: [b"%06d" % one for one in range(number, 3_000, 3)] for number in range(3)}


def test_offset_partition_and_limit_choose_a_part(gq: Client) -> None:
    fill(gq, 900, partitions=3)

    messages = list(gq.read("t", partition=1, offset=120, limit=100))

    assert [message.offset for message in messages] == list(range(120, 220))
    assert {message.partition for message in messages} == {1}
    assert messages[0].value == b"%06d" % (120 * 3 + 1)


@pytest.mark.parametrize("limit", [0, 1, 7, 100, 899, 900, 901, None])
def test_no_more_than_the_limit_is_read(gq: Client, limit: int | None) -> None:
    fill(gq, 900, partitions=3)

    messages = list(gq.read("t", limit=limit))

    assert len(messages) == min(limit if limit is not None else 900, 900)
    assert len({(message.partition, message.offset) for message in messages}) == len(messages)


def test_an_offset_counts_in_every_partition(gq: Client) -> None:
    fill(gq, 300, partitions=3)

    assert sorted(message.offset for message in gq.read("t", offset=98)) == [98, 98, 98, 99, 99, 99]
    assert list(gq.read("t", offset=100)) == []


def test_more_than_one_answer_is_needed_for_many_bytes(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    sent = [bytes([number % 256]) * 50_000 for number in range(120)]
    with gq.producer() as producer:
        for number, value in enumerate(sent):
            producer.send("t", value, partition=number % 2)

    messages = gq.read("t")
    batches = []
    while batch := messages.next_batch():
        batches.append(batch)

    assert len(batches) > 4
    assert by_partition([message for batch in batches for message in batch]) == {0: sent[::2], 1: sent[1::2]}
    assert messages.next_batch() == []


def test_a_message_that_is_larger_than_an_answer_is_read(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    large = bytes(3 * 1024 * 1024)

    gq.publish_many("t", [b"before", large, b"after"])

    assert [message.value for message in gq.read("t")] == [b"before", large, b"after"]
    assert [m.value for m in gq.follow("t", start="earliest", limit=3)] == [b"before", large, b"after"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_was_compressed_is_read_as_it_was(gq: Client, compression: str) -> None:
    gq.create_topic("t", partitions=1, compression=compression, segment_bytes=SEGMENT_BYTES)
    sent = [b"%d" % number * 1_000 for number in range(100)]

    gq.publish_many("t", sent)

    assert [message.value for message in gq.read("t")] == sent
    assert [message.value for message in gq.follow("t", start="earliest", limit=100)] == sent


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_a_read_ends_where_the_topic_ended_when_it_began(gq: Client, partitions: int) -> None:
    fill(gq, 40 * partitions, partitions=partitions)

    messages = gq.read("t")
    found = messages.next_batch()
    for partition in range(partitions):
        gq.publish("t", b"late", partition=partition)
    while batch := messages.next_batch():
        found += batch

    assert b"late" not in [message.value for message in found]
    assert len(found) == 40 * partitions


def test_times_choose_what_was_stored_between_them(gq: Client) -> None:
    gq.create_topic("t", partitions=2, segment_bytes=SEGMENT_BYTES)
    for number in range(60):
        gq.publish("t", b"%02d" % number * 100, partition=number % 2)
    stored = sorted(gq.read("t"), key=lambda message: message.value)
    begin, end = stored[20].timestamp_ns, stored[40].timestamp_ns
    forms: list[Callable[[int], Any]] = [
        lambda ns: f"{ns // 10**9}.{ns % 10**9:09d}",
        lambda ns: f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{ns % 10**9:09d}Z",
    ]

    for form in forms:
        found = sorted(message.value[:2] for message in gq.read("t", from_time=form(begin), to_time=form(end)))
        assert found == [b"%02d" % number for number in range(20, 40)]
    assert len(list(gq.read("t", from_time=stored[20].timestamp))) in (40, 41)  # a datetime has microseconds
    assert len(list(gq.read("t", from_time="1h ago", to_time="now"))) == 60
    assert list(gq.read("t", from_time="2h ago", to_time="1h ago")) == []
    assert len(list(gq.read("t", from_time=begin // 10**9 - 10))) == 60
    assert len(list(gq.read("t", to_time=datetime.now(UTC) + timedelta(hours=1)))) == 60
    assert list(gq.read("t", from_time=datetime.now(UTC) + timedelta(hours=1))) == []


def test_the_later_of_offset_and_time_decides(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    for number in range(100):
        gq.publish("t", b"%d" % number)
    time = list(gq.read("t"))[50].timestamp

    assert next(iter(gq.read("t", offset=90, from_time=time))).offset == 90
    assert 0 < next(iter(gq.read("t", offset=0, from_time=time))).offset <= 50


def test_an_empty_topic_reads_as_nothing(gq: Client) -> None:
    gq.create_topic("t", partitions=5)

    assert list(gq.read("t")) == []
    assert gq.read("t").next_batch() == []


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": -1}, {"from_time": "soon"}, {"to_time": "soon"}])
def test_a_range_that_cannot_be_is_refused_at_once(gq: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        gq.read("t", **wrong)


def test_a_read_can_be_left_and_closed_at_any_time(gq: Client) -> None:
    fill(gq, 900, partitions=3)

    for message in gq.read("t"):
        assert message.offset == 0
        break
    with gq.read("t") as messages:
        assert messages.next_batch()
    assert messages.next_batch() == []
    messages.close()


def test_a_reader_of_many_partitions_holds_a_few_answers_only(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=8)
    with gq.producer(linger="1ms") as producer:
        for number in range(240):
            producer.send("t", bytes(50_000), partition=number % 8)

    async def work() -> int:
        async with AsyncClient(address) as client, asyncio.timeout(WAIT_S):
            read = client.read("t")
            asked = 0
            while await read.next_batch():
                assert isinstance(read, TopicRead)
                asked = max(asked, sum(one.task is not None for one in read._reads or ()))
            return asked

    assert asyncio.run(work()) <= reading.PREFETCHED_READS


def test_a_part_that_could_not_be_read_is_asked_for_again(gq: Client, address: str) -> None:
    fill(gq, 300, partitions=3)

    with Proxy(address) as proxy, Client(proxy.address, timeout="1500ms") as client:
        messages = client.read("t")
        found = messages.next_batch()
        while len(found) < 300:
            proxy.mute()
            proxy.cut()
            try:
                found += messages.next_batch()
            except Exception as error:
                assert getattr(error, "retryable", False)
                proxy.mute(False)
                proxy.cut()
                found += messages.next_batch()
            proxy.mute(False)

    assert len({(message.partition, message.offset) for message in found}) == len(found) == 300


# --- follow -------------------------------------------------------------------------------------


class Follower:
    """A thread that follows; what it sees comes out of a queue."""

    def __init__(self, messages: Messages) -> None:
        self.seen: Queue[Message | Exception | None] = Queue()
        self.messages = messages
        messages._loop.run(_started(messages))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self.messages:
                self.seen.put(message)
            self.seen.put(None)
        except Exception as error:
            self.seen.put(error)

    def next(self, count: int = 1) -> list[Message]:
        found = []
        for _ in range(count):
            message = self.seen.get(timeout=WAIT_S)
            assert isinstance(message, Message), message
            found.append(message)
        return found

    def stop(self) -> None:
        self.messages.close()
        self._thread.join(timeout=WAIT_S)
        assert not self._thread.is_alive()


async def _started(messages: Messages) -> None:
    follow = messages._messages
    assert isinstance(follow, TopicFollow)
    await follow.start()


def test_a_follower_sees_what_comes_and_nothing_that_was_there(gq: Client) -> None:
    gq.create_topic("t", partitions=3)
    gq.publish_many("t", [b"old"] * 10)
    follower = Follower(gq.follow("t"))

    for number in range(100):
        gq.publish("t", b"%d" % number, partition=number % 3)

    assert by_partition(follower.next(100)) == {
        partition: [b"%d" % number for number in range(partition, 100, 3)] for partition in range(3)
    }
    assert follower.seen.empty()
    follower.stop()
    assert follower.seen.get(timeout=WAIT_S) is None


def test_a_follower_from_the_beginning_sees_what_was_there_and_what_comes(gq: Client) -> None:
    fill(gq, 1_000, partitions=2)
    follower = Follower(gq.follow("t", start="earliest"))
    assert len(follower.next(1_000)) == 1_000

    gq.publish("t", b"new")

    assert follower.next()[0].value == b"new"
    follower.stop()


@pytest.mark.parametrize("limit", [0, 1, 7, 500])
def test_a_follow_ends_at_its_limit(gq: Client, limit: int) -> None:
    fill(gq, 500, partitions=2)

    assert len(list(gq.follow("t", start="earliest", limit=limit))) == limit


def test_a_follow_begins_at_an_offset_or_a_time(gq: Client) -> None:
    fill(gq, 100, partitions=1)
    messages = list(gq.read("t"))
    ns = messages[60].timestamp_ns
    first = next(message.offset for message in messages if message.timestamp_ns >= ns)

    assert next(iter(gq.follow("t", partition=0, offset=40))).offset == 40
    text = f"{ns // 10**9}.{ns % 10**9:09d}"
    assert next(iter(gq.follow("t", from_time=text, limit=1))).offset == first
    assert next(iter(gq.follow("t", from_time="1h ago", limit=1))).offset == 0


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": -1}, {"from_time": "soon"}, {"start": "middle"}])
def test_a_follow_that_cannot_be_is_refused_at_once(gq: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        gq.follow("t", **wrong)


def test_a_follower_is_told_when_its_topic_is_deleted(gq: Client) -> None:
    gq.create_topic("t", partitions=3)
    follower = Follower(gq.follow("t"))
    gq.publish("t", b"last")
    assert follower.next()[0].value == b"last"

    gq.delete_topic("t")

    error = follower.seen.get(timeout=WAIT_S)
    assert isinstance(error, TopicNotFound)
    assert error.topic == "t"
    follower.stop()


def test_many_followers_share_a_client(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    followers = [Follower(gq.follow("t")) for _ in range(5)]

    gq.publish_many("t", [b"%d" % number for number in range(50)])

    for follower in followers:
        assert len(follower.next(50)) == 50
        follower.stop()


def test_a_follower_can_be_closed_before_it_has_begun(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    messages = gq.follow("t")

    messages.close()

    assert messages.next_batch() == []
    assert list(messages) == []


def test_a_slow_follower_holds_only_its_credit_through_cuts(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    size = 100_000
    count = 3 * reading.CREDIT_BYTES // size
    with gq.producer() as producer:
        for number in range(count):
            producer.send("t", b"%06d" % number + bytes(size))

    with Proxy(address) as proxy, Client(proxy.address) as client:
        messages = client.follow("t", start="earliest")
        follow = messages._messages
        assert isinstance(follow, TopicFollow)
        found = messages.next_batch()

        async def held() -> int:
            """What is there once nothing more comes."""
            before = -1
            while True:
                arrived = sum(len(payload) for _, _, payload in follow._arrived)
                if arrived == before:
                    return arrived
                before = arrived
                for _ in range(3):
                    await client._client.topics()
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.05)

        for _ in range(3):
            assert messages._loop.run(held()) <= reading.CREDIT_BYTES + reading.READ_BYTES + size
            proxy.cut()
        while len(found) < count:
            found += messages.next_batch()
        messages.close()

    assert [message.offset for message in found] == list(range(count))


def test_a_follower_misses_nothing_and_sees_nothing_twice_through_restarts(tmp_path: Path) -> None:
    with RestartingBroker(tmp_path / "data") as broker, Client(broker.address) as gq:
        gq.create_topic("t", partitions=3, segment_bytes=1_024)
        follower = Follower(gq.follow("t"))
        with gq.producer(linger="1ms", batch_count=5) as producer:
            for part in range(3):
                for number in range(200 * part, 200 * (part + 1)):
                    producer.send("t", b"%05d" % number, partition=number % 3)
                broker.restart()
        found = follower.next(600)
        assert follower.seen.empty()
        follower.stop()

    assert by_partition(found) == {
        partition: [b"%05d" % number for number in range(partition, 600, 3)] for partition in range(3)
    }


def test_a_follower_sees_all_that_is_kept_while_retention_deletes_behind_it(tmp_path: Path) -> None:
    with RestartingBroker(tmp_path / "data") as broker, Client(broker.address) as gq:
        gq.create_topic("t", partitions=3, segment_bytes=1_024, retention_bytes=32 * 1_024)
        follower = Follower(gq.follow("t", start="earliest"))
        found: list[Message] = []
        with gq.producer(linger="1ms", batch_count=3) as producer:
            for part in range(8):
                for number in range(300 * part, 300 * (part + 1)):
                    producer.send("t", b"%05d" % number * 10, partition=number % 3)
                found += follower.next(300)
                broker.restart()
        while min(gq.offsets("t", time="earliest")) == 0:  # retention runs by and by
            pass
        late = list(gq.read("t"))
        follower.stop()

    assert by_partition(found) == {
        partition: [b"%05d" % number * 10 for number in range(partition, 2_400, 3)] for partition in range(3)
    }
    assert by_partition(late)[0] == by_partition(found)[0][late[0].offset :]
