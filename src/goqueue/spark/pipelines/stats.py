"""Statistics of topics: rates, skew over keys and partitions, and sizes of messages.

    topic ──measured──> topic, partition, key, time, size ──> rates, key_skew, partition_skew, sizes, size_histogram

The size of a message is that of its key and its decompressed value, without headers. Messages without a key have no row
in the table of keys, but count in the total of its shares. Rates are per time window, one minute by default; the first
and the last window are rarely complete, and a window without messages has no row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig
from goqueue.spark.pipelines.charts import Chart, Series
from goqueue.spark.pipelines.job import PipelineJob
from goqueue.spark.pipelines.reports import Rows, Tables, frame_of, kept
from goqueue.times import format_duration

COLUMNS: Final = "topic,partition,key,value,timestamp"
PERCENTILES: Final = (0.5, 0.9, 0.99)
PLACES_MAX = 10_000
"""The most time windows of a chart; if there are more, those without messages are left out."""
_ACCURACY = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsConfig:
    """The time windows and the sizes of the tables."""

    every_ns: int = 60 * SECOND
    top: int = 20  # keys of each topic, the most frequent first
    partition_counts: Mapping[str, int] = field(default_factory=dict)  # by topic, so that empty partitions have a row

    def __post_init__(self) -> None:
        for name in ("every_ns", "top"):
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "must be more than 0")


@contextmanager
def report(job: PipelineJob, topic: str, config: StatsConfig, **options: object) -> Iterator[Tables]:
    """All tables of a topic, which is read once; options as those of the source."""
    partition_count = len(job.client.describe_topic(topic).partitions)
    config = replace(config, partition_counts={topic: partition_count})
    with kept(job, topic, measured(job.read(topic, columns=COLUMNS, **options))) as messages:
        yield {
            "sizes": sizes(messages, config),
            "rates": rates(messages, config),
            "partition_skew": partition_skew(messages, config),
            "key_skew": key_skew(messages, config),
            "size_histogram": size_histogram(messages, config),
        }


def measured(source: DataFrame) -> DataFrame:
    """The input of the tables: partition, time, key and size of each message, without its value."""
    size = (_length("key") + _length("value")).cast("long")
    return source.select("topic", "partition", "timestamp", "key", size.alias("size"))


def rates(messages: DataFrame, config: StatsConfig) -> DataFrame:
    """Messages and bytes of each time window, in total and per second."""
    seconds = config.every_ns / SECOND
    stretch = sql.window("timestamp", f"{max(1, config.every_ns // 1_000)} microseconds")
    return (
        messages.groupBy("topic", stretch.alias("stretch"))
        .agg(*_amounts())
        .select(
            "topic",
            sql.col("stretch.start").alias("from"),
            "messages",
            "bytes",
            (sql.col("messages") / seconds).alias("messages_per_s"),
            (sql.col("bytes") / seconds).alias("bytes_per_s"),
        )
        .orderBy("topic", "from")
    )


def key_skew(messages: DataFrame, config: StatsConfig) -> DataFrame:
    """The most frequent keys of each topic, their share of all messages, and the number of keys."""
    counted = messages.groupBy("topic", "key").agg(*_amounts())
    totals = counted.groupBy("topic").agg(sql.sum("messages").alias("total"), sql.count("key").alias("keys"))
    hottest = Window.partitionBy("topic").orderBy(sql.desc("messages"), "key")
    return (
        counted.where(sql.col("key").isNotNull())
        .withColumn("rank", sql.row_number().over(hottest))
        .where(sql.col("rank") <= config.top)
        .join(totals, "topic")
        .orderBy("topic", "rank")
        .select(
            "topic",
            sql.make_valid_utf8(sql.col("key").cast("string")).alias("key"),
            "messages",
            "bytes",
            (sql.col("messages") / sql.col("total")).alias("share"),
            "keys",
        )
    )


def partition_skew(messages: DataFrame, config: StatsConfig) -> DataFrame:
    """Messages and bytes of each partition, its share, and the ratio to an even share."""
    counted = messages.groupBy("topic", "partition").agg(*_amounts())
    expected = [(topic, number) for topic, count in config.partition_counts.items() for number in range(count)]
    if expected:
        all_of_them = frame_of(messages.sparkSession, expected, "topic string, partition int")
        counted = counted.join(all_of_them, ["topic", "partition"], "full").fillna(0, ["messages", "bytes"])
    total = sql.sum("messages").over(Window.partitionBy("topic"))
    count = sql.count(sql.lit(1)).over(Window.partitionBy("topic"))
    share = sql.when(total > 0, sql.col("messages") / total)
    return counted.select(
        "topic", "partition", "messages", "bytes", share.alias("share"), (share * count).alias("times_even")
    ).orderBy("topic", "partition")


def sizes(messages: DataFrame, config: StatsConfig) -> DataFrame:
    """The sizes of the messages of each topic: mean, percentiles, largest."""
    percentiles = (
        sql.percentile_approx("size", share, _ACCURACY).alias(f"p{round(share * 100)}_bytes") for share in PERCENTILES
    )
    return (
        messages.groupBy("topic")
        .agg(
            *_amounts(),
            sql.min("timestamp").alias("first_at"),
            sql.max("timestamp").alias("last_at"),
            sql.avg("size").alias("mean_bytes"),
            *percentiles,
            sql.max("size").alias("max_bytes"),
        )
        .orderBy("topic")
    )


def size_histogram(messages: DataFrame, config: StatsConfig) -> DataFrame:
    """The number of messages of at most 0, 1, 2, 4, 8 ... bytes that are larger than the bound before."""
    bound = sql.when(sql.col("size") == 0, sql.lit(0)).otherwise(sql.pow(sql.lit(2), sql.ceil(sql.log2("size"))))
    return (
        messages.groupBy("topic", bound.cast("long").alias("up_to_bytes"))
        .agg(*_amounts())
        .orderBy("topic", "up_to_bytes")
    )


def charts(topic: str, tables: Mapping[str, Rows], config: StatsConfig) -> list[Chart]:
    """Charts of rates over time, sizes and partitions of a topic, from rows of its tables."""
    by_time = {row["from"]: row for row in tables["rates"]}
    times = _stretches(sorted(by_time), timedelta(microseconds=config.every_ns // 1_000))
    over_time = (
        Chart(
            title=f"{topic}: {unit} per second",
            x_label=f"time (UTC), per {format_duration(config.every_ns)}",
            y_label=f"{unit}/s",
            places=times,
            series=[Series(unit, [by_time[time][column] if time in by_time else 0.0 for time in times])],
        )
        for unit, column in (("messages", "messages_per_s"), ("bytes", "bytes_per_s"))
    )
    return [
        *over_time,
        Chart(
            title=f"{topic}: message sizes",
            x_label="bytes, at most",
            y_label="messages",
            places=[_binary(row["up_to_bytes"]) for row in tables["size_histogram"]],
            series=[Series("messages", [row["messages"] for row in tables["size_histogram"]])],
            kind="bars",
        ),
        Chart(
            title=f"{topic}: messages per partition",
            x_label="partition",
            y_label="messages",
            places=[str(row["partition"]) for row in tables["partition_skew"]],
            series=[Series("messages", [row["messages"] for row in tables["partition_skew"]])],
            kind="bars",
        ),
    ]


def _stretches(times: Sequence[datetime], step: timedelta) -> Sequence[datetime]:
    """All time windows from the first to the last, also those without messages, unless there are too many."""
    count = (times[-1] - times[0]) // step + 1 if times and step else 0
    return [times[0] + index * step for index in range(count)] if 0 < count <= PLACES_MAX else times


def _binary(count: int) -> str:
    """A power of two in few characters: `512`, `4Ki`, `16Mi`."""
    return next((f"{count >> shift}{unit}" for shift, unit in ((20, "Mi"), (10, "Ki")) if count >> shift), str(count))


def _amounts() -> tuple[Column, Column]:
    return sql.count(sql.lit(1)).alias("messages"), sql.sum("size").alias("bytes")


def _length(column: str) -> Column:
    return sql.coalesce(sql.octet_length(column), sql.lit(0))
