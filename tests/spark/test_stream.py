"""The stream reader against a real broker: what Spark asks of it, asked by hand; and a few whole queries."""

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from goqueue.client.sync import Client
from goqueue.errors import GoQueueError, InvalidRequest, PartitionNotFound, TopicNotFound
from goqueue.spark import GoQueueDataSource
from goqueue.spark.plan import DataLost
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = tuple[str, int, int]
ENOUGH_S = 150


class Query:
    """A streaming query without Spark: its checkpoint is the JSON of its last offset."""

    def __init__(self, address: str, checkpoint: str | None = None, **options: str) -> None:
        source = GoQueueDataSource(
            CaseInsensitiveDict({"server": address, "columns": "topic,partition,offset"} | options)
        )
        self.reader: Any = source.streamReader(source.schema())
        self.checkpoint = json.dumps(self.reader.initialOffset()) if checkpoint is None else checkpoint

    def plan(self, limit: ReadLimit | None = None) -> str:
        start = json.loads(self.checkpoint)
        return json.dumps(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def read(self, end: str) -> list[Place]:
        tasks = self.reader.partitions(json.loads(self.checkpoint), json.loads(end))
        task_reader, tasks = pickle.loads(pickle.dumps((self.reader, tasks)))
        rows = [row for task in tasks for batch in task_reader.read(task) for row in batch.to_pylist()]
        return [(row["topic"], row["partition"], row["offset"]) for row in rows]

    def batch(self, limit: ReadLimit | None = None) -> list[Place]:
        """The rows of one micro-batch, none if there is nothing new."""
        end = self.plan(limit)
        if end == self.checkpoint:
            return []
        rows = self.read(end)
        self.checkpoint = end
        return rows

    def rest(self) -> list[Place]:
        """The rows of all micro-batches that follow."""
        rows = []
        while batch := self.batch():
            rows += batch
        return rows


def publish(gq: Client, topic: str, count: int, *, partitions: int = 1, size: int = 20, **settings: Any) -> None:
    gq.create_topic(topic, partitions=partitions, exist_ok=True, **settings)
    with gq.producer(batch_count=50) as producer:
        for number in range(count):
            producer.send(topic, b"%0*d" % (size, number), partition=number % partitions)
            if number % 50 == 49:
                producer.flush()  # what is sent together is in one segment


def places(topic: str, count: int, *, partitions: int = 1, start: int = 0) -> list[Place]:
    return [(topic, partition, offset) for partition in range(partitions) for offset in range(start, count)]


class TestWhereItBegins:
    def test_a_new_stream_begins_at_the_end(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 5)
        query = Query(shared_broker.address, subscribe="t")
        assert query.batch() == []
        publish(gq, "t", 2)
        assert query.batch() == places("t", 7, start=5)
        assert query.batch() == []

    def test_or_where_it_is_told_to(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 5)
        assert Query(shared_broker.address, subscribe="t", startingOffsets="earliest").batch() == places("t", 5)
        assert Query(shared_broker.address, subscribe="t", startingOffsets='{"t": {"0": 3}}').batch() == places(
            "t", 5, start=3
        )
        assert Query(shared_broker.address, subscribe="t", startingTimestamp="1h ago").batch() == places("t", 5)

    def test_or_where_its_group_stands(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 10, partitions=2)
        gq.commit_group("g", {("t", 0): 4})
        assert Query(shared_broker.address, subscribe="t", group="g").batch() == [
            ("t", 0, 4),
            *(("t", 1, n) for n in range(5)),
        ]

    def test_a_checkpoint_goes_before_all_of_that(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 10)
        first = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        assert first.batch() == places("t", 4)
        second = Query(shared_broker.address, first.checkpoint, subscribe="t", startingOffsets="latest")
        assert second.batch() == places("t", 10, start=4)

    def test_what_was_planned_before_a_crash_is_read_again_as_it_was(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 10)
        first = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        planned = first.plan()
        publish(gq, "t", 10)
        again = Query(shared_broker.address, first.checkpoint, subscribe="t")
        assert again.read(planned) == places("t", 4)

    def test_a_missing_topic_is_named(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        with pytest.raises(TopicNotFound, match="nope"):
            Query(shared_broker.address, subscribe="nope")
        publish(gq, "t", 1)
        with pytest.raises(PartitionNotFound):
            Query(shared_broker.address, assign='{"t": [7]}')

    def test_a_stream_has_no_end(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 1)
        with pytest.raises(InvalidRequest, match="a stream has no end"):
            Query(shared_broker.address, subscribe="t", endingOffsets="latest")

    def test_a_malformed_checkpoint_is_refused(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 1)
        with pytest.raises(InvalidRequest, match="malformed offset in the checkpoint"):
            Query(shared_broker.address, '{"t": {"0": 5}}', subscribe="t").plan()

    def test_bad_options_are_not_lost_though_spark_loses_what_a_constructor_raises(self) -> None:
        reader = GoQueueDataSource(CaseInsensitiveDict({"subscribes": "t"})).streamReader(None)  # type: ignore[arg-type]
        for call in (
            reader.initialOffset,
            lambda: reader.latestOffset({}, ReadAllAvailable()),
            lambda: reader.partitions({}, {}),
        ):
            with pytest.raises(GoQueueError, match="did you mean subscribe"):
                call()


class TestHowMuchAtOnce:
    def test_everything_unless_told_otherwise(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 30, partitions=3)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest")
        assert query.reader.getDefaultReadLimit() == ReadAllAvailable()
        assert query.batch() == places("t", 10, partitions=3)

    def test_so_many_offsets(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 100, partitions=3)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="30")
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
        sizes, rows = [], []
        while batch := query.batch():
            assert {partition for _, partition, _ in batch} == {0, 1, 2}
            sizes.append(len(batch))
            rows += batch
        assert sizes == [30, 30, 30, 10]
        assert sorted(rows) == [("t", p, n) for p in range(3) for n in range(34 if p == 0 else 33)]

    def test_so_many_bytes(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 2_000, size=100)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxBytesPerTrigger="64k")
        assert query.reader.getDefaultReadLimit() == ReadMaxBytes(65_536)
        rows = []
        while batch := query.batch():
            assert len(batch) * 134 < 65_536 + 8_192
            rows += batch
        assert rows == places("t", 2_000)

    def test_both_limits_hold(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 1_000, size=100)
        asked = {"subscribe": "t", "startingOffsets": "earliest"}
        few = Query(shared_broker.address, **asked, maxOffsetsPerTrigger="10", maxBytesPerTrigger="1g")
        small = Query(shared_broker.address, **asked, maxOffsetsPerTrigger="100000", maxBytesPerTrigger="16k")
        assert len(few.batch()) == 10
        assert 0 < len(small.batch()) * 134 < 16_384 + 8_192
        assert small.batch(ReadAllAvailable())[-1] == ("t", 0, 999)

    def test_each_partition_gets_its_turn_though_there_are_more_than_the_limit(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 60, partitions=6)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        served = [place[1] for _ in range(3) for place in query.batch()]
        assert sorted(served) == list(range(6))
        assert len(query.rest()) == 54

    def test_what_is_there_now_and_no_more(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 10)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        query.reader.prepareForTriggerAvailableNow()
        publish(gq, "t", 10)
        publish(gq, "new", 10)
        assert query.rest() == places("t", 10)
        assert query.batch() == []

    def test_the_latest_offset_is_reported(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 10)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        assert query.reader.reportLatestOffset() is None
        query.batch()
        assert query.reader.reportLatestOffset()["t"]["0"] == 10

    def test_one_partition_is_read_by_one_task(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 1_000, size=100)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest")
        split = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", minPartitions="4")
        start, end = json.loads(query.checkpoint), json.loads(query.plan())
        assert len(query.reader.partitions(start, end)) == 1
        assert len(split.reader.partitions(start, end)) == 4
        assert query.reader.partitions(start, start) == []
        assert split.batch() == places("t", 1_000)


class TestWhatChanges:
    def test_topics_that_come_later_are_read_from_their_beginning(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        query = Query(shared_broker.address, subscribePattern="t.*")
        assert query.checkpoint == "{}"
        assert query.batch() == []
        publish(gq, "t1", 3)
        publish(gq, "other", 3)
        assert query.batch() == places("t1", 3)
        publish(gq, "t2", 2)
        assert query.batch() == places("t2", 2)

    def test_partitions_that_come_later_are_read_from_their_beginning(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 9, partitions=3)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="latest")
        known = json.loads(query.checkpoint)
        del known["t"]["2"]
        query.checkpoint = json.dumps(known)
        assert query.batch() == [("t", 2, 0), ("t", 2, 1), ("t", 2, 2)]

    def test_a_topic_that_is_deleted_is_an_error_or_logged_once(
        self, gq: Client, shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 3)
        publish(gq, "u", 3)
        strict = Query(shared_broker.address, subscribe="t,u")
        tolerant = Query(shared_broker.address, subscribe="t,u", failOnDataLoss="false")
        gq.delete_topic("t")
        with pytest.raises(DataLost, match="topic t was deleted"):
            strict.plan()
        assert tolerant.batch() == []
        publish(gq, "u", 1)
        assert tolerant.batch() == [("u", 0, 3)]
        assert caplog.text.count("topic t was deleted") == 1

    def test_a_topic_that_is_made_again_is_an_error_or_read_from_its_beginning(
        self, gq: Client, shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 5)
        strict = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        tolerant = Query(shared_broker.address, strict.checkpoint, subscribe="t", failOnDataLoss="false", group="g")
        planned = strict.plan()
        gq.delete_topic("t")
        publish(gq, "t", 3)
        for call in (strict.plan, lambda: strict.read(planned)):
            with pytest.raises(DataLost, match="topic t was deleted and created again"):
                call()
        assert tolerant.read(planned) == []
        assert tolerant.rest() == places("t", 3)
        assert "topic t was deleted and created again" in caplog.text
        publish(gq, "t", 1)
        assert tolerant.batch() == [("t", 0, 3)]
        assert Query(shared_broker.address, tolerant.checkpoint, subscribe="t").batch() == []

    def test_retention_is_an_error_that_names_the_offsets_or_a_logged_skip(
        self, gq: Client, shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 500, segment_bytes=1_024)
        strict = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="5")
        tolerant = Query(shared_broker.address, strict.checkpoint, subscribe="t", failOnDataLoss="false")
        planned = strict.plan()
        gq.alter_topic("t", retention_bytes=4_096)
        while gq.offsets("t", time="earliest")[0] < 400:
            pass
        with pytest.raises(DataLost, match=r"offsets 0 to \d+ of t-0 are gone, its log begins at \d+"):
            strict.plan()
        with pytest.raises(DataLost, match=r"offsets 0 to 4 of t-0 are gone"):
            strict.read(planned)
        rows = tolerant.rest()
        assert rows == places("t", 500, start=400)
        assert "offsets 0 to" in caplog.text

    def test_a_log_that_shrinks_is_an_error(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 5)
        query = Query(shared_broker.address, subscribe="t")
        checkpoint = json.loads(query.checkpoint)
        checkpoint["t"]["0"] = 9
        query.checkpoint = json.dumps(checkpoint)
        with pytest.raises(DataLost, match="t-0 is to be read to 9, but ends at 5"):
            query.plan()

    def test_an_open_transaction_is_waited_for(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 1)
        query = Query(shared_broker.address, subscribe="t")
        with gq.transaction("one") as transaction:
            transaction.publish("t", b"open", partition=0)
            gq.publish("t", b"behind", partition=0)
            assert query.batch() == []
            assert (
                len(Query(shared_broker.address, query.checkpoint, subscribe="t", isolation="read_uncommitted").batch())
                == 2
            )
        assert query.batch() == [("t", 0, 1), ("t", 0, 2)]

    def test_a_batch_in_which_nothing_is_to_be_seen_is_passed_and_is_no_loss(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 1)
        query = Query(shared_broker.address, subscribe="t")
        with gq.transaction("one") as transaction:
            transaction.publish("t", b"never seen", partition=0)
            transaction.abort()
        assert query.batch() == []
        gq.publish("t", b"seen", partition=0)
        assert query.batch() == [("t", 0, 3)]  # behind what was aborted, and the note of it


class TestItsGroup:
    def lag(self, gq: Client, group: str) -> dict[int, int]:
        return {one.partition: one.lag for one in gq.group_positions(group)}

    def test_it_shows_the_lag_from_the_start(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 20, partitions=2)
        query = Query(
            shared_broker.address, subscribe="t", startingOffsets="earliest", group="g", maxOffsetsPerTrigger="8"
        )
        end = query.plan()
        assert self.lag(gq, "g") == {0: 10, 1: 10}
        query.read(end)
        assert self.lag(gq, "g") == {0: 10, 1: 10}
        query.checkpoint = end
        query.plan()
        assert self.lag(gq, "g") == {0: 6, 1: 6}
        query.rest()
        assert self.lag(gq, "g") == {0: 0, 1: 0}

    def test_a_stream_without_checkpoint_goes_on_where_it_stands(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 5)
        first = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", group="g")
        assert first.rest() == places("t", 5)
        publish(gq, "t", 5)
        assert Query(shared_broker.address, subscribe="t", group="g").rest() == places("t", 10, start=5)

    def test_a_topic_that_was_made_again_is_not_said_to_be_read_as_far_as_the_old_one(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 5)
        asked = {"subscribe": "t", "startingOffsets": "earliest", "group": "g", "failOnDataLoss": "false"}
        first = Query(shared_broker.address, **asked)
        assert first.rest() == places("t", 5)
        gq.delete_topic("t")
        publish(gq, "t", 8)
        second = Query(shared_broker.address, first.checkpoint, **asked)
        end = second.plan()
        assert {one.offset for one in gq.group_positions("g")} <= {0}
        assert second.read(end) == places("t", 8)
        second.checkpoint = end
        second.plan()
        assert self.lag(gq, "g") == {0: 0}

    def test_a_message_that_is_not_due_does_not_make_a_new_query_read_all_after_it(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        """All of it was read, with what is delayed: it is done."""
        publish(gq, "t", 10)
        gq.publish("t", "later", delay="1h")
        publish(gq, "t", 89)
        first = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", group="g")
        assert first.rest() == places("t", 100)
        assert first.batch() == []
        assert self.lag(gq, "g") == {0: 0}

        publish(gq, "t", 3)
        assert Query(shared_broker.address, subscribe="t", group="g").rest() == places("t", 103, start=100)

    def test_a_new_query_reads_what_the_one_before_left_out_because_it_was_not_due(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 10)
        later = gq.publish("t", "later", delay="1h")
        publish(gq, "t", 20)
        asked = {"subscribe": "t", "group": "g"}
        first = Query(shared_broker.address, startingOffsets="earliest", delayed="due", **asked)
        assert first.rest() == [*places("t", 10), *places("t", 31, start=11)]
        assert first.batch() == []
        assert [(one.offset, one.lag) for one in gq.group_positions("g")] == [(10, 0)]
        assert [tuple(one.ranges) for one in gq.group_done_above("g")] == [((11, 31),)]

        assert Query(shared_broker.address, delayed="due", **asked).rest() == []
        assert Query(shared_broker.address, **asked).rest() == [("t", 0, later.offset)]

    def test_a_new_query_reads_nothing_of_what_consumers_have_done(
        self, gq: Client, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 10)
        with gq.consumer("t", group="g") as consumer:
            for message in consumer.poll(10, timeout="5s"):
                if message.offset not in (3, 4):
                    message.ack()
        assert Query(shared_broker.address, subscribe="t", group="g").rest() == places("t", 5, start=3)

    def test_a_group_with_members_is_not_taken_over(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 5)
        with gq.consumer("t", group="g") as consumer:
            consumer.poll()
            with pytest.raises(GoQueueError):
                Query(shared_broker.address, subscribe="t", startingOffsets="earliest", group="g").plan()


class TestWhatIsDelayed:
    def test_what_falls_due_later_is_read_then(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        publish(gq, "t", 5)
        held = [gq.publish("t", "later", delay="1h") for _ in range(3)]
        publish(gq, "t", 5)
        query = Query(shared_broker.address, subscribe="t", startingOffsets="earliest", delayed="due")
        assert query.batch() == [*places("t", 5), *places("t", 13, start=8)]
        assert json.loads(query.checkpoint)["t"]["pending"] == {"0": "5-7"}
        assert query.batch() == []

        gq.reschedule(held[1], delay="1ms")
        gq.cancel(held[0])
        while len(gq.delayed("t")) > 1:
            pass
        planned = query.plan()
        assert query.read(planned) == [("t", 0, 6)]
        gq.reschedule(held[2], delay="1ms")
        while gq.delayed("t"):
            pass
        assert query.read(planned) == [("t", 0, 6)]  # a micro-batch that is repeated is the same

        query.checkpoint = planned
        assert query.rest() == [("t", 0, 7)]
        assert "pending" not in json.loads(query.checkpoint)["t"]

    def test_limits_hold_for_what_falls_due(self, gq: Client, shared_broker: EmbeddedBroker) -> None:
        gq.create_topic("t", partitions=1)
        for _ in range(7):
            gq.publish("t", "soon", delay="300ms")
        asked = {"subscribe": "t", "startingOffsets": "earliest", "delayed": "due", "maxOffsetsPerTrigger": "3"}
        query = Query(shared_broker.address, **asked)
        found: list[list[Place]] = []
        while sum(map(len, found)) < 7:
            found.append(query.batch())
        assert sorted(place for batch in found for place in batch) == places("t", 7)
        assert max(map(len, found)) <= 3
        assert "pending" not in json.loads(query.checkpoint)["t"]


class TestWithSpark:
    def start(self, spark: "SparkSession", address: str, folder: Path, **options: str) -> Any:
        frame = spark.readStream.format("goqueue").options(server=address, columns="partition,offset", **options).load()
        written = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        return written.trigger(availableNow=True).start(str(folder / "rows"))

    def rows(self, spark: "SparkSession", folder: Path) -> list[tuple[int, int]]:
        return sorted(tuple(row) for row in spark.read.parquet(str(folder / "rows")).collect())

    def test_each_row_comes_once_through_a_restart(
        self, gq: Client, shared_broker: EmbeddedBroker, spark: "SparkSession", tmp_path: Path
    ) -> None:
        publish(gq, "t", 30, partitions=3)
        options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "18", "group": "g"}
        query = self.start(spark, shared_broker.address, tmp_path, **options)
        assert query.awaitTermination(ENOUGH_S)
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [18, 12]
        assert {one.partition: one.lag for one in gq.group_positions("g")} == {0: 0, 1: 0, 2: 0}
        publish(gq, "t", 6, partitions=3)
        assert self.start(spark, shared_broker.address, tmp_path, **options).awaitTermination(ENOUGH_S)
        assert self.rows(spark, tmp_path) == [(p, n) for p in range(3) for n in range(12)]
        offsets = json.loads(query.lastProgress.sources[0].endOffset)
        assert offsets == {"t": {"id": gq.describe_topic("t").topic_id, "0": 10, "1": 10, "2": 10}}

    def test_an_error_is_one_sentence_before_what_spark_says_of_the_query(
        self, gq: Client, shared_broker: EmbeddedBroker, spark: "SparkSession", tmp_path: Path
    ) -> None:
        publish(gq, "t", 3)
        query = self.start(spark, shared_broker.address, tmp_path, subscribe="t", startingOffsets="earliest")
        assert query.awaitTermination(ENOUGH_S)
        gq.delete_topic("t")
        publish(gq, "t", 1)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark makes of it
            self.start(spark, shared_broker.address, tmp_path, subscribe="t").awaitTermination(ENOUGH_S)
        text = str(caught.value)
        assert "data lost: topic t was deleted and created again" in text.splitlines()[0]
        assert "Traceback" not in text
        assert len(text.splitlines()) <= 20
