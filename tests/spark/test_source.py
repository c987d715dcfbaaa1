"""The batch reader against a real broker, mostly without Spark around it; once end to end."""

import os
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from goqueue.client.sync import Client
from goqueue.errors import CorruptRecord, InvalidConfig, PartitionNotFound, TopicNotFound
from goqueue.record.header import Flags
from goqueue.spark import GoQueueDataSource
from goqueue.spark.columns import SPARK_TYPES
from goqueue.spark.link import Link
from goqueue.spark.plan import DataLost
from goqueue.spark.source import GoQueueReader, PushdownReader, Ranges
from goqueue.testing import EmbeddedBroker
from tests.client.damaged import flip, publish_with_broken_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYTHING = {
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "priority",
    "deliver_at",
    "headers",
}
ERROR_S = 30
"""After that long nobody believes any more that an answer comes; a task has more patience than that."""
Row = dict[str, Any]


class Source:
    """Calls a reader as Spark does: everything is pickled on its way from the driver to a task."""

    def __init__(self, address: str) -> None:
        self.address = address

    def reader(self, schema: StructType | None = None, **options: str) -> Any:
        source = GoQueueDataSource(CaseInsensitiveDict({"server": self.address, **options}))
        return source.reader(schema or source.schema())

    def planned(self, **options: str) -> list[list[tuple[str, int, int, int]]]:
        partitions = self.reader(**options).partitions()
        return [[tuple(planned.range) for planned in partition.value] for partition in partitions]

    def rows(self, schema: StructType | None = None, **options: str) -> list[Row]:
        return self.read(self.reader(schema, **options))

    def read(self, reader: Any, partitions: Sequence[InputPartition] | None = None) -> list[Row]:
        partitions = reader.partitions() if partitions is None else partitions
        reader, partitions = pickle.loads(pickle.dumps((reader, partitions)))
        wanted = to_arrow_schema(reader._schema, timezone="UTC")
        rows = []
        for partition in partitions:
            for batch in reader.read(partition):
                assert batch.schema.equals(wanted)
                rows += batch.to_pylist()
        return [row | {"headers": headers_of(row["headers"])} if "headers" in row else row for row in rows]


def headers_of(pairs: Any) -> dict[str, str | None]:
    return {pair["key"]: None if pair["value"] is None else bytes(pair["value"]).decode() for pair in pairs}


@pytest.fixture
def source(shared_broker: EmbeddedBroker, gq: Client) -> Source:
    return Source(shared_broker.address)


def publish_all_kinds(gq: Client, topic: str, per_partition: int = 60) -> list[Row]:
    """Every kind of message, in three partitions over several segments; what a reader of the log must see of them."""
    gq.create_topic(topic, partitions=3, segment_bytes=4_096)
    later = datetime(2040, 1, 1, tzinfo=UTC)
    handles = []
    with gq.producer() as producer:
        for number in range(per_partition * 3):
            message: Row = {"partition": number % 3, "value": os.urandom(number % 150)}
            match number % 8:
                case 0:
                    message |= {"key": None}
                case 1:
                    message |= {"key": b"\x00\xff", "priority": "critical"}
                case 2:
                    message |= {"key": f"k{number}", "value": b""}
                case 3:
                    message |= {"key": f"k{number}", "value": b"", "tombstone": True}
                case 4:
                    message |= {
                        "headers": {"source": "wéb", "n": str(number), "empty": "", "null": None},
                        "priority": "background",
                    }
                case 5:
                    message |= {"deliver_at": later + timedelta(seconds=number, microseconds=number)}
                case 6:
                    message |= {"key": "", "priority": number % 5}
            value = message.pop("value")
            handles.append((producer.send(topic, value, **message), None if "tombstone" in message else value, message))
    expected = []
    for handle, value, message in handles:
        done = handle.result()
        key = message.get("key")
        priority = message.get("priority", 2)
        expected.append(
            {
                "key": key.encode() if isinstance(key, str) else key,
                "value": value,
                "topic": topic,
                "partition": done.partition,
                "offset": done.offset,
                "timestamp": done.timestamp,
                "priority": {"critical": 0, "background": 4}.get(priority, priority),
                "deliver_at": message.get("deliver_at"),
                "headers": message.get("headers", {}),
            }
        )
    return sorted(expected, key=lambda row: (row["partition"], row["offset"]))


def shown(rows: list[Row]) -> list[Row]:
    """Rows without the headers in which the broker keeps times."""
    return [
        row | {"headers": {name: value for name, value in row["headers"].items() if not name.startswith("gq-")}}
        for row in rows
    ]


def publish(gq: Client, topic: str, count: int, *, partitions: int = 1, size: int = 20, **settings: Any) -> None:
    gq.create_topic(topic, partitions=partitions, exist_ok=True, **settings)
    with gq.producer(batch_count=50) as producer:
        for number in range(count):
            producer.send(topic, b"%0*d" % (size, number), partition=number % partitions)
            if number % 50 == 49:
                producer.flush()  # what is sent together is in one segment


def publish_and_abort(gq: Client, topic: str, value: bytes) -> None:
    try:
        with gq.transaction("aborted") as transaction:
            transaction.publish(topic, value, partition=0)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def wait_until_retention_is_done(gq: Client, topic: str, start: int) -> None:
    """Until the log begins there."""
    while gq.offsets(topic, time="earliest")[0] < start:
        pass


class TestRows:
    def test_they_are_what_was_published_in_every_column(self, gq: Client, source: Source) -> None:
        expected = publish_all_kinds(gq, "kinds")
        rows = source.rows(subscribe="kinds", includeHeaders="true")
        assert {frozenset(row) for row in rows} == {frozenset(EVERYTHING)}
        assert shown(rows) == expected

    def test_end_to_end_they_are_what_was_published_too(
        self, gq: Client, source: Source, spark: "SparkSession"
    ) -> None:
        expected = publish_all_kinds(gq, "kinds", 40)
        frame = spark.read.format("goqueue").option("server", source.address).option("includeHeaders", "true")
        found = frame.option("subscribe", "kinds").option("minPartitions", "4").load()
        assert found.rdd.getNumPartitions() >= 4
        rows = [row.asDict() for row in found.collect()]
        for row in rows:
            row["key"], row["value"] = [None if row[name] is None else bytes(row[name]) for name in ("key", "value")]
            for name in ("timestamp", "deliver_at"):
                row[name] = row[name] and row[name].astimezone(UTC)
            row["headers"] = headers_of(row["headers"])
        assert shown(rows) == expected

    def test_headers_may_be_a_map(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        gq.publish("t", b"a", headers={"a": "1", "b": b"\xff"})
        asked = {"subscribe": "t", "columns": "headers", "headersFormat": "map"}
        reader = source.reader(**asked)
        (batch,) = reader.read(reader.partitions()[0])
        assert batch.to_pylist() == [{"headers": [("a", "1"), ("b", "\ufffd")]}]
        pairs = source.reader(StructType([StructField("headers", SPARK_TYPES["headers"])]), **asked)
        with pytest.raises(InvalidConfig, match="must be map<string,string>"):
            pairs.partitions()

    def test_nothing_of_an_aborted_transaction_is_seen(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 3)
        with gq.transaction("one") as transaction:
            transaction.publish("t", b"committed", partition=0)
        publish_and_abort(gq, "t", b"aborted")
        gq.publish("t", b"last", partition=0)
        values = [row["value"][-9:] for row in source.rows(subscribe="t")]
        assert values == [b"000000000", b"000000001", b"000000002", b"committed", b"last"]
        assert b"aborted" in [row["value"] for row in source.rows(subscribe="t", isolation="read_uncommitted")]

    def test_what_is_committed_ends_where_a_transaction_is_open(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 3)
        with gq.transaction("one") as transaction:
            transaction.publish("t", b"open", partition=0)
            gq.publish("t", b"behind", partition=0)
            assert len(source.rows(subscribe="t")) == 3
            assert len(source.rows(subscribe="t", isolation="read_uncommitted")) == 5
        assert [row["value"] for row in source.rows(subscribe="t")][3:] == [b"open", b"behind"]

    def test_a_cancelled_message_is_left_out(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        stays, goes = (gq.publish("t", name, delay="1h") for name in ("stays", "goes"))
        gq.cancel(goes)
        (row,) = source.rows(subscribe="t")
        assert (row["value"], row["offset"]) == (b"stays", stays.offset)

    def test_only_what_is_due_is_read_if_asked_for(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        gq.publish("t", "now")
        gq.publish("t", "later", delay="1h")
        assert [row["value"] for row in source.rows(subscribe="t", delayed="due")] == [b"now"]
        assert [row["value"] for row in source.rows(subscribe="t")] == [b"now", b"later"]

    def test_what_falls_due_after_the_plan_is_not_read(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        gq.publish("t", "first")
        soon = gq.publish("t", "soon", delay="1h")
        reader = source.reader(subscribe="t", delayed="due")
        partitions = reader.partitions()
        gq.reschedule(soon, delay="0s")
        while gq.delayed("t"):
            pass
        assert [row["value"] for row in source.read(reader, partitions)] == [b"first"]
        assert [row["value"] for row in source.rows(subscribe="t", delayed="due")] == [b"first", b"soon"]

    def test_a_message_that_was_rescheduled_has_its_new_time(
        self, gq: Client, source: Source, shared_broker: EmbeddedBroker
    ) -> None:
        gq.create_topic("t", partitions=1, segment_bytes=1_024)
        first, second, _ = (gq.publish("t", "x" * 600, delay="1h") for _ in range(3))
        gq.publish("t", "now")
        new = datetime(2040, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
        gq.reschedule(second, deliver_at=new)
        before = {row["offset"]: row["deliver_at"] for row in source.rows(subscribe="t", columns="offset,deliver_at")}
        assert before[second.offset] == new
        assert before[3] is None
        assert len({before[0], before[2], new}) == 3
        files = {"readFrom": "files", "dataDir": str(shared_broker.data)}
        assert [row["deliver_at"] for row in source.rows(subscribe="t", **files)] == list(before.values())

        gq.reschedule(first, delay="0s")
        while len(gq.delayed("t")) > 2:
            pass
        row, *_ = source.rows(subscribe="t", columns="deliver_at")
        assert row["deliver_at"] < datetime.now(UTC) + timedelta(minutes=1)

    def test_a_compacted_topic_has_holes_and_is_read_whole(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1, cleanup="compact", segment_bytes=1_024, dirty_ratio=0.01)
        for first in range(0, 400, 20):  # each call an append, so that there are segments
            gq.publish_many("t", [(f"k{number % 4}", b"%05d" % number) for number in range(first, first + 20)])
        while len(found := list(gq.read("t"))) > 100:
            pass
        rows = source.rows(subscribe="t")
        assert [row["offset"] for row in rows][-4:] == [396, 397, 398, 399]
        assert len(rows) <= len(found)

    def test_only_the_columns_that_are_asked_for_are_read(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 3)
        assert source.rows(subscribe="t", columns="offset,topic") == [{"offset": n, "topic": "t"} for n in range(3)]
        mine = StructType([StructField("offset", LongType(), nullable=False), StructField("key", BinaryType())])
        assert source.rows(mine, subscribe="t") == [{"offset": n, "key": None} for n in range(3)]

    @pytest.mark.parametrize("ddl", [("nothing", BinaryType()), ("key", LongType())])
    def test_a_column_that_is_none_is_refused(self, gq: Client, source: Source, ddl: tuple[str, Any]) -> None:
        publish(gq, "t", 3)
        with pytest.raises(InvalidConfig, match=ddl[0]):
            source.rows(StructType([StructField(*ddl)]), subscribe="t")

    def test_values_become_typed_columns(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        gq.publish("t", {"id": 5, "name": "ann"})
        gq.publish("t", b"no json")
        rows = source.rows(subscribe="t", valueSchema="id long, name string", columns="offset,id,name,_corrupt")
        assert rows == [
            {"offset": 0, "id": 5, "name": "ann", "_corrupt": None},
            {"offset": 1, "id": None, "name": None, "_corrupt": b"no json"},
        ]

    def test_an_empty_topic_has_none(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=3)
        assert source.rows(subscribe="t") == []
        assert source.read(source.reader(subscribe="t"), [InputPartition(None)]) == []

    def test_several_topics_can_be_read(self, gq: Client, source: Source) -> None:
        for topic in ("a.1", "a.2", "b.1"):
            publish(gq, topic, 2)
        assert [row["topic"] for row in source.rows(subscribe="b.1,a.1")] == ["a.1", "a.1", "b.1", "b.1"]
        assert {row["topic"] for row in source.rows(subscribePattern=r"a\..*")} == {"a.1", "a.2"}
        assert source.rows(subscribePattern="a") == []

    def test_partitions_can_be_chosen(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 9, partitions=3)
        assert {row["partition"] for row in source.rows(assign='{"t": [0, 2]}')} == {0, 2}
        with pytest.raises(PartitionNotFound):
            source.rows(assign='{"t": [3]}')


class TestRanges:
    def test_offsets_are_kept(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 20, partitions=2)
        rows = source.rows(
            subscribe="t", startingOffsets='{"t": {"0": 4, "1": -2}}', endingOffsets='{"t": {"0": 6, "1": -1}}'
        )
        assert [(row["partition"], row["offset"]) for row in rows] == [(0, 4), (0, 5), *((1, n) for n in range(10))]

    @pytest.mark.parametrize(
        "options",
        [
            {"startingOffsets": '{"t": {"0": 11}}'},
            {"endingOffsets": '{"t": {"0": 11}}'},
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
        ],
    )
    def test_offsets_outside_of_the_log_are_an_error(self, gq: Client, source: Source, options: dict[str, str]) -> None:
        publish(gq, "t", 10)
        with pytest.raises(DataLost, match="t-0"):
            source.rows(subscribe="t", **options)
        assert len(source.rows(subscribe="t", failOnDataLoss="false", **options)) in (0, 10)

    def test_times_are_kept(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=2)
        stamps = [gq.publish("t", str(number), partition=number % 2).timestamp for number in range(6)]
        from_third = source.rows(subscribe="t", startingTimestamp=stamps[2].isoformat())
        assert {row["value"] for row in from_third} == {b"2", b"3", b"4", b"5"}
        between = source.rows(
            subscribe="t", startingTimestamp=stamps[2].isoformat(), endingTimestamp=stamps[4].isoformat()
        )
        assert {row["value"] for row in between} == {b"2", b"3"}
        assert source.rows(subscribe="t", endingTimestamp=stamps[0].isoformat()) == []
        backwards = {"startingTimestamp": stamps[4].isoformat(), "endingTimestamp": stamps[2].isoformat()}
        assert source.rows(subscribe="t", **backwards) == []
        assert source.rows(subscribe="t", startingTimestamp="2039-01-01T00:00:00Z") == []

    def test_what_is_published_after_the_plan_is_not_read(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 5)
        reader = source.reader(subscribe="t")
        partitions = reader.partitions()
        publish(gq, "t", 5)
        assert len(source.read(reader, partitions)) == 5

    def test_a_group_says_where_to_begin_and_is_not_moved(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 20, partitions=2)
        gq.commit_group("g", {("t", 0): 7})
        rows = source.rows(subscribe="t", group="g")
        assert [row["offset"] for row in rows if row["partition"] == 0] == [7, 8, 9]
        assert len(rows) == 13
        assert len(source.rows(subscribe="t", group="g", startingOffsets="earliest")) == 20
        assert len(source.rows(subscribe="t", group="nobody")) == 20
        assert {one.partition: one.offset for one in gq.group_positions("g")}[0] == 7

    def test_small_ranges_share_a_task(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 40, partitions=4)
        assert source.planned(subscribe="t") == [[("t", partition, 0, 10) for partition in range(4)]]

    def test_large_ranges_are_cut(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 3_000, size=100)
        tasks = source.planned(subscribe="t", maxBytesPerPartition="64k")
        assert len(tasks) >= 3_000 * 134 // 65_536
        assert tasks[0][0][2] == 0
        assert [one[2] for task in tasks[1:] for one in task] == [one[3] for task in tasks[:-1] for one in task]
        sizes = [one[3] - one[2] for task in tasks for one in task]
        assert max(sizes) * 134 < 100_000
        rows = source.rows(subscribe="t", maxBytesPerPartition="64k", columns="offset")
        assert [row["offset"] for row in rows] == list(range(3_000))

    def test_so_many_tasks_as_asked_for(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 30, partitions=3)
        assert len(source.planned(subscribe="t", minPartitions="7")) == 7
        rows = source.rows(subscribe="t", minPartitions="7", columns="partition,offset")
        assert [(row["partition"], row["offset"]) for row in rows] == [(p, n) for p in range(3) for n in range(10)]
        assert len(source.planned(subscribe="t", minPartitions="1000")) == 30


class TestFilters:
    def pushed(self, source: Source, *filters: Filter, **options: str) -> list[Row]:
        reader = source.reader(filterPushdown="true", **options)
        assert isinstance(reader, PushdownReader)
        assert reader.pushFilters(list(filters)) == list(filters)
        return source.read(reader)

    def test_they_become_ranges(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 30, partitions=3)
        rows = self.pushed(
            source,
            In(("partition",), (0, 2)),
            GreaterThanOrEqual(("offset",), 8),
            Not(EqualTo(("offset",), 9)),
            subscribe="t",
        )
        assert [(row["partition"], row["offset"]) for row in rows] == [(0, 8), (0, 9), (2, 8), (2, 9)]
        assert self.pushed(source, EqualTo(("topic",), "other"), subscribe="t") == []

    def test_times_become_ranges(self, gq: Client, source: Source) -> None:
        gq.create_topic("t", partitions=1)
        stamps = [gq.publish("t", str(number)).timestamp for number in range(6)]
        rows = self.pushed(
            source, GreaterThanOrEqual(("timestamp",), stamps[2]), LessThan(("timestamp",), stamps[4]), subscribe="t"
        )
        assert [row["value"] for row in rows] == [b"2", b"3"]

    def test_spark_refuses_readers_that_take_filters_unless_told(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 3)
        reader = source.reader(subscribe="t")
        assert type(reader) is GoQueueReader
        assert GoQueueReader.pushFilters is DataSourceReader.pushFilters

    def test_end_to_end_they_are_the_same_rows(self, gq: Client, source: Source, spark: "SparkSession") -> None:
        publish(gq, "t", 30, partitions=3)
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = spark.read.format("goqueue").option("server", source.address).option("filterPushdown", "true")
            found = (
                frame.option("subscribe", "t")
                .load()
                .where("partition = 1 and offset >= 7 and timestamp > '2020-01-01'")
            )
            assert sorted(row.offset for row in found.select("offset").collect()) == [7, 8, 9]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


class TestLosses:
    def test_retention_before_the_plan_is_an_error_that_names_the_offsets(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 500, segment_bytes=1_024, retention_bytes=4_096)
        wait_until_retention_is_done(gq, "t", 400)
        asked = {"subscribe": "t", "startingOffsets": '{"t": {"0": 5}}'}
        with pytest.raises(DataLost, match=r"data lost: offsets 5 to \d+ of t-0 are gone, its log begins at \d+"):
            source.rows(**asked)
        rows = source.rows(**asked, failOnDataLoss="false")
        assert [row["offset"] for row in rows] == list(range(400, 500))
        assert source.rows(subscribe="t") == rows

    def test_retention_between_plan_and_read_is_an_error_too(
        self, gq: Client, source: Source, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 500, segment_bytes=1_024)
        strict, tolerant = source.reader(subscribe="t"), source.reader(subscribe="t", failOnDataLoss="false")
        partitions = strict.partitions()
        gq.alter_topic("t", retention_bytes=4_096)
        wait_until_retention_is_done(gq, "t", 400)
        with pytest.raises(DataLost, match="offsets 0 to"):
            source.read(strict, partitions)
        rows = source.read(tolerant, partitions)
        assert rows[-1]["offset"] == 499
        assert len(rows) < 500
        assert "data lost: offsets 0 to" in caplog.text

    def test_a_topic_that_is_deleted_before_it_is_read_is_an_error(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 5)
        reader, tolerant = source.reader(subscribe="t"), source.reader(subscribe="t", failOnDataLoss="false")
        partitions = reader.partitions()
        gq.delete_topic("t")
        with pytest.raises(DataLost, match="topic t was deleted"):
            source.read(reader, partitions)
        assert source.read(tolerant, partitions) == []

    def test_a_topic_that_is_made_again_is_not_taken_for_the_old_one(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 5)
        reader = source.reader(subscribe="t")
        partitions = reader.partitions()
        gq.delete_topic("t")
        publish(gq, "t", 9)
        with pytest.raises(DataLost, match="topic t was deleted and created again"):
            source.read(reader, partitions)

    def test_a_log_that_ends_too_early_is_an_error(self, gq: Client, source: Source) -> None:
        publish(gq, "t", 5)
        reader = source.reader(subscribe="t")
        (partition,) = reader.partitions()
        (planned,) = partition.value
        longer = Ranges([planned._replace(range=planned.range._replace(end=9))], None)
        with pytest.raises(DataLost, match="t-0 is to be read to 9, but ends at 5"):
            source.read(reader, [longer])
        beyond = Ranges([planned._replace(range=planned.range._replace(start=7, end=9))], None)
        with pytest.raises(DataLost, match="t-0 is to be read to 9, but ends at"):
            source.read(reader, [beyond])

    def test_a_missing_topic_is_named(self, gq: Client, source: Source) -> None:
        with pytest.raises(TopicNotFound, match="nope"):
            source.rows(subscribe="nope")

    def test_a_broker_that_goes_away_in_between_costs_a_pause(self, tmp_path: Path) -> None:
        with EmbeddedBroker(http=False, data=tmp_path) as first:
            address = first.address
            with Client(address) as gq:
                publish(gq, "t", 100)
            source = Source(address)
            reader = source.reader(subscribe="t")
            partitions = reader.partitions()
        with ThreadPoolExecutor() as threads:
            rows = threads.submit(source.read, reader, partitions)
            with EmbeddedBroker(http=False, data=tmp_path, native=address):
                assert len(rows.result()) == 100
                Link(address, "").close()


class TestFiles:
    def test_rows_are_the_same_from_files(self, gq: Client, source: Source, shared_broker: EmbeddedBroker) -> None:
        expected = publish_all_kinds(gq, "kinds")
        asked = {"subscribe": "kinds", "includeHeaders": "true", "readFrom": "files", "dataDir": shared_broker.data}
        assert shown(source.rows(**asked)) == expected
        due = source.rows(**asked, delayed="due")
        assert shown(due) == [row for row in expected if row["deliver_at"] is None]

    def test_transactions_are_the_same_from_files(
        self, gq: Client, source: Source, shared_broker: EmbeddedBroker
    ) -> None:
        gq.create_topic("t", partitions=1, segment_bytes=1_024)
        for number in range(30):
            if number % 3:
                with gq.transaction("one") as transaction:
                    transaction.publish("t", b"%0100d" % number, partition=0)
            else:
                publish_and_abort(gq, "t", b"%0100d" % number)
        rows = source.rows(subscribe="t", readFrom="files", dataDir=shared_broker.data)
        assert [int(row["value"]) for row in rows] == [number for number in range(30) if number % 3]

    def test_values_that_their_producer_compressed_are_unpacked_from_broker_and_files(
        self, gq: Client, source: Source, shared_broker: EmbeddedBroker
    ) -> None:
        gq.create_topic("t", partitions=1, segment_bytes=2_048)
        expected = [b"%02d" % (number % 100) * 500 for number in range(60)]
        with gq.producer(compression="lz4") as producer:
            for number, value in enumerate(expected):
                producer.send("t", value, partition=0)
                producer.flush()
                if number == 20:
                    publish_and_abort(gq, "t", b"aborted")
        assert any(part.flags & Flags.COMPRESSED for part in gq.scan("t", 0, 0, 60))
        for place in ({}, {"readFrom": "files", "dataDir": shared_broker.data}):
            assert [row["value"] for row in source.rows(subscribe="t", columns="value", **place)] == expected

    @pytest.mark.parametrize("is_files", [False, True])
    def test_damage_is_an_error_that_names_the_offsets_unless_it_may_be_passed_over(
        self,
        gq: Client,
        source: Source,
        shared_broker: EmbeddedBroker,
        caplog: pytest.LogCaptureFixture,
        is_files: bool,
    ) -> None:
        gq.create_topic("t", partitions=1, segment_bytes=1_024)
        for number in range(100):
            gq.publish("t", b"value-%03d" % number)
        flip(shared_broker.data, "t", b"value-007")
        asked = {"subscribe": "t", "columns": "value"}
        if is_files:
            asked |= {"readFrom": "files", "dataDir": shared_broker.data}

        with pytest.raises(DataLost, match="offset 7 of t/0 cannot be read"):
            source.rows(**asked)
        rows = source.rows(**asked, failOnDataLoss="false")

        assert [row["value"] for row in rows] == [b"value-%03d" % number for number in range(100) if number != 7]
        assert [one.message for one in caplog.records if "offset 7 of t/0" in one.message]

    def test_a_value_that_cannot_be_decompressed_may_be_passed_over_too(
        self, gq: Client, source: Source, caplog: pytest.LogCaptureFixture
    ) -> None:
        gq.create_topic("t", partitions=1)
        publish_with_broken_value(gq, "t", good=20, at=7)

        with pytest.raises(CorruptRecord, match="t/0, at offset 7"):
            source.rows(subscribe="t")
        rows = source.rows(subscribe="t", failOnDataLoss="false")

        assert [row["value"] for row in rows] == [b"value-%d" % number for number in range(20)]
        assert [row["offset"] for row in rows] == [*range(7), *range(8, 21)]
        assert [one.message for one in caplog.records if "offset 7 of t/0" in one.message]

    def test_what_retention_takes_from_the_files_after_the_plan_is_not_passed_over(
        self, gq: Client, source: Source, shared_broker: EmbeddedBroker
    ) -> None:
        publish(gq, "t", 500, segment_bytes=1_024)
        asked = {"subscribe": "t", "readFrom": "files", "dataDir": shared_broker.data}
        strict, tolerant = source.reader(**asked), source.reader(**asked, failOnDataLoss="false")
        partitions = strict.partitions()
        gq.alter_topic("t", retention_bytes=4_096)
        wait_until_retention_is_done(gq, "t", 400)
        first = Path(shared_broker.data, "topics", "t", "0", "log", f"{0:020d}.log")
        while first.exists():
            gq.topics()
        with pytest.raises(DataLost, match="offsets 0 to"):
            source.read(strict, partitions)
        assert [row["offset"] for row in source.read(tolerant, partitions)] == list(range(400, 500))

    def test_a_topic_of_the_same_name_in_a_directory_of_somebody_else_is_not_believed(
        self, gq: Client, source: Source
    ) -> None:
        publish(gq, "t", 200, segment_bytes=1_024)
        with EmbeddedBroker(http=False) as other, Client(other.address) as theirs:
            publish(theirs, "t", 200, size=30, segment_bytes=1_024)
            rows = source.rows(subscribe="t", readFrom="files", dataDir=other.data)
        assert [row["value"] for row in rows] == [b"%020d" % number for number in range(200)]

    def test_a_directory_of_somebody_else_is_not_believed_and_told_of(
        self, gq: Client, source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 200, segment_bytes=1_024)
        for _ in range(2):
            assert len(source.rows(subscribe="t", readFrom="files", dataDir=str(tmp_path))) == 200
        assert [record.getMessage() for record in caplog.records] == [
            f"dataDir={tmp_path}: it is not the data directory of the broker that has t; "
            "reading from the broker instead"
        ]

    def test_a_directory_that_is_not_there_is_told_of(
        self, gq: Client, source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(gq, "t", 200, segment_bytes=1_024)
        missing = tmp_path / "slip"
        assert len(source.rows(subscribe="t", readFrom="files", dataDir=str(missing))) == 200
        (record,) = caplog.records
        assert record.getMessage().startswith(f"dataDir={missing}: there is no such directory; ")


class TestWhatTheUserSees:
    def text(self, spark: "SparkSession", **options: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark makes of it
            spark.read.format("goqueue").options(**options).load().collect()
        return str(caught.value)

    def test_an_error_is_one_short_sentence(self, gq: Client, source: Source, spark: "SparkSession") -> None:
        publish(gq, "t", 500, segment_bytes=1_024)
        for options, said in (
            (
                {"subscribe": "t", "startingOfsets": "earliest"},
                "unknown option startingofsets: did you mean startingOffsets?",
            ),
            ({"subscribe": "t", "columns": "key,nothing"}, "columns = 'nothing': must be of key, value"),
            ({"subscribe": "nope"}, "topic not found: nope"),
            ({"subscribe": "t", "server": "127.0.0.1:1"}, "cannot connect to 127.0.0.1:1"),
            ({"subscribe": "t", "startingOffsets": '{"t": {"0": 900}}'}, "t-0 is to be read from 900, but ends at 500"),
        ):
            asked_at_s = monotonic()
            text = self.text(spark, **({"server": source.address} | options))
            assert monotonic() - asked_at_s < ERROR_S
            assert said in text.splitlines()[0]
            assert len(text.splitlines()) <= 3
            assert "Traceback" not in text

    def test_an_error_in_a_task_is_one_short_sentence(self, gq: Client, source: Source, spark: "SparkSession") -> None:
        publish(gq, "t", 500, segment_bytes=1_024)
        frame = spark.read.format("goqueue").option("server", source.address).option("subscribe", "t").load()
        frame.rdd  # noqa: B018 - plans the read
        gq.delete_topic("t")
        with pytest.raises(Exception) as caught:  # noqa: PT011
            frame.collect()
        text = str(caught.value)
        assert re.search(r"data lost: topic t was deleted|topic not found: t", text)
        assert "Traceback" not in text
        assert len(text.splitlines()) <= 5
