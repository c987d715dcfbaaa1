"""Bytes are accepted if they are Avro, at once if they are not, whatever they claim to be."""

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.schemas.avro.binary import EMPTY_ITEMS_MAX, BinaryValidator
from goqueue.schemas.avro.text import Reader
from goqueue.schemas.format import PayloadFault
from tests.schemas.avro.strategies import payloads, schemas, zigzag

Json = Any
MIB = 1024 * 1024


def validator(schema: Json) -> BinaryValidator:
    return BinaryValidator(Reader({}).read(schema))


def record(*types: Json, name: str = "R") -> Json:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": type} for n, type in enumerate(types)]}


def array(items: Json) -> Json:
    return {"type": "array", "items": items}


def mapping(values: Json) -> Json:
    return {"type": "map", "values": values}


LINKS = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
}
NUMBERS = [
    b"\0",
    b"\x7f",
    b"\x80\1",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x10",
    b"\x80" * 9 + b"\1",
    b"\x80" * 9 + b"\2",
    b"\x80" * 10 + b"\0",
]


@given(st.data())
def test_what_was_written_by_the_specification_fits(data: st.DataObject) -> None:
    schema, names = data.draw(schemas())
    payload = payloads(data.draw, schema, names)

    assert validator(schema).check(payload) is None
    assert validator(schema).check_many([payload, payload]) is None


@given(st.data())
def test_what_fits_is_read_by_fastavro_to_its_end(data: st.DataObject) -> None:
    schema, names = data.draw(schemas())
    payload = bytearray(payloads(data.draw, schema, names))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    if validator(schema).check(bytes(payload)):
        return

    stream = io.BytesIO(payload)
    fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert not stream.read()


@given(st.data())
def test_a_payload_without_its_end_does_not_fit(data: st.DataObject) -> None:
    schema, names = data.draw(schemas())
    payload = payloads(data.draw, schema, names)
    if not payload:
        return

    assert validator(schema).check(payload[: data.draw(st.integers(0, len(payload) - 1))])
    assert validator(schema).check(payload + b"\0")


@given(schemas(), st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused(drawn: tuple[Json, dict[str, Json]], payload: bytes) -> None:
    checked = validator(drawn[0])
    fault = checked.check(payload)

    assert checked.check_many([payload]) == ((0, fault) if fault else None)


@pytest.mark.parametrize(
    ("schema", "payload", "path", "reason"),
    [
        ("int", b"", "", "ends too early"),
        ("int", b"\0\0", "", "ends after 1 bytes, and there are 2"),
        ("null", b"\0", "", "ends after 0 bytes, and there are 1"),
        ("boolean", b"\2", "", "a boolean is 0 or 1, not 2"),
        ("int", b"\x80\x80\x80\x80\x10", "", "an int has more than 32 bits"),
        ("int", b"\xff" * 5, "", "an int has more than 32 bits"),
        ("long", b"\xff" * 9 + b"\2", "", "a long has more than 64 bits"),
        ("long", b"\xff" * MIB, "", "a long has more than 64 bits"),
        ("float", b"\0\0\0", "", "ends too early"),
        ("string", b"\1", "", "a length is negative"),
        ("bytes", b"\1", "", "a length is negative"),
        ("bytes", b"\4a", "", "ends too early"),
        ("string", b"\4a", "", "ends too early"),
        ("string", b"\2\xff", "", "a string is not UTF-8"),
        ("string", b"\xff" * 9 + b"\2", "", "a number has more than 64 bits"),
        ("bytes", zigzag(2**62), "", "ends too early"),
        ({"type": "fixed", "name": "F", "size": 2**60}, b"abc", "", "ends too early"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "", "the enum has no symbol 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\1", "", "the enum has no symbol -1"),
        ({"type": "enum", "name": "E", "symbols": []}, b"\0", "", "the enum has no symbol 0"),
        (["null", "int"], b"\4", "", "the union has no type 2"),
        (["null", "int"], b"\1", "", "the union has no type -1"),
        (["null", "int"], b"\2", "", "ends too early"),
        ([], b"\0", "", "the union has no type 0"),
        (record("int", "boolean"), b"\0", "/f1", "ends too early"),
        (record("int", "boolean"), b"\0\2", "/f1", "a boolean is 0 or 1, not 2"),
        (record("null", "boolean"), b"\2", "/f1", "a boolean is 0 or 1, not 2"),
        (record(record("boolean", name="S")), b"\2", "/f0/f0", "a boolean is 0 or 1, not 2"),
        (record("int", record("boolean", name="S")), b"\0\2", "/f1/f0", "a boolean is 0 or 1, not 2"),
        (array("string"), b"\4\2a\2\xff\0", "/1", "a string is not UTF-8"),
        (array(record("string")), b"\4\2a\2\xff\0", "/1/f0", "a string is not UTF-8"),
        (array(["null", record("int", "boolean")]), b"\4\0\2\0\2\0", "/1/f1", "a boolean is 0 or 1, not 2"),
        (array("string"), b"\2\2a\2\2\xff\0", "/1", "a string is not UTF-8"),
        (array("int"), b"\2\0", "", "ends too early"),
        (array("int"), zigzag(2**60) + b"\0" * 10, "", f"a block claims {2**60} items, and there are 10 bytes"),
        (array("int"), zigzag(-(2**63)) + b"\0" * 10, "", f"a block claims {2**63} items, and there are 9 bytes"),
        (array("int"), b"\1\6\0\0\0", "", "a block of the array ends at byte 3, and said 5"),
        (array("int"), b"\1\1\0\0", "", "a block claims -1 bytes, and there are 2"),
        (array("int"), b"\1\x7e\0\0", "", "a block claims 63 bytes, and there are 2"),
        (mapping("boolean"), b"\2\2a\2\0", "/a", "a boolean is 0 or 1, not 2"),
        (mapping("boolean"), b"\2\4~/\2\0", "/~0~1", "a boolean is 0 or 1, not 2"),
        (mapping(record("boolean")), b"\2\2a\2\0", "/a/f0", "a boolean is 0 or 1, not 2"),
        (mapping("boolean"), b"\2\2\xff\0\0", "", "a string is not UTF-8"),
        (mapping("boolean"), b"\4\2a\0\2\xff\0\0", "", "a string is not UTF-8"),
        (mapping("boolean"), b"\2\2a", "/a", "ends too early"),
        (mapping("null"), b"\1\4\0\0", "", "a block of the map ends at byte 3, and said 4"),
        (mapping("null"), zigzag(2**60), "", f"a block claims {2**60} items"),
        (LINKS, b"\0\2\0\2\0\4", "/next/next/next", "the union has no type 2"),
        (array("boolean"), b"\4\0\2\0", "/1", "a boolean is 0 or 1, not 2"),
        (array("boolean"), zigzag(40) + b"\0" * 39 + b"\2\0", "", "a boolean is 0 or 1"),
        (array("long"), zigzag(40) + b"\0" * 30 + b"\x80" * 10 + b"\0" * 20, "", "a long has more than 64 bits"),
        (array("int"), zigzag(40) + b"\0" * 30 + b"\x80\x80\x80\x80\x10" + b"\0" * 20, "", "an int has more than 32"),
        (array("int"), zigzag(MIB) + b"\x80" * MIB, "", "an int has more than 32 bits"),
    ],
)  # fmt: skip
def test_the_fault_is_told_with_its_place(schema: Json, payload: bytes, path: str, reason: str) -> None:
    fault = validator(schema).check(payload)

    assert fault
    assert fault.path == path
    assert fault.reason.startswith(reason)
    assert validator(schema).check_many([payload]) == (0, fault)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 18, 40, 333])
@pytest.mark.parametrize("number", [0, -1, 63, 64, 2**31 - 1, -(2**31)])
def test_many_numbers_are_stepped_over_at_once(count: int, number: int) -> None:
    for kind in ("int", "long"):
        body = zigzag(count) + zigzag(number) * count
        assert validator(array(kind)).check(body + b"\0") is None
        assert validator(array(kind)).check(body)
        assert validator(array(record(kind))).check(body + b"\0") is None


@given(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=60), st.sampled_from(["int", "long"]))
def test_many_numbers_are_refused_if_one_of_them_is(numbers: list[bytes], kind: str) -> None:
    alone = all(validator(kind).check(number) is None for number in numbers)

    together = validator(array(kind)).check(zigzag(len(numbers)) + b"".join(numbers) + b"\0") is None

    assert together == alone


@pytest.mark.parametrize(
    "items", ["null", {"type": "fixed", "name": "F", "size": 0}, record("null", "null"), record(record(name="S"))]
)
def test_items_that_take_no_bytes_are_counted_and_bounded(items: Json) -> None:
    checked = validator(array(items))

    assert checked.check(zigzag(EMPTY_ITEMS_MAX) + b"\0") is None
    assert checked.check(zigzag(EMPTY_ITEMS_MAX) + b"\2\0")
    assert checked.check(b"\x7e" * 1_040 + b"\0") is None
    assert checked.check(b"\x7e" * 1_041 + b"\0")
    assert checked.check(zigzag(10**12) + b"\0")
    assert checked.check(zigzag(-(10**12)) + b"\0\0")


def test_a_list_may_be_long_and_not_endless() -> None:
    checked = validator(LINKS)

    assert checked.check(b"\0\2" * 100 + b"\0\0") is None
    fault = checked.check(b"\0\2" * MIB + b"\0\0")
    assert fault
    assert fault.reason == "nests too deep"
    assert len(fault.path) < 2_000


def test_a_record_that_is_nothing_but_itself_ends() -> None:
    fault = validator({"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}).check(b"")

    assert fault
    assert fault.reason == "nests too deep"
    assert fault.path.startswith("/a/a/a")


def test_types_of_no_bytes_within_each_other_take_no_time() -> None:
    """Each record has the one before it twice; there are 2 ** 90 nulls in the last."""
    nothing = [record(*([f"R{n - 1}"] * 2 if n else ["null"]), name=f"R{n}") for n in range(90)]
    checked = validator(record(*nothing, array("R89"), name="Top"))

    assert checked.check(zigzag(60_000) + b"\0") is None


def test_records_of_one_field_within_each_other_take_the_time_of_that_field() -> None:
    schema: Json = "int"
    for n in range(90):
        schema = record(schema, *["null"] * 20, name=f"R{n}")

    assert validator(schema)._skip is validator("int")._skip
    assert validator(array(schema)).check(zigzag(MIB) + b"\0" * MIB + b"\0") is None


def test_the_first_that_does_not_fit_is_found_among_many() -> None:
    checked = validator(record("int", "boolean"))

    assert checked.check_many([]) is None
    assert checked.check_many([b"\0\0", b"\0\1"]) is None
    assert checked.check_many([b"\0\0", b"\0\2", b"\0\3"]) == (1, PayloadFault("/f1", "a boolean is 0 or 1, not 2"))
    assert checked.check_many([b"\0\0", b"\0\0\0"]) == (1, PayloadFault("", "ends after 2 bytes, and there are 3"))


def test_a_record_may_be_met_again_below_records_of_one_field() -> None:
    tree = record(array("T"), name="T")
    leaf = record("int", record("T", name="S"), name="Q")
    checked = validator(record(tree, leaf))

    assert checked.check(b"\2\2\0\0\0" + b"\0\0") is None
    assert checked.check(b"\2\2\0\0\0" + b"\0\2\1") == PayloadFault("/f1/f1/f0/f0/0/f0", "ends too early")
