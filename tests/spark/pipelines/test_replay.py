from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.client.sync import Client
from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig, InvalidRequest, TopicNotFound
from goqueue.spark.pipelines import archive as archives
from goqueue.spark.pipelines import replay as replays
from goqueue.spark.pipelines.archive import ArchiveConfig
from goqueue.spark.pipelines.job import JobConfig, PipelineJob, running
from goqueue.spark.pipelines.manifest import PartitionSpan
from goqueue.spark.pipelines.replay import ReplayConfig, parts_of, republished, selected
from goqueue.spark.pipelines.runs import RunBusy, RunChanged, resumed, run_name
from goqueue.spark.pipelines.store import LocalStore
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def job(spark: "SparkSession", broker: EmbeddedBroker) -> Iterator[PipelineJob]:
    with running("replay", JobConfig(server=broker.address), spark=spark) as made:
        yield made


@pytest.fixture
def topics(client: Client) -> Client:
    client.create_topic("orders", partitions=2)
    client.create_topic("again", partitions=2)
    client.publish_many("orders", [(f"key-{number % 5}", f"value {number}") for number in range(40)])
    return client


def published(client: Client) -> list[tuple[bytes | None, str]]:
    return sorted((message.key, message.text()) for message in client.read("again"))


def run(job: PipelineJob, config: ReplayConfig, runs: Path, name: str = "june") -> Any:
    return replays.run(job, config, directory=str(runs), name=name)


def test_what_is_chosen_is_published_once_with_its_origin(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    topics.publish("orders", b"\xff", key="rare", headers={"a": "1", "gq-origin": "elsewhere:0:1"}, priority="high")
    config = ReplayConfig(target="again", topic="orders", where="priority = 1 OR CAST(value AS STRING) = 'value 7'")

    counted = replays.count(job, config)
    assert not published(topics)
    first = run(job, config, tmp_path)
    topics.publish("orders", "value 7", key="too late for this run")
    second = run(job, config, tmp_path)

    assert (counted.message_count, counted.looked_at_count) == (2, 41)
    assert (first.messages, first.run_messages, second.messages, second.run_messages) == (2, 2, 0, 2)
    ours = {message.key: message for message in topics.read("again")}
    assert set(ours) == {b"rare", b"key-2"}
    assert (ours[b"rare"].value, int(ours[b"rare"].priority), ours[b"rare"].headers["a"]) == (b"\xff", 1, "1")
    for message in ours.values():
        topic, partition, offset = message.headers["gq-origin"].split(":")
        (origin,) = topics.read(topic, partition=int(partition), offset=int(offset), limit=1)
        assert (origin.key, origin.value) == (message.key, message.value)
    assert {one.topic for one in topics.group_positions("pipeline-replay-june")} == {"orders"}


def test_a_run_that_is_killed_between_its_parts_publishes_none_twice(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    """Killed after the transaction of a part and before that is noted: only the broker knows that it is done."""
    config = ReplayConfig(target="again", topic="orders", part_messages=15)

    first = run(job, config, tmp_path)
    assert {one.partition: one.lag for one in topics.group_positions("pipeline-replay-june")} == {0: 0, 1: 0}
    (tmp_path / "june" / "parts" / "000001").unlink()
    topics.publish("orders", "not of this run")
    second = run(job, config, tmp_path)

    assert first.messages == 40
    assert first.parts > 2
    assert 0 < second.messages < 40
    assert published(topics) == sorted((f"key-{number % 5}".encode(), f"value {number}") for number in range(40))
    for key in range(5):
        values = [int(one.text().split()[1]) for one in topics.read("again") if one.key == f"key-{key}".encode()]
        assert values == sorted(values)


def test_archive_and_topic_are_one(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    archives.run(job, ArchiveConfig(topic="orders", directory=str(tmp_path / "a")))
    topics.publish_many("orders", [("key-9", f"late {number}") for number in range(3)])

    both = ReplayConfig(target="again", topic="orders", archive=str(tmp_path / "a"), keys=(b"key-9", b"key-1"))
    summary = run(job, both, tmp_path / "runs")

    assert summary.messages == 11
    assert published(topics) == sorted(
        [(b"key-1", f"value {number}") for number in range(1, 40, 5)]
        + [(b"key-9", f"late {number}") for number in range(3)]
    )


def test_an_archive_outlives_its_topic(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    archives.run(job, ArchiveConfig(topic="orders", directory=str(tmp_path / "a")))
    topics.delete_topic("orders")

    config = ReplayConfig(
        target="again", archive=str(tmp_path / "a"), rate=100_000, keep_partitions=True, from_offset=1
    )
    summary = run(job, config, tmp_path / "runs")

    assert summary.messages == 38
    for message in topics.read("again"):
        assert int(message.headers["gq-origin"].split(":")[1]) == message.partition


def test_times_are_settled_when_the_run_begins(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    moment_ns = int(list(topics.read("orders"))[-1].timestamp.timestamp()) * SECOND + 2 * SECOND
    before = ReplayConfig(target="again", topic="orders", to_time_ns=moment_ns)
    after = ReplayConfig(target="again", topic="orders", from_time_ns=moment_ns)

    assert replays.count(job, before).message_count == 40
    assert replays.count(job, after).message_count == 0
    assert run(job, after, tmp_path).messages == 0
    assert run(job, before, tmp_path).messages == 0


def test_a_run_is_not_gone_on_with_as_another(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    nothing = ReplayConfig(target="again", topic="orders", from_offset=1_000)
    run(job, nothing, tmp_path)

    with pytest.raises(RunChanged, match="june was started with other arguments"):
        run(job, ReplayConfig(target="again", topic="orders", from_offset=1_001), tmp_path)
    topics.delete_topic("orders")
    topics.create_topic("orders", partitions=2)
    with pytest.raises(RunChanged):
        run(job, nothing, tmp_path)
    with pytest.raises(TopicNotFound):
        run(job, ReplayConfig(target="nowhere", topic="orders"), tmp_path, "july")


def test_rows_are_chosen_by_each_condition(spark: "SparkSession") -> None:
    rows = table(spark, [(number, number * 10) for number in range(10)])

    def chosen(**conditions: Any) -> list[int]:
        found = selected(rows, ReplayConfig(target="x", topic="t", **conditions))
        return [row["offset"] for row in found.orderBy("offset").collect()]

    assert chosen(from_offset=7) == [7, 8, 9]
    assert chosen(to_offset=2, partition=0) == [0]
    assert chosen(from_time_ns=80 * SECOND, to_time_ns=90 * SECOND) == [8]
    assert chosen(keys=(b"k3", b"k4"), where="offset > 3") == [4]


def test_only_what_is_still_to_come_is_delayed_and_headers_of_ours_are_left_out(spark: "SparkSession") -> None:
    rows = table(spark, [(0, 10), (1, 20), (2, 30)])

    sent = republished(rows, ReplayConfig(target="x", topic="t"), now_ns=20 * SECOND).collect()

    headers = [{pair["key"]: bytes(pair["value"]).decode() for pair in row["headers"]} for row in sent]
    by_origin = {found["gq-origin"]: row for found, row in zip(headers, sent, strict=True)}
    assert {origin: row["deliver_at"] is not None for origin, row in by_origin.items()} == {
        "t:0:0": False,
        "t:1:1": False,
        "t:0:2": True,
    }
    assert {"own": "1", "gq-origin": "t:1:1"} in headers
    assert {origin: row["created_at"].timestamp() for origin, row in by_origin.items()} == {
        "t:0:0": 1_700_000_000.123456,
        "t:1:1": 1_700_000_001.123456,
        "t:0:2": 1_700_000_002.123456,
    }


def table(spark: "SparkSession", offsets: list[tuple[int, int]]) -> "DataFrame":
    """Rows with these offsets and seconds since 1970, in two partitions."""
    values = ", ".join(f"({offset}, {seconds})" for offset, seconds in offsets)
    return spark.sql(
        "SELECT CAST(concat('k', o) AS BINARY) key, CAST('v' AS BINARY) value, 't' topic, o % 2 partition,"
        " CAST(o AS LONG) offset, timestamp_seconds(s) timestamp, 2 priority, timestamp_seconds(s) deliver_at,"
        " map('own', '1', 'gq-redrives', '2', 'gq-origin', 'x:0:0',"
        f" 'gq-created', concat('170000000', o, '123456789')) headers FROM VALUES {values} AS v(o, s)"
    )


@given(
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 20)), st.integers(1, 30)),
    st.integers(1, 100),
    st.integers(1, 50),
)
def test_parts_hold_every_stretch_once_and_none_has_too_many(
    counts: dict[tuple[int, int], int], messages_max: int, stretch: int
) -> None:
    spans = [PartitionSpan(partition, stretch - 1, 20 * stretch + 1) for partition in range(4)]

    parts = parts_of(counts, spans, messages_max=messages_max, stretch=stretch)

    assert sum(part.message_count for part in parts) == sum(counts.values())
    taken: dict[tuple[int, int], int] = {}
    for part in parts:
        mine = [
            (partition, number)
            for partition, number in counts
            for span in part.spans
            if span.partition == partition and span.start < (number + 1) * stretch and span.end > number * stretch
        ]
        for one in mine:
            taken[one] = taken.get(one, 0) + 1
        assert part.message_count == sum(counts[one] for one in mine)
        assert part.message_count <= messages_max or len(mine) == 1
        assert all(stretch - 1 <= span.start < span.end <= 20 * stretch + 1 for span in part.spans)
    assert taken == dict.fromkeys(counts, 1)
    for partition in range(4):
        ends = [span for part in parts for span in part.spans if span.partition == partition]
        assert ends == sorted(ends)


def test_a_run_is_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        resumed(str(tmp_path), "june", replays.ReplayPlan),
        pytest.raises(RunBusy),
        resumed(str(tmp_path), "june", replays.ReplayPlan),
    ):
        pass
    with resumed(str(tmp_path), "june", replays.ReplayPlan) as going:
        going.note(3, 17)
        assert going.done() == {3: 17}
        assert going.plan() is None
    LocalStore(str(tmp_path / "june")).publish("plan.json", b"{")
    with pytest.raises(InvalidConfig, match="june"), resumed(str(tmp_path), "june", replays.ReplayPlan) as going:
        going.plan()


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 81, ".hidden"])
def test_a_run_has_a_name_that_can_be_one_of_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig), resumed(str(tmp_path), name, replays.ReplayPlan):
        pass


def test_the_same_arguments_are_the_same_run() -> None:
    assert run_name("replay", "a", None, 1) == run_name("replay", "a", None, 1) != run_name("replay", "a", None, 2)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nothing to replay from"):
        ReplayConfig(target="x")
    with pytest.raises(InvalidConfig, match="rate"):
        ReplayConfig(target="x", topic="t", rate=0)


def test_a_run_without_a_name_is_told_from_others_by_what_it_reads_and_writes(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    archives.run(job, ArchiveConfig(topic="orders", directory=str(tmp_path / "one" / "archive")))
    archives.run(job, ArchiveConfig(topic="orders", directory=str(tmp_path / "two" / "archive")))
    (tmp_path / "link").symlink_to(tmp_path / "one")

    def name(archive: str, **more: Any) -> str:
        return replays.default_name(job, ReplayConfig(target="again", archive=archive, **more), ("2h ago", None))

    with chdir(tmp_path / "one"):
        first, same = name("archive"), name(f"{tmp_path}/link/./archive")
    with chdir(tmp_path / "two"):
        second = name("archive")
    assert first == same != second
    assert first != name(f"{tmp_path}/one/archive", where="true")

    topics.delete_topic("again")
    topics.create_topic("again", partitions=2)
    assert name(f"{tmp_path}/one/archive") != first


def test_a_named_run_is_not_gone_on_with_into_another_topic_of_the_same_name(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    config = ReplayConfig(target="again", topic="orders")
    run(job, config, tmp_path)
    topics.delete_topic("again")
    topics.create_topic("again", partitions=2)
    with pytest.raises(RunChanged):
        run(job, config, tmp_path)


def test_headers_are_kept_byte_by_byte_and_a_predicate_sees_them_as_texts(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    topics.publish("orders", "european", headers={"region": "eu", "id": b"\xff\x00"})
    topics.publish("orders", "other", headers={"region": "us"})

    run(job, ReplayConfig(target="again", topic="orders", where="header['region'] = 'eu'"), tmp_path)

    (message,) = topics.read("again")
    assert (message.text(), message.headers["region"], message.headers["id"]) == ("european", "eu", "\udcff\x00")


def test_a_delayed_message_is_replayed_to_the_time_that_it_was_rescheduled_to(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    later = topics.publish("orders", "later", delay="1h", key="later")
    topics.reschedule(later, deliver_at="2040-01-01T00:00:00Z")
    config = ArchiveConfig(topic="orders", directory=str(tmp_path / "archive"))
    archives.run(job, config)

    run(job, ReplayConfig(target="again", topic="orders", keys=(b"later",)), tmp_path, "topic")
    run(job, ReplayConfig(target="again", archive=config.directory, keys=(b"later",)), tmp_path, "archive")

    assert {one.deliver_at_ns for one in topics.delayed("again")} == {2_208_988_800 * SECOND}
    topics.reschedule(later, deliver_at="2041-01-01T00:00:00Z")
    assert archives.verify(job, config).is_good
