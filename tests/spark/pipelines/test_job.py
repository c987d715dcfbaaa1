import errno
import os
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.spark.pipelines.job import (
    REASON_CHARACTERS,
    JobConfig,
    JobProgress,
    PipelineFailed,
    group_of,
    reason_of,
    running,
)
from goqueue.testing import EmbeddedBroker, ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_FAILED = """An error occurred while calling o78.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/goqueue/spark/sink.py", line 10, in write
    raise TopicNotFound("orders")
goqueue.errors.TopicNotFound: topic not found: orders

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TASK_FAILED, "topic not found: orders"),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):\n"
            "goqueue.errors.BrokerUnavailable: nobody answers at x:1: refused\n SQLSTATE: 38000",
            "nobody answers at x:1: refused",
        ),
        ("[UNRESOLVED_COLUMN] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;\n'Filter", None),
        (
            "first\nCaused by: java.io.IOException: No space left on device\n\tat x.y(Z.java:1)",
            "No space left on device",
        ),
        (f"Traceback (most recent call last):\nValueError: before it\n\n{TASK_FAILED}", "topic not found: orders"),
        ("Traceback (most recent call last):\nKeyError\n", "KeyError"),
        ("", "Spark says nothing"),
        ("\n  just words  \nmore", "just words"),
    ],
)
def test_the_cause_is_found_among_the_lines_of_spark(text: str, reason: str | None) -> None:
    found = reason_of(text)

    assert "\n" not in found
    assert found == (reason or "A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;")


def test_a_reason_is_no_novel() -> None:
    assert len(reason_of("x" * 10_000)) == REASON_CHARACTERS


def test_progress_knows_rate_and_lag() -> None:
    progress = JobProgress("archives", 500, 100, 800, 2_000_000_000)

    assert (progress.rate, progress.lag) == (250.0, 300)
    assert JobProgress("archives", 0, 0, 0, 0).rate == 0.0


def test_a_job_reports_from_its_first_report_on(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    clock = ManualClock()
    seen: list[JobProgress] = []

    with running("x", JobConfig(server=broker.address), spark=spark, reporter=seen.append, clock=clock) as job:
        job.report("counts", 0, 10, pending=10)
        clock.advance(2)
        job.report("counts", 10, 10)

    assert [(one.done, one.pending, one.elapsed_ns) for one in seen] == [(0, 10, 0), (10, 0, 2_000_000_000)]


def test_the_settings_of_a_job_are_its_own(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)

    with running("x", JobConfig(server=broker.address, conf={"spark.sql.shuffle.partitions": "5"}), spark=spark) as job:
        assert job.spark.conf.get(name) == "TIMESTAMP_MICROS"
        assert job.spark.conf.get("spark.sql.shuffle.partitions") == "5"

    assert spark.conf.get(name) == before
    assert spark.range(3).count() == 3


def test_what_spark_raises_is_one_sentence(spark: "SparkSession", client: Client, broker: EmbeddedBroker) -> None:
    client.create_topic("orders", partitions=1)
    client.publish("orders", "x")

    config = JobConfig(server=broker.address)
    for work in (
        lambda job: job.read("orders").where("nothing = 1").count(),
        lambda job: job.read("orders").where("raise_error('no') IS NOT NULL").count(),
        lambda job: job.read("absent").count(),
    ):
        with pytest.raises(PipelineFailed) as caught, running("stats", config, spark=spark) as job:
            work(job)
        assert str(caught.value).startswith("stats: ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_job_that_rests_ends_when_it_is_told_to(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    with running("x", JobConfig(server=broker.address), spark=spark) as job:
        assert job.rest(0)
        job.end()
        assert not job.rest(60)


def test_each_pipeline_of_a_topic_has_a_group() -> None:
    assert group_of("archive", "orders") == "pipeline-archive-orders"


def test_a_disk_that_is_full_is_told_in_a_sentence(broker: EmbeddedBroker, spark: "SparkSession") -> None:
    config = JobConfig(server=broker.address)

    with pytest.raises(PipelineFailed) as caught, running("archive", config, spark=spark):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/archive/_goqueue/manifest")

    assert str(caught.value) == "archive: /archive/_goqueue/manifest: No space left on device"


def test_a_reader_that_has_enough_is_no_failure_of_the_pipeline(broker: EmbeddedBroker, spark: "SparkSession") -> None:
    with pytest.raises(BrokenPipeError), running("archive", JobConfig(server=broker.address), spark=spark):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
