"""A .proto file becomes the descriptor that protoc makes of it, or is refused with line and column."""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google.type
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.protobuf import text as proto_text

ROOT = Path(next(iter(google.type.__path__))).parent.parent
SOURCES = sorted(path.relative_to(ROOT) for path in (ROOT / "google").rglob("*.proto"))


def known(dependencies: Sequence[str]) -> Iterator[FileDescriptorProto]:
    """What was compiled by protoc and is loaded."""
    for name in dependencies:
        file = FileDescriptorProto.FromString(descriptor_pool.Default().FindFileByName(name).serialized_pb)
        yield file
        yield from known([file.dependency[index] for index in file.public_dependency])


def parse(source: str) -> Any:
    return proto_text.parse(source, known)


def field_of(declaration: str, syntax: str = "proto2") -> Any:
    return parse(f'syntax = "{syntax}"; message M {{ {declaration} }}').message_type[0].field[0]


def without_foreign_options(file: Any) -> Any:
    for field, value in file.ListFields():
        if field.name == "options":
            value.ClearField("uninterpreted_option")
            value.DiscardUnknownFields()
            for extension, _ in value.ListFields():
                if extension.is_extension:
                    value.ClearExtension(extension)
            if not value.ListFields():
                file.ClearField("options")
        elif field.message_type:
            for part in value if field.is_repeated else [value]:
                without_foreign_options(part)
    return file


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_it_makes_of_a_file_what_protoc_makes_of_it(path: Path) -> None:
    module = importlib.import_module(f"{str(path.with_suffix('')).replace('/', '.')}_pb2")
    expected = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    expected.ClearField("name")
    expected.ClearField("service")

    found = parse((ROOT / path).read_text())

    assert without_foreign_options(found) == without_foreign_options(expected)


def test_there_are_files_to_compare_with() -> None:
    assert len(SOURCES) > 15


def test_an_empty_file_is_a_file() -> None:
    assert parse("") == FileDescriptorProto()
    assert parse("\ufeff // nothing\n /* and\n nothing */ ;;") == FileDescriptorProto()


def test_proto2_is_what_a_file_without_syntax_is() -> None:
    assert parse('syntax = "proto2";') == parse("")
    assert parse("syntax = 'proto' '3';").syntax == "proto3"


def test_comments_and_white_space_are_passed_over() -> None:
    file = parse("message/**/M{//x\noptional/* a */int32\ta=1;/**//**/}")

    assert file == parse("message M { optional int32 a = 1; }")


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("optional int32 a = 1 [default = 0x10];", "16"),
        ("optional int32 a = 1 [default = -017];", "-15"),
        ("optional double a = 1 [default = -1.5e3];", "-1.5e3"),
        ("optional double a = 1 [default = .5];", ".5"),
        ("optional double a = 1 [default = -inf];", "-inf"),
        ("optional double a = 1 [default = nan];", "nan"),
        ("optional bool a = 1 [default = true];", "true"),
        ("optional string a = 1 [default = 'a' \"b\\n\\x41\\101\\u00e4\"];", "ab\nAA\u00e4"),
        ("optional bytes a = 1 [default = '\\xff\\0\"a'];", "\\377\\000\\042a"),
        ("optional E a = 1 [default = B]; enum E { A = 0; B = 1; }", "B"),
    ],
)
def test_defaults_are_kept_as_protoc_keeps_them(declaration: str, expected: str) -> None:
    assert field_of(declaration).default_value == expected


def test_a_map_is_a_repeated_entry() -> None:
    message = parse('syntax = "proto3"; message M { map<int32, M> by_long_name = 7; }').message_type[0]

    assert message.nested_type[0].name == "ByLongNameEntry"
    assert message.nested_type[0].options.map_entry
    assert [one.type_name for one in (message.field[0], message.nested_type[0].field[1])] == [
        ".M.ByLongNameEntry",
        ".M",
    ]


def test_an_optional_of_proto3_is_a_oneof_behind_all_others() -> None:
    source = 'syntax = "proto3"; message M { optional int32 a = 1; oneof x { int32 _a = 2; } optional int32 b = 3; }'
    message = parse(source).message_type[0]

    assert [oneof.name for oneof in message.oneof_decl] == ["x", "X_a", "_b"]
    assert [field.oneof_index for field in message.field] == [1, 0, 2]
    assert [field.proto3_optional for field in message.field] == [True, False, True]


def test_a_group_is_a_message_and_a_field() -> None:
    message = parse(
        "message M { repeated group Result = 1 { optional int32 a = 2; } oneof x { group G = 3 {} } }"
    ).message_type[0]

    assert [(field.name, field.type_name) for field in message.field] == [("result", ".M.Result"), ("g", ".M.G")]
    assert [nested.name for nested in message.nested_type] == ["Result", "G"]


def test_extensions_know_whom_they_extend() -> None:
    file = parse(
        "package p; message M { extensions 100 to 199, 500 to max [verification = UNVERIFIED]; }"
        "extend M { optional int32 a = 100; optional group G = 101 {} }"
        "message N { extend .p.M { repeated M b = 102; } }"
    )

    assert [(one.name, one.extendee) for one in file.extension] == [("a", ".p.M"), ("g", ".p.M")]
    assert file.message_type[2].extension[0].extendee == ".p.M"
    assert [nested.name for nested in file.message_type] == ["M", "G", "N"]
    assert [(one.start, one.end) for one in file.message_type[0].extension_range] == [(100, 200), (500, 2**29)]


def test_ranges_of_messages_end_before_and_of_enums_at_their_end() -> None:
    file = parse(
        "message M { reserved 2 to 4, 9; reserved 'a', 'b'; } enum E { A = 1; reserved -5 to -1, 7, 100 to max; }"
    )

    assert [(one.start, one.end) for one in file.message_type[0].reserved_range] == [(2, 5), (9, 10)]
    assert list(file.message_type[0].reserved_name) == ["a", "b"]
    assert [(one.start, one.end) for one in file.enum_type[0].reserved_range] == [(-5, -1), (7, 7), (100, 2**31 - 1)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("T", ".a.b.M.T"),
        ("M.T", ".a.b.M.T"),
        ("b.M.T", ".a.b.M.T"),
        ("a.b.T", ".a.b.T"),
        (".a.b.T", ".a.b.T"),
        ("b.T", ".a.b.T"),
        ("N", ".a.b.N"),
    ],
)
def test_a_name_is_the_innermost_that_fits(name: str, expected: str) -> None:
    file = parse(f"package a.b; message M {{ optional {name} f = 1; message T {{}} }} message T {{}} message N {{}}")

    assert file.message_type[0].field[0].type_name == expected


def test_options_are_set_and_those_of_others_are_kept() -> None:
    file = parse(
        """
        import "google/protobuf/descriptor.proto";
        option java_package = "x"; option optimize_for = CODE_SIZE; option (mine).a.(b.c) = { x: 1, y { z: "}" } };
        option (number) = -1.5; option (word) = yes;
        message M {
            option deprecated = true;
            optional int32 a = 1 [
                deprecated = true, (mine) = "s", jstype = JS_STRING, json_name = "A", targets = TARGET_TYPE_FIELD
            ];
        }
        enum E { option allow_alias = true; A = 0 [deprecated = true]; B = 0; }
        service S { rpc Do(M) returns (M) { option (x) = { y: "}" }; } }
        """
    )

    assert file.options.java_package == "x"
    assert file.options.optimize_for == 2
    first, second, third = file.options.uninterpreted_option
    assert [(part.name_part, part.is_extension) for part in first.name] == [("mine", True), ("a", False), ("b.c", True)]
    assert first.aggregate_value == 'x : 1 , y { z : "}" }'
    assert (second.identifier_value, third.identifier_value) == ("-1.5", "yes")
    field = file.message_type[0].field[0]
    assert field.options.deprecated
    assert field.options.jstype == 1
    assert field.json_name == "A"
    assert field.options.uninterpreted_option[0].string_value == b"s"
    assert file.enum_type[0].value[0].options.deprecated
    assert not file.service


@pytest.mark.parametrize(
    ("source", "place", "reason"),
    [
        ("x", "line 1, column 1", "`x` cannot stand here"),
        ("message", "line 1, column 8", "a name is expected, and the end is there"),
        ("message M {", "line 1, column 12", "is expected"),
        ("message M { optional int32 a = 1 }", "line 1, column 34", "`;` is expected, and `}` is there"),
        ("\n\n  message 7 {}", "line 3, column 11", "a name is expected, and `7` is there"),
        ("message M {\n  int32 a = 1;\n}", "line 2, column 3", "`optional`, `required` or `repeated` is expected"),
        ('syntax = "proto4";', "line 1, column 10", "there is no syntax 'proto4'"),
        ('edition = "2023";', "line 1, column 1", "editions are not supported"),
        ('syntax = "proto3"; message M { required int32 a = 1; }', "line 1, column 41", "proto3 has no required"),
        ('syntax = "proto3"; message M { optional group G = 1 {} }', "line 1, column 47", "a group belongs to proto2"),
        ("message M { optional group g = 1 {} }", "line 1, column 28", "its name begins with a capital letter"),
        ("message M { optional int32 a = 0; }", "line 1, column 32", "0 is not between 1 and 536870911"),
        ("message M { optional int32 a = -1; }", "line 1, column 32", "-1 is not between"),
        ("message M { optional int32 a = 536870912; }", "line 1, column 32", "536870912 is not between"),
        ("message M { optional int32 a = " + "9" * 5_000 + "; }", "line 1, column 32", "a whole number is expected"),
        ("message M { optional int32 a = x; }", "line 1, column 32", "a whole number is expected, and `x` is there"),
        ("message M { optional int32 a = 09; }", "line 1, column 31", "there is something"),
        ("message M { optional int32 a = 1a; }", "line 1, column 31", "there is something"),
        ("message M { optional N a = 1; }", "line 1, column 22", "there is no type `N`"),
        ("message M { optional .M.N a = 1; }", "line 1, column 22", "there is no type `.M.N`"),
        ("extend N { optional int32 a = 1; }", "line 1, column 8", "there is no type `N`"),
        ("message M { map<double, M> a = 1; }", "line 1, column 17", "the keys of a map are"),
        ("message M { repeated map<int32, M> a = 1; }", "line 1, column 22", "a map has no label"),
        ("message M { oneof x { map<int32, M> a = 1; } }", "line 1, column 23", "a map has no label"),
        ("message M { oneof x { optional int32 a = 1; } }", "line 1, column 23", "a field of a oneof has no label"),
        ("enum E { A = 2147483648; }", "line 1, column 14", "2147483648 is not between"),
        ("enum E { A }", "line 1, column 12", "`=` is expected"),
        ("package a; package b;", "line 1, column 12", "the file has a package already"),
        ('import "a"; import "a";', "line 1, column 20", "'a' is imported already"),
        ("message M { reserved 5 to 3; }", "line 1, column 27", "3 is not between 5 and"),
        ("option nothing = 1;", "line 1, column 8", "there is no option `nothing`"),
        ("option java_package = 1;", "line 1, column 8", "the option `java_package` cannot be that"),
        ("option java_multiple_files = 'x';", "line 1, column 8", "the option `java_multiple_files` cannot be that"),
        ("option optimize_for = FASTEST;", "line 1, column 8", "the option `optimize_for` cannot be that"),
        ("option java_package.x = 'a';", "line 1, column 8", "the option `java_package` cannot be that"),
        ("option features.x = 1;", "line 1, column 8", "the option `features` cannot be set"),
        ("message M { option map_entry = true; }", "line 1, column 20", "the option `map_entry` cannot be set"),
        ("option (x) = -y;", "line 1, column 14", "a name has no sign"),
        ("option (x) = { ;", "line 1, column 17", "`}` is expected, and the end is there"),
        ("message M { optional int32 a = 1 [default = 'x']; }", "line 1, column 35", "the default is of another type"),
        ("message M { optional string a = 1 [default = 7]; }", "line 1, column 36", "the default is of another type"),
        ("message M { optional bytes a = 1 [default = 7]; }", "line 1, column 35", "the default is of another type"),
        ("message M { optional int32 a = 1 [default = {}]; }", "line 1, column 35", "the default is of another type"),
        ("message M { optional int32 a = 1 [default = 1, default = 2]; }", "line 1, column 48", "a default already"),
        ("message M { optional int32 a = 1 [json_name = 2]; }", "line 1, column 35", "a json_name is a string"),
        ('import "a\\q";', "line 1, column 8", "an escape that does not exist"),
        ('import "a\\xff";', "line 1, column 8", "the string is not UTF-8"),
        ('import "a\\Uffffffff";', "line 1, column 8", "an escape that does not exist"),
        ('import "a\\ud800";', "line 1, column 8", "an escape that does not exist"),
        ('import "a\n";', "line 1, column 7", "there is something that belongs to no .proto file"),
        ("/* never ended", "line 1, column 1", "a name is expected, and `/` is there"),
        ("message \u00c4 {}", "line 1, column 8", "there is something that belongs to no .proto file"),
        ("message M { optional int32 \ud800 = 1; }", "line 1, column 27", "there is something"),
    ],
)
def test_it_is_refused(source: str, place: str, reason: str) -> None:
    with pytest.raises(InvalidSchema) as raised:
        proto_text.parse(source, lambda _: [])

    assert reason in raised.value.reason
    assert raised.value.path == place


def test_messages_nest_so_deep_and_no_deeper() -> None:
    def nested(depth: int) -> str:
        return "message M {" * depth + "}" * depth

    parse(nested(32))
    for depth in (33, 50_000):
        with pytest.raises(InvalidSchema, match="nest more than 32 deep"):
            parse(nested(depth))


@pytest.mark.parametrize(
    "source",
    [
        ";" * 1_000_000,
        "message A {} " * 60_000,
        "/**/" * 250_000 + "x",
        "/*" * 500_000,
        "//\n" * 300_000 + "?",
        '"' * 1_000_000,
        "'" + "\\" * 1_000_000,
        "import " + "'a'" * 300_000 + ";",
        "." * 1_000_000,
        "message M { optional " + "a." * 400_000 + "b c = 1; }",
        "a" * 1_000_000,
        "1" * 1_000_000,
        "option (x) = " + "{" * 500_000,
        "option " + "a." * 400_000 + "a = 1;",
        "option x = " + "1" * 500_000 + ";",
        "enum E { " + "A = 0; " * 40_000 + "}",
        "message M { reserved " + "1, " * 300_000 + "2; }",
        " " * 1_000_000 + "x",
    ],
    ids=lambda source: source[:20],
)
def test_a_mebibyte_of_it_is_refused_in_time(source: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(source)


@given(st.text(alphabet="messag M{}=1;int32op/*\"'.<>[]()-,\\\n\x00ä", max_size=60))
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        parse(source)
    except InvalidSchema as error:
        assert error.path.startswith("line ")


@given(st.data())
def test_a_file_with_a_piece_missing_is_read_or_refused(data: st.DataObject) -> None:
    source = (ROOT / data.draw(st.sampled_from(SOURCES[-17:]))).read_text()
    start = data.draw(st.integers(0, len(source)))
    end = start + data.draw(st.integers(0, 20))
    try:
        parse(source[:start] + data.draw(st.sampled_from(["", ";", "{", "}", "message", "'", "1"])) + source[end:])
    except (InvalidSchema, KeyError):
        pass  # KeyError: `known` does not have every name
