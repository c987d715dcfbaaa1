"""Encoded records as Arrow record batches, column by column.

The kernel fills Arrow's buffers in one pass over the encoded records. This module gives them types and names; it
copies nothing and runs nothing once per record. The exceptions are compressed values, which are decompressed one by
one, and headers that are not UTF-8 or have a name twice.

A batch has exactly the schema that Spark derives from the columns: Spark compares, and refuses any other. It holds at
most `ROWS_MAX` rows and, unless one row alone is larger, not much more than `BATCH_BYTES`: small enough for the CPU
caches on the way into the JVM, large enough that the cost per batch does not matter. Batches are slices of longer
columns, which Arrow's writer cuts without copying.

    column      type                  null
    key         binary                without a key
    value       binary                a tombstone
    topic       string
    partition   int
    offset      long
    timestamp   timestamp             when the broker stored the message, rounded down to microseconds
    priority    int                   0 is critical, 2 normal, 4 background
    deliver_at  timestamp             unless delayed; a rescheduled message has the new time
    headers     array<struct<         never: no headers are an empty array; the value of a header may be null
                key:string,value:binary>>

Headers are in their order, with their bytes, without `gq-producer`. The time of the producer is the header
`gq-created`, in nanoseconds: a column would take its name from typed values. A name is a Spark string, which is
UTF-8; bytes that are not UTF-8 become U+FFFD. With `headersFormat=map` headers are a map<string,string> instead: the
same happens to values that are not UTF-8, and of several headers with one name the last one counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from goqueue.errors import CorruptRecord, InvalidConfig
from goqueue.record import compression, kernel
from goqueue.record.header import HEADER, Buffer, Flags
from goqueue.record.headers import PRODUCER
from goqueue.wire.scan_reports import DueTime

ROWS_MAX: Final = 16_384
BATCH_BYTES: Final = 8 * 1024 * 1024

CORRUPT: Final = "_corrupt"
"""The column of values that do not fit their schema, beside the typed ones."""
HEADERS: Final = "headers"
SPARK_TYPES: Final[Mapping[str, types.DataType]] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "priority": types.IntegerType(),
    "deliver_at": types.TimestampType(),
    HEADERS: types.ArrayType(
        types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
    ),
}
HEADER_MAP: Final = types.MapType(types.StringType(), types.StringType())
NULLABLE: Final = ("key", "value", "deliver_at")
"""Of the columns that every topic has. The others are never null, so Spark generates no null checks for them."""
_FIELDS: Final = {name: types.StructField(name, type, name in NULLABLE) for name, type in SPARK_TYPES.items()}
ARROW_TYPES: Final[Mapping[str, Any]] = {
    field.name: field.type for field in to_arrow_schema(types.StructType(list(_FIELDS.values())), timezone="UTC")
}
"""By name, the types of the columns that every topic has."""
_MAP_FIELD: Final = types.StructField(HEADERS, HEADER_MAP, False)
_ARROW_MAP: Final = to_arrow_schema(types.StructType([_MAP_FIELD]), timezone="UTC").field(HEADERS).type

_NS_PER_US = 1_000
_FLAGS_POSITION = 3  # of a record
_OFFSET_FIELD = 4
_CHEAPEST = "priority"
_SCHEMA_ID = pa.scalar(b"schema-id", type=pa.binary())
_ID_DIGITS_MAX = 10
_PRODUCER = pa.scalar(PRODUCER.encode(), type=pa.binary())


class TypedValues(Protocol):
    """Turns values into the columns of a schema."""

    @property
    def fields(self) -> types.StructType:
        """The columns that replace `value`, without `_corrupt`."""

    @property
    def uses_ids(self) -> bool:
        """Whether it matters which schema a header names, and when a value was stored."""

    def parse(
        self,
        values: Any,
        topic: str,
        *,
        ids: Mapping[int, int] | None = None,
        times_us: Any = None,
        registry: Any = None,
    ) -> Mapping[str, Any]:
        """The columns of an Arrow array of binary values, `_corrupt` included."""


def spark_schema(
    names: Sequence[str] | None = None,
    *,
    include_headers: bool = False,
    has_header_map: bool = False,
    value_fields: types.StructType | None = None,
) -> types.StructType:
    """The named columns in their order; without names all of them, with `headers` only if `include_headers`.

    `value_fields` replace `value`, with `_corrupt` after them. An unknown or repeated name raises `InvalidConfig`.
    """
    columns = _FIELDS | ({HEADERS: _MAP_FIELD} if has_header_map else {})
    if value_fields is not None:
        typed = {field.name: field for field in value_fields} | {
            CORRUPT: types.StructField(CORRUPT, types.BinaryType())
        }
        columns = {"key": columns["key"], **typed} | {name: columns[name] for name in columns if name != "value"}
    if names is None:
        names = [name for name in columns if name != HEADERS or include_headers]
    for place, name in enumerate(names):
        if name not in columns:
            raise InvalidConfig("columns", name, f"must be of {', '.join(columns)}")
        if name in names[:place]:
            raise InvalidConfig("columns", name, "is named twice")
    return types.StructType([columns[name] for name in names])


class BatchMaker:
    """Makes record batches of the named columns out of the encoded records of one partition.

    With `value`, values are parsed. `registry` is the client that fetches schemas registered after the planning.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        names: Sequence[str],
        *,
        value: TypedValues | None = None,
        registry: Any = None,
        has_header_map: bool = False,
        rescheduled: Callable[[], Sequence[DueTime]] | None = None,
    ) -> None:
        fields = None if value is None else value.fields
        wanted = spark_schema(names, has_header_map=has_header_map, value_fields=fields)
        self.schema = to_arrow_schema(wanted, timezone="UTC")
        self._rescheduled = rescheduled  # called once, and only if a record is delayed
        self._new_times: tuple[Any, Any] | None = None
        self._headers = _header_maps if has_header_map else _headers
        self._topic = topic
        self._partition = partition
        self._names = tuple(names)
        self._value = value
        self._registry = registry
        self._has_values = any(name == "value" or name not in SPARK_TYPES for name in names)
        decoded = {name for name in names if name in kernel.COLUMN_BITS} | ({"value"} if self._has_values else set())
        looks_for_ids = self._has_values and value is not None and value.uses_ids
        beside = ({"offset"} if "deliver_at" in decoded else set()) | ({"timestamp"} if looks_for_ids else set())
        self._decoded = decoded | beside or {_CHEAPEST}
        self._looks_for_ids = looks_for_ids
        used = decoded | ({HEADERS} if looks_for_ids or "deliver_at" in decoded else set())
        self.unused_parts = tuple(part for part in kernel.PART_BITS if part not in used)
        self._repeated: dict[str, Any] = {}

    def batches(self, records: Buffer, flags: int) -> Iterator[Any]:
        """The records as batches. Records are whole, offsets ascend, and `flags` is the union of the flags of all."""
        if not len(records):
            return
        has_ids = bool(flags & Flags.HAS_HEADERS and self._looks_for_ids)
        filled = kernel.columns(records, *self._decoded, *([HEADERS] if has_ids else []), verify=False)
        columns = self._columns(filled)
        ids = _schema_ids(filled) if has_ids else {}
        times_us = _times_us(filled) if self._looks_for_ids else None
        rows_max = max(1, min(ROWS_MAX, BATCH_BYTES * filled.row_count // len(records)))
        for start, end, values in self._value_runs(records, filled, flags):
            made = {name: column.slice(start, end - start) for name, column in columns.items()}
            if values is not None:
                times = None if times_us is None else times_us.slice(start, end - start)
                made |= self._of_values(values, {row - start: found for row, found in ids.items()}, times)
            batch = self._batch(end - start, made)
            for first in range(0, end - start, rows_max):
                yield batch.slice(first, rows_max)

    def _batch(self, row_count: int, columns: Mapping[str, Any]) -> Any:
        if not self._names:  # `count()` needs rows without columns
            return pa.RecordBatch.from_struct_array(pa.array([{}] * row_count, type=pa.struct([])))
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self.schema)

    def _columns(self, filled: kernel.RecordColumns) -> dict[str, Any]:
        """All columns but those that come from values."""
        row_count = filled.row_count
        made: dict[str, Any] = {}
        for name in self._names:
            match name:
                case "topic" | "partition":
                    made[name] = self._constant(name, row_count)
                case "offset":
                    made[name] = _array(name, row_count, None, filled.offsets)
                case "timestamp":
                    made[name] = _array(name, row_count, None, filled.timestamps_us)
                case "priority":
                    made[name] = _array(name, row_count, None, filled.priorities)
                case "deliver_at":
                    made[name] = self._due_times(filled)
                case "key":
                    made[name] = _array(name, row_count, filled.key_validity, filled.key_offsets, filled.key_data)
                case "headers":
                    made[name] = self._headers(filled)
        return made

    def _due_times(self, filled: kernel.RecordColumns) -> Any:
        times = _array("deliver_at", filled.row_count, filled.deliver_at_validity, filled.deliver_at_us)
        if self._rescheduled is None or times.null_count == filled.row_count:
            return times
        if self._new_times is None:
            found = self._rescheduled()
            new = pa.array([one.due_ns // _NS_PER_US for one in found], pa.int64()).cast(ARROW_TYPES["deliver_at"])
            self._new_times = pa.array([one.offset for one in found], pa.int64()), new
        offsets, new_times = self._new_times
        if not len(offsets):
            return times
        places = pc.index_in(_array("offset", filled.row_count, None, filled.offsets), value_set=offsets)
        return pc.coalesce(new_times.take(places), times)

    def _constant(self, name: str, row_count: int) -> Any:
        known = self._repeated.get(name)
        if known is None or len(known) < row_count:
            value = self._topic if name == "topic" else self._partition
            known = self._repeated[name] = pa.repeat(pa.scalar(value, type=ARROW_TYPES[name]), row_count)
        return known.slice(0, row_count)

    def _of_values(self, values: Any, ids: Mapping[int, int], times_us: Any) -> Mapping[str, Any]:
        if self._value is None:
            return {"value": values}
        return self._value.parse(values, self._topic, ids=ids, times_us=times_us, registry=self._registry)

    def _value_runs(self, records: Buffer, filled: kernel.RecordColumns, flags: int) -> Iterator[tuple[int, int, Any]]:
        """Rows [start, end) with their values, None if no column needs them; one run unless some are compressed."""
        row_count = filled.row_count
        if not self._has_values:
            yield 0, row_count, None
            return
        values = _array("value", row_count, filled.value_validity, filled.value_offsets, filled.value_data)
        if not flags & Flags.COMPRESSED:
            yield 0, row_count, values
            return
        start = 0
        for unpacked in self._unpacked(records, values.to_pylist()):
            end = start + len(unpacked)
            yield start, end, pa.array(unpacked, type=pa.binary())
            start = end

    def _unpacked(self, records: Buffer, values: list[bytes | None]) -> Iterator[list[bytes | None]]:
        """The decompressed values, in runs of about one batch: a small record may decompress to many megabytes."""
        found = kernel.scan(records, positions=True)
        if found.fault:
            raise CorruptRecord(kernel.describe(found.fault), found.fault_position, source=self._source(records, 0))
        positions = memoryview(found.positions).cast("I")
        run: list[bytes | None] = []
        run_bytes = 0
        for position, value in zip(positions, values, strict=True):
            is_packed = records[position + _FLAGS_POSITION] & Flags.COMPRESSED
            unpacked = self._decompressed(value, records, position) if is_packed and value is not None else value
            size = len(unpacked or b"")
            if run and run_bytes + size > BATCH_BYTES:
                yield run
                run, run_bytes = [], 0
            run.append(unpacked)
            run_bytes += size
        yield run

    def _decompressed(self, value: bytes, records: Buffer, position: int) -> bytes:
        try:
            return compression.decompress(value)
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, position, source=self._source(records, position)) from error

    def _source(self, records: Buffer, position: int) -> str:
        """What a position in an error refers to: the bytes that were read together, and the record at that position."""
        offset = HEADER.unpack_from(records, position)[_OFFSET_FIELD]
        return f"the bytes read from {self._topic}/{self._partition}, at offset {offset}"


def _array(name: str, row_count: int, validity: bytearray | None, *buffers: bytearray) -> Any:
    """A column over buffers that the kernel has filled."""
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(ARROW_TYPES[name], row_count, [bitmap, *map(pa.py_buffer, buffers)])


def _headers(filled: kernel.RecordColumns) -> Any:
    """Pairs of name and bytes, as Spark's Kafka source has them."""
    offsets, names, values = _shown_headers(filled)
    made = pa.StructArray.from_arrays([_strings(names), values], fields=list(ARROW_TYPES[HEADERS].value_type))
    return pa.ListArray.from_arrays(offsets, made, type=ARROW_TYPES[HEADERS])


def _header_maps(filled: kernel.RecordColumns) -> Any:
    offsets, names, values = _shown_headers(filled)
    names = _strings(names)
    made = pa.MapArray.from_arrays(offsets, names, _strings(values), type=_ARROW_MAP)
    return _last_of_each_name(made) if _has_a_name_twice(offsets, names) else made


def _times_us(filled: kernel.RecordColumns) -> Any:
    return pa.Array.from_buffers(pa.int64(), filled.row_count, [None, pa.py_buffer(filled.timestamps_us)])


def _shown_headers(filled: kernel.RecordColumns) -> tuple[Any, Any, Any]:
    """The offsets of the headers of each row, and all names and values, without internal headers."""
    row_count = filled.row_count
    offsets = pa.Array.from_buffers(pa.int32(), row_count + 1, [None, pa.py_buffer(filled.header_offsets)])
    names = _binaries(filled.header_name_offsets, filled.header_name_data)
    values = _binaries(filled.header_value_offsets, filled.header_value_data, filled.header_value_validity)
    is_shown = pc.not_equal(names, _PRODUCER)
    if not pc.all(is_shown).as_py():  # `all` of an empty array is true
        shown_before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(is_shown.cast(pa.int32()))])
        offsets = shown_before.take(offsets)
        names, values = names.filter(is_shown), values.filter(is_shown)
    return offsets, names, values


def _binaries(offsets: bytearray, data: bytearray, validity: bytearray | None = None) -> Any:
    count = len(offsets) // pa.int32().byte_width - 1
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.binary(), count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _strings(raw: Any) -> Any:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if text is None else text.decode("utf-8", "replace") for text in raw.to_pylist()]
        return pa.array(texts, type=pa.string())


def _schema_ids(filled: kernel.RecordColumns) -> dict[int, int]:
    """The schema ids in headers, by row; -1 for a header that is not an id."""
    offsets = pa.Array.from_buffers(pa.int32(), filled.row_count + 1, [None, pa.py_buffer(filled.header_offsets)])
    names = _binaries(filled.header_name_offsets, filled.header_name_data)
    values = _binaries(filled.header_value_offsets, filled.header_value_data, filled.header_value_validity)
    is_id = pc.and_(pc.equal(names, _SCHEMA_ID), pc.is_valid(values))
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names)).filter(is_id)
    texts = values.filter(is_id)
    return {
        row: int(text) if text.isdigit() and len(text) <= _ID_DIGITS_MAX else -1
        for row, text in zip(rows.to_pylist(), texts.to_pylist(), strict=True)
    }


def _has_a_name_twice(offsets: Any, names: Any) -> bool:
    """Whether one record has two headers of one name, which a map cannot have."""
    if len(names) < 2:
        return False
    encoded = names.dictionary_encode()
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names))
    places = pc.add(pc.multiply(rows, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
    return bool(pc.count_distinct(places).as_py() < len(names))


def _last_of_each_name(headers: Any) -> Any:
    return pa.array([dict(pairs) for pairs in headers.to_pylist()], type=headers.type)
