"""The sink: tasks and drivers that die, come back or linger write each row once; first by hand, then through Spark."""

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from goqueue.client.sync import Client
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InvalidConfig,
    InvalidRequest,
    ProducerFenced,
    TopicNotFound,
    TransactionAborted,
)
from goqueue.spark.sink import BATCH_ID, QUERY_ID, GoQueueStreamWriter, GoQueueWriter, Staged
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

TIMEOUT_S = 60
VALUE = StructType([StructField("value", StringType())])
IN_2100 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def t(client: Client) -> str:
    client.create_topic("t", partitions=2)
    return "t"


def until(fact: Callable[[], object]) -> None:
    for _ in range(2_000_000):
        if fact():
            return
    raise AssertionError("it never was so")


def values(client: Client, topic: str = "t") -> list[str]:
    return sorted(message.value.decode() for message in client.read(topic))


# --- by hand ------------------------------------------------------------------------------------


@contextmanager
def task(*, partition: int = 0, query: str | None = "q", batch: int | None = 0) -> Iterator[None]:
    """What Spark tells a task."""
    properties = {QUERY_ID: query, BATCH_ID: None if batch is None else str(batch)}
    TaskContext._setTaskContext(None)
    TaskContext(
        partitionId=partition,
        attemptNumber=0,
        localProperties={name: value for name, value in properties.items() if value is not None},
    )
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def stream(broker: EmbeddedBroker, **options: str) -> GoQueueStreamWriter:
    return GoQueueStreamWriter({"server": broker.address, "topic": "t", **options}, VALUE)


def batch_of(*rows: str) -> Any:
    return pa.record_batch({"value": list(rows)}, schema=pa.schema([("value", pa.string())]))


def write(writer: GoQueueStreamWriter | GoQueueWriter, *rows: str, **told: Any) -> Staged:
    with task(**told):
        staged: Staged = pickle.loads(pickle.dumps(writer)).write(iter([batch_of(*rows)]))
        return pickle.loads(pickle.dumps(staged))  # type: ignore[no-any-return]


def test_a_batch_is_seen_when_it_is_committed_and_not_before(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    staged = [write(writer, "a", "b"), write(writer, "c", partition=1), write(writer, partition=2)]
    assert values(client) == []
    assert [one.owner and one.owner.transactional_id for one in staged] == ["spark/q/0", "spark/q/1", None]

    writer.commit(list(staged), 0)
    assert values(client) == ["a", "b", "c"]


def test_a_batch_that_was_committed_is_not_written_again(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    writer.commit([write(writer, "a")], 0)

    again = write(writer, "a")
    assert again.owner is None
    writer.commit([again], 0)
    assert values(client) == ["a"]

    writer.commit([write(writer, "b", batch=1)], 1)
    writer.commit([write(writer, "other", query="r")], 0)
    assert values(client) == ["a", "b", "other"]
    assert client.transactions() == []


def test_a_broker_remembers_the_last_batch_of_a_query_and_none_before_it(
    broker: EmbeddedBroker, client: Client
) -> None:
    writer = stream(broker)
    for number in range(3):
        writer.commit([write(writer, "a", batch=number)], number)

    remembered = []
    for number in range(3):
        with client.stage("whoever", marker=f"spark/q/{number}") as staging:
            remembered.append(staging.already_committed)
    assert remembered == [False, False, True]


def test_rows_that_are_written_already_are_not_even_asked_for(broker: EmbeddedBroker) -> None:
    writer = stream(broker)
    writer.commit([write(writer, "a")], 0)

    def rows() -> Iterator[Any]:
        yield batch_of("a")
        raise AssertionError("more was asked for")

    with task():
        assert writer.write(rows()).owner is None


def test_a_commit_that_is_repeated_is_recognised(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    messages: list[WriterCommitMessage | None] = [write(writer, "a"), write(writer, "b", partition=1)]
    writer.commit(messages, 0)
    writer.commit(messages, 0)
    writer.abort(messages, 0)  # as Spark does when it did not hear of the commit
    assert values(client) == ["a", "b"]


def test_a_second_attempt_takes_the_place_of_the_first(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    first = write(writer, "first")
    second = write(writer, "second")
    with pytest.raises(ProducerFenced):
        writer.commit([first], 0)
    writer.commit([second], 0)
    assert values(client) == ["second"]


def test_two_drivers_of_one_query_commit_a_batch_once(broker: EmbeddedBroker, client: Client) -> None:
    """The old one has staged other tasks than the new one, so that none of them is fenced."""
    old, new = stream(broker), stream(broker)
    of_old = [write(old, "a", partition=0), write(old, "b", partition=1)]
    of_new = [write(new, "a", partition=2), write(new, "b", partition=3)]
    new.commit(list(of_new), 0)
    old.commit(list(of_old), 0)
    assert values(client) == ["a", "b"]
    assert client.transactions() == []


def test_an_abort_ends_what_is_known_and_minds_no_gaps(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    writer.abort([None, None], 0)
    writer.abort([], 0)
    writer.abort([None, write(writer, "a"), None], 0)
    assert client.transactions() == []
    again = stream(broker)
    again.commit([write(again, "a")], 0)
    assert values(client) == ["a"]


def test_an_abort_without_a_broker_is_left_to_the_timeout(broker: EmbeddedBroker) -> None:
    staged = write(stream(broker), "a")
    broker.stop()
    gone = GoQueueStreamWriter({"server": "127.0.0.1:1", "topic": "t"}, VALUE)
    gone.abort([staged], 0)
    broker.start()


def test_a_batch_of_nothing_asks_nobody(broker: EmbeddedBroker) -> None:
    gone = GoQueueStreamWriter({"server": "127.0.0.1:1", "topic": "t"}, VALUE)
    staged = write(gone)
    assert staged.owner is None
    gone.commit([staged, None], 0)


def test_a_task_that_fails_leaves_nothing_open(broker: EmbeddedBroker, client: Client) -> None:
    def rows() -> Iterator[Any]:
        yield batch_of("a")
        raise ZeroDivisionError

    with task(), pytest.raises(ZeroDivisionError):
        stream(broker).write(rows())
    assert client.transactions() == []


def test_a_write_that_takes_too_long_is_told_why(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker, transactionTimeout="10ms")
    staged = write(writer, "a")
    while client.transactions():
        pass
    with pytest.raises(TransactionAborted) as refused:
        writer.commit([staged], 0)
    assert "transactionTimeout, which is 10ms" in refused.value.__notes__[0]


def test_what_a_task_has_staged_lives_as_long_as_another_task_of_its_write_runs(
    broker: EmbeddedBroker, client: Client
) -> None:
    """The first has ended; the second waits for its first row, and then for more, much longer than the timeout."""
    writer = stream(broker, transactionTimeout="150ms")
    first = write(writer, "a")
    (open_one,) = client.transactions()

    def is_kept_for(span_ms: int) -> bool:
        (info, *_) = client.transactions()
        assert info.transaction_id == open_one.transaction_id
        return info.updated_at_ns - open_one.started_at_ns > span_ms * 10**6

    def rows() -> Iterator[Any]:
        until(lambda: is_kept_for(450))
        yield batch_of("b")
        until(lambda: is_kept_for(900))
        yield batch_of("c")

    with task(partition=1):
        second = writer.write(rows())
    writer.commit([first, second], 0)
    assert values(client) == ["a", "b", "c"]


def test_what_a_dead_task_has_staged_ends_with_its_timeout(broker: EmbeddedBroker, client: Client) -> None:
    write(stream(broker, transactionTimeout="100ms"), "a")
    client.publish("t", "b", partition=0)
    client.publish("t", "b", partition=1)
    until(lambda: values(client) == ["b", "b"])


def test_a_driver_aborts_all_of_its_tasks_if_none_of_them_has_reported(
    broker: EmbeddedBroker, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    batch = batch_writer(broker, transactionalId="job", marker="1")
    for number in range(3):
        write(batch, "a", partition=number)
        write(stream(broker), "a", partition=number, query="another")
        write(stream(broker, transactionalId="mine"), "a", partition=number)
    opened = stream(broker, checkpointLocation=f"file://{tmp_path}")
    for number in range(3):
        write(opened, "a", partition=number)

    batch.abort([None, None, None])
    stream(broker, checkpointLocation=str(tmp_path)).abort([None, None], 0)
    stream(broker, transactionalId="mine").abort([], 0)

    assert {one.transactional_id.rpartition("/")[0] for one in client.transactions()} == {"spark/another"}
    with pytest.raises(TransactionAborted, match="replaced"):
        write(opened, "late", partition=7)


@pytest.mark.parametrize("checkpoint", [None, "s3a://bucket/checkpoint", "/nowhere/at/all"])
def test_an_abort_that_cannot_tell_its_query_leaves_it_to_the_timeout(
    broker: EmbeddedBroker, client: Client, checkpoint: str | None
) -> None:
    options = {} if checkpoint is None else {"checkpointLocation": checkpoint}
    write(stream(broker, **options), "a")
    stream(broker, **options).abort([None], 0)
    assert len(client.transactions()) == 1


def test_a_query_that_starts_again_aborts_all_of_its_earlier_run(broker: EmbeddedBroker, client: Client) -> None:
    old, new = stream(broker), stream(broker)
    staged = [write(old, "old", partition=number) for number in range(4)]

    writer_commit = [write(new, "new")]
    assert [one.transactional_id for one in client.transactions()] == ["spark/q/0"]
    with pytest.raises(TransactionAborted, match="replaced"):
        write(old, "old", partition=4)  # which is late
    with pytest.raises((ProducerFenced, TransactionAborted)):
        old.commit(list(staged), 0)
    new.commit(list(writer_commit), 0)
    assert values(client) == ["new"]


def test_a_batch_write_that_starts_again_aborts_its_earlier_run_even_with_nothing_to_write(
    broker: EmbeddedBroker, client: Client
) -> None:
    old = batch_writer(broker, transactionalId="job", marker="1")
    write(old, "old")
    write(old, "old", partition=1)
    batch_writer(broker, transactionalId="job", marker="1")
    assert client.transactions() == []


def test_a_commit_ends_attempts_that_spark_did_not_wait_for(broker: EmbeddedBroker, client: Client) -> None:
    writer = stream(broker)
    staged = write(writer, "a")
    write(writer, "a speculative one", partition=1)
    writer.commit([staged], 0)
    assert client.transactions() == []
    assert values(client) == ["a"]


def test_the_option_names_the_transactions_but_the_marker_stays_with_the_query(
    broker: EmbeddedBroker, client: Client
) -> None:
    writer = stream(broker, transactionalId="mine")
    staged = write(writer, "a")
    assert staged.owner is not None
    assert staged.owner.transactional_id == "mine/0"
    writer.commit([staged], 0)
    other = stream(broker, transactionalId="mine")
    other.commit([write(other, "b", query="with a new checkpoint")], 0)
    assert values(client) == ["a", "b"]


@pytest.mark.parametrize(("told", "missing"), [({"query": None}, QUERY_ID), ({"batch": None}, BATCH_ID)])
def test_a_spark_that_does_not_tell_query_and_batch_is_refused(
    broker: EmbeddedBroker, told: Mapping[str, Any], missing: str
) -> None:
    with pytest.raises(InvalidConfig, match=missing):
        write(stream(broker), "a", **told)


def test_a_batch_number_that_is_not_that_of_the_commit_is_a_bug(broker: EmbeddedBroker) -> None:
    writer = stream(broker)
    staged = write(writer, "a", batch=3)
    with pytest.raises(AssertionError, match="but the batch is 4"):
        writer.commit([staged], 4)


def test_a_missing_topic_is_told(broker: EmbeddedBroker, client: Client) -> None:
    with pytest.raises(TopicNotFound, match="nope"):
        write(stream(broker, topic="nope"), "a")
    assert client.transactions() == []
    assert client.topics() == ["t"]


def test_a_rate_needs_one_task(broker: EmbeddedBroker) -> None:
    writer = stream(broker, rate="1000")
    assert write(writer, "a").owner is not None
    assert write(writer, partition=1).owner is None
    with pytest.raises(InvalidConfig, match=r"coalesce\(1\)"):
        write(writer, "a", partition=1)


def batch_writer(broker: EmbeddedBroker, **options: str) -> GoQueueWriter:
    return GoQueueWriter({"server": broker.address, "topic": "t", **options}, VALUE, False)


def test_a_batch_write_is_once_per_marker(broker: EmbeddedBroker, client: Client) -> None:
    for marker, owned in (("1", True), ("1", False), ("2", True), ("2", False)):
        writer = batch_writer(broker, transactionalId="job", marker=marker)
        staged = write(writer, marker, query=None, batch=None)
        assert (staged.owner is not None) is owned
        writer.commit([staged])
    other = batch_writer(broker, transactionalId="another job", marker="1")
    other.commit([write(other, "3")])
    assert values(client) == ["1", "2", "3"]


def test_a_batch_write_without_a_name_says_what_it_does_not_promise(
    broker: EmbeddedBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "goqueue.spark"):
        nameless, unmarked = batch_writer(broker), batch_writer(broker, transactionalId="job")
        batch_writer(broker, transactionalId="job", marker="1")
    assert ["at-least-once" in caplog.messages[0], "once per run" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2

    messages: list[WriterCommitMessage | None] = [write(nameless, "a"), write(nameless, "b", partition=1)]
    nameless.commit(messages)
    nameless.commit(messages)
    unmarked.commit([write(unmarked, "c")])
    again = batch_writer(broker, transactionalId="job")
    again.commit([write(again, "c")])
    assert values(client) == ["a", "b", "c", "c"]


def test_what_cannot_be_is_told_when_it_is_planned(broker: EmbeddedBroker) -> None:
    options = {"server": broker.address, "topic": "t"}
    with pytest.raises(InvalidRequest, match='use mode\\("append"\\)'):
        GoQueueWriter(options, VALUE, True)
    with pytest.raises(TopicNotFound, match="nope"):
        batch_writer(broker, topic="nope")
    with pytest.raises(BrokerUnavailable, match="cannot connect"):
        batch_writer(broker, server="127.0.0.1:1")
    with pytest.raises(InvalidConfig, match="needs a transactionalId"):
        batch_writer(broker, marker="m")
    with pytest.raises(InvalidConfig, match="is for batch writes"):
        stream(broker, marker="m", transactionalId="x")
    with pytest.raises(GoQueueError, match="unknown column a"):
        GoQueueStreamWriter(options, StructType([*VALUE, StructField("a", StringType())]))


# --- through Spark ------------------------------------------------------------------------------


def to_topic(frame: "DataFrame", broker: EmbeddedBroker, **options: str) -> "DataFrameWriter":
    return frame.write.format("goqueue").mode("append").options(**{"server": broker.address, "topic": "t", **options})


def test_a_data_frame_arrives_with_all_that_it_says(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client
) -> None:
    client.create_topic("other", partitions=3)
    rows = [
        ("t", 1, bytearray(b"\xff\x00"), "k", {"a": "1", "b": "2"}, "critical", None),
        ("other", 2, None, "dead", None, None, None),
        ("other", 2, bytearray(b""), None, {}, "LOW", None),
        (None, 0, bytearray(b"later"), None, {"c": "ü"}, None, IN_2100),
    ]
    columns = "topic string, partition int, value binary, key string, headers map<string,string>, "
    frame = spark.createDataFrame(rows, columns + "priority string, deliver_at timestamp").coalesce(1)

    to_topic(frame, broker, transactionalId="job", marker="1").save()
    to_topic(frame, broker, transactionalId="job", marker="1").save()

    (message,) = client.read("t")
    assert (message.partition, message.value, message.key) == (1, b"\xff\x00", b"k")
    assert (dict(message.headers), int(message.priority)) == ({"a": "1", "b": "2"}, 0)
    dead, empty = client.read("other", partition=2)
    assert (dead.key, empty.value, empty.key, int(empty.priority)) == (b"dead", b"", None, 3)
    (delayed,) = client.delayed("t")
    assert (delayed.partition, delayed.deliver_at_ns) == (0, int(IN_2100.timestamp()) * 10**9)


def test_columns_become_json(spark: "SparkSession", broker: EmbeddedBroker, client: Client) -> None:
    frame = spark.range(5).selectExpr(
        "cast(id as string) key", "id", "named_struct('half', id / 2D, 'list', array(id, null)) nested"
    )
    to_topic(frame, broker, valueFormat="json").save()
    found = {message.key: json.loads(message.value) for message in client.read("t")}
    assert found == {b"%d" % n: {"id": n, "nested": {"half": n / 2, "list": [n, None]}} for n in range(5)}


def test_many_rows_of_many_tasks_are_there_once(spark: "SparkSession", broker: EmbeddedBroker, client: Client) -> None:
    frame = spark.range(0, 30_000, 1, 4).selectExpr("cast(id as string) value", "cast(id % 100 as string) key")
    to_topic(frame, broker, transactionalId="job", marker="1", compression="lz4").save()
    assert values(client) == sorted(map(str, range(30_000)))
    assert client.transactions() == []


def test_a_job_with_a_task_that_fails_writes_nothing(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client
) -> None:
    failing = "if(id = 7, raise_error('no luck'), cast(id as string)) value"
    with pytest.raises(PySparkException, match="no luck"):
        to_topic(spark.range(0, 10, 1, 2).selectExpr(failing), broker, transactionalId="job", marker="1").save()
    assert values(client) == []

    to_topic(spark.range(0, 10, 1, 2).selectExpr("cast(id as string) value"), broker, transactionalId="job").save()
    assert values(client) == [str(n) for n in range(10)]


def test_what_is_wrong_is_one_sentence(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(AnalysisException, match="unknown option topik: did you mean topic") as refused:
        to_topic(frame, broker, topik="t").save()
    assert "Traceback" not in str(refused.value)
    with pytest.raises(AnalysisException, match="unknown column id") as refused:
        to_topic(spark.range(3), broker).save()
    assert "Traceback" not in str(refused.value)
    with pytest.raises(AnalysisException, match="a topic cannot be overwritten"):
        to_topic(frame, broker).mode("overwrite").save()
    with pytest.raises(PySparkException, match="topic not found: nope"):
        to_topic(frame.selectExpr("value", "'nope' topic"), broker).save()


def copied(spark: "SparkSession", broker: EmbeddedBroker, checkpoint: Path) -> str:
    """Copy what is new from `t` to `out`; the id of the query."""
    source = {"server": broker.address, "subscribe": "t", "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("goqueue")
        .options(**source)
        .load()
        .select("key", "value")
        .writeStream.format("goqueue")
        .options(server=broker.address, topic="out", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    return str(query.id)


def test_a_stream_that_forgot_its_last_commit_does_not_repeat_it(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client, tmp_path: Path
) -> None:
    """As after a crash between our commit and Spark's own note of it; and Spark's names are what we take them for."""
    client.create_topic("out", partitions=2)
    client.publish_many("t", [(f"k{n}", str(n)) for n in range(100)])
    query_id = copied(spark, broker, tmp_path)
    assert values(client, "out") == sorted(map(str, range(100)))
    with client.stage(f"spark/{query_id}/other", marker=f"spark/{query_id}/0") as staging:
        assert staging.already_committed

    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    client.publish("t", "one more")
    assert copied(spark, broker, tmp_path) == query_id

    assert values(client, "out") == sorted(["one more", *map(str, range(100))])
    assert client.transactions() == []


def test_a_query_that_is_stopped_in_a_batch_holds_up_no_reader(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client, tmp_path: Path
) -> None:
    client.create_topic("out", partitions=1)
    client.publish_many("t", [(None, str(n)) for n in range(1_000)])
    query = (
        spark.readStream.format("goqueue")
        .options(server=broker.address, subscribe="t", startingOffsets="earliest")
        .load()
        .select("value")
        .coalesce(1)
        .writeStream.format("goqueue")
        .options(server=broker.address, topic="out", checkpointLocation=str(tmp_path), rate="20")
        .start()
    )
    until(client.transactions)
    query.stop()
    started_ns = monotonic_ns()
    until(lambda: client.transactions() == [])
    assert monotonic_ns() - started_ns < 20 * 10**9  # far from the timeout
