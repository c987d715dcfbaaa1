"""Twenty members work through a backlog while others join and leave: who loses nothing does not even notice.

The machine that runs this is shared, and everybody on it waits at times. So there are several rounds, and two things to
compare with: the stretch before each, in which nobody joins or leaves, and a second group, in which nobody ever does.
A pause that belongs to the rebalance would be longer than both, in most rounds.
"""

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from goqueue import AsyncClient, AsyncConsumer
from tests.crash.phoenix import phoenix

MEMBERS = 20
BYSTANDERS = 5
PARTITIONS = 40
BACKLOG = 12_000  # per partition: more than all of them get done, on a fast machine too
ROUNDS = 4
STRETCH_S = 0.5
GAP_S_MAX = 0.05
REBALANCE_S_MAX = 1.0
TIMEOUT_S = 10.0


async def pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


class Member:
    """Polls a little, acknowledges it, and polls again."""

    def __init__(self, gq: AsyncClient, group: str = "workers") -> None:
        self._gq = gq
        self._group = group
        self._is_over = False
        self._consumer: AsyncConsumer | None = None
        self.times: list[float] = []
        self.partitions: dict[int, list[float]] = {}  # when something came from each

    async def __aenter__(self) -> "Member":
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await self._task

    @property
    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.partitions} if self._consumer else set()

    def longest_gap(self, begin_s: float, end_s: float) -> float:
        times = [begin_s, *(at_s for at_s in self.times if begin_s < at_s < end_s), end_s]
        return max(after - before for before, after in itertools.pairwise(times))

    async def _run(self) -> None:
        async with self._gq.consumer("work", group=self._group, max_in_flight=10_000) as consumer:
            self._consumer = consumer
            while not self._is_over:
                batch = await consumer.poll(10, timeout="1s")
                if batch:
                    now_s = monotonic()
                    self.times.append(now_s)
                    for partition in {one.partition for one in batch}:
                        self.partitions.setdefault(partition, []).append(now_s)
                    await consumer.ack(batch)
                await pause(0.01)


async def wait_until(happened: Callable[[], bool]) -> float:
    """When it happened, to some milliseconds."""
    until_s = monotonic() + TIMEOUT_S
    while not happened():
        assert monotonic() < until_s
        await pause(0.002)
    return monotonic()


class Measured(NamedTuple):
    """What one join or one leave did to those who lost nothing; longest gaps, and what to compare them with."""

    took_s: float
    gap_s: float
    calm_s: float  # before
    others_s: float  # of the other group, meanwhile

    def __repr__(self) -> str:
        names = ("took", "gap", "before", "others")
        return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in zip(names, self, strict=True))

    @property
    def is_unnoticed(self) -> bool:
        return self.gap_s <= max(GAP_S_MAX, 2 * self.calm_s, 2 * self.others_s)


async def measure(members: list[Member], bystanders: list[Member], change: Callable[[], Awaitable[float]]) -> Measured:
    """Let the change happen, and look at the members that kept what they had."""
    calm_begin_s = monotonic()
    await pause(STRETCH_S)
    begin_s = monotonic()
    before = {member: member.assigned for member in members}
    done_s = await change()
    await pause(max(0.0, begin_s + STRETCH_S - monotonic()))
    end_s = monotonic()
    kept = [member for member in members if before[member] and before[member] <= member.assigned]
    assert len(kept) >= MEMBERS - 3
    return Measured(
        done_s - begin_s,
        max(member.longest_gap(begin_s, end_s) for member in kept),
        max(member.longest_gap(calm_begin_s, begin_s) for member in kept),
        max(member.longest_gap(begin_s, end_s) for member in bystanders),
    )


async def rounds(address: str) -> tuple[list[Measured], list[Measured], float]:
    joins, leaves = [], []
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(AsyncClient(address)) for _ in range(MEMBERS + BYSTANDERS + 1)]
        await clients[0].create_topic("work", partitions=PARTITIONS, flush="interval")
        async with clients[0].producer(batch_count=1_000, batch_bytes=256 * 1024) as producer:
            for number in range(BACKLOG * PARTITIONS):
                await producer.send("work", b"%d" % number, partition=number % PARTITIONS)
        members = [await opened.enter_async_context(Member(gq)) for gq in clients[:MEMBERS]]
        others = clients[MEMBERS : MEMBERS + BYSTANDERS]
        bystanders = [await opened.enter_async_context(Member(gq, "bystanders")) for gq in others]
        await wait_until(lambda: sum(len(one.assigned) for one in members) == PARTITIONS)
        await wait_until(lambda: all(one.times for one in (*members, *bystanders)))
        for _ in range(ROUNDS):
            async with AsyncExitStack() as visit:
                guest = Member(clients[-1])

                async def join(visit: AsyncExitStack = visit, guest: Member = guest) -> float:
                    await visit.enter_async_context(guest)
                    return await wait_until(lambda: bool(guest.times))

                async def leave(visit: AsyncExitStack = visit, guest: Member = guest) -> float:
                    was = set(guest.partitions)
                    await visit.aclose()
                    left_s = monotonic()
                    return await wait_until(
                        lambda: was <= {at for one in members for at, s in one.partitions.items() if s[-1] > left_s}
                    )

                joins.append(await measure(members, bystanders, join))
                leaves.append(await measure(members, bystanders, leave))
        stats = await clients[0].rebalances("workers")
        assert stats.total_revocation_timeouts == 0
        return joins, leaves, stats.last_rebalance_duration_ms / 1000


def test_members_that_lose_nothing_do_not_pause_when_another_one_joins_or_leaves(tmp_path: Path) -> None:
    with phoenix(tmp_path / "data") as broker:
        joins, leaves, last_s = asyncio.run(rounds(broker.address))

    print(f"joins: {joins}\nleaves: {leaves}\nthe last one took the broker {last_s * 1000:.0f} ms")
    for measured in (joins, leaves):
        assert 2 * sum(one.is_unnoticed for one in measured) >= ROUNDS, measured
        assert statistics.median(one.took_s for one in measured) < REBALANCE_S_MAX, measured
    assert last_s < REBALANCE_S_MAX
