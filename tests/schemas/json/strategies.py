"""JSON Schemas and documents out of a small world, so that they meet often.

`PAIRS` is wide: any keyword, nested, for what must hold for all schemas. The three fragments are narrow: for each
there is a list of documents that is decisive, because no schema of the fragment can tell apart more than they do.
"""

import json
from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = [DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020]

Schema = Any

NAMES = ["a", "b", "c", "ab"]
SCALARS = [None, True, False, -1, 0, 1, 2, 3, 4, 6, 0.5, 1.5, 2.5, "", "a", "b", "ab", "abc"]
FEW = [None, True, 0, 1, 1.5, "a", ""]
DOCUMENTS: list[Any] = [
    *SCALARS,
    *([scalar] for scalar in SCALARS),
    *(list(items) for items in product(FEW, repeat=2)),
    *(list(items) for items in product([0, 1, "a"], repeat=3)),
    [],
    [[]],
    [{}],
    [{"a": 1}],
    [[0, "a"]],
    {},
    *({name: value} for name in NAMES for value in FEW),
    *({"a": one, "b": other} for one in FEW for other in FEW),
    *({"a": one, "c": other} for one in FEW for other in FEW),
    *({"b": one, "ab": other} for one in [0, "a"] for other in FEW),
    {"a": 0, "b": 1, "c": "a"},
    {"a": 0, "b": 1, "c": 2, "ab": 3},
    {"a": {}},
    {"a": {"b": 1}},
    {"a": {"a": "b"}, "b": []},
    {"a": [1, "a"]},
]


def some(*several: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(several)


class World:
    """Makes schemas of a draft, with any keyword, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._draft = self._random.choice(DRAFTS)
        one = {"$schema": self._draft, **self._keywords(3), "definitions": {"x": self._schema(2), "y": self._schema(1)}}
        two = self._changed(one) if self._random.random() < 0.7 else {**one, **self._keywords(2)}
        self.pair: tuple[Schema, Schema] = (one, two) if self._random.random() < 0.5 else (two, one)

    def _some(self, *several: Any) -> Any:
        return self._random.choice(several)

    def _schema(self, depth: int) -> Schema:
        if self._random.random() < 0.1:
            return self._some({}, {"not": {}}) if self._draft == DRAFT_4 else self._some(True, False)
        return self._keywords(depth)

    def _keywords(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._some(1, 1, 2, 3)):
            found |= self._flat() if depth == 0 or self._random.random() < 0.4 else self._nested(depth)
        return found

    def _flat(self) -> dict[str, Any]:
        some = self._some
        exclusive = some("exclusiveMinimum", "exclusiveMaximum")
        is_old = self._draft == DRAFT_4
        kinds = ("null", "boolean", "integer", "number", "string", "array", "object")
        return some(
            *[{"type": some(*kinds, "array", "object")}] * 3,
            {"type": self._random.sample(kinds, some(1, 2, 3))},
            {"enum": [some(*SCALARS, [], [0], [0, "a"], {}, {"a": 0}) for _ in range(some(1, 2, 4))]},
            {"enum": [0]} if is_old else {"const": some(*SCALARS, [0], {"a": 0})},
            {some("minimum", "maximum"): some(0, 1, 2, 3, 0.5, 1.5)},
            {exclusive.replace("exclusiveM", "m"): some(0, 2), exclusive: True}
            if is_old
            else {exclusive: some(0, 2, 4)},
            {"multipleOf": some(1, 2, 3, 0.5, 1.5)},
            {
                some("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"): some(
                    0, 1, 2, 3
                )
            },
            {"pattern": some("a", "^a", "b$", "^(a|b)$", "^ab", ".*")},
            {"uniqueItems": True},
            {"required": self._random.sample(NAMES, some(1, 2))},
            {"format": "ipv4"},
        )

    def _nested(self, depth: int) -> dict[str, Any]:
        some = self._some

        def inner() -> Schema:
            return self._schema(depth - 1)

        def rest() -> Schema:
            return some({"not": {}}, inner())

        def several() -> list[Schema]:
            return [inner() for _ in range(some(1, 2, 2, 3))]

        def named() -> dict[str, Schema]:
            return {name: inner() for name in self._random.sample(NAMES, some(1, 2))}

        is_new = self._draft == DRAFT_2020
        choices: list[Callable[[], dict[str, Any]]] = [
            *[lambda: {"properties": named()}] * 2,
            *[lambda: {"properties": named(), "additionalProperties": rest()}] * 2,
            lambda: {"patternProperties": {some("^a", "b", "^(a|c)$", ".*"): inner()}},
            lambda: {"additionalProperties": inner()},
            lambda: {"propertyNames": some(inner(), {"enum": ["a", "b"]}, {"maxLength": 1})},
            lambda: {"items": inner()},
            lambda: {"prefixItems" if is_new else "items": several(), "additionalItems": inner()},
            lambda: {"contains": inner()},
            lambda: {"contains": inner(), "minContains": some(0, 1, 2), "maxContains": some(0, 1, 2)},
            *[lambda: {some("anyOf", "oneOf", "allOf"): several()}] * 3,
            lambda: {"not": inner()},
            lambda: {"if": inner(), "then": inner(), "else": inner()},
            lambda: {"dependentRequired": {some(*NAMES): [some(*NAMES)]}},
            lambda: {some("dependentSchemas", "dependencies"): {some(*NAMES): inner()}},
            lambda: {some("unevaluatedProperties", "unevaluatedItems"): rest()},
            lambda: {"$ref": some("#/definitions/x", "#/definitions/y", "#")},
        ]
        return self._random.choice(choices)()

    def _changed(self, schema: Schema) -> Schema:
        """The schema with a keyword more, less or other, somewhere."""
        copied = json.loads(json.dumps(schema))
        place = copied
        while self._random.random() < 0.6:
            inside = [each for each in _inside(place) if isinstance(each, dict)]
            if place is copied and "#/definitions" in json.dumps(copied):
                inside += [each for each in copied["definitions"].values() if isinstance(each, dict)]
            if not inside:
                break
            place = self._some(*inside)
        removable = sorted(place.keys() - {"$schema", "definitions"})
        if removable and self._random.random() < 0.5:
            del place[self._some(*removable)]
        else:
            place |= self._keywords(1)
        return copied


def _inside(schema: Schema) -> Iterator[Any]:
    for keyword in ("items", "contains", "not", "if", "then", "else", "additionalProperties", "additionalItems"):
        yield schema.get(keyword)
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        yield from schema.get(keyword, [])
    for keyword in ("properties", "patternProperties"):
        yield from schema.get(keyword, {}).values()


PAIRS = st.integers(0, 2**32 - 1).map(lambda seed: World(seed).pair)
"""Two schemas with much in common. From seeds: hypothesis would take longer to draw them than we to compare them."""


def combined(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Parts side by side, in alternatives, and negated."""

    def merged(several: list[Schema]) -> Schema:
        return {keyword: value for each in several for keyword, value in each.items()}

    flat = st.lists(parts, min_size=1, max_size=3).map(merged)
    two = st.lists(flat, min_size=2, max_size=3)
    choices = st.one_of(
        flat,
        st.builds(lambda keyword, several: {keyword: several}, some("anyOf", "allOf", "oneOf"), two),
        flat.map(lambda schema: {"not": schema}),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, flat, flat, flat),
    )
    return choices.map(lambda schema: {"$schema": DRAFT_2020, **schema})


SCALAR_SCHEMAS = combined(
    st.one_of(
        some("integer", "number", "string", ["string", "null"], ["integer", "boolean"]).map(
            lambda kind: {"type": kind}
        ),
        st.lists(some(0, 1, 2, 3, 1.5, "a", "b", "", True, None, "ab"), min_size=1, max_size=4).map(
            lambda values: {"enum": values}
        ),
        st.builds(
            lambda keyword, limit: {keyword: limit},
            some("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            some(0, 1, 2, 3, 1.5, 4),
        ),
        some(1, 2, 3, 0.5, 1.5).map(lambda of: {"multipleOf": of}),
        st.builds(lambda keyword, count: {keyword: count}, some("minLength", "maxLength"), st.integers(0, 3)),
    )
)
"""Numbers with bounds from 0 to 4 and strings up to length 3."""
SCALAR_DOCUMENTS: list[Any] = [
    *(None, True, False, [], {}),
    *(eighth / 8 for eighth in range(-24, 81)),
    *range(11, 40),
    *(-1000, 997, 1000, 1e6 + 0.5),
    *("".join(letters) for count in range(5) for letters in product("abc", repeat=count)),
]
"""Multiples of each combination of steps below, between and above the bounds, and three letters more than are named."""

MEMBERS = some(
    *({"type": "integer"}, {"type": "number"}, {"type": "string"}, {"enum": [0, 1]}, {"const": "a"}),
    *(True, False, {"not": {"const": 0}}, {"enum": [0, "a"]}),
)
MEMBER_VALUES = [0, 1, 2, 3, 0.5, "a", "b", "c", None]
"""Some in each set that members can be combined to, as many as an array of the fragment can need."""

ARRAY_SCHEMAS = combined(
    st.one_of(
        MEMBERS.map(lambda items: {"items": items}),
        MEMBERS.map(lambda first: {"prefixItems": [first]}),
        st.builds(lambda first, rest: {"prefixItems": [first], "items": rest}, MEMBERS, MEMBERS),
        MEMBERS.map(lambda contained: {"contains": contained}),
        MEMBERS.map(lambda contained: {"contains": contained, "minContains": 0, "maxContains": 1}),
        st.builds(lambda keyword, count: {keyword: count}, some("minItems", "maxItems"), st.integers(0, 2)),
        some({"uniqueItems": True}, {"type": "array"}, {"enum": [[], [0]]}, {"const": [0, "a"]}),
    )
)
"""Arrays whose sizes are bounded up to 2, with one place of its own."""
ARRAY_DOCUMENTS: list[Any] = [
    *(None, True, False, 0, 0.5, "", {}),
    *(list(items) for count in range(4) for items in product(MEMBER_VALUES, repeat=count)),
    *(list(items) for items in product([0, 2, "b", None], repeat=4)),
]

OBJECT_SCHEMAS = combined(
    st.one_of(
        st.dictionaries(some("a", "b"), MEMBERS, min_size=1).map(lambda properties: {"properties": properties}),
        st.builds(
            lambda properties, rest: {"properties": properties, "additionalProperties": rest},
            st.dictionaries(some("a", "b"), MEMBERS),
            MEMBERS,
        ),
        st.lists(some("a", "b"), min_size=1, max_size=2, unique=True).map(lambda names: {"required": names}),
        st.builds(lambda keyword, count: {keyword: count}, some("minProperties", "maxProperties"), st.integers(0, 2)),
        some({"type": "object"}, {"dependentRequired": {"a": ["b"]}}, {"propertyNames": {"enum": ["a", "x"]}}),
        some({"enum": [{}, {"a": 0}]}, {"const": {"a": 0, "b": 1}}),
    )
)
"""Objects with the names a, b and x, and whose sizes are bounded up to 2."""
_VALUES = [0, 1, 2, 0.5, "a", "b", None]
OBJECT_DOCUMENTS: list[Any] = [
    *(None, True, False, 0, 0.5, "", []),
    *(
        {name: value for name, value in zip("abxy", values, strict=True) if value != "absent"}
        for values in product(
            [*_VALUES, "absent"], [*_VALUES, "absent"], [0, 0.5, "a", "b", "absent"], [0, 2, "a", None, "absent"]
        )
    ),
    *({"x": value, "y": value, "z": value} for value in _VALUES),
    *({"a": value, "x": other, "y": other, "z": other} for value in _VALUES for other in _VALUES),
]
