"""Journeys: the outcome of each message, and the latency of each stage from publish to ack.

    __traces ──events──> one row per event and message ──journeys──> one row per message and group
                                                                        │
                         latencies, latency_histogram, redeliveries, slowest <┘

The stages are those between the moments that the broker records:

    received ──persist──> persisted ──wait──> fetched ... fetched again ──work──> acked
    └────────────────────────────────── total ────────────────────────────────────┘

The wait and the total of a delayed message start when it is due. A wait ends with the first fetch, work starts with the
last one. An event that was not recorded, because it was sampled out or is older than the topic of traces, is null, and
so are the latencies that need it. A row of the topic that covers scattered messages without naming them is skipped.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from goqueue.errors import GoQueueError, InvalidConfig
from goqueue.spark.pipelines.charts import Chart, Series, short
from goqueue.spark.pipelines.job import PipelineJob
from goqueue.spark.pipelines.reports import Rows, Tables, kept

TRACES_TOPIC: Final = "__traces"
EVENT_FIELDS: Final = (
    "event_type string, time_ns long, sequence long, topic string, partition int, first_offset long, last_offset long, "
    "count long, trace_id string, parent_span_id string, consumer_group string, consumer_id string, attempt int, "
    "duration_ns long, error string, reason string, record_time_ns long, deliver_at_ns long, dlq_topic string, "
    "dlq_partition int, dlq_offset long, origin_topic string, origin_partition int, origin_offset long"
)
STAGES: Final = ("persist", "wait", "work", "total")
PERCENTILES: Final = (0.5, 0.9, 0.99)
_ACCURACY = 1_000
_MESSAGE = ("topic", "partition", "offset")


class TracesNotKept(GoQueueError):
    """The broker has never written traces to a topic."""

    code = "TRACES_NOT_KEPT"

    def __init__(self, server: str) -> None:
        super().__init__(f"the broker at {server} has no topic of traces yet; set `topic = true` under its [traces]")
        self.server = server


@dataclass(frozen=True, slots=True, kw_only=True)
class JourneyConfig:
    """The messages to report on, and the number of the slowest."""

    topic: str | None = None
    group: str | None = None
    slowest: int = 20

    def __post_init__(self) -> None:
        if self.slowest <= 0:
            raise InvalidConfig("slowest", self.slowest, "must be more than 0")


@contextmanager
def report(job: PipelineJob, config: JourneyConfig, **options: object) -> Iterator[Tables]:
    """All tables of the journeys in the topic of traces; options as those of the source."""
    if TRACES_TOPIC not in job.client.topics(internal=True):
        raise TracesNotKept(job.config.server)
    source = job.read(TRACES_TOPIC, columns="value", **options)
    with kept(job, TRACES_TOPIC, journeys(events(source), config)) as found:
        yield {
            "latencies": latencies(found, config),
            "redeliveries": redeliveries(found, config),
            "slowest": slowest(found, config),
            "latency_histogram": latency_histogram(found, config),
            "journeys": found,
        }


def events(source: DataFrame) -> DataFrame:
    """The events of the topic of traces, one row for each message of an event."""
    event = sql.from_json(sql.col("value").cast("string"), EVENT_FIELDS)
    step = sql.col("offset") - sql.col("first_offset")
    return (
        source.select(event.alias("event"))
        .select("event.*")
        .where(sql.col("event_type").isNotNull() & sql.col("partition").isNotNull())
        .where(sql.col("last_offset") - sql.col("first_offset") + 1 == sql.col("count"))
        .withColumn("offset", sql.explode(sql.sequence("first_offset", "last_offset")))
        .withColumn("dlq_offset", sql.col("dlq_offset") + step)
        .withColumn("origin_offset", sql.col("origin_offset") + step)
        .drop("first_offset", "last_offset", "count")
    )


def journeys(of_messages: DataFrame, config: JourneyConfig) -> DataFrame:
    """One row for each message and each group that received it; one without a group if none did."""
    if config.topic is not None:
        of_messages = of_messages.where(sql.col("topic") == config.topic)
    consumed = _consumed(of_messages)
    if config.group is not None:
        consumed = consumed.where(sql.col("group") == config.group)
    joined = _published(of_messages).join(consumed, list(_MESSAGE), "inner" if config.group is not None else "left")
    due_ns = sql.coalesce("ready_ns", "deliver_at_ns")
    return joined.select(
        *_MESSAGE,
        "group",
        "trace_id",
        _time("received_ns").alias("received_at"),
        _time("deliver_at_ns").alias("deliver_at"),
        _time("fetched_ns").alias("fetched_at"),
        _time("acked_ns").alias("acked_at"),
        _outcome().alias("outcome"),
        sql.coalesce("deliveries", sql.lit(0)).alias("deliveries"),
        sql.greatest(sql.coalesce("deliveries", sql.lit(0)) - 1, sql.lit(0)).alias("redeliveries"),
        sql.coalesce("nacks", sql.lit(0)).alias("nacks"),
        sql.coalesce("timeouts", sql.lit(0)).alias("timeouts"),
        "consumer",
        "error",
        "dlq_topic",
        "dlq_partition",
        "dlq_offset",
        _ms(sql.col("persisted_ns") - sql.col("received_ns")).alias("persist_ms"),
        _ms(sql.col("fetched_ns") - sql.coalesce(due_ns, "persisted_ns")).alias("wait_ms"),
        _ms(sql.col("acked_ns") - sql.col("last_fetched_ns")).alias("work_ms"),
        _ms(sql.col("acked_ns") - sql.coalesce(due_ns, "received_ns")).alias("total_ms"),
    )


def latencies(of_journeys: DataFrame, config: JourneyConfig) -> DataFrame:
    """Percentiles of each stage, by topic."""
    return (
        _by_stage(of_journeys)
        .groupBy("topic", "stage")
        .agg(
            sql.count(sql.lit(1)).alias("messages"),
            *(
                sql.percentile_approx("ms", share, _ACCURACY).alias(f"p{round(share * 100)}_ms")
                for share in PERCENTILES
            ),
            sql.max("ms").alias("max_ms"),
        )
        .orderBy("topic", _rank_of_stage())
    )


def latency_histogram(of_journeys: DataFrame, config: JourneyConfig) -> DataFrame:
    """The number of messages that took at most 1, 2, 5, 10, 20, 50 ... microseconds, by topic and stage."""
    exact = sql.greatest(sql.col("ms"), sql.lit(0.001))
    unit = sql.pow(sql.lit(10.0), sql.floor(sql.log10(exact)))
    bound = sql.when(exact <= unit, unit).when(exact <= 2 * unit, 2 * unit).when(exact <= 5 * unit, 5 * unit)
    return (
        _by_stage(of_journeys)
        .groupBy("topic", "stage", sql.round(bound.otherwise(10 * unit), 3).alias("up_to_ms"))
        .agg(sql.count(sql.lit(1)).alias("messages"))
        .orderBy("topic", _rank_of_stage(), "up_to_ms")
    )


def redeliveries(of_journeys: DataFrame, config: JourneyConfig) -> DataFrame:
    """The number of deliveries and the outcomes, by topic and group."""
    return (
        of_journeys.where(sql.col("group").isNotNull())
        .groupBy("topic", "group")
        .agg(
            sql.count(sql.lit(1)).alias("messages"),
            sql.sum("deliveries").alias("deliveries"),
            sql.count_if(sql.col("redeliveries") > 0).alias("redelivered"),
            sql.max("deliveries").alias("most"),
            sql.sum("nacks").alias("nacks"),
            sql.sum("timeouts").alias("timeouts"),
            *(
                sql.count_if(sql.col("outcome") == outcome).alias(outcome.replace(" ", "_"))
                for outcome in ("acked", "dead", "retrying", "in progress")
            ),
        )
        .orderBy("topic", "group")
    )


def slowest(of_journeys: DataFrame, config: JourneyConfig) -> DataFrame:
    """The messages with the longest time to their ack."""
    return (
        of_journeys.where(sql.col("total_ms").isNotNull())
        .orderBy(sql.desc("total_ms"), *_MESSAGE, "group")
        .limit(config.slowest)
    )


def charts(tables: Mapping[str, Rows]) -> list[Chart]:
    """For each topic a histogram of latencies and their percentiles, from rows of the tables."""
    made: list[Chart] = []
    for topic in dict.fromkeys(row["topic"] for row in tables["latencies"]):
        counts = {
            (r["stage"], r["up_to_ms"]): r["messages"] for r in tables["latency_histogram"] if r["topic"] == topic
        }
        bounds = _bounds(min(bound for _, bound in counts), max(bound for _, bound in counts))
        percentiles = [row for row in tables["latencies"] if row["topic"] == topic]
        stages = [row["stage"] for row in percentiles]
        made += [
            Chart(
                title=f"{topic}: latency by stage",
                x_label="milliseconds, at most",
                y_label="messages",
                places=[short(bound) for bound in bounds],
                series=[Series(stage, [counts.get((stage, bound), 0) for bound in bounds]) for stage in stages],
            ),
            Chart(
                title=f"{topic}: latency percentiles by stage",
                x_label="stage",
                y_label="milliseconds",
                places=stages,
                series=[
                    Series(name, [row[f"{name}_ms"] for row in percentiles])
                    for name in (f"p{round(share * 100)}" for share in PERCENTILES)
                ],
                kind="bars",
            ),
        ]
    return made


# --- inside ------------------------------------------------------------------------------------


def _published(of_messages: DataFrame) -> DataFrame:
    """The events of each message that belong to no group."""
    return of_messages.groupBy(*_MESSAGE).agg(
        sql.max(sql.nullif("trace_id", sql.lit(""))).alias("trace_id"),
        sql.min(_at("publish.received")).alias("received_ns"),
        sql.min(_at("publish.persisted")).alias("persisted_ns"),
        sql.max_by("deliver_at_ns", _at("delay.scheduled")).alias("deliver_at_ns"),
        sql.max(_at("delay.ready")).alias("ready_ns"),
        sql.max(_at("delay.cancelled")).alias("cancelled_ns"),
        sql.max(sql.when(sql.col("consumer_group") == "", _at("delay.expired"))).alias("lost_ns"),
    )


def _consumed(of_messages: DataFrame) -> DataFrame:
    """The events of each message and group."""
    is_fetch = sql.col("event_type") == "consume.fetched"
    failed_ns = sql.greatest(_at("consume.nacked"), _at("visibility.timeout"))
    return (
        of_messages.where(sql.col("consumer_group") != "")
        .groupBy(*_MESSAGE, sql.col("consumer_group").alias("group"))
        .agg(
            sql.min(_at("consume.fetched")).alias("fetched_ns"),
            sql.max(_at("consume.fetched")).alias("last_fetched_ns"),
            sql.max(_at("consume.acked")).alias("acked_ns"),
            sql.max(_at("delay.expired")).alias("expired_ns"),
            sql.max(failed_ns).alias("failed_ns"),
            sql.max(sql.greatest(_at("consume.rejected"), _at("dlq.routed"))).alias("dead_ns"),
            sql.greatest(sql.count_if(is_fetch), sql.coalesce(sql.max("attempt"), sql.lit(0))).alias("deliveries"),
            sql.count_if(sql.col("event_type") == "consume.nacked").alias("nacks"),
            sql.count_if(sql.col("event_type") == "visibility.timeout").alias("timeouts"),
            sql.max_by("consumer_id", _at("consume.fetched")).alias("consumer"),
            sql.max_by("error", sql.when(sql.col("error") != "", sql.col("time_ns"))).alias("error"),
            sql.max(sql.nullif("dlq_topic", sql.lit(""))).alias("dlq_topic"),
            sql.max("dlq_partition").alias("dlq_partition"),
            sql.max("dlq_offset").alias("dlq_offset"),
        )
    )


def _outcome() -> Column:
    fetched, failed, deliver_at = sql.col("last_fetched_ns"), sql.col("failed_ns"), sql.col("deliver_at_ns")
    return (
        sql.when(sql.col("dead_ns").isNotNull(), "dead")
        .when(sql.col("acked_ns").isNotNull(), "acked")
        .when(sql.coalesce("expired_ns", "lost_ns").isNotNull(), "expired")
        .when(sql.col("cancelled_ns").isNotNull(), "cancelled")
        .when(failed.isNotNull() & (fetched.isNull() | (failed >= fetched)), "retrying")
        .when(fetched.isNotNull(), "in progress")
        .when(deliver_at.isNotNull() & sql.col("ready_ns").isNull(), "delayed")
        .otherwise("waiting")
    )


def _by_stage(of_journeys: DataFrame) -> DataFrame:
    """A row for each stage of each journey whose latency is known."""
    pairs = ", ".join(f"'{stage}', {stage}_ms" for stage in STAGES)
    # A message that several groups received was persisted once.
    once = sql.col("stage") != "persist"
    stages = of_journeys.select(*_MESSAGE, "group", sql.expr(f"stack({len(STAGES)}, {pairs}) as (stage, ms)"))
    stages = stages.where(sql.col("ms").isNotNull())
    persisted = stages.where(~once).dropDuplicates(list(_MESSAGE))
    return stages.where(once).unionByName(persisted)


def _bounds(lowest_ms: float, highest_ms: float) -> list[float]:
    """The bounds of the histogram from the lowest to the highest, also those without messages."""
    steps = (round(factor * 10.0**power, 3) for power in range(-3, 16) for factor in (1, 2, 5))
    return [bound for bound in steps if lowest_ms <= bound <= highest_ms]


def _rank_of_stage() -> Column:
    return sql.array_position(sql.array(*map(sql.lit, STAGES)), sql.col("stage"))


def _at(event_type: str) -> Column:
    """The time of the event if it has this type, else null."""
    return sql.when(sql.col("event_type") == event_type, sql.col("time_ns"))


def _time(column: str) -> Column:
    return sql.timestamp_micros(sql.expr(f"{column} div 1000"))


def _ms(duration_ns: Column) -> Column:
    return duration_ns / 1_000_000
