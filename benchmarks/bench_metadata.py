"""The metadata log: one append at a time, batches, and how soon another process has an entry.

Run as `python -m benchmarks.bench_metadata`; the files go to `GOQUEUE_BENCH_DIR`, or to the temporary directory. Each
engine in `ENGINES` is measured in the same way: it says where a new log is, and how to connect to it from any process.
etcd has three members here, and is left out where none can be had.
The time of an entry travels in its epoch: the monotonic clock is one for all processes of a machine.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, main
from goqueue.cluster.etcd_client import EtcdOptions
from goqueue.cluster.etcd_log import EtcdMetadataLog
from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import ID_BYTES, EntryAppended, MetadataEntry, MetadataLog, MetadataPosition
from goqueue.cluster.records import PartitionChanged, decode_batch, encode_batch, encode_record, join_batch
from goqueue.runtime.entropy import SystemEntropy
from goqueue.storage.file import OsDisk
from tests.cluster.etcd_cluster import EtcdCluster, etcd_program

# appends one at a time, batches, entries for another process, seconds of idleness
SIZES = {"small": (50, 5, 20, 0.2), "full": (2_000, 200, 500, 5.0)}
BATCH_BYTES = 128 * 1024
PAUSE_S = 0.005
"""Between the entries for another process, so that it sleeps when each of them comes."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of metadata log. The address of a log is a string, for the command line of another process."""

    new_log: Callable[[], AbstractContextManager[str]]
    connect: Callable[[str], Awaitable[MetadataLog]]


@contextmanager
def _directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-", dir=os.environ.get("GOQUEUE_BENCH_DIR")) as directory:
        yield f"{directory}/log"


async def _connect_file(address: str) -> MetadataLog:
    return await FileMetadataLog.open(OsDisk(), address)


@contextmanager
def _three_members() -> Iterator[str]:
    """A new etcd, on the same disk, which syncs what it answers."""
    with (
        tempfile.TemporaryDirectory(prefix="goqueue-bench-", dir=os.environ.get("GOQUEUE_BENCH_DIR")) as directory,
        EtcdCluster.running(Path(directory), 3) as etcd,
    ):
        yield ",".join(etcd.endpoints)


async def _connect_etcd(address: str) -> MetadataLog:
    options = EtcdOptions(endpoints=tuple(address.split(",")))
    return await EtcdMetadataLog.open(options, "/bench", entropy=SystemEntropy())


ENGINES = {"file": Engine(_directory, _connect_file), "etcd": Engine(_three_members, _connect_etcd)}


def run(size: str) -> list[Result]:
    names = [name for name in ENGINES if name != "etcd" or etcd_program() is not None]
    return [result for name in names for result in asyncio.run(_engine(name, *SIZES[size]))]


async def _engine(name: str, appends: int, batches: int, entries: int, idle_s: float) -> list[Result]:
    engine = ENGINES[name]
    results = []
    for measure, count in ((_one_at_a_time, appends), (_batched, batches)):
        with engine.new_log() as address:
            async with _connected(engine, address) as log:
                results += await measure(log, count)
    with engine.new_log() as address:
        results += await _in_another_process(name, address, entries, idle_s)
    for result in results:
        assert result.value > 0
    return [_named(result, f"metadata log ({name}): {result.name}") for result in results]


async def _one_at_a_time(log: MetadataLog, count: int) -> list[Result]:
    batch = encode_batch([_record(0)])
    times = []
    for _ in range(count):
        after = await log.tail()
        started = time.perf_counter()
        await _append(log, after, batch)
        times.append((time.perf_counter() - started) * 1e3)
    times.sort()
    p50, p99 = times[count // 2], times[count * 99 // 100]
    return [
        Result("append, p50", p50, "ms", "<= 2.5", p50 <= 2.5),
        Result("append, p99", p99, "ms", "<= 10", p99 <= 10, f"max {times[-1]:.1f} ms"),
    ]


async def _batched(log: MetadataLog, count: int) -> list[Result]:
    records = 0
    after = await log.tail()
    started = time.perf_counter()
    for _ in range(count):
        encoded: list[bytes] = []
        size = 0
        while size < BATCH_BYTES:
            raw = encode_record(_record(records + len(encoded)))
            encoded.append(raw)
            size += len(raw)
        after = await _append(log, after, join_batch(encoded))
        records += len(encoded)
    rate = records / (time.perf_counter() - started)
    note = f"{records // count:,} records in a batch, {rate / (records // count):.0f} batches/s"
    return [Result("append, 128 KB batches", rate, "records/s", ">= 100,000", rate >= 100_000, note)]


async def _in_another_process(name: str, address: str, count: int, idle_s: float) -> list[Result]:
    """One process appends, another one decodes, and then has nothing to do."""
    async with _connected(ENGINES[name], address) as log:
        command = [
            sys.executable,
            "-m",
            "benchmarks.bench_metadata",
            "--follow",
            name,
            address,
            str(count),
            str(idle_s),
        ]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert follower.stdout
        await asyncio.to_thread(follower.stdout.readline)  # it watches
        batch = encode_batch([_record(0)])
        after = await log.tail()
        for _ in range(count):
            await asyncio.sleep(PAUSE_S)
            after = await _append(log, after, batch)
        rest, _ = await asyncio.to_thread(follower.communicate)
    assert follower.returncode == 0
    p50, p99, idle = map(float, rest.split())
    return [
        Result("append to applied in another process, p50", p50, "ms", "<= 4", p50 <= 4, f"p99 {p99:.1f} ms"),
        Result("CPU of a process that watches, idle", idle, "%", "< 0.3", idle < 0.3),
    ]


async def _follow(name: str, address: str, count: int, idle_s: float) -> None:
    times = []
    async with _connected(ENGINES[name], address) as log:
        assert await log.read(1, 1) == []
        print("watching", flush=True)
        watch = log.watch(1)
        for _ in range(count):
            entry = await anext(watch)
            decode_batch(entry.batch)
            times.append((time.monotonic_ns() - entry.epoch) / 1e6)
        following = asyncio.ensure_future(anext(watch))
        started, used = time.monotonic(), time.process_time()
        await asyncio.wait([following], timeout=idle_s)
        idle = (time.process_time() - used) / (time.monotonic() - started)
        following.cancel()
    times.sort()
    print(times[count // 2], times[count * 99 // 100], idle * 100)


async def _append(log: MetadataLog, after: MetadataPosition, batch: bytes) -> MetadataPosition:
    entry = MetadataEntry(after.index + 1, os.urandom(ID_BYTES), after.id, time.monotonic_ns(), 1, batch)
    assert await log.append(entry) == EntryAppended(entry.position)
    return entry.position


@asynccontextmanager
async def _connected(engine: Engine, address: str) -> AsyncIterator[MetadataLog]:
    log = await engine.connect(address)
    try:
        yield log
    finally:
        await log.close()


def _record(number: int) -> PartitionChanged:
    return PartitionChanged(
        topic_id="0123456789abcdef0123456789abcdef",
        partition=number % 10_000,
        replicas=(1, 2, 3),
        leader=1,
        leader_epoch=number,
        partition_epoch=number,
        isr=(1, 2, 3),
    )


def _named(result: Result, name: str) -> Result:
    return Result(name, result.value, result.unit, result.target, result.met, result.note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        asyncio.run(_follow(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
    else:
        main(run)
