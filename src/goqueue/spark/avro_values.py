"""Avro values as typed rows: the Spark type of an Avro schema, and the decoder of values that another schema wrote.

The registry's validator checks a value against the writer's schema first; it trusts no length and no depth. A value
that passes is decoded without further checks. Then the fields of the reader's schema are picked by name or alias. A
field that the writer did not have gets its default. A symbol that the reader's enum does not have becomes the default
of that enum; if it has none, the value does not fit.

    Avro                             Spark
    boolean, int, long               boolean, int, bigint
    float, double                    float, double
    string, enum, uuid               string
    bytes, fixed                     binary, or decimal if that is the logical type
    date                             date
    timestamp-millis, -micros, -nanos          timestamp
    local-timestamp-...              timestamp_ntz
    record, array, map               struct, array, map<string, ...>
    a type or null                   the same
    int or long, float or double     bigint, double
    any other union                  string: the value as JSON, bytes in base64

A record that contains itself has no type in Spark.
"""

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import types

from goqueue.errors import InvalidConfig
from goqueue.schemas.avro.types import qualified
from goqueue.spark.ddl import PRECISION_MAX

Read = Callable[[bytes, int], tuple[Any, int]]
"""(payload, position) -> the value at the position, and the position after it."""
Pick = Callable[[Any], Any]
"""A value of the writer's type -> the value of the reader's type."""

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_SPARK: Final[Mapping[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "bytes": types.BinaryType(),
    "fixed": types.BinaryType(),
    "enum": types.StringType(),
}
_MICROSECONDS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
_TIMES: Final = {
    f"{local}timestamp-{unit}": (types.TimestampNTZType() if local else types.TimestampType(), factors)
    for local in ("", "local-")
    for unit, factors in _MICROSECONDS.items()
}
"""By logical type: the Spark type, and the factors that multiply and divide a number to make it microseconds."""


class NamedType(NamedTuple):
    """A type that others can refer to, and its namespace."""

    document: dict[str, Any]
    namespace: str


class AvroNames:
    """The types of schemas that refer to each other, by their full names."""

    def __init__(self, documents: list[object]) -> None:
        self.named: dict[str, NamedType] = {}
        for document in documents:
            self._note(document, "")

    def resolved(self, document: object, namespace: str) -> tuple[object, str]:
        """The type that a name refers to, or the type itself, and the namespace of its parts."""
        while isinstance(document, str):
            known = self.named.get(qualified(document, namespace)) or self.named.get(document)
            if known is None:
                return document, namespace
            return known
        if isinstance(document, dict) and isinstance(document["type"], dict | list):
            return self.resolved(document["type"], namespace)
        if isinstance(document, dict) and document["type"] not in _MADE_HERE and "logicalType" not in document:
            return self.resolved(document["type"], namespace)
        return document, _space(document, namespace)

    def _note(self, document: object, namespace: str) -> None:
        if isinstance(document, list):
            for each in document:
                self._note(each, namespace)
        if not isinstance(document, dict):
            return
        kind = document.get("type")
        inner = _space(document, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            self.named[qualified(document["name"], document.get("namespace", namespace))] = NamedType(document, inner)
        for part in (
            *(field["type"] for field in document.get("fields", ())),
            document.get("items"),
            document.get("values"),
            kind,
        ):
            self._note(part, inner)


_MADE_HERE = ("record", "error", "enum", "fixed", "array", "map")


def _space(document: object, namespace: str) -> str:
    """The namespace of the parts of a type."""
    if not isinstance(document, dict) or document.get("type") not in ("record", "error", "enum", "fixed"):
        return namespace
    return qualified(document["name"], document.get("namespace", namespace)).rpartition(".")[0]


class AvroReader:
    """The type that values are read as."""

    def __init__(self, document: object, references: list[object]) -> None:
        self._names = AvroNames([*references, document])
        spark, self.pick = self._type(document, "", ())
        if not isinstance(spark, types.StructType):
            raise InvalidConfig("valueSchema", "registry", "the Avro schema is not a record, so there are no columns")
        self.fields = spark

    def _type(self, document: object, namespace: str, above: tuple[str, ...]) -> tuple[types.DataType, Pick]:
        document, namespace = self._names.resolved(document, namespace)
        if isinstance(document, list):
            return self._union(document, namespace, above)
        kind, logical = (document, None) if isinstance(document, str) else _kind(document)
        match kind, document:
            case (("record" | "error"), dict()):
                return self._record(document, namespace, above)
            case "array", dict():
                item, pick = self._type(document["items"], namespace, above)
                return types.ArrayType(item), lambda values: [None if each is None else pick(each) for each in values]
            case "map", dict():
                value, pick = self._type(document["values"], namespace, above)
                return types.MapType(types.StringType(), value), lambda values: {
                    key: None if each is None else pick(each) for key, each in values.items()
                }
            case "null", _:
                return types.StringType(), _as_it_is
        return _leaf(kind, logical, document)

    def _record(self, document: Any, namespace: str, above: tuple[str, ...]) -> tuple[types.DataType, Pick]:
        name = qualified(document["name"], namespace)
        if name in above:
            raise InvalidConfig("valueSchema", "registry", f"the Avro record {name} contains itself")
        if not document["fields"]:
            raise InvalidConfig("valueSchema", "registry", f"the Avro record {name} has no fields")
        fields, picks = [], []
        for field in document["fields"]:
            spark, pick = self._type(field["type"], namespace, (*above, name))
            fields.append(types.StructField(field["name"], spark))
            default = self._default(field["type"], field.get("default"), namespace)
            picks.append(((field["name"], *field.get("aliases", ())), pick, default))

        def picked(record: Mapping[str, Any]) -> tuple[Any, ...]:
            row = []
            for names, pick, default in picks:
                value = next((record[each] for each in names if each in record), default)
                row.append(None if value is None else pick(value))
            return tuple(row)

        return types.StructType(fields), picked

    def _union(self, branches: list[Any], namespace: str, above: tuple[str, ...]) -> tuple[types.DataType, Pick]:
        resolved = [self._names.resolved(branch, namespace) for branch in branches if branch != "null"]
        if len(resolved) == 1:
            return self._type(*resolved[0], above)
        kinds = {branch for branch, _ in resolved if isinstance(branch, str)}
        if len(kinds) == len(resolved):
            if kinds == {"int", "long"}:
                return types.LongType(), _as_it_is
            if kinds == {"float", "double"}:
                return types.DoubleType(), _as_it_is
        return types.StringType(), _json_text

    def _default(self, document: object, default: Any, namespace: str) -> Any:
        """A default as the decoder would return it, had it been written."""
        document, namespace = self._names.resolved(document, namespace)
        if isinstance(document, list):  # Avro: a default is a value of the first branch
            document, namespace = self._names.resolved(document[0], namespace)
        if default is None:
            return None
        kind, _ = (document, None) if isinstance(document, str) else _kind(document)
        match kind, document:
            case (("record" | "error"), dict()):
                return {
                    field["name"]: self._default(
                        field["type"], default.get(field["name"], field.get("default")), namespace
                    )
                    for field in document["fields"]
                }
            case "array", dict():
                return [self._default(document["items"], each, namespace) for each in default]
            case "map", dict():
                return {key: self._default(document["values"], each, namespace) for key, each in default.items()}
            case (("bytes" | "fixed"), _):
                return _logical(document, default.encode("latin-1"))
        return _logical(document, default)


class AvroWriter:
    """Decodes values of one writer's schema without checks: its validator must have accepted them before."""

    def __init__(self, document: object, references: list[object]) -> None:
        self._names = AvroNames([*references, document])
        self._records: dict[int, Read] = {}
        self._read = self._type(document, "")

    def decode(self, payload: bytes) -> Any:
        """The value; a record is a dict."""
        return self._read(payload, 0)[0]

    def _type(self, document: object, namespace: str) -> Read:
        document, namespace = self._names.resolved(document, namespace)
        if isinstance(document, list):
            return self._union([self._type(branch, namespace) for branch in document])
        kind = document if isinstance(document, str) else _kind(document)[0]
        match kind, document:
            case (("record" | "error"), dict()):
                return self._record(document, namespace)
            case "array", dict():
                return _blocks(self._type(document["items"], namespace), is_map=False)
            case "map", dict():
                return _blocks(self._type(document["values"], namespace), is_map=True)
            case "enum", dict():
                return _enum(document["symbols"])
            case "fixed", dict():
                return _converted(_fixed(document["size"]), document)
        return _converted(_PRIMITIVES[str(kind)], document)

    def _record(self, document: dict[str, Any], namespace: str) -> Read:
        known = self._records.get(id(document))
        if known:
            return known
        steps: list[tuple[str, Read]] = []

        def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
            record = {}
            for name, step in steps:
                record[name], at = step(data, at)
            return record, at

        self._records[id(document)] = read  # before its fields: a recursive record refers to itself
        steps += [(field["name"], self._type(field["type"], namespace)) for field in document["fields"]]
        return read

    def _union(self, branches: list[Read]) -> Read:
        def read(data: bytes, at: int) -> tuple[Any, int]:
            index, at = _long(data, at)
            return branches[index](data, at)

        return read


def _kind(document: Any) -> tuple[str, str | None]:
    return document["type"], document.get("logicalType")


def _leaf(kind: str, logical: str | None, document: Any) -> tuple[types.DataType, Pick]:
    if logical in _TIMES and kind == "long":
        return _TIMES[logical][0], _as_it_is
    if logical == "date" and kind == "int":
        return types.DateType(), _as_it_is
    decimal = _decimal(document)
    if decimal:
        return types.DecimalType(*decimal), _as_it_is
    if kind == "enum":
        return types.StringType(), _symbol(document["symbols"], document.get("default"))
    return _SPARK[kind], _PROMOTED.get(kind, _as_it_is)


def _decimal(document: Any) -> tuple[int, int] | None:
    """Precision and scale; None if Spark cannot hold such a decimal."""
    if not isinstance(document, dict) or document.get("logicalType") != "decimal":
        return None
    precision, scale = document.get("precision"), document.get("scale", 0)
    is_one = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= PRECISION_MAX
    return (precision, scale) if is_one and precision and document["type"] in ("bytes", "fixed") else None


def _logical(document: Any, value: Any) -> Any:
    """The value under its logical type, as an Arrow array takes it."""
    if not isinstance(document, dict):
        return value
    kind, logical = _kind(document)
    if kind == "long" and logical in _TIMES:
        times, divided_by = _TIMES[logical][1]
        return value * times // divided_by
    decimal = _decimal(document)
    if decimal:
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-decimal[1])
    return value


def _converted(read: Read, document: Any) -> Read:
    if not isinstance(document, dict) or "logicalType" not in document:
        return read

    def converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return _logical(document, value), at

    return converted


def _as_it_is(value: Any) -> Any:
    return value


def _symbol(symbols: list[str], default: str | None) -> Pick:
    known = dict.fromkeys(symbols)

    def pick(symbol: str) -> str:
        if symbol in known:
            return symbol
        if default is None:
            raise ValueError(f"{symbol} is not a symbol of the enum, which has no default")
        return default

    return pick


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value


_PROMOTED: Final[Mapping[str, Pick]] = {"string": _string, "bytes": _bytes}
"""Promotions of the reader's type: string and bytes convert to each other, numbers need no conversion."""


def _long(data: bytes, at: int) -> tuple[int, int]:
    raw = data[at]
    at += 1
    if raw >= 128:
        raw &= 127
        shift = 7
        while (byte := data[at]) >= 128:
            raw |= (byte & 127) << shift
            shift += 7
            at += 1
        raw |= byte << shift
        at += 1
    return (raw >> 1) ^ -(raw & 1), at


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return data[at : at + size], at + size


def _text(data: bytes, at: int) -> tuple[str, int]:
    size, at = _long(data, at)
    return data[at : at + size].decode(), at + size


def _enum(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        return symbols[index], at

    return read


def _fixed(size: int) -> Read:
    return lambda data, at: (data[at : at + size], at + size)


def _blocks(read: Read, *, is_map: bool) -> Read:
    def items(data: bytes, at: int) -> tuple[Any, int]:
        found: list[Any] = []
        while True:
            count, at = _long(data, at)
            if not count:
                return (dict(found) if is_map else found), at
            if count < 0:
                count = -count
                _, at = _long(data, at)  # the size of the block in bytes, which only a reader that skips it needs
            for _ in range(count):
                if is_map:
                    key, at = _text(data, at)
                value, at = read(data, at)
                found.append((key, value) if is_map else value)

    return items


_PRIMITIVES: Final[Mapping[str, Read]] = {
    "null": lambda data, at: (None, at),
    "boolean": lambda data, at: (data[at] == 1, at + 1),
    "int": _long,
    "long": _long,
    "float": lambda data, at: (_FLOAT.unpack_from(data, at)[0], at + 4),
    "double": lambda data, at: (_DOUBLE.unpack_from(data, at)[0], at + 8),
    "bytes": _binary,
    "string": _text,
}
