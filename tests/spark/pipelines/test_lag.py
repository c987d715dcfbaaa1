from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.clock import SECOND, SystemClock
from goqueue.errors import GroupNotFound, InvalidConfig
from goqueue.spark.pipelines import lag
from goqueue.spark.pipelines.job import JobConfig, running
from goqueue.spark.pipelines.lag import LagConfig, Observation
from goqueue.spark.pipelines.reports import Rows, frame_of, rows
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = LagConfig()


def seen(
    at_s: float,
    *,
    end: int,
    backlog: int,
    group: str = "billing",
    partition: int = 0,
    produced: int | None = 0,
    age_s: float = 1.0,
) -> Observation:
    """A group at a moment; what came in is counted over ten seconds."""
    produced_in_s = None if produced is None else 10.0
    at_ns = round(at_s * SECOND)
    return Observation(group, "orders", partition, 0, end, backlog, age_s, produced, produced_in_s, at_ns)


def forecast(spark: "SparkSession", *observations: Observation, config: LagConfig = CONFIG) -> Rows:
    return rows(lag.forecast(frame_of(spark, observations, lag.OBSERVATION_FIELDS), config))


def test_the_forecast_is_the_backlog_by_what_goes_out_more_than_comes_in(spark: "SparkSession") -> None:
    (row,) = forecast(
        spark,
        seen(0, end=1_000, backlog=500),
        seen(10, end=1_100, backlog=300, produced=100, age_s=42.0),
    )

    assert (row["backlog"], row["age_s"]) == (300, 42.0)
    assert (row["produced_per_s"], row["consumed_per_s"]) == (10.0, 30.0)
    assert (row["state"], row["drained_in_s"]) == ("draining", 15.0)


def test_what_cannot_be_told_is_not_told(spark: "SparkSession") -> None:
    found = forecast(
        spark,
        seen(0, end=100, backlog=60, group="once"),
        *(seen(at, end=100, backlog=50, group="stalled") for at in (0, 10)),
        seen(0, end=100, backlog=40, group="growing"),
        seen(10, end=200, backlog=40, group="growing", produced=100),  # as much as goes out
        seen(0, end=100, backlog=10, group="reset"),
        seen(10, end=100, backlog=30, group="reset"),
        seen(0, end=100, backlog=40, group="unmeasured"),
        seen(10, end=100, backlog=20, group="unmeasured", produced=None),
        seen(0, end=100, backlog=10, group="done"),
        seen(10, end=100, backlog=0, group="done", produced=None),
    )

    assert {row["group"]: (row["state"], row["drained_in_s"]) for row in found} == {
        "once": ("unknown", None),
        "stalled": ("stalled", None),
        "growing": ("growing", None),
        "reset": ("unknown", None),
        "unmeasured": ("unknown", None),
        "done": ("drained", 0.0),
    }
    assert [row["group"] for row in found] == ["once", "stalled", "growing", "reset", "unmeasured", "done"]


def test_partitions_are_summed_unless_something_of_one_is_not_known(spark: "SparkSession") -> None:
    observations = [
        seen(0, end=100, backlog=100),
        seen(10, end=100, backlog=80, age_s=5.0),
        seen(0, end=100, backlog=50, partition=1),
        seen(10, end=100, backlog=20, partition=1, age_s=9.0),
    ]

    (summed,) = forecast(spark, *observations)
    parts = forecast(spark, *observations, config=LagConfig(by_partition=True))
    (unknown,) = forecast(spark, *observations, seen(10, end=100, backlog=0, partition=2))

    assert (summed["backlog"], summed["age_s"], summed["consumed_per_s"], summed["drained_in_s"]) == (
        100,
        9.0,
        5.0,
        20.0,
    )
    assert [(row["partition"], row["drained_in_s"]) for row in parts] == [(0, 40.0), (1, pytest.approx(20 / 3))]
    assert (unknown["backlog"], unknown["consumed_per_s"], unknown["state"]) == (100, None, "unknown")


def test_of_many_observations_the_first_and_the_last_count(spark: "SparkSession") -> None:
    (row,) = forecast(spark, *(seen(at, end=100, backlog=100 - at) for at in (5, 0, 10, 2)))

    assert (row["backlog"], row["consumed_per_s"], row["drained_in_s"]) == (90, 1.0, 90.0)


@pytest.mark.parametrize("setting", [{"window_ns": 0}, {"over_ns": -1}])
def test_settings_that_make_no_sense_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        LagConfig(**setting)


def test_a_group_is_observed_as_far_as_it_got_and_what_comes_in_is_counted(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.create_topic("orders", partitions=2)
    for number in range(20):
        client.publish("orders", f"{number}", partition=number % 2)
    with client.consumer("orders", group="billing") as consumer:
        batch = consumer.poll(max_messages=5, timeout="5s")
        consumer.ack(batch)

    found = lag.observe(client, CONFIG, now_ns=SystemClock().wall_ns())
    late = lag.observe(client, LagConfig(window_ns=1), now_ns=SystemClock().wall_ns(), groups=["billing"])

    assert sum(one.backlog for one in found) == 20 - len(batch)
    assert [(one.group, one.topic, one.partition, one.end_offset, one.produced) for one in found] == [
        ("billing", "orders", 0, 10, 10),
        ("billing", "orders", 1, 10, 10),
    ]
    assert all(one.produced_in_s and one.produced_in_s < 60 for one in found)  # the topic is younger than the window
    assert [one.produced for one in late] == [0, 0]
    with pytest.raises(GroupNotFound):
        lag.observe(client, CONFIG, now_ns=0, groups=["nosuch"])


def test_the_lag_of_all_groups_is_a_table(spark: "SparkSession", broker: EmbeddedBroker, client: Client) -> None:
    with running("lag", JobConfig(server=broker.address), spark=spark) as job:
        nothing = lag.report(job, LagConfig(over_ns=0))
        assert {name: rows(frame) for name, frame in nothing.items()} == {"lag": [], "observations": []}

        client.create_topic("orders", partitions=1)
        client.publish_many("orders", [f"{number}" for number in range(10)])
        client.commit_group("billing", {("orders", 0): 4})
        tables = lag.report(job, LagConfig(over_ns=SECOND // 1_000))
        (row,) = rows(tables["lag"])
        observations = rows(tables["observations"])

    assert (row["group"], row["topic"], row["backlog"], row["state"]) == ("billing", "orders", 6, "stalled")
    assert len(observations) == 2
