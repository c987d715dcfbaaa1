"""Values as typed columns: the option `valueSchema`.

It is a DDL string for values that are JSON objects, or `registry` for values in the format of their topic's schema:
JSON, Avro or Protobuf. The columns of the schema replace `value`. The column `_corrupt` is added: it has the whole
value if that does not fit the schema, and then all columns of the schema are null. For a tombstone all of them are
null, and `_corrupt`, too.

All columns are nullable. If a column of every topic, or an earlier column, has the same name in any letter case, the
column is called `value_<name>`.

The schema is that of the subject `<topic>-value` or else `<topic>`, in its latest version when the query is planned.
Several topics may be read at once if their schemas have the same columns. A value may start with the registry's prefix:
a zero byte and four bytes with the id of its schema. The header `schema-id` can name the schema, too. JSON and Protobuf
are always read with the latest schema. Avro has to be read with the schema that wrote it: all versions of the subject
are fetched at the start, and other ids when they occur. An Avro value that names no schema is read with the version
that was the latest when the broker stored it, against which the broker has checked it.

A parser is pickled and sent to the tasks, so it holds the texts of schemas, and each task compiles them.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from goqueue.errors import InvalidConfig, InvalidSchema, SchemaNotFound, SubjectNotFound
from goqueue.schemas.avro.binary import BinaryValidator
from goqueue.schemas.avro.schema import AVRO
from goqueue.schemas.format import ParsedSchema, SchemaFormat
from goqueue.schemas.formats import AVRO_NAME, PROTOBUF_NAME, format_of
from goqueue.schemas.protobuf.schema import ProtobufSchema
from goqueue.spark.avro_values import AvroReader, AvroWriter
from goqueue.spark.columns import CORRUPT, SPARK_TYPES
from goqueue.spark.ddl import nullable, parse_ddl
from goqueue.spark.json_values import Shape, decoder, shape_of_schema, shape_of_spark
from goqueue.spark.protobuf_values import ProtobufReader
from goqueue.spark.typed_arrays import UNFIT, columns_of
from goqueue.wire.schema_reports import SchemaInfo

History = tuple[tuple[int, int], ...]
"""The versions of a subject: the time of registration in microseconds since 1970, and the id."""
REGISTRY: Final = "registry"
_NS_PER_US: Final = 1_000
PREFIX_BYTES: Final = 5

DOES_NOT_FIT: Final = (*UNFIT, LookupError, AttributeError, RecursionError, msgspec.MsgspecError, DecodeError)
"""The errors of decoders for a value that does not fit its schema."""


class SchemaSource(Protocol):
    """The source of schemas: a `Client`."""

    def schema(
        self, id: int | None = None, *, subject: str | None = None, version: int | str = "latest", deleted: bool = False
    ) -> SchemaInfo:
        """A schema by its id, or the version of a subject."""

    def schema_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject."""


class SchemaText(NamedTuple):
    """A schema and its references by name, also indirect ones; each is listed after the schemas that it refers to."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...]


class ValueParser:
    """Turns values into columns. Made by `value_parser`; it can be pickled."""

    def __init__(
        self,
        columns: StructType,
        latest: Mapping[str, SchemaText] | None,
        known: Mapping[int, SchemaText],
        history: Mapping[str, History] | None = None,
    ) -> None:
        self.fields = _renamed(columns)
        self._columns = columns
        self._latest = latest  # by topic; None with DDL, which holds for all
        self._known = known  # by id
        self._history = history or {}  # by topic
        self._decoders: dict[str, _Decoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_decoders": {}}  # compiled decoders cannot be pickled

    @property
    def uses_ids(self) -> bool:
        """Whether it matters which schema a header names."""
        return any(schema.type == AVRO_NAME for schema in (self._latest or {}).values())

    def parse(
        self,
        values: Any,
        topic: str,
        *,
        ids: Mapping[int, int] | None = None,
        times_us: Any = None,
        registry: SchemaSource | None = None,
    ) -> dict[str, Any]:
        """The columns of an Arrow array of binary values by name, `_corrupt` included.

        `ids` are schema ids from headers, by row, and `times_us` is an Arrow array of the time when each value was
        stored. `registry` is the client that fetches unknown ids.
        """
        types = [field.type for field in to_arrow_schema(self.fields, timezone="UTC")]
        decode = self._decoder(topic).decoding(ids or {}, times_us, registry)
        rows: list[Any] = []
        corrupt: list[int] = []
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                rows.append(None)
                continue
            try:
                rows.append(decode(row, value))
            except DOES_NOT_FIT:
                rows.append(None)
                corrupt.append(row)
        try:
            columns = columns_of(rows, types)
        except UNFIT:  # Arrow does not say which row it was: convert them one by one, which is slow but rare
            corrupt += _unfit(rows, types)
            for row in corrupt:
                rows[row] = None
            columns = columns_of(rows, types)
        made = dict(zip(self.fields.fieldNames(), columns, strict=True))
        return made | {CORRUPT: _only(values, corrupt)}

    def _decoder(self, topic: str) -> "_Decoder":
        found = self._decoders.get(topic)
        if found is None:
            found = self._decoders[topic] = self._compiled(topic)
        return found

    def _compiled(self, topic: str) -> "_Decoder":
        if self._latest is None:
            return _JsonDecoder(shape_of_spark(self._columns))
        if topic not in self._latest:
            raise InvalidConfig("valueSchema", REGISTRY, f"topic {topic} was not there when the query was planned")
        return _compiled(self._latest[topic], self._known, self._history.get(topic, ()))


def value_parser(option: str, *, client: SchemaSource | None, topics: Sequence[str]) -> ValueParser:
    """The parser that the option asks for; `registry` needs a client and at least one topic.

    Raises `InvalidConfig` for an invalid schema, for one without columns, and for topics with different columns.
    """
    if option.strip().lower() != REGISTRY:
        columns = nullable(parse_ddl(option))
        assert isinstance(columns, StructType)
        shape_of_spark(columns)
        return ValueParser(columns, None, {})
    if client is None or not topics:
        raise InvalidConfig("valueSchema", option, "needs at least one topic whose schema can be looked up")
    latest: dict[str, SchemaText] = {}
    known: dict[int, SchemaText] = {}
    history: dict[str, History] = {}
    found: StructType | None = None
    for topic in topics:
        info = _latest_schema(client, topic)
        latest[topic] = known[info.id] = _with_references(client, info)
        if info.schema_type == AVRO_NAME:
            versions = [
                client.schema(subject=info.subject, version=version, deleted=True)
                for version in client.schema_versions(info.subject, deleted=True)
            ]
            known |= {earlier.id: _with_references(client, earlier) for earlier in versions}
            history[topic] = tuple((earlier.registered_at_ns // _NS_PER_US, earlier.id) for earlier in versions)
        columns = _columns_of(topic, latest[topic])
        if found is not None and columns != found:
            raise InvalidConfig(
                "valueSchema", option, f"the schemas of {topics[0]} and {topic} have different columns; read them apart"
            )
        found = columns
    assert found is not None
    return ValueParser(found, latest, known, history)


def _latest_schema(client: SchemaSource, topic: str) -> SchemaInfo:
    for subject in (f"{topic}-value", topic):
        try:
            return client.schema(subject=subject)
        except SubjectNotFound:
            continue
    raise InvalidConfig("valueSchema", REGISTRY, f"topic {topic} has no schema: there is no subject {topic}-value")


def _with_references(client: SchemaSource, info: SchemaInfo) -> SchemaText:
    found: dict[str, str] = {}

    def add(of: SchemaInfo) -> None:
        for reference in of.references:
            if reference.name not in found:
                referred = client.schema(subject=reference.subject, version=reference.version, deleted=True)
                add(referred)
                found[reference.name] = referred.schema

    add(info)
    return SchemaText(info.schema_type, info.schema, tuple(found.items()))


def _columns_of(topic: str, schema: SchemaText) -> StructType:
    try:
        return _compiled(schema, {}).columns
    except InvalidConfig as error:
        raise InvalidConfig("valueSchema", REGISTRY, f"topic {topic}: {error.reason}") from error
    except InvalidSchema as error:
        raise InvalidConfig(
            "valueSchema", REGISTRY, f"topic {topic} has a schema that cannot be read: {error}"
        ) from error


def _renamed(columns: StructType) -> StructType:
    taken = {name.lower() for name in SPARK_TYPES if name != "value"} | {CORRUPT}
    fields: list[StructField] = []
    for field in columns:
        name = field.name
        while name.lower() in taken:
            name = f"value_{name}"
        taken.add(name.lower())
        fields.append(StructField(name, field.dataType))
    return StructType(fields)


def _only(values: Any, rows: Sequence[int]) -> Any:
    """The values of these rows; the other rows are null."""
    if not rows:
        return pa.nulls(len(values), type=pa.binary())
    kept: list[bytes | None] = [None] * len(values)
    for row in rows:
        kept[row] = values[row].as_py()
    return pa.array(kept, type=pa.binary())


def _unfit(rows: Sequence[Any], types: Sequence[Any]) -> list[int]:
    """The rows with a value that its type cannot hold."""
    unfit = []
    for row, value in enumerate(rows):
        try:
            columns_of([value], types)
        except UNFIT:
            unfit.append(row)
    return unfit


# --- decoders ------------------------------------------------------------------------------------


class _Decoder(Protocol):
    """Decodes the values of a topic."""

    columns: StructType

    def decoding(
        self, ids: Mapping[int, int], times_us: Any, registry: SchemaSource | None
    ) -> Callable[[int, bytes], Any]:
        """A function from the number of a row and its value to the decoded row."""


def _compiled(schema: SchemaText, known: Mapping[int, SchemaText], history: "History" = ()) -> _Decoder:
    match schema.type:
        case "AVRO":
            return _AvroDecoder(schema, known, history)
        case "PROTOBUF":
            return _ProtobufDecoder(schema)
    documents = {name: msgspec.json.decode(text) for name, text in schema.references}
    shape = shape_of_schema(msgspec.json.decode(schema.text), documents)
    if not isinstance(shape.spark, StructType):
        raise InvalidConfig("valueSchema", REGISTRY, "the JSON Schema has no properties, so there are no columns")
    return _JsonDecoder(shape)


class _JsonDecoder:
    def __init__(self, shape: Shape) -> None:
        assert isinstance(shape.spark, StructType)
        self.columns = shape.spark
        self._decode = decoder(shape)

    def decoding(
        self, ids: Mapping[int, int], times_us: Any, registry: SchemaSource | None
    ) -> Callable[[int, bytes], Any]:
        decode = self._decode
        return lambda row, value: decode(value[PREFIX_BYTES:] if value[:1] == b"\0" else value)


class _ProtobufDecoder:
    def __init__(self, schema: SchemaText) -> None:
        parsed = _parsed(schema, format_of(PROTOBUF_NAME))
        assert isinstance(parsed, ProtobufSchema)
        self._reader = ProtobufReader(parsed)
        self.columns = self._reader.fields

    def decoding(
        self, ids: Mapping[int, int], times_us: Any, registry: SchemaSource | None
    ) -> Callable[[int, bytes], Any]:
        decode = self._reader.decode
        return lambda row, value: decode(_message_of(value) if value[:1] == b"\0" else value)


def _message_of(value: bytes) -> bytes:
    """The encoded message after the prefix and the message index, which must be that of the first message.

    A message never starts with a zero byte, so a value without prefix is not mistaken for one with it.
    """
    for place in (b"\0", b"\x02\0"):  # the short form of the index, and a list with one index
        if value.startswith(place, PREFIX_BYTES):
            return value[PREFIX_BYTES + len(place) :]
    raise ValueError("is not the first message of the schema")


class _AvroDecoder:
    def __init__(self, schema: SchemaText, known: Mapping[int, SchemaText], history: "History" = ()) -> None:
        self._latest = _AvroWriting(schema)
        self._history = history
        self._reader = AvroReader(*_documents(schema))
        self.columns = self._reader.fields
        self._known = known
        self._writers: dict[int, _AvroWriting | None] = {}

    def decoding(
        self, ids: Mapping[int, int], times_us: Any, registry: SchemaSource | None
    ) -> Callable[[int, bytes], Any]:
        times = None if times_us is None or len(self._history) < 2 else times_us.to_pylist()

        def decode(row: int, value: bytes) -> Any:
            writer, payload = self._latest if times is None else self._current(times[row]), value
            named = ids.get(row)
            prefixed = int.from_bytes(value[1:PREFIX_BYTES], "big") if _is_framed(value) else None
            if named is not None or prefixed is not None:
                schema_id = prefixed if named is None else named
                assert schema_id is not None
                found = self._writer(schema_id, registry)
                if found is not None:
                    writer = found
                    payload = value[PREFIX_BYTES:] if prefixed == schema_id else value
                elif named is not None:
                    raise ValueError(f"schema {named} is not known")
            return self._reader.pick(writer.decode(payload))

        return decode

    def _current(self, time_us: int) -> "_AvroWriting":
        """The version that was the latest at that time; the first one if the time is before all."""
        number = max(0, bisect_right(self._history, time_us, key=itemgetter(0)) - 1)
        return self._writer(self._history[number][1], None) or self._latest

    def _writer(self, schema_id: int, registry: SchemaSource | None) -> "_AvroWriting | None":
        """The Avro schema with that id; None if there is none."""
        if schema_id not in self._writers and len(self._writers) < _WRITERS_MAX:
            schema = self._known.get(schema_id) or _looked_up(schema_id, registry)
            is_avro = schema is not None and schema.type == AVRO_NAME
            self._writers[schema_id] = _AvroWriting(schema) if schema and is_avro else None
        return self._writers.get(schema_id)


class _AvroWriting:
    """The validator and the decoder of one writer's schema."""

    def __init__(self, schema: SchemaText) -> None:
        parsed = AVRO.parse(schema.text, _references(schema, AVRO))
        self._validator = BinaryValidator(parsed.type)
        self._writer = AvroWriter(*_documents(schema))

    def decode(self, payload: bytes) -> Any:
        fault = self._validator.check(payload)
        if fault:
            raise ValueError(fault.reason)
        return self._writer.decode(payload)


_WRITERS_MAX: Final = 10_000
"""The most ids that are kept: in values without prefix, random bytes may look like one."""


def _is_framed(value: bytes) -> bool:
    return value[:1] == b"\0" and len(value) >= PREFIX_BYTES


def _looked_up(schema_id: int, registry: SchemaSource | None) -> SchemaText | None:
    if registry is None:
        return None
    try:
        return _with_references(registry, registry.schema(schema_id))
    except SchemaNotFound:
        return None


def _documents(schema: SchemaText) -> tuple[object, list[object]]:
    """The schema and its references, as JSON."""
    return _document(schema.text), [_document(text) for _, text in schema.references]


def _document(text: str) -> object:
    """The JSON of a valid Avro schema, which may be a bare name without quotes."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip()


def _references(schema: SchemaText, format: SchemaFormat) -> dict[str, ParsedSchema]:
    parsed: dict[str, ParsedSchema] = {}
    for name, text in schema.references:
        parsed[name] = format.parse(text, dict(parsed))
    return parsed


def _parsed(schema: SchemaText, format: SchemaFormat) -> ParsedSchema:
    return format.parse(schema.text, _references(schema, format))
