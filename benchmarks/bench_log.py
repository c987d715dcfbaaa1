"""The log on a real disk: appends, reads, lookups and memory, each beside what the bare disk does in the same run.

Run as `python -m benchmarks.bench_log`; the data go to `--dir` of `GOQUEUE_BENCH_DIR`, or to the temporary directory.
Rounds of the log and of its yardstick alternate, and each counts with its best one: the machine is noisy, and
the noise should hit both.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple, ParamSpec

from benchmarks.harness import Result, main
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk

P = ParamSpec("P")

RECORDS = 1_000
VALUE = bytes(100)
ORIGIN = TopicPartition("orders", 0)
MIB = 1024 * 1024
READ_BYTES = 1 * MIB

# bytes to append per round, rounds, batches per group round, bytes of the large log, lookups
SIZES = {"small": (4 * MIB, 1, 3, 20 * MIB, 20), "full": (512 * MIB, 5, 300, 10_000_000_000, 1_000)}
SEGMENTS = {"small": 100, "full": 10_000}
GROWTH = 10
RSS_MB_MAX = 100


def run(size: str) -> list[Result]:
    append_bytes, rounds, group_batches, large_bytes, lookups = SIZES[size]
    segment_bytes = LogConfig().segment_bytes if size == "full" else 1 * MIB
    return [
        *_append(append_bytes, rounds),
        *_group(group_batches, rounds),
        _read(append_bytes, rounds),
        _open_many(SEGMENTS[size], rounds),
        *_large(large_bytes, lookups, segment_bytes),
    ]


def _append(total: int, rounds: int) -> list[Result]:
    batch = _batch()
    count = total // len(batch)
    plain, ours = [], []
    for _ in range(rounds):
        with _directory() as directory:
            plain.append(_seconds(_write, directory / "plain", batch, count))
        with _directory() as directory:
            log = _open(directory, Flush.INTERVAL)
            ours.append(_seconds(_append_batches, log, batch, count))
            log.close()
    rate, plain_rate = count * RECORDS / min(ours), count * RECORDS / min(plain)
    needed = min(3e6, 0.8 * plain_rate)
    return [
        Result("append, flush=interval", rate / 1e6, "M records/s", f">= {needed / 1e6:.2f}", rate >= needed),
        Result(
            "  plain writes of the same bytes",
            plain_rate / 1e6,
            "M records/s",
            "",
            None,
            f"ratio {rate / plain_rate:.0%}",
        ),
    ]


def _group(batches: int, rounds: int) -> list[Result]:
    batch = _batch()
    plain, ours = [], []
    for _ in range(rounds):
        with _directory() as directory:
            plain.append(_seconds(_write, directory / "plain", batch, batches, sync=True))
        with _directory() as directory:
            log = _open(directory, Flush.GROUP)
            ours.append(_seconds(_append_batches, log, batch, batches, sync=True))
            log.close()
    rate, plain_rate = batches * RECORDS / min(ours), batches * RECORDS / min(plain)
    note = f"{min(ours) / batches * 1e3:.2f} ms per batch, {min(plain) / batches * 1e3:.2f} ms plain"
    return [
        Result(
            "append, flush=group, one writer",
            rate / plain_rate * 100,
            "% of plain",
            ">= 70",
            rate >= 0.7 * plain_rate,
            note,
        )
    ]


def _read(total: int, rounds: int) -> Result:
    with _directory() as directory:
        log = _open(directory, Flush.NONE)
        batch = _batch()
        _append_batches(log, batch, total // len(batch))
        best = min(_seconds(_read_decoded, log) for _ in range(rounds))
        rate = log.next_offset / best
        log.close()
    return Result("sequential read, decoded", rate / 1e6, "M records/s", ">= 3.00", rate >= 3e6)


def _open_many(segments: int, rounds: int) -> Result:
    """Made in memory, where 30,000 syncs cost nothing, and copied to the disk."""
    disk = MemoryDisk()
    log = Log.open(disk, "/log", LogConfig(segment_bytes=1))
    for number in range(segments):
        log.append(kernel.encode([VALUE]), now_ns=time.time_ns())
        if number % 100 == 0:
            log.flush()
    log.close()
    with _directory() as directory:
        (directory / "log").mkdir()
        for path in disk.paths():
            (directory / path.removeprefix("/")).write_bytes(disk.read(path))
        best = min(_seconds(_reopen, directory) for _ in range(rounds))
    return Result(f"open a log of {segments:,} segments", best * 1e3, "ms", "< 1000", best < 1)


def _large(total: int, lookups: int, segment_bytes: int) -> list[Result]:
    """A large log, written and read in a process of its own whose memory is watched, then searched."""
    with _directory() as directory:
        small = _written(directory / "small", total // GROWTH, segment_bytes)
        large = _written(directory / "large", total, segment_bytes)
        read_rss = _child("read", directory / "large", total, segment_bytes)
        before = _lookups(directory / "small", lookups, segment_bytes)
        after = _lookups(directory / "large", lookups, segment_bytes)
    gigabytes = total / 1e9
    results = []
    for name, small_log, large_log in zip(("offset", "time"), before, after, strict=True):
        p99 = large_log.p99()
        note = f"p50 {large_log.p50():.0f} us; p99 {large_log.cold_p99():.0f} us where the system has to read the disk"
        results.append(Result(f"{name} lookup, {gigabytes:g} GB, p99", p99, "us", "< 1000", p99 < 1000, note))
        ratio = large_log.p50() / small_log.p50()
        note = f"p50 {small_log.p50():.0f} us, p99 {small_log.p99():.0f} us there"
        results.append(Result(f"  p50 beside {gigabytes / GROWTH:g} GB", ratio, "x", "~ 1", ratio < 1.5, note))
    for name, rss in (("writing", max(small, large)), ("reading", read_rss)):
        results.append(
            Result(f"memory while {name} {gigabytes:g} GB", rss, "MB RSS", f"<= {RSS_MB_MAX}", rss <= RSS_MB_MAX)
        )
    return results


class Lookups(NamedTuple):
    """Microseconds of lookups in logs opened for each of them, so that nothing of ours is warm."""

    warm: list[float]  # the system has the pages in its cache
    cold: list[float]  # it may have to read them from the disk

    def p50(self) -> float:
        return sorted(self.warm)[len(self.warm) // 2]

    def p99(self) -> float:
        return sorted(self.warm)[len(self.warm) * 99 // 100]

    def cold_p99(self) -> float:
        return sorted(self.cold)[len(self.cold) * 99 // 100]


def _lookups(directory: Path, count: int, segment_bytes: int) -> tuple[Lookups, Lookups]:
    """Lookups by offset and by time, each made twice: the first one fetches the pages."""
    rng = Random(7)
    log = _open(directory, Flush.NONE, segment_bytes)
    end = log.next_offset
    log.close()
    by_offset, by_time = Lookups([], []), Lookups([], [])
    for _ in range(count):
        wanted = rng.randrange(end)
        for times in (by_offset.cold, by_offset.warm):
            log = _open(directory, Flush.NONE, segment_bytes)
            started = time.perf_counter_ns()
            chunk = log.read(wanted, max_bytes=1)
            times.append((time.perf_counter_ns() - started) / 1e3)
            log.close()
        (message,) = kernel.decode(chunk.records, ORIGIN, StoredMessage)
        assert message.offset == wanted
        for times in (by_time.cold, by_time.warm):
            log = _open(directory, Flush.NONE, segment_bytes)
            started = time.perf_counter_ns()
            found = log.offset_at_time(message.timestamp_ns)
            times.append((time.perf_counter_ns() - started) / 1e3)
            log.close()
        assert found == wanted // RECORDS * RECORDS
    return by_offset, by_time


def _written(directory: Path, total: int, segment_bytes: int) -> float:
    return _child("write", directory, total, segment_bytes)


def _child(task: str, directory: Path, total: int, segment_bytes: int) -> float:
    """Run the task in a new process and return its peak memory in MB."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_log",
        "--task",
        task,
        str(directory),
        str(total),
        str(segment_bytes),
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _task(task: str, directory: Path, total: int, segment_bytes: int) -> None:
    log = _open(directory, Flush.NONE, segment_bytes)
    if task == "write":
        batch = _batch()
        _append_batches(log, batch, total // len(batch), maintain=True)
    else:
        _read_decoded(log)
    log.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _batch() -> bytearray:
    return kernel.encode([VALUE] * RECORDS)


def _open(directory: Path, flush: Flush, segment_bytes: int = LogConfig().segment_bytes) -> Log:
    config = LogConfig(flush=flush, segment_bytes=segment_bytes, retention_ms=0)
    return Log.open(OsDisk(), str(directory / "log"), config)


def _reopen(directory: Path) -> None:
    _open(directory, Flush.NONE).close()


def _append_batches(log: Log, batch: bytearray, count: int, *, sync: bool = False, maintain: bool = False) -> None:
    for _ in range(count):
        log.append(batch, now_ns=time.time_ns())
        if sync:
            log.flush()
        if maintain:
            log.maintain(now_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())


def _read_decoded(log: Log) -> None:
    reader = log.reader(log.start_offset)
    count = 0
    while (chunk := reader.read(max_bytes=READ_BYTES)).record_count:
        count += len(kernel.decode(chunk.records, ORIGIN, StoredMessage, verify=False))
    assert count == log.next_offset


def _write(path: Path, batch: bytearray, count: int, *, sync: bool = False) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(count):
        os.write(fd, batch)
        if sync:
            os.fdatasync(fd)
    os.close(fd)


def _seconds(work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> float:
    started = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - started


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="goqueue-bench-", dir=os.environ.get("GOQUEUE_BENCH_DIR")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        _task(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(run)
