"""Protobuf values as typed rows: the Spark type of a message, and how its fields are read.

Protobuf itself decodes, always with the latest schema: fields are identified by numbers, so values of earlier versions
are read as well. A payload with the registry's prefix names its message in the file; only the first message of the file
has columns.

    Protobuf                             Spark
    int32, sint32, sfixed32              int
    uint32, fixed32, int64, ...          bigint
    uint64, fixed64                      decimal(20,0)
    float, double, bool, string, bytes   float, double, boolean, string, binary
    enum                                 string: its name, or its number if it has no name
    message, repeated, map               struct, array, map
    google.protobuf.Timestamp            timestamp

A field that is not set is null if the field has presence; otherwise it has the default of its type. A message that
contains itself has no type in Spark.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types

from goqueue.errors import InvalidConfig
from goqueue.schemas.protobuf.schema import ProtobufSchema

Pick = Callable[[Any], Any]
"""A value of Protobuf -> a value that an Arrow array takes."""

_TIMESTAMP = "google.protobuf.Timestamp"
_LEAVES: Final[dict[int, types.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: types.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: types.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: types.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: types.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: types.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: types.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: types.BooleanType(),
}


class ProtobufReader:
    """Reads the first message of a schema."""

    def __init__(self, schema: ProtobufSchema) -> None:
        first = next(iter(schema.descriptor.message_types_by_name.values()), None)
        if first is None:
            raise InvalidConfig("valueSchema", "registry", "the Protobuf schema has no message")
        self._schema = schema  # keeps the pool alive, without which the descriptors are invalid
        self.fields, self._pick = _message(first, ())
        self._parse = GetMessageClass(first).FromString

    def decode(self, payload: bytes) -> Any:
        """The row of an encoded message without prefix; raises if it is not such a message."""
        message = self._parse(payload)
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
        return self._pick(message)


def _message(descriptor: Descriptor, above: tuple[str, ...]) -> tuple[types.StructType, Pick]:
    name = descriptor.full_name
    if name in above:
        raise InvalidConfig("valueSchema", "registry", f"the Protobuf message {name} contains itself")
    if not descriptor.fields:
        raise InvalidConfig("valueSchema", "registry", f"the Protobuf message {name} has no fields")
    fields: list[types.StructField] = []
    picks: list[tuple[str, bool, Pick]] = []
    for field in descriptor.fields:
        spark, pick = _field(field, (*above, name))
        fields.append(types.StructField(field.name, spark))
        picks.append((field.name, field.has_presence, pick))

    def picked(message: Any) -> tuple[Any, ...]:
        return tuple(
            None if may_lack and not message.HasField(each) else pick(getattr(message, each))
            for each, may_lack, pick in picks
        )

    return types.StructType(fields), picked


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[types.DataType, Pick]:
    if not field.is_repeated:
        return _single(field, above)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, pick_key = _single(entry.fields_by_name["key"], above)
        value, pick_value = _single(entry.fields_by_name["value"], above)
        return types.MapType(key, value), lambda found: {
            pick_key(each): pick_value(item) for each, item in found.items()
        }
    item, pick = _single(field, above)
    return types.ArrayType(item), lambda found: list(map(pick, found))


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[types.DataType, Pick]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return types.TimestampType(), lambda time: time.seconds * 1_000_000 + time.nanos // 1000
        return _message(field.message_type, above)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return types.StringType(), lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (types.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else types.StringType()), _as_it_is
    return _LEAVES[field.cpp_type], _as_it_is


def _as_it_is(value: Any) -> Any:
    return value
