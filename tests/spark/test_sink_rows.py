"""Rows become messages, and rows that cannot are refused before anything runs."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from goqueue.errors import InvalidMessage, InvalidRequest
from goqueue.spark.sink_rows import RowReader, TopicMessages

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_NS = 1_794_744_000 * 10**9


def schema(ddl: str) -> StructType:
    """Types by name; Spark's own parser needs a session, so that only simple ones are known here."""
    fields = []
    for part in ddl.split(","):
        name, _, kind = part.strip().partition(" ")
        fields.append(StructField(name, _TYPES[kind]))
    return StructType(fields)


def pairs_type(name: str, key: str, value: str) -> dict[str, object]:
    fields = [{"name": name, "type": key}, {"name": "value", "type": value}]
    element = {"type": "struct", "fields": [field | {"nullable": True, "metadata": {}} for field in fields]}
    return {"type": "array", "elementType": element, "containsNull": True}


_TYPES: dict[str, DataType] = {
    kind: StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType
    for kind, field in {
        name: {"name": "x", "type": text, "nullable": True, "metadata": {}}
        for name, text in {
            "string": "string",
            "binary": "binary",
            "int": "integer",
            "bigint": "long",
            "tinyint": "byte",
            "double": "double",
            "boolean": "boolean",
            "date": "date",
            "timestamp": "timestamp",
            "timestamp_ntz": "timestamp_ntz",
            "decimal": "decimal(10,2)",
            "void": "void",
            "map": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
            "bytemap": {"type": "map", "keyType": "string", "valueType": "binary", "valueContainsNull": True},
            "pairs": pairs_type("key", "string", "binary"),
            "misnamed": pairs_type("name", "string", "binary"),
            "intpairs": pairs_type("key", "string", "integer"),
            "intmap": {"type": "map", "keyType": "integer", "valueType": "string", "valueContainsNull": True},
        }.items()
    }.items()
}


def reader(ddl: str, topic: str | None = "t", *, is_json: bool = False) -> RowReader:
    return RowReader.of(schema(ddl), topic=topic, is_json=is_json)


def only(rows: RowReader, **columns: Any) -> TopicMessages:
    (messages,) = rows.messages(pa.record_batch(columns))
    return messages


# --- what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "match"),
    [
        ("key string", "column value is required"),
        ("value int", "column value must be binary or string, not int"),
        ("value string, key int", "column key must be binary or string, not int"),
        ("value string, topic binary", "column topic must be string, not binary"),
        ("value string, partition string", "column partition must be a whole number, not string"),
        ("value string, priority double", "column priority must be a whole number or a string, not double"),
        ("value string, deliver_at date", "column deliver_at must be timestamp, not date"),
        ("value string, created_at string", "column created_at must be timestamp, not string"),
        ("value string, deliver_at timestamp_ntz", "column deliver_at must be timestamp, not timestamp_ntz"),
        (
            "value string, headers string",
            "array<struct<key: string, value: binary>> or map<string, string>, not string",
        ),
        ("value string, headers misnamed", "column headers must be array<struct<key: string, value: binary>>"),
        ("value string, headers intpairs", "column headers must be array<struct<key: string, value: binary>>"),
        ("value string, headers intmap", "or map<string, string>, not map<int,string>"),
        ("value string, a int", "unknown column a: a message has value, key"),
        ("value string, offset bigint, timestamp timestamp", "unknown columns offset, timestamp"),
        ("value string, VALUE string", "column VALUE is there twice"),
    ],
)
def test_columns_that_do_not_fit_are_named(ddl: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        reader(ddl)


def test_a_topic_has_to_come_from_somewhere() -> None:
    with pytest.raises(InvalidRequest, match="option topic is required"):
        reader("value string", topic=None)
    reader("value string, topic string", topic=None)


@pytest.mark.parametrize(
    "kind", [CalendarIntervalType(), VariantType(), MapType(ArrayType(StringType()), StringType())], ids=str
)
@pytest.mark.parametrize("depth", range(3))
def test_what_json_cannot_hold_is_refused(kind: DataType, depth: int) -> None:
    nested = [kind, StructType([StructField("y", ArrayType(kind))]), MapType(StringType(), kind)][depth]
    with pytest.raises(InvalidRequest, match=r"column x.*cannot be written as JSON"):
        RowReader.of(StructType([StructField("x", nested)]), topic="t", is_json=True)


def test_json_needs_something_to_write() -> None:
    with pytest.raises(InvalidRequest, match="valueFormat=json needs a column"):
        reader("key string, priority int", is_json=True)


# --- what does ----------------------------------------------------------------------------------


def test_a_value_is_enough() -> None:
    assert only(reader("value string"), value=["ä", None, ""]) == TopicMessages(
        "t", ["ä".encode(), None, b""], None, None, 2, None, None, None
    )


def test_all_columns_in_any_order_and_case() -> None:
    rows = reader(
        "Priority int, deliver_at timestamp, Created_at timestamp, KEY binary, partition bigint, value binary,"
        " headers map"
    )
    messages = only(
        rows,
        Priority=pa.array([0, None], pa.int32()),
        deliver_at=pa.array([NOON, None], pa.timestamp("us", "UTC")),
        Created_at=pa.array([None, NOON], pa.timestamp("us", "UTC")),
        KEY=[b"k", None],
        partition=[3, None],
        value=[b"\xff", b""],
        headers=pa.array([[("a", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string())),
    )
    assert messages == TopicMessages(
        "t",
        [b"\xff", b""],
        [b"k", None],
        [{"a": "1", "b": "2"}, None],
        [0, 2],
        [NOON_NS, None],
        [None, NOON_NS],
        [3, None],
    )


def test_null_is_neither_an_empty_key_nor_an_empty_header() -> None:
    headers = pa.array([[("a", None), ("b", "")], None], pa.map_(pa.string(), pa.string()))
    messages = only(reader("value string, key string, headers map"), value=["v"] * 2, key=["", None], headers=headers)

    assert messages.keys == [b"", None]
    assert messages.headers == [{"a": None, "b": ""}, None]


def test_in_json_the_time_at_which_a_row_was_created_is_data() -> None:
    (value,) = only(reader("id bigint, created_at string", is_json=True), id=[1], created_at=["today"]).values

    assert value == b'{"id":1,"created_at":"today"}'


def test_large_types_are_fine_as_well() -> None:
    messages = only(
        reader("value string, key binary"),
        value=pa.array(["a", None], pa.large_string()),
        key=pa.array([b"k", b"l"], pa.large_binary()),
    )
    assert (messages.values, messages.keys) == ([b"a", None], [b"k", b"l"])


def test_a_slice_is_read_as_what_it_shows() -> None:
    batch = pa.record_batch({"value": ["a", "b", None, "d"], "key": ["1", None, "3", "4"]}).slice(1, 2)
    (messages,) = reader("value string, key string").messages(batch)
    assert (messages.values, messages.keys) == ([b"b", None], [None, b"3"])


def test_priorities_may_be_names() -> None:
    messages = only(reader("value string, priority string"), value=["a"] * 3, priority=["CRITICAL", None, "low"])
    assert messages.priorities == [0, 2, 3]
    with pytest.raises(InvalidMessage, match="invalid priority 'urgent'"):
        only(reader("value string, priority string"), value=["a"], priority=["urgent"])


def test_headers_are_pairs_as_the_source_has_them() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    made = pa.array(
        [[("not", b"this")], [("a", b"\xff"), ("b", b"2")], None, [], [("c", b"1"), ("c", b"2")]], pa.list_(pair)
    )
    found = only(reader("value string, headers pairs"), value=["a", "b", "c", "d"], headers=made[1:])
    assert found.headers == [{"a": b"\xff", "b": b"2"}, None, None, {"c": b"2"}]


def test_bytes_may_be_headers() -> None:
    headers = pa.array([[("a", b"\xff")]], pa.map_(pa.string(), pa.binary()))
    assert only(reader("value string, headers bytemap"), value=["a"], headers=headers).headers == [{"a": b"\xff"}]


def test_the_column_topic_wins_and_null_is_the_option() -> None:
    batch = pa.record_batch({"topic": ["a", None, "b", "a", None], "value": ["0", "1", "2", "3", "4"]})

    found = {one.topic: one.values for one in reader("topic string, value string", "c").messages(batch)}
    assert found == {"a": [b"0", b"3"], "c": [b"1", b"4"], "b": [b"2"]}

    with pytest.raises(InvalidMessage, match="a row has no topic"):
        list(reader("topic string, value string", None).messages(batch))


# --- json ---------------------------------------------------------------------------------------


def test_other_columns_become_an_object() -> None:
    rows = reader(
        "key string, id bigint, name string, value double, at timestamp, wall timestamp_ntz, day date, raw binary, "
        "price decimal, flag boolean, tags map, numbers intmap, nothing void",
        is_json=True,
    )
    messages = only(
        rows,
        key=["k"],
        id=[2**60],
        name=["a\n\"b'ü"],
        value=[1.5],
        at=pa.array([NOON + timedelta(microseconds=1)], pa.timestamp("us", "UTC")),
        wall=pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")),
        day=[date(2026, 11, 15)],
        raw=[b"\x00\xff"],
        price=pa.array([Decimal("12.50")], pa.decimal128(10, 2)),
        flag=[True],
        tags=pa.array([[("x", "y")]], pa.map_(pa.string(), pa.string())),
        numbers=pa.array([[(5, None)]], pa.map_(pa.int32(), pa.string())),
        nothing=pa.nulls(1),
    )
    assert messages.keys == [b"k"]
    (value,) = messages.values
    assert value is not None
    assert json.loads(value) == {
        "id": 2**60,
        "name": "a\n\"b'ü",
        "value": 1.5,
        "at": "2026-11-15T12:00:00.000001Z",
        "wall": "2026-11-15T12:00:00",
        "day": "2026-11-15",
        "raw": "AP8=",
        "price": 12.5,
        "flag": True,
        "tags": {"x": "y"},
        "numbers": {"5": None},
        "nothing": None,
    }


def test_numbers_that_json_does_not_have_are_null() -> None:
    messages = only(reader("x double", is_json=True), x=[float("nan"), float("inf"), None])
    assert messages.values == [b'{"x":null}'] * 3


ROW = st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1), "text": st.one_of(st.none(), st.text())})


@given(rows=st.lists(ROW, min_size=1, max_size=20))
def test_each_row_is_one_object_whatever_is_in_it(rows: list[dict[str, Any]]) -> None:
    try:
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("text", pa.string())]))
    except UnicodeEncodeError:
        return  # half a surrogate pair is no text to Arrow
    (messages,) = reader("id bigint, text string", is_json=True).messages(batch)
    assert [json.loads(value or b"") for value in messages.values] == rows
