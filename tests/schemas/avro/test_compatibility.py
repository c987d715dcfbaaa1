"""What the rules allow can be read, and what they refuse is told with its place."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.avro.schema import AVRO
from tests.schemas.avro.strategies import later, payloads, schemas

Json = Any


def reasons(reader: Json, writer: Json) -> list[str]:
    return AVRO.incompatibilities(AVRO.parse(json.dumps(reader), {}), AVRO.parse(json.dumps(writer), {}))


def record(*fields: Json, name: str = "R", **attributes: Json) -> Json:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type: Json = "int", **attributes: Json) -> Json:
    return {"name": name, "type": type, **attributes}


def enum(*symbols: str, name: str = "E", **attributes: Json) -> Json:
    return {"type": "enum", "name": name, "symbols": list(symbols), **attributes}


def fixed(size: int, name: str = "F", **attributes: Json) -> Json:
    return {"type": "fixed", "name": name, "size": size, **attributes}


def decimal(precision: int, scale: int) -> Json:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@given(st.data())
def test_whatever_is_compatible_can_be_read(data: st.DataObject) -> None:
    writer, names = data.draw(schemas())
    reader = later(data.draw, writer)
    try:
        found = reasons(reader, writer)
    except InvalidSchema:
        return  # the later version has lost a definition that it refers to
    if found:
        return

    written = io.BytesIO(payloads(data.draw, writer, names))
    fastavro.schemaless_reader(written, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@given(schemas())
def test_every_schema_reads_itself(drawn: tuple[Json, dict[str, Json]]) -> None:
    assert reasons(drawn[0], drawn[0]) == []


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        *[(kind, kind) for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")],
        ("long", "int"),
        ("float", "int"),
        ("double", "int"),
        ("float", "long"),
        ("double", "long"),
        ("double", "float"),
        ("bytes", "string"),
        ("string", "bytes"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
        (["null", "string"], "string"),
        (["null", "double"], "int"),
        ("int", ["int"]),
        ("double", ["int", "float"]),
        (["string", "null"], ["null", "string"]),
        (record(), record(field("a"))),
        (record(field("a", default=1)), record()),
        (record(field("b", aliases=["a"])), record(field("a"))),
        (record(field("b"), field("a")), record(field("a"), field("b"))),
        (record(name="ns.R"), record(name="other.R")),
        (record(name="New", aliases=["R"]), record()),
        (record(name="ns.New", aliases=["R"]), record(name="ns.R")),
        (record(name="ns.New", aliases=["other.R"]), record(name="other.R")),
        (["null", record(name="New", aliases=["R"])], record()),
        (enum("A", "B"), enum("A")),
        (enum("A", default="A"), enum("A", "B")),
        (fixed(3), fixed(3)),
        (decimal(4, 2), decimal(4, 2)),
        ("bytes", decimal(4, 2)),
        (decimal(4, 2), "bytes"),
        (decimal(2, 4), decimal(4, 2)),  # the first can be no decimal, and is bytes
        ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "int", "logicalType": "date"}),
        ([record(name="a.R"), record(field("x"), name="b.R")], record(field("x"), name="b.R")),
    ],
)
def test_it_may_become(reader: Json, writer: Json) -> None:
    assert reasons(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("int", "long", "/: int cannot be read from long"),
        ("float", "double", "/: float cannot be read from double"),
        ("string", "int", "/: string cannot be read from int"),
        ("null", ["null", "int"], "/: null cannot be read from int"),
        (["null", "int"], "string", "/: no type of the reader's union can be read from string"),
        (["null", "int"], ["null", "string"], "/: no type of the reader's union can be read from string"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "/: array cannot be read from map"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, "/items: int cannot be read from"),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "/values: int cannot be read from"),
        (record(field("a")), record(), "/a: the field has no default"),
        (record(field("a")), record(field("a", "string")), "/a: int cannot be read from string"),
        (
            record(field("a", record(field("b"), name="S"))),
            record(field("a", record(field("b", "string"), name="S"))),
            "/a/b: int cannot be read from string",
        ),
        (record(field("b", aliases=["a"])), record(field("a"), field("b")), "/b: the field stands for a and b"),
        (record(field("a"), field("b", aliases=["a"])), record(field("a")), "/b: the field has no default"),
        (
            record(field("b", aliases=["a"]), field("c", aliases=["a"])),
            record(field("a")),
            "/b: the field has no default",
        ),
        (record(name="S"), record(), "/: record S is not record R"),
        (record(name="ns.New", aliases=["R"]), record(name="other.R"), "/: record ns.New is not record other.R"),
        (enum("A"), enum("A", "B"), "/: the enum E has no default, and no longer B"),
        (enum("A", name="D"), enum("A"), "/: enum D is not enum E"),
        (enum("A", name="X"), fixed(1, name="X"), "/: enum X cannot be read from fixed X"),
        (fixed(3), fixed(4), "/: the size of F is 3, and was 4"),
        (fixed(3, name="G"), fixed(3), "/: fixed G is not fixed F"),
        (decimal(5, 2), decimal(4, 2), "/: a decimal(5, 2) is no decimal(4, 2)"),
        (decimal(4, 1), decimal(4, 2), "/: a decimal(4, 1) is no decimal(4, 2)"),
        (
            fixed(4, logicalType="decimal", precision=5),
            fixed(4, logicalType="decimal", precision=6),
            "/: a decimal(5, 0) is no decimal(6, 0)",
        ),
    ],
)
def test_it_may_not_become(reader: Json, writer: Json, reason: str) -> None:
    found = reasons(reader, writer)

    assert len(found) == 1
    assert found[0].startswith(reason)


def test_all_reasons_are_told() -> None:
    reader = record(field("a"), field("b"), field("c", "string"))

    assert [reason[:2] for reason in reasons(reader, record(field("c")))] == ["/a", "/b", "/c"]


def test_a_thousand_reasons_are_not() -> None:
    assert len(reasons(record(*(field(f"f{n}") for n in range(1_000))), record())) == 100


def test_a_list_of_itself_is_compared_once_around() -> None:
    def chain(kind: str) -> Json:
        return record(field("value", kind), field("next", ["null", "R"]))

    assert reasons(chain("long"), chain("int")) == []
    assert reasons(chain("int"), chain("long")) == ["/value: int cannot be read from long"]


def ring(length: int, last: str = "int") -> Json:
    """Records of one name in many namespaces, each in the one before, the last with the first in it."""
    inner: Json = "n0.R"
    for index in reversed(range(length)):
        kind = last if index == length - 1 else "int"
        inner = record(field("v", kind), field("next", ["null", inner]), name=f"n{index}.R")
    return inner


def test_rings_of_different_lengths_are_followed_until_they_meet() -> None:
    assert reasons(ring(31), ring(32)) == []
    assert "int cannot be read from string" in reasons(ring(31), ring(32, "string"))[0]


def test_schemas_that_cannot_be_compared_in_time_are_not_compatible() -> None:
    def entangled(step: int) -> Json:
        leaves = [record(field("x"), name=f"l{n}.R") for n in range(60)]
        middle = [
            record(*(field(f"f{k}", f"l{k * step * (n + 1) % 60}.R") for k in range(60)), name=f"m{n}.R")
            for n in range(60)
        ]
        outer = [
            record(*(field(f"f{k}", f"m{k * step * (n + 1) % 60}.R") for k in range(60)), name=f"o{n}.R")
            for n in range(60)
        ]
        top = record(
            *(field(f"t{n}_{k}", f"o{(n * step + k) % 60}.R") for n in range(60) for k in range(60)), name="t.R"
        )
        return record(*(field(f"d{n}", one) for n, one in enumerate([*leaves, *middle, *outer, top])), name="R")

    assert reasons(entangled(1), entangled(7)) == ["/: the schemas are too large to be compared"]
