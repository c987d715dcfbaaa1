"""From JSON Schemas to nodes and parts. Drafts 4 to 2020-12 differ in this file only.

A schema is read one object at a time, keyword by keyword; each keyword becomes the parts that it means, together with
those beside it that it depends on (`additionalProperties` on `properties`, `items` on `prefixItems`). A `$ref` is
looked up at once but read when it is needed, so schemas may be recursive. Without `$schema` a schema is draft 7.

`unevaluatedProperties` and `unevaluatedItems` depend on what the schemas beside them look at. Where that is the same
for all values they are read as what they mean; else they are opaque, as are dynamic references that could lead to
different places.

Under the policy LENIENT a side is read a second way (`Side.closed`, `Side.ignoring`): see `compatibility.py`.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, ParamSpec, TypeAlias, TypeVar
from urllib.parse import unquote, urldefrag, urljoin

from goqueue.schemas.json import parts
from goqueue.schemas.json.parts import DEPTH_MAX, KINDS, SchemaNode, TooComplex, Value, exact, freeze, in_place

Resolve: TypeAlias = Callable[[str], object]
"""The schema document of a URI; raises `LookupError` if there is none."""
DEFAULT_DRAFT: Final = 7

Fields = ParamSpec("Fields")
AnyPart = TypeVar("AnyPart", bound=parts.Part)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise TypeError(value)
    return int(value)


class SchemaResource(NamedTuple):
    """A schema with a URI of its own: what `#` means inside it."""

    root: object
    uri: str
    draft: int
    anchors: dict[str, object]
    is_foreign: bool


DRAFTS: Final = {"draft-03": 4, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
MAPS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
SINGLES: Final = frozenset(
    ("not", "if", "then", "else", "items", "additionalItems", "contains", "propertyNames", "additionalProperties")
) | {"unevaluatedProperties", "unevaluatedItems"}


def _draft(schema: dict[str, object], default: int) -> int:
    named = schema.get("$schema")
    if not isinstance(named, str):
        return default
    return next((draft for name, draft in DRAFTS.items() if name in named), default)


def children(schema: dict[str, object]) -> Iterator[object]:
    """All schemas that stand directly in a schema."""
    for keyword, value in schema.items():
        if isinstance(value, dict) and keyword in MAPS:
            yield from value.values()
        elif isinstance(value, list) and keyword in LISTS:
            yield from value
        elif isinstance(value, dict) and keyword in SINGLES:
            yield value


class Side:
    """One of the two schemas, with the documents that it refers to."""

    def __init__(self, root: object, resolve: Resolve | None, *, name: str) -> None:
        self.name = name
        self.exact = self
        """The same schema as it is written, if this is a relaxed reading of it."""
        self.is_closed = False
        self.ignored: frozenset[str] = frozenset()
        self.unresolved: dict[str, None] = {}
        self._resolve = resolve
        self._resources: dict[str, SchemaResource] = {}
        self._begins: dict[int, SchemaResource] = {}  # by identity of the schema object; documents stay alive below
        self._documents: list[object] = []
        self._dynamic: dict[str, int] = {}  # how often a dynamic anchor of that name stands somewhere
        self._is_dynamic_used = False
        self.root = self._add(root, "", DEFAULT_DRAFT)

    def _add(self, document: object, uri: str, draft: int) -> SchemaResource:
        """Take in a document with all resources and anchors inside it."""
        self._documents.append(document)
        is_foreign = len(self._documents) > 1
        if not isinstance(document, dict):
            return SchemaResource(document, uri, draft, {}, is_foreign)
        first = SchemaResource(document, uri, _draft(document, draft), {}, is_foreign)
        stack: list[tuple[object, SchemaResource]] = [(document, first)]
        self._resources.setdefault(uri, first)
        while stack:
            schema, resource = stack.pop()
            if not isinstance(schema, dict):
                continue
            draft = _draft(schema, resource.draft)
            own = schema.get("id" if draft == 4 else "$id")
            if isinstance(own, str) and not ("$ref" in schema and draft <= 7):
                if own.startswith("#"):
                    resource.anchors.setdefault(own[1:], schema)
                else:
                    at = urldefrag(urljoin(resource.uri, own)).url
                    resource = SchemaResource(schema, at, draft, {}, is_foreign)
                    self._resources.setdefault(at, resource)
                    self._begins[id(schema)] = resource
            if draft >= 2019:
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := schema.get(keyword), str):
                        resource.anchors.setdefault(name, schema)
                        if keyword == "$dynamicAnchor":
                            self._dynamic[name] = self._dynamic.get(name, 0) + 1
                if schema.get("$recursiveAnchor") is True:
                    self._dynamic["#"] = self._dynamic.get("#", 0) + 1
            stack.extend((child, resource) for child in children(schema))
        return self._begins.get(id(document), first)

    def closed(self) -> "Side":
        """The same schema, with only those properties in an open object that the schema names there."""
        found = copy.copy(self)
        found.is_closed = True
        return found

    def ignoring(self, names: frozenset[str]) -> "Side":
        """The same schema, in which `additionalProperties: false` passes over properties of these names."""
        found = copy.copy(self)
        found.ignored = names
        return found

    def optional_names(self) -> frozenset[str]:
        """The names of all properties that the schema requires nowhere."""
        named: set[str] = set()
        required: set[str] = set()
        stack = list(self._documents)
        while stack:
            if isinstance(schema := stack.pop(), dict):
                named.update(_keys(schema.get("properties")))
                required.update(_required_by(schema))
                stack.extend(children(schema))
        return frozenset(named - required)

    def begins(self, schema: dict[str, object], resource: SchemaResource) -> SchemaResource:
        """The resource that the schema is in, itself if it has a URI."""
        found = self._begins.get(id(schema))
        if found is not None and found.root is schema:
            return found
        return resource._replace(draft=_draft(schema, resource.draft)) if "$schema" in schema else resource

    def find(self, text: str, resource: SchemaResource) -> tuple[object, SchemaResource]:
        """What a reference refers to; raises `LookupError`."""
        uri, fragment = urldefrag(urljoin(resource.uri, text)) if not text.startswith("#") else ("", text[1:])
        if not text.startswith("#"):
            resource = self._resources.get(uri) or self._load(uri, urldefrag(text).url, resource.draft)
        fragment = unquote(fragment)
        if not fragment:
            return resource.root, resource
        if not fragment.startswith("/"):
            return resource.anchors[fragment], resource
        schema = resource.root
        for step in fragment[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict):
                schema = schema[name]
                if isinstance(schema, dict):
                    resource = self.begins(schema, resource)
            elif isinstance(schema, list) and name.isdecimal():
                schema = schema[int(name)]
            else:
                raise LookupError(text)
        return schema, resource

    def _load(self, uri: str, text: str, draft: int) -> SchemaResource:
        if self._resolve is None or self._is_dynamic_used:
            raise LookupError(text)
        try:
            document = self._resolve(uri)
        except LookupError:
            if text == uri:
                raise
            document = self._resolve(text)
        if not isinstance(document, dict | bool):
            raise LookupError(text)
        if len(self._documents) >= DEPTH_MAX:
            raise TooComplex
        loaded = self._add(document, uri, draft)
        self._resources[uri] = loaded
        return loaded

    def dynamic(self, name: str, resource: SchemaResource) -> tuple[object, SchemaResource]:
        """What a dynamic reference refers to, if that is the same from wherever one comes; raises `LookupError`."""
        is_plain = self._dynamic.get(name, 0) == 0
        if len(self._documents) > 1 or self._dynamic.get(name, 0) > 1 or (is_plain and name != "#"):
            raise LookupError(name)
        if name == "#" and len(self._resources) > 1 and not is_plain:
            raise LookupError(name)
        self._is_dynamic_used = True
        return self.find(name if name == "#" else f"#{name}", resource)

    def text(self, schema: object) -> str:
        """What makes the schema what it is, as a text: equal to one of the other side if it refers to nothing."""
        text = json.dumps(schema, sort_keys=True)
        return f"{self.name} {text}" if 'ef"' in text else text


class Evaluated(NamedTuple):
    """Which properties, or how many of the first items, a schema object looks at."""

    names: frozenset[str]
    patterns: frozenset[str]
    items: int
    is_all: bool

    def __or__(self, other: "Evaluated") -> "Evaluated":
        names, patterns = self.names | other.names, self.patterns | other.patterns
        return Evaluated(names, patterns, max(self.items, other.items), self.is_all or other.is_all)


NOTHING: Final = Evaluated(frozenset(), frozenset(), 0, False)


class Table:
    """All nodes and parts of one comparison."""

    def __init__(self) -> None:
        self._parts: dict[tuple[object, ...], parts.Part] = {}
        self._nodes: dict[frozenset[parts.Part], SchemaNode] = {}
        self._targets: dict[tuple[int, str], tuple[object, SchemaResource, Side]] = {}
        self._read: dict[tuple[int, str], SchemaNode] = {}
        self._found: dict[parts.Reference, SchemaNode] = {}
        self.anything = self.node([])
        self.nothing = self.node([self.part(parts.Kinds, frozenset[str](), False, False)])

    def part(self, make: Callable[Fields, AnyPart], *fields: Fields.args, **none: Fields.kwargs) -> AnyPart:
        """The part, made once."""
        key = (make, *fields)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = make(*fields, **none)
        return found  # type: ignore[return-value]

    def node(self, said: list[parts.Part]) -> SchemaNode:
        """The node of these parts, made once."""
        key = frozenset(said)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = SchemaNode(tuple(dict.fromkeys(said)))
        return found

    def target(self, reference: parts.Reference) -> SchemaNode:
        """What the reference refers to; opaque if that is the reference itself."""
        found = self._found.get(reference)
        if found is None:
            found = self._followed(reference)
            if self._leads_back(found, reference):
                *_, side = self._targets[reference.key]
                found = self.node([self.part(parts.Opaque, "", "refers to itself", f"{side.name} {reference.place}")])
            self._found[reference] = found
        return found

    def _followed(self, reference: parts.Reference) -> SchemaNode:
        found = self._read.get(reference.key)
        if found is None:
            schema, resource, side = self._targets[reference.key]
            found = self._read[reference.key] = self.read(schema, resource, side, 0)
        return found

    def _leads_back(self, start: SchemaNode, reference: parts.Reference) -> bool:
        """Whether the reference is come by again without going into an item or a property."""
        seen, stack = {start}, [start]
        while stack:
            for part in stack.pop().parts:
                if part is reference:
                    return True
                nodes = [self._followed(part)] if isinstance(part, parts.Reference) else in_place(part)
                stack.extend(node for node in nodes if node not in seen)
                seen.update(nodes)
        return False

    def read(self, schema: object, resource: SchemaResource, side: Side, depth: int) -> SchemaNode:
        """The normal form of a schema."""
        if depth > DEPTH_MAX:
            raise TooComplex
        if schema is True:
            return self.anything
        if schema is False:
            return self.nothing
        if not isinstance(schema, dict):
            return self.node([self.part(parts.Opaque, "", "is no schema", side.text(schema))])
        resource = side.begins(schema, resource)
        if resource.draft <= 7 and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}  # nothing beside it counts
        return self.node(list(_KeywordReader(self, resource, side, depth).read(schema)))

    def read_value(self, schema: object, resource: SchemaResource, side: Side, depth: int) -> SchemaNode:
        """The normal form of a schema that speaks of a whole value: the document, an item, a property.

        A closed side takes all names from here on together: what `allOf` and `$ref` put in the same place is one
        object, so each of them alone would close it against the names of the others.
        """
        node = self.read(schema, resource, side, depth)
        named = self._named(schema, resource, side, frozenset()) if side.is_closed else None
        if named is None:
            return node
        others = self.part(parts.OtherProperties, "additionalProperties", named.names, named.patterns, self.nothing)
        return self.node([*node.parts, others])

    def _named(self, schema: object, resource: SchemaResource, side: Side, above: frozenset[int]) -> Evaluated | None:
        """The names that the schema, and those in the same place, have for properties.

        None if it speaks of properties without naming them, as a schema of a map does: those are to be expected.
        """
        if not isinstance(schema, dict) or id(schema) in above:
            return NOTHING
        resource, above = side.begins(schema, resource), above | {id(schema)}
        inside: list[tuple[object, SchemaResource]] = []
        if isinstance(text := schema.get("$ref"), str):
            try:
                inside.append(side.find(text, resource))
            except (LookupError, ValueError):
                return None
            if resource.draft <= 7:
                return self._named(*inside[0], side, above)
        if not UNNAMING.isdisjoint(schema) or any(schema.get(each, True) not in CLOSED_OR_OPEN for each in OTHERS):
            return None
        patterns = frozenset(_keys(schema.get("patternProperties")))
        if not patterns.isdisjoint(ALWAYS_MATCH):
            return None
        names = frozenset((*_keys(schema.get("properties")), *_required_by(schema), *_listed_names(schema)))
        found = Evaluated(names, patterns, 0, False)
        for keyword in ("allOf", "anyOf", "oneOf"):
            inside.extend((each, resource) for each in _list(schema.get(keyword)))
        inside.extend((schema.get(keyword), resource) for keyword in ("if", "then", "else"))
        for keyword in ("dependentSchemas", "dependencies"):
            if isinstance(several := schema.get(keyword), dict):
                found |= Evaluated(frozenset(several), frozenset(), 0, False)
                inside.extend((each, resource) for each in several.values())
        for each, at in inside:
            inner = self._named(each, at, side, above)
            if inner is None:
                return None
            found |= inner
        return found

    def reference(self, schema: dict[str, object], keyword: str, resource: SchemaResource, side: Side) -> parts.Part:
        """The part that a `$ref`, `$dynamicRef` or `$recursiveRef` means."""
        text = schema[keyword]
        if not isinstance(text, str):
            raise TypeError(text)
        try:
            if keyword == "$ref":
                found, at = side.find(text, resource)
            elif keyword == "$recursiveRef":
                found, at = side.dynamic("#", resource)
            elif text.startswith("#") and not text.startswith("#/"):
                found, at = side.dynamic(text[1:], resource)
            else:
                raise LookupError(text)
        except (LookupError, ValueError):
            if keyword == "$ref":
                side.unresolved[text] = None
                why = f"refers to {text!r}, which is not known here"
                return self.part(parts.Opaque, keyword, why, f"{side.name} {text}")
            return self.part(parts.Opaque, keyword, "may lead to different places", f"{side.name} {text}")
        pointer = unquote(urldefrag(text).fragment)
        place = f"{at.uri}#{pointer}" if at.is_foreign else pointer
        key = (id(found), f"{id(side)} {id(at.root)} {place}")  # one document may be read in two ways
        self._targets[key] = (found, at, side)
        return self.part(parts.Reference, place, key)

    def evaluated(
        self, schema: object, resource: SchemaResource, side: Side, *, items: bool, above: frozenset[int] = frozenset()
    ) -> Evaluated | None:
        """What the schema looks at whenever it holds; None if that depends on the value."""
        if not isinstance(schema, dict):
            return NOTHING
        if id(schema) in above or len(above) > DEPTH_MAX:
            return None
        resource, above = side.begins(schema, resource), above | {id(schema)}
        found = _items_of(schema, resource.draft) if items else _properties_of(schema)
        surely, perhaps = list(_list(schema.get("allOf"))), [schema.get("if"), schema.get("then"), schema.get("else")]
        for keyword in ("anyOf", "oneOf"):
            perhaps.extend(_list(schema.get(keyword)))
        for keyword in ("dependentSchemas", "dependencies"):
            if isinstance(several := schema.get(keyword), dict):
                perhaps.extend(several.values())
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            return None
        if isinstance(text := schema.get("$ref"), str):
            try:
                target, at = side.find(text, resource)
            except (LookupError, ValueError):
                return None
            inner = self.evaluated(target, at, side, items=items, above=above)
            if inner is None:
                return None
            found = found | inner
        if any(self.evaluated(each, resource, side, items=items, above=above) != NOTHING for each in perhaps):
            return None
        for each in surely:
            inner = self.evaluated(each, resource, side, items=items, above=above)
            if inner is None:
                return None
            found = found | inner
        is_contained = items and "contains" in schema  # it looks at those that fit
        return None if is_contained and not found.is_all else found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _keys(value: object) -> Iterator[str]:
    return iter(value if isinstance(value, dict) else ())


def _required_by(schema: dict[str, object]) -> Iterator[str]:
    """All names that the schema object requires, always or beside another."""
    yield from (each for each in _list(schema.get("required")) if isinstance(each, str))
    for keyword in ("dependentRequired", "dependencies"):
        if isinstance(several := schema.get(keyword), dict):
            yield from (each for value in several.values() for each in _list(value) if isinstance(each, str))


def _listed_names(schema: dict[str, object]) -> Iterator[str]:
    """The names of properties in the values that the schema object lists."""
    for value in (*_list(schema.get("enum")), schema.get("const")):
        yield from _keys(value)
    yield from _keys(schema.get("dependentRequired"))


def _properties_of(schema: dict[str, object]) -> Evaluated:
    names, patterns = schema.get("properties"), schema.get("patternProperties")
    return Evaluated(
        frozenset(names if isinstance(names, dict) else ()),
        frozenset(patterns if isinstance(patterns, dict) else ()),
        0,
        "additionalProperties" in schema or "unevaluatedProperties" in schema,
    )


def _items_of(schema: dict[str, object], draft: int) -> Evaluated:
    items, prefix = schema.get("items"), schema.get("prefixItems")
    count = len(_list(prefix)) if draft >= 2020 else len(_list(items))
    is_all = "unevaluatedItems" in schema or isinstance(items, dict | bool)
    is_all = is_all or (isinstance(items, list) and "additionalItems" in schema)
    return Evaluated(frozenset(), frozenset(), count, is_all)


SIZES: Final = {
    "minLength": (parts.SizeLeast, "string"),
    "maxLength": (parts.SizeMost, "string"),
    "minItems": (parts.SizeLeast, "array"),
    "maxItems": (parts.SizeMost, "array"),
    "minProperties": (parts.SizeLeast, "object"),
    "maxProperties": (parts.SizeMost, "object"),
}
SINCE: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    "if": 7,
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"), 2019),
    "$dynamicRef": 2020,
}
ALWAYS_MATCH: Final = frozenset({"", "^", "$", ".*", "^.*", ".*$"})
OTHERS: Final = ("additionalProperties", "unevaluatedProperties")
CLOSED_OR_OPEN: Final[tuple[object, ...]] = (True, False, {})
UNNAMING: Final = frozenset({"minProperties", "propertyNames", "$dynamicRef", "$recursiveRef"})
"""Keywords by which a schema counts on properties that it does not name."""


class _KeywordReader:
    """Reads the keywords of one schema object."""

    def __init__(self, table: Table, resource: SchemaResource, side: Side, depth: int) -> None:
        self._table, self._resource, self._side, self._depth = table, resource, side, depth
        self._draft = resource.draft

    def read(self, schema: dict[str, object]) -> Iterator[parts.Part]:
        """What the keywords say, each for itself."""
        for keyword, value in schema.items():
            if SINCE.get(keyword, 0) > self._draft:
                continue
            try:
                yield from self._keyword(keyword, value, schema)
            except (TypeError, ValueError, AttributeError, OverflowError):
                text = self._side.text(schema)
                yield self._table.part(parts.Opaque, keyword, "has a value that it cannot have", f"{keyword} {text}")

    def _node(self, schema: object) -> SchemaNode:
        return self._table.read(schema, self._resource, self._side, self._depth + 1)

    def _value(self, schema: object) -> SchemaNode:
        """A schema of something inside this value."""
        return self._table.read_value(schema, self._resource, self._side, self._depth + 1)

    def _exact(self, schema: object) -> SchemaNode:
        """A schema that decides what others say, or is negated: it is never read in a relaxed way."""
        return self._table.read(schema, self._resource, self._side.exact, self._depth + 1)

    def _others(self, value: object, names: frozenset[str]) -> frozenset[str]:
        """The names that a schema of all other properties passes over."""
        return names | self._side.ignored if value is False else names

    def _nodes(self, schemas: object) -> tuple[SchemaNode, ...]:
        if not isinstance(schemas, list):
            raise TypeError(schemas)
        return tuple(map(self._node, schemas))

    def _keyword(self, keyword: str, value: object, schema: dict[str, object]) -> Iterator[parts.Part]:
        make = self._table.part
        match keyword:
            case "type":
                yield self._kinds(value)
            case "enum" | "const":
                yield make(parts.Among, keyword, frozenset(map(freeze, _values(keyword, value))))
            case "allOf":
                yield make(parts.Every, keyword, self._nodes(value))
            case "anyOf" | "oneOf":
                nodes = self._nodes(value)
                yield self._listing(keyword, nodes) or make(parts.Some if keyword == "anyOf" else parts.One, nodes)
            case "not":
                yield make(parts.Not, self._exact(value))
            case "if":
                then, otherwise = self._node(schema.get("then", True)), self._node(schema.get("else", True))
                if then is not otherwise or then is not self._table.anything:
                    yield make(parts.Conditional, self._exact(value), then, otherwise)
            case "$ref" | "$dynamicRef":
                yield self._table.reference(schema, keyword, self._resource, self._side)
            case "$recursiveRef" if self._draft == 2019:
                yield self._table.reference(schema, keyword, self._resource, self._side)
            case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
                yield from self._bound(keyword, value, schema)
            case "multipleOf":
                if exact(value) <= 0:
                    raise ValueError(value)
                yield make(parts.Multiple, exact(value))
            case "pattern":
                if _text(value) not in ALWAYS_MATCH:
                    yield make(parts.Matches, _text(value))
            case "contentEncoding" | "contentMediaType" if self._draft in (6, 7):
                key = json.dumps([schema.get("contentEncoding"), schema.get("contentMediaType")])
                opaque = make(parts.Opaque, keyword, "is not compared", key)
                yield make(parts.Some, (self._kind_other_than("string"), self._table.node([opaque])))
            case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
                what, kind = SIZES[keyword]
                if what is parts.SizeMost or _count(value):
                    yield make(what, kind, _count(value))
            case _:
                yield from self._item_keyword(keyword, value, schema)
                yield from self._property_keyword(keyword, value, schema)

    def _item_keyword(self, keyword: str, value: object, schema: dict[str, object]) -> Iterator[parts.Part]:
        make = self._table.part
        match keyword:
            case "items" if isinstance(value, list):
                for index, each in enumerate(value):
                    yield make(parts.ItemAt, keyword, index, self._value(each))
            case "items":
                start = len(_list(schema.get("prefixItems"))) if self._draft >= 2020 else 0
                yield make(parts.ItemsFrom, keyword, start, self._value(value))
            case "prefixItems" if self._draft >= 2020:
                if not isinstance(value, list):
                    raise TypeError(value)
                for index, each in enumerate(value):
                    yield make(parts.ItemAt, keyword, index, self._value(each))
            case "additionalItems" if isinstance(items := schema.get("items"), list):
                yield make(parts.ItemsFrom, keyword, len(items), self._value(value))
            case "contains":
                has_counts = self._draft >= 2019
                least, most = schema.get("minContains") if has_counts else None, schema.get("maxContains")
                node, most_count = self._exact(value), None if most is None or not has_counts else _count(most)
                yield make(parts.Contains, node, 1 if least is None else _count(least), most_count)
            case "uniqueItems" if value is True:
                yield make(parts.Unique)
            case "unevaluatedItems":
                rest = {name: each for name, each in schema.items() if name != keyword}
                found = self._table.evaluated(rest, self._resource, self._side, items=True)
                if found is None:
                    yield self._table.part(parts.Opaque, keyword, "depends on the value", self._side.text(schema))
                elif not found.is_all:
                    yield make(parts.ItemsFrom, keyword, found.items, self._value(value))

    def _property_keyword(self, keyword: str, value: object, schema: dict[str, object]) -> Iterator[parts.Part]:
        make = self._table.part
        match keyword:
            case "properties":
                for name, each in _dict(value).items():
                    yield make(parts.Property, name, self._value(each))
            case "patternProperties":
                for pattern, each in _dict(value).items():
                    if pattern in ALWAYS_MATCH:
                        yield make(
                            parts.OtherProperties, f"{keyword}/{pattern}", frozenset(), frozenset(), self._value(each)
                        )
                    else:
                        yield make(parts.PatternProperties, pattern, self._value(each))
            case "additionalProperties":
                own = _properties_of(schema)
                if own.patterns.isdisjoint(ALWAYS_MATCH):
                    names = self._others(value, own.names)
                    yield make(parts.OtherProperties, keyword, names, own.patterns, self._value(value))
            case "unevaluatedProperties":
                rest = {name: each for name, each in schema.items() if name != keyword}
                found = self._table.evaluated(rest, self._resource, self._side, items=False)
                if found is None:
                    yield self._table.part(parts.Opaque, keyword, "depends on the value", self._side.text(schema))
                elif not found.is_all and found.patterns.isdisjoint(ALWAYS_MATCH):
                    names = self._others(value, found.names)
                    yield make(parts.OtherProperties, keyword, names, found.patterns, self._value(value))
            case "propertyNames":
                yield make(parts.Names, self._node(value))
            case "required":
                if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
                    raise TypeError(value)
                for name in value:
                    yield make(parts.Required, name)
            case "dependentSchemas" | "dependentRequired" | "dependencies":
                for name, each in _dict(value).items():
                    needed = self._node({"required": each} if isinstance(each, list) else each)
                    yield make(parts.Dependent, keyword, name, needed)

    def _kinds(self, value: object) -> parts.Part:
        named = {_text(each) for each in (value if isinstance(value, list) else [value])}
        if not named <= {*KINDS, "integer"}:
            raise ValueError(value)
        is_integer = "integer" in named and "number" not in named
        kinds = frozenset(named - {"integer"} | ({"number"} if is_integer else set()))
        return self._table.part(parts.Kinds, kinds, is_integer, is_integer and self._draft == 4)

    def _listing(self, keyword: str, nodes: tuple[SchemaNode, ...]) -> parts.Part | None:
        """The alternatives as one list of values, if each is one: many write their enums like that."""
        counts: dict[Value, int] = {}
        for node in nodes:
            if len(node.parts) != 1 or not isinstance(among := node.parts[0], parts.Among):
                return None
            for each in among.values:
                counts[each] = counts.get(each, 0) + 1
        fitting = (each for each, count in counts.items() if count == 1 or keyword == "anyOf")
        return self._table.part(parts.Among, keyword, frozenset(fitting))

    def _kind_other_than(self, kind: str) -> SchemaNode:
        return self._table.node([self._table.part(parts.Kinds, frozenset(KINDS) - {kind}, False, False)])

    def _bound(self, keyword: str, value: object, schema: dict[str, object]) -> Iterator[parts.Part]:
        make = parts.Least if keyword.endswith("inimum") else parts.Most
        if isinstance(value, bool):
            return  # draft 4: it belongs to the other keyword
        exclusive = schema.get("exclusiveMinimum" if make is parts.Least else "exclusiveMaximum") is True
        yield self._table.part(make, exact(value), keyword.startswith("exclusive") or exclusive)


def _values(keyword: str, value: object) -> list[object]:
    if keyword == "const":
        return [value]
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _dict(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value
