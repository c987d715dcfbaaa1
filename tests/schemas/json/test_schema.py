"""JSON Schema: what is a schema, what fits one, and that neither can hurt the broker."""

import json
from time import process_time

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.errors import InvalidSchema
from goqueue.schemas.format import SCHEMA_DEPTH_MAX, ParsedSchema, PayloadFault, Validator
from goqueue.schemas.json.schema import JSON, JsonSchema

ORDER = {
    "title": "Order",
    "type": "object",
    "required": ["id", "items"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "a/b": {"type": "object", "properties": {"~": {"type": "null"}}},
    },
    "definitions": {"item": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]+$"}}}},
}


def parse(schema: object, **references: object) -> JsonSchema:
    given = {name: JSON.parse(json.dumps(one), {}) for name, one in references.items()}
    return JSON.parse(schema if isinstance(schema, str) else json.dumps(schema), given)


def check(schema: object, value: object, **references: object) -> PayloadFault | None:
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse(schema, **references).compile().check(payload)


def test_a_schema_says_what_it_is() -> None:
    schema = parse(ORDER)
    typed: ParsedSchema = schema
    validator: Validator = typed.compile()

    assert schema.record_name == "Order"
    assert json.loads(schema.canonical) == ORDER
    assert " " not in schema.canonical.replace("Order", "")
    assert validator.check(b'{"id": 1, "items": []}') is None


@pytest.mark.parametrize("text", ["true", "false", "{}"])
def test_a_boolean_is_a_schema_too(text: str) -> None:
    schema = parse(text)

    assert schema.record_name is None
    assert (schema.compile().check(b"1") is None) == (text != "false")


def test_without_a_title_there_is_no_record_name() -> None:
    assert parse({"title": ""}).record_name is None
    assert parse({"type": "object"}).record_name is None


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"id": 0, "items": []}, "/id", "0 is beyond the minimum of 1"),
        ({"id": 1}, "", '"items" is required'),
        ({"id": 1, "items": [{"sku": "A"}, {"sku": "b"}]}, "/items/1/sku", '"b" does not match "^[A-Z]+$"'),
        ({"id": 1, "items": [], "a/b": {"~": 1}}, "/a~1b/~0", "1 is not of type null"),
        ([], "", "the array is not of type object"),
    ],
)
def test_a_fault_is_found_where_it_is(value: object, path: str, reason: str) -> None:
    assert check(ORDER, value) == PayloadFault(path, reason)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"{} {}",
        b"nope",
        b"NaN",
        b'"\xff"',
        b'"\\ud800"',
        b'{"a": "\\ud800"}',
        b"1e400",
        b"[" * 100_000,
        b"[" * 5_000 + b"]" * 5_000,
        b"\x00\x00\x00\x00\x01{}",
    ],
)
def test_what_is_not_json_fits_nothing(payload: bytes) -> None:
    validator = parse(True).compile()
    fault = validator.check(payload)

    assert fault is not None
    assert fault.path == ""
    assert fault.reason.startswith("not JSON: ")
    assert validator.check_many([b"1", payload, b"2", payload]) == (1, fault)


def test_the_first_of_many_that_does_not_fit_is_found() -> None:
    validator = parse(ORDER).compile()
    good, bad = b'{"id": 1, "items": []}', b'{"id": 0, "items": []}'

    assert validator.check_many([]) is None
    assert validator.check_many([good] * 10) is None
    assert validator.check_many([good, good, bad, b"{", bad]) == (2, validator.check(bad))
    assert validator.check_many([b"{", bad]) == (0, validator.check(b"{"))


def test_a_reason_about_something_huge_is_short() -> None:
    fault = check({"type": "string"}, {"a": "x" * 10_000_000})

    assert fault is not None
    assert fault.reason == "the object is not of type string"
    fault = check({"type": "number"}, "x" * 10_000_000)
    assert fault is not None
    assert len(fault.reason) < 150


def test_large_and_precise_numbers_stay_what_they_are() -> None:
    assert check({"maximum": 10**30}, str(10**30).encode()) is None
    assert check({"maximum": 10**30}, str(10**30 + 1).encode()) is not None
    assert check({"type": "integer"}, b"1.0") is None
    assert check({"const": 1}, b"true") is not None


@pytest.mark.parametrize(
    ("schema", "value", "path", "reason"),
    [
        ({"allOf": [True, {"properties": {"a": {"const": 1}}}]}, {"a": 2}, "/a", "2 is not 1"),
        ({"items": [{"type": "string"}, {"type": "null"}]}, ["a", 1], "/1", "1 is not of type null"),
        ({"items": {"enum": [1, None, "x"]}}, [1, "x", True], "/2", 'true is none of 1, null, "x"'),
        ({"additionalProperties": {"minLength": 2}}, {"a": "b"}, "/a", '"b" breaks the minLength of 2'),
        ({"additionalProperties": False, "properties": {"a": True}}, {"a": 1, "b": 2}, "", '"b" may not be there'),
        ({"properties": {"a": False}}, {"a": 1}, "/a", "1: nothing is allowed here"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "", "1 fits none of the schemas of anyOf"),
        ({"properties": {"a": {"not": {}}}}, {"a": []}, "/a", "the array fits what it must not fit"),
        ({"if": True, "then": {"required": ["a"]}, "anyOf": [True]}, {}, "", "the object breaks anyOf or if"),
        ({"patternProperties": {"^x": {"type": "null"}}}, {"x": 1}, "", "the object breaks patternProperties"),
        ({"uniqueItems": True}, [1, 1], "", "the array has the same item twice"),
        ({"multipleOf": 3}, 4, "", "4 is not a multiple of 3"),
        ({"required": ["b", "a"]}, {"a": 1}, "", '"b" is required'),
        ({"$ref": "#/definitions/d", "type": "null", "definitions": {"d": {"type": "string"}}}, 1, "",
         "1 is not of type string"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [True], "items": {"type": "null"}},
         [1, 2], "/1", "2 is not of type null"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}, 3, "",
         "3 is beyond the minimum of 3"),
    ],
)  # fmt: skip
def test_a_fault_is_told_in_words(schema: object, value: object, path: str, reason: str) -> None:
    assert check(schema, value) == PayloadFault(path, reason)


def test_a_fault_is_found_inside_a_reference() -> None:
    fault = check({"properties": {"by": {"$ref": "c"}}}, {"by": {"n": 1}}, c={"properties": {"n": {"type": "string"}}})

    assert fault == PayloadFault("/by/n", "1 is not of type string")
    assert check({"items": {"$ref": "c"}}, [1], c=False) == PayloadFault("/0", "1: nothing is allowed here")


def test_a_large_value_costs_no_more_for_many_branches() -> None:
    branches = [{"properties": {"a": {"const": number}}, "required": ["a"]} for number in range(300)]
    started = process_time()

    assert check({"anyOf": branches}, {"l": ["x" * 10] * 100_000}) is not None

    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


def test_a_number_of_many_digits_is_not_spelled_out() -> None:
    fault = check({"maximum": 1}, b"1" + b"0" * 3_000)

    assert fault == PayloadFault("", "the number is beyond the maximum of 1")


# --- drafts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "schema", "value"),
    [
        ("http://json-schema.org/draft-04/schema#", {"maximum": 3, "exclusiveMaximum": True}, 3),
        ("http://json-schema.org/draft-06/schema#", {"exclusiveMaximum": 3}, 3),
        ("http://json-schema.org/draft-07/schema#", {"if": {"const": 1}, "then": False}, 1),
        ("http://json-schema.org/draft-07/schema", {"if": {"const": 1}, "then": False}, 1),
        ("https://json-schema.org/draft-07/schema#", {"items": [{"type": "string"}]}, [1]),
        ("https://json-schema.org/draft/2019-09/schema", {"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ("https://json-schema.org/draft/2020-12/schema", {"prefixItems": [{"type": "string"}]}, [1]),
    ],
)
def test_the_draft_is_what_the_schema_says(draft: str, schema: dict[str, object], value: object) -> None:
    assert check({"$schema": draft, **schema}, value) is not None


def test_without_a_draft_it_is_draft_7() -> None:
    assert check({"prefixItems": [{"type": "string"}]}, [1]) is None
    assert check({"items": [{"type": "string"}]}, [1]) is not None
    with pytest.raises(InvalidSchema):
        parse({"maximum": 3, "exclusiveMaximum": True})


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-03/schema#", "http://x.y", "", 7, None])
def test_another_draft_is_refused(draft: object) -> None:
    with pytest.raises(InvalidSchema) as raised:
        parse({"$schema": draft})

    assert raised.value.path == "/$schema"


def test_a_format_is_an_annotation() -> None:
    assert check({"format": "email"}, "nobody") is None
    assert check({"$schema": "https://json-schema.org/draft/2020-12/schema", "format": "date-time"}, "never") is None


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "strin"}, "/type"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum"),
        ({"required": "a"}, "/required"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "(?=a)b"}, "/pattern"),
        ({"pattern": r"(a)\1"}, "/pattern"),
        ({"patternProperties": {"(?!x)": True}}, "/patternProperties"),
    ],
)
def test_a_fault_in_a_schema_is_named(schema: object, path: str) -> None:
    with pytest.raises(InvalidSchema) as raised:
        parse(schema)

    assert raised.value.path.startswith(path)


def test_what_patterns_cannot_do_is_said() -> None:
    with pytest.raises(InvalidSchema, match="lookaround"):
        parse({"pattern": "^(?!secret)"})


@pytest.mark.parametrize(
    "ref", ["http://127.0.0.1:1/x.json", "https://example.com/x", "file:///etc/passwd", "other.json", "#/nowhere", "#x"]
)
def test_nothing_is_fetched(ref: str) -> None:
    started = process_time()

    with pytest.raises(InvalidSchema):
        parse({"$ref": ref})

    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


def test_a_schema_of_a_draft_may_be_referred_to() -> None:
    assert check({"$ref": "http://json-schema.org/draft-07/schema#"}, {"type": "strin"}) is not None


@pytest.mark.parametrize(
    "ref", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]}]
)
def test_a_ref_to_itself_ends(ref: object) -> None:
    parse(ref).compile().check(b'{"a": [1, 2, {"b": null}]}')


def test_a_tree_is_a_tree() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}}}

    assert check(tree, {"left": {"left": {"n": 1}, "right": {"n": 2}}}) is None
    fault = check(tree, {"left": {"left": {"n": 1}, "right": {"n": "2"}}})
    assert fault is not None
    assert fault.path == "/left/right/n"


def doubling(levels: int, wrap: str) -> dict[str, object]:
    """Each definition refers twice to the next one."""

    def refs(number: int) -> list[object]:
        ref = {"$ref": f"#/definitions/d{number}"}
        return [{"properties": {"definitions": ref}}] * 2 if wrap == "properties" else [ref, ref]

    inside: dict[str, object] = {f"d{n}": {"allOf": refs(n + 1)} for n in range(levels)}
    return {"definitions": {**inside, f"d{levels}": {"type": "string"}}, "allOf": refs(0)}


@pytest.mark.parametrize("wrap", ["", "properties"])
@pytest.mark.parametrize("levels", [20, 40, 5_000])
def test_refs_that_multiply_are_refused(levels: int, wrap: str) -> None:
    started = process_time()

    with pytest.raises(InvalidSchema, match="nodes when its refs are written out"):
        parse(doubling(levels, wrap))

    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


def test_refs_that_multiply_across_documents_are_refused() -> None:
    inner = {"definitions": doubling(12, "")["definitions"], "$ref": "#/definitions/d0"}
    outer = doubling(12, "")
    outer["definitions"]["d12"] = {"$ref": "inner"}  # type: ignore[index]

    with pytest.raises(InvalidSchema, match="nodes when its refs are written out"):
        parse(outer, inner=inner)
    assert check(outer, 1, inner={"type": "string"}) is not None


def test_refs_that_multiply_by_names_are_refused() -> None:
    draft = "https://json-schema.org/draft/2020-12/schema"
    inside = {
        f"d{n}": {"$id": f"http://x.y/d{n}", "$anchor": "a", "allOf": [{"$ref": f"d{n + 1}"}, {"$ref": f"d{n + 1}#a"}]}
        for n in range(40)
    }
    last = {"$id": "http://x.y/d40", "$anchor": "a"}

    with pytest.raises(InvalidSchema, match="nodes when its refs are written out"):
        parse({"$schema": draft, "$defs": {**inside, "d40": last}, "$ref": "http://x.y/d0"})


def test_refs_that_multiply_by_names_of_draft_4_are_refused() -> None:
    inside = {f"d{n}": {"id": f"http://x.y/d{n}", "allOf": [{"$ref": f"d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "http://x.y/d0"}

    with pytest.raises(InvalidSchema, match="nodes when its refs are written out"):
        parse({**schema, "definitions": {**inside, "d40": {"id": "http://x.y/d40"}}})


def test_a_recursive_schema_of_many_ways_takes_no_longer_for_deep_values() -> None:
    branch = [{"properties": {"c": {"$ref": "#"}, "k": {"const": n}}, "required": ["k"]} for n in range(4)]
    value: object = {"k": 9}
    for _ in range(100):
        value = {"c": value, "k": 3}
    started = process_time()

    assert check({"anyOf": branch}, value) is not None

    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|a)*b", "(a*)*c", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_no_pattern_takes_long(pattern: str) -> None:
    validator = parse({"pattern": pattern}).compile()
    payload = json.dumps("a" * 100_000 + "!").encode()
    started = process_time()

    validator.check(payload)

    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


@pytest.mark.parametrize("pattern", ["((((a{100}){100}){100}){100})", r"\p{L}{1000}{1000}", "(" * 3_000 + ")" * 3_000])
def test_a_pattern_that_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidSchema):
        parse({"pattern": pattern})


def test_a_schema_as_deep_as_is_allowed_works_and_a_deeper_one_is_refused() -> None:
    def nested(levels: int) -> str:
        return '{"not":' * (levels - 1) + "{}" + "}" * (levels - 1)

    parse(nested(SCHEMA_DEPTH_MAX)).compile().check(b"1")
    for levels in (SCHEMA_DEPTH_MAX + 1, 500, 100_000):
        with pytest.raises(InvalidSchema):
            parse(nested(levels))


def test_a_large_schema_is_read_in_time() -> None:
    large = {"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(18_000)}}
    started = process_time()

    fault = check(large, {"p17999": 1})

    assert fault is not None
    assert fault.path == "/p17999"
    assert process_time() - started < 20  # of the processor: minutes, if it went wrong


# --- references ----------------------------------------------------------------------------------

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "name", "other"),
    [
        ({"$ref": "text.json"}, "text.json", TEXT),
        ({"$ref": "text.json#/definitions/t"}, "text.json", {"definitions": {"t": TEXT}}),
        ({"$ref": "http://x.y/text.json"}, "http://x.y/text.json", TEXT),
        ({"$ref": "http://x.y/text.json"}, "text", {"$id": "http://x.y/text.json", **TEXT}),
        ({"$id": "http://x.y/order.json", "allOf": [{"$ref": "text.json"}]}, "text.json", TEXT),
        ({"$id": "http://x.y/order.json", "allOf": [{"$ref": "text.json"}]}, "http://x.y/text.json", TEXT),
        ({"$ref": "com.acme.Text"}, "com.acme.Text", {"definitions": {"t": TEXT}, "$ref": "#/definitions/t"}),
        (
            {"$ref": "http://x.y/outer#/definitions/t"},
            "outer",
            {
                "$id": "http://x.y/outer",
                "definitions": {"t": {"$id": "inner", "allOf": [{"$ref": "outer#/definitions/u"}]}, "u": TEXT},
            },
        ),
        ({"$ref": "a.json"}, "a.json", {"$schema": "http://json-schema.org/draft-04/schema#", **TEXT}),
    ],
)
def test_a_ref_leads_into_a_reference(schema: object, name: str, other: object) -> None:
    found = parse(schema, **{name: other})

    assert found.compile().check(b'"text"') is None
    assert found.compile().check(b"1") is not None
    assert JSON.incompatibilities(parse(TEXT), found) == []
    assert JSON.incompatibilities(found, parse(TEXT)) == []
    assert JSON.incompatibilities(found, parse(True)) != []


def test_a_reference_keeps_its_draft() -> None:
    draft = "https://json-schema.org/draft/2020-12/schema"
    seventh = {"items": [{"type": "string"}]}

    assert check({"$schema": draft, "$ref": "old"}, [1], old=seventh) is not None
    new = parse({"$schema": draft, "prefixItems": [{"type": "string"}]})
    assert JSON.incompatibilities(parse({"$schema": draft, "$ref": "old"}, old=seventh), new) == []


# --- any schema, any value -----------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = {
    "type": st.sampled_from(["string", "number", "integer", "object", "array", "null", "boolean"]),
    "minimum": st.integers(-3, 3),
    "maxLength": st.integers(0, 3),
    "minItems": st.integers(0, 2),
    "pattern": st.sampled_from(["^a", "b$", "[0-9]+"]),
    "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=repr),
    "const": VALUES,
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
}
SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional=KEYWORDS),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            **KEYWORDS,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner,
            "additionalProperties": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(SCHEMAS, st.lists(VALUES, max_size=6))
def test_many_values_are_judged_as_each_for_itself(schema: object, values: list[object]) -> None:
    oracle = jsonschema_rs.Draft7Validator(schema)  # type: ignore[arg-type]
    validator = parse(schema).compile()
    payloads = [json.dumps(value).encode() for value in values]

    found = validator.check_many(payloads)

    bad = [index for index, value in enumerate(values) if not oracle.is_valid(value)]
    assert (found[0] if found else None) == (bad[0] if bad else None)
    assert [index for index, payload in enumerate(payloads) if validator.check(payload)] == bad


@settings(max_examples=200)
@given(st.binary(max_size=30))
def test_no_payload_breaks_a_validator(payload: bytes) -> None:
    validator = parse(ORDER).compile()

    assert (validator.check_many([payload]) is None) == (validator.check(payload) is None)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["#", "#/a", "x", "http://x.y/#z"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$id", "id", "$anchor", "$defs", "definitions", "properties", "allOf", "items", "not", "if",
                 "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "pattern", "enum", "type", "dependencies", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100)
@given(JUNK, JUNK)
def test_any_json_is_a_schema_or_refused(schema: object, other: object) -> None:
    try:
        given = {"x": parse(other)}
    except InvalidSchema:
        given = {}
    try:
        found = JSON.parse(json.dumps(schema), given)
    except InvalidSchema:
        return

    found.compile().check(b'{"a": [1, {"b": "c"}]}')
    JSON.incompatibilities(found, found)
    assert JSON.parse(found.normalized(), given).normalized() == found.normalized()
