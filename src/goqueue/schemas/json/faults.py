"""Where a JSON value breaks its schema, and how.

The validators are asked for nothing but yes or no. They could say more, but what they say has a copy of the value for
each branch of each `anyOf`, and a recursive schema has a branch for each way down: a value of a megabyte can
cost gigabytes. So the fault is looked for from here, from the root downwards: as long as a part of the schema does
not fit the part of the value that it is for, it is there. What is left is one schema and one value, and the keyword
that is broken is found by trying them.

Where nothing smaller can be blamed, as with `anyOf`, the fault is at the whole of what it is for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import jsonschema_rs

from goqueue.schemas.format import PayloadFault
from goqueue.schemas.json.references import References, SchemaPlace, pointer_of

SHOWN_CHARACTERS_MAX: Final = 100
STEPS_MAX: Final = 1_000
"""How far down a fault is followed; a `$ref` is a step, too."""
_DECIDED_ALONE: Final = (
    "type",
    "enum",
    "const",
    "required",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "dependentRequired",
)
"""Keywords that refer to no other schema."""
_DECIDED_TOGETHER: Final = (
    "anyOf",
    "oneOf",
    "not",
    "if",
    "contains",
    "additionalProperties",
    "additionalItems",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contentEncoding",
    "contentMediaType",
    "$dynamicRef",
    "$recursiveRef",
)
_WORDS: Final[Mapping[str, str]] = {
    "anyOf": "fits none of the schemas of anyOf",
    "oneOf": "does not fit exactly one of the schemas of oneOf",
    "not": "fits what it must not fit",
    "if": "does not fit what follows from if",
    "contains": "does not contain what it must",
}


class Subschema(NamedTuple):
    """A part of a schema, what it is for, and the key to that, if it is not all of it."""

    place: SchemaPlace
    value: Any
    key: str | int | None = None


class FaultFinder:
    """Finds faults in values that break a schema."""

    def __init__(
        self,
        references: References,
        parts: Mapping[str, jsonschema_rs.ValidatorMap],
        compile_alone: Callable[[Any], jsonschema_rs.Validator],
    ) -> None:
        self._references = references
        self._parts = parts  # by document
        self._compile_alone = compile_alone

    def find(self, value: Any) -> PayloadFault:
        """The fault of a value that is known to have one."""
        place, path = SchemaPlace("", ()), list[str | int]()
        for _ in range(STEPS_MAX):
            broken = next((part for part in self._narrower(place, value) if self._breaks(part)), None)
            if broken is None:
                break
            place, value = broken.place, broken.value
            if broken.key is not None:
                path.append(broken.key)
        return PayloadFault(pointer_of(path), self._reason(self._references.node(place), value))

    def _breaks(self, part: Subschema) -> bool:
        node = self._references.node(part.place)
        if isinstance(node, bool):
            return not node
        validator = self._parts[part.place.document].get(f"#{pointer_of(part.place.path)}")
        return validator is not None and not validator.is_valid(part.value)

    def _narrower(self, place: SchemaPlace, value: Any) -> Iterator[Subschema]:
        """The parts of the schema at the place, each with what it is for."""
        node = self._references.node(place)
        if not isinstance(node, dict):
            return
        target = self._references.target(node)
        if target is not None:
            yield Subschema(target, value)  # first: until draft 7 nothing beside it counts
        members = node.get("allOf")
        for index in range(len(members) if isinstance(members, list) else 0):
            yield Subschema(_below(place, "allOf", index), value)
        if isinstance(value, dict):
            yield from _of_properties(place, node, value)
        elif isinstance(value, list):
            yield from _of_items(place, node, value)

    def _reason(self, node: Any, value: Any) -> str:
        if not isinstance(node, dict):
            return f"{shown(value)}: nothing is allowed here"
        for keyword in _DECIDED_ALONE:
            if keyword in node and not self._fits_alone(node, keyword, value):
                return _words(keyword, node[keyword], value)
        unexpected = _unexpected(node, value)
        if unexpected:
            return f"{', '.join(map(shown, unexpected[:5]))} may not be there"
        blamed = [keyword for keyword in _DECIDED_TOGETHER if keyword in node]
        if len(blamed) == 1:
            return f"{shown(value)} {_WORDS.get(blamed[0], f'breaks {blamed[0]}')}"
        return f"{shown(value)} breaks {' or '.join(blamed) or 'the schema'}"

    def _fits_alone(self, node: dict[str, Any], keyword: str, value: Any) -> bool:
        schema = {keyword: node[keyword]}
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(node.get(exclusive), bool):  # draft 4: it says how the other is meant
                if keyword == exclusive:
                    return True
                if keyword == bound:
                    schema[exclusive] = node[exclusive]
        try:
            return self._compile_alone(schema).is_valid(value)
        except ValueError:
            return True


def _of_properties(place: SchemaPlace, node: dict[str, Any], value: dict[str, Any]) -> Iterator[Subschema]:
    properties = node.get("properties")
    named = properties if isinstance(properties, dict) else {}
    has_others = isinstance(node.get("additionalProperties"), dict) and "patternProperties" not in node
    for key, item in value.items():
        if key in named:
            yield Subschema(_below(place, "properties", key), item, key)
        elif has_others:
            yield Subschema(_below(place, "additionalProperties"), item, key)


def _of_items(place: SchemaPlace, node: dict[str, Any], value: list[Any]) -> Iterator[Subschema]:
    first = "prefixItems" if isinstance(node.get("prefixItems"), list) else "items"
    placed = node[first] if isinstance(node.get(first), list) else []
    for index in range(min(len(placed), len(value))):
        yield Subschema(_below(place, first, index), value[index], index)
    if isinstance(node.get("items"), dict):
        rest = _below(place, "items")
        for index in range(len(placed), len(value)):
            yield Subschema(rest, value[index], index)


def _below(place: SchemaPlace, *keys: str | int) -> SchemaPlace:
    return SchemaPlace(place.document, (*place.path, *keys))


def _unexpected(node: dict[str, Any], value: Any) -> list[str]:
    """The properties that are not allowed, as far as that can be told without matching patterns."""
    if not isinstance(value, dict) or node.get("additionalProperties") is not False or "patternProperties" in node:
        return []
    properties = node.get("properties")
    return [key for key in value if not isinstance(properties, dict) or key not in properties]


def _words(keyword: str, wanted: Any, value: Any) -> str:
    match keyword:
        case "type":
            types = wanted if isinstance(wanted, list) else [wanted]
            return f"{shown(value)} is not of type {' or '.join(map(str, types))}"
        case "required":
            missing = [name for name in wanted if name not in value]
            return f"{', '.join(map(shown, missing[:5]))} is required"
        case "enum":
            more = f" and {len(wanted) - 5} more" if len(wanted) > 5 else ""
            return f"{shown(value)} is none of {', '.join(map(shown, wanted[:5]))}{more}"
        case "const":
            return f"{shown(value)} is not {shown(wanted)}"
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            return f"{shown(value)} is beyond the {keyword} of {shown(wanted)}"
        case "multipleOf":
            return f"{shown(value)} is not a multiple of {shown(wanted)}"
        case "pattern":
            return f"{shown(value)} does not match {shown(wanted)}"
        case "uniqueItems":
            return f"{shown(value)} has the same item twice"
    return f"{shown(value)} breaks the {keyword} of {shown(wanted)}"


def shown(value: Any) -> str:
    """The value on a line: text and numbers up to a length, of others only what they are."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "the object"
        case list():
            return "the array"
        case str():
            text = f'"{value[:SHOWN_CHARACTERS_MAX]}"'
            return text if len(value) <= SHOWN_CHARACTERS_MAX else f"{text[:-1]}..."
        case int() if abs(value) >= 10**SHOWN_CHARACTERS_MAX:
            return "the number"
    return str(value)
