"""How Avro's types are read from the JSON of a schema.

Reading is strict where the specification is: names, symbols, sizes, unions and defaults are checked here, since what is
wrong in a schema is found by its author today or by a consumer some other day. It is lenient where the specification
says so: unknown attributes are kept and mean nothing, and a logical type that cannot be is its base type.

How deep types nest is bounded, in the text and through names, up to where a record is met again. So code that walks
them may use recursion.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from goqueue.schemas.avro.defaults import Defaults
from goqueue.schemas.avro.types import (
    NAME,
    NO_DEFAULT,
    PRIMITIVES,
    Array,
    AvroRecord,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Type,
    Union,
    invalid,
    kind_of,
    parts_of,
    qualified,
    shown,
    unqualified,
)
from goqueue.schemas.format import SCHEMA_DEPTH_MAX

_N = TypeVar("_N", Fixed, Enum, AvroRecord)


@dataclass(slots=True)
class Reader:
    """Reads one schema. `names` are the types it may refer to; those that it defines are added."""

    names: dict[str, Named]
    _defaults: Defaults = field(default_factory=Defaults)

    def read(self, document: object) -> Type:
        """The type that the document describes. Raises `InvalidSchema`."""
        type = self._type(document, "", 0, "")
        _check_nesting(type)
        return type

    def _type(self, document: object, namespace: str, depth: int, path: str) -> Type:
        if depth > SCHEMA_DEPTH_MAX:
            raise invalid(f"types nest more than {SCHEMA_DEPTH_MAX} deep", path)
        if isinstance(document, str):
            return self._reference(document, namespace, path)
        if isinstance(document, list):
            return self._union(document, namespace, depth, path)
        if not isinstance(document, dict):
            raise invalid(f"a type is a name, an object or an array, not {shown(document)}", path)
        kind = document.get("type", NO_DEFAULT)
        match kind:
            case "record" | "error":
                return self._record(document, namespace, depth, path)
            case "enum":
                return self._enum(document, namespace, path)
            case "fixed":
                return self._fixed(document, namespace, path)
            case "array" | "map":
                return self._collection(document, namespace, depth, path)
            case str() if kind in PRIMITIVES:
                return Primitive(kind, _decimal(document) if kind == "bytes" else None)
            case str() | dict() | list():
                return self._type(kind, namespace, depth + 1, path)
        raise invalid("an object needs a `type`", path)

    def _reference(self, name: str, namespace: str, path: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        known = self.names.get(f"{namespace}.{name}") if namespace and "." not in name else None
        known = known or self.names.get(name)
        if known is None:
            raise invalid(f"there is no type {shown(name)}", path)
        return known

    def _union(self, document: list[object], namespace: str, depth: int, path: str) -> Union:
        branches = []
        seen = set()
        for index, branch_document in enumerate(document):
            at = f"{path}/{index}"
            branch = self._type(branch_document, namespace, depth + 1, at)
            if isinstance(branch, Union):
                raise invalid("a union cannot hold a union itself", at)
            identity = branch.name if isinstance(branch, Named) else kind_of(branch)
            if identity in seen:
                raise invalid(f"the union has {identity} already", at)
            seen.add(identity)
            branches.append(branch)
        return Union(tuple(branches))

    def _collection(self, document: dict[str, object], namespace: str, depth: int, path: str) -> Array | Map:
        key = "items" if document["type"] == "array" else "values"
        if key not in document:
            raise invalid(f"it needs `{key}`", path)
        inner = self._type(document[key], namespace, depth + 1, f"{path}/{key}")
        return Array(inner) if key == "items" else Map(inner)

    def _enum(self, document: dict[str, object], namespace: str, path: str) -> Enum:
        name = self._name(document, namespace, path)
        symbols = document.get("symbols")
        if not isinstance(symbols, list):
            raise invalid(f"the enum {name} needs a list of `symbols`", path)
        for symbol in symbols:
            if not isinstance(symbol, str) or not NAME.fullmatch(symbol):
                raise invalid(f"{shown(symbol)} cannot be a symbol", path)
        for symbol, count in Counter(symbols).items():
            if count > 1:
                raise invalid(f"the enum {name} has the symbol {symbol} twice", path)
        default = document.get("default")
        if default is not None and default not in symbols:
            raise invalid(f"the default {shown(default)} is no symbol of the enum {name}", path)
        assert default is None or isinstance(default, str)
        return self._define(Enum(name, _aliases(document, name, path), tuple(symbols), default, frozenset(symbols)))

    def _fixed(self, document: dict[str, object], namespace: str, path: str) -> Fixed:
        name = self._name(document, namespace, path)
        size = document.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise invalid(f"the size of the fixed {name} must be a number of bytes", path)
        return self._define(Fixed(name, _aliases(document, name, path), size, _decimal(document, size)))

    def _record(self, document: dict[str, object], namespace: str, depth: int, path: str) -> AvroRecord:
        name = self._name(document, namespace, path)
        field_documents = document.get("fields")
        if not isinstance(field_documents, list):
            raise invalid(f"the record {name} needs a list of `fields`", path)
        record = self._define(AvroRecord(name, _aliases(document, name, path)))
        inner = name.rpartition(".")[0]
        fields: dict[str, Field] = {}
        for field_document in field_documents:
            one = self._field(field_document, inner, depth, path)
            if one.name in fields:
                raise invalid(f"the record {name} has that field already", f"{path}/{one.name}")
            fields[one.name] = one
        record.fields = tuple(fields.values())
        # a default may be of the record's own type, which is known only now
        for one in record.fields:
            if one.default is not NO_DEFAULT:
                self._defaults.check(one.default, one.type, f"{path}/{one.name}")
        return record

    def _field(self, document: object, namespace: str, depth: int, path: str) -> Field:
        if not isinstance(document, dict):
            raise invalid(f"a field is an object, not {shown(document)}", path)
        name = document.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise invalid(f"{shown(name)} cannot be the name of a field", path)
        at = f"{path}/{name}"
        if "type" not in document:
            raise invalid("a field needs a `type`", at)
        if document.get("order", "ascending") not in ("ascending", "descending", "ignore"):
            raise invalid(f"there is no order {shown(document['order'])}", at)
        aliases = _alias_list(document, at)
        for alias in aliases:
            if not NAME.fullmatch(alias):
                raise invalid(f"{shown(alias)} cannot be the name of a field", at)
        type = self._type(document["type"], namespace, depth + 1, at)
        return Field(name, frozenset(aliases), type, document.get("default", NO_DEFAULT))

    def _name(self, document: dict[str, object], namespace: str, path: str) -> str:
        name, inner = document.get("name"), document.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(inner, str):
            raise invalid(f"a {document['type']} needs a `name`", path)
        full = qualified(name, inner)
        if not all(NAME.fullmatch(part) for part in full.split(".")) or unqualified(full) in PRIMITIVES:
            raise invalid(f"{shown(full)} cannot be the name of a type", path)
        if full in self.names:
            raise invalid(f"the type {full} is defined twice", path)
        return full

    def _define(self, type: _N) -> _N:
        self.names[type.name] = type
        return type


def _alias_list(document: Mapping[str, object], path: str) -> list[str]:
    aliases = document.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise invalid("aliases are a list of names", path)
    return aliases


def _aliases(document: Mapping[str, object], name: str, path: str) -> frozenset[str]:
    aliases = [qualified(alias, name.rpartition(".")[0]) for alias in _alias_list(document, path)]
    for alias in aliases:
        if not all(NAME.fullmatch(part) for part in alias.split(".")):
            raise invalid(f"{shown(alias)} cannot be the name of a type", path)
    return frozenset(aliases)


def _decimal(document: Mapping[str, object], size: int | None = None) -> Decimal | None:
    """The decimal that the type is, if it can be one."""
    if document.get("logicalType") != "decimal":
        return None
    precision, scale = document.get("precision"), document.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None
    if size is not None and (size == 0 or precision > (8 * size - 1) * 0.30103):
        return None
    return Decimal(precision, scale)


def _check_nesting(type: Type) -> None:
    """Refuse types that nest too deep on any way that meets no record twice."""
    heights: dict[Type, int] = {}

    def height(type: Type, depth: int) -> int:
        if type in heights:
            return heights[type]
        heights[type] = 0
        high = 1 + max((height(part, depth + 1) for part in parts_of(type)), default=0) if depth < limit else limit + 1
        if high > limit:
            raise invalid(f"types nest more than {limit} deep", "")
        heights[type] = high
        return high

    limit = SCHEMA_DEPTH_MAX
    height(type, 0)
