"""What the rules allow can be read, and what they refuse is told with its place."""

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.protobuf.schema import PROTOBUF, ProtobufSchema
from tests.schemas.protobuf.strategies import File, assert_kept, files, later, message


def parse(source: str) -> ProtobufSchema:
    return PROTOBUF.parse(source, {})


def reasons(reader: str, writer: str) -> list[str]:
    return PROTOBUF.incompatibilities(parse(reader), parse(writer))


def proto2(body: str) -> str:
    return f"message M {{ {body} }} message N {{ optional int32 x = 1; }}"


def proto3(body: str, package: str = "p", rest: str = "message N { int32 x = 1; }") -> str:
    return f'syntax = "proto3"; package {package}; message M {{ {body} }} {rest}'


def outer(schema: ProtobufSchema) -> Any:
    return schema.descriptor.message_types_by_name["A"]


@settings(max_examples=60)
@given(st.data())
def test_whatever_is_compatible_is_read_with_its_values(data: st.DataObject) -> None:
    file = data.draw(files())
    writer = parse(file.source())
    try:
        reader = parse(later(data.draw, file).source())
    except InvalidSchema:
        return  # a name was taken twice
    if PROTOBUF.incompatibilities(reader, writer):
        return

    written = message(data.draw, outer(writer))
    read = GetMessageClass(outer(reader)).FromString(written.SerializeToString())

    assert read.IsInitialized()
    assert_kept(written, read)


@settings(max_examples=40)
@given(files())
def test_every_schema_reads_itself(file: File) -> None:
    assert reasons(file.source(), file.source()) == []


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("", "int32 a = 1;"),
        ("int32 a = 1;", ""),
        ("int32 b = 1;", "int32 a = 1;"),
        *[(f"{kind} a = 1;", "int32 a = 1;") for kind in ("uint32", "int64", "uint64", "bool")],
        ("sint64 a = 1;", "sint32 a = 1;"),
        ("sfixed32 a = 1;", "fixed32 a = 1;"),
        ("sfixed64 a = 1;", "fixed64 a = 1;"),
        ("bytes a = 1;", "string a = 1;"),
        ("string a = 1;", "bytes a = 1;"),
        ("enum E { Z = 0; } E a = 1;", "enum E { Z = 0; Y = 1; } E a = 1;"),
        ("enum E { Z = 0; } E a = 1;", "enum E { Z = 0; } int32 a = 1;"),
        ("enum E { Z = 0; } bool a = 1;", "enum E { Z = 0; } E a = 1;"),
        ("repeated string a = 1;", "string a = 1;"),
        ("string a = 1;", "repeated bytes a = 1;"),
        ("repeated N a = 1;", "N a = 1;"),
        ("optional int32 a = 1;", "int32 a = 1;"),
        ("repeated int32 a = 1 [packed = false];", "repeated int32 a = 1;"),
        ("map<string, int64> a = 1;", "map<string, int32> a = 1;"),
        ("oneof x { int32 a = 1; }", "int32 a = 1;"),
        ("int32 a = 1; int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("int32 a = 1;", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("oneof y { int32 a = 1; int32 b = 2; }", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("oneof x { int32 a = 1; int32 b = 2; int32 c = 3; }", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("oneof x { int32 b = 2; } int32 a = 1;", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("reserved 1;", "int32 a = 1;"),
    ],
)
def test_it_may_become(now: str, before: str) -> None:
    assert reasons(proto3(now), proto3(before)) == []


@pytest.mark.parametrize(
    ("now", "before", "reason"),
    [
        ("sint32 a = 1;", "int32 a = 1;", "/M/a(1): the type is sint32, and was int32"),
        ("string b = 1;", "int32 a = 1;", "/M/b(1): the type is string, and was int32"),
        ("float a = 1;", "double a = 1;", "/M/a(1): the type is float, and was double"),
        ("fixed32 a = 1;", "float a = 1;", "/M/a(1): the type is fixed32, and was float"),
        ("fixed32 a = 1;", "fixed64 a = 1;", "/M/a(1): the type is fixed32, and was fixed64"),
        ("bytes a = 1;", "N a = 1;", "/M/a(1): the type is bytes, and was message"),
        ("enum E { Z = 0; } E a = 1;", "enum E { Z = 0; } N a = 1;", "/M/a(1): the type is enum, and was message"),
        ("repeated int32 a = 1;", "int32 a = 1;", "/M/a(1): the field is repeated, and was single"),
        ("int32 a = 1;", "repeated int32 a = 1;", "/M/a(1): the field is single, and was repeated"),
        ("M a = 1;", "N a = 1;", "/M/a(1): the type is p.M, and was p.N"),
        (
            "enum E { Z = 0; } enum D { Y = 0; } D a = 1;",
            "enum E { Z = 0; } E a = 1;",
            "/M/a(1): the type is p.M.D, and was p.M.E",
        ),
        ("repeated N a = 1;", "map<string, N> a = 1;", "/M/a(1): a map field cannot change its kind"),
        ("map<string, N> a = 1;", "repeated N a = 1;", "/M/a(1): a map field cannot change its kind"),
        ("map<string, string> a = 1;", "map<string, int32> a = 1;", "/M.AEntry/value(2): the type is string"),
        (
            "oneof x { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } int32 b = 2;",
            "/M/x: a(1), b(2) may have been set together",
        ),
        ("oneof x { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", "/M/x: a(1), b(2) may have been"),
        (
            "oneof x { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } oneof y { int32 b = 2; }",
            "/M/x: a(1), b(2) may have been set together",
        ),
        (
            "oneof x { int32 a = 1; int32 b = 2; }",
            "optional int32 a = 1; optional int32 b = 2;",
            "/M/x: a(1), b(2) may have been set together",
        ),
        ("oneof x { int32 a = 1; }", "oneof x { int32 a = 1; int32 b = 2; }", "/M/x: b(2) is gone from the oneof"),
        ("", "message O { }", "/M.O: the message is gone"),
    ],
)
def test_it_may_not_become(now: str, before: str, reason: str) -> None:
    found = reasons(proto3(now), proto3(before))

    assert len(found) == 1
    assert found[0].startswith(reason)


@pytest.mark.parametrize(
    ("now", "before", "reason"),
    [
        ("required int32 a = 1;", "", "/M/a(1): the field is required, and was not"),
        ("required int32 a = 1;", "optional int32 a = 1;", "/M/a(1): the field is required, and was not"),
        ("", "required int32 a = 1;", "/M/a(1): the field was required, and is gone"),
        (
            "enum E { A = 1; } required E e = 1;",
            "enum E { A = 1; B = 2; } required E e = 1;",
            "/M/e(1): the field is required, and its enum no longer has B",
        ),
        (
            "enum E { A = 1; } required E e = 1;",
            "required uint32 e = 1;",
            "/M/e(1): the field is required, and its enum does not have all numbers",
        ),
        ("optional N a = 1;", "optional group N2 = 1 { }", "/M/a(1): the type is message, and was group"),
    ],
)
def test_what_proto2_may_not_become(now: str, before: str, reason: str) -> None:
    found = reasons(proto2(now), proto2(before))

    assert any(one.startswith(reason) for one in found)


def test_what_was_required_may_become_optional() -> None:
    assert reasons(proto2("optional int32 a = 1;"), proto2("required int32 a = 1;")) == []


def test_messages_within_messages_are_compared() -> None:
    now, before = proto3("N n = 1;", rest="message N { string x = 1; }"), proto3("N n = 1;")

    assert reasons(now, before) == ["/N/x(1): the type is string, and was int32"]


def test_the_package_does_not_matter() -> None:
    assert reasons(proto3("N n = 1; M m = 2;", "p"), proto3("N n = 1; M m = 2;", "q.r")) == []


def test_a_message_that_is_gone_is_told_even_if_nothing_uses_it() -> None:
    assert reasons(proto3("", rest=""), proto3("")) == ["/N: the message is gone"]


def test_a_message_may_move_into_an_import_under_its_name() -> None:
    part = parse('syntax = "proto3"; package p; message N { int32 x = 1; }')
    before = parse(proto3("N n = 1;"))
    now = PROTOBUF.parse(
        'syntax = "proto3"; package p; import "part.proto"; message M { N n = 1; }', {"part.proto": part}
    )

    assert PROTOBUF.incompatibilities(now, before) == ["/N: the message is gone"]
    before_too = PROTOBUF.parse(
        'syntax = "proto3"; package p; import "old.proto"; message M { N n = 1; }', {"old.proto": part}
    )
    assert PROTOBUF.incompatibilities(now, before_too) == []


def test_imported_types_are_not_taken_for_others_of_the_same_shape() -> None:
    def using(name: str) -> str:
        path = f"google/protobuf/{name.lower()}.proto"
        return f'syntax = "proto3"; import "{path}"; message M {{ google.protobuf.{name} t = 1; }}'

    assert reasons(using("Timestamp"), using("Timestamp")) == []
    assert reasons(using("Timestamp"), using("Duration")) == [
        "/M/t(1): the type is google.protobuf.Timestamp, and was google.protobuf.Duration"
    ]


def test_extensions_are_fields() -> None:
    def extended(kind: str) -> str:
        return f"message M {{ extensions 100 to 200; }} extend M {{ optional {kind} e = 100; }}"

    assert reasons(extended("int64"), extended("int32")) == []
    assert reasons(extended("string"), extended("int32")) == ["/M/e(100): the type is string, and was int32"]
    assert reasons("message M { extensions 100 to 200; }", extended("int32")) == []


def test_messages_in_a_ring_are_compared_once_around() -> None:
    ring = 'syntax = "proto3"; message A {{ B b = 1; }} message B {{ C c = 1; }} message C {{ A a = 1; {} x = 2; }}'

    assert reasons(ring.format("int32"), ring.format("int64")) == []
    assert reasons(ring.format("int32"), ring.format("string")) == ["/C/x(2): the type is int32, and was string"]


def test_a_thousand_reasons_are_not_told() -> None:
    before = proto3("".join(f"int32 f{n} = {n};" for n in range(1, 1_000)))
    now = proto3("".join(f"string f{n} = {n};" for n in range(1, 1_000)))

    assert len(reasons(now, before)) == 100
