"""Two texts are one schema if they say the same, and a schema may use the types of others."""

import json
from typing import Any

import pytest
from hypothesis import given

from goqueue.errors import InvalidSchema
from goqueue.schemas.avro.schema import AVRO
from goqueue.schemas.format import SCHEMA_BYTES_MAX, SchemaFormat
from goqueue.schemas.protobuf.schema import PROTOBUF
from tests.schemas.avro.strategies import schemas

Json = Any
ADDRESS = '{"type": "record", "name": "shop.Address", "fields": [{"name": "street", "type": "string"}]}'


def test_it_is_a_format() -> None:
    form: SchemaFormat = AVRO

    assert form.name == "AVRO"


@pytest.mark.parametrize(
    ("text", "canonical"), [("string", '"string"'), (' "string"\n', '"string"'), (" int ", '"int"')]
)
def test_a_bare_name_is_a_schema(text: str, canonical: str) -> None:
    parsed = AVRO.parse(text, {})

    assert parsed.canonical == canonical
    assert parsed.text == text
    assert parsed.record_name is None


def test_white_space_does_not_count_and_all_else_does() -> None:
    parsed = AVRO.parse(ADDRESS, {})

    assert AVRO.parse(json.dumps(json.loads(ADDRESS), indent=4), {}).canonical == parsed.canonical
    for attribute in ({"doc": "where"}, {"aliases": ["Place"]}, {"logicalType": "x"}):
        assert AVRO.parse(json.dumps(json.loads(ADDRESS) | attribute), {}).canonical != parsed.canonical


def test_normalized_texts_pass_over_how_it_is_written() -> None:
    one = {
        "fields": [
            {"default": 1, "type": {"type": "int"}, "name": "a", "order": "ascending"},
            {"name": "b", "type": {"type": "fixed", "size": 1, "name": "F", "aliases": ["Z", "Y"]}},
            {"name": "c", "type": [{"type": "null"}, "F"]},
            {"name": "d", "type": {"logicalType": "date", "type": "int"}},
            {"name": "e", "type": {"type": {"type": "array", "items": "R"}}},
            {"name": "g", "type": {"type": "map", "values": "R"}},
        ],
        "namespace": "n",
        "name": "R",
        "doc": "a record",
        "type": "record",
    }
    two = {
        "type": "record",
        "name": "n.R",
        "doc": "a record",
        "fields": [
            {"name": "a", "type": "int", "default": 1},
            {"name": "b", "type": {"name": "n.F", "type": "fixed", "size": 1, "aliases": ["n.Y", "n.Z"]}},
            {"name": "c", "type": ["null", "n.F"]},
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "e", "type": {"type": "array", "items": "n.R"}},
            {"name": "g", "type": {"type": "map", "values": "n.R"}},
        ],
    }
    first, second = AVRO.parse(json.dumps(one), {}), AVRO.parse(json.dumps(two), {})

    assert first.canonical != second.canonical
    assert first.normalized() == second.normalized()
    assert '"default":1' in first.normalized()
    assert '"doc":"a record"' in first.normalized()


@given(schemas())
def test_a_normalized_text_is_a_schema_of_the_same_meaning(drawn: tuple[Json, dict[str, Json]]) -> None:
    parsed = AVRO.parse(json.dumps(drawn[0]), {})

    again = AVRO.parse(parsed.normalized(), {})

    assert again.canonical == again.normalized() == parsed.normalized()
    assert AVRO.incompatibilities(again, parsed) == []
    assert AVRO.incompatibilities(parsed, again) == []


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (json.loads(ADDRESS), "shop.Address"),
        ({"type": "enum", "name": "E", "namespace": "n", "symbols": []}, "n.E"),
        (["null", {"type": "fixed", "name": "F", "size": 1}, json.loads(ADDRESS)], "shop.Address"),
        (["null", "int"], None),
        ({"type": "array", "items": json.loads(ADDRESS)}, None),
    ],
)
def test_the_record_name_is_the_full_name_of_the_first_record(document: Json, name: str | None) -> None:
    assert AVRO.parse(json.dumps(document), {}).record_name == name


def test_references_are_used_by_their_full_names() -> None:
    address = AVRO.parse(ADDRESS, {})
    person = AVRO.parse(
        '{"type": "record", "name": "shop.Person", "fields": [{"name": "home", "type": "Address"}]}',
        {"address": address},
    )
    order = AVRO.parse(
        '{"type": "array", "items": ["shop.Person", "shop.Address"]}', {"address": address, "person": person}
    )

    assert order.compile().check(b"\4\0\2a\2\2b\0") is None
    assert json.loads(order.normalized()) == {"type": "array", "items": ["shop.Person", "shop.Address"]}
    assert AVRO.incompatibilities(order, order) == []


def test_a_schema_may_be_nothing_but_a_reference() -> None:
    parsed = AVRO.parse("shop.Address", {"address": AVRO.parse(ADDRESS, {})})

    assert parsed.record_name == "shop.Address"
    assert parsed.compile().check(b"\2a") is None


def test_a_type_of_a_reference_cannot_be_defined_again() -> None:
    with pytest.raises(InvalidSchema, match="defined twice"):
        AVRO.parse(ADDRESS, {"address": AVRO.parse(ADDRESS, {})})


def test_references_may_share_a_type_but_not_its_name() -> None:
    def user(name: str, address: str) -> Any:
        text = json.dumps({"type": "record", "name": name, "fields": [{"name": "a", "type": "shop.Address"}]})
        return AVRO.parse(text, {"address": AVRO.parse(address, {})})

    both = {"a": user("A", ADDRESS), "b": user("B", ADDRESS)}
    assert AVRO.parse('["A", "B"]', both).compile().check(b"\2\2x") is None

    other = ADDRESS.replace("street", "road")
    with pytest.raises(InvalidSchema, match="more than one type shop.Address"):
        AVRO.parse('["A", "B"]', {"a": user("A", ADDRESS), "b": user("B", other)})


def test_a_reference_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="'other' is no Avro schema"):
        AVRO.parse("int", {"other": PROTOBUF.parse("message M {}", {})})


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1",
        '{"type": "int"} x',
        '{"type": NaN}',
        "NaN",
        "true",
        "null!",
        "7",
        '"\\ud800"',
        "\ud800",
        "\0",
        "a.b",
        "a..b",
        ".",
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "double", "default": NaN}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "double", "default": 1e999}]}',
        "[" * 900 + "]" * 900,
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"type": "int", "x": ' + "[" * 500 + "]" * 500 + "}",
        '"' + "x" * SCHEMA_BYTES_MAX + '"',
        "x" * SCHEMA_BYTES_MAX,
        "\x80" * SCHEMA_BYTES_MAX,
        "1" * SCHEMA_BYTES_MAX,
        "[" + "0," * (SCHEMA_BYTES_MAX // 2 - 2) + "0]",
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        AVRO.parse(text, {})


def test_an_enum_of_a_hundred_thousand_symbols_is_an_enum() -> None:
    symbols = ",".join(f'"S{n}"' for n in range(80_000))
    parsed = AVRO.parse(f'{{"type": "enum", "name": "E", "symbols": [{symbols}]}}', {})

    assert AVRO.incompatibilities(parsed, parsed) == []
    assert parsed.compile().check(b"\0") is None
    with pytest.raises(InvalidSchema, match="S79999 twice"):
        AVRO.parse(f'{{"type": "enum", "name": "E", "symbols": [{symbols},"S79999"]}}', {})
