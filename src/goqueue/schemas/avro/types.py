"""Avro's types. They are compared by identity, and they are a graph: a record may contain itself."""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from goqueue.errors import InvalidSchema

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

NO_DEFAULT: Final = object()
"""In the place of a default, where null would be one."""


class Decimal(NamedTuple):
    """The logical type whose parameters are part of what the bytes mean."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One of the eight types that have no parts."""

    kind: str
    decimal: Decimal | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """So many bytes."""

    name: str
    aliases: frozenset[str]
    size: int
    decimal: Decimal | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    """One of some symbols; a symbol that a reader does not know is read as the default."""

    name: str
    aliases: frozenset[str]
    symbols: tuple[str, ...]
    default: str | None
    known: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Items in their order."""

    items: "Type"


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Values by strings."""

    values: "Type"


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """One of some types, which can be told apart."""

    branches: tuple["Type", ...]


@dataclass(slots=True, eq=False)
class AvroRecord:
    """Fields in their order. It is there before its fields are, since they may be of its own type."""

    name: str
    aliases: frozenset[str]
    fields: tuple["Field", ...] = ()


class Field(NamedTuple):
    """A field; `default` is what it is read as where the writer had none, or NO_DEFAULT."""

    name: str
    aliases: frozenset[str]
    type: "Type"
    default: object


Type = Primitive | Fixed | Enum | Array | Map | Union | AvroRecord
Named = Fixed | Enum | AvroRecord


def kind_of(type: Type) -> str:
    """What a type is called in a schema, and in a sentence."""
    match type:
        case Primitive():
            return type.kind
        case AvroRecord():
            return "record"
    return type.__class__.__name__.lower()


def parts_of(type: Type) -> tuple[Type, ...]:
    """The types that a type is made of."""
    match type:
        case Array():
            return (type.items,)
        case Map():
            return (type.values,)
        case Union():
            return type.branches
        case AvroRecord():
            return tuple(field.type for field in type.fields)
    return ()


def unqualified(name: str) -> str:
    """The last part of a full name."""
    return name.rpartition(".")[2]


def first_record(type: Type) -> str | None:
    """The full name of the type, or of the first branch that has one."""
    if isinstance(type, Named):
        return type.name
    if isinstance(type, Union):
        return next((branch.name for branch in type.branches if isinstance(branch, AvroRecord)), None)
    return None


def qualified(name: str, namespace: str) -> str:
    """The full name: one that has dots is full already."""
    return f"{namespace}.{name}" if namespace and "." not in name else name


def invalid(reason: str, path: str) -> InvalidSchema:
    """What is wrong and where; a schema may be long, what is said about it not."""
    return InvalidSchema(_clipped(reason), path=_clipped(path))


def shown(value: object) -> str:
    """A value of a user, as it is quoted in an error."""
    return _clipped(repr(value), 100)


def _clipped(text: str, length_max: int = 500) -> str:
    return text if len(text) <= length_max else f"{text[: length_max - 3]}..."
