"""JSON Schemas as conjunctions: what the comparison reasons about.

A `SchemaNode` is a set of `Part`s, and a value fits the node if it fits every part. A part says one thing, about one
kind of value, and holds for all values of other kinds, as keywords do. `type: integer` is `Kinds`, `minimum` and
`exclusiveMinimum` are both `Least`, a `Reference` leads to what stands elsewhere, and so on. What annotates (`title`,
`format`, `default`) is no part.

Nodes and parts are interned in a `Table`: the same thing said twice, in the reader's and in the writer's schema, is the
same object. So equality is identity, and a schema compared with itself is done at once.

What cannot be said in parts is `Opaque`: it may hold or not. Equal keys make equal opaque parts, nothing else does.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Final, TypeAlias

KINDS: Final = ("null", "boolean", "number", "string", "array", "object")
DEPTH_MAX: Final = 60
"""Levels of schemas within schemas. People stay below 20, and recursion has to end somewhere."""

Value: TypeAlias = tuple[str, object]
"""A JSON value that can be hashed, with its kind, so that 1 is 1.0 and not true."""


class TooComplex(Exception):
    """The comparison would take too long, or goes too deep. Never leaves this package."""


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """One thing that a schema says."""


@dataclass(frozen=True, eq=False, slots=True)
class Kinds(Part):
    """The value is of one of these kinds; a number only if it is whole, where `integer` is set.

    In draft 4 it also has to be written as one (`written`): there 1.0 is no integer.
    """

    kinds: frozenset[str]
    integer: bool
    written: bool


@dataclass(frozen=True, eq=False, slots=True)
class Among(Part):
    """The value is one of these."""

    keyword: str
    values: frozenset[Value]


@dataclass(frozen=True, eq=False, slots=True)
class Every(Part):
    """All of the nodes hold."""

    keyword: str
    nodes: tuple["SchemaNode", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Some(Part):
    """At least one of the nodes holds."""

    nodes: tuple["SchemaNode", ...]


@dataclass(frozen=True, eq=False, slots=True)
class One(Part):
    """Exactly one of the nodes holds; here the same node may stand twice."""

    nodes: tuple["SchemaNode", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Not(Part):
    """The node does not hold."""

    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class Conditional(Part):
    """If the one holds then the second, else the third."""

    condition: "SchemaNode"
    then: "SchemaNode"
    otherwise: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class Reference(Part):
    """What stands elsewhere, and may lead back here. It is read when it is needed."""

    place: str
    key: tuple[int, str]


@dataclass(frozen=True, eq=False, slots=True)
class Opaque(Part):
    """Something that cannot be decided."""

    keyword: str
    why: str
    key: str


@dataclass(frozen=True, eq=False, slots=True)
class Least(Part):
    """A number is not below the limit, nor equal to it if that is excluded."""

    limit: Fraction
    excluded: bool


@dataclass(frozen=True, eq=False, slots=True)
class Most(Part):
    """A number is not above the limit, nor equal to it if that is excluded."""

    limit: Fraction
    excluded: bool


@dataclass(frozen=True, eq=False, slots=True)
class Multiple(Part):
    """A number is a multiple of this."""

    of: Fraction


@dataclass(frozen=True, eq=False, slots=True)
class Written(Part):
    """A number is written without a fraction and an exponent."""


@dataclass(frozen=True, eq=False, slots=True)
class Matches(Part):
    """A string matches the pattern."""

    pattern: str


@dataclass(frozen=True, eq=False, slots=True)
class SizeLeast(Part):
    """A string, array or object has at least so many characters, items or properties."""

    kind: str
    count: int


@dataclass(frozen=True, eq=False, slots=True)
class SizeMost(Part):
    """A string, array or object has at most so many characters, items or properties."""

    kind: str
    count: int


@dataclass(frozen=True, eq=False, slots=True)
class ItemAt(Part):
    """The item at this index, if there is one, fits."""

    keyword: str
    index: int
    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class ItemsFrom(Part):
    """All items from this index on fit."""

    keyword: str
    start: int
    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class Contains(Part):
    """At least and at most so many of the items fit; `most` None is any number."""

    node: "SchemaNode"
    least: int
    most: int | None


@dataclass(frozen=True, eq=False, slots=True)
class Unique(Part):
    """No two items are equal."""


@dataclass(frozen=True, eq=False, slots=True)
class Required(Part):
    """The object has this property."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Property(Part):
    """The property, if there is one, fits."""

    name: str
    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class PatternProperties(Part):
    """All properties whose names match fit."""

    pattern: str
    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class OtherProperties(Part):
    """All properties that neither have one of these names nor match one of these patterns fit."""

    keyword: str
    names: frozenset[str]
    patterns: frozenset[str]
    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class Names(Part):
    """The name of every property fits."""

    node: "SchemaNode"


@dataclass(frozen=True, eq=False, slots=True)
class Dependent(Part):
    """If there is a property of this name, the node holds for the whole object."""

    keyword: str
    name: str
    node: "SchemaNode"


KIND_OF: Final[dict[type[Part], str]] = {
    **dict.fromkeys((Least, Most, Multiple, Written), "number"),
    Matches: "string",
    **dict.fromkeys((ItemAt, ItemsFrom, Contains, Unique), "array"),
    **dict.fromkeys((Required, Property, PatternProperties, OtherProperties, Names, Dependent), "object"),
}
"""The kind of value that a part speaks of; what is not here speaks of all."""


class SchemaNode:
    """A schema. Compared by identity: a table makes each only once."""

    __slots__ = ("by_kind", "kinds", "parts")

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self.by_kind: dict[str, list[Part]] = {kind: [] for kind in KINDS}
        for part in parts:
            for kind in kinds_of(part):
                self.by_kind[kind].append(part)
        self.kinds = frozenset(KINDS)
        for part in parts:
            if isinstance(part, Kinds):
                self.kinds &= part.kinds
            elif isinstance(part, Among):
                self.kinds &= {kind for kind, _ in part.values}


def kinds_of(part: Part) -> tuple[str, ...]:
    """The kinds of values that the part speaks of."""
    kind = part.kind if isinstance(part, SizeLeast | SizeMost) else KIND_OF.get(type(part))
    return KINDS if kind is None else (kind,)


def in_place(part: Part) -> tuple[SchemaNode, ...]:
    """The nodes that the part holds the same value against."""
    match part:
        case Every(nodes=nodes) | Some(nodes=nodes) | One(nodes=nodes):
            return nodes
        case Not(node=node) | Dependent(node=node):
            return (node,)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case _:
            return ()


Literal: TypeAlias = tuple[bool, SchemaNode | Part]
"""Something that must hold, or must not."""
Goal: TypeAlias = frozenset[tuple[bool, SchemaNode]]
"""The nodes that a value must fit, and must not."""


def freeze(value: object) -> Value:
    """The value, hashable, with its kind; equal if JSON Schema says that they are equal."""
    match value:
        case str():
            return ("string", value)
        case None:
            return ("null", None)
        case bool():
            return ("boolean", value)
        case int() | float():
            return ("number", exact(value))
        case list():
            return ("array", tuple(map(freeze, value)))
        case dict():
            return ("object", frozenset((name, freeze(each)) for name, each in value.items()))
        case _:
            raise TypeError(type(value))


def exact(value: object) -> Fraction:
    """The number that is meant by the text of a JSON number: 0.1 is a tenth."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError(value)
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))
