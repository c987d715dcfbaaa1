"""Groups, acks, delays: what `goqueue bench work`, `delay` and `groups` measure, and how fast a ledger is read again.

Run as `python -m benchmarks.bench_delivery`. Every workload is made several times, and the best run counts.
"""

import gc
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyroaring import BitMap64

from benchmarks.bench_broker import _broker, redis_client, timed
from benchmarks.harness import Result, main
from goqueue.broker.broker import Broker
from goqueue.cli import delivery_workloads as workloads
from goqueue.cli.workloads import Measured, Workload
from goqueue.client.sync import Client
from goqueue.clock import SECOND, SystemClock
from goqueue.delivery.cursor import Cursor
from goqueue.delivery.lanes import NORMAL, LaneConfig
from goqueue.record import kernel
from goqueue.service.groups import Join
from goqueue.storage.file import OsDisk
from goqueue.storage.jobs import Job

# backlog, polled one by one, delayed, due per second, seconds of it, members, seconds, changes, groups, gaps, runs
SIZES = {
    "small": (3_000, 50, 500, 500, 0.2, 3, 1.0, 1, 20, 100, 1),
    "full": (1_000_000, 5_000, 1_000_000, 10_000, 5.0, 20, 20.0, 5, 1_000, 10_000, 3),
}
T = TypeVar("T", bound=Measured)


def run(size: str) -> list[Result]:
    backlog, singles, delayed, due_rate, due_seconds, members, seconds, changes, groups, gaps, runs = SIZES[size]
    results: list[Result] = []
    with _broker() as served, Client(served.native, timeout="60s") as client:
        work = _best(runs, partial(workloads.work, client, _asked(backlog)))
        note = f"p50 of a cycle {work.p50_ms:.2f} ms, broker CPU {work.broker_cpu_seconds:.2f} s"
        results.append(_rate("poll 500, ack each", work, 600_000, note))
        durable = _best(runs, partial(workloads.work, client, _asked(backlog, flush="group")))
        results.append(Result("the same, flush=group", durable.messages_per_second, "msg/s", "", None))
        shared = _best(runs, partial(workloads.work_shared, client, _asked(backlog), served.native, consumers=4))
        results.append(_rate("the same, 4 consumers that share", shared, 400_000))
        stuck = _best(runs, partial(workloads.stuck, client, _asked(backlog)))
        share = 100 * stuck.messages_per_second / work.messages_per_second
        results.append(Result("the same behind a stuck message", share, "%", ">= 90", share >= 90))
        for flush in ("interval", "group"):
            one = min(
                (workloads.poll_one(client, _asked(singles, flush=flush)) for _ in range(runs)),
                key=lambda one: one.p99_ms,
            )
            is_judged = flush == "interval"
            holds = one.p50_ms <= 0.3 and one.p99_ms <= 2 if is_judged else None
            target = "p50 <= 0.3, p99 <= 2" if is_judged else ""
            name = f"poll 1, ack 1, flush={flush}: p50"
            note = f"p99 {one.p99_ms:.2f} ms"
            redis = _redis(singles) if is_judged else None
            if redis is not None:
                note += f"; Redis XREADGROUP, XACK {redis[0]:.2f}, p99 {redis[1]:.2f} ms"
            results.append(Result(name, one.p50_ms, "ms", target, holds, note))
        late = workloads.delay(client, _asked(delayed), served.native, due_rate=due_rate, due_seconds=due_seconds)
        results += [
            _result("schedule delayed messages", late.scheduled_per_second, "msg/s", ">= 200,000", 200_000),
            _at_most(f"memory of {delayed:,} pending", late.pending_mb, "MB", 100),
            _result("cancel, 1,000 per request", late.cancelled_per_second, "msg/s", ">= 50,000", 50_000),
            _result("reschedule, 1,000 per request", late.rescheduled_per_second, "msg/s", ">= 50,000", 50_000),
            _at_most(f"fire {delayed:,} at one instant", late.fired_seconds, "s", 5),
            _at_most(f"lateness p99 at {due_rate:,} due/s", late.lateness_p99_ms, "ms", 20),
        ]
        moved = workloads.groups(
            client,
            _asked(backlog, partitions=60),
            served.native,
            members=members,
            seconds=seconds,
            changes=changes,
        )
        pause = f"longest pause of {members} members while one comes and goes"
        if moved.messages >= backlog * workloads.PLENTY:
            pause += ", until the backlog was nearly done"
        results += [
            _at_most(pause, max(0.001, moved.gap_max_ms), "ms", 50),
            _at_most("rebalance", max(0.001, moved.rebalance_max_ms), "ms", 1_000),
        ]
    results += [_recovery(groups, gaps), *_memory(size)]
    return results


def _redis(count: int) -> tuple[float, float] | None:
    """p50 and p99 in ms of the same through redis-py, if both are here."""
    with redis_client() as client:
        if client is None:
            return None
        pipeline = client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.xadd("stream", {"value": bytes(100)})
        pipeline.execute()
        client.xgroup_create("stream", "work", id="0")

        def work() -> None:
            ((_, ((entry, _),)),) = client.xreadgroup("work", "one", {"stream": ">"}, count=1)
            client.xack("stream", "work", entry)

        return timed(count, work)


def _asked(count: int, *, flush: str = "interval", partitions: int = 3, rate: int = 0) -> Workload:
    return Workload(
        size=100,
        count=count,
        batch=1_000,
        batch_bytes=1024 * 1024,
        linger="5ms",
        partitions=partitions,
        acks="leader",
        flush=flush,
        rate=rate,
        compression=None,
    )


def _best(runs: int, measure: Callable[[], Measured]) -> Measured:
    return min((measure() for _ in range(runs)), key=lambda one: one.seconds)


def _rate(name: str, measured: Measured, target: int, note: str = "") -> Result:
    rate = measured.messages_per_second
    return Result(name, rate, "msg/s", f">= {target:,}", rate >= target, note)


def _result(name: str, value: float, unit: str, target: str, least: float) -> Result:
    return Result(name, value, unit, target, value >= least)


def _at_most(name: str, value: float, unit: str, most: float) -> Result:
    return Result(name, value, unit, f"<= {most:g}", value <= most)


class _Inline:
    """Workers that work at once."""

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        job.run()
        done(None)


def _recovery(groups: int, gaps: int) -> Result:
    """How long it takes to have all cursors back."""
    with tempfile.TemporaryDirectory() as directory:
        broker = _open(directory)
        broker.topics.create("t", partitions=3, settings={"flush": "none"})
        for number in range(3):
            for _ in range(-(-2 * gaps // 1_000)):
                broker.messages.publish_records("t", number, kernel.encode([b"x"] * 1_000))
        odd = BitMap64(range(1, 2 * gaps, 2))
        for group in range(groups):
            broker.groups.join(f"g{group}", Join("c", ("t",)))
            for number in range(3):
                group_delivery = broker.partitions.delivery(broker.partitions.leader("t", number)).group(f"g{group}")
                group_delivery.feed(1)
                group_delivery.finish(odd)
        broker.close()
        began = time.perf_counter()
        broker = _open(directory)
        for number in range(3):
            broker.partitions.delivery(broker.partitions.leader("t", number))
        seconds = time.perf_counter() - began
        found = {
            len(one.cursor.acked)
            for one in broker.partitions.delivery(broker.partitions.leader("t", 0)).groups.values()
        }
        assert found == {len(odd)}, found
        broker.close()
    name = f"recover {groups:,} groups x 3 partitions x {gaps:,} gaps"
    return _at_most(name, seconds, "s", 2)


def _open(directory: str) -> Broker:
    return Broker.open(OsDisk(), f"{directory}/data", clock=SystemClock(), workers=_Inline())


def _memory(size: str) -> list[Result]:
    count = 1_000_000 if size == "full" else 10_000
    nothing = BitMap64()
    lanes = tuple(BitMap64() for _ in range(5))

    def cursor() -> Cursor:
        made = Cursor(floor=0, lanes=LaneConfig(), split=lambda offsets: [(NORMAL, offsets)], now_ns=0)
        made.admit(2 * count, lanes=lanes, hidden=nothing, delayed=nothing, now_ns=0)
        return made

    gc.collect()
    before = _rss()
    busy = cursor()
    for number in range(count // 500):
        (run,) = busy.take(500, now_ns=0)
        busy.lease(number + 1, "member", run.offsets, deadline_ns=30 * SECOND, wall_ns=0)
    per_message = max(0.1, (_rss() - before) / count)
    scattered = BitMap64(range(1, 2 * count, 2))
    scattered.run_optimize()
    megabytes = len(scattered.serialize()) / 1e6
    return [
        Result("memory per message in flight", per_message, "B", "<= 32", per_message <= 32 or size == "small"),
        _at_most(f"{count:,} scattered acks above the floor", megabytes, "MB", 2),
    ]


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(run)
