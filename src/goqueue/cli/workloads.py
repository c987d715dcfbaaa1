"""The workloads of `goqueue bench`.

Each workload makes a topic of its own, uses the public client, and deletes the topic. The client takes the times; the
broker reports its CPU time and memory before and after.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, cast

import uvloop

from goqueue.client.client import AsyncClient
from goqueue.client.handles import Handle
from goqueue.client.producer import Producer
from goqueue.client.sync import Client
from goqueue.clock import MS, SECOND, SystemClock
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import SystemEntropy

if TYPE_CHECKING:
    from goqueue.client.options import Acks, Compression, Flush

SAMPLED = 1_000
"""One of this many messages that are sent in batches is timed."""
STAMP_BYTES = 8
_clock = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The parameters of a workload."""

    size: int
    count: int
    partitions: int
    batch: int = 1_000
    batch_bytes: int = 1024 * 1024
    linger: str = "5ms"
    acks: str = "leader"
    flush: str = "interval"
    rate: int = 0  # per second; 0 is no limit
    compression: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results; seconds and latencies as measured by the client."""

    workload: str
    messages: int
    bytes: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    broker_cpu_seconds: float
    broker_rss_mb: float


def produce(client: Client, asked: Workload) -> Measured:
    """One producer, one `send` per message, without a rate limit; it ends when the last message is stored."""
    value = bytes(asked.size)
    latencies: list[int] = []

    def work(topic: str) -> None:
        with producer_for(client, asked) as producer:
            _send(producer, topic, value, asked.count, latencies)

    return measure(client, "produce", asked, work, latencies)


def consume(client: Client, asked: Workload) -> Measured:
    """Read a backlog as messages: one process, all partitions."""
    latencies: list[int] = []

    def prepare(topic: str) -> None:
        with producer_for(client, asked) as producer:
            _send(producer, topic, bytes(asked.size), asked.count, [])

    def work(topic: str) -> None:
        found = 0
        with client.read(topic) as messages:
            began = _clock.monotonic_ns()
            while batch := messages.next_batch():
                for message in batch:
                    found += len(message.value) == asked.size
                now = _clock.monotonic_ns()
                latencies.append(now - began)
                began = now
        if found != asked.count:
            raise BenchFailed(f"read {found} messages of {asked.count}")

    return measure(client, "consume", asked, work, latencies, prepare)


def latency(client: Client, asked: Workload) -> Measured:
    """Publish one message at a time, and wait for its answer."""
    value = bytes(asked.size)
    latencies: list[int] = []

    def work(topic: str) -> None:
        publish, clock = client.publish, _clock.monotonic_ns
        for _ in repeat(None, asked.count):
            began = clock()
            publish(topic, value)
            latencies.append(clock() - began)

    return measure(client, "latency", asked, work, latencies, lambda topic: _warm_up(client, topic, value))


def end_to_end(client: Client, asked: Workload, server: str) -> Measured:
    """Publish at a steady rate and follow by push; the time is from the call of `send` to the receipt."""
    latencies: list[int] = []

    def work(topic: str) -> None:
        uvloop.run(_end_to_end(server, topic, asked, latencies))

    return measure(client, "end-to-end", asked, work, latencies)


class BenchFailed(GoQueueError):
    """A workload received fewer messages than were published: what was measured is no result."""


async def _end_to_end(server: str, topic: str, asked: Workload, latencies: list[int]) -> None:
    clock = _clock.monotonic_ns
    padding = bytes(max(0, asked.size - STAMP_BYTES))
    async with AsyncClient(server) as client:
        producer = client.producer(linger=0, acks=cast("Acks", asked.acks))
        follower = client.follow(topic, start="earliest")

        async def receive() -> None:
            while len(latencies) < asked.count:
                batch = await follower.next_batch()
                now = clock()
                latencies.extend(now - int.from_bytes(message.value[:STAMP_BYTES]) for message in batch)

        receiving = asyncio.create_task(receive())
        started, sent = clock(), 0
        while sent < asked.count:
            # all that is due by now, not one at a time: a late wake-up must not lower the rate
            due = min(asked.count, 1 + (clock() - started) * asked.rate // SECOND)
            for _ in range(due - sent):
                await producer.send(topic, clock().to_bytes(STAMP_BYTES) + padding)
            sent = due
            await asyncio.sleep(max(0, started + due * SECOND // asked.rate - clock()) / SECOND)
        async with asyncio.timeout(30):
            await receiving
        await follower.close()


def _send(producer: Producer, topic: str, value: bytes, count: int, latencies: list[int]) -> None:
    send, clock = producer.send, _clock.monotonic_ns
    for _ in range(count // SAMPLED):  # nested loops: a test per message would be part of what is measured
        began = clock()
        handle = send(topic, value)
        handle.add_callback(_timed(began, latencies, clock))
        for _ in repeat(None, SAMPLED - 1):
            send(topic, value)
    for _ in repeat(None, count % SAMPLED):
        send(topic, value)


def send_many(producer: Producer, topic: str, value: bytes, count: int) -> None:
    """Send `count` messages of one value, without a rate limit."""
    _send(producer, topic, value, count, [])


def _timed(began: int, latencies: list[int], clock: Callable[[], int]) -> Callable[[Handle], None]:
    return lambda handle: latencies.append(clock() - began)


def producer_for(client: Client, asked: Workload) -> Producer:
    """A producer with the settings of the workload."""
    return client.producer(
        acks=cast("Acks", asked.acks),
        linger=asked.linger,
        batch_count=asked.batch,
        batch_bytes=asked.batch_bytes,
        compression=cast("Compression | None", asked.compression),
    )


def _warm_up(client: Client, topic: str, value: bytes) -> None:
    for _ in range(50):
        client.publish(topic, value)


def measure(
    client: Client,
    name: str,
    asked: Workload,
    work: Callable[[str], None],
    latencies: list[int],
    prepare: Callable[[str], None] | None = None,
) -> Measured:
    """Run the workload on a topic of its own, and measure it."""
    with _topic(client, asked) as topic:
        if prepare:
            prepare(topic)
        before = client.stats()
        began = _clock.monotonic_ns()
        work(topic)
        seconds = (_clock.monotonic_ns() - began) / SECOND
        after = client.stats()
    ordered = sorted(latencies)
    return Measured(
        workload=name,
        messages=asked.count,
        bytes=asked.count * asked.size,
        seconds=seconds,
        messages_per_second=asked.count / seconds,
        megabytes_per_second=asked.count * asked.size / seconds / 1e6,
        p50_ms=quantile(ordered, 0.5) / MS,
        p99_ms=quantile(ordered, 0.99) / MS,
        max_ms=quantile(ordered, 1) / MS,
        broker_cpu_seconds=(after.cpu_ns - before.cpu_ns) / SECOND,
        broker_rss_mb=after.rss_bytes / 1e6,
    )


@contextmanager
def _topic(client: Client, asked: Workload) -> Iterator[str]:
    name = f"bench-{SystemEntropy().bytes(4).hex()}"
    client.create_topic(name, partitions=asked.partitions, flush=cast("Flush", asked.flush))
    try:
        yield name
    finally:
        client.delete_topic(name)


def quantile(ordered: Sequence[int], share: float) -> float:
    """The value at the quantile `share` of sorted values; 0.0 if there are none."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0
