"""The workloads of `goqueue bench work`, `delay` and `groups`: deliver, settle, delay, rebalance.

As in `workloads.py`, each makes a topic of its own and uses the public client, which takes the times.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat

import uvloop

from goqueue.cli.workloads import BenchFailed, Measured, Workload, measure, producer_for, quantile, send_many
from goqueue.client.client import AsyncClient
from goqueue.client.sync import Client
from goqueue.clock import MS, SECOND, SystemClock

POLLED = 500
SMALL_POLL = 10
PLENTY = 0.8
"""The share of a backlog up to which all members have messages left."""
RESCHEDULED_PER_SECOND = 40_000
"""A rate that every broker reaches: the common due time is so far ahead that all messages have it before it comes."""
_clock = SystemClock()


def work(client: Client, asked: Workload) -> Measured:
    """One consumer: poll up to 500, acknowledge every one of them in one request, until a backlog is done."""
    latencies: list[int] = []

    def run(topic: str) -> None:
        clock, found = _clock.monotonic_ns, 0
        with client.consumer(topic, group="work") as consumer:
            while found < asked.count:
                began = clock()
                batch = consumer.poll(POLLED, timeout="10s")
                if not batch:
                    raise BenchFailed(f"polled {found} messages of {asked.count}")
                consumer.ack(batch)
                found += len(batch)
                latencies.append(clock() - began)

    return measure(client, "work", asked, run, latencies, lambda topic: _backlog(client, topic, asked))


def work_shared(client: Client, asked: Workload, server: str, *, consumers: int) -> Measured:
    """Several consumers of a shared group in one process, each polling and acknowledging as fast as it can."""
    latencies: list[int] = []

    def run(topic: str) -> None:
        uvloop.run(_share(server, topic, asked, consumers, latencies))

    name = f"work, {consumers} shared"
    return measure(client, name, asked, run, latencies, lambda topic: _backlog(client, topic, asked))


def poll_one(client: Client, asked: Workload) -> Measured:
    """Poll and acknowledge one message at a time."""
    latencies: list[int] = []

    def run(topic: str) -> None:
        clock = _clock.monotonic_ns
        with client.consumer(topic, group="work") as consumer:
            consumer.ack(consumer.poll(1))
            for _ in repeat(None, asked.count - 1):
                began = clock()
                consumer.ack(consumer.poll(1))
                latencies.append(clock() - began)

    return measure(client, "poll 1, ack 1", asked, run, latencies, lambda topic: _backlog(client, topic, asked))


def stuck(client: Client, asked: Workload) -> Measured:
    """The same work as `work`, with everything acknowledged but the first message, which hangs."""
    latencies: list[int] = []

    def prepare(topic: str) -> None:
        _backlog(client, topic, asked)
        with client.consumer(topic, group="work", visibility="1h", max_in_flight=1_000) as consumer:
            hanging = consumer.poll(1)
            done = 1
            while done < asked.count:
                batch = consumer.poll(POLLED, timeout="10s")
                consumer.ack(batch)
                done += len(batch)
            consumer.extend(hanging, "1h")
            _backlog(client, topic, asked)

    def run(topic: str) -> None:
        clock, found = _clock.monotonic_ns, 0
        with client.consumer(topic, group="work") as consumer:
            while found < asked.count:
                began = clock()
                batch = consumer.poll(POLLED, timeout="10s")
                consumer.ack(batch)
                found += len(batch)
                latencies.append(clock() - began)

    return measure(client, "work after a stuck message", asked, run, latencies, prepare)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayMeasured:
    """The results of a run with delayed messages."""

    workload: str
    messages: int
    scheduled_per_second: float
    pending_mb: float
    cancelled_per_second: float
    rescheduled_per_second: float
    fired_seconds: float
    lateness_p50_ms: float
    lateness_p99_ms: float
    seconds: float
    messages_per_second: float
    p99_ms: float


def delay(client: Client, asked: Workload, server: str, *, due_rate: int, due_seconds: float) -> DelayMeasured:
    """Schedule, cancel, reschedule, fire all at one instant; and how late messages are at a steady rate."""
    clock = _clock.monotonic_ns
    began = clock()
    facts: dict[str, float] = {}

    def run(topic: str) -> None:
        before = client.stats().rss_bytes
        started = clock()
        with producer_for(client, asked) as producer:
            send, value = producer.send, bytes(asked.size)
            for _ in repeat(None, asked.count):
                send(topic, value, delay="1h")
        facts["scheduled"] = asked.count / ((clock() - started) / SECOND)
        facts["memory"] = max(0.001, (client.stats().rss_bytes - before) / 1e6)
        states = client.describe_topic(topic).partitions
        fullest = max(states, key=lambda one: one.end_offset)
        chosen = fullest.partition
        cancelled = min(fullest.end_offset // 4, 50_000)
        facts["cancelled"] = _rate_of(
            cancelled, lambda start, end: client.cancel_many(topic, chosen, range(start, end)), clock
        )
        rest = range(cancelled, fullest.end_offset)
        moved = min(len(rest), 50_000)
        facts["rescheduled"] = _rate_of(
            moved,
            lambda start, end: client.reschedule_many(topic, chosen, rest[start:end], delay="2h"),
            clock,
        )
        left = [
            range(cancelled if state.partition == chosen else 0, state.end_offset)
            for state in sorted(states, key=lambda one: one.partition)
        ]
        due_ns = _clock.wall_ns() + SECOND + asked.count * SECOND // RESCHEDULED_PER_SECOND
        for number, offsets in enumerate(left):
            for start in range(0, len(offsets), 10_000):
                part = offsets[start : start + 10_000]
                client.reschedule_many(topic, number, part, deliver_at=due_ns / SECOND)
        pause = threading.Event()
        pause.wait(max(0, due_ns - _clock.wall_ns()) / SECOND)
        while client.delay_stats().by_topic.get(topic, 0):
            pause.wait(0.01)
        facts["fired"] = (_clock.wall_ns() - due_ns) / SECOND

    measure(client, "delay", asked, run, [])
    lateness = sorted(_lateness(client, server, asked, due_rate, due_seconds))
    seconds = (clock() - began) / SECOND
    p99 = quantile(lateness, 0.99) / MS
    return DelayMeasured(
        workload="delay",
        messages=asked.count,
        scheduled_per_second=facts["scheduled"],
        pending_mb=facts["memory"],
        cancelled_per_second=facts["cancelled"],
        rescheduled_per_second=facts["rescheduled"],
        fired_seconds=facts["fired"],
        lateness_p50_ms=quantile(lateness, 0.5) / MS,
        lateness_p99_ms=p99,
        seconds=seconds,
        messages_per_second=facts["scheduled"],
        p99_ms=p99,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsMeasured:
    """The results of members that join and leave under load."""

    workload: str
    members: int
    messages: int
    rebalances: int
    rebalance_max_ms: float
    calm_gap_max_ms: float  # while no member joins or leaves
    gap_p50_ms: float
    gap_max_ms: float
    seconds: float
    messages_per_second: float
    p99_ms: float


def groups(
    client: Client, asked: Workload, server: str, *, members: int, seconds: float, changes: int
) -> GroupsMeasured:
    """Members of a group with a backlog while one joins and leaves: the longest pause of members that lose nothing.

    The end of the backlog does not count: by then some members have nothing left to receive.
    """
    measured: GroupsMeasured | None = None

    def run(topic: str) -> None:
        nonlocal measured
        measured = uvloop.run(_rebalance(server, topic, asked, members, seconds, changes))

    measure(client, "groups", asked, run, [], lambda topic: _backlog(client, topic, asked))
    assert measured is not None
    return measured


def _backlog(client: Client, topic: str, asked: Workload) -> None:
    with producer_for(client, replace(asked, batch=1_000, batch_bytes=1024 * 1024)) as producer:
        send_many(producer, topic, bytes(asked.size), asked.count)


def _rate_of(count: int, change: Callable[[int, int], object], clock: Callable[[], int]) -> float:
    began = clock()
    for start in range(0, count, 1_000):
        change(start, min(count, start + 1_000))
    return count / max(1e-9, (clock() - began) / SECOND)


def _lateness(client: Client, server: str, asked: Workload, rate: int, seconds: float) -> list[int]:
    """How late a consumer receives each message, at a rate of due messages per second."""
    late: list[int] = []

    def run(topic: str) -> None:
        uvloop.run(_fall_due(server, topic, asked, rate, int(rate * seconds), late))

    measure(client, "lateness", replace(asked, count=max(1, int(rate * seconds))), run, [])
    return late


async def _fall_due(server: str, topic: str, asked: Workload, rate: int, count: int, late: list[int]) -> None:
    async with AsyncClient(server) as client:
        # late enough that the last message is sent before the first is due, at 25,000 sends per second
        first_ns = _clock.wall_ns() + SECOND + count * SECOND // 25_000
        async with client.producer(linger="5ms", batch_count=1_000) as producer:
            for number in range(count):
                due_ns = first_ns + number * SECOND // rate
                await producer.send(topic, due_ns.to_bytes(8), deliver_at=due_ns / SECOND)
        async with client.consumer(topic, group="late", max_in_flight=10_000) as consumer:
            while len(late) < count:
                batch = await consumer.poll(POLLED, timeout="10s")
                if not batch:
                    raise BenchFailed(f"{len(late)} delayed messages of {count} came")
                now_ns = _clock.wall_ns()
                late.extend(now_ns - int.from_bytes(message.value) for message in batch)
                await consumer.ack(batch)


async def _share(server: str, topic: str, asked: Workload, consumers: int, latencies: list[int]) -> None:
    found = 0
    clock = _clock.monotonic_ns

    async def one(client: AsyncClient) -> None:
        nonlocal found
        async with client.consumer(topic, group="work", mode="shared") as consumer:
            while found < asked.count:
                began = clock()
                # short: another consumer may take the last messages while this one waits
                batch = await consumer.poll(POLLED, timeout="200ms")
                found += len(batch)
                if batch:
                    await consumer.ack(batch)
                    latencies.append(clock() - began)

    async with AsyncClient(server) as client, asyncio.TaskGroup() as tasks:
        for _ in range(consumers):
            tasks.create_task(one(client))


async def _rebalance(
    server: str, topic: str, asked: Workload, members: int, seconds: float, changes: int
) -> GroupsMeasured:
    clock = _clock.monotonic_ns
    found, is_over = 0, False
    gaps: list[int] = []
    until = clock() + int(seconds * SECOND)

    async with AsyncClient(server) as client:

        async def member(begin: asyncio.Event) -> None:
            nonlocal found
            async with client.consumer(topic, group="many") as consumer:
                await consumer.join()
                begin.set()
                last, mine = clock(), set(map(str, consumer.partitions))
                while not is_over:
                    batch = await consumer.poll(SMALL_POLL, timeout="1s")
                    now = clock()
                    has_lost = not mine <= set(map(str, consumer.partitions))
                    mine = set(map(str, consumer.partitions))
                    if batch and not has_lost and found < asked.count * PLENTY:
                        gaps.append(now - last)
                    last = now
                    if batch:
                        found += len(batch)
                        await consumer.ack(batch)
                    last = clock()  # the time of the ack is not part of the pause

        async def come_and_go() -> None:
            for _ in range(changes):
                async with client.consumer(topic, group="many") as consumer:
                    await consumer.join()
                    for _ in range(int(seconds * 5 / changes / 2)):
                        batch = await consumer.poll(SMALL_POLL, timeout="100ms")
                        if batch:
                            await consumer.ack(batch)
                            await asyncio.sleep(0.1)
                await asyncio.sleep(seconds / changes / 2)

        began = clock()
        async with asyncio.TaskGroup() as tasks:
            ready = [asyncio.Event() for _ in range(members)]
            for event in ready:
                tasks.create_task(member(event))
            for event in ready:
                await event.wait()
            await asyncio.sleep(1)  # the rebalances of the first joins are not measured
            gaps.clear()
            await asyncio.sleep(seconds / 4)
            calm, gaps[:] = sorted(gaps), []
            await come_and_go()
            await asyncio.sleep(max(0, until - clock()) / SECOND)
            report = await client.rebalances("many")
            is_over = True
    elapsed = (clock() - began) / SECOND
    ordered = sorted(gaps)
    return GroupsMeasured(
        workload="groups",
        members=members,
        messages=found,
        rebalances=report.total_rebalances,
        rebalance_max_ms=max(report.last_rebalance_duration_ms, report.average_rebalance_duration_ms),
        calm_gap_max_ms=quantile(calm, 1) / MS,
        gap_p50_ms=quantile(ordered, 0.5) / MS,
        gap_max_ms=quantile(ordered, 1) / MS,
        seconds=elapsed,
        messages_per_second=found / elapsed,
        p99_ms=quantile(ordered, 0.99) / MS,
    )
