"""A file of Protobuf is one schema, however it is sent, and payloads are held against the message that they name."""

import base64
import io
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer, _init_pool, _str_to_proto
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.avro.schema import AVRO
from goqueue.schemas.format import PayloadFault, SchemaFormat
from goqueue.schemas.protobuf.schema import PROTOBUF, ProtobufSchema
from tests.schemas.protobuf.strategies import File, files, message

ORDER = """
syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";

message Order {
    int64 id = 1;
    string customer = 2;  // a person
    repeated Item items = 3;
    google.protobuf.Timestamp at = 4;
    message Item { string sku = 1; int32 count = 2; message Deep {} }
    map<string, Item> by_name = 5;
}
message Refund { Order order = 1; }
"""


def parse(source: str, **references: ProtobufSchema) -> ProtobufSchema:
    return PROTOBUF.parse(source, {name.replace("__", "."): schema for name, schema in references.items()})


def descriptor(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def built(schema: ProtobufSchema, name: str, **fields: Any) -> bytes:
    raw: bytes = GetMessageClass(schema.descriptor.message_types_by_name[name])(**fields).SerializeToString()
    return raw


def test_it_is_a_format() -> None:
    form: SchemaFormat = PROTOBUF

    assert form.name == "PROTOBUF"


def test_a_source_and_its_descriptor_are_one_schema() -> None:
    source = parse(ORDER)
    sent = parse(source.serialized())

    assert sent.canonical == source.canonical
    assert sent.normalized() == source.normalized()
    assert source.text == ORDER
    assert sent.text == source.serialized()


@settings(max_examples=40)
@given(files())
def test_any_source_and_its_descriptor_are_one_schema(file: File) -> None:
    source = parse(file.source())
    again = parse(source.normalized())

    assert parse(source.serialized()).canonical == source.canonical
    assert again.canonical == again.normalized() == source.normalized()
    assert PROTOBUF.incompatibilities(source, again) == []
    assert PROTOBUF.incompatibilities(again, source) == []


def test_comments_services_and_the_name_of_the_file_do_not_count() -> None:
    plain = parse("message M { optional int32 a = 1; }")
    named = FileDescriptorProto.FromString(base64.b64decode(plain.serialized()))
    named.name = "some/where.proto"
    named.source_code_info.location.add(leading_comments="hello")

    assert parse("/* x */ message M { // y\n optional int32 a = 1; } service S {}").canonical == plain.canonical
    assert parse('syntax = "proto2"; message M { optional int32 a = 1; }').canonical == plain.canonical
    assert parse(descriptor(named)).canonical == plain.canonical
    assert parse('message M { optional int32 a = 1 [json_name = "a"]; }').normalized() == plain.normalized()


def test_options_count() -> None:
    plain = parse("message M { optional int32 a = 1; }")

    assert parse("message M { optional int32 a = 1 [deprecated = true]; }").canonical != plain.canonical
    assert parse("message M { optional int32 a = 1 [(x) = 1]; }").canonical != plain.canonical


def test_normalized_texts_pass_over_the_order_of_what_has_none() -> None:
    head = 'import "google/protobuf/any.proto"; import "google/protobuf/empty.proto";'
    one = parse(f"{head} message M {{ optional int32 a = 1; optional int32 b = 2; reserved 8, 7; reserved 'y', 'x'; }}")
    head = 'import "google/protobuf/empty.proto"; import "google/protobuf/any.proto";'
    two = parse(f"{head} message M {{ optional int32 b = 2; optional int32 a = 1; reserved 7, 8; reserved 'x', 'y'; }}")

    assert one.canonical != two.canonical
    assert one.normalized() == two.normalized()


def test_normalized_texts_keep_the_order_of_messages_and_which_value_is_first() -> None:
    assert parse("message A {} message B {}").normalized() != parse("message B {} message A {}").normalized()
    assert parse("enum E { A = 1; B = 0; }").normalized() != parse("enum E { B = 0; A = 1; }").normalized()
    assert (
        parse("enum E { A = 1; B = 5; C = 3; }").normalized() == parse("enum E { A = 1; C = 3; B = 5; }").normalized()
    )


def test_public_imports_stay_public_when_imports_are_sorted() -> None:
    base = parse("message Base {}")
    part = parse('import public "base.proto"; import "any.proto";', base__proto=base, any__proto=parse(""))

    again = PROTOBUF.parse(part.normalized(), {"base.proto": base, "any.proto": parse("")})

    assert [again.file.dependency[index] for index in again.file.public_dependency] == ["base.proto"]


def test_the_record_name_is_the_full_name_of_the_first_message() -> None:
    assert parse(ORDER).record_name == "shop.Order"
    assert parse("message M {}").record_name == "M"
    assert parse("enum E { A = 0; }").record_name is None


def test_references_are_imported_by_name() -> None:
    base = parse('syntax = "proto3"; package b; message Base { int32 a = 1; }')
    middle = parse(
        'syntax = "proto3"; import public "base.proto"; message Middle { b.Base base = 1; }', base__proto=base
    )
    top = parse(
        'import "middle.proto"; message Top { required b.Base base = 1; optional Middle middle = 2; }',
        base__proto=base,
        middle__proto=middle,
    )

    assert top.compile().check(b"\0\x0a\x02\x08\x05") is None
    assert top.compile().check(b"\0") == PayloadFault("/base", "is required, and missing")


def test_a_schema_does_not_see_what_its_imports_import_for_themselves() -> None:
    base = parse("message Base {}")
    middle = parse('import "base.proto"; message Middle { optional Base base = 1; }', base__proto=base)

    with pytest.raises(InvalidSchema, match="there is no type `Base`"):
        parse('import "middle.proto"; message Top { optional Base base = 1; }', base__proto=base, middle__proto=middle)


@pytest.mark.parametrize(
    ("path", "type"),
    [
        ("google/protobuf/any.proto", "google.protobuf.Any"),
        ("google/protobuf/api.proto", "google.protobuf.Api"),
        ("google/protobuf/descriptor.proto", "google.protobuf.FileDescriptorProto"),
        ("google/protobuf/duration.proto", "google.protobuf.Duration"),
        ("google/protobuf/empty.proto", "google.protobuf.Empty"),
        ("google/protobuf/field_mask.proto", "google.protobuf.FieldMask"),
        ("google/protobuf/source_context.proto", "google.protobuf.SourceContext"),
        ("google/protobuf/struct.proto", "google.protobuf.Struct"),
        ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp"),
        ("google/protobuf/type.proto", "google.protobuf.Type"),
        ("google/protobuf/wrappers.proto", "google.protobuf.StringValue"),
        ("google/type/calendar_period.proto", "google.type.CalendarPeriod"),
        ("google/type/color.proto", "google.type.Color"),
        ("google/type/date.proto", "google.type.Date"),
        ("google/type/datetime.proto", "google.type.DateTime"),
        ("google/type/dayofweek.proto", "google.type.DayOfWeek"),
        ("google/type/expr.proto", "google.type.Expr"),
        ("google/type/fraction.proto", "google.type.Fraction"),
        ("google/type/latlng.proto", "google.type.LatLng"),
        ("google/type/money.proto", "google.type.Money"),
        ("google/type/month.proto", "google.type.Month"),
        ("google/type/postal_address.proto", "google.type.PostalAddress"),
        ("google/type/quaternion.proto", "google.type.Quaternion"),
        ("google/type/timeofday.proto", "google.type.TimeOfDay"),
        ("confluent/meta.proto", "confluent.Meta"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
        ("confluent/type/variant.proto", "confluent.type.Variant"),
        ("confluent/types/decimal.proto", "confluent.type.Decimal"),
    ],
)
def test_files_that_everybody_has_need_no_reference(path: str, type: str) -> None:
    schema = parse(f'syntax = "proto3"; import "{path}"; message M {{ {type} it = 1; }}')

    assert schema.compile().check(b"\0") is None
    assert parse(schema.serialized()).canonical == schema.canonical


def test_the_files_of_confluent_are_those_of_its_client() -> None:
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
    from confluent_kafka.schema_registry.confluent.types import decimal_pb2 as legacy_pb2

    from goqueue.schemas.protobuf.files import Library

    for module in (meta_pb2, decimal_pb2, variant_pb2, legacy_pb2):
        theirs = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        theirs.ClearField("name")
        assert Library({}).file(module.DESCRIPTOR.name) == theirs


def test_a_reference_may_have_any_name() -> None:
    for name in ("schema.proto", "_schema.proto", "a b/ü"):
        part = parse("message Part {}")
        schema = PROTOBUF.parse(f'import "{name}"; message M {{ optional Part part = 1; }}', {name: part})

        assert schema.compile().check(b"\0\x0a\x00") is None


def test_payloads_name_their_message_by_its_place() -> None:
    schema = parse(ORDER)
    check = schema.compile().check
    order, refund = built(schema, "Order", id=7), built(schema, "Refund", order={"id": 7})

    assert check(b"\0" + order) is None
    assert check(b"\2\0" + order) is None
    assert check(b"\2\2" + refund) is None
    assert check(b"\4\0\0\x0a\x01a") is None
    assert check(b"\6\0\0\0") is None
    assert check(b"\2\x82\0" + refund) is None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "does not begin with the place of a message"),
        (b"\2", "does not begin with the place of a message"),
        (b"\4\0", "does not begin with the place of a message"),
        (b"\1\0", "does not begin with the place of a message"),
        (b"\xff", "does not begin with the place of a message"),
        (b"\xff" * 50, "does not begin with the place of a message"),
        (b"\xfe\xff\xff\xff\x0f" + b"\0" * 50, "does not begin with the place of a message"),
        (b"\2\4", "the schema has no message at [2]"),
        (b"\2\1", "the schema has no message at [-1]"),
        (b"\4\0\x20", "the schema has no message at [0, 16]"),
        (b"\4\0\2", "the schema has no message at [0, 1]"),  # the entry of a map
        (b"\6\0\0\2", "the schema has no message at [0, 0, 1]"),
        (b"\0\x08", "is no message shop.Order"),
        (b"\0\x08" + b"\xff" * 11, "is no message shop.Order"),
        (b"\0\x12\x05ab", "is no message shop.Order"),
        (b"\0\x12\x01\xff", "is no message shop.Order"),
        (b"\0\x00", "is no message shop.Order"),
        (b"\0\x0c", "is no message shop.Order"),
        (b"\0\x1a\x02\x0a\x05", "is no message shop.Order"),
        (b"\2\2\x0a\x7f", "is no message shop.Refund"),
    ],
)
def test_what_is_no_such_message_is_refused(payload: bytes, reason: str) -> None:
    checked = parse(ORDER).compile()
    fault = checked.check(payload)

    assert fault
    assert fault.path == ""
    assert fault.reason.startswith(reason)
    assert checked.check_many([b"\0", payload, b""]) == (1, fault)


def test_fields_that_nobody_knows_are_allowed() -> None:
    assert parse(ORDER).compile().check(b"\0\xf8\x07\x01") is None


def test_what_is_required_must_be_there_however_deep() -> None:
    schema = parse(
        """
        message M { repeated N list = 1; map<string, N> map = 2; optional M again = 3; extensions 100 to 200; }
        message N { required int32 a = 1; }
        message Free { optional int32 a = 1; }
        extend Free2 { optional N n = 100; }
        message Free2 { extensions 100 to 200; }
        """
    )
    check = schema.compile().check

    assert check(b"\0") is None
    assert check(b"\0\x0a\x02\x08\x01\x0a\x02\x08\x01") is None
    assert check(b"\0\x0a\x02\x08\x01\x0a\x00") == PayloadFault("/list/1/a", "is required, and missing")
    assert check(b"\0\x1a\x02\x0a\x00") == PayloadFault("/again/list/0/a", "is required, and missing")
    assert check(b"\0\x12\x05\x0a\x01k\x12\x00") == PayloadFault("/map/k/a", "is required, and missing")
    odd = b'x"].y/~'
    assert check(b"\0\x12\x0b\x0a\x07" + odd + b"\x12\x00") == PayloadFault(
        '/map/x\\"].y~1~0/a', "is required, and missing"
    )
    assert check(b"\2\2") == PayloadFault("/a", "is required, and missing")
    assert check(b"\2\4") is None
    assert check(b"\2\6\xa2\x06\x00") == PayloadFault("/n/a", "is required, and missing")
    assert schema.compile().check_many([b"\0", b"\0\x0a\x00"]) == (
        1,
        PayloadFault("/list/0/a", "is required, and missing"),
    )


@settings(max_examples=40)
@given(st.data())
def test_what_protobuf_wrote_fits(data: st.DataObject) -> None:
    schema = parse(data.draw(files()).source())
    payload = b"\0" + message(data.draw, schema.descriptor.message_types_by_name["A"]).SerializeToString()

    assert schema.compile().check(payload) is None
    assert schema.compile().check_many([payload] * 3) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_accepted_or_refused(payload: bytes) -> None:
    checked = parse(ORDER).compile()
    fault = checked.check(payload)

    assert checked.check_many([payload]) == ((0, fault) if fault else None)


@given(st.binary(max_size=300))
def test_any_base64_is_read_or_refused(raw: bytes) -> None:
    try:
        parse(base64.b64encode(raw).decode())
    except InvalidSchema as error:
        assert error.reason


@given(st.data())
def test_a_broken_descriptor_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(base64.b64decode(parse(ORDER).serialized()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        schema = parse(base64.b64encode(raw).decode())
    except InvalidSchema:
        return

    schema.compile().check_many([b"\0", b"\0\x08\x01", b"\2\2", b"\4\0\0"])
    assert PROTOBUF.incompatibilities(schema, schema) == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("message M {} message M {}", "duplicate symbol 'M'"),
        ("message M { optional int32 a = 1; optional int32 b = 1; }", "duplicate field number"),
        ("message M { optional int32 a = 1; optional int32 a = 2; }", "duplicate field name"),
        ("message M { optional int32 a = 19000; }", "the number 19000 of M.a belongs to Protobuf itself"),
        ("message M { optional int32 a = 5; reserved 4 to 6; }", "the number 5 of M.a is reserved"),
        (
            "message M { message N { optional int32 a = 5; reserved 1, 3 to max; } }",
            "the number 5 of M.N.a is reserved",
        ),
        ("message M { optional int32 a = 5; reserved 'a'; }", "the name of M.a is reserved"),
        ("message M { reserved 1 to 5, 5; }", "M reserves the number 5 twice"),
        ("enum E { A = 1; reserved 1; }", "the number 1 of E.A is reserved"),
        ("enum E { A = 3; reserved 1 to 3; }", "the number 3 of E.A is reserved"),
        ("message M { enum E { A = 1; reserved 'A'; } }", "the name of E.A is reserved"),
        ("enum E { A = 1; B = 1; }", "A and B of E have the same number"),
        ("enum E { }", "enums must contain at least one value"),
        ('syntax = "proto3"; enum E { A = 1; }', "the first value must be zero"),
        ('syntax = "proto3"; message M { int32 a = 1 [default = 3]; }', "cannot have explicit defaults"),
        ("message M { optional int32 a = 1 [default = 99999999999]; }", "Invalid default"),
        ("message M { optional E a = 1 [default = X]; } enum E { A = 0; }", "X"),
        ("message M { oneof x { } }", "Empty oneof"),
        ('import "nowhere.proto";', "it imports 'nowhere.proto', which is not among its references"),
        ('import "google/protobuf/nothing.proto";', "which is not among its references"),
        ('import "confluent/nothing.proto";', "which is not among its references"),
    ],
)
def test_what_protobuf_does_not_allow_is_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidSchema) as raised:
        parse(source)

    assert reason in raised.value.reason


def file_of(**message: Any) -> FileDescriptorProto:
    return FileDescriptorProto(message_type=[{"name": "M", **message}])


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (FileDescriptorProto(syntax="editions"), "the syntax 'editions' is not supported"),
        (FileDescriptorProto(syntax="proto4"), "the syntax 'proto4' is not supported"),
        (file_of(field=[{"name": "a", "number": 1}]), "the field M.a has no type"),
        (file_of(field=[{"name": "a", "number": 0, "type": 5}]), "invalid field number"),
        (file_of(field=[{"name": "a b", "number": 1, "type": 5}]), "non-alphanumeric"),
        (file_of(field=[{"name": "a", "number": 1, "type": 11, "type_name": ".N"}]), "couldn't resolve name"),
        (file_of(field=[{"name": "a", "number": 1, "type": 5, "oneof_index": 3}]), "oneof_index out of range"),
        (file_of(options={"map_entry": True}), "M says that it is the entry of a map, and is not"),
        (
            file_of(
                options={"map_entry": True},
                field=[{"name": "key", "number": 1, "type": 1}, {"name": "value", "number": 2, "type": 5}],
            ),
            "M says that it is the entry of a map",
        ),
        (
            file_of(
                options={"map_entry": True},
                nested_type=[{"name": "N"}],
                field=[{"name": "key", "number": 1, "type": 5}, {"name": "value", "number": 2, "type": 5}],
            ),
            "M says that it is the entry of a map",
        ),
        (
            FileDescriptorProto(
                syntax="proto3",
                message_type=[
                    {
                        "name": "M",
                        "nested_type": [{"name": "G"}],
                        "field": [{"name": "g", "number": 1, "type": 10, "type_name": ".M.G"}],
                    }
                ],
            ),
            "the group M.g is in a file of proto3",
        ),
    ],
)
def test_a_descriptor_that_no_compiler_makes_is_refused(file: FileDescriptorProto, reason: str) -> None:
    with pytest.raises(InvalidSchema) as raised:
        parse(descriptor(file))

    assert reason in raised.value.reason


def test_a_file_cannot_import_itself_through_others() -> None:
    first = parse("message A {}")
    first.file.dependency.append("b.proto")
    second = parse("message B {}")
    second.file.dependency.append("a.proto")

    with pytest.raises(InvalidSchema, match="imports itself"):
        parse('import "a.proto";', a__proto=first, b__proto=second)


def test_names_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InvalidSchema):
        parse(base64.b64encode(b"\x22\x04\x0a\x02\xff\xfe").decode())


def test_a_reference_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="'other' is no Protobuf schema"):
        PROTOBUF.parse("message M {}", {"other": AVRO.parse("int", {})})


@pytest.mark.parametrize(
    "file",
    [
        FileDescriptorProto(message_type=[{"name": f"M{n}"} for n in range(20_001)]),
        file_of(field=[{"name": f"f{n}", "number": n + 1, "type": 8} for n in range(20_001)]),
        file_of(reserved_range=[{"start": n, "end": n + 1} for n in range(1, 20_002)]),
        FileDescriptorProto(
            enum_type=[{"name": "E", "value": [{"name": f"V{n}", "number": n} for n in range(20_001)]}]
        ),
        file_of(enum_type=[{"name": f"E{n}"} for n in range(20_001)]),
    ],
    ids=["messages", "fields", "ranges", "values", "enums"],
)
def test_a_file_that_nobody_wrote_is_refused(file: FileDescriptorProto) -> None:
    with pytest.raises(InvalidSchema, match="declares more than 20000 things"):
        parse(descriptor(file))


def test_messages_that_nest_too_deep_are_refused() -> None:
    def varint(number: int) -> bytes:
        return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14])

    raw = b"\x0a\x01M"
    for _ in range(5_000):
        raw = b"\x0a\x01M\x1a" + varint(len(raw)) + raw

    with pytest.raises(InvalidSchema):
        parse(base64.b64encode(b"\x22" + varint(len(raw)) + raw).decode())


def test_a_chain_of_messages_is_as_long_as_the_file() -> None:
    links = "".join(f"message M{n} {{ M{n + 1} next = 1; }}" for n in range(3_000))
    schema = parse(f'syntax = "proto3"; {links} message M3000 {{}}')

    assert schema.compile().check(b"\0\x0a\x00") is None
    assert PROTOBUF.incompatibilities(schema, schema) == []


def test_a_payload_that_nests_without_end_is_refused() -> None:
    def varint(number: int) -> bytes:
        found = bytearray()
        while number > 127:
            found.append(number & 127 | 128)
            number >>= 7
        return bytes([*found, number])

    raw = b""
    for _ in range(20_000):
        raw = b"\x0a" + varint(len(raw)) + raw

    assert parse("message M { optional M m = 1; }").compile().check(b"\0" + raw) == PayloadFault("", "is no message M")
    assert (
        parse("message M { optional group G = 1 { optional M m = 2; } }").compile().check(b"\0" + b"\x0b\x12" * 9_000)
    )


def test_the_places_that_confluents_serializer_writes_are_understood() -> None:
    check = parse(ORDER).compile().check

    for places in ([0], [1], [0, 0], [0, 0, 0]):
        prefix = io.BytesIO()
        ProtobufSerializer._encode_varints(prefix, places)
        assert check(prefix.getvalue()) is None


def test_what_is_served_is_what_confluents_client_takes() -> None:
    base = parse(
        'syntax = "proto3"; import "confluent/meta.proto";'
        'message Base { int32 a = 1 [(confluent.field_meta).doc = "x"]; }'
    )
    top = parse('import "base.proto"; message Top { optional Base base = 1; }', base__proto=base)
    pool = DescriptorPool()
    _init_pool(pool)

    pool.Add(_str_to_proto("base.proto", base.serialized()))
    pool.Add(_str_to_proto("default", top.serialized()))

    made = GetMessageClass(pool.FindMessageTypeByName("Top"))(base={"a": 1}).SerializeToString()
    assert top.compile().check(b"\0" + made) is None
