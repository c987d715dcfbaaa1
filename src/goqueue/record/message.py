"""The stored message: a decoded record.

The kernel creates the messages of a whole batch in one call. A `StoredMessage` holds bytes; it decodes text, time and
headers only when a program reads them. Applications get a `goqueue.Message`, which adds the trace.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from goqueue.errors import CorruptRecord
from goqueue.names import TopicPartition
from goqueue.record import compression, kernel
from goqueue.record.header import Buffer, Flags, Priority
from goqueue.record.headers import CREATED, EXPIRES_AT, NOT_SHOWN, as_text, parse_time, split_headers

if TYPE_CHECKING:
    from goqueue.record._kernel import Record as RecordBase
else:
    from goqueue.record.kernel import RecordBase

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_BYTES_MAX = 64


class StoredMessage(RecordBase):
    """One message of a partition. Immutable; equal when all of it is equal."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self._topic_partition.topic

    @property
    def partition(self) -> int:
        return self._topic_partition.partition

    @property
    def timestamp(self) -> datetime:
        """When the broker stored the message, in UTC, rounded down to microseconds; `timestamp_ns` is exact."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @property
    def headers(self) -> dict[str, str]:
        """The headers as text, a new dict at each call; `raw_headers` has them as they are stored.

        Bytes that are not UTF-8 are surrogate escapes. Of several with one name the last one counts, and a header
        without a value has an empty one.
        """
        return {name: as_text(value or b"") for name, value in self.raw_headers}

    @property
    def raw_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers in their order, with the bytes of their values; None is a header without a value."""
        pairs = [(as_text(name), value) for name, value in split_headers(self.encoded_headers or b"")]
        return [pair for pair in pairs if pair[0] not in NOT_SHOWN]

    @property
    def expires_at(self) -> datetime | None:
        """When the time to live of the message ends, if it was published with one; in UTC."""
        return self._time(EXPIRES_AT)

    @property
    def created_at(self) -> datetime | None:
        """When the producer made the message, by its own clock, if it said so; in UTC."""
        return self._time(CREATED)

    @property
    def priority(self) -> Priority:
        return Priority(self.priority_code)

    @property
    def tombstone(self) -> bool:
        """Whether the message deletes its key; the value is empty then."""
        return bool(self.flags & Flags.TOMBSTONE)

    @property
    def receipt(self) -> str | None:
        """The right to settle the message; None unless it was delivered to a member of a group."""
        return None

    @property
    def delivery_count(self) -> int:
        """Which delivery of the message this is; 0 unless it was delivered to a member of a group."""
        return 0

    def text(self) -> str:
        """The value as UTF-8."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value)

    def _time(self, name: str) -> datetime | None:
        """The time in the header of this name, the last one if there are several; None without a valid one."""
        values = [value for found, value in split_headers(self.encoded_headers or b"") if found == name.encode()]
        time_ns = parse_time(values[-1] or b"") if values else None
        return None if time_ns is None else _EPOCH + timedelta(microseconds=time_ns // 1000)

    @property
    def _topic_partition(self) -> TopicPartition:
        origin: TopicPartition = self.origin
        return origin

    def _fields(self) -> tuple[object, ...]:
        return (
            self.origin,
            self.offset,
            self.timestamp_ns,
            self.priority_code,
            self.flags,
            self.key,
            self.value,
            self.encoded_headers,
        )

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, StoredMessage) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __reduce__(self) -> tuple[type["StoredMessage"], tuple[object, ...]]:
        return type(self), self._fields()

    def __repr__(self) -> str:
        facts = [f"{self._shown_origin()} @ {self.offset}"]
        if self.key is not None:
            facts.append(f"key={_shown(self.key)}")
        facts.append("tombstone" if self.tombstone else f"value={_shown(self.value)}")
        if self.encoded_headers is not None:
            facts += self._shown_headers(self.encoded_headers)
        if self.priority_code != Priority.NORMAL:
            facts.append(self._shown_priority())
        return f"<{type(self).__name__} {', '.join(facts)}>"

    # A message that a program builds itself may hold anything, and a repr must not raise: values that make no sense are
    # shown as they are.

    def _shown_origin(self) -> str:
        origin: object = self.origin
        return f"{origin.topic}/{origin.partition}" if isinstance(origin, TopicPartition) else f"origin={origin!r}"

    def _shown_headers(self, encoded: bytes) -> list[str]:
        try:
            headers = self.headers
        except CorruptRecord:
            return [f"encoded_headers={_shown(encoded)}"]
        return [f"headers={headers!r}"] if headers else []

    def _shown_priority(self) -> str:
        try:
            return f"priority={self.priority.name}"
        except ValueError:
            return f"priority_code={self.priority_code}"


class Undecodable(NamedTuple):
    """A whole record whose value cannot be decompressed."""

    offset: int
    reason: str


def decode_messages(
    records: Buffer,
    origin: TopicPartition,
    *,
    flags: int,
    verify: bool = True,
    message_type: type[StoredMessage] = StoredMessage,
    undecodable: list[Undecodable] | None = None,
) -> list[StoredMessage]:
    """The messages in a buffer of whole records. `flags` are those of all records, or-ed; more do no harm.

    A record whose value cannot be decompressed is added to `undecodable` and left out, so that it does not hide the
    others. Without that list it raises `CorruptRecord`.
    """
    decoded = kernel.decode(records, origin, message_type, verify=verify)
    if not flags & Flags.COMPRESSED:
        return decoded
    readable: list[StoredMessage] = []
    decompressor = compression.Decompressor()
    for message in decoded:
        if not message.flags & Flags.COMPRESSED:
            readable.append(message)
            continue
        try:
            readable.append(_decompressed(message, decompressor))
        except CorruptRecord as error:
            if undecodable is None:
                raise
            undecodable.append(Undecodable(message.offset, error.reason))
    return readable


def _decompressed(message: StoredMessage, decompressor: compression.Decompressor) -> StoredMessage:
    return type(message)(
        message.origin,
        message.offset,
        message.timestamp_ns,
        message.priority_code,
        message.flags & ~Flags.COMPRESSED,
        message.key,
        decompressor.decompress(message.value),
        message.encoded_headers,
    )


def _shown(data: bytes) -> str:
    """The bytes, cut to what fits on a line."""
    if len(data) <= _SHOWN_BYTES_MAX:
        return repr(data)
    return f"{data[:_SHOWN_BYTES_MAX]!r}... ({len(data)} bytes)"
