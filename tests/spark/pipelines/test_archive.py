import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.spark.pipelines import archive as archives
from goqueue.spark.pipelines.archive import ArchiveConfig, archived, checksums, fingerprint, small_files
from goqueue.spark.pipelines.job import JobConfig, JobProgress, PipelineFailed, PipelineJob, running
from goqueue.spark.pipelines.manifest import MAP, ArchivedFile, OffsetsLost, PartitionSpan, load, looked_at
from goqueue.spark.pipelines.store import ForeignArchive, LocalStore
from goqueue.testing import EmbeddedBroker
from tests.client.damaged import flip
from tests.spark.archives import MortalStore, Row, killed, rows_archived, rows_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def job(spark: "SparkSession", broker: EmbeddedBroker) -> Iterator[PipelineJob]:
    with running("archive", JobConfig(server=broker.address), spark=spark) as made:
        yield made


@pytest.fixture
def config(tmp_path: Path) -> ArchiveConfig:
    return ArchiveConfig(topic="orders", directory=str(tmp_path / "archive"))


def fill(client: Client, count: int = 60) -> None:
    """Messages of all kinds, in three partitions."""
    client.create_topic("orders", partitions=3, exist_ok=True)
    items = [(f"key-{number % 7}", f"value {number}") for number in range(count)]
    client.publish_many("orders", items)
    client.publish("orders", b"\xff\x00", headers={"a": "1", "b": "ü", "c": b"\xff\x00"}, priority="critical")
    client.publish("orders", b"", key=b"\xfe")
    with client.transaction("aborted") as transaction:
        transaction.publish("orders", "never seen")
        transaction.abort()


def test_the_archive_is_the_topic(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    fill(client)
    gone = client.publish("orders", b"", key="key-1", tombstone=True)
    client.publish("orders", "later", delay="1h")

    summary = archives.run(job, config)
    rows = archives.read(job.spark, config.directory)

    assert summary.messages == summary.archived_messages == 64
    found = {row[:2]: row for row in rows_archived(rows)}
    place = (gone.partition, gone.offset)
    assert found[place][3] is None
    found[place] = (*found[place][:3], b"", *found[place][4:])  # which is how the client shows it
    (delayed,) = rows.where("deliver_at IS NOT NULL").collect()
    found.pop((delayed["partition"], delayed["offset"]))
    assert list(found.values()) == rows_read(client, "orders")
    assert bytes(delayed["value"]) == b"later"
    assert rows.schema.simpleString() == archives.schema().simpleString()
    today = {row[4].date().isoformat() for row in rows_archived(rows)}
    assert {name for name in os.listdir(config.directory) if name != "_goqueue"} == {f"date={day}" for day in today}
    plain = job.spark.read.parquet(config.directory)
    assert plain.count() == 64


def test_what_comes_later_is_added_and_nothing_else(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    fill(client)
    archives.run(job, config)

    again = archives.run(job, config)
    client.publish("orders", "more")
    more = archives.run(job, config)

    assert again.messages == 0
    assert (more.messages, more.archived_messages) == (1, 63)
    assert [one.lag for one in client.group_positions("pipeline-archive-orders")] == [0, 0, 0]
    assert rows_archived(archives.read(job.spark, config.directory)) == rows_read(client, "orders")


def test_killed_around_the_commit_it_goes_on_and_the_archive_is_the_topic(
    client: Client, job: PipelineJob, config: ArchiveConfig
) -> None:
    """Every other moment is in test_manifest.py, where a job costs nothing."""
    fill(client)
    half = ArchiveConfig(topic="orders", directory=config.directory, offsets_per_batch=40)

    assert killed(lambda: archives.run(job, half, store=MortalStore(config.directory, change=1, is_after=False)))
    assert not looked_at_sequence(config)
    assert killed(lambda: archives.run(job, half, store=MortalStore(config.directory, change=2, is_after=True)))
    assert looked_at_sequence(config) == 1
    assert len(rows_archived(archives.read(job.spark, config.directory))) >= 35
    archives.run(job, half)

    assert rows_archived(archives.read(job.spark, config.directory)) == rows_read(client, "orders")
    assert archives.verify(job, config).is_good


def test_killed_before_its_group_is_told_the_next_run_tells_it(
    client: Client, job: PipelineJob, config: ArchiveConfig
) -> None:
    client.create_topic("orders", partitions=1)
    client.publish("orders", "archived")
    assert killed(lambda: archives.run(job, config, store=MortalStore(config.directory, change=1, is_after=True)))
    assert looked_at_sequence(config) == 1

    assert archives.run(job, config).batches == 0

    assert [one.lag for one in client.group_positions("pipeline-archive-orders")] == [0]


def looked_at_sequence(config: ArchiveConfig) -> int:
    try:
        return looked_at(LocalStore(config.directory)).manifest.sequence
    except ForeignArchive:
        return 0


def test_a_batch_that_fails_leaves_nothing_behind(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    fill(client)
    bad = ArchiveConfig(topic="orders", directory=config.directory, compression="origami")

    with pytest.raises(PipelineFailed, match="origami"), running("archive", job.config, spark=job.spark) as inner:
        archives.run(inner, bad)

    assert archives.run(job, config).messages == 62


def test_an_archive_that_was_changed_is_told_from_the_topic(
    client: Client, job: PipelineJob, config: ArchiveConfig
) -> None:
    """Rows are taken away, changed, and put in twice, each in a way that its file and its manifest do not give away."""
    fill(client)
    archives.run(job, config)
    good = archives.verify(job, config)
    rows = archives.read(job.spark, config.directory)
    whole = rows_archived(rows)
    forged = Path(config.directory).parent / "forged"

    changed = rows.selectExpr(
        "key",
        "IF(partition = 0 AND offset = 1, CAST('x' AS BINARY), value) AS value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "priority",
        "deliver_at",
        "headers",
    ).where("NOT (partition = 1 AND offset = 2)")
    changed = changed.unionByName(rows.where("partition = 2 AND offset = 3"))
    archived(changed).write.partitionBy("date").parquet(str(forged / "_goqueue/staging/1"))
    store = LocalStore(str(forged))
    archive = archives.Archive(store, [])
    known = looked_at(LocalStore(config.directory)).manifest
    archive.commit(
        "archive",
        topic="orders",
        topic_id=known.topic_id,
        now="",
        staged=archives.staged_files(archive),
        archived=sorted(known.archived.values()),
    )
    bad = archives.verify(job, ArchiveConfig(topic="orders", directory=str(forged)))

    assert good.is_good
    assert sum(one.topic_count for one in good.partitions) == len(whole) == 62
    assert not bad.is_good
    assert [one[5:10] for one in bad.partitions] == [(0, 1, 0, 0, 0), (1, 0, 0, 0, 0), (0, 0, 1, 0, 0)]
    assert [one.first_fault for one in bad.partitions] == [1, 2, 3]


def test_a_file_that_was_damaged_is_named(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    fill(client, 3)
    archives.run(job, config)
    (path,) = looked_at(LocalStore(config.directory)).manifest.files
    file = Path(config.directory, path)
    data = bytearray(file.read_bytes())
    data[100] ^= 1

    file.write_bytes(data)
    flipped = archives.verify(job, config)
    file.unlink()
    gone = archives.verify(job, config)

    assert [text.partition(" ")[0] for text in flipped.damaged_files] == [path]
    assert gone.damaged_files == [f"{path} is missing"]
    assert not flipped.is_good
    assert not gone.is_good


def test_a_record_that_is_damaged_in_the_topic_is_missing_though_both_sides_are_the_same(
    client: Client, broker: EmbeddedBroker, job: PipelineJob, config: ArchiveConfig
) -> None:
    client.create_topic("orders", partitions=1)
    client.publish_many("orders", [b"archived-in-time", b"lost-before-that", b"whole"])
    flip(broker.data, "orders", b"lost-before-that")

    with pytest.raises(Exception, match="offset 1 of orders/0 cannot be read"):
        archives.run(job, config)
    archives.run(job, replace(config, accept_loss=True))
    (lost,) = archives.verify(job, config).partitions
    flip(broker.data, "orders", b"archived-in-time")
    (saved,) = archives.verify(job, config).partitions

    assert (lost.archive_count, lost.topic_count, lost.damaged_count, lost.first_fault) == (2, 2, 1, 1)
    assert not lost.is_good
    assert (saved.topic_count, saved.damaged_count, saved.unknown_count, saved.forgotten_count) == (1, 1, 0, 1)


def test_what_the_topic_forgot_is_no_fault_of_the_archive(
    client: Client, job: PipelineJob, config: ArchiveConfig
) -> None:
    client.create_topic("orders", partitions=1)
    client.publish("orders", "now")
    late = client.publish("orders", "later", delay="1h")
    archives.run(job, config)

    client.cancel(late)
    client.publish("orders", "not archived")
    found = archives.verify(job, config)

    assert found.is_good
    (verdict,) = found.partitions
    assert (verdict.archive_count, verdict.topic_count, verdict.forgotten_count) == (2, 1, 1)
    assert found.behind_count == 1


def test_offsets_that_retention_took_first_are_named(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    client.create_topic("orders", partitions=1, segment_bytes=16_384, retention_bytes=32_768)
    client.publish("orders", "first")
    archives.run(job, config)
    for _ in range(10):
        client.publish_many("orders", [b"x" * 1_000] * 20)
    start = 161  # two segments of 20 messages are left
    while client.offsets("orders", time="earliest")[0] < start:
        pass

    with pytest.raises(OffsetsLost) as caught:
        archives.run(job, config)
    accepted = archives.run(job, ArchiveConfig(topic="orders", directory=config.directory, accept_loss=True))

    assert f"orders-0 [1, {start})" in str(caught.value)
    assert accepted.lost == [PartitionSpan(0, 1, start)]
    assert looked_at(LocalStore(config.directory)).manifest.lost == [PartitionSpan(0, 1, start)]
    assert archives.verify(job, config).is_good


def test_small_files_are_merged(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    client.create_topic("orders", partitions=1)
    eager = ArchiveConfig(topic="orders", directory=config.directory, merge_files_min=3)
    for number in range(3):
        client.publish("orders", f"{number}")
        last = archives.run(job, eager)

    assert (last.merged_files, last.files) == (3, 1)
    assert rows_archived(archives.read(job.spark, config.directory)) == rows_read(client, "orders")
    client.publish("orders", "3")
    assert archives.run(job, config).files == 2
    assert archives.merge(job, config) == 2
    assert archives.merge(job, config) == 0
    assert archives.verify(job, config).is_good
    assert job.spark.read.parquet(config.directory).count() == 4


def test_a_topic_that_was_made_anew_is_not_added_to_the_old_archive(
    client: Client, job: PipelineJob, config: ArchiveConfig
) -> None:
    fill(client, 1)
    archives.run(job, config)
    client.delete_topic("orders")
    fill(client, 2)

    with pytest.raises(ForeignArchive, match="another topic of the name orders"):
        archives.run(job, config)
    with pytest.raises(ForeignArchive):
        archives.verify(job, config)


def test_a_topic_that_is_made_anew_while_it_is_archived_is_not_taken_for_the_old_one(
    client: Client, spark: "SparkSession", broker: EmbeddedBroker, config: ArchiveConfig
) -> None:
    def make(value: str) -> None:
        client.create_topic("orders", partitions=1)
        client.publish("orders", value)

    def react(progress: JobProgress) -> None:
        if progress.pending:
            client.delete_topic("orders")
            make("new")

    make("old")

    with (
        running("archive", JobConfig(server=broker.address), spark=spark, reporter=react) as job,
        pytest.raises(ForeignArchive, match="deleted during the run"),
    ):
        archives.run(job, config)

    assert looked_at_sequence(config) == 0


def test_an_empty_topic_has_an_empty_archive(client: Client, job: PipelineJob, config: ArchiveConfig) -> None:
    client.create_topic("orders", partitions=2)

    summary = archives.run(job, config)

    assert (summary.messages, summary.files) == (0, 0)
    assert archives.read(job.spark, config.directory).count() == 0
    assert archives.verify(job, config).is_good


def test_a_continuous_job_goes_on_until_it_is_ended(
    client: Client, spark: "SparkSession", broker: EmbeddedBroker, config: ArchiveConfig
) -> None:
    fill(client, 10)
    endless = ArchiveConfig(topic="orders", directory=config.directory, is_continuous=True, pause_s=0.01)

    def react(progress: JobProgress) -> None:
        if progress.done == progress.total == 12:
            client.publish("orders", "one more")
        elif progress.done == 13:
            job.end()

    with running("archive", JobConfig(server=broker.address), spark=spark, reporter=react) as job:
        summary = archives.run(job, endless)

    assert (summary.messages, summary.batches) == (13, 2)


def test_an_archive_from_when_headers_were_maps_is_read_verified_continued_and_merged(
    job: PipelineJob, config: ArchiveConfig, client: Client
) -> None:
    """Bytes that are no text were mangled there; that is no fault of the archive."""
    fill(client)
    store = LocalStore(config.directory)
    state = client.describe_topic("orders")
    spans = [PartitionSpan(one.partition, one.start_offset, one.last_stable_offset) for one in state.partitions]
    for half in (0, 1):
        archive = archives.Archive(store, load(store))
        rows = job.read("orders", includeHeaders=True, headersFormat="map").where(f"offset % 2 = {half}")
        archived(rows).write.partitionBy("date").parquet(store.url(archive.staging))
        archive.commit(
            "archive",
            topic="orders",
            topic_id=state.topic_id,
            now="",
            staged=archives.staged_files(archive),
            archived=spans if half else [PartitionSpan(span.partition, span.start, span.start) for span in spans],
            headers=MAP,
        )
    (old, *_) = Path(config.directory).glob("_goqueue/*1.json")
    old.write_text(old.read_text().replace(',"headers":"map"', ""))  # as it was written then

    assert archives.verify(job, config).is_good
    client.publish("orders", "new", headers={"id": b"\xff"})
    client.publish("orders", "new", headers={"id": b"\xff"})
    archives.run(job, config)
    assert archives.verify(job, config).is_good
    assert archives.merge(job, config) > 1
    assert archives.verify(job, config).is_good

    found = rows_archived(archives.read(job.spark, config.directory))
    texts = {"a": "1", "b": "ü", "c": "\ufffd\x00"}
    assert [row[-1] for row in found if row[-1] and "a" in row[-1]] == [texts]
    assert [row[-1] for row in found if row[3] == b"new"] == [{"id": "\udcff"}] * 2
    assert [row[:-1] for row in found] == [row[:-1] for row in rows_read(client, "orders")]


def test_days_are_those_of_utc_whatever_the_session_says(spark: "SparkSession") -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    times = [
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "2026-11-15T23:59:59.999999Z",
        "2026-11-16T00:00:00Z",
    ]
    rows = session.sql(
        "SELECT CAST(NULL AS BINARY) key, CAST(NULL AS BINARY) value, 't' topic, 0 partition, 0L offset,"
        " CAST(t AS TIMESTAMP) timestamp, 2 priority, CAST(NULL AS TIMESTAMP) deliver_at,"
        " array(named_struct('key', 'a', 'value', CAST('b' AS BINARY))) headers"
        f" FROM VALUES {', '.join(f'({text!r})' for text in times)} AS v(t)"
    )

    days = [str(row["date"]) for row in archived(rows).select("date").collect()]

    assert days == [text[:10] for text in times]


def test_checksums_tell_rows_apart_and_not_their_order(spark: "SparkSession") -> None:
    row = (b"k", b"v", "t", 0, 5, datetime(2026, 1, 1, tzinfo=UTC), 2, None, [("a", b"1")])
    others = [
        (None, *row[1:]),
        (b"", *row[1:]),
        (b"k", None, *row[2:]),
        (b"v", b"k", *row[2:]),
        (None, b"kv", *row[2:]),
        (b"kv", None, *row[2:]),
        (*row[:2], "u", *row[3:]),
        (*row[:3], 1, *row[4:]),
        (*row[:4], 6, *row[5:]),
        (*row[:5], datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), *row[6:]),
        (*row[:6], 3, *row[7:]),
        (*row[:8], []),
        (*row[:8], [("a", b"2")]),
        (*row[:8], [("a", b"1"), ("a", b"1")]),
        (*row[:7], datetime(2026, 1, 1, tzinfo=UTC), [("a", b"1")]),
    ]

    def table(*rows: Row) -> "DataFrame":
        return spark.createDataFrame(rows, archives.schema())

    def summed(*rows: Row) -> Row:
        (found,) = checksums(table(*rows)).collect()
        return tuple(found)

    hashes = {found["hash"] for found in table(row, *others).select(fingerprint().alias("hash")).collect()}
    assert len(hashes) == 1 + len(others)
    assert summed(row, others[0]) == summed(others[0], row)
    assert len({summed(row), summed(row, row), summed(others[0], others[0]), summed(row, others[0])}) == 4


def test_a_day_is_merged_when_it_has_enough_small_files() -> None:
    files = [ArchivedFile(f"date={day}/{number}", 1, size, 0) for day, number, size in (
        (1, 0, 10), (1, 1, 10), (1, 2, 99), (2, 0, 10), (3, 0, 10), (3, 1, 10), (3, 2, 10),
    )]  # fmt: skip

    assert list(small_files(files, below_bytes=50, files_min=3)) == [("date=3", "map")]
    assert list(small_files(files, below_bytes=50, files_min=1)) == [("date=1", "map"), ("date=3", "map")]
    assert list(small_files(files, below_bytes=5, files_min=1)) == []
