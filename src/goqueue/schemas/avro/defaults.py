"""Whether the defaults in an Avro schema are values of their types.

A default is JSON: bytes are a string of code points below 256, a union's default is a value of any of its branches.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from goqueue.schemas.avro.types import (
    NO_DEFAULT,
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Map,
    Primitive,
    Type,
    Union,
    invalid,
    kind_of,
    shown,
)
from goqueue.schemas.format import SCHEMA_DEPTH_MAX

INT_BITS: Final = {"int": 32, "long": 64}
PARTS_MAX: Final = 100_000
"""Of all defaults of a schema, counted for each type that they are held against."""


class Defaults:
    """Holds defaults against their types, each part of a value against each type once."""

    def __init__(self) -> None:
        self._misfits: dict[tuple[int, int], _Misfit | None] = {}
        self._parts = 0

    def check(self, value: object, type: Type, path: str) -> None:
        misfit = self._misfit(value, type, path, 0)
        if misfit:
            raise invalid(f"the default {shown(misfit.value)} is no {misfit.expected}", misfit.path)

    def _misfit(self, value: object, type: Type, path: str, depth: int) -> "_Misfit | None":
        """The first part that does not fit. As deep as the JSON of the default, for each step takes some of it."""
        self._parts += 1
        if self._parts > PARTS_MAX or depth > SCHEMA_DEPTH_MAX:
            raise invalid("the default has too many parts", path)
        if isinstance(type, Primitive | Fixed | Enum):
            return None if _fits(value, type) else _Misfit(path, value, _described(type))
        key = (id(value), id(type))
        if key not in self._misfits:
            self._misfits[key] = self._misfit_of_parts(value, type, path, depth)
        return self._misfits[key]

    def _misfit_of_parts(
        self, value: object, type: Array | Map | Union | AvroRecord, path: str, depth: int
    ) -> "_Misfit | None":
        parts: Iterator[tuple[object, Type, object]]
        match type, value:
            case Union(), _:
                if any(self._misfit(value, branch, path, depth + 1) is None for branch in type.branches):
                    return None
                return _Misfit(path, value, _described(type))
            case Array(), list():
                parts = ((item, type.items, index) for index, item in enumerate(value))
            case Map(), dict():
                parts = ((item, type.values, key) for key, item in value.items())
            case AvroRecord(), dict():
                for one in type.fields:
                    if one.name not in value and one.default is NO_DEFAULT:
                        return _Misfit(path, value, f"{_described(type)}, which needs {one.name}")
                parts = ((value[one.name], one.type, one.name) for one in type.fields if one.name in value)
            case _:
                return _Misfit(path, value, _described(type))
        found = (self._misfit(part, inner, f"{path}/{step}", depth + 1) for part, inner, step in parts)
        return next((misfit for misfit in found if misfit), None)


class _Misfit(NamedTuple):
    path: str
    value: object
    expected: str


def _described(type: Type) -> str:
    match type:
        case Fixed():
            return f"fixed of {type.size} bytes"
        case Enum():
            return f"symbol of {type.name}"
        case AvroRecord():
            return f"record {type.name}"
        case Union():
            return "value of any type of the union"
    return kind_of(type)


def _fits(value: object, type: Primitive | Fixed | Enum) -> bool:
    if isinstance(type, Enum):
        return isinstance(value, str) and value in type.known
    if isinstance(type, Fixed):
        return _fits_primitive(value, "bytes") and isinstance(value, str) and len(value) == type.size
    return _fits_primitive(value, type.kind)


def _fits_primitive(value: object, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            half = 1 << (INT_BITS[kind] - 1)
            return isinstance(value, int) and not isinstance(value, bool) and -half <= value < half
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bytes":
            return isinstance(value, str) and all(ord(character) < 256 for character in value)
    return isinstance(value, str)
