from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from goqueue.client.sync import Client
from goqueue.errors import InvalidConfig
from goqueue.spark.pipelines import journeys
from goqueue.spark.pipelines.job import JobConfig, running
from goqueue.spark.pipelines.journeys import JourneyConfig, TracesNotKept
from goqueue.spark.pipelines.reports import Rows, frame_of, rows
from goqueue.testing import EmbeddedBroker
from goqueue.tracing.table import TraceRow, encode_line
from tests.spark.traces import read_until_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MS = 1_000_000
NOW = 1_794_000_000_000_000_000
CONFIG = JourneyConfig()


def line(event_type: str, at_ms: float, offset: int = 0, last: int | None = None, **facts: Any) -> bytes:
    last = offset if last is None else last
    row = TraceRow(
        **{
            "event_type": event_type,
            "time_ns": NOW + round(at_ms * MS),
            "sequence": 1,
            "topic": "orders",
            "partition": 0,
            "first_offset": offset,
            "last_offset": last,
            "count": last - offset + 1,
            **facts,
        }
    )
    return encode_line(row)


def published(at_ms: float, offset: int = 0, last: int | None = None, **facts: Any) -> Iterator[bytes]:
    """Received, and persisted 2 ms later."""
    yield line("publish.received", at_ms, offset, last, **facts)
    yield line("publish.partitioned", at_ms + 1, offset, last, **facts)
    yield line("publish.persisted", at_ms + 2, offset, last, **facts)


def consumed(event: str, at_ms: float, offset: int = 0, group: str = "billing", **facts: Any) -> bytes:
    return line(f"consume.{event}", at_ms, offset, consumer_group=group, **{"consumer_id": "worker-1", **facts})


def told(spark: "SparkSession", *lines: bytes) -> "DataFrame":
    return journeys.events(frame_of(spark, ((one,) for one in lines), "value binary"))


def by_offset(found: "DataFrame") -> dict[int, dict[str, Any]]:
    return {row["offset"]: row for row in rows(found)}


def test_the_fields_are_those_that_the_broker_writes() -> None:
    names = tuple(field.partition(" ")[0] for field in journeys.EVENT_FIELDS.split(", "))

    assert names == TraceRow.__struct_fields__


def test_a_line_is_an_event_of_each_of_its_messages_and_what_is_no_line_is_passed_over(spark: "SparkSession") -> None:
    routed = {"dlq_topic": "orders.dlq", "dlq_partition": 1, "dlq_offset": 70}
    found = told(
        spark,
        line("dlq.routed", 0, 10, 12, **routed),
        line("publish.received", 0, 0, 9, count=5),
        b"no json",
        b"{}",
        msgspec.json.encode({"event_type": "rebalance.started", "time_ns": 1, "consumer_group": "billing"}),
    )

    assert [(row["event_type"], row["offset"], row["dlq_offset"]) for row in rows(found)] == [
        ("dlq.routed", 10, 70),
        ("dlq.routed", 11, 71),
        ("dlq.routed", 12, 72),
    ]


def test_a_journey_has_a_latency_for_each_stage_that_is_known(spark: "SparkSession") -> None:
    found = told(
        spark,
        *published(0, 0, 3, trace_id="cafe"),
        consumed("fetched", 12, 0, attempt=1),
        consumed("acked", 15, 0),
        # given back, and delivered to another
        consumed("fetched", 10, 1, attempt=1),
        consumed("nacked", 20, 1, error="db down"),
        consumed("fetched", 30, 1, attempt=2, consumer_id="worker-2"),
        consumed("acked", 34.5, 1),
        # delayed by 100 ms
        line("delay.scheduled", 2, 2, deliver_at_ns=NOW + 100 * MS),
        line("delay.ready", 101, 2),
        consumed("fetched", 103, 2, attempt=1),
        consumed("acked", 104, 2),
        # published before traces were kept
        consumed("fetched", 5, 9, attempt=4),
        consumed("acked", 6, 9),
    )

    made = by_offset(journeys.journeys(found, CONFIG))

    stages = ("persist_ms", "wait_ms", "work_ms", "total_ms")
    assert [made[0][stage] for stage in stages] == [2, 10, 3, 15]
    assert [made[1][stage] for stage in stages] == [2, 8, 4.5, 34.5]
    assert [made[2][stage] for stage in stages] == [2, 2, 1, 3]
    assert [made[3][stage] for stage in stages] == [2, None, None, None]
    assert [made[9][stage] for stage in stages] == [None, None, 1, None]
    assert {offset: (row["deliveries"], row["redeliveries"], row["nacks"]) for offset, row in made.items()} == {
        0: (1, 0, 0),
        1: (2, 1, 1),
        2: (1, 0, 0),
        3: (0, 0, 0),
        9: (4, 3, 0),
    }
    assert (made[1]["consumer"], made[1]["error"], made[1]["trace_id"]) == ("worker-2", "db down", "cafe")
    assert (made[3]["group"], made[9]["received_at"], made[9]["trace_id"]) == (None, None, None)
    assert int(made[0]["acked_at"].timestamp() * 1_000) == NOW // MS + 15


def test_the_outcome_is_what_became_of_a_message_in_the_end(spark: "SparkSession") -> None:
    found = told(
        spark,
        *published(0, 0, 8),
        consumed("fetched", 5, 0, attempt=1),
        *(consumed("fetched", 5, 1, attempt=1), consumed("acked", 6, 1)),
        *(consumed("fetched", 5, 2, attempt=1), consumed("nacked", 6, 2)),
        *(consumed("fetched", 5, 3, attempt=1), line("visibility.timeout", 6, 3, consumer_group="billing")),
        *(consumed("fetched", 5, 4, attempt=1), consumed("rejected", 6, 4, reason="bad")),
        line("dlq.routed", 7, 4, consumer_group="billing", dlq_topic="orders.dlq", dlq_partition=0, dlq_offset=3),
        line("delay.scheduled", 1, 5, deliver_at_ns=NOW + 10**12),
        *(line("delay.scheduled", 1, 6, deliver_at_ns=NOW + 10**12), line("delay.cancelled", 2, 6)),
        line("delay.expired", 9, 7, consumer_group="billing", reason="ttl"),
        consumed("fetched", 9, 7, group="audit", attempt=1),
    )

    made = rows(journeys.journeys(found, CONFIG))

    assert {(row["offset"], row["group"]): row["outcome"] for row in made} == {
        (0, "billing"): "in progress",
        (1, "billing"): "acked",
        (2, "billing"): "retrying",
        (3, "billing"): "retrying",
        (4, "billing"): "dead",
        (5, None): "delayed",
        (6, None): "cancelled",
        (7, "billing"): "expired",
        (7, "audit"): "in progress",
        (8, None): "waiting",
    }
    (dead,) = (row for row in made if row["offset"] == 4)
    assert (dead["dlq_topic"], dead["dlq_partition"], dead["dlq_offset"]) == ("orders.dlq", 0, 3)


def test_tables_are_made_of_journeys(spark: "SparkSession") -> None:
    lines = [
        *published(0, 0, 99),
        *(consumed("fetched", 12, offset, attempt=1) for offset in range(100)),
        *(consumed("acked", 13 + offset, offset) for offset in range(100)),
        *(consumed("fetched", 12, 7, group="audit", attempt=1), consumed("acked", 500, 7, group="audit")),
        *published(0, 0, topic="other"),
    ]
    made = journeys.journeys(told(spark, *lines), CONFIG).persist()

    latencies = rows(journeys.latencies(made, CONFIG))
    spread = rows(journeys.latency_histogram(made, CONFIG))
    again = rows(journeys.redeliveries(made, CONFIG))
    slowest = rows(journeys.slowest(made, JourneyConfig(slowest=2)))
    made.unpersist()

    assert [(row["topic"], row["stage"], row["messages"]) for row in latencies] == [
        ("orders", "persist", 100),  # once, though two groups got one of them
        ("orders", "wait", 101),
        ("orders", "work", 101),
        ("orders", "total", 101),
        ("other", "persist", 1),
    ]
    work = latencies[2]
    assert (work["p50_ms"], work["p90_ms"], work["p99_ms"], work["max_ms"]) == (51, 91, 100, 488)
    assert [(row["up_to_ms"], row["messages"]) for row in spread if row["stage"] == "work"] == [
        (1, 1),
        (2, 1),
        (5, 3),
        (10, 5),
        (20, 10),
        (50, 30),
        (100, 50),
        (500, 1),
    ]
    assert [(row["group"], row["messages"], row["acked"], row["redelivered"]) for row in again] == [
        ("audit", 1, 1, 0),
        ("billing", 100, 100, 0),
    ]
    assert [(row["offset"], row["group"], row["total_ms"]) for row in slowest] == [
        (7, "audit", 500),
        (99, "billing", 112),
    ]

    charts = journeys.charts({"latencies": latencies, "latency_histogram": spread})
    assert [chart.title.partition(":")[0] for chart in charts] == ["orders", "orders", "other", "other"]
    assert [one.name for one in charts[0].series] == ["persist", "wait", "work", "total"]
    assert charts[0].places == ["1", "2", "5", "10", "20", "50", "100", "200", "500"]
    assert charts[0].series[2].values == [1, 1, 3, 5, 10, 30, 50, 0, 1]
    assert charts[1].series[0].values[2] == 51


def test_only_what_was_asked_for_is_told(spark: "SparkSession") -> None:
    found = told(
        spark,
        *published(0, 0),
        *published(0, 0, topic="other"),
        *published(0, 1),
        consumed("fetched", 5, 0),
        consumed("fetched", 5, 1, group="audit"),
    )

    assert rows(journeys.journeys(found, JourneyConfig(topic="nosuch"))) == []
    (one,) = rows(journeys.journeys(found, JourneyConfig(topic="orders", group="audit")))
    assert (one["offset"], one["group"], one["persist_ms"]) == (1, "audit", 2)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        JourneyConfig(slowest=0)


def test_the_journeys_of_real_messages_are_told(spark: "SparkSession") -> None:
    with EmbeddedBroker(traces_topic=True) as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=2)
        client.publish_many("orders", [(f"k{number}", f"{number}") for number in range(20)])
        with client.consumer("orders", group="billing") as consumer:
            left = 20
            while left:
                batch = consumer.poll(max_messages=500, timeout="5s")
                consumer.ack(batch)
                left -= len(batch)
        read_until_told(client, "consume.acked", 20, topic="orders")

        with (
            running("journeys", JobConfig(server=broker.address), spark=spark) as job,
            journeys.report(job, CONFIG) as tables,
        ):
            latencies: Rows = rows(tables["latencies"])
            made = rows(tables["journeys"])

    assert [(row["topic"], row["stage"], row["messages"]) for row in latencies] == [
        ("orders", stage, 20) for stage in journeys.STAGES
    ]
    assert all(0 <= row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in latencies)
    assert {(row["outcome"], row["group"], row["deliveries"]) for row in made} == {("acked", "billing", 1)}
    assert all(row["total_ms"] >= row["wait_ms"] + row["work_ms"] for row in made)


def test_a_broker_that_keeps_no_traces_is_told_so(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    with (
        running("journeys", JobConfig(server=broker.address), spark=spark) as job,
        pytest.raises(TracesNotKept, match=r"topic = true"),
        journeys.report(job, CONFIG),
    ):
        pass
