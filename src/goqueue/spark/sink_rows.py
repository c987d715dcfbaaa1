"""Rows of a data frame as messages.

    column      type                     meaning
    value       binary, string           the payload; null is a tombstone. Required, except with valueFormat=json
    key         binary, string           null is no key; an empty one is a key
    headers     array<struct<key: string, value: binary>>, as in the source, or map<string, string>; the values may be
                binary or strings in both, or null. Of several headers with one name the last one counts
    topic       string                   the topic of the message; null is the option `topic`
    partition   a whole number           null: chosen by the key
    priority    a whole number, string   0 to 4, or a name; null is normal
    deliver_at  timestamp                null or a past time is now
    created_at  timestamp                when the message was made, by the clock of its producer; null is not said

With `valueFormat=json` all columns but those from `key` to `deliver_at` become one object: nulls stay, times are RFC
3339, binary is base64, decimals are numbers, and numbers that JSON does not have are null. A column that does not fit
is reported before anything runs. Columns are converted to lists as a whole; only headers and times cost Python
statements per row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from goqueue.client.messages import priority_code
from goqueue.errors import InvalidMessage, InvalidRequest
from goqueue.record.header import Priority

NS_PER_US: Final = 1_000
_TEXT = (types.BinaryType, types.StringType)
_TYPES: Final[Mapping[str, tuple[tuple[type[types.DataType], ...], str]]] = {
    "value": (_TEXT, "binary or string"),
    "key": (_TEXT, "binary or string"),
    "topic": ((types.StringType,), "string"),
    "partition": ((types.IntegralType,), "a whole number"),
    "priority": ((types.IntegralType, types.StringType), "a whole number or a string"),
    "deliver_at": ((types.TimestampType,), "timestamp"),
    "created_at": ((types.TimestampType,), "timestamp"),
}
COLUMNS: Final = ("value", "key", "headers", "topic", "partition", "priority", "deliver_at", "created_at")
_DATA_IN_JSON: Final = ("value", "created_at")
"""Parts of the message that are data with `valueFormat=json`: many rows have a column `created_at`."""
_JSON_SCALARS = (
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.DecimalType,
    types.FractionalType,
    types.IntegralType,
    types.NullType,
    types.StringType,
    types.TimestampNTZType,
    types.TimestampType,
)
_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


class TopicMessages(NamedTuple):
    """Messages for one topic, as `Staging.add` takes them."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[dict[str, str | bytes | None] | None] | None
    priorities: int | Sequence[int]
    deliver_at_ns: Sequence[int | None] | None
    created_at_ns: Sequence[int | None] | None
    partitions: Sequence[int | None] | None


@dataclass(frozen=True, slots=True)
class RowReader:
    """The place of each part of a message among the columns."""

    places: Mapping[str, int]
    json_places: Mapping[str, int] | None
    topic: str | None  # of rows that name none

    @classmethod
    def of(cls, schema: types.StructType, *, topic: str | None, is_json: bool) -> Self:
        """The reader of rows of a schema. Raises `InvalidRequest`, which names the columns that do not fit."""
        places: dict[str, int] = {}
        others: dict[str, int] = {}
        for place, column in enumerate(schema):
            name = column.name.lower()
            is_part = name in COLUMNS and not (is_json and name in _DATA_IN_JSON)
            known = places if is_part else others
            if (name if is_part else column.name) in known:
                raise InvalidRequest(f"column {column.name} is there twice", path=column.name)
            known[name if is_part else column.name] = place
            if is_part:
                _check_part(name, column.dataType)
            elif is_json:
                _check_json(column.name, column.dataType)
        if others and not is_json:
            known_names = ", ".join(COLUMNS)
            raise InvalidRequest(
                f"unknown column{'s' * (len(others) > 1)} {', '.join(others)}: a message has {known_names}; "
                "drop the others, or make an object of them with valueFormat=json"
            )
        if is_json and not others:
            raise InvalidRequest("valueFormat=json needs a column that is not a part of the message itself")
        if not is_json and "value" not in places:
            raise InvalidRequest("column value is required, binary or string", path="value")
        if topic is None and "topic" not in places:
            raise InvalidRequest("the option topic is required, or a column of that name", path="topic")
        return cls(places, others if is_json else None, topic)

    def messages(self, batch: Any) -> Iterator[TopicMessages]:
        """The rows of a record batch, topic by topic, in their order."""
        if "topic" not in self.places:
            assert self.topic is not None
            yield self._messages(batch, self.topic)
            return
        topics = batch.column(self.places["topic"])
        names = pc.unique(topics).to_pylist()
        for name in names:
            topic = self.topic if name is None else name
            if topic is None:
                raise InvalidMessage("a row has no topic: its column topic is null, and there is no option topic")
            chosen = pc.is_null(topics) if name is None else pc.fill_null(pc.equal(topics, name), False)
            yield self._messages(batch if len(names) == 1 else batch.filter(chosen), topic)

    def _messages(self, batch: Any, topic: str) -> TopicMessages:
        values = self._bytes(batch, "value") if self.json_places is None else _objects(batch, self.json_places)
        assert values is not None
        return TopicMessages(
            topic,
            values,
            self._bytes(batch, "key"),
            self._headers(batch),
            self._priorities(batch),
            self._times_ns(batch, "deliver_at"),
            self._times_ns(batch, "created_at"),
            self._list(batch, "partition"),
        )

    def _headers(self, batch: Any) -> list[Any] | None:
        column = self._column(batch, "headers")
        if column is None or pa.types.is_map(column.type):
            return self._list(batch, "headers")
        pairs = column.flatten()
        names, values = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
        counts = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
        end, found = 0, []
        for count in counts:
            start, end = end, end + count
            found.append(dict(zip(names[start:end], values[start:end], strict=True)) if count else None)
        return found

    def _column(self, batch: Any, name: str) -> Any:
        place = self.places.get(name)
        return None if place is None else batch.column(place)

    def _list(self, batch: Any, name: str) -> list[Any] | None:
        column = self._column(batch, name)
        return None if column is None else column.to_pylist(maps_as_pydicts="strict")

    def _bytes(self, batch: Any, name: str) -> list[bytes | None] | None:
        column = self._column(batch, name)
        if column is None:
            return None
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        found: list[bytes | None] = column.to_pylist()
        return found

    def _priorities(self, batch: Any) -> int | list[int]:
        given = self._list(batch, "priority")
        if given is None:
            return int(Priority.NORMAL)
        codes = {one: int(priority_code(one)) for one in set(given)}
        return [codes[one] for one in given]

    def _times_ns(self, batch: Any, name: str) -> list[int | None] | None:
        column = self._column(batch, name)
        if column is None:
            return None
        times_us = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if time_us is None else time_us * NS_PER_US for time_us in times_us]


def _objects(batch: Any, places: Mapping[str, int]) -> list[bytes | None]:
    """One JSON object for each row. Encoded JSON has no line breaks, so all rows are encoded at once, and split."""
    columns = [batch.column(place).to_pylist(maps_as_pydicts="strict") for place in places.values()]
    names = list(places)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    lines: list[bytes | None] = [*_encode_lines(rows).split(b"\n")]
    return lines[:-1]


def _check_part(name: str, found: types.DataType) -> None:
    if name == "headers":
        if not _are_headers(found):
            wanted = "array<struct<key: string, value: binary>> or map<string, string>"
            raise InvalidRequest(f"column headers must be {wanted}, not {found.simpleString()}", path=name)
        return
    accepted, wanted = _TYPES[name]
    if not isinstance(found, accepted):
        raise InvalidRequest(f"column {name} must be {wanted}, not {found.simpleString()}", path=name)


def _are_headers(found: types.DataType) -> bool:
    match found:
        case types.MapType(keyType=types.StringType(), valueType=values):
            return isinstance(values, _TEXT)
        case types.ArrayType(elementType=types.StructType(fields=[key, value])):
            names = (key.name.lower(), value.name.lower())
            return (
                names == ("key", "value")
                and isinstance(key.dataType, types.StringType)
                and isinstance(value.dataType, _TEXT)
            )
        case _:
            return False


def _check_json(name: str, found: types.DataType) -> None:
    """Raise if JSON cannot hold values of the type."""
    match found:
        case types.StructType():
            for field in found:
                _check_json(f"{name}.{field.name}", field.dataType)
        case types.ArrayType():
            _check_json(name, found.elementType)
        case types.MapType():
            if not isinstance(found.keyType, types.StringType | types.IntegralType):
                raise InvalidRequest(f"column {name}: {found.simpleString()} cannot be written as JSON", path=name)
            _check_json(name, found.valueType)
        case _:
            if not isinstance(found, _JSON_SCALARS):
                raise InvalidRequest(f"column {name}: {found.simpleString()} cannot be written as JSON", path=name)
