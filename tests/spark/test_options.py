import pickle
import re

import pytest

from goqueue.errors import GoQueueError
from goqueue.spark.options import (
    EARLIEST,
    LATEST,
    OPTIONS,
    DelayedMessages,
    Edge,
    HeadersFormat,
    ReadFrom,
    ReadIsolation,
    SourceOptions,
    Timestamp,
    TopicOffsets,
)

MIB = 1024 * 1024


def parse(**options: str) -> SourceOptions:
    if not options.keys() & {"subscribe", "subscribePattern", "assign"}:
        options["subscribe"] = "orders"
    return SourceOptions.parse({"server": "localhost:7000", **options})


def refusal(**options: str) -> str:
    with pytest.raises(GoQueueError) as caught:
        parse(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_topic_is_all_that_is_needed() -> None:
    assert parse() == SourceOptions(server="localhost:7000", api_key="", subscribe=("orders",))


def test_every_option_is_understood() -> None:
    options = parse(
        server="a:1, b:2",
        apiKey="secret",
        tls="false",
        subscribe="orders, payments",
        startingOffsets="earliest",
        endingTimestamp="2026-11-15T00:00:00Z",
        group="spark",
        maxOffsetsPerTrigger="500000",
        maxBytesPerTrigger="512k",
        minPartitions="4",
        maxBytesPerPartition="16MiB",
        failOnDataLoss="FALSE",
        columns="key, offset",
        filterPushdown="true",
        isolation="read_uncommitted",
        delayed="due",
        readFrom="files",
        dataDir="/data",
        includeHeaders="true",
        headersFormat="MAP",
        valueSchema="id long",
    )
    assert options == SourceOptions(
        server="a:1, b:2",
        api_key="secret",
        subscribe=("orders", "payments"),
        start=Edge.EARLIEST,
        end=Timestamp("2026-11-15T00:00:00Z"),
        group="spark",
        max_offsets_per_trigger=500_000,
        max_bytes_per_trigger=512 * 1024,
        min_partitions=4,
        max_bytes_per_partition=16 * MIB,
        fail_on_data_loss=False,
        columns=("key", "offset"),
        filter_pushdown=True,
        isolation=ReadIsolation.READ_UNCOMMITTED,
        delayed=DelayedMessages.DUE,
        read_from=ReadFrom.FILES,
        data_dir="/data",
        include_headers=True,
        headers_format=HeadersFormat.MAP,
        value_schema="id long",
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_case_of_names_does_not_count() -> None:
    options = SourceOptions.parse({"SUBSCRIBE": "Orders", "startingoffsets": "Earliest", "FAILONDATALOSS": "false"})
    assert options.subscribe == ("Orders",)
    assert options.start is Edge.EARLIEST
    assert not options.fail_on_data_loss


def test_what_is_empty_was_not_given() -> None:
    assert parse(group="", startingOffsets=" ", minPartitions="") == parse()


def test_the_key_is_shown_nowhere() -> None:
    assert "secret" not in repr(parse(apiKey="secret"))
    assert "secret" not in refusal(apiKey="secret", subscribe="")


@pytest.mark.parametrize("name", ["path", "checkpointLocation", "spark.anything"])
def test_options_of_spark_itself_pass(name: str) -> None:
    assert parse(**{name: "x"}) == parse()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("subscribes", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.bootstrap.servers", "server"),
        ("include_headers", "includeHeaders"),
    ],
)
def test_an_unknown_option_is_named_with_the_one_that_was_meant(given: str, meant: str) -> None:
    assert refusal(**{given: "1"}).startswith(f"unknown option {given.lower()}")
    assert meant in refusal(**{given: "1"})


def test_an_option_of_the_sink_is_told_apart() -> None:
    assert refusal(topic="orders") == "unknown option topic: it is an option of the sink"


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"subscribe": "a", "subscribePattern": "b"},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "a", "subscribePattern": "b", "assign": '{"a": [0]}'},
    ],
)
def test_exactly_one_way_to_choose_topics_is_required(chosen: dict[str, str]) -> None:
    with pytest.raises(GoQueueError, match="one of subscribe, subscribePattern and assign is required"):
        SourceOptions.parse(chosen)


def test_offsets_are_json_as_in_kafkas_source() -> None:
    start = parse(startingOffsets='{"orders": {"0": 5, "1": -2, "2": -1}, "b": {"10": 0}}').start
    assert start == TopicOffsets({"orders": {0: 5, 1: EARLIEST, 2: LATEST}, "b": {10: 0}})


def test_partitions_are_assigned_by_json() -> None:
    assert parse(assign='{"orders": [2, 0]}').assign == {"orders": (0, 2)}


def test_an_age_is_counted_from_when_it_is_asked() -> None:
    start = parse(startingTimestamp="2h ago").start
    assert isinstance(start, Timestamp)
    assert start.ns(now_ns=7_200 * 10**9 + 5) == 5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("server", "nowhere"),
        ("server", ","),
        ("server", "host:99999"),
        ("tls", "true"),
        ("tls", "perhaps"),
        ("subscribe", "a,,b"),
        ("subscribe", "a,a"),
        ("subscribePattern", "("),
        ("assign", "[]"),
        ("assign", "{}"),
        ("assign", '{"a": []}'),
        ("assign", '{"a": [0, 0]}'),
        ("assign", '{"a": [-1]}'),
        ("assign", '{"a": [true]}'),
        ("assign", '{"a": ["0"]}'),
        ("assign", '{"a": [0], "a": [1]}'),
        ("startingOffsets", "first"),
        ("startingOffsets", "5"),
        ("startingOffsets", "null"),
        ("startingOffsets", "{}"),
        ("startingOffsets", '{"a": {}}'),
        ("startingOffsets", '{"a": {"0": -3}}'),
        ("startingOffsets", '{"a": {"0": 1.5}}'),
        ("startingOffsets", '{"a": {"0": true}}'),
        ("startingOffsets", '{"a": {"-1": 0}}'),
        ("startingOffsets", '{"a": {"00": 0}}'),
        ("startingOffsets", '{"a": {"0": 0, "0": 1}}'),
        ("startingOffsets", '{"a": {"0": 99999999999999999999}}'),
        ("startingOffsets", '{"": {"0": 0}}'),
        ("startingOffsets", "[" * 100_000),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "2026-11-15 00:00:00"),
        ("startingTimestamp", "1763164800000"),
        ("endingOffsets", "last"),
        ("endingTimestamp", "x"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "1.5"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxOffsetsPerTrigger", "٣"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1.5m"),
        ("maxBytesPerTrigger", "5 parsecs"),
        ("maxBytesPerTrigger", "9" * 50),
        ("minPartitions", "0"),
        ("minPartitions", "100001"),
        ("maxBytesPerPartition", "none"),
        ("failOnDataLoss", "no"),
        ("columns", "key,"),
        ("columns", "key,key"),
        ("filterPushdown", "1"),
        ("isolation", "serializable"),
        ("delayed", "later"),
        ("readFrom", "tape"),
        ("readFrom", "files"),
        ("dataDir", "/data"),
        ("includeHeaders", "yes"),
    ],
)
def test_a_bad_value_is_one_sentence_that_names_the_option(option: str, value: str) -> None:
    text = refusal(**{option: value})
    assert option in text
    assert len(text) < 400


def test_either_offsets_or_a_time() -> None:
    assert "either" in refusal(startingOffsets="earliest", startingTimestamp="2h ago")


@pytest.mark.parametrize("end", [{"endingOffsets": "latest"}, {"endingTimestamp": "2h ago"}])
def test_a_stream_has_no_end(end: dict[str, str]) -> None:
    with pytest.raises(GoQueueError, match="a stream has no end"):
        parse(**end).check_stream()


def test_a_stream_pushes_no_filters() -> None:
    with pytest.raises(GoQueueError, match="filterPushdown"):
        parse(filterPushdown="true").check_stream()


@pytest.mark.parametrize(
    "place",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"a": {"0": -2}}'},
    ],
)
def test_a_batch_that_reads_nothing_is_a_mistake(place: dict[str, str]) -> None:
    with pytest.raises(GoQueueError, match="reads nothing"):
        parse(**place).check_batch()


def test_what_both_can_do_is_fine_for_both() -> None:
    for options in (parse(), parse(startingOffsets="earliest"), parse(startingOffsets='{"a": {"0": -1, "1": 4}}')):
        options.check_batch()
        options.check_stream()


def test_every_option_is_documented_where_users_look() -> None:
    from goqueue.spark import GoQueueDataSource

    documented = GoQueueDataSource.__doc__ or ""
    assert [name for name in OPTIONS if not re.search(rf"  (\w+, )?{name}[ ,]", documented)] == []
