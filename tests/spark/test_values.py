"""Values as typed columns: what fits becomes columns, what does not stays as it was."""

import base64
import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from goqueue.client.sync import Client
from goqueue.errors import InvalidConfig, SchemaNotFound, SubjectNotFound
from goqueue.schemas.protobuf.schema import PROTOBUF
from goqueue.spark.columns import BatchMaker
from goqueue.spark.ddl import parse_ddl
from goqueue.spark.values import ValueParser, value_parser
from goqueue.testing import EmbeddedBroker
from goqueue.wire.schema_reports import SchemaInfo, SchemaReference


class Registry:
    """Schemas by subject, as a client has them."""

    def __init__(self) -> None:
        self.schemas: list[SchemaInfo] = []

    def add(self, subject: str, schema: Any, type: str = "JSON", references: Any = (), at_s: int = 0) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        version = 1 + sum(each.subject == subject for each in self.schemas)
        made = SchemaInfo(subject, version, len(self.schemas) + 1, "", text, type, list(references))
        made.registered_at_ns = at_s * 10**9
        self.schemas.append(made)
        return made.id

    def schema(self, id=None, *, subject=None, version="latest", deleted=False):
        if id is not None:
            found = [each for each in self.schemas if each.id == id]
            if not found:
                raise SchemaNotFound(id)
        else:
            found = [each for each in self.schemas if each.subject == subject and version in ("latest", each.version)]
            if not found:
                raise SubjectNotFound(subject)
        return found[-1]

    def schema_versions(self, subject, *, deleted=False):
        return [each.version for each in self.schemas if each.subject == subject]


def ddl(text: str) -> ValueParser:
    return value_parser(text, client=None, topics=())


def registered(schema: Any, type: str = "JSON") -> ValueParser:
    registry = Registry()
    registry.add("orders-value", schema, type)
    return value_parser("registry", client=registry, topics=["orders"])


def parse(parser: ValueParser, *values: bytes | None, **options: Any) -> list[dict[str, Any]]:
    """The rows that the values become."""
    columns = parser.parse(pa.array(values, pa.binary()), "orders", **options)
    for field in to_arrow_schema(parser.fields, timezone="UTC"):
        columns[field.name].validate(full=True)
        assert columns[field.name].type == field.type
    assert list(columns) == [*parser.fields.fieldNames(), "_corrupt"]
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(each.to_pylist() for each in columns.values()), strict=True)
    ]


def prefixed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


class TestDdl:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("a int", "struct<a:int>"),
            ("a INT, B bigint NOT NULL COMMENT 'it''s'", None),
            ("a INT NOT NULL, `b c` bigint COMMENT 'x, y'", "struct<a:int,b c:bigint>"),
            ("a: int, b: string", "struct<a:int,b:string>"),
            ("a decimal, b decimal(20), c dec(38, 10)", "struct<a:decimal(10,0),b:decimal(20,0),c:decimal(38,10)>"),
            ("a array<map<string, struct<x:int,y:array<double>>>>", None),
            ("t timestamp, u timestamp_ntz, d date, b binary, f float", None),
        ],
    )
    def test_it_is_read_as_spark_reads_it(self, spark, text, found):
        from pyspark.sql.types import DataType

        from goqueue.spark.ddl import nullable

        if "''" in text:
            text = text.replace("''", "")
        assert nullable(DataType.fromDDL(text)) == parse_ddl(text)
        if found:
            assert parse_ddl(text).simpleString() == found

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "a",
            "a int,",
            "a int b int",
            "a nothing",
            "a array<int",
            "a map<int,int>",
            "a decimal(39)",
            "a decimal(2,3)",
            "a struct<>",
            "a interval",
            "a int, a string",
            "a " + "array<" * 60 + "int" + ">" * 60,
            "{}",
            '{"type":"struct","fields":[{"name":"a"}]}',
        ],
    )
    def test_what_is_none_is_said_in_a_sentence(self, text):
        with pytest.raises(InvalidConfig, match="valueSchema"):
            ddl(text)

    def test_the_json_of_a_schema_is_taken_too(self):
        made = parse_ddl("a int, b array<string>")

        assert parse_ddl(made.json()) == made


class TestJson:
    def test_values_become_columns(self):
        parser = ddl(
            "id bigint, name string, tags array<string>, at timestamp, day date, price decimal(6,2), raw binary,"
            " local timestamp_ntz, place struct<lat:double, names:map<string,int>>"
        )
        value = {
            "id": 7,
            "name": "a\nb",
            "tags": ["x", None],
            "at": "2026-11-15T12:00:00+02:00",
            "day": "2026-11-15",
            "price": 12.345,
            "raw": "aGk=",
            "local": "2026-11-15T12:00:00",
            "place": {"lat": 1, "names": {"n": 1, "m": None}},
            "unknown": {"deep": [1, 2, {}]},
        }

        (row,) = parse(parser, json.dumps(value, indent=2).encode())

        assert row == {
            "id": 7,
            "name": "a\nb",
            "tags": ["x", None],
            "at": datetime(2026, 11, 15, 10, tzinfo=UTC),
            "day": date(2026, 11, 15),
            "price": Decimal("12.35"),
            "raw": b"hi",
            "local": datetime(2026, 11, 15, 12),
            "place": {"lat": 1.0, "names": [("n", 1), ("m", None)]},
            "_corrupt": None,
        }

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b" ",
            b"null",
            b"[]",
            b"7",
            b"{}{}",
            b"{}\n{}",
            b'{"id": 1',
            b'{"id": "1"}',
            b'{"id": 1.5}',
            b'{"id": true}',
            b'{"id": 9223372036854775808}',
            b'{"small": 128}',
            b'{"price": 10000}',
            b'{"price": "NaN"}',
            b'{"at": "yesterday"}',
            b'{"name": "\xff"}',
            b'{"name": "\\ud800"}',
            b'{"tags": ["a", 1]}',
            b'{"place": {"lat": "x"}}',
            b'{"place": []}',
            b"\xff\xfe",
            b"\0\0",
            b"[" * 100_000,
            b'{"other":' + b"[" * 100_000,
        ],
    )
    def test_a_value_that_does_not_fit_is_kept_and_disturbs_nobody(self, value):
        parser = ddl(
            "id bigint, small tinyint, name string, price decimal(6,2), at timestamp, tags array<string>,"
            " place struct<lat:double>"
        )

        before, row, tombstone, after = parse(parser, b'{"id":1}', value, None, b'{"id":2}')

        assert (before["id"], after["id"]) == (1, 2)
        assert row == dict.fromkeys(row) | {"_corrupt": value}
        assert tombstone == dict.fromkeys(row)
        assert before["_corrupt"] is after["_corrupt"] is None

    @given(
        st.lists(
            st.one_of(
                st.none(),
                st.binary(max_size=6),
                st.sampled_from([b"{}", b'{"a":1}{"a":2}', b'{"a":[1', b"2]}", b"{},{}", b'{"a":', b"1}", b"\n", b","]),
                st.builds(lambda number: b'{"a":%d}' % number, st.integers(-(2**64), 2**64)),
            ),
            max_size=20,
        )
    )
    def test_each_value_is_read_by_itself(self, values):
        parser = ddl("a bigint")

        rows = parse(parser, *values)

        assert rows == [row for value in values for row in parse(parser, value)]
        assert all((row["_corrupt"] in (None, value)) for row, value in zip(rows, values, strict=True))

    def test_the_prefix_of_the_registry_is_passed_over(self):
        (row,) = parse(ddl("id int"), prefixed(77, b'{"id": 1}'))

        assert row == {"id": 1, "_corrupt": None}

    def test_names_that_are_taken_get_another(self):
        parser = ddl("Offset int, value string, key int, value_key int, id int, ID int, _corrupt int")

        (row,) = parse(parser, b'{"Offset":1,"value":"v","key":2,"value_key":3,"id":4,"ID":5,"_corrupt":6}')

        assert row == {
            "value_Offset": 1,
            "value": "v",
            "value_key": 2,
            "value_value_key": 3,
            "id": 4,
            "value_ID": 5,
            "value__corrupt": 6,
            "_corrupt": None,
        }

    def test_values_that_do_not_fit_for_different_reasons_are_all_kept(self):
        values = [b"{", b'{"a": 123456}', b'{"a": 1}', None, b'{"a": "NaN"}', b"[]"]

        rows = parse(ddl("a decimal(4,0)"), *values)

        assert [row["_corrupt"] for row in rows] == [values[0], values[1], None, None, values[4], values[5]]
        assert [row["a"] for row in rows] == [None, None, 1, None, None, None]

    def test_no_values_are_no_rows(self):
        assert parse(ddl("a int, s struct<x:int>, l array<int>, m map<string,int>")) == []

    def test_nulls_and_empty_containers_are_told_apart(self):
        parser = ddl("l array<int>, m map<string,int>, s struct<x:int>")

        rows = parse(parser, b"{}", b'{"l":[],"m":{},"s":{}}', b'{"l":[null],"m":{"a":null},"s":{"x":null}}')

        assert [(row["l"], row["m"], row["s"]) for row in rows] == [
            (None, None, None),
            ([], [], {"x": None}),
            ([None], [("a", None)], {"x": None}),
        ]


class TestJsonSchema:
    def test_types_of_a_schema(self):
        parser = registered(
            {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "price": {"type": ["number", "null"]},
                    "ok": {"type": "boolean"},
                    "at": {"type": "string", "format": "date-time"},
                    "day": {"type": "string", "format": "date"},
                    "kind": {"enum": ["a", "b"]},
                    "maybe": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/place"}]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "any": {},
                    "either": {"type": ["string", "integer"]},
                    "tree": {"$ref": "#/definitions/tree"},
                },
                "definitions": {
                    "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
                    "tree": {
                        "type": "array",
                        "items": {"anyOf": [{"$ref": "#/definitions/place"}, {"type": "string"}]},
                    },
                },
            }
        )

        assert parser.fields.simpleString() == (
            "struct<id:bigint,price:double,ok:boolean,at:timestamp,day:date,kind:string,maybe:struct<lat:double>,"
            "tags:array<string>,counts:map<string,bigint>,any:string,either:string,tree:array<string>>"
        )
        first, second = parse(
            parser, b'{"id":1,"any":{"x": [1]},"either":"s","tree":["t",{"lat":1}],"maybe":{"lat":2}}', b'{"any":null}'
        )
        assert first["any"] == '{"x": [1]}'
        assert first["either"] == '"s"'
        assert first["tree"] == ['"t"', '{"lat":1}']
        assert first["maybe"] == {"lat": 2.0}
        assert second["any"] is None

    def test_a_schema_that_contains_itself_ends_as_text(self):
        parser = registered(
            {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "next": {"$ref": "#"}},
            }
        )

        (row,) = parse(parser, b'{"id":1,"next":{"id":2}}')

        assert row["id"] == 1
        assert row["next"]["id"] == 2

    def test_references_are_followed(self):
        registry = Registry()
        registry.add("place", {"type": "object", "properties": {"lat": {"type": "number"}}})
        registry.add(
            "orders-value",
            {"type": "object", "properties": {"at": {"$ref": "place.json"}}},
            references=[SchemaReference("place.json", "place", 1)],
        )

        parser = value_parser("registry", client=registry, topics=["orders"])

        assert parser.fields.simpleString() == "struct<at:struct<lat:double>>"

    @pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"type": "object"}, {"anyOf": []}, True])
    def test_a_schema_without_columns_is_refused(self, schema):
        with pytest.raises(InvalidConfig, match="topic orders: .*no columns"):
            registered(schema)


class TestRegistry:
    def test_a_topic_without_a_schema_is_refused(self):
        with pytest.raises(InvalidConfig, match="there is no subject orders-value"):
            value_parser("registry", client=Registry(), topics=["orders"])

    def test_a_subject_may_have_the_name_of_the_topic(self):
        registry = Registry()
        registry.add("orders", {"type": "object", "properties": {"a": {"type": "integer"}}})

        assert value_parser("Registry", client=registry, topics=["orders"]).fields.fieldNames() == ["a"]

    def test_topics_with_the_same_columns_are_read_together(self):
        registry = Registry()
        registry.add("a-value", {"type": "object", "properties": {"x": {"type": "integer"}}})
        registry.add("b-value", {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0}}})
        registry.add("c-value", {"type": "object", "properties": {"x": {"type": "string"}}})

        assert value_parser("registry", client=registry, topics=["a", "b"]).fields.fieldNames() == ["x"]
        with pytest.raises(InvalidConfig, match="a and c have different columns"):
            value_parser("registry", client=registry, topics=["a", "b", "c"])

    def test_a_topic_that_came_later_is_named(self):
        parser = registered({"type": "object", "properties": {"x": {"type": "integer"}}})

        with pytest.raises(InvalidConfig, match="topic later was not there"):
            parser.parse(pa.array([b"{}"], pa.binary()), "later")

    def test_a_parser_can_be_pickled_before_and_after_use(self):
        parser = ddl("a int")

        for _ in range(2):
            assert parse(pickle.loads(pickle.dumps(parser)), b'{"a":1}') == [{"a": 1, "_corrupt": None}]
            parse(parser, b"{}")

    def test_needs_topics(self):
        with pytest.raises(InvalidConfig, match="at least one topic"):
            value_parser("registry", client=Registry(), topics=[])


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "lat", "type": "float"}]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "either", "type": ["string", "int"]},
        {"name": "ok", "type": "boolean"},
        {"name": "score", "type": "double"},
    ],
}
ORDER = {
    "id": -(2**62),
    "name": "ä",
    "kind": "B",
    "again": "A",
    "price": Decimal("-12.34"),
    "at": datetime(2026, 11, 15, 12, tzinfo=UTC),
    "local": datetime(2026, 11, 15, 12),
    "day": date(2026, 11, 15),
    "tags": ["x", ""],
    "counts": {"a": 1, "b": None},
    "place": {"lat": 0.5},
    "hash": b"\x01\x02",
    "number": 2**40,
    "either": 5,
    "ok": True,
    "score": 2.5,
}


def avro(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "parser",
    [
        ddl("n bigint, s tinyint, l array<int>"),
        registered(
            {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "s": {"type": "integer"},
                    "l": {"type": "array", "items": {"type": "integer"}},
                },
            }
        ),
    ],
    ids=["ddl", "registry"],
)
def test_a_number_without_a_fraction_is_an_integer_however_it_is_written(parser: ValueParser) -> None:
    good = b'{"n": 7.0, "s": 1e2, "l": [1, 2.0, null, 3e0]}'
    (row,) = parse(parser, good)
    assert row == {"n": 7, "s": 100, "l": [1, 2, None, 3], "_corrupt": None}
    assert [type(row[name]) for name in ("n", "s")] == [int, int]
    for bad in (b'{"n": 7.5}', b'{"n": 1e30}', b'{"n": 9223372036854775808}', b'{"l": [0.1]}', b'{"n": "7"}'):
        assert parse(parser, bad, good)[0] == dict.fromkeys(row) | {"_corrupt": bad}


class TestAvro:
    def test_values_become_columns(self):
        parser = registered(AVRO, "AVRO")

        (row,) = parse(parser, avro(AVRO, ORDER))

        assert row == ORDER | {"counts": [("a", 1), ("b", None)], "either": "5", "_corrupt": None}
        assert parser.fields["place"].dataType.simpleString() == "struct<lat:float>"

    def test_a_value_is_read_with_the_schema_it_was_written_with(self):
        registry = Registry()
        old = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "gone", "type": "int"}, {"name": "id", "type": "int"}],
        }
        new = {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "number", "type": "long", "aliases": ["id"]},
                {"name": "text", "type": "string", "default": "none"},
                {"name": "raw", "type": "bytes", "default": "\u00ff"},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1000},
            ],
        }
        first, second = registry.add("orders-value", old, "AVRO"), registry.add("orders-value", new, "AVRO")
        parser = pickle.loads(pickle.dumps(value_parser("registry", client=registry, topics=["orders"])))
        written = {"number": 9, "text": "t", "raw": b"r", "at": datetime(2026, 1, 1, tzinfo=UTC)}

        rows = parse(
            parser,
            prefixed(first, avro(old, {"gone": 1, "id": 7})),
            prefixed(second, avro(new, written)),
            avro(new, written),
            avro(old, {"gone": 1, "id": 8}),
            ids={3: first},
        )

        epoch = {"text": "none", "raw": b"\xff", "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "_corrupt": None}
        assert rows[0] == {"number": 7} | epoch
        assert rows[1] == rows[2] == written | {"_corrupt": None}
        assert rows[3] == {"number": 8} | epoch

    def test_a_value_that_names_no_schema_is_read_with_the_one_that_was_the_latest_when_it_was_stored(self):
        registry = Registry()
        fields = [
            [{"name": "a", "type": "int"}],
            [{"name": "b", "type": "string", "default": ""}, {"name": "a", "type": "int"}],
            [{"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": ""}],
        ]
        schemas = [{"type": "record", "name": "R", "fields": each} for each in fields]
        for schema, at_s in zip(schemas, (10, 20, 30), strict=True):
            registry.add("orders-value", schema, "AVRO", at_s=at_s)
        parser = pickle.loads(pickle.dumps(value_parser("registry", client=registry, topics=["orders"])))
        written = [avro(schemas[version], {"a": 1, "b": "some text"}) for version in (0, 0, 1, 1, 2)]
        times_us = pa.array([at_s * 1_000_000 for at_s in (5, 19, 20, 29, 31)], pa.int64())

        rows = parse(parser, *written, times_us=times_us)

        assert [(row["a"], row["b"]) for row in rows] == [(1, ""), (1, ""), *[(1, "some text")] * 3]

    def test_a_symbol_that_the_reader_does_not_have_is_its_default(self):
        registry = Registry()

        def kind(*symbols: str, **more: str) -> dict[str, Any]:
            enum = {"type": "enum", "name": "Kind", "symbols": list(symbols), **more}
            return {"type": "record", "name": "R", "fields": [{"name": "k", "type": enum}]}

        wide, narrow = kind("A", "B", "C"), kind("A", "X", default="X")
        first = registry.add("orders-value", wide, "AVRO")
        registry.add("orders-value", narrow, "AVRO")
        parser = value_parser("registry", client=registry, topics=["orders"])
        values = [prefixed(first, avro(wide, {"k": symbol})) for symbol in "ABC"]
        assert [row["k"] for row in parse(parser, *values)] == ["A", "X", "X"]

        registry.add("orders-value", kind("A"), "AVRO")
        strict = value_parser("registry", client=registry, topics=["orders"])
        assert parse(strict, *values[:2]) == [{"k": "A", "_corrupt": None}, {"k": None, "_corrupt": values[1]}]

    def test_a_schema_that_came_later_is_asked_for(self):
        registry = Registry()
        registry.add("orders-value", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, "AVRO")
        parser = value_parser("registry", client=registry, topics=["orders"])
        later = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "b", "type": "string"}, {"name": "a", "type": "int"}],
        }
        value = prefixed(registry.add("orders-value", later, "AVRO"), avro(later, {"a": 1, "b": "some text"}))

        assert parse(parser, value) == [{"a": None, "_corrupt": value}]
        assert parse(pickle.loads(pickle.dumps(parser)), value, registry=registry) == [{"a": 1, "_corrupt": None}]

    def test_a_value_may_begin_with_a_zero_byte_and_have_no_prefix(self):
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
        }

        (row,) = parse(registered(schema, "AVRO"), avro(schema, {"a": 0, "b": "some text"}))

        assert row == {"a": 0, "b": "some text", "_corrupt": None}

    def test_a_header_that_names_no_schema_makes_a_value_corrupt(self):
        value = avro(AVRO, ORDER)

        (row,) = parse(registered(AVRO, "AVRO"), value, ids={0: -1})

        assert row == dict.fromkeys(row) | {"_corrupt": value}

    @given(st.data())
    def test_damaged_values_are_corrupt_or_read_and_never_an_error(self, data):
        parser = registered(AVRO, "AVRO")
        good = avro(AVRO, ORDER)
        bad = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(bad[: data.draw(st.integers(0, len(bad)))])

        first, row, last = parse(parser, good, cut, good)

        assert first == last
        assert row["_corrupt"] in (None, cut)

    def test_blocks_may_say_how_long_they_are(self):
        schema = {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "l", "type": {"type": "array", "items": "int"}},
                {"name": "m", "type": {"type": "map", "values": "int"}},
            ],
        }
        items = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\0"  # two items in two bytes, then one more
        entries = b"\x01\x06\x02a\x08" + b"\0"

        assert parse(registered(schema, "AVRO"), items + entries) == [
            {"l": [1, 2, 3], "m": [("a", 4)], "_corrupt": None}
        ]

    def test_a_record_that_contains_itself_has_no_type(self):
        schema = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}

        with pytest.raises(InvalidConfig, match="topic orders: the Avro record R contains itself"):
            registered(schema, "AVRO")

    @pytest.mark.parametrize("schema", ["string", {"type": "array", "items": "int"}, ["null", "int"]])
    def test_what_is_no_record_has_no_columns(self, schema):
        with pytest.raises(InvalidConfig, match="topic orders: the Avro schema is not a record"):
            registered(json.dumps(schema), "AVRO")

    def test_references_are_followed(self):
        registry = Registry()
        registry.add("place", {"type": "record", "name": "geo.Place", "fields": [{"name": "x", "type": "int"}]}, "AVRO")
        registry.add(
            "orders-value",
            {"type": "record", "name": "R", "fields": [{"name": "at", "type": "geo.Place"}]},
            "AVRO",
            references=[SchemaReference("geo.Place", "place", 1)],
        )

        parser = value_parser("registry", client=registry, topics=["orders"])

        assert parse(parser, b"\x06") == [{"at": {"x": 3}, "_corrupt": None}]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { NONE = 0; BIG = 1; }
  message Place { double lat = 1; }
  int64 id = 1;
  optional string name = 2;
  uint64 large = 3;
  uint32 medium = 4;
  Kind kind = 5;
  repeated Kind kinds = 6;
  Place place = 7;
  repeated Place places = 8;
  map<string, int32> counts = 9;
  google.protobuf.Timestamp at = 10;
  bytes raw = 11;
  oneof choice { string left = 12; bool right = 13; }
}
message Other { int32 a = 1; }
"""


class TestProtobuf:
    def message(self, **fields: Any) -> bytes:
        schema = PROTOBUF.parse(PROTO, {})
        self.kept = schema  # its pool has the descriptors
        made: Any = GetMessageClass(schema.descriptor.message_types_by_name["Order"])(**fields)
        return bytes(made.SerializeToString())

    def test_values_become_columns(self):
        parser = registered(PROTO, "PROTOBUF")
        payload = self.message(
            id=-5,
            name="ä",
            large=2**64 - 1,
            medium=2**32 - 1,
            kind=1,
            kinds=[0, 7],
            place={"lat": 0.5},
            places=[{}],
            counts={"a": 1},
            at={"seconds": 1, "nanos": 2500},
            raw=b"\xff",
            right=False,
        )

        rows = parse(parser, payload, prefixed(1, b"\0" + payload), prefixed(9, b"\x02\0" + payload), b"")

        assert rows[0] == rows[1] == rows[2]
        assert rows[0] == {
            "id": -5,
            "name": "ä",
            "large": Decimal(2**64 - 1),
            "medium": 2**32 - 1,
            "kind": "BIG",
            "kinds": ["NONE", "7"],
            "place": {"lat": 0.5},
            "places": [{"lat": 0.0}],
            "counts": [("a", 1)],
            "at": datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC),
            "raw": b"\xff",
            "left": None,
            "right": False,
            "_corrupt": None,
        }
        assert rows[3] == dict.fromkeys(rows[3]) | {
            "id": 0,
            "large": 0,
            "medium": 0,
            "kind": "NONE",
            "kinds": [],
            "places": [],
            "counts": [],
            "raw": b"",
        }

    def test_what_is_no_such_message_is_corrupt(self):
        values = [b"\xff\xff", prefixed(1, b"\x02\x02" + b"\x08\x01"), prefixed(1, b""), b"\0"]

        rows = parse(registered(PROTO, "PROTOBUF"), *values)

        assert [row["_corrupt"] for row in rows] == values

    def test_a_message_without_what_it_requires_is_corrupt(self):
        parser = registered('syntax = "proto2"; message M { required int32 a = 1; optional int32 b = 2; }', "PROTOBUF")

        rows = parse(parser, b"\x08\x01", b"\x10\x01")

        assert rows == [{"a": 1, "b": None, "_corrupt": None}, {"a": None, "b": None, "_corrupt": b"\x10\x01"}]

    def test_a_descriptor_in_base64_is_a_schema_too(self):
        text = base64.b64encode(PROTOBUF.parse(PROTO, {}).file.SerializeToString()).decode()

        assert registered(text, "PROTOBUF").fields == registered(PROTO, "PROTOBUF").fields

    def test_a_message_that_contains_itself_has_no_type(self):
        with pytest.raises(InvalidConfig, match=r"topic orders: the Protobuf message M contains itself"):
            registered('syntax = "proto3"; message M { M next = 1; }', "PROTOBUF")


def test_the_registry_of_a_broker_is_asked():
    with EmbeddedBroker() as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=1)
        schema_id = client.register_schema("orders-value", AVRO, type="AVRO").id
        client.publish_many("orders", [avro(AVRO, ORDER), prefixed(schema_id, avro(AVRO, ORDER))])
        parser = value_parser("registry", client=client, topics=["orders"])
        maker = BatchMaker("orders", 0, ["offset", "id", "_corrupt"], value=parser, registry=client)

        rows = [
            row
            for part in client.scan("orders", 0, 0, 2)
            for batch in maker.batches(part.records, part.flags)
            for row in batch.to_pylist()
        ]

        assert rows == [{"offset": offset, "id": ORDER["id"], "_corrupt": None} for offset in (0, 1)]


def test_spark_takes_the_columns(spark, broker, client):
    client.create_topic("orders", partitions=1)
    value = {"id": 1, "at": "2026-11-15T12:00:00Z", "d": 1.25, "l": [{"x": 1}, None], "m": {"a": 2}, "s": {"y": "z"}}
    client.publish_many("orders", [json.dumps(value).encode(), b"no json", b"{}"])

    rows = (
        spark.read.format("goqueue")
        .option("server", broker.address)
        .option("subscribe", "orders")
        .option(
            "valueSchema",
            "id bigint, at timestamp, d decimal(5,2), l array<struct<x:int>>, m map<string,int>, s struct<y:string>",
        )
        .load()
        .orderBy("offset")
        .selectExpr(
            "id", "unix_seconds(at) AS at", "d", "l[0].x AS x", "size(l) AS n", "m['a'] AS a", "s.y", "_corrupt"
        )
        .collect()
    )

    assert [tuple(row) for row in rows] == [
        (1, 1_794_744_000, Decimal("1.25"), 1, 2, 2, "z", None),
        (None, None, None, None, None, None, None, bytearray(b"no json")),
        (None,) * 8,
    ]


def test_bare_avro_of_two_versions_is_read_as_it_was_stored(broker, client):
    client.create_topic("orders", partitions=1)
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "string", "default": ""}, *old["fields"]]}
    for schema, value in ((old, {"a": 5}), (new, {"a": 6, "b": "text"})):
        client.register_schema("orders-value", json.dumps(schema), type="AVRO")
        client.publish("orders", avro(schema, value))
    parser = value_parser("registry", client=client, topics=["orders"])
    maker = BatchMaker("orders", 0, ["a", "b", "_corrupt"], value=parser, registry=client)
    (part,) = client.scan("orders", 0, 0, 2)

    rows = [row for batch in maker.batches(part.records, part.flags) for row in batch.to_pylist()]

    assert rows == [{"a": 5, "b": "", "_corrupt": None}, {"a": 6, "b": "text", "_corrupt": None}]
