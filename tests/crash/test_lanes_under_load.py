"""Five lanes, all of them full, through a real broker and the real client: each gets its share, and none starves."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from goqueue import Client, Message, Priority
from tests.crash.phoenix import phoenix

WEIGHTS = (50, 25, 15, 7, 3)
DELIVERIES = 10_000
SPARE = 1.3  # so that every lane is full to the end


def fill(gq: Client, topic: str, counts: list[int], *, partitions: int = 1, **settings: object) -> None:
    """So many messages of each priority in all, one lane after the other, the least important first."""
    gq.create_topic(topic, partitions=partitions, flush="interval", **settings)
    with gq.producer(batch_count=1_000, batch_bytes=256 * 1024) as producer:
        for lane in reversed(range(len(counts))):
            for number in range(counts[lane]):
                producer.send(topic, b"%d" % number, priority=lane, partition=number % partitions)


def delivered(gq: Client, topic: str, mode: str, sizes: list[int], members: int = 1) -> Iterator[Message]:
    """What members get that poll in turns, and acknowledge at once."""
    consumers = [gq.consumer(topic, group="g", mode=mode) for _ in range(members)]
    try:
        for consumer in consumers:
            consumer.join()
        while True:
            for consumer in consumers:
                for size in sizes:
                    batch = consumer.poll(size, timeout="1s")
                    consumer.ack(batch)
                    yield from batch
    finally:
        for consumer in consumers:
            consumer.close()


@pytest.mark.parametrize(
    ("mode", "partitions", "sizes", "members"),
    [
        ("partitioned", 1, [500], 1),
        ("partitioned", 3, [500], 1),
        ("partitioned", 3, [7, 100, 13], 1),
        ("shared", 3, [50], 4),
    ],
)
def test_lanes_that_are_full_get_their_shares(
    tmp_path: Path, mode: str, partitions: int, sizes: list[int], members: int
) -> None:
    with phoenix(tmp_path / "data") as broker, Client(broker.address) as gq:
        fill(gq, "work", [int(DELIVERIES * weight / 100 * SPARE) for weight in WEIGHTS], partitions=partitions)

        counts: Counter[Priority] = Counter()
        since = longest = 0
        for message in delivered(gq, "work", mode, sizes, members):
            counts[message.priority] += 1
            since = 0 if message.priority is Priority.BACKGROUND else since + 1
            longest = max(longest, since)
            if counts.total() == DELIVERIES:
                break

    shares = [100 * counts[priority] / DELIVERIES for priority in Priority]
    print(f"{shares}, background waited for {longest} others at most")
    assert all(abs(share - weight) <= 2 for share, weight in zip(shares, WEIGHTS, strict=True)), shares
    assert longest <= 2 * sum(WEIGHTS) * partitions * members + max(sizes)


def test_in_strict_mode_background_is_served_within_its_bound(tmp_path: Path) -> None:
    with phoenix(tmp_path / "data") as broker, Client(broker.address) as gq:
        fill(gq, "work", [200_000, 0, 0, 0, 30], priority_mode="strict", priority_boost="100ms")

        began_s = 0.0
        times = []
        latest_s = slowest_s = 0.0
        for message in delivered(gq, "work", "partitioned", [100]):
            began_s = began_s or monotonic()  # the machine may be busy while the member joins
            now_s = monotonic() - began_s
            slowest_s, latest_s = max(slowest_s, now_s - latest_s), now_s
            if message.priority is Priority.BACKGROUND:
                times.append(now_s)
            if len(times) == 9:  # three boosts of three
                break

    print([f"{at_s:.2f} s" for at_s in times], f"the slowest poll took {slowest_s:.2f} s")
    waits = [times[0], *(after - before for before, after in zip(times[2::3], times[3::3], strict=False))]
    assert all(0.08 <= wait <= 0.3 + 2 * slowest_s for wait in waits), (times, slowest_s)
