"""Encoded records as Arrow batches: what Spark is given is what a Python client would be."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from goqueue.errors import CorruptRecord, InvalidConfig
from goqueue.names import TopicPartition
from goqueue.record import compression, kernel
from goqueue.record.header import Flags
from goqueue.record.headers import as_text, parse_time, split_headers
from goqueue.record.message import StoredMessage, decode_messages
from goqueue.spark import columns
from goqueue.spark.columns import ROWS_MAX, SPARK_TYPES, BatchMaker, spark_schema

ALL = tuple(SPARK_TYPES)
TIME_NS = 1_700_000_000_123_456_789

texts = st.one_of(st.text(max_size=8), st.sampled_from(["a", "gq-producer", "gq-origin", "ünïcode"]))
headers = st.one_of(
    st.none(),
    st.dictionaries(texts, st.one_of(st.none(), st.text(max_size=8), st.binary(max_size=8)), max_size=4),
    st.builds(lambda at: {"gq-deliver-at": str(at)}, st.integers(0, 2**62)),
)
messages = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=40)),  # value
        st.one_of(st.none(), st.binary(max_size=10)),  # key
        headers,
        st.integers(0, 4),
        st.booleans(),  # whether it is compressed
    ),
    min_size=1,
    max_size=30,
)


def encoded(given_messages: list[tuple[Any, ...]], *, first_offset: int = 0) -> tuple[bytearray, int]:
    """Records as they stand in a log, and their flags."""
    values = [
        compression.compress(value, "zstd") if packed and value is not None else value
        for value, _, _, _, packed in given_messages
    ]
    flags = [Flags.COMPRESSED if packed and value is not None else 0 for value, _, _, _, packed in given_messages]
    records = kernel.encode(
        values,
        keys=[message[1] for message in given_messages],
        headers=[message[2] for message in given_messages],
        priorities=[message[3] for message in given_messages],
        flags=flags,
    )
    return records, kernel.stamp(records, first_offset=first_offset, timestamp=TIME_NS).flags


def plain(*values: bytes | None, **fields: Any) -> tuple[bytearray, int]:
    records = kernel.encode(list(values), **fields)
    return records, kernel.stamp(records, first_offset=0, timestamp=TIME_NS).flags


def rows_of(maker: BatchMaker, records: Any, flags: int) -> list[dict[str, Any]]:
    found = []
    for batch in maker.batches(records, flags):
        batch.validate(full=True)
        assert batch.schema.equals(maker.schema, check_metadata=True)
        found += batch.to_pylist()
    return found


def shown(message: StoredMessage) -> dict[str, Any]:
    """What Spark should show of a message."""
    headers = shown_headers(message)
    deliver_at = parse_time(headers.get("gq-deliver-at") or b"")
    return {
        "key": message.key,
        "value": None if message.tombstone else message.value,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "priority": message.priority_code,
        "deliver_at": None if deliver_at is None else datetime.fromtimestamp(0, UTC) + micro(deliver_at),
        "headers": [{"key": readable(name), "value": value} for name, value in headers.items()],
    }


def shown_headers(message: StoredMessage) -> dict[str, bytes | None]:
    """With those that say how a message was published, but for its producer: archives keep them."""
    headers = {as_text(name): value for name, value in split_headers(message.encoded_headers or b"")}
    headers.pop("gq-producer", None)
    return headers


def micro(time_ns: int) -> Any:
    from datetime import timedelta

    return timedelta(microseconds=time_ns // 1000)


def readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@given(messages)
def test_a_row_is_what_a_python_client_sees(batch):
    records, flags = encoded(batch)
    seen = decode_messages(bytes(records), TopicPartition("orders", 3), flags=flags)

    rows = rows_of(BatchMaker("orders", 3, ALL), records, flags)

    assert rows == [shown(message) for message in seen]


@given(messages)
def test_headers_are_a_map_of_texts_for_those_who_ask_for_that(batch):
    records, flags = encoded(batch)
    seen = decode_messages(bytes(records), TopicPartition("orders", 3), flags=flags)

    rows = rows_of(BatchMaker("orders", 3, ["headers"], has_header_map=True), records, flags)

    assert [dict(row["headers"]) for row in rows] == [
        {
            readable(name): None if value is None else value.decode("utf-8", "replace")
            for name, value in shown_headers(message).items()
        }
        for message in seen
    ]


@given(messages, st.lists(st.sampled_from(ALL), unique=True, min_size=1))
def test_any_choice_of_columns_in_any_order_is_a_part_of_all(batch, names):
    records, flags = encoded(batch)
    every = rows_of(BatchMaker("orders", 3, ALL), records, flags)

    maker = BatchMaker("orders", 3, names)
    rows = rows_of(maker, records, flags)
    rows_of_less = rows_of(maker, kernel.strip(records, *maker.unused_parts), flags)

    assert rows == [{name: row[name] for name in names} for row in every]
    assert all(list(row) == list(names) for row in rows)
    assert rows_of_less == rows


def test_the_schema_is_the_one_that_spark_derives():
    maker = BatchMaker("orders", 0, ALL)

    assert maker.schema.equals(to_arrow_schema(spark_schema(ALL), timezone="UTC"), check_metadata=True)
    assert maker.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_only_what_can_be_null_is_nullable():
    nullable = {field.name for field in spark_schema(include_headers=True) if field.nullable}

    assert nullable == {"key", "value", "deliver_at"}


def test_without_names_there_are_all_columns_but_headers():
    assert spark_schema().fieldNames() == [name for name in ALL if name != "headers"]
    assert spark_schema(include_headers=True).fieldNames() == list(ALL)


def test_typed_columns_stand_in_the_place_of_the_value():
    typed = StructType([StructField("id", IntegerType()), StructField("value", StringType())])

    assert spark_schema(value_fields=typed).fieldNames()[:5] == ["key", "id", "value", "_corrupt", "topic"]
    assert spark_schema(["value"], value_fields=typed)["value"].dataType == StringType()


@pytest.mark.parametrize("names", [["nothing"], ["offset", "offset"], ["_corrupt"], ["Key"]])
def test_a_name_that_is_no_column_or_stands_twice_is_refused(names):
    with pytest.raises(InvalidConfig, match="columns"):
        spark_schema(names)


def test_the_header_of_producers_is_not_shown_whatever_it_holds():
    records, flags = plain(
        b"a", b"b", b"c", headers=[{"gq-producer": b"\xff\x00", "x": "1"}, None, {"y": "2", "gq-producer": "p"}]
    )

    for is_map in (False, True):
        rows = rows_of(BatchMaker("orders", 0, ["headers"], has_header_map=is_map), records, flags)
        assert texts_of(rows) == [[("x", "1")], [], [("y", "2")]]


def texts_of(rows: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """Headers, of either form."""
    return [
        [(pair["key"], pair["value"].decode()) if isinstance(pair, dict) else pair for pair in row["headers"]]
        for row in rows
    ]


def test_a_header_that_stands_twice_is_there_twice_and_in_a_map_the_last_one_counts():
    records, flags = plain(b"a", b"b", headers=[{"x": "1", "y": "2"}, {"x": "3", "y": "4"}])
    twice = bytes(records).replace(b"\x00\x01y", b"\x00\x01x")

    rows = rows_of(BatchMaker("orders", 0, ["headers"]), twice, flags)
    maps = rows_of(BatchMaker("orders", 0, ["headers"], has_header_map=True), twice, flags)

    assert texts_of(rows) == [[("x", "1"), ("x", "2")], [("x", "3"), ("x", "4")]]
    assert texts_of(maps) == [[("x", "2")], [("x", "4")]]


def test_the_bytes_of_a_header_are_kept():
    records, flags = plain(b"a", headers=[{"id": bytes(range(256))}])

    (row,) = rows_of(BatchMaker("orders", 0, ["headers"]), records, flags)

    assert row["headers"] == [{"key": "id", "value": bytes(range(256))}]


def test_headers_of_different_records_may_have_the_same_name():
    records, flags = plain(*[b"v"] * 300, headers=[{"same": str(number)} for number in range(300)])

    rows = rows_of(BatchMaker("orders", 0, ["headers"]), records, flags)

    assert texts_of(rows) == [[("same", str(number))] for number in range(300)]


def test_many_rows_are_cut_into_batches():
    count = 2 * ROWS_MAX + 5
    records, flags = plain(*[b"v"] * count)

    batches = list(BatchMaker("orders", 0, ["offset", "topic"]).batches(records, flags))

    assert [batch.num_rows for batch in batches] == [ROWS_MAX, ROWS_MAX, 5]
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == list(range(count))


def test_large_values_are_cut_into_batches_by_size():
    value = bytes(1024 * 1024)
    records, flags = plain(*[value] * 20)

    batches = list(BatchMaker("orders", 0, ["value"]).batches(records, flags))

    assert [batch.num_rows for batch in batches] == [7, 7, 6]


def test_what_grows_when_it_is_unpacked_is_cut_where_it_has_grown():
    value = bytes(3 * 1024 * 1024)
    packed = compression.compress(value, "lz4")
    records, flags = plain(*[packed] * 5, flags=Flags.COMPRESSED)

    batches = list(BatchMaker("orders", 0, ["offset", "value"]).batches(records, flags))

    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert all(row["value"] == value for batch in batches for row in batch.to_pylist())
    assert [row["offset"] for batch in batches for row in batch.select(["offset"]).to_pylist()] == [0, 1, 2, 3, 4]


def test_what_cannot_be_unpacked_is_named():
    records = kernel.encode([b"fine", b"no frame at all"], flags=[0, Flags.COMPRESSED])
    flags = kernel.stamp(records, first_offset=70, timestamp=TIME_NS).flags

    with pytest.raises(CorruptRecord, match="orders/2, at offset 71"):
        list(BatchMaker("orders", 2, ["value"]).batches(records, flags))


def test_values_that_are_not_wanted_are_not_unpacked():
    records, flags = plain(b"no frame at all", flags=Flags.COMPRESSED)

    assert rows_of(BatchMaker("orders", 2, ["offset"]), records, flags) == [{"offset": 0}]


def test_no_columns_are_rows_all_the_same():
    records, flags = plain(*[b"v"] * (ROWS_MAX + 1))

    assert [batch.num_rows for batch in BatchMaker("orders", 0, []).batches(records, flags)] == [ROWS_MAX, 1]


def test_no_records_make_no_batch():
    assert list(BatchMaker("orders", 0, ALL).batches(b"", 0)) == []


def test_half_a_record_is_an_error():
    records, flags = plain(b"value", b"value")

    with pytest.raises(CorruptRecord):
        list(BatchMaker("orders", 0, ALL).batches(records[:-1], flags))


def test_batches_outlive_the_buffer_they_were_made_from():
    records, flags = plain(b"value", keys=[b"key"])
    (batch,) = BatchMaker("orders", 0, ["key", "value"]).batches(records, flags)

    records[:] = bytes(len(records))

    assert batch.to_pylist() == [{"key": b"key", "value": b"value"}]


def test_constant_columns_grow_with_the_batches():
    maker = BatchMaker("orders", 5, ["topic", "partition"])

    for count in (1, 1000, 10):
        rows = rows_of(maker, *plain(*[b""] * count))
        assert rows == [{"topic": "orders", "partition": 5}] * count


class Upper:
    """Parses nothing; notes what it is given."""

    fields = StructType([StructField("text", StringType())])

    def __init__(self, *, uses_ids: bool) -> None:
        self.uses_ids = uses_ids
        self.ids: list[dict[int, int]] = []

    def parse(self, values, topic, *, ids=None, times_us=None, registry=None):
        self.ids.append(dict(ids or {}))
        shouted = [f"{topic}:{value.decode().upper()}" for value in values.to_pylist()]
        return {"text": pa.array(shouted, pa.string()), "_corrupt": pa.nulls(len(values), pa.binary())}


def test_a_parser_makes_the_columns_of_the_values():
    maker = BatchMaker("orders", 0, ["offset", "text", "_corrupt"], value=Upper(uses_ids=False))

    rows = rows_of(maker, *plain(b"a", b"b"))

    assert rows == [
        {"offset": 0, "text": "orders:A", "_corrupt": None},
        {"offset": 1, "text": "orders:B", "_corrupt": None},
    ]


def test_values_are_not_parsed_if_none_of_their_columns_is_wanted():
    parser = Upper(uses_ids=True)

    assert rows_of(BatchMaker("orders", 0, ["offset"], value=parser), *plain(b"a")) == [{"offset": 0}]
    assert parser.ids == []


def test_a_parser_is_told_which_schemas_the_headers_name():
    parser = Upper(uses_ids=True)
    headers = [{"a": "b", "schema-id": "7"}, None, {"schema-id": "x"}, {"schema-id": "12345678901"}, {"id": "9"}]
    records, flags = plain(*[b"v"] * 5, headers=headers)

    rows_of(BatchMaker("orders", 0, ["text"], value=parser), records, flags)

    assert parser.ids == [{0: 7, 2: -1, 3: -1}]


def test_rows_of_unpacked_values_keep_their_schemas():
    parser = Upper(uses_ids=True)
    packed = compression.compress(b"a" * 5 * 1024 * 1024, "zstd")
    records, flags = plain(packed, packed, flags=Flags.COMPRESSED, headers=[None, {"schema-id": "7"}])

    rows_of(BatchMaker("orders", 0, ["text"], value=parser), records, flags)

    assert parser.ids[0].get(0) is None
    assert parser.ids[1].get(0) == 7


def test_the_kernel_in_python_makes_the_same_batches():
    script = (
        "from tests.spark.test_columns import *\n"
        "records, flags = encoded([(b'v', b'k', {'a': 'b', 'gq-producer': 'x'}, 1, True), (None, b'', None, 2, False),"
        " (b'', None, {'gq-deliver-at': '1700000000000000000'}, 4, False)])\n"
        "print(kernel.IMPLEMENTATION, rows_of(BatchMaker('t', 1, ALL), records, flags))"
    )

    outputs = {
        name: subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"GOQUEUE_KERNEL": name},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("python", "auto")
    }

    assert outputs["python"].startswith("python ")
    assert outputs["python"].partition(" ")[2] == outputs["auto"].partition(" ")[2]


def test_the_types_are_those_of_the_specification():
    types = {name: type.simpleString() for name, type in columns.SPARK_TYPES.items()}

    assert types == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "priority": "int",
        "deliver_at": "timestamp",
        "headers": "array<struct<key:string,value:binary>>",
    }
