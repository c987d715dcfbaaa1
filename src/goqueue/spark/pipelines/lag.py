"""Lag: the backlog of each group, its age, and when it will be consumed.

    client ──observe──> observations, at two moments or more ──forecast──> one row per group and topic

A group has done all messages below the end of a partition except its backlog, whether it acks single messages or
commits positions. So the number of messages that it consumed between two observations is the difference of
`end - backlog`, and its rate is that divided by the time between them. Published messages are counted with the topic's
time index, over a window that ends now. The forecast is

    backlog / (consumed per second - produced per second)

if both rates are known and the first is larger. Otherwise the state says why there is no forecast: `unknown` (one
observation, or the group was reset meanwhile), `stalled` (no message is consumed), `growing` (more messages are
published than consumed).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from goqueue.client.sync import Client
from goqueue.clock import SECOND
from goqueue.errors import GroupNotFound, InvalidConfig, TopicNotFound
from goqueue.spark.pipelines.job import PipelineJob
from goqueue.spark.pipelines.reports import Tables, frame_of
from goqueue.times import format_time

OBSERVATION_FIELDS: Final = (
    "group string, topic string, partition int, position long, end_offset long, backlog long, age_s double, "
    "produced long, produced_in_s double, observed_at_ns long"
)
_PARTITION = ("group", "topic", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagConfig:
    """How rates are measured."""

    window_ns: int = 300 * SECOND  # for the rate of publishing
    over_ns: int = 5 * SECOND  # between two observations, for the rate of consumption; 0: one observation
    by_partition: bool = False

    def __post_init__(self) -> None:
        if self.window_ns <= 0:
            raise InvalidConfig("window", self.window_ns, "must be more than 0")
        if self.over_ns < 0:
            raise InvalidConfig("over", self.over_ns, "must be 0 or more")


class Observation(NamedTuple):
    """The position and backlog of a group in a partition at one time, and the messages published in the window.

    `produced` is None if it is not known.
    """

    group: str
    topic: str
    partition: int
    position: int
    end_offset: int
    backlog: int
    age_s: float  # of the oldest message that is not done
    produced: int | None
    produced_in_s: float | None
    observed_at_ns: int


class _Intake(NamedTuple):
    """The messages published to the partitions of a topic, and the time that it took."""

    produced: Sequence[int | None]
    seconds: float


def report(job: PipelineJob, config: LagConfig, *, groups: Sequence[str] | None = None) -> Tables:
    """Backlog, age and forecast of the given groups, or of all; waits `over_ns` to measure their rates."""
    found = observe(job.client, config, now_ns=job.clock.wall_ns(), groups=groups)
    if config.over_ns and found and job.rest(config.over_ns / SECOND):
        found += observe(job.client, config, now_ns=job.clock.wall_ns(), groups=groups)
    observations = frame_of(job.spark, found, OBSERVATION_FIELDS)
    return {"lag": forecast(observations, config), "observations": observations}


def observe(
    client: Client, config: LagConfig, *, now_ns: int, groups: Sequence[str] | None = None
) -> list[Observation]:
    """The current state of groups. A given group that does not exist is an error; one deleted meanwhile is skipped."""
    found: list[Observation] = []
    intakes: dict[str, _Intake] = {}
    for group in client.groups() if groups is None else groups:
        try:
            positions = client.group_positions(group)
            if not positions:
                client.describe_group(group)
        except GroupNotFound:
            if groups is None:
                continue
            raise
        for one in positions:
            if one.topic not in intakes:
                intakes[one.topic] = _intake(client, one.topic, config.window_ns, now_ns)
            intake = intakes[one.topic]
            produced = intake.produced[one.partition] if one.partition < len(intake.produced) else None
            found.append(
                Observation(
                    group,
                    one.topic,
                    one.partition,
                    one.offset,
                    one.end_offset,
                    one.lag,
                    one.lag_seconds,
                    produced,
                    None if produced is None else intake.seconds,
                    now_ns,
                )
            )
    return found


def forecast(observations: DataFrame, config: LagConfig) -> DataFrame:
    """By group and topic, or partition: backlog, age, both rates, the state, and the time until it is consumed."""
    rated = _rated(observations)
    keys = _PARTITION if config.by_partition else _PARTITION[:2]
    summed = rated.groupBy(*keys).agg(
        sql.sum("backlog").alias("backlog"),
        sql.max("age_s").alias("age_s"),
        _sum_of_known("produced_per_s"),
        _sum_of_known("consumed_per_s"),
    )
    produced, consumed = sql.col("produced_per_s"), sql.col("consumed_per_s")
    state = (
        sql.when(sql.col("backlog") == 0, "drained")
        .when(consumed.isNull() | produced.isNull(), "unknown")
        .when(consumed == 0, "stalled")
        .when(consumed <= produced, "growing")
        .otherwise("draining")
    )
    drained_in_s = sql.when(sql.col("state") == "drained", sql.lit(0.0)).when(
        sql.col("state") == "draining", sql.col("backlog") / (consumed - produced)
    )
    return (
        summed.withColumn("state", state).withColumn("drained_in_s", drained_in_s).orderBy(sql.desc("backlog"), *keys)
    )


# --- inside ------------------------------------------------------------------------------------


def _intake(client: Client, topic: str, window_ns: int, now_ns: int) -> _Intake:
    """The messages published in the window, or since the creation of the topic.

    None for a partition where retention may have removed some of them.
    """
    try:
        known = client.describe_topic(topic)
        since_ns = max(now_ns - window_ns, known.created_at_ns)
        begins = client.offsets(topic, time=format_time(since_ns))
    except TopicNotFound:
        return _Intake((), 0.0)
    produced = [
        None if 0 < one.start_offset >= begin else max(0, one.end_offset - begin)
        for one, begin in zip(known.partitions, begins, strict=False)
    ]
    return _Intake(produced, max(1, now_ns - since_ns) / SECOND)


def _rated(observations: DataFrame) -> DataFrame:
    """The last observation of each partition, with the rates that follow from all of them."""
    done = sql.col("end_offset") - sql.col("backlog")
    time = "observed_at_ns"
    bounds = observations.groupBy(*_PARTITION).agg(
        *(sql.max_by(name, time).alias(name) for name in ("backlog", "age_s", "produced", "produced_in_s")),
        (sql.max_by(done, time) - sql.min_by(done, time)).alias("consumed"),
        ((sql.max(time) - sql.min(time)) / SECOND).alias("elapsed_s"),
    )
    consumed = sql.when((sql.col("elapsed_s") > 0) & (sql.col("consumed") >= 0), sql.col("consumed"))
    return bounds.select(
        *_PARTITION,
        "backlog",
        "age_s",
        sql.try_divide("produced", "produced_in_s").alias("produced_per_s"),
        sql.try_divide(consumed, sql.col("elapsed_s")).alias("consumed_per_s"),
    )


def _sum_of_known(column: str) -> Column:
    """The sum; null if a part of it is not known."""
    return sql.when(sql.count_if(sql.col(column).isNull()) == 0, sql.sum(column)).alias(column)
