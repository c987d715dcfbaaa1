from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig, TopicNotFound
from goqueue.spark.pipelines import stats
from goqueue.spark.pipelines.job import JobConfig, JobProgress, running
from goqueue.spark.pipelines.reports import frame_of, rows
from goqueue.spark.pipelines.stats import StatsConfig
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
SOURCE = "topic string, partition int, key binary, value binary, timestamp timestamp"
CONFIG = StatsConfig()


def messages(spark: "SparkSession", *given: tuple[int, bytes | None, bytes | None, float]) -> "DataFrame":
    """Measured messages of `orders`: partition, key, value, and how many seconds after the start."""
    source = (("orders", number, key, value, START + timedelta(seconds=after)) for number, key, value, after in given)
    return stats.measured(frame_of(spark, source, SOURCE))


def test_a_message_is_as_large_as_its_key_and_its_value(spark: "SparkSession") -> None:
    measured = messages(
        spark, (0, b"key", b"value", 0), (0, None, b"", 0), (0, b"k", None, 0), (0, "é".encode(), b"\xff", 0)
    )

    assert [row["size"] for row in rows(measured)] == [8, 0, 1, 3]


def test_rates_are_of_stretches_of_time(spark: "SparkSession") -> None:
    found = messages(spark, (0, None, b"12345", 0), (1, None, b"1", 59.999), (0, None, b"123", 60), (0, None, b"", 300))

    by_minute = rows(stats.rates(found, CONFIG))
    by_half_minute = rows(stats.rates(found, StatsConfig(every_ns=30 * SECOND)))

    assert [(row["from"].minute, row["messages"], row["bytes"]) for row in by_minute] == [
        (30, 2, 6),
        (31, 1, 3),
        (35, 1, 0),
    ]
    assert (by_minute[0]["messages_per_s"], by_minute[0]["bytes_per_s"]) == (pytest.approx(2 / 60), pytest.approx(0.1))
    assert [row["from"].second for row in by_half_minute] == [0, 30, 0, 0]
    assert by_half_minute[0]["bytes_per_s"] == pytest.approx(5 / 30)


def test_the_share_of_a_hot_key_is_of_all_messages_also_those_without_a_key(spark: "SparkSession") -> None:
    keys = [b"hot"] * 5 + [b"cold", b"\xff"] + [None] * 3
    found = messages(spark, *((0, key, b"v", 0) for key in keys))

    hottest = rows(stats.key_skew(found, StatsConfig(top=2)))

    assert [(row["key"], row["messages"], row["share"], row["keys"]) for row in hottest] == [
        ("hot", 5, 0.5, 3),
        ("cold", 1, 0.1, 3),
    ]
    assert rows(stats.key_skew(found, CONFIG))[2]["key"] == "�"


def test_a_partition_without_messages_is_seen_if_it_is_known(spark: "SparkSession") -> None:
    found = messages(spark, (0, None, b"1", 0), (0, None, b"2", 0), (0, None, b"3", 0), (2, None, b"4", 0))

    known = rows(stats.partition_skew(found, StatsConfig(partition_counts={"orders": 4, "empty": 1})))
    seen = rows(stats.partition_skew(found, CONFIG))

    assert [(row["topic"], row["partition"], row["messages"], row["share"], row["times_even"]) for row in known] == [
        ("empty", 0, 0, None, None),
        ("orders", 0, 3, 0.75, 3.0),
        ("orders", 1, 0, 0.0, 0.0),
        ("orders", 2, 1, 0.25, 1.0),
        ("orders", 3, 0, 0.0, 0.0),
    ]
    assert [(row["partition"], row["times_even"]) for row in seen] == [(0, 1.5), (2, 0.5)]


def test_sizes_are_told_in_percentiles_and_in_powers_of_two(spark: "SparkSession") -> None:
    found = messages(spark, *((0, None, b"x" * size, size) for size in (0, 1, 2, 3, 4, 5, 8, 9, 100)))

    (told,) = rows(stats.sizes(found, CONFIG))
    histogram = rows(stats.size_histogram(found, CONFIG))

    assert (told["messages"], told["bytes"], told["p50_bytes"], told["p99_bytes"], told["max_bytes"]) == (
        9,
        132,
        4,
        100,
        100,
    )
    assert told["mean_bytes"] == pytest.approx(132 / 9)
    assert (told["first_at"], told["last_at"]) == (START, START + timedelta(seconds=100))
    assert [(row["up_to_bytes"], row["messages"]) for row in histogram] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (4, 2),
        (8, 2),
        (16, 1),
        (128, 1),
    ]


def test_a_chart_of_rates_falls_to_zero_where_nothing_came() -> None:
    rates = [
        {"from": START + timedelta(minutes=minute), "messages_per_s": 1.0, "bytes_per_s": 10.0} for minute in (0, 3)
    ]

    bounds = [{"up_to_bytes": bound, "messages": 1} for bound in (0, 512, 1024, 4096, 2**24)]
    tables = {"rates": rates, "size_histogram": bounds, "partition_skew": []}
    per_second, bytes_per_second, sizes, _ = stats.charts("orders", tables, CONFIG)
    nothing = stats.charts("orders", {name: [] for name in tables}, CONFIG)
    years = [{**rates[0], "from": START + timedelta(days=365 * number)} for number in range(5)]

    assert per_second.places == [START + timedelta(minutes=minute) for minute in range(4)]
    assert per_second.series[0].values == [1.0, 0.0, 0.0, 1.0]
    assert bytes_per_second.series[0].values == [10.0, 0.0, 0.0, 10.0]
    assert sizes.places == ["0", "512", "1Ki", "4Ki", "16Mi"]
    assert nothing[0].places == []
    assert len(stats.charts("orders", {**tables, "rates": years}, CONFIG)[0].places) == 5


@pytest.mark.parametrize("setting", ["every_ns", "top"])
def test_settings_that_make_no_sense_are_refused(setting: str) -> None:
    with pytest.raises(InvalidConfig):
        StatsConfig(**{setting: 0})


def test_the_statistics_of_a_topic_are_those_of_its_messages(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client
) -> None:
    client.create_topic("orders", partitions=3)
    given = [("hot" if number % 3 else f"k{number}", "x" * number) for number in range(30)]
    for number, (key, value) in enumerate(given):
        client.publish("orders", value, key=key, partition=number % 2)
    reports: list[JobProgress] = []

    with running("stats", JobConfig(server=broker.address), spark=spark, reporter=reports.append) as job:
        with stats.report(job, "orders", CONFIG) as tables:
            found = {name: rows(tables[name]) for name in ("sizes", "partition_skew", "key_skew")}
        with pytest.raises(TopicNotFound), stats.report(job, "nosuch", CONFIG):
            pass

    (told,) = found["sizes"]
    assert (told["topic"], told["messages"]) == ("orders", 30)
    assert told["bytes"] == sum(len(key) + len(value) for key, value in given)
    assert [(row["partition"], row["messages"]) for row in found["partition_skew"]] == [(0, 15), (1, 15), (2, 0)]
    assert (found["key_skew"][0]["key"], found["key_skew"][0]["messages"], found["key_skew"][0]["keys"]) == (
        "hot",
        20,
        11,
    )
    assert (reports[0].pending, reports[-1].done, reports[-1].lag) == (30, 30, 0)
