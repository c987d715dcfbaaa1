"""The record kernel in Python: the oracle that the C kernel is held against, and the fallback where C is missing.

Function by function this is `_kernel.c`: the same arguments, results, exceptions and order of checks, which
tests/record/test_kernel_twins.py compares. It is written to be read. `kernel.py` says what each function is for,
`header.py` has the format.
"""

# Over 800 lines in one file, because its twin is one C file: a reader compares the two function by function.

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import index as as_int
from typing import Any, NamedTuple, Self, TypeAlias

from goqueue.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from goqueue.record.header import (
    CRC_END,
    CRC_POSITION,
    FLAGS_KNOWN,
    HEADER,
    HEADER_BYTES,
    KEY_BYTES_MAX,
    MAGIC,
    OFFSET_MAX,
    TIMESTAMP_MIN,
    VERSION,
    Buffer,
    Flags,
    Priority,
    RecordFault,
)
from goqueue.record.headers import (
    DELIVER_AT,
    EXPIRES_AT,
    FOR_GROUP,
    HeaderPair,
    Headers,
    encode_headers,
    parse_time,
    split_headers,
)

Lanes: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes]
OutlineTuple: TypeAlias = tuple[int, int, int, int, int, Lanes, bytes, bytes, bytes, bytes, bytes]
SummaryTuple: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, bytes, bytes, int, int, int, bytes, int]

# Plain numbers: an IntFlag takes a microsecond for each operation, and these are used several times per record.
_COMPRESSED = int(Flags.COMPRESSED)
_HAS_HEADERS = int(Flags.HAS_HEADERS)
_TOMBSTONE = int(Flags.TOMBSTONE)
_CONTROL = int(Flags.CONTROL)
_COMMIT = int(Flags.COMMIT)
_EMPTY_KEY = int(Flags.EMPTY_KEY)

_KEEP_KEY = 1
_KEEP_VALUE = 2
_KEEP_HEADERS = 4
_INDEX_INTERVAL_BYTES = 4096
_OFFSET_ENTRY = struct.Struct(">QQ")
_TIME_ENTRY = struct.Struct(">qQ")
_CRC = struct.Struct(">I")
_WORD = struct.Struct("<I")
_OFFSET_AND_TIMESTAMP = struct.Struct(">Qq")
_DELAYED_ENTRY = struct.Struct("=QqII")
_EXPIRING_ENTRY = struct.Struct("=Qq")
_ADDRESSED_ENTRY = struct.Struct("=QQQ")
_ENCODABLE_VALUE_BYTES_MAX = 0xFFFF_FFFF
_COLUMN_BYTES_MAX = 2**31 - 1
_RESYNC_BUDGET_FACTOR = 16
_RESYNC_BUDGET_BYTES = 1024 * 1024


# CRC-32C


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        table.append(state)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _crc_update(state: int, data: Iterable[int]) -> int:
    table = _CRC_TABLE
    for byte in data:
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return state


def crc32c(data: Buffer, crc: int) -> int:
    view = _readable(data)
    if _natural(crc) > 0xFFFF_FFFF:
        raise OverflowError("crc must fit in 32 bits")
    return _crc_update(crc ^ 0xFFFF_FFFF, view) ^ 0xFFFF_FFFF


crc32c_table = crc32c


def hardware_crc() -> bool:
    return False


def _record_crc(record: memoryview) -> int:
    return _crc_update(_crc_update(0xFFFF_FFFF, record[:CRC_POSITION]), record[CRC_END:]) ^ 0xFFFF_FFFF


# murmur2


def murmur2(key: bytes) -> int:
    if not isinstance(key, bytes):
        raise TypeError("the key must be bytes")
    multiplier, mask = 0x5BD1E995, 0xFFFF_FFFF
    hashed = 0x9747_B28C ^ (len(key) & mask)
    whole = len(key) & ~3
    for (word,) in _WORD.iter_unpack(key[:whole]):
        mixed = word * multiplier & mask
        hashed = hashed * multiplier & mask ^ (mixed ^ mixed >> 24) * multiplier & mask
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


# arguments


def _readable(data: "Buffer | array[int]") -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer is not C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _writable(data: bytearray | memoryview) -> memoryview:
    if memoryview(data).readonly:
        raise TypeError("the buffer is not writable")
    return _readable(data)


def _int64(value: int) -> int:
    number = as_int(value)
    if not TIMESTAMP_MIN <= number <= OFFSET_MAX:
        raise OverflowError("int too big to convert")
    return number


def _natural(value: int) -> int:
    number = _int64(value)
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _dict(table: dict[bytes, int]) -> dict[bytes, int]:
    if not isinstance(table, dict):
        raise TypeError("the table must be a dict")
    return table


# one record


class _Stored(NamedTuple):
    """A record as it stands in a buffer."""

    record: memoryview  # all of it
    flags: int
    crc: int
    offset: int
    timestamp: int
    priority: int
    key: memoryview
    value: memoryview
    headers: memoryview

    @property
    def has_key(self) -> bool:
        """An empty key is a key, too, if the flag says so."""
        return len(self.key) > 0 or bool(self.flags & _EMPTY_KEY)

    @property
    def deliver_at(self) -> int | None:
        return self._time(DELIVER_AT)

    @property
    def expires_at(self) -> int | None:
        return self._time(EXPIRES_AT)

    def _time(self, wanted: str) -> int | None:
        """The time in the header of this name, the last one if there are several; None without a valid one."""
        times = [value for name, value in split_headers(bytes(self.headers)) if name == wanted.encode()]
        return parse_time(times[-1] or b"") if times else None

    @property
    def for_group(self) -> tuple[int, int] | None:
        """Where in the record the group is named that alone gets the message, and how long the name is."""
        found: tuple[int, int] | None = None
        at = len(self.record) - len(self.headers) + 2
        for name, value in split_headers(bytes(self.headers)):
            size = len(value or b"")
            at += 2 + len(name) + 2 + size
            if name == FOR_GROUP.encode():
                found = at - size, size
        return found if found is not None and found[1] else None


def _flags_hold(flags: int, allowed: int, key_bytes: int, value_bytes: int, headers_bytes: int) -> bool:
    if flags & ~(allowed & FLAGS_KNOWN):
        return False
    if bool(flags & _HAS_HEADERS) != (headers_bytes > 0):
        return False
    if flags & _TOMBSTONE and value_bytes:
        return False
    if flags & _EMPTY_KEY and key_bytes:
        return False
    return not flags & _COMMIT or bool(flags & _CONTROL)


def _read_header(
    buffer: memoryview, at: int, flags_allowed: int = FLAGS_KNOWN, value_bytes_max: int = _ENCODABLE_VALUE_BYTES_MAX
) -> _Stored | RecordFault:
    """The record at `at`, if its fixed header is valid and all of it is there. Its headers are not validated."""
    left = len(buffer) - at
    if left < HEADER_BYTES:
        return RecordFault.TRUNCATED
    magic, version, flags, crc, offset, timestamp, priority, reserved, klen, vlen, hlen = HEADER.unpack_from(buffer, at)
    if magic != MAGIC:
        return RecordFault.MAGIC
    if version != VERSION:
        return RecordFault.VERSION
    if not _flags_hold(flags, flags_allowed, klen, vlen, hlen):
        return RecordFault.UNKNOWN_FLAGS if flags & ~FLAGS_KNOWN else RecordFault.FLAGS
    if priority > Priority.BACKGROUND:
        return RecordFault.PRIORITY
    if reserved:
        return RecordFault.RESERVED
    if vlen > value_bytes_max:
        return RecordFault.LENGTH
    if HEADER_BYTES + klen + vlen + hlen > left:
        return RecordFault.TRUNCATED
    key_end = at + HEADER_BYTES + klen
    value_end = key_end + vlen
    end = value_end + hlen
    return _Stored(
        record=buffer[at:end],
        flags=flags,
        crc=crc,
        offset=offset,
        timestamp=timestamp,
        priority=priority,
        key=buffer[at + HEADER_BYTES : key_end],
        value=buffer[key_end:value_end],
        headers=buffer[value_end:end],
    )


def _headers_hold(stored: _Stored) -> bool:
    try:
        split_headers(bytes(stored.headers))
    except CorruptRecord:
        return False
    return True


def _read_record(
    buffer: memoryview, at: int, flags_allowed: int = FLAGS_KNOWN, value_bytes_max: int = _ENCODABLE_VALUE_BYTES_MAX
) -> _Stored | RecordFault:
    stored = _read_header(buffer, at, flags_allowed, value_bytes_max)
    if isinstance(stored, _Stored) and stored.headers and not _headers_hold(stored):
        return RecordFault.HEADERS
    return stored


def _read_stored(buffer: memoryview, at: int, verify: bool) -> _Stored | RecordFault:
    """As `_read_record`; the offset is validated too, and the crc if `verify` is set."""
    stored = _read_record(buffer, at)
    if isinstance(stored, RecordFault):
        return stored
    if verify and _record_crc(stored.record) != stored.crc:
        return RecordFault.CRC
    return RecordFault.OFFSET if stored.offset > OFFSET_MAX else stored


class _RecordRun:
    """The records of a buffer up to the first fault; after that, `fault` and `position` say why and where it ended."""

    def __init__(self, buffer: memoryview, *, verify: bool) -> None:
        self.buffer = buffer
        self.verify = verify
        self.fault = RecordFault.NONE
        self.position = 0

    def __iter__(self) -> Iterator[_Stored]:
        while self.position < len(self.buffer):
            stored = _read_stored(self.buffer, self.position, self.verify)
            if isinstance(stored, RecordFault):
                self.fault = stored
                return
            yield stored
            self.position += len(stored.record)


# stamp and scan


class _Summary:
    """Collects the facts of `kernel.Summary`, which says what the fields mean."""

    def __init__(self, position: int, next_index_at: int, *, positions: bool = False) -> None:
        self.count = 0
        self.start = self.end = 0
        self.first_offset = self.last_offset = self.first_timestamp = self.last_timestamp = -1
        self.flags = self.later_flags = self.priorities = 0
        self.offset_entries = bytearray()
        self.time_entries = bytearray()
        self.position = position
        self.next_index_at = next_index_at
        self.positions = array("I") if positions else None

    def index(self, at: int, offset: int, timestamp: int) -> None:
        position = self.position + at
        if position >= self.next_index_at:
            self.offset_entries += _OFFSET_ENTRY.pack(offset, position)
            self.time_entries += _TIME_ENTRY.pack(timestamp, offset)
            self.next_index_at = position + _INDEX_INTERVAL_BYTES

    def add(self, at: int, stored: _Stored, offset: int, timestamp: int) -> None:
        if not self.count:
            self.start, self.first_offset, self.first_timestamp = at, offset, timestamp
        else:
            self.later_flags |= stored.flags
        if self.positions is not None:
            self.positions.append(at)
        self.count += 1
        self.end, self.last_offset, self.last_timestamp = at + len(stored.record), offset, timestamp
        self.flags |= stored.flags
        self.priorities |= 1 << stored.priority

    def stop(self, fault: RecordFault, at: int) -> SummaryTuple:
        if not self.count:
            self.start = self.end = at
        return (
            self.count,
            self.start,
            self.end,
            self.first_offset,
            self.last_offset,
            self.first_timestamp,
            self.last_timestamp,
            self.flags,
            self.priorities,
            bytes(self.offset_entries),
            bytes(self.time_entries),
            self.next_index_at,
            int(fault),
            at,
            b"" if self.positions is None else self.positions.tobytes(),
            self.later_flags,
        )


def stamp(
    buffer: bytearray | memoryview,
    first_offset: int,
    timestamp: int,
    flags_allowed: int,
    value_bytes_max: int,
    position: int,
    next_index_at: int,
) -> SummaryTuple:
    view = _writable(buffer)
    offset, timestamp = _natural(first_offset), _int64(timestamp)
    flags_allowed, value_bytes_max = _natural(flags_allowed), _natural(value_bytes_max)
    summary = _Summary(_natural(position), _natural(next_index_at))
    at = 0
    while at < len(view):
        stored = _read_record(view, at, flags_allowed, value_bytes_max)
        if isinstance(stored, RecordFault):
            return summary.stop(stored, at)
        if offset > OFFSET_MAX:
            return summary.stop(RecordFault.OFFSET, at)
        _OFFSET_AND_TIMESTAMP.pack_into(stored.record, CRC_END, offset, timestamp)
        _CRC.pack_into(stored.record, CRC_POSITION, _record_crc(stored.record))
        summary.index(at, offset, timestamp)
        summary.add(at, stored, offset, timestamp)
        offset += 1
        at += len(stored.record)
    return summary.stop(RecordFault.NONE, at)


def scan(
    buffer: Buffer,
    min_offset: int,
    dense: bool,
    from_offset: int,
    to_offset: int,
    position: int,
    next_index_at: int,
    positions: bool,
) -> SummaryTuple:
    view = _readable(buffer)
    expected, from_offset, to_offset = _natural(min_offset), _int64(from_offset), _int64(to_offset)
    summary = _Summary(_natural(position), _natural(next_index_at), positions=positions)
    if positions and len(view) > 0xFFFF_FFFF:
        raise ValueError("positions need a buffer below 4 GiB")
    run = _RecordRun(view, verify=True)
    for stored in run:
        offset, at = stored.offset, run.position
        if offset != expected if dense else offset < expected:
            return summary.stop(RecordFault.OFFSET, at)
        if offset >= to_offset:
            return summary.stop(RecordFault.NONE, at)
        summary.index(at, offset, stored.timestamp)
        if offset >= from_offset:
            summary.add(at, stored, offset, stored.timestamp)
        expected = offset + 1
    return summary.stop(run.fault, run.position)


# resync


class _Exhausted(Exception):
    """The search has read more bytes than its budget allows."""


class _Search:
    """The search for the first valid record after damage.

    Hostile bytes can look like many headers whose records overlap, and each asks for a checksum over the same bytes:
    without a budget the search would take quadratic time.
    """

    def __init__(self, buffer: memoryview, min_offset: int, max_offset: int) -> None:
        self.buffer = buffer
        self.data = bytes(buffer)
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.budget = len(buffer) * _RESYNC_BUDGET_FACTOR + _RESYNC_BUDGET_BYTES

    def run(self, start: int) -> int:
        """The records that lead to the end are proven. They bound the offsets of records between the damage and them.

        So a second damaged place hides no record, and a record inside a value is not taken for one of the log.
        """
        if start >= len(self.data):
            return -1
        proven = self.proven(start + 1)
        found = self.valid(start + 1, proven)
        return -1 if found == len(self.data) else found

    def proven(self, at: int) -> int:
        """The first valid record from which valid records lead to the end, or the end; its offset is the new limit."""
        while (at := self.magic(at)) < len(self.data):
            stored = self.probe(at, self.min_offset)
            if isinstance(stored, RecordFault):
                at += 1
                continue
            stopped = self.follow(at + len(stored.record), stored.offset + 1)
            if stopped == len(self.data):
                self.max_offset = stored.offset
                return at
            at = stopped
        return len(self.data)

    def valid(self, at: int, end: int) -> int:
        """The first valid record that ends at or before `end`, or `end`."""
        while (at := self.magic(at)) < end:
            stored = self.probe(at, self.min_offset)
            if isinstance(stored, _Stored) and at + len(stored.record) <= end:
                return at
            at += 1
        return end

    def follow(self, at: int, min_offset: int) -> int:
        """Where the run of records with rising offsets at `at` ends; a torn record that is last belongs to it."""
        while at < len(self.data):
            stored = self.probe(at, min_offset)
            if isinstance(stored, RecordFault):
                opening = (MAGIC + bytes([VERSION]))[: len(self.data) - at]
                torn = stored is RecordFault.TRUNCATED and self.data.startswith(opening, at)
                return len(self.data) if torn else at
            at += len(stored.record)
            min_offset = stored.offset + 1
        return at

    def magic(self, at: int) -> int:
        found = self.data.find(MAGIC, at)
        return len(self.data) if found < 0 else found

    def probe(self, at: int, min_offset: int) -> _Stored | RecordFault:
        """The record at `at` if it is whole and valid with an offset in [min_offset, max_offset)."""
        stored = _read_header(self.buffer, at)
        if isinstance(stored, RecordFault):
            return stored
        if not min_offset <= stored.offset < self.max_offset:
            return RecordFault.OFFSET
        if len(stored.record) > self.budget:
            raise _Exhausted
        self.budget -= len(stored.record)
        if not _headers_hold(stored):
            return RecordFault.HEADERS
        return stored if _record_crc(stored.record) == stored.crc else RecordFault.CRC


def resync(buffer: Buffer, start: int, min_offset: int, max_offset: int) -> int:
    search = _Search(_readable(buffer), _int64(min_offset), _int64(max_offset))
    try:
        return search.run(_natural(start))
    except _Exhausted:
        return -1


# decode


class Record:
    """One record of a batch. Its origin must not refer back to it: the C twin takes no part in garbage collection."""

    __slots__ = (
        "_encoded_headers",
        "_flags",
        "_key",
        "_offset",
        "_origin",
        "_priority_code",
        "_timestamp_ns",
        "_value",
    )

    _origin: Any
    _offset: int
    _timestamp_ns: int
    _priority_code: int
    _flags: int
    _key: bytes | None
    _value: bytes
    _encoded_headers: bytes | None

    def __new__(
        cls,
        origin: Any,
        offset: int,
        timestamp_ns: int,
        priority_code: int,
        flags: int,
        key: bytes | None,
        value: bytes,
        encoded_headers: bytes | None,
    ) -> Self:
        if not isinstance(value, bytes):
            raise TypeError(f"value must be bytes, not {type(value).__name__}")
        if not _is_bytes_or_none(key) or not _is_bytes_or_none(encoded_headers):
            raise TypeError("key and encoded_headers must be bytes or None")
        _refuse_record_as_origin(origin)
        self = super().__new__(cls)
        self._origin = origin
        self._offset = _int64(offset)
        self._timestamp_ns = _int64(timestamp_ns)
        self._priority_code = _byte(priority_code)
        self._flags = _byte(flags)
        self._key = key
        self._value = value
        self._encoded_headers = encoded_headers
        return self

    @property
    def origin(self) -> Any:
        return self._origin

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def timestamp_ns(self) -> int:
        return self._timestamp_ns

    @property
    def priority_code(self) -> int:
        return self._priority_code

    @property
    def flags(self) -> int:
        return self._flags

    @property
    def key(self) -> bytes | None:
        return self._key

    @property
    def value(self) -> bytes:
        return self._value

    @property
    def encoded_headers(self) -> bytes | None:
        return self._encoded_headers


def _is_bytes_or_none(value: object) -> bool:
    return value is None or isinstance(value, bytes)


def _refuse_record_as_origin(origin: object) -> None:
    """A chain of records would be freed by nested calls, and overflow the stack in the C twin."""
    if isinstance(origin, Record):
        raise TypeError("origin must not be a record")


def _is_record_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Record)


def _byte(value: int) -> int:
    number = as_int(value)
    if not 0 <= number <= 0xFF:
        raise OverflowError("must fit in a byte")
    return number


def decode(buffer: Buffer, origin: object, record_type: type[Record], verify: bool) -> tuple[int, int, list[Record]]:
    run = _RecordRun(_readable(buffer), verify=verify)
    if not _is_record_type(record_type):
        raise TypeError("record_type must be a subclass of Record")
    _refuse_record_as_origin(origin)
    records = [
        # Around __new__ and __init__ of the type: they would check again what is known to be valid.
        Record.__new__(
            record_type,
            origin,
            stored.offset,
            stored.timestamp,
            stored.priority,
            stored.flags,
            bytes(stored.key) if stored.has_key else None,
            bytes(stored.value),
            bytes(stored.headers) or None,
        )
        for stored in run
    ]
    return int(run.fault), run.position, records


# encode


def _snapshot(given: Iterable[Any], name: str, count: int) -> tuple[Any, ...]:
    items = tuple(given)
    if len(items) != count:
        raise ValueError(0, f"{name}: {len(items)} given for {count} values")
    return items


def _number(value: object, index: int, name: str, lowest: int, highest: int, rule: str) -> int:
    if not isinstance(value, int):
        raise ValueError(index, f"{name} must be an int, got {type(value).__name__}")
    if not lowest <= value <= highest:
        raise ValueError(index, rule)
    return value


def _flags(value: object, index: int) -> int:
    return _number(value, index, "flags", 0, FLAGS_KNOWN, "unknown flags")


def _priority(value: object, index: int) -> int:
    return _number(value, index, "priority", Priority.CRITICAL, Priority.BACKGROUND, "priority must be 0 to 4")


def _timestamp(value: object, index: int) -> int:
    return _number(value, index, "timestamp", TIMESTAMP_MIN, OFFSET_MAX, "timestamp must fit in 64 bits")


def _bytes(value: Any, index: int, field: str) -> memoryview:
    if value is None:
        return memoryview(b"")
    try:
        view = memoryview(value)
    except TypeError:
        raise ValueError(index, f"{field} must be bytes, got {type(value).__name__}") from None
    if not view.c_contiguous:
        raise ValueError(index, f"{field} must be contiguous")
    return view


def _header_bytes(headers: Any, index: int) -> bytes:
    if headers is None:
        return b""
    if not isinstance(headers, dict | list):
        raise ValueError(index, "headers must be a dict or a list of pairs")
    try:
        return encode_headers(dict(dict.items(headers)) if isinstance(headers, dict) else [*headers])
    except MessageTooLarge as error:
        raise OverflowError(index, "headers", error.size, error.limit) from None
    except InvalidMessage as error:
        raise ValueError(index, error.reason) from None


def _encode_one(index: int, value: Any, key: Any, headers: Any, priority: Any, timestamp: Any, flags: Any) -> bytes:
    flags = _flags(flags, index) & ~(_HAS_HEADERS | _EMPTY_KEY)
    priority = _priority(priority, index)
    timestamp = _timestamp(timestamp, index)
    if flags & _COMMIT and not flags & _CONTROL:
        raise ValueError(index, "COMMIT without CONTROL")
    value_view, key_view = _bytes(value, index, "value"), _bytes(key, index, "key")
    if value is None:
        flags |= _TOMBSTONE
    if value_view.nbytes > _ENCODABLE_VALUE_BYTES_MAX:
        raise OverflowError(index, "value", value_view.nbytes, _ENCODABLE_VALUE_BYTES_MAX)
    if value_view.nbytes and flags & _TOMBSTONE:
        raise ValueError(index, "a tombstone has no value")
    if key_view.nbytes > KEY_BYTES_MAX:
        raise OverflowError(index, "key", key_view.nbytes, KEY_BYTES_MAX)
    if key is not None and not key_view.nbytes:
        flags |= _EMPTY_KEY
    header_bytes = _header_bytes(headers, index)
    if header_bytes:
        flags |= _HAS_HEADERS
    sizes = key_view.nbytes, value_view.nbytes, len(header_bytes)
    header = HEADER.pack(MAGIC, VERSION, flags, 0, 0, timestamp, priority, 0, *sizes)
    return b"".join((header, key_view, value_view, header_bytes))


def encode(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Headers | Sequence[HeaderPair] | None] | None,
    priorities: int | Sequence[int],
    timestamps: int | Sequence[int],
    flags: int | Sequence[int],
) -> bytearray:
    values = tuple(values)
    count = len(values)
    columns: list[tuple[Any, ...]] = [values]
    for name, given in (("keys", keys), ("headers", headers)):
        columns.append((None,) * count if given is None else _snapshot(given, name, count))
    for name, numbers, check in (
        ("priorities", priorities, _priority),
        ("timestamps", timestamps, _timestamp),
        ("flags", flags, _flags),
    ):
        columns.append((check(numbers, 0),) * count if isinstance(numbers, int) else _snapshot(numbers, name, count))
    records = bytearray()
    for index, message in enumerate(zip(*columns, strict=True)):
        records += _encode_one(index, *message)
    return records


# columns

_OFFSET, _TIMESTAMP, _PRIORITY, _KEY, _VALUE, _DELIVER_AT, _HEADERS = (1 << bit for bit in range(7))


def _machine_order(code: str, numbers: Iterable[int]) -> bytearray:
    return bytearray(array(code, numbers).tobytes())


def _validity(bits: Sequence[bool]) -> bytearray:
    bitmap = bytearray((len(bits) + 7) // 8)
    for row, valid in enumerate(bits):
        bitmap[row // 8] |= valid << row % 8
    return bitmap


def _binary(items: Sequence[Buffer]) -> tuple[bytearray, bytearray]:
    offsets = array("i", [0])
    data = bytearray()
    for item in items:
        data += item
        offsets.append(len(data))
    return bytearray(offsets.tobytes()), data


def _check_fits(what: str, *sizes: int) -> None:
    if max(sizes) > _COLUMN_BYTES_MAX:
        raise ValueError(f"{what}: more than 2**31 - 1 bytes for one column")


def _key_columns(rows: Sequence[_Stored]) -> list[bytearray]:
    keys = [row.key for row in rows]
    return [_validity([row.has_key for row in rows]), *_binary(keys)]


def _value_columns(rows: Sequence[_Stored]) -> list[bytearray]:
    return [_validity([not row.flags & _TOMBSTONE for row in rows]), *_binary([row.value for row in rows])]


def _deliver_at_columns(rows: Sequence[_Stored]) -> list[bytearray]:
    times = [row.deliver_at for row in rows]
    return [
        _validity([time is not None for time in times]),
        _machine_order("q", (0 if time is None else time // 1000 for time in times)),
    ]


def _header_columns(headers: Sequence[list[tuple[bytes, bytes | None]]]) -> list[bytearray]:
    offsets = array("i", [0])
    for pairs in headers:
        offsets.append(offsets[-1] + len(pairs))
    names = [name for pairs in headers for name, _ in pairs]
    values = [value for pairs in headers for _, value in pairs]
    texts = [value or b"" for value in values]
    validity = _validity([value is not None for value in values])
    return [bytearray(offsets.tobytes()), *_binary(names), validity, *_binary(texts)]


def columns(buffer: Buffer, wanted: int, verify: bool) -> tuple[int, int, tuple[Any, ...]]:
    run = _RecordRun(_readable(buffer), verify=verify)
    wanted = _natural(wanted)
    rows = list(run)
    headers = [split_headers(bytes(row.headers)) for row in rows] if wanted & _HEADERS else []
    if wanted & _KEY:
        _check_fits("keys", sum(len(row.key) for row in rows))
    if wanted & _VALUE:
        _check_fits("values", sum(len(row.value) for row in rows))
    if wanted & _HEADERS:
        _check_fits(
            "headers",
            sum(map(len, headers)),
            sum(len(name) for pairs in headers for name, _ in pairs),
            sum(len(value or b"") for pairs in headers for _, value in pairs),
        )
    filled = (
        _machine_order("q", (row.offset for row in rows)) if wanted & _OFFSET else bytearray(),
        _machine_order("q", (row.timestamp // 1000 for row in rows)) if wanted & _TIMESTAMP else bytearray(),
        _machine_order("i", (row.priority for row in rows)) if wanted & _PRIORITY else bytearray(),
        *(_key_columns(rows) if wanted & _KEY else _nothing(3)),
        *(_value_columns(rows) if wanted & _VALUE else _nothing(3)),
        *(_deliver_at_columns(rows) if wanted & _DELIVER_AT else _nothing(2)),
        *(_header_columns(headers) if wanted & _HEADERS else _nothing(6)),
    )
    return int(run.fault), run.position, (len(rows), *filled)


def _nothing(count: int) -> list[bytearray]:
    return [bytearray() for _ in range(count)]


# filter and latest


def _hidden_ranges(hidden: Buffer) -> list[tuple[int, int]]:
    raw = _readable(hidden)
    if len(raw) % 16:
        raise ValueError("hidden must hold pairs of int64")
    bounds = array("q", bytes(raw))
    if any(later < earlier for earlier, later in pairwise(bounds)):
        raise ValueError("hidden must be sorted and disjoint")
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _is_superseded(stored: _Stored, latest: dict[bytes, int]) -> bool:
    last = dict.get(latest, bytes(stored.key), -1)
    if not isinstance(last, int):
        raise TypeError("latest must map bytes to int")
    return last > stored.offset


def filter(
    buffer: Buffer,
    from_offset: int,
    to_offset: int,
    hide_flags: int,
    hidden: Buffer,
    due: int,
    latest: dict[bytes, int] | None,
    tombstones_before: int,
) -> tuple[int, int, bytearray]:
    run = _RecordRun(_readable(buffer), verify=False)
    from_offset, to_offset, hide_flags = _int64(from_offset), _int64(to_offset), _natural(hide_flags)
    due, tombstones_before = _int64(due), _int64(tombstones_before)
    table = None if latest is None else _dict(latest)
    ranges = _hidden_ranges(hidden)

    def is_hidden(stored: _Stored) -> bool:
        if not from_offset <= stored.offset < to_offset or stored.flags & hide_flags:
            return True
        if any(first <= stored.offset < end for first, end in ranges):
            return True
        if due != OFFSET_MAX and (deliver_at := stored.deliver_at) is not None and deliver_at > due:
            return True
        if stored.flags & _CONTROL:
            return False
        if stored.flags & _TOMBSTONE and stored.timestamp < tombstones_before:
            return True
        return table is not None and stored.has_key and _is_superseded(stored, table)

    visible = bytearray()
    for stored in run:
        if not is_hidden(stored):
            visible += stored.record
    return int(run.fault), run.position, visible


def strip(buffer: Buffer, keep: int) -> tuple[int, int, bytearray]:
    view = _readable(buffer)
    keep = _natural(keep)
    stripped = bytearray()
    at = 0
    while at < len(view):
        stored = _read_stored(view, at, verify=False)
        if isinstance(stored, RecordFault):
            return int(stored), at, stripped
        key = stored.key if keep & _KEEP_KEY else b""
        value = stored.value if keep & _KEEP_VALUE else b""
        headers = stored.headers if keep & _KEEP_HEADERS else b""
        flags = stored.flags & ~(
            (0 if keep & _KEEP_KEY else _EMPTY_KEY)
            | (0 if keep & _KEEP_VALUE else _COMPRESSED)
            | (0 if headers else _HAS_HEADERS)
        )
        lengths = len(key), len(value), len(headers)
        fields = MAGIC, VERSION, flags, 0, stored.offset, stored.timestamp, stored.priority, 0, *lengths
        record = bytearray(HEADER.pack(*fields)) + key + value + headers
        _CRC.pack_into(record, CRC_POSITION, _record_crc(memoryview(record)))
        stripped += record
        at += len(stored.record)
    return int(RecordFault.NONE), at, stripped


def latest(buffer: Buffer, table: dict[bytes, int]) -> tuple[int, int]:
    run = _RecordRun(_readable(buffer), verify=False)
    _dict(table)
    for stored in run:
        if stored.has_key and not stored.flags & _CONTROL:
            dict.__setitem__(table, bytes(stored.key), stored.offset)
    return int(run.fault), run.position


def waits(buffer: Buffer, now: int) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    run = _RecordRun(_readable(buffer), verify=False)
    counts, waited = [0] * len(Priority), [0] * len(Priority)
    for stored in run:
        if not stored.flags & _CONTROL:
            since = max(stored.timestamp, stored.deliver_at if stored.deliver_at is not None else stored.timestamp)
            counts[stored.priority] += 1
            waited[stored.priority] = (waited[stored.priority] + max(0, now - since) // 1000) % 2**64
    return int(run.fault), run.position, tuple(counts), tuple(waited)


# outline and select


def _read_rising(buffer: memoryview, at: int, expected: int) -> _Stored | RecordFault:
    """As `_read_stored` without the crc; an offset below `expected` is a fault too."""
    stored = _read_stored(buffer, at, verify=False)
    if isinstance(stored, _Stored) and stored.offset < expected:
        return RecordFault.OFFSET
    return stored


class _Outline:
    """Collects the facts of `kernel.Outline`, which says what the fields mean."""

    def __init__(self) -> None:
        self.count = 0
        self.first_offset = self.last_offset = -1
        self.lanes = tuple(array("Q") for _ in Priority)
        self.control = array("Q")
        self.delayed = bytearray()
        self.expiring = bytearray()
        self.holes = array("Q")
        self.addressed = bytearray()

    def add(self, stored: _Stored, at: int) -> None:
        if not self.count:
            self.first_offset = stored.offset
        elif stored.offset > self.last_offset + 1:
            self.holes.extend((self.last_offset + 1, stored.offset))
        self.count += 1
        self.last_offset = stored.offset
        if stored.flags & _CONTROL:
            self.control.append(stored.offset)
        else:
            self.note(stored, at)

    def note(self, stored: _Stored, at: int) -> None:
        if stored.priority != Priority.NORMAL:
            self.lanes[stored.priority].append(stored.offset)
        if (deliver_at := stored.deliver_at) is not None:
            self.delayed += _DELAYED_ENTRY.pack(stored.offset, deliver_at, crc32c(stored.key, 0), stored.priority)
        if (expires_at := stored.expires_at) is not None:
            self.expiring += _EXPIRING_ENTRY.pack(stored.offset, expires_at)
        if (group := stored.for_group) is not None:
            self.addressed += _ADDRESSED_ENTRY.pack(stored.offset, at + group[0], group[1])

    def stop(self, fault: RecordFault, at: int) -> OutlineTuple:
        critical, high, normal, low, background = (lane.tobytes() for lane in self.lanes)
        return (
            int(fault),
            at,
            self.count,
            self.first_offset,
            self.last_offset,
            (critical, high, normal, low, background),
            self.control.tobytes(),
            bytes(self.delayed),
            bytes(self.expiring),
            self.holes.tobytes(),
            bytes(self.addressed),
        )


def outline(buffer: Buffer) -> OutlineTuple:
    view = _readable(buffer)
    found = _Outline()
    at = 0
    while at < len(view):
        stored = _read_rising(view, at, found.last_offset + 1)
        if isinstance(stored, RecordFault):
            return found.stop(stored, at)
        found.add(stored, at)
        at += len(stored.record)
    return found.stop(RecordFault.NONE, at)


def _wanted_offsets(raw: memoryview) -> "array[int]":
    if len(raw) % 8:
        raise ValueError("wanted must hold uint64")
    offsets = array("Q", bytes(raw))
    if any(later < earlier for earlier, later in pairwise(offsets)):
        raise ValueError("wanted must be sorted")
    return offsets


def select(buffer: Buffer, wanted: "Buffer | array[int]", max_bytes: int) -> tuple[int, int, bytearray, int, int, int]:
    view, raw = _readable(buffer), _readable(wanted)
    max_bytes = _natural(max_bytes)
    offsets = _wanted_offsets(raw)
    records = bytearray()
    fault = RecordFault.NONE
    at = following = count = flags = expected = 0
    last_offset = -1
    while at < len(view) and following < len(offsets):
        stored = _read_rising(view, at, expected)
        if isinstance(stored, RecordFault):
            fault = stored
            break
        while following < len(offsets) and offsets[following] < stored.offset:
            following += 1
        if following == len(offsets):
            break
        if offsets[following] == stored.offset:
            if count and len(records) + len(stored.record) > max_bytes:
                break
            records += stored.record
            count += 1
            last_offset = stored.offset
            flags |= stored.flags
            following += 1
        expected = stored.offset + 1
        at += len(stored.record)
    return int(fault), at, records, count, last_offset, flags
