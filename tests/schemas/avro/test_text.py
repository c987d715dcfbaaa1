"""A schema that the specification does not allow is refused, with what is wrong and where."""

import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.avro.schema import AVRO
from goqueue.schemas.avro.text import Reader
from goqueue.schemas.avro.types import AvroRecord, Decimal, Enum, Fixed, Primitive
from goqueue.schemas.format import SCHEMA_DEPTH_MAX
from tests.schemas.avro.strategies import schemas

Json = Any


def field(type: Json = "int", **attributes: Json) -> Json:
    return {"name": "f", "type": type, **attributes}


def record(*fields: Json, **attributes: Json) -> Json:
    return {"type": "record", "name": "R", "fields": list(fields), **attributes}


def enum(*symbols: Json, **attributes: Json) -> Json:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


def fixed(size: Json, **attributes: Json) -> Json:
    return {"type": "fixed", "name": "F", "size": size, **attributes}


def refusal(document: Json) -> InvalidSchema:
    with pytest.raises(InvalidSchema) as raised:
        Reader({}).read(document)
    return raised.value


@given(schemas())
def test_what_fastavro_reads_is_read(drawn: tuple[Json, dict[str, Json]]) -> None:
    fastavro.parse_schema(drawn[0])

    Reader({}).read(drawn[0])


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        (7, "", "a type is a name, an object or an array, not 7"),
        (None, "", "a type is a name"),
        ({}, "", "an object needs a `type`"),
        ({"type": 7}, "", "an object needs a `type`"),
        ("nothing", "", "there is no type 'nothing'"),
        ({"type": "nothing"}, "", "there is no type 'nothing'"),
        ({"type": "array"}, "", "it needs `items`"),
        ({"type": "map"}, "", "it needs `values`"),
        ({"type": "array", "items": "nothing"}, "/items", "there is no type"),
        (["int", "int"], "/1", "the union has int already"),
        (["int", {"type": "int", "logicalType": "date"}], "/1", "the union has int already"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "/1", "the union has array already"),
        ([["int"]], "/0", "a union cannot hold a union itself"),
        ([record(), "R"], "/1", "the union has R already"),
        ({"type": "record", "fields": []}, "", "a record needs a `name`"),
        ({"type": "enum", "symbols": []}, "", "a enum needs a `name`"),
        (record(name=7), "", "a record needs a `name`"),
        (record(namespace=7), "", "a record needs a `name`"),
        ({"type": "record", "name": "R"}, "", "the record R needs a list of `fields`"),
        (record(name="1R"), "", "'1R' cannot be the name of a type"),
        (record(name="a..R"), "", "'a..R' cannot be the name of a type"),
        (record(name=""), "", "'' cannot be the name of a type"),
        (record(name="Ä"), "", "'Ä' cannot be the name of a type"),
        (record(name="a-b"), "", "'a-b' cannot be the name of a type"),
        (record(name="R\n"), "", "cannot be the name of a type"),
        (record(name="int"), "", "'int' cannot be the name of a type"),
        (record(name="R", namespace="a b"), "", "'a b.R' cannot be the name of a type"),
        (record(aliases="R"), "", "aliases are a list of names"),
        (record(aliases=[7]), "", "aliases are a list of names"),
        (record(aliases=["a-b"]), "", "'a-b' cannot be the name of a type"),
        (record(7), "", "a field is an object, not 7"),
        (record({"type": "int"}), "", "None cannot be the name of a field"),
        (record(field(name="a.b")), "", "'a.b' cannot be the name of a field"),
        (record({"name": "f"}), "/f", "a field needs a `type`"),
        (record(field(), field()), "/f", "the record R has that field already"),
        (record(field(order="random")), "/f", "there is no order 'random'"),
        (record(field(aliases=["a b"])), "/f", "'a b' cannot be the name of a field"),
        (record(field(record())), "/f", "the type R is defined twice"),
        (record(field(enum("A")), {"name": "g", "type": enum("A")}), "/g", "the type E is defined twice"),
        ({"type": "enum", "name": "E"}, "", "the enum E needs a list of `symbols`"),
        (enum("A", "A"), "", "the enum E has the symbol A twice"),
        (enum("A", 7), "", "7 cannot be a symbol"),
        (enum("a-b"), "", "'a-b' cannot be a symbol"),
        (enum("A", default="B"), "", "the default 'B' is no symbol of the enum E"),
        (enum("A", default=["A"]), "", "the default ['A'] is no symbol of the enum E"),
        ({"type": "fixed", "name": "F"}, "", "the size of the fixed F must be a number of bytes"),
        (fixed(-1), "", "the size of the fixed F must be"),
        (fixed(True), "", "the size of the fixed F must be"),
        (fixed("3"), "", "the size of the fixed F must be"),
    ],
)
def test_it_is_refused(document: Json, path: str, reason: str) -> None:
    error = refusal(document)

    assert error.reason.startswith(reason) or reason in error.reason
    assert error.path == path


@pytest.mark.parametrize(
    ("type", "default"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        ("float", 1),
        ("double", 1.5),
        ("bytes", "\u00ff"),
        ("string", "\u20ac"),
        (fixed(2), "ab"),
        (enum("A"), "A"),
        ({"type": "array", "items": "int"}, [1, 2]),
        ({"type": "map", "values": "int"}, {"a": 1}),
        (["null", "int"], None),
        (["null", "int"], 1),
        (record({"name": "g", "type": "int"}, name="S"), {"g": 1}),
        (record({"name": "g", "type": "int", "default": 1}, name="S"), {}),
        (["null", "R"], {"f": None}),
    ],
)
def test_a_default_of_its_type_is_taken(type: Json, default: Json) -> None:
    Reader({}).read(record(field(type, default=default)))


@pytest.mark.parametrize(
    ("type", "default", "path", "expected"),
    [
        ("null", 0, "/f", "is no null"),
        ("boolean", 1, "/f", "is no boolean"),
        ("int", 2**31, "/f", "is no int"),
        ("int", True, "/f", "is no int"),
        ("int", 1.0, "/f", "is no int"),
        ("long", -(2**63) - 1, "/f", "is no long"),
        ("float", "1", "/f", "is no float"),
        ("double", "NaN", "/f", "is no double"),
        ("double", False, "/f", "is no double"),
        ("bytes", "\u0100", "/f", "is no bytes"),
        ("string", None, "/f", "is no string"),
        (fixed(2), "abc", "/f", "is no fixed of 2 bytes"),
        (fixed(1), "\u0100", "/f", "is no fixed of 1 bytes"),
        (enum("A"), "B", "/f", "is no symbol of E"),
        (enum("A"), ["A"], "/f", "is no symbol of E"),
        ({"type": "array", "items": "int"}, {}, "/f", "is no array"),
        ({"type": "array", "items": "int"}, [1, "2"], "/f/1", "is no int"),
        ({"type": "map", "values": "int"}, [], "/f", "is no map"),
        ({"type": "map", "values": "int"}, {"a": None}, "/f/a", "is no int"),
        (["null", "int"], "x", "/f", "is no value of any type of the union"),
        (record({"name": "g", "type": "int"}, name="S"), {}, "/f", "is no record S, which needs g"),
        (record({"name": "g", "type": "int"}, name="S"), {"g": "x"}, "/f/g", "is no int"),
        (record(name="S"), 7, "/f", "is no record S"),
    ],
)
def test_a_default_of_another_type_is_refused(type: Json, default: Json, path: str, expected: str) -> None:
    error = refusal(record(field(type, default=default)))

    assert error.reason.endswith(expected)
    assert error.path == path


def test_names_are_looked_up_in_their_namespace_and_then_without() -> None:
    inner = record(name="Inner", namespace="a.b")
    document = record(
        field(inner),
        {"name": "g", "type": "a.b.Inner"},
        {"name": "h", "type": enum("A", name="Top", namespace="")},
        {"name": "i", "type": record({"name": "x", "type": "Top"}, name="x.Y")},
        namespace="a",
    )

    type = Reader({}).read(document)

    assert isinstance(type, AvroRecord)
    assert type.name == "a.R"
    assert type.fields[0].type is type.fields[1].type
    last = type.fields[3].type
    assert isinstance(last, AvroRecord)
    assert last.fields[0].type is type.fields[2].type


def test_an_unqualified_name_inherits_the_namespace_of_the_name_around_it() -> None:
    type = Reader({}).read(record(field(fixed(1)), name="a.b.R"))

    assert isinstance(type, AvroRecord)
    assert isinstance(type.fields[0].type, Fixed)
    assert type.fields[0].type.name == "a.b.F"


def test_aliases_become_full_names() -> None:
    type = Reader({}).read(enum("A", name="n.E", aliases=["Old", "other.Older"]))

    assert isinstance(type, Enum)
    assert type.aliases == {"n.Old", "other.Older"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal(4, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, Decimal(4, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, None),
        (fixed(2, logicalType="decimal", precision=4), Decimal(4, 0)),
        (fixed(2, logicalType="decimal", precision=5), None),
        (fixed(0, logicalType="decimal", precision=1), None),
    ],
)
def test_a_decimal_that_cannot_be_is_its_base_type(document: Json, expected: Decimal | None) -> None:
    type = Reader({}).read(document)

    assert isinstance(type, Primitive | Fixed)
    assert type.decimal == expected


def nested(depth: int) -> Json:
    document: Json = "int"
    for _ in range(depth):
        document = {"type": "array", "items": document}
    return document


def test_types_nest_so_deep_and_no_deeper() -> None:
    Reader({}).read(nested(SCHEMA_DEPTH_MAX - 1))

    assert "nest more than" in refusal(nested(SCHEMA_DEPTH_MAX + 1)).reason
    assert "nest more than" in refusal(nested(300)).reason


def test_types_that_nest_through_names_nest_too() -> None:
    def chain(length: int) -> Json:
        links = [record({"name": "f", "type": f"R{n - 1}" if n else "int"}, name=f"R{n}") for n in range(length)]
        return record(*({"name": f"f{n}", "type": link} for n, link in enumerate(links)))

    Reader({}).read(chain(SCHEMA_DEPTH_MAX - 2))

    assert "nest more than" in refusal(chain(SCHEMA_DEPTH_MAX)).reason
    assert "nest more than" in refusal(chain(5_000)).reason


def test_nesting_is_measured_from_the_type_that_is_the_schema() -> None:
    """Seen from the outermost record the ways back end at records that are open; seen from the innermost they go on."""
    document: Json = record({"name": "f", "type": "int"}, name="R60")
    for n in reversed(range(60)):
        back = [{"name": "back", "type": ["null", f"R{n - 1}"]}] if n else []
        document = record({"name": "down", "type": document}, *back, name=f"R{n}")
    outer = AVRO.parse(json.dumps(document), {})

    assert outer.compile().check(b"\2" * 1_000)
    with pytest.raises(InvalidSchema, match="nest more than"):
        AVRO.parse("R59", {"outer": outer})


def test_a_default_is_not_tried_against_all_combinations_of_branches() -> None:
    """Every branch fits on every level but the innermost."""
    records = [
        record({"name": "x", "type": ["null", *(f"A{n}" for n in range(k + 1))]}, name=f"A{k}") for k in range(20)
    ]
    value: Json = {"x": "nothing"}
    for _ in range(30):
        value = {"x": value}

    error = refusal([*records, record({"name": "f", "type": [f"A{n}" for n in range(20)], "default": value})])

    assert "is no value of any type of the union" in error.reason


def test_a_default_of_too_many_parts_is_refused() -> None:
    items = [f"A{n}" for n in range(200)]
    records = [record({"name": "x", "type": "int"}, name=item) for item in items]
    holder = record(
        {"name": "f", "type": {"type": "array", "items": items}, "default": [{"y": n} for n in range(2_000)]}
    )

    # the first item already fits no branch
    assert "is no value of any type" in refusal([*records, holder]).reason

    last = record({"name": "y", "type": "int"}, name="Z")
    holder["fields"][0]["type"]["items"] = [*items, "Z"]
    assert "too many parts" in refusal([*records, last, holder]).reason


def test_what_is_said_about_a_long_name_is_short() -> None:
    error = refusal(record({"name": "f", "type": "x" * 500_000}, name="n" * 400_000))

    assert len(str(error)) < 2_000


ATTRIBUTES = ["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases"]
WORDS = ["record", "enum", "fixed", "array", "map", "int", "null", "R", "S", "x-"]
anything = st.recursive(
    st.none() | st.integers(-1, 3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ATTRIBUTES), inner, max_size=4),
    max_leaves=12,
)


@given(anything)
def test_any_json_is_read_or_refused(document: Json) -> None:
    try:
        AVRO.parse(json.dumps(document), {})
    except InvalidSchema as error:
        assert error.reason
