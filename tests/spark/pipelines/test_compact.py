from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines import archive as archives
from goqueue.spark.pipelines import compact as compacts
from goqueue.spark.pipelines.archive import ArchiveConfig
from goqueue.spark.pipelines.compact import CompactConfig, latest
from goqueue.spark.pipelines.job import JobConfig, PipelineJob, running
from goqueue.spark.pipelines.store import ForeignArchive
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def job(spark: "SparkSession", broker: EmbeddedBroker) -> Iterator[PipelineJob]:
    with running("compact", JobConfig(server=broker.address), spark=spark) as made:
        yield made


@pytest.fixture
def topics(client: Client) -> Client:
    client.create_topic("customers", partitions=2)
    client.create_topic("now", partitions=3)
    client.publish_many("customers", [(f"key-{number % 5}", f"value {number}") for number in range(20)])
    client.publish("customers", b"", key="key-3", tombstone=True)
    client.publish_many("customers", ["no key", "nor here"])
    return client


LAST = {b"key-0": "value 15", b"key-1": "value 16", b"key-2": "value 17", b"key-4": "value 19"}


def test_the_last_row_of_each_key_stays(spark: "SparkSession") -> None:
    values = [
        ("t", 0, 0, 1, "a", "old"),
        ("t", 0, 1, 1, "a", "same time, later offset"),
        ("t", 0, 2, 5, "moved", "old"),
        ("t", 1, 0, 6, "moved", "in another partition since"),
        ("t", 0, 3, 7, "gone", "old"),
        ("t", 0, 4, 8, "gone", None),
        ("t", 0, 5, 8, "back", None),
        ("t", 0, 6, 9, "back", "again"),
        ("t", 0, 7, 9, None, "no key"),
        ("t", 0, 8, 9, None, None),
        ("u", 0, 1, 1, "a", "of another topic"),
    ]
    names = "topic STRING, partition INT, offset LONG, seconds LONG, key STRING, value STRING"
    rows = spark.createDataFrame(values, names).selectExpr("*", "timestamp_seconds(seconds) AS timestamp")

    kept = latest(rows).orderBy("topic", "partition", "offset").collect()
    with_tombstones = latest(rows, CompactConfig(topic="t", target_topic="x", keep_tombstones=True)).collect()

    assert [(row["key"], row["value"]) for row in kept] == [
        ("a", "same time, later offset"),
        ("back", "again"),
        (None, "no key"),
        (None, None),
        ("moved", "in another partition since"),
        ("a", "of another topic"),
    ]
    assert {row["key"] for row in with_tombstones} - {row["key"] for row in kept} == {"gone"}


def test_an_archive_is_compacted_into_another_directory(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    full, small = str(tmp_path / "full"), str(tmp_path / "small")
    archives.run(job, ArchiveConfig(topic="customers", directory=full))
    config = CompactConfig(archive=full, target_directory=small)

    first = compacts.run(job, config, directory=str(tmp_path), name="x")
    topics.publish("customers", "value 20", key="key-0")
    archives.run(job, ArchiveConfig(topic="customers", directory=full))
    second = compacts.run(job, config, directory=str(tmp_path), name="x")

    assert first.messages == second.messages == 6
    rows = archives.read(job.spark, small).collect()
    assert {bytes(row["key"]): bytes(row["value"]).decode() for row in rows if row["key"]} == {
        **LAST,
        b"key-0": "value 20",
    }
    assert job.spark.read.parquet(small).count() == 6
    for mistaken in (archives.run, archives.verify):
        with pytest.raises(ForeignArchive, match="last message of each key"):
            mistaken(job, ArchiveConfig(topic="customers", directory=small))
    with pytest.raises(ForeignArchive, match="not compacted"):
        compacts.run(job, CompactConfig(topic="customers", target_directory=full), directory=str(tmp_path), name="x")


def test_a_topic_is_compacted_into_another_in_parts_each_once(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    config = CompactConfig(topic="customers", target_topic="now", part_messages=12)

    first = compacts.run(job, config, directory=str(tmp_path), name="x")
    (tmp_path / "x" / "parts" / "000001").unlink()
    second = compacts.run(job, config, directory=str(tmp_path), name="x")

    found = list(topics.read("now"))
    assert first.messages == 6
    assert second.target == "now"
    assert {message.key: message.text() for message in found if message.key} == LAST
    assert sorted(message.text() for message in found if not message.key) == ["no key", "nor here"]
    assert len(found) == 6


def test_what_comes_to_the_source_makes_another_run_once_the_last_one_is_done(
    topics: Client, job: PipelineJob, tmp_path: Path
) -> None:
    config = CompactConfig(topic="customers", target_topic="now", part_messages=12)

    def again() -> tuple[int, int]:
        summary = compacts.run(job, config, directory=str(tmp_path))
        return summary.messages, summary.run_messages

    assert [again(), again()] == [(6, 6), (0, 6)]
    topics.publish("customers", "of the next night", key="key-0")
    (part, *_) = sorted(tmp_path.glob("*/parts/*"))
    part.unlink()  # as if it was killed
    assert again()[1] == 6
    assert [again(), again()] == [(6, 6), (0, 6)]
    texts = [message.text() for message in topics.read("now")]
    assert texts.count("of the next night") == 1
    assert len(texts) == 12

    topics.delete_topic("now")
    topics.create_topic("now", partitions=3)
    assert again() == (6, 6)
    assert len(list(topics.read("now"))) == 6


@pytest.mark.parametrize(
    "arguments",
    [
        {"target_topic": "x"},
        {"topic": "t", "archive": "a", "target_topic": "x"},
        {"topic": "t"},
        {"topic": "t", "target_topic": "x", "target_directory": "d"},
        {"topic": "t", "target_topic": "t"},
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        CompactConfig(**arguments)  # type: ignore[arg-type]


def test_an_archive_is_not_compacted_into_itself(topics: Client, job: PipelineJob, tmp_path: Path) -> None:
    archives.run(job, ArchiveConfig(topic="customers", directory=str(tmp_path / "a")))

    config = CompactConfig(archive=str(tmp_path / "a"), target_directory=f"{tmp_path}/./a/")
    with pytest.raises(InvalidRequest, match="another directory"):
        compacts.run(job, config, directory=str(tmp_path), name="x")
