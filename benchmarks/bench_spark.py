"""Topics as tables of Spark, beside Parquet files with the same rows, in the same session.

Run as `python -m benchmarks.bench_spark`; the data go to `GOQUEUE_BENCH_DIR`, or to the temporary directory. The broker
is a process of its own, Spark has two threads. Rounds of a topic and of its Parquet twin alternate, after four of each
that are not counted, and medians are compared: the machine is noisy, and the noise should hit both. What is read goes
into Spark's `noop` sink, which asks for every column of every row and keeps nothing.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import SparkSession

from benchmarks.harness import Result, main
from goqueue.client.sync import Client
from goqueue.spark.pipelines import archive
from goqueue.spark.pipelines.job import JobConfig, running
from goqueue.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WARMING = 4
# rows of 100 B and of 1 KB, rounds, seconds that a stream is measured, and that it runs before
SIZES = {"small": (4_000, 1_000, 1, 1.0, 1.0), "full": (2_000_000, 400_000, 5, 30.0, 15.0)}
PARTITIONS = 2
BATCH = 5_000
KEYS = 100_000
SEGMENT_BYTES = {"small": 64 * 1024, "full": 16 * 1024 * 1024}
MESSAGES_PER_SECOND = 1_000
TICK_SECONDS = 0.01


class Table(NamedTuple):
    """The same rows as a topic and as Parquet files."""

    topic: str
    parquet: str
    row_count: int


class Bench(NamedTuple):
    """What all rows of the table need."""

    spark: SparkSession
    client: Client
    server: str
    data: Path  # of the broker
    scratch: Path
    rounds: int

    def topic(self, name: str, **options: object) -> "DataFrame":
        """The topic as a table."""
        reader = self.spark.read.format("goqueue").option("server", self.server).option("subscribe", name)
        for option, value in options.items():
            reader = reader.option(option, str(value))
        return reader.load()

    def warm(self, work: Callable[[], None]) -> None:
        """The first times do not count, where there are more: Java is still compiling."""
        for _ in range(min(WARMING, self.rounds - 1)):
            work()


def run(size: str) -> list[Result]:
    small_rows, large_rows, rounds, seconds, before_seconds = SIZES[size]
    with _directory() as scratch, _broker(scratch / "data") as server, Client(server, timeout="60s") as client:
        is_own = SparkSession.getActiveSession() is None
        spark = local_session("goqueue-bench", master="local[2]", conf={"spark.ui.showConsoleProgress": "false"})
        bench = Bench(spark, client, server, scratch / "data", scratch, rounds)
        try:
            small = _table(bench, "bench-100", 100, small_rows, SEGMENT_BYTES[size])
            large = _table(bench, "bench-1000", 1_000, large_rows, SEGMENT_BYTES[size])
            return [
                _scan(bench, "full scan, 100 B", small, 2.0),
                _scan(bench, "full scan, 1 KB", large, 1.3),
                _scan(bench, "readFrom=files, 100 B", small, 1.5, readFrom="files", dataDir=bench.data),
                *_projections(bench, small),
                _archive(bench, "archive, 100 B", small, 1.2),
                _archive(bench, "archive, 1 KB", large, 1.1),
                _sink(bench, small),
                *_stream(bench, seconds, before_seconds),
            ]
        finally:
            if is_own:
                spark.stop()


def _table(bench: Bench, topic: str, value_bytes: int, row_count: int, segment_bytes: int) -> Table:
    rng = Random(7)
    bench.client.create_topic(topic, partitions=PARTITIONS, flush="none", segment_bytes=segment_bytes)
    for _ in range(row_count // min(BATCH, row_count)):
        keys = [b"customer-%d" % rng.randrange(KEYS) for _ in range(min(BATCH, row_count))]
        bench.client.publish_many(topic, [(key, rng.randbytes(value_bytes)) for key in keys])
    parquet = str(bench.scratch / f"{topic}.parquet")
    bench.topic(topic, includeHeaders="true").write.parquet(parquet)
    assert bench.spark.read.parquet(parquet).count() == row_count
    return Table(topic, parquet, row_count)


def _scan(bench: Bench, name: str, table: Table, target: float, **options: object) -> Result:
    ours = bench.topic(table.topic, **options)
    theirs = bench.spark.read.parquet(table.parquet).drop("headers")
    return _ratio(bench, name, table, target, partial(_drain, ours), partial(_drain, theirs))


def _projections(bench: Bench, table: Table) -> Iterator[Result]:
    counted = bench.topic(table.topic, columns="offset")
    projected = bench.topic(table.topic, columns="partition,offset,timestamp")
    measured: tuple[tuple[str, Callable[[], None]], ...] = (
        ("count, columns=offset, 100 B", lambda: _expect(counted.count(), table.row_count)),
        ("three columns of numbers, 100 B", lambda: _drain(projected)),
    )
    for name, work in measured:
        bench.warm(work)
        rate = table.row_count / statistics.median(_seconds(work) for _ in range(bench.rounds))
        yield Result(name, rate / 1e6, "M records/s", ">= 3.00", rate >= 3e6)


def _archive(bench: Bench, name: str, table: Table, target: float) -> Result:
    """The pipeline, beside Spark copying the Parquet files into the same layout."""
    theirs = archive.archived(bench.spark.read.parquet(table.parquet))
    numbers = iter(range(1_000))

    def ours() -> None:
        config = archive.ArchiveConfig(topic=table.topic, directory=str(bench.scratch / f"archive-{next(numbers)}"))
        with running(archive.NAME, JobConfig(server=bench.server), spark=bench.spark) as job:
            _expect(archive.run(job, config).messages, table.row_count)
        shutil.rmtree(config.directory)

    def copied() -> None:
        directory = str(bench.scratch / f"copy-{next(numbers)}")
        theirs.write.partitionBy(archive.DAY).parquet(directory)
        shutil.rmtree(directory)

    return _ratio(bench, name, table, target, ours, copied)


def _sink(bench: Bench, table: Table) -> Result:
    rows = bench.spark.read.parquet(table.parquet).select("key", "value")
    numbers = iter(range(1_000))

    def write() -> None:
        topic = f"bench-sink-{next(numbers)}"
        bench.client.create_topic(topic, partitions=PARTITIONS)
        writer = rows.write.format("goqueue").mode("append").option("server", bench.server).option("topic", topic)
        writer.option("transactionalId", topic).option("marker", "all").save()
        bench.client.delete_topic(topic)

    bench.warm(write)
    rate = table.row_count / statistics.median(_seconds(write) for _ in range(bench.rounds))
    return Result("sink, exactly once, 100 B", rate, "records/s", ">= 200,000", rate >= 200_000)


def _stream(bench: Bench, seconds: float, before_seconds: float) -> Iterator[Result]:
    """From a topic through a micro-batch into another: from when a message is published to when a reader has it."""
    for topic in ("bench-in", "bench-out"):
        bench.client.create_topic(topic, partitions=1)
    reader = bench.spark.readStream.format("goqueue").option("server", bench.server).option("subscribe", "bench-in")
    writer = reader.option("startingOffsets", "earliest").load().select("key", "value").writeStream.format("goqueue")
    writer = writer.option("server", bench.server).option("topic", "bench-out")
    query = writer.option("checkpointLocation", str(bench.scratch / "checkpoint")).start()
    count = int((before_seconds + seconds) * MESSAGES_PER_SECOND)
    publisher = threading.Thread(target=_publish_at_rate, args=(bench.server, count))
    publisher.start()
    latencies_ms: list[float] = []
    try:
        found = bench.client.follow("bench-out", start="earliest", limit=count)
        latencies_ms.extend((time.time_ns() - int(message.value)) / 1e6 for message in found)
    finally:
        publisher.join()
        query.stop()
    measured = sorted(latencies_ms[int(before_seconds * MESSAGES_PER_SECOND) :])
    for name, share, target in (("p50", 0.5, 300), ("p99", 0.99, 700)):
        value = measured[int(share * len(measured))]
        yield Result(f"micro-batch topic -> topic, {name}", value, "ms", f"<= {target}", value <= target)


def _publish_at_rate(server: str, count: int) -> None:
    each = int(MESSAGES_PER_SECOND * TICK_SECONDS)
    began = time.monotonic()
    with Client(server) as client:
        for number in range(count // each):
            time.sleep(max(0.0, began + number * TICK_SECONDS - time.monotonic()))
            client.publish_many("bench-in", [str(time.time_ns()).encode()] * each)


def _ratio(
    bench: Bench, name: str, table: Table, target: float, ours: Callable[[], None], theirs: Callable[[], None]
) -> Result:
    for work in (ours, theirs):
        bench.warm(work)
    seconds = [(_seconds(ours), _seconds(theirs)) for _ in range(bench.rounds)]
    own, parquet = (statistics.median(column) for column in zip(*seconds, strict=True))
    note = f"{own:.2f} s, Parquet {parquet:.2f} s, {table.row_count / own / 1e6:.2f} M records/s"
    return Result(name, own / parquet, "x Parquet", f"<= {target}", own <= target * parquet, note)


def _drain(rows: "DataFrame") -> None:
    rows.write.format("noop").mode("overwrite").save()


def _expect(found: int, wanted: int) -> None:
    assert found == wanted, f"{found} rows, and {wanted} were published"


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="goqueue-bench-", dir=os.environ.get("GOQUEUE_BENCH_DIR")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _broker(data: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(data), "--log-level", "error"]
    command += ["--native", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        facts = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
        yield facts["native"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


if __name__ == "__main__":
    main(run)
