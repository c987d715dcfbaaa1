"""JSON values as typed rows: the Spark type of a JSON Schema, and its decoder.

msgspec decodes each value directly into a struct with the fields of the type, and refuses a value that does not fit.
That is about as fast as Arrow's reader of JSON lines, and each value is decoded separately: one that is damaged, empty,
or holds two documents cannot shift the rows after it.

    JSON Schema                              Spark
    boolean, integer, number                 boolean, bigint, double
    string                                   string; date and timestamp for the formats `date` and `date-time`
    array with `items`                       array
    object with `properties`                 struct
    object with `additionalProperties`       map<string, ...>
    one of these or null                     the same
    anything else                            string: the JSON text itself

An integer is a number without a fraction, however it is written: 7, 7.0 and 1e2, as in JSON Schema. An integer of more
than 64 bits does not fit.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta
from pyspark.sql import types

from goqueue.errors import InvalidConfig

Decode = Callable[[bytes], Any]
"""A value to a row; raises if it does not fit."""
_DEPTH_MAX: Final = 30


class Shape(NamedTuple):
    """A Spark type, the msgspec type that decodes it, and the value of an absent field."""

    spark: types.DataType
    decoded: Any
    default: Any = None


_TEXT: Final = Shape(types.StringType(), msgspec.Raw, msgspec.Raw(b"null"))


def _integer(bits: int) -> Any:
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Annotated[int, Meta(ge=lowest, le=highest)] | Annotated[float, Meta(ge=lowest, le=highest, multiple_of=1)]


_LEAVES: Final[Mapping[type[types.DataType], Any]] = {
    types.BooleanType: bool,
    types.ByteType: _integer(8),
    types.ShortType: _integer(16),
    types.IntegerType: _integer(32),
    types.LongType: _integer(64),
    types.FloatType: float,
    types.DoubleType: float,
    types.DecimalType: Decimal,
    types.StringType: str,
    types.BinaryType: bytes,
    types.DateType: datetime.date,
    types.TimestampType: datetime.datetime,
    types.TimestampNTZType: Annotated[datetime.datetime, Meta(tz=False)],
}


def shape_of_spark(type: types.DataType) -> Shape:
    """The shape of a Spark type. Raises `InvalidConfig` for a type that JSON values cannot have."""
    match type:
        case types.StructType():
            return _struct([(field.name, shape_of_spark(field.dataType)) for field in type])
        case types.ArrayType():
            return _array(shape_of_spark(type.elementType))
        case types.MapType() if type.keyType == types.StringType():
            return _map(shape_of_spark(type.valueType))
    decoded = _LEAVES.get(type.__class__)
    if decoded is None:
        raise InvalidConfig("valueSchema", type.simpleString(), "is not a type that a value can be read as")
    return Shape(type, _optional(decoded))


def shape_of_schema(document: object, references: Mapping[str, object]) -> Shape:
    """The shape of a JSON Schema; `references` are the documents that it refers to, by name."""
    return _SchemaReader(references).shape(document, document, 0)


def decoder(shape: Shape) -> Decode:
    """The decoder of values, which have to be objects."""
    (decoded, _) = shape.decoded.__args__  # the shape is optional, but a value must be an object, not null
    return msgspec.json.Decoder(decoded).decode


def _optional(decoded: Any) -> Any:
    return decoded | None


def _struct(fields: Sequence[tuple[str, Shape]]) -> Shape:
    spark = types.StructType([types.StructField(name, shape.spark) for name, shape in fields])
    members = [
        (f"field_{number}", shape.decoded, msgspec.field(default=shape.default, name=name))
        for number, (name, shape) in enumerate(fields)
    ]
    try:
        made = msgspec.defstruct("Value", members, gc=False)
        msgspec.json.Decoder(made)
    except ValueError as error:  # a repeated name, or one that JSON would have to escape
        raise InvalidConfig("valueSchema", ", ".join(name for name, _ in fields)[:200], str(error)) from error
    return Shape(spark, _optional(made))


def _array(item: Shape) -> Shape:
    return Shape(types.ArrayType(item.spark), _optional(list[item.decoded]))  # type: ignore[name-defined]


def _map(value: Shape) -> Shape:
    return Shape(types.MapType(types.StringType(), value.spark), _optional(dict[str, value.decoded]))  # type: ignore[name-defined]


class _SchemaReader:
    def __init__(self, references: Mapping[str, object]) -> None:
        self._references = references

    def shape(self, schema: object, base: object, depth: int) -> Shape:
        """The shape of a schema within the document `base`."""
        if not isinstance(schema, dict) or depth > _DEPTH_MAX:
            return _TEXT
        if isinstance(schema.get("$ref"), str):
            target, base = self._resolved(schema["$ref"], base)
            return self.shape(target, base, depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(word), list):
                return self._combined(schema, word, base, depth)
        return self._of_types(schema, _types(schema), base, depth)

    def _of_types(self, schema: dict[str, Any], names: set[str], base: object, depth: int) -> Shape:
        if names == {"integer", "number"}:
            names = {"number"}
        if len(names) != 1:
            return _TEXT
        match names.pop():
            case "boolean":
                return shape_of_spark(types.BooleanType())
            case "integer":
                return shape_of_spark(types.LongType())
            case "number":
                return shape_of_spark(types.DoubleType())
            case "string":
                return shape_of_spark(_FORMATS.get(schema.get("format"), types.StringType()))
            case "array" if isinstance(schema.get("items"), dict):
                return _array(self.shape(schema["items"], base, depth + 1))
            case "object":
                return self._object(schema, base, depth)
        return _TEXT

    def _object(self, schema: dict[str, Any], base: object, depth: int) -> Shape:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            return _struct([(name, self.shape(each, base, depth + 1)) for name, each in properties.items()])
        if isinstance(others, dict):
            return _map(self.shape(others, base, depth + 1))
        return _TEXT

    def _combined(self, schema: dict[str, Any], word: str, base: object, depth: int) -> Shape:
        """A choice of one schema or null has the shape of that schema."""
        choices = [each for each in schema[word] if not (isinstance(each, dict) and each.get("type") == "null")]
        if len(choices) != 1 or "properties" in schema:
            return _TEXT
        return self.shape(choices[0], base, depth + 1)

    def _resolved(self, reference: str, base: object) -> tuple[object, object]:
        name, _, pointer = reference.partition("#")
        found = base = self._references.get(name) if name else base
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found, base


_FORMATS: Final[Mapping[object, types.DataType]] = {"date": types.DateType(), "date-time": types.TimestampType()}
_TYPES_OF_JSON: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _types(schema: dict[str, Any]) -> set[str]:
    """The types that a schema allows, without null; empty if it names none."""
    said = schema.get("type")
    if said is None:
        values = (
            schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
        )
        return {_TYPES_OF_JSON.get(type(value), "any") for value in values if value is not None}
    return {str(each) for each in (said if isinstance(said, list) else [said])} - {"null"}
