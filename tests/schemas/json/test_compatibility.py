"""A reader's JSON Schema is compatible with a writer's iff it accepts all documents that the writer's accepts."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from goqueue.schemas.json.compatibility import REASONS_MAX, UNDECIDED, incompatibilities
from tests.schemas.json.strategies import (
    ARRAY_DOCUMENTS,
    ARRAY_SCHEMAS,
    DOCUMENTS,
    DRAFT_4,
    DRAFT_6,
    DRAFT_7,
    DRAFT_2019,
    DRAFT_2020,
    OBJECT_DOCUMENTS,
    OBJECT_SCHEMAS,
    PAIRS,
    SCALAR_DOCUMENTS,
    SCALAR_SCHEMAS,
)

Schema = Any


def validator(schema: Schema) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(schema, validate_formats=False)


def separating(reader: Schema, writer: Schema, documents: Iterable[Any]) -> list[Any]:
    """The documents that the writer accepts and the reader refuses."""
    try:
        accepted, taken = validator(writer).is_valid, validator(reader).is_valid
    except jsonschema_rs.ValidationError:
        assume(False)  # drafts have rules for which keywords stand together
    return [document for document in documents if accepted(document) and not taken(document)]


def at(draft: str, schema: Schema) -> Schema:
    return {"$schema": draft, **schema}


def fields(_closed: bool = True, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"additionalProperties": False} if _closed else {})}


def defined(schema: Schema, **definitions: Schema) -> Schema:
    return {"$ref": "#/definitions/it", "definitions": {"it": schema, **definitions}}


# The model.


@settings(max_examples=70)
@given(PAIRS)
def test_what_is_called_compatible_is_accepted(pair: tuple[Schema, Schema]) -> None:
    writer, reader = pair

    reasons = incompatibilities(reader, writer)

    assert reasons or separating(reader, writer, DOCUMENTS) == []


FRAGMENTS = [
    pytest.param(SCALAR_SCHEMAS, SCALAR_DOCUMENTS, id="scalars"),
    pytest.param(ARRAY_SCHEMAS, ARRAY_DOCUMENTS, id="arrays"),
    pytest.param(OBJECT_SCHEMAS, OBJECT_DOCUMENTS, id="objects"),
]


@pytest.mark.parametrize(("schemas", "documents"), FRAGMENTS)
@settings(max_examples=60)
@given(st.data())
def test_what_people_write_is_decided_exactly(
    schemas: st.SearchStrategy[Schema], documents: list[Any], data: st.DataObject
) -> None:
    writer, reader = data.draw(schemas), data.draw(schemas)

    is_compatible = incompatibilities(reader, writer) == []

    assert is_compatible == (separating(reader, writer, documents) == [])


@settings(max_examples=60)
@given(st.one_of(SCALAR_SCHEMAS, ARRAY_SCHEMAS, OBJECT_SCHEMAS), st.data())
def test_a_union_is_wider_and_an_intersection_narrower(one: Schema, data: st.DataObject) -> None:
    other = data.draw(st.one_of(SCALAR_SCHEMAS, ARRAY_SCHEMAS, OBJECT_SCHEMAS))
    union, intersection = at(DRAFT_2020, {"anyOf": [one, other]}), at(DRAFT_2020, {"allOf": [other, one]})

    assert incompatibilities(union, one) == []
    assert incompatibilities(one, intersection) == []
    assert incompatibilities(union, intersection) == []
    assert incompatibilities(at(DRAFT_2020, {"not": intersection}), at(DRAFT_2020, {"not": union})) == []


@settings(max_examples=60)
@given(st.lists(OBJECT_SCHEMAS, min_size=3, max_size=3))
def test_it_is_transitive(several: list[Schema]) -> None:
    one, two, three = several
    two = at(DRAFT_2020, {"anyOf": [one, two]})
    three = at(DRAFT_2020, {"anyOf": [three, two]})

    assert incompatibilities(two, one) == incompatibilities(three, two) == incompatibilities(three, one) == []


@settings(max_examples=80)
@given(PAIRS)
def test_a_schema_is_compatible_with_itself_however_it_is_annotated(pair: tuple[Schema, Schema]) -> None:
    schema, _ = pair
    assume("uneval" not in json.dumps(schema) and "$ref" not in json.dumps(schema))  # what is opaque is never the same

    assert incompatibilities(schema, schema) == []
    assert incompatibilities({**schema, "title": "An order", "description": "As it was placed."}, schema) == []


@settings(max_examples=80)
@given(PAIRS)
def test_every_reason_begins_with_a_place_in_the_readers_schema(pair: tuple[Schema, Schema]) -> None:
    writer, reader = pair
    reasons = incompatibilities(reader, writer)

    assert len(reasons) == len(set(reasons)) <= REASONS_MAX
    for reason in reasons:
        pointer, colon, sentence = reason.partition(": ")
        place = reader
        for step in pointer.split("/")[1:] if pointer != "/" else []:
            name = step.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) else place[name]
        assert colon
        assert sentence


@settings(max_examples=70)
@given(PAIRS)
def test_a_reason_names_a_keyword_that_refuses_something_on_its_own(pair: tuple[Schema, Schema]) -> None:
    writer, reader = pair
    beside = {"properties", "patternProperties", "prefixItems", "items", "then", "else", "minContains", "maxContains"}
    beside |= {"exclusiveMinimum", "exclusiveMaximum", "minimum", "maximum", "allOf"}  # draft 4; unevaluated...

    for reason in incompatibilities(reader, writer):
        keyword = reason.partition(": ")[0].split("/")[1]
        if keyword and not reason.startswith("/definitions"):
            needed = {"$schema", "definitions", keyword} | (beside | {"if"} if keyword in ("then", "else") else beside)
            alone = {name: value for name, value in reader.items() if name in needed}
            assert incompatibilities(alone, writer), reason


# What people do to their schemas.

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
OPEN = "(let the reader accept anything, close the writer, or set compatibilityPolicy LENIENT)"

EVOLUTIONS: list[tuple[str, Schema, Schema, list[str], list[str]]] = [  # what, old, new, backward, forward
    (
        "an optional field is added to a closed schema",
        fields(a=STRING),
        fields(a=STRING, b=STRING),
        [],
        ["/additionalProperties: the writer allows the property 'b', the reader does not"],
    ),
    (
        "an optional field is added to an open schema",
        fields(False, a=STRING),
        fields(False, a=STRING, b=STRING),
        [f"/properties/b: the writer is open and allows any value for 'b', the reader does not {OPEN}"],
        [],
    ),
    (
        "an optional field of any type is added to an open schema",
        fields(False, a=STRING),
        fields(False, a=STRING, b={}),
        [],
        [],
    ),
    (
        "a field is required",
        fields(a=STRING),
        {**fields(a=STRING), "required": ["a"]},
        ["/required: the reader requires 'a', the writer does not"],
        [],
    ),
    (
        "a type is changed",
        fields(total=STRING),
        fields(total=NUMBER),
        ["/properties/total: the writer allows string, the reader only number"],
        ["/properties/total: the writer allows number, the reader only string"],
    ),
    (
        "an integer becomes a number",
        fields(total=INTEGER),
        fields(total=NUMBER),
        [],
        ["/properties/total: the writer allows number, the reader only integer"],
    ),
    (
        "a field may be null",
        fields(total=INTEGER),
        fields(total={"type": ["integer", "null"]}),
        [],
        ["/properties/total: the writer allows null and integer, the reader only integer"],
    ),
    (
        "a field may be null, in other words",
        fields(total={"type": ["integer", "null"]}),
        fields(total={"anyOf": [{"type": "null"}, INTEGER]}),
        [],
        [],
    ),
    (
        "a symbol is added to an enum",
        {"enum": ["NEW", "PAID"]},
        {"enum": ["NEW", "PAID", "SENT"]},
        [],
        ['/enum: the writer allows values that the reader does not list: "SENT"'],
    ),
    (
        "an enum becomes a string",
        {"enum": ["NEW", "PAID"]},
        {"type": "string", "maxLength": 4, "pattern": "^[A-Z]+$"},
        [],
        ["/enum: the writer allows values that the reader does not list"],
    ),
    (
        "an enum is written as alternatives",
        {"enum": ["NEW", "PAID"]},
        {"oneOf": [{"const": "NEW", "title": "New"}, {"const": "PAID"}]},
        [],
        [],
    ),
    (
        "an open schema is closed",
        fields(False, a=STRING),
        fields(a=STRING),
        ["/additionalProperties: the writer allows properties with other names, the reader does not"],
        [],
    ),
    (
        "a field is removed from a closed schema",
        fields(a=STRING, b=STRING),
        fields(a=STRING),
        ["/additionalProperties: the writer allows the property 'b', the reader does not"],
        [],
    ),
    (
        "a length is limited",
        STRING,
        {"type": "string", "minLength": 1, "maxLength": 9},
        [
            "/minLength: the writer allows fewer than 1 characters",
            "/maxLength: the writer allows more than 9 characters",
        ],
        [],
    ),
    (
        "a pattern is added",
        STRING,
        {"type": "string", "pattern": "^a+$"},
        ["/pattern: the writer allows strings that may not match '^a+$'"],
        [],
    ),
    (
        "bounds are moved",
        {"type": "number", "minimum": 0, "exclusiveMaximum": 10},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        ["/exclusiveMinimum: the writer allows numbers below 0, or equal to it"],
        ["/exclusiveMaximum: the writer allows numbers above 10, or equal to it"],
    ),
    (
        "cents become whole",
        {"multipleOf": 0.01},
        {"multipleOf": 1},
        ["/multipleOf: the writer allows numbers that are no multiples of 1"],
        [],
    ),
    (
        "items become stricter",
        {"type": "array", "items": NUMBER},
        {"type": "array", "items": INTEGER, "minItems": 1, "uniqueItems": True},
        [
            "/items: the writer allows number, the reader only integer",
            "/minItems: the writer allows fewer than 1 items",
            "/uniqueItems: the writer allows items that are equal",
        ],
        [],
    ),
    (
        "an alternative is added",
        {"oneOf": [fields(kind={"const": "a"})]},
        {"oneOf": [fields(kind={"const": "a"}), {"type": "null"}]},
        [],
        ["/: the writer allows null and object, the reader only object"],
    ),
    (
        "alternatives overlap",
        INTEGER,
        {"oneOf": [INTEGER, {"type": "number", "minimum": 3}]},
        ["/oneOf: the writer allows number values that fit more than one alternative"],
        ["/: the writer allows number, the reader only integer"],
    ),
    (
        "a definition is narrowed",
        defined(fields(zip=STRING)),
        defined(fields(zip={"type": "string", "maxLength": 5})),
        ["/definitions/it/properties/zip/maxLength: the writer allows more than 5 characters"],
        [],
    ),
    (
        "a field depends on another",
        fields(a=STRING, b=STRING, c=STRING),
        {**fields(a=STRING, b=STRING, c=STRING), "dependencies": {"a": ["b", "c"]}},
        ["/dependencies/a: with 'a' the reader requires 'b', 'c', the writer does not"],
        [],
    ),
    (
        "a condition is added",
        fields(a=INTEGER),
        {**fields(a=INTEGER), "if": {"required": ["a"]}, "then": {"properties": {"a": {"minimum": 0}}}},
        ["/then/properties/a/minimum: the writer allows numbers below 0"],
        [],
    ),
    (
        "a map is limited",
        {"type": "object", "additionalProperties": STRING},
        {"type": "object", "additionalProperties": {"enum": ["x"]}, "propertyNames": {"maxLength": 3}},
        [
            "/additionalProperties/enum: the writer allows values that the reader does not list",
            "/propertyNames: the writer allows names of properties that the reader does not",
        ],
        [],
    ),
    (
        "something is excluded",
        STRING,
        {"type": "string", "not": {"const": ""}},
        ['/not: the writer allows some of what the reader excludes: ""'],
        [],
    ),
    (
        "everything is refused",
        {},
        {"not": {}},
        ["/: the writer allows values of every type, the reader nothing"],
        [],
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"), [each[1:] for each in EVOLUTIONS], ids=[each[0] for each in EVOLUTIONS]
)
def test_an_evolution_is_judged_and_explained(
    old: Schema, new: Schema, backward: list[str], forward: list[str]
) -> None:
    assert incompatibilities(new, old) == backward
    assert incompatibilities(old, new) == forward


@pytest.mark.parametrize(
    ("writer", "reader", "reasons"),
    [
        (
            {"items": [STRING, INTEGER], "additionalItems": False},
            {"items": STRING},
            ["/items: the writer allows integer, the reader only string"],
        ),
        (
            {"items": [STRING], "additionalItems": INTEGER},
            {"items": [{}, STRING]},
            ["/items/1: the writer allows integer, the reader only string"],
        ),
        (
            {"type": "array"},
            at(DRAFT_2020, {"contains": STRING, "maxContains": 2}),
            ["/contains: the writer allows arrays in which not 1 to 2 items fit"],
        ),
        (
            {"type": "array"},
            {"contains": STRING},
            ["/contains: the writer allows arrays in which not 1 or more items fit"],
        ),
        (
            {"patternProperties": {"^x": NUMBER, "^y": NUMBER}, "additionalProperties": STRING},
            {"patternProperties": {"^x": INTEGER, "^y": NUMBER}, "additionalProperties": STRING},
            ["/patternProperties/^x: the writer allows number, the reader only integer"],
        ),
        (
            {"type": "object"},
            {"patternProperties": {"^x": INTEGER, "^y": False}},
            [
                "/patternProperties/^x: the writer allows any value for properties with names that match, "
                "the reader does not",
                "/patternProperties/^y: the writer allows properties with names that match, the reader does not",
            ],
        ),
        (
            {"anyOf": [{"const": {"a": 1}}, fields(a=STRING)]},
            {"properties": {"a": {"type": "null"}}},
            ["/properties/a: the writer allows string, the reader only null"],
        ),
        (
            {"const": {"a": 1}},
            {"properties": {"a": STRING}},
            ['/properties/a: the writer allows properties that the reader does not: {"a": 1}'],
        ),
    ],
)
def test_a_reason_says_what_differs_at_that_place(writer: Schema, reader: Schema, reasons: list[str]) -> None:
    assert incompatibilities(reader, writer) == reasons


def test_every_property_has_its_own_reason() -> None:
    writer = fields(**{f"field{index}": NUMBER for index in range(30)})
    reader = fields(**{f"field{index}": INTEGER for index in range(30)})

    reasons = incompatibilities(reader, writer)

    assert reasons == [
        f"/properties/field{index}: the writer allows number, the reader only integer" for index in range(30)
    ]


def test_there_are_not_more_reasons_than_anyone_would_read() -> None:
    writer = fields(**{f"field{index}": NUMBER for index in range(3 * REASONS_MAX)})
    reader = fields(**{f"field{index}": INTEGER for index in range(3 * REASONS_MAX)})

    assert len(incompatibilities(reader, writer)) == REASONS_MAX


def test_names_are_escaped_in_places() -> None:
    assert incompatibilities(fields(**{"a/b~c": INTEGER}), fields(**{"a/b~c": STRING})) == [
        "/properties/a~1b~0c: the writer allows string, the reader only integer"
    ]


# Verdicts, where it is easy to be wrong. `writer` and `reader` and whether they are compatible.

COMPATIBLE: list[tuple[Schema, Schema]] = [
    (False, False),
    (False, STRING),
    (True, True),
    (True, {}),
    ({"type": "string", "minLength": 3, "maxLength": 2}, INTEGER),
    ({"allOf": [STRING, INTEGER]}, {"const": 1}),
    ({"enum": [1, 2.0]}, INTEGER),
    ({"const": 1.0}, {"const": 1}),
    ({"const": [1, {"a": 2.0}]}, {"enum": [[1.0, {"a": 2}]]}),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, {"const": 4}),
    ({"type": "integer", "minimum": 0.5, "maximum": 3.5}, {"enum": [1, 2, 3]}),
    ({"multipleOf": 6}, {"multipleOf": 3}),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"multipleOf": 12}),
    ({"type": "number", "multipleOf": 1}, INTEGER),
    ({"multipleOf": 0.3}, {"multipleOf": 0.1}),
    ({"type": "number", "multipleOf": 1e300}, INTEGER),
    ({"type": "boolean"}, {"enum": [True, False]}),
    ({"type": ["integer", "number"]}, NUMBER),
    ({"maxLength": 0, "type": "string"}, {"const": ""}),
    ({"const": "ab"}, {"minLength": 2, "maxLength": 2}),
    ({"const": [1, 1]}, {"minItems": 2, "maxItems": 2, "contains": {"const": 1}}),
    ({"const": {"a": 1}}, {"minProperties": 1, "maxProperties": 1, "required": ["a"], "properties": {"b": False}}),
    ({"const": 3}, {"minimum": 3, "maximum": 3, "multipleOf": 1.5}),
    ({"enum": ["a", "\n"]}, {"pattern": "^a$|\n"}),
    ({"pattern": "^x-"}, {"pattern": "^x"}),
    ({"type": "string", "pattern": "^(a|b)$"}, {"enum": ["a", "b", "c"]}),
    ({"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}),
    ({"type": "array", "maxItems": 0}, {"const": []}),
    ({"type": "array", "items": False}, {"maxItems": 0}),
    ({"items": [STRING, False]}, {"maxItems": 1}),
    ({"items": {"enum": [1, 2]}, "uniqueItems": True}, {"maxItems": 2}),
    ({"items": [{"enum": [1, 2]}, {"const": 1}, {"const": 2}], "uniqueItems": True}, {"maxItems": 2}),
    ({"maxItems": 1}, {"uniqueItems": True}),
    ({"items": [STRING, INTEGER], "additionalItems": False}, {"uniqueItems": True}),
    ({"items": STRING, "minItems": 1}, {"contains": STRING}),
    ({"contains": {"const": 1}, "maxItems": 1}, {"items": INTEGER}),
    ({"type": "array", "minItems": 10**9, "items": {"const": 1}}, {"minItems": 10**9 - 1, "contains": INTEGER}),
    ({"required": ["a"], "properties": {"a": False}, "type": "object"}, False),
    ({"required": ["a", "b"]}, {"minProperties": 2}),
    ({"required": ["a"], "maxProperties": 1}, {"properties": {"a": {}}, "additionalProperties": False}),
    (at(DRAFT_2020, {"const": [1, "a"]}), at(DRAFT_2020, {"contains": INTEGER, "maxContains": 1})),
    ({"minProperties": 2, "additionalProperties": False, "properties": {"a": {}, "b": {}}}, {"required": ["a", "b"]}),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, {"maxProperties": 2}),
    ({"propertyNames": {"pattern": "^(a|b)$"}}, {"additionalProperties": False, "properties": {"a": {}, "b": {}}}),
    ({"patternProperties": {"^x": STRING}}, {"properties": {"xy": STRING}}),
    ({"patternProperties": {"^x": STRING}}, {"patternProperties": {"^x": {}, "^xy": STRING}}),
    ({"patternProperties": {".*": STRING}}, {"additionalProperties": STRING}),
    ({"properties": {"a": STRING}}, {"properties": {"a": {"maxItems": 1, "type": "string"}}}),
    (
        {"additionalProperties": STRING, "properties": {"a": INTEGER}},
        {"additionalProperties": {"not": {"type": "null"}}},
    ),
    ({"type": "object", "maxProperties": 0}, {"const": {}}),
    ({"properties": {"a": {"enum": [1]}}, "additionalProperties": False, "type": "object"}, {"enum": [{}, {"a": 1}]}),
    ({"not": {"type": "string"}}, {"type": ["null", "boolean", "number", "array", "object"]}),
    ({"not": {"required": ["a"]}}, {"properties": {"a": False}}),
    ({"type": "object", "not": {"properties": {"a": STRING}}}, {"required": ["a"]}),
    ({"anyOf": [{"minimum": 3}, {"maximum": 5}], "type": "number"}, {}),
    ({"type": "number"}, {"anyOf": [{"minimum": 3}, {"maximum": 3}]}),
    ({"type": "object"}, {"anyOf": [{"required": ["a"]}, {"properties": {"a": False}}]}),
    ({"oneOf": [{"minimum": 1}, {"minimum": 3}], "type": "integer"}, {"enum": [1, 2]}),
    ({"if": STRING, "then": {"maxLength": 1}, "else": False}, {"type": "string", "maxLength": 1}),
    ({"dependencies": {"a": ["b"]}, "required": ["a"]}, {"required": ["b"]}),
]

INCOMPATIBLE: list[tuple[Schema, Schema]] = [
    (True, False),
    ({}, STRING),
    ({"properties": {"a": STRING}}, {"type": "object"}),
    ({"const": True}, {"const": 1}),
    ({"const": 0}, {"const": False}),
    ({"const": "ab"}, {"minLength": 3}),
    ({"const": "ab"}, {"maxLength": 1}),
    ({"const": [1, 1]}, {"minItems": 3}),
    ({"const": [1, 1]}, {"maxItems": 1}),
    ({"const": [1, 1]}, {"uniqueItems": True}),
    ({"const": {"a": 1}}, {"minProperties": 2}),
    ({"const": {"a": 1}}, {"maxProperties": 0}),
    ({"const": {"a": 1}}, {"propertyNames": {"minLength": 2}}),
    ({"const": {"a": 1}}, {"dependencies": {"a": ["b"]}}),
    ({"const": 3}, {"exclusiveMinimum": 3}),
    ({"const": 3}, {"exclusiveMaximum": 3}),
    ({"enum": [1, 1.5]}, INTEGER),
    ({"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, {"const": 4}),
    ({"multipleOf": 3}, {"multipleOf": 6}),
    ({"multipleOf": 0.1}, {"multipleOf": 0.3}),
    (NUMBER, {"anyOf": [{"exclusiveMinimum": 3}, {"exclusiveMaximum": 3}]}),
    ({"type": "integer", "minimum": 0, "maximum": 10**9}, {"not": {"const": 10**8}}),
    (STRING, {"anyOf": [{"minLength": 2}, {"maxLength": 0}]}),
    ({"pattern": "^x"}, {"pattern": "^x-"}),
    ({"pattern": "^ab?"}, {"pattern": "^ab"}),
    ({"pattern": "^ab|^c"}, {"pattern": "^ab"}),
    ({"pattern": "^.*$"}, {"pattern": "x"}),
    ({}, {"pattern": "^.*$"}),
    ({"items": [STRING]}, {"maxItems": 1}),
    ({"items": {"enum": [1, 2]}, "type": "array"}, {"maxItems": 2}),
    ({"items": {"enum": [1, 1.5]}, "uniqueItems": True}, {"maxItems": 1}),
    ({"maxItems": 2}, {"uniqueItems": True}),
    ({"contains": {"const": 1}}, {"items": INTEGER}),
    ({"items": STRING}, {"contains": STRING}),
    ({"required": ["a", "a"]}, {"minProperties": 2}),
    ({"minProperties": 2}, {"required": ["a"]}),
    ({"patternProperties": {"^x": STRING}}, {"properties": {"yx": STRING}}),
    ({"properties": {"a": STRING}}, {"additionalProperties": STRING}),
    ({"type": "object", "not": {"properties": {"a": STRING}}}, {"required": ["b"]}),
    ({"dependencies": {"a": ["b"]}}, {"dependencies": {"b": ["a"]}}),
    ({"if": STRING, "then": {"maxLength": 1}}, {"type": "string"}),
]


@pytest.mark.parametrize(("writer", "reader"), COMPATIBLE, ids=json.dumps)
def test_it_is_compatible(writer: Schema, reader: Schema) -> None:
    assert incompatibilities(reader, writer) == []


@pytest.mark.parametrize(("writer", "reader"), INCOMPATIBLE, ids=json.dumps)
def test_it_is_not_compatible(writer: Schema, reader: Schema) -> None:
    assert incompatibilities(reader, writer)


# Drafts.


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (at(DRAFT_4, {"minimum": 3, "exclusiveMinimum": True}), at(DRAFT_7, {"exclusiveMinimum": 3})),
        (at(DRAFT_7, {"exclusiveMaximum": 3}), at(DRAFT_4, {"maximum": 3, "exclusiveMaximum": True})),
        (at(DRAFT_4, {"minimum": 3, "exclusiveMinimum": False}), at(DRAFT_7, {"minimum": 3})),
        (
            at(DRAFT_7, {"items": [STRING], "additionalItems": INTEGER}),
            at(DRAFT_2020, {"prefixItems": [STRING], "items": INTEGER}),
        ),
        (at(DRAFT_2020, {"prefixItems": [STRING], "items": False}), at(DRAFT_2019, {"items": [STRING], "maxItems": 1})),
        (
            at(DRAFT_7, {"dependencies": {"a": ["b"], "c": STRING}}),
            at(DRAFT_2019, {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": STRING}}),
        ),
        (
            at(DRAFT_7, {"$ref": "#/definitions/x", "definitions": {"x": STRING}}),
            at(DRAFT_2020, {"$ref": "#/$defs/x", "$defs": {"x": STRING}}),
        ),
        (
            at(DRAFT_2020, {"$ref": "#/$defs/x", "$defs": {"x": STRING}, "maxLength": 3}),
            at(DRAFT_7, {"type": "string", "maxLength": 3}),
        ),
        (at(DRAFT_4, INTEGER), at(DRAFT_7, INTEGER)),
        (at(DRAFT_4, {"enum": [1]}), at(DRAFT_4, NUMBER)),
        (at(DRAFT_4, {}), at(DRAFT_4, {"const": 1, "contains": False, "propertyNames": False})),
        (at(DRAFT_6, {}), at(DRAFT_6, {"if": True, "then": False})),
        (at(DRAFT_7, {}), at(DRAFT_7, {"dependentRequired": {"a": ["b"]}, "unevaluatedProperties": False})),
        (at(DRAFT_7, {"contains": STRING}), at(DRAFT_7, {"contains": STRING, "minContains": 2})),
        ({"contains": STRING}, {"contains": STRING, "minContains": 2}),  # draft 7
        (at(DRAFT_2019, {"contains": STRING, "minContains": 2}), at(DRAFT_2019, {"contains": STRING})),
        (at(DRAFT_2019, {}), at(DRAFT_2019, {"contains": STRING, "minContains": 0})),
        (at(DRAFT_2020, {"contentEncoding": "base64"}), at(DRAFT_2020, {"contentEncoding": "hex"})),
        (at(DRAFT_7, {"contentEncoding": "base64", "type": "string"}), at(DRAFT_7, {"contentEncoding": "base64"})),
    ],
    ids=json.dumps,
)
def test_drafts_say_the_same_in_other_words(writer: Schema, reader: Schema) -> None:
    assert incompatibilities(reader, writer) == []


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (
            at(DRAFT_7, {"$ref": "#/definitions/x", "definitions": {"x": STRING}, "maxLength": 3}),
            at(DRAFT_7, {"type": "string", "maxLength": 3}),
        ),
        (at(DRAFT_7, INTEGER), at(DRAFT_4, INTEGER)),
        (at(DRAFT_4, {"enum": [1]}), at(DRAFT_4, INTEGER)),
        (at(DRAFT_2019, {"contains": STRING}), at(DRAFT_2019, {"contains": STRING, "minContains": 2})),
        (at(DRAFT_2020, {"items": STRING}), at(DRAFT_2020, {"prefixItems": [INTEGER]})),
        (at(DRAFT_7, {"type": "string"}), at(DRAFT_7, {"contentMediaType": "application/json"})),
        (
            at(DRAFT_6, {"contentEncoding": "base64"}),
            at(DRAFT_6, {"contentEncoding": "base64", "contentMediaType": "application/json"}),
        ),
    ],
    ids=json.dumps,
)
def test_drafts_differ(writer: Schema, reader: Schema) -> None:
    assert incompatibilities(reader, writer)


# References.


def tree(leaf: Schema) -> Schema:
    node = fields(left={"$ref": "#/definitions/it"}, right={"$ref": "#/definitions/it"}, leaf=leaf)
    return defined(node)


def chain(length: int, leaf: Schema) -> Schema:
    """Schemas that each refer to the next one."""
    links = {f"link{index}": fields(next={"$ref": f"#/definitions/link{index + 1}"}) for index in range(length)}
    return {"$ref": "#/definitions/link0", "definitions": {**links, f"link{length}": leaf}}


def test_recursive_schemas_are_compared() -> None:
    assert incompatibilities(tree(NUMBER), tree(INTEGER)) == []
    assert incompatibilities(tree(INTEGER), tree(NUMBER)) == [
        "/definitions/it/properties/leaf: the writer allows number, the reader only integer"
    ]


def test_a_recursive_schema_is_compared_with_one_that_unrolls_it() -> None:
    once = fields(leaf=INTEGER, left={"$ref": "#/definitions/it"}, right={"$ref": "#/definitions/it"})
    unrolled = {**tree(INTEGER), "$ref": "#/definitions/once"}
    unrolled["definitions"]["once"] = once

    assert incompatibilities(unrolled, tree(INTEGER)) == []
    assert incompatibilities(tree(INTEGER), unrolled) == []


def test_a_document_cannot_be_infinite() -> None:
    endless = defined({"type": "object", "properties": {"next": {"$ref": "#/definitions/it"}}, "required": ["next"]})

    assert incompatibilities(False, endless) == []
    assert incompatibilities({"not": {}}, {"type": "array", "minItems": 1, "items": endless, **endless}) == []


def test_what_was_assumed_inside_a_cycle_is_not_remembered_if_it_was_wrong() -> None:
    even, odd = {"$ref": "#/definitions/even"}, {"$ref": "#/definitions/odd"}
    stop = {"type": "null"}
    lists = {
        "even": {"anyOf": [stop, {"type": "array", "items": [odd], "additionalItems": False, "minItems": 1}]},
        "odd": {"type": "array", "items": [even], "additionalItems": False, "minItems": 1},
    }

    assert incompatibilities({"definitions": lists, **even}, {"definitions": lists, **odd})
    assert incompatibilities({"definitions": lists, **odd}, {"definitions": lists, **even})
    both = {"definitions": lists, "anyOf": [even, odd]}
    assert incompatibilities(both, {"definitions": lists, **even}) == []
    assert incompatibilities({"definitions": lists, **even}, both)


@pytest.mark.parametrize("loop", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}])
def test_a_reference_to_itself_means_nothing(loop: Schema) -> None:
    assert incompatibilities(loop, STRING)
    assert incompatibilities(STRING, loop)
    assert incompatibilities({}, loop) == []


def test_references_lead_to_ids_and_anchors() -> None:
    writer = at(
        DRAFT_2020,
        {
            "$id": "https://example.com/order.json",
            "properties": {
                "a": {"$ref": "#name"},
                "b": {"$ref": "parts/money.json#/$defs/cents"},
                "c": {"$ref": "/order.json#/$defs/plain"},
            },
            "$defs": {
                "named": {"$anchor": "name", **STRING},
                "plain": {"type": "boolean"},
                "money": {
                    "$id": "parts/money.json",
                    "$defs": {"cents": {"$ref": "#/$defs/own"}, "own": INTEGER},
                },
            },
        },
    )
    inlined = {"properties": {"a": STRING, "b": INTEGER, "c": {"type": "boolean"}}}

    assert incompatibilities(inlined, writer) == []
    assert incompatibilities(writer, inlined) == []


def test_anchors_are_found_wherever_schemas_stand() -> None:
    schema = at(DRAFT_2020, {"allOf": [{"items": {"$anchor": "it", **STRING}}], "properties": {"a": {"$ref": "#it"}}})

    assert incompatibilities({"properties": {"a": STRING}}, schema) == []


def test_external_references_are_resolved_by_the_caller() -> None:
    documents = {"money.json": {"definitions": {"a/b": {"$ref": "#/definitions/cents"}, "cents": INTEGER}}}
    schema = fields(total={"$ref": "money.json#/definitions/a~1b"})

    assert incompatibilities(fields(total=INTEGER), schema, resolve=documents.__getitem__) == []
    assert incompatibilities(schema, fields(total=NUMBER), resolve=documents.__getitem__) == [
        "money.json#/definitions/cents: the writer allows number, the reader only integer"
    ]


def test_the_caller_is_asked_for_the_whole_uri_and_then_for_what_is_written() -> None:
    asked: list[str] = []

    def resolve(uri: str) -> object:
        asked.append(uri)
        return {"money.json": INTEGER}[uri]

    schema = {"$id": "https://example.com/order.json", "items": {"$ref": "money.json"}}

    assert incompatibilities({"items": INTEGER}, schema, resolve=resolve) == []
    assert asked == ["https://example.com/money.json", "money.json"]


@pytest.mark.parametrize("ref", ["money.json", "#/definitions/none", "#none", "#/definitions/it/0", "http://[", "#/a~"])
def test_what_is_not_known_is_refused(ref: str) -> None:
    schema = {"properties": {"total": {"$ref": ref}}, "definitions": {"it": {}}}

    assert incompatibilities(schema, {"properties": {"total": INTEGER}}) == [
        f"/properties/total/$ref: this refers to {ref!r}, which is not known here, "
        "so it is not certain that the reader takes all that the writer allows"
    ]
    assert incompatibilities({"properties": {"total": INTEGER}}, schema)[-1] == (
        f"/: the writer refers to {ref!r}, which is not known here: it counts as anything"
    )
    assert incompatibilities({**schema, "title": "x"}, schema)
    assert incompatibilities({}, schema) == []


def test_a_resolver_that_gives_no_schema_is_not_believed() -> None:
    assert incompatibilities({"$ref": "x.json"}, STRING, resolve=lambda _: None)
    assert incompatibilities({"$ref": "x.json"}, STRING, resolve=lambda _: True) == []


def test_documents_that_refer_to_ever_more_documents_come_to_an_end() -> None:
    def resolve(uri: str) -> object:
        return {"properties": {"next": {"$ref": f"{uri}x"}}}

    assert incompatibilities({"$ref": "x"}, {}, resolve=resolve) == [UNDECIDED]


def test_a_dynamic_reference_with_one_anchor_is_an_ordinary_one() -> None:
    def extensible(leaf: Schema) -> Schema:
        children = {"type": "array", "items": {"$dynamicRef": "#node"}}
        return at(DRAFT_2020, {"$dynamicAnchor": "node", **fields(children=children, leaf=leaf)})

    assert incompatibilities(extensible(NUMBER), extensible(INTEGER)) == []
    assert incompatibilities(extensible(INTEGER), extensible(NUMBER))


def test_a_dynamic_reference_that_could_lead_elsewhere_is_refused() -> None:
    def extended(title: str) -> Schema:
        inner = {"$id": "tree", "$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}, "title": title}
        return at(DRAFT_2020, {"$dynamicAnchor": "node", "$ref": "tree", "maxItems": 3, "$defs": {"tree": inner}})

    assert incompatibilities(extended("new"), extended("old"))
    assert incompatibilities(extended("same"), extended("same")) == []
    assert incompatibilities(at(DRAFT_2020, {"maxItems": 4}), extended("old")) == []


def test_a_recursive_reference_without_other_anchors_is_an_ordinary_one() -> None:
    def schema(leaf: Schema) -> Schema:
        return at(DRAFT_2019, {"$recursiveAnchor": True, "properties": {"a": {"$recursiveRef": "#"}, "leaf": leaf}})

    assert incompatibilities(schema(NUMBER), schema(INTEGER)) == []
    assert incompatibilities(schema(INTEGER), schema(NUMBER))


def test_a_recursive_reference_without_any_anchor_stays_in_its_own_resource() -> None:
    def schema(leaf: Schema) -> Schema:
        inner = {"$id": "tree", "properties": {"a": {"$recursiveRef": "#"}, "leaf": leaf}}
        return at(DRAFT_2019, {"type": "array", "items": {"$ref": "tree"}, "$defs": {"tree": inner}})

    assert incompatibilities(schema(NUMBER), schema(INTEGER)) == []
    assert incompatibilities(schema(INTEGER), schema(NUMBER))


def test_where_a_dynamic_reference_leads_cannot_be_said_if_there_are_more_documents() -> None:
    links = {"a": {"$dynamicRef": "#it"}, "b": {"$ref": "more.json"}}
    schema = at(DRAFT_2020, {"$dynamicAnchor": "it", "properties": links})

    assert incompatibilities(schema, {"const": {"b": "x"}}, resolve=lambda _: STRING)


# What is unevaluated.


def test_unevaluated_properties_see_through_all_of_and_references() -> None:
    def order(**more: Schema) -> Schema:
        base = fields(False, a=STRING)
        extension = {"$ref": "#/$defs/base", "allOf": [fields(False, **more)], "unevaluatedProperties": False}
        return at(DRAFT_2020, {"type": "object", **extension, "$defs": {"base": base}})

    assert incompatibilities(order(b=STRING), order()) == []
    assert incompatibilities(order(), order(b=STRING)) == [
        "/unevaluatedProperties: the writer allows the property 'b', the reader does not"
    ]
    assert incompatibilities(fields(a=STRING, b=STRING), order(b=STRING)) == []


UNEVALUATED_ITEMS = [  # and how many items there can be
    (at(DRAFT_2020, {"prefixItems": [STRING], "unevaluatedItems": False}), 1),
    (at(DRAFT_2020, {"allOf": [{"prefixItems": [STRING, STRING]}], "prefixItems": [{}], "unevaluatedItems": False}), 2),
    (at(DRAFT_2019, {"allOf": [{"items": [STRING]}], "unevaluatedItems": False}), 1),
    (at(DRAFT_2020, {"allOf": [{"items": STRING}], "unevaluatedItems": False}), None),
    (at(DRAFT_2019, {"allOf": [{"items": [STRING], "additionalItems": {}}], "unevaluatedItems": False}), None),
    (at(DRAFT_2020, {"allOf": [{"unevaluatedItems": STRING}], "unevaluatedItems": False}), None),
]


@pytest.mark.parametrize(("schema", "count"), UNEVALUATED_ITEMS, ids=json.dumps)
def test_unevaluated_items_see_through_all_of(schema: Schema, count: int | None) -> None:
    assert (incompatibilities({"maxItems": 2}, schema) == []) == (count is not None)
    assert (incompatibilities({"maxItems": 1}, schema) == []) == (count == 1)
    assert separating({"maxItems": 1}, schema, [["a", "a"], ["a", "a", "a"]]) == (
        [] if count == 1 else [["a", "a"]] if count == 2 else [["a", "a"], ["a", "a", "a"]]
    )


def test_unevaluated_properties_that_depend_on_the_value_are_refused() -> None:
    def order(title: str) -> Schema:
        choice = {"anyOf": [fields(False, a=STRING), fields(False, b=STRING)]}
        return at(DRAFT_2020, {"type": "object", **choice, "unevaluatedProperties": False, "title": title})

    assert incompatibilities(order("new"), order("old")) == [
        "/unevaluatedProperties: this depends on the value, "
        "so it is not certain that the reader takes all that the writer allows"
    ]
    assert incompatibilities({"type": "object"}, order("old")) == []


@pytest.mark.parametrize(
    ("draft", "anchor", "reference"),
    [
        (DRAFT_2020, {"$dynamicAnchor": "it"}, {"$dynamicRef": "#it"}),
        (DRAFT_2019, {"$recursiveAnchor": True}, {"$recursiveRef": "#"}),
    ],
)
def test_unevaluated_properties_do_not_see_through_dynamic_references(
    draft: str, anchor: Schema, reference: Schema
) -> None:
    anchored = {**anchor, "properties": {"a": {}, "child": {**reference, "unevaluatedProperties": False}}}
    writer, reader = at(draft, anchored), at(draft, {"properties": {"child": {"maxProperties": 0}}})

    assert separating(reader, writer, [{"child": {"a": 1}}])
    assert incompatibilities(reader, writer)


# Bounds.


def nested(depth: int, leaf: Schema) -> Schema:
    for _ in range(depth):
        leaf = fields(inside=leaf)
    return leaf


def test_deep_schemas_are_compared() -> None:
    assert incompatibilities(nested(45, NUMBER), nested(45, INTEGER)) == []
    assert incompatibilities(nested(45, INTEGER), nested(45, NUMBER)) == [
        f"{'/properties/inside' * 45}: the writer allows number, the reader only integer"
    ]


@pytest.mark.parametrize("depth", [60, 500, 10_000])
def test_schemas_that_are_too_deep_are_refused(depth: int) -> None:
    assert incompatibilities(nested(depth, NUMBER), nested(depth, INTEGER)) == [UNDECIDED]


def test_a_depth_that_is_made_of_references_is_bounded_too() -> None:
    assert incompatibilities(chain(40, NUMBER), chain(40, INTEGER)) == []
    assert incompatibilities(chain(2_000, NUMBER), chain(2_000, INTEGER)) == [UNDECIDED]


def test_a_caller_who_is_deep_in_the_stack_gets_an_answer() -> None:
    def called(depth: int) -> list[str]:
        return called(depth - 1) if depth else incompatibilities(nested(45, NUMBER), nested(45, INTEGER))

    assert called(0) == []
    assert called(600) in ([], [UNDECIDED])


def test_large_enums_are_compared() -> None:
    many = [f"value {number}" for number in range(10_000)]

    assert incompatibilities({"enum": [*many, "one more"]}, {"enum": many}) == []
    assert incompatibilities({"type": "string", "pattern": "^value"}, {"enum": many}) == []
    assert incompatibilities({"enum": many[2:]}, {"enum": many}) == [
        '/enum: the writer allows values that the reader does not list: "value 0", "value 1"'
    ]


def test_large_schemas_are_compared() -> None:
    kinds = [STRING, INTEGER, {"type": ["string", "null"]}, {"enum": ["a", "b"]}, {"type": "array", "items": NUMBER}]
    many = {f"field{index}": kinds[index % 5] for index in range(1_000)}

    assert incompatibilities(fields(**many, more=STRING), fields(**many)) == []
    assert incompatibilities(fields(**{**many, "field7": INTEGER}), fields(**many)) == [
        "/properties/field7: the writer allows null and string, the reader only integer"
    ]


def test_many_alternatives_with_a_tag_are_compared() -> None:
    def union(count: int, value: Schema) -> Schema:
        kinds = [fields(kind={"const": f"kind{index}"}, value=value) for index in range(count)]
        return {"oneOf": [{**kind, "required": ["kind"]} for kind in kinds]}

    assert incompatibilities(union(21, NUMBER), union(20, INTEGER)) == []
    assert incompatibilities(union(20, INTEGER), union(20, NUMBER)) == [
        "/oneOf: the writer allows object values that fit none of the alternatives"
    ]


def test_what_would_take_forever_is_refused() -> None:
    def puzzle(count: int) -> Schema:
        """Pigeons, one more than holes."""
        holes = [f"hole{hole}" for hole in range(count)]
        somewhere = [{"anyOf": [{"required": [f"{hole} {pigeon}"]} for hole in holes]} for pigeon in range(count + 1)]
        alone = [
            {"not": {"required": [f"{hole} {one}", f"{hole} {other}"]}}
            for hole in holes
            for one in range(count + 1)
            for other in range(one)
        ]
        return {"type": "object", "allOf": [*somewhere, *alone]}

    assert incompatibilities(False, puzzle(2)) == []
    assert incompatibilities(False, puzzle(9)) == [UNDECIDED]


def test_huge_numbers_are_compared() -> None:
    between = {"type": "integer", "minimum": -1e30, "maximum": 1e30}

    assert incompatibilities({**between, "maximum": 10**30, "not": {"const": 0.5}}, between) == []
    assert incompatibilities({**between, "not": {"const": 7}}, between)
    assert incompatibilities({"maxItems": 5}, {"items": between, "uniqueItems": True, "type": "array"})
    assert incompatibilities({"multipleOf": 1e-300}, {"minimum": 0, "maximum": 1, "multipleOf": 2e-300}) == []


@pytest.mark.parametrize("pattern", ["(?=a)a", "(a)\\1", "(", "a{1000000000}"])
def test_a_pattern_that_cannot_be_tried_is_refused(pattern: str) -> None:
    assert incompatibilities({"pattern": pattern}, {"const": "aa"})
    assert incompatibilities({"pattern": pattern}, {"type": "string", "pattern": pattern}) == []
    assert incompatibilities({"patternProperties": {pattern: STRING}}, {"const": {"aa": 1}})
    assert incompatibilities({"patternProperties": {pattern: STRING}}, {"const": {"aa": "b"}}) == []


def test_half_a_surrogate_pair_is_no_text_but_does_no_harm() -> None:
    assert incompatibilities({"pattern": "a"}, {"const": "\ud800"})
    assert incompatibilities({"enum": ["\ud800"]}, {"const": "\ud800"}) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "strange"},
        {"type": 3},
        {"enum": 3},
        {"minimum": "3"},
        {"minimum": float("inf")},
        {"multipleOf": 0},
        {"minLength": -1},
        {"maxItems": 1.5},
        {"required": "a"},
        {"properties": []},
        {"pattern": 3},
        {"pattern": "("},
        {"items": 3},
        {"allOf": {}},
        {"$ref": 3},
        {"dependencies": 3},
        3,
    ],
    ids=repr,
)
def test_what_is_no_schema_is_compatible_with_nothing(broken: Schema) -> None:
    assert incompatibilities(broken, {})
    assert incompatibilities(False, broken)
    assert incompatibilities({}, broken) == []


# The policy LENIENT.


def lenient(reader: Schema, writer: Schema) -> list[str]:
    return incompatibilities(reader, writer, is_lenient=True)


@settings(max_examples=70)
@given(PAIRS)
def test_lenient_accepts_all_that_strict_accepts(pair: tuple[Schema, Schema]) -> None:
    writer, reader = pair

    assert incompatibilities(reader, writer) or lenient(reader, writer) == []


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
FEW, MORE = {"a": TEXT}, {"a": TEXT, "b": TEXT}


@pytest.mark.parametrize(
    ("is_closed", "is_added", "is_required", "strict_is_good", "lenient_is_good"),
    [
        (False, True, False, False, True),
        (False, True, True, False, False),
        (True, True, False, True, True),
        (True, True, True, False, False),
        (False, False, False, True, True),
        (False, False, True, True, True),
        (True, False, False, False, True),
        (True, False, True, False, False),
    ],
)
def test_a_property_is_added_or_removed(
    is_closed: bool, is_added: bool, is_required: bool, strict_is_good: bool, lenient_is_good: bool
) -> None:
    more = {**fields(is_closed, **MORE), "required": ["b"] if is_required else []}
    writer, reader = (fields(is_closed, **FEW), more) if is_added else (more, fields(is_closed, **FEW))

    assert (not incompatibilities(reader, writer)) == strict_is_good
    assert (not lenient(reader, writer)) == lenient_is_good


OPEN_FEW, OPEN_MORE = fields(False, **FEW), fields(False, **MORE)
LENIENTLY_COMPATIBLE = {
    "the first property of an open object": ({"type": "object"}, OPEN_FEW),
    "an object that is closed now": (OPEN_FEW, fields(**FEW)),
    "inside a property": (fields(False, x=OPEN_FEW), fields(False, x=OPEN_MORE)),
    "inside an item": ({"items": OPEN_FEW}, {"items": OPEN_MORE}),
    "inside an item at a place": (at(DRAFT_2020, {"prefixItems": [OPEN_FEW]}), {"items": [OPEN_MORE]}),
    "inside the values of a map": ({"additionalProperties": OPEN_FEW}, {"additionalProperties": OPEN_MORE}),
    "beside another schema": ({"allOf": [OPEN_FEW, {"properties": {"c": TEXT}}]}, {"allOf": [OPEN_MORE]}),
    "behind a reference": (defined(OPEN_FEW), defined(OPEN_MORE)),
    "in a schema that refers to itself": (
        defined(fields(False, next={"$ref": "#/definitions/it"})),
        defined(fields(False, next={"$ref": "#/definitions/it"}, b=TEXT)),
    ),
    "in an alternative": (
        {"oneOf": [{"type": "null"}, OPEN_FEW]},
        {"oneOf": [{"type": "null"}, OPEN_MORE]},
    ),
    "in an alternative that is told apart by a constant": (
        {"oneOf": [fields(False, kind={"const": 1}), fields(False, kind={"const": 2})], "required": ["kind"]},
        {"oneOf": [fields(False, kind={"const": 1}, b=TEXT), fields(False, kind={"const": 2})], "required": ["kind"]},
    ),
    "a name that a pattern does not match": (
        {"patternProperties": {"^x-": NUMBER}},
        {"patternProperties": {"^x-": NUMBER}, "properties": {"b": TEXT}},
    ),
}
LENIENTLY_INCOMPATIBLE = {
    "another type": (OPEN_FEW, fields(False, a=NUMBER)),
    "a property that only a part of the schema names": (
        {"allOf": [OPEN_FEW, {"properties": {"b": NUMBER}}]},
        OPEN_MORE,
    ),
    "a property that an alternative names": ({"anyOf": [OPEN_FEW, {"properties": {"b": NUMBER}}]}, OPEN_MORE),
    "a property that a condition names": (
        {"if": {"properties": {"b": NUMBER}}, "then": {"required": ["b"]}},
        OPEN_MORE,
    ),
    "a property behind a reference": (defined(fields(False, b=NUMBER)), OPEN_MORE),
    "a property that is required and not described": ({**OPEN_FEW, "required": ["b"]}, OPEN_MORE),
    "a property of a listed value": ({"enum": [{"b": 1}]}, OPEN_MORE),
    "a property of a map": ({"additionalProperties": NUMBER}, {**OPEN_MORE, "additionalProperties": NUMBER}),
    "a property of a map with names": ({"propertyNames": {"maxLength": 3}}, OPEN_MORE),
    "a property of a map that is not empty": ({"type": "object", "minProperties": 1}, OPEN_MORE),
    "a name that a pattern matches": ({"patternProperties": {"^b": NUMBER}}, OPEN_MORE),
    "another map": ({"additionalProperties": NUMBER}, {"additionalProperties": TEXT}),
    "fewer types": ({}, OPEN_FEW),
    "what the reader negates": (OPEN_MORE, {"not": {"required": ["b"]}}),
}


@pytest.mark.parametrize(
    ("writer", "reader"), [pytest.param(*pair, id=name) for name, pair in LENIENTLY_COMPATIBLE.items()]
)
def test_lenient_lets_optional_properties_come(writer: Schema, reader: Schema) -> None:
    assert incompatibilities(reader, writer)
    assert lenient(reader, writer) == []


@pytest.mark.parametrize(
    ("writer", "reader"), [pytest.param(*pair, id=name) for name, pair in LENIENTLY_INCOMPATIBLE.items()]
)
def test_lenient_still_refuses(writer: Schema, reader: Schema) -> None:
    assert lenient(reader, writer)
