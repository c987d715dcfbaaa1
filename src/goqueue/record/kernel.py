"""The record kernel: everything that is done to each record of a batch.

No module above this one runs a Python statement once per record. There are two kernels with one behavior, in C and in
Python, and this module chooses: C where it was built, Python where it was not or where `GOQUEUE_KERNEL=python` is set.
It gives names and types to their raw results, and turns faults into errors.

Buffers may come from any peer or disk. Both kernels check lengths, counts and flags before they use them, and never
read or write outside of the buffer.
"""

import os
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from goqueue.errors import CorruptRecord, InvalidBatch, InvalidConfig, InvalidMessage, MessageTooLarge
from goqueue.record import _kernel_py
from goqueue.record.header import (
    FLAGS_FROM_PRODUCERS,
    OFFSET_MAX,
    TIMESTAMP_MIN,
    VALUE_BYTES_MAX,
    Buffer,
    Priority,
    RecordFault,
)
from goqueue.record.headers import HeaderPair, Headers

NEVER: Final = OFFSET_MAX
"""The value of `next_index_at` that makes no index entries."""


def _choose() -> ModuleType:
    wanted = os.environ.get("GOQUEUE_KERNEL", "auto")
    if wanted not in ("auto", "c", "python"):
        raise InvalidConfig("GOQUEUE_KERNEL", wanted, "must be auto, c or python")
    if wanted == "python":
        return _kernel_py
    try:
        from goqueue.record import _kernel
    except ImportError:
        if wanted == "c":
            raise
        return _kernel_py
    return _kernel


_impl: Any = _choose()
IMPLEMENTATION: Final[str] = "python" if _impl is _kernel_py else "c"
"""The kernel that runs: `c` or `python`."""

RecordBase: Any = _impl.Record
"""The class of decoded records: origin, offset, timestamp_ns, priority_code, flags, key, value, encoded_headers."""

R = TypeVar("R")


class Summary(NamedTuple):
    """The contents of a run of whole, valid records.

    Positions count from the start of the buffer. The index entries have the format of the index files: 16 bytes each,
    (offset, position in the file) and (timestamp, offset), big-endian.
    """

    record_count: int
    start: int  # where the first counted record begins
    end: int  # where the last counted record ends; equals `start` when there is none
    first_offset: int  # -1 when there is none, likewise the next three
    last_offset: int
    first_timestamp: int
    last_timestamp: int
    flags: int  # all flags of the counted records, or-ed
    priorities: int  # bit p is set when a counted record has priority p
    offset_entries: bytes
    time_entries: bytes
    next_index_at: int
    fault: RecordFault
    fault_position: int  # where the scan stopped: at the faulty record, or after the last one
    positions: bytes  # uint32 in machine order, one per counted record, if requested
    later_flags: int  # all flags of the counted records but the first, or-ed


class RecordColumns(NamedTuple):
    """Records as buffers in Arrow's layout, which Arrow takes over without a copy.

    Integers are in machine order; validity bitmaps are least significant bit first; binary columns are int32 offsets
    (count + 1) and data. RecordColumns that were not requested are empty.
    """

    row_count: int
    offsets: bytearray  # int64
    timestamps_us: bytearray  # int64, microseconds, rounded down
    priorities: bytearray  # int32
    key_validity: bytearray
    key_offsets: bytearray
    key_data: bytearray
    value_validity: bytearray  # a tombstone has no value
    value_offsets: bytearray
    value_data: bytearray
    deliver_at_validity: bytearray
    deliver_at_us: bytearray  # int64
    header_offsets: bytearray  # int32, count + 1: how many headers came before each record
    header_name_offsets: bytearray
    header_name_data: bytearray
    header_value_validity: bytearray
    header_value_offsets: bytearray
    header_value_data: bytearray


class Outline(NamedTuple):
    """The records of a run that delivery has to treat specially; ordinary records take no bytes.

    Records of normal priority are not listed: they are the offsets in [first_offset, last_offset] that are in no other
    lane, in `control` or in `holes`. Control records are in no lane, nor delayed, nor expiring. Numbers are in machine
    order without padding, entries are sorted by offset.
    """

    record_count: int
    first_offset: int  # -1 when there is none, likewise the next one
    last_offset: int
    lanes: tuple[bytes, bytes, bytes, bytes, bytes]  # uint64 offsets by priority; empty for normal
    control: bytes  # uint64 offsets
    delayed: bytes  # =QqII: offset, deliver_at_ns, crc32c of the key (0 without one), priority; also in their lanes
    expiring: bytes  # =Qq: offset, expires_at_ns
    holes: bytes  # =QQ: offsets [first, end) that are missing between first_offset and last_offset
    addressed: Sequence[tuple[int, bytes]]  # offsets of messages for one group only, and its name


class Selected(NamedTuple):
    """Copies of records that were requested by offset."""

    records: bytearray
    record_count: int
    last_offset: int  # -1 when there is none
    flags: int  # all flags of the copied records, or-ed


COLUMN_BITS: Final[Mapping[str, int]] = {
    name: 1 << bit
    for bit, name in enumerate(("offset", "timestamp", "priority", "key", "value", "deliver_at", "headers"))
}

PART_BITS: Final[Mapping[str, int]] = {"key": 1, "value": 2, "headers": 4}


_ADDRESSED: Final = struct.Struct("=QQQ")


def encode(
    values: Sequence[Buffer | None],
    *,
    keys: Sequence[Buffer | None] | None = None,
    headers: Sequence[Headers | Sequence[HeaderPair] | None] | None = None,
    priorities: int | Sequence[int] = Priority.NORMAL,
    timestamps: int | Sequence[int] = 0,
    flags: int | Sequence[int] = 0,
) -> bytearray:
    """Records for the messages, with offset and crc zero, which `stamp` fills in.

    A value of None makes a tombstone; a key of None is no key, and differs from an empty one. Headers are a dict or a
    list of pairs. A single number applies to all messages.
    """
    try:
        records: bytearray = _impl.encode(values, keys, headers, priorities, timestamps, flags)
    except OverflowError as error:
        if len(error.args) != 4:
            raise
        index, field, size, limit = error.args
        raise MessageTooLarge(field, size, limit, index=index) from None
    except ValueError as error:
        if len(error.args) != 2:
            raise
        index, reason = error.args
        raise InvalidMessage(f"message {index}: {reason}", index=index) from None
    return records


def stamp(
    buffer: bytearray | memoryview,
    *,
    first_offset: int,
    timestamp: int,
    flags_allowed: int = FLAGS_FROM_PRODUCERS,
    value_bytes_max: int = VALUE_BYTES_MAX,
    position: int = 0,
    next_index_at: int = NEVER,
) -> Summary:
    """Turn a batch of a producer into stored records: validate all of it, assign offsets and time, write the crcs.

    `position` is where the buffer will be in its file. One pass validates and writes, so a batch that is refused is
    half stamped: the caller must not use it again.
    """
    summary = _summary(
        _impl.stamp(buffer, first_offset, timestamp, flags_allowed, value_bytes_max, position, next_index_at)
    )
    if summary.fault:
        raise InvalidBatch(describe(summary.fault), summary.fault_position)
    if not summary.record_count:
        raise InvalidBatch("no records", 0)
    return summary


def scan(
    buffer: Buffer,
    *,
    min_offset: int = 0,
    dense: bool = False,
    from_offset: int = 0,
    to_offset: int = OFFSET_MAX,
    position: int = 0,
    next_index_at: int = NEVER,
    positions: bool = False,
) -> Summary:
    """Validate records up to the first fault, and summarize those with offsets in [from_offset, to_offset).

    Offsets must rise and be at least `min_offset`; with `dense`, they are consecutive and start with `min_offset`.
    Records below `from_offset` are validated and skipped; the scan ends before the first record at or above
    `to_offset`.
    """
    return _summary(_impl.scan(buffer, min_offset, dense, from_offset, to_offset, position, next_index_at, positions))


def resync(buffer: Buffer, start: int, *, min_offset: int, max_offset: int) -> int:
    """The position of the next valid record after damage at `start`, or -1.

    Its offset is in [min_offset, max_offset). A user may store a record inside a value, so a valid record alone proves
    nothing. Records that lead to the end of the buffer without a break are proven to be the log, if the buffer ends
    where a record is known to begin. Records between the damage and those count if their offsets fit below them, so a
    second damaged place does not hide them. The search is bounded; hostile bytes can make it end with -1.
    """
    found: int = _impl.resync(buffer, start, min_offset, max_offset)
    return found


def decode(buffer: Buffer, origin: object, record_type: type[R], *, verify: bool = True) -> list[R]:
    """One `record_type` (a subclass of `RecordBase`) per record of a buffer that holds only whole records."""
    fault, position, records = _impl.decode(buffer, origin, record_type, verify)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    decoded: list[R] = records
    return decoded


def columns(buffer: Buffer, *names: str, verify: bool = True) -> RecordColumns:
    """The named columns (of `COLUMN_BITS`; without names, all of them) of a buffer that holds only whole records."""
    wanted = sum(COLUMN_BITS[name] for name in set(names or COLUMN_BITS))
    fault, position, filled = _impl.columns(buffer, wanted, verify)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    return RecordColumns(*filled)


def filter(
    buffer: Buffer,
    *,
    from_offset: int = 0,
    to_offset: int = OFFSET_MAX,
    hide_flags: int = 0,
    hidden: Buffer = b"",
    due: int = OFFSET_MAX,
    latest: dict[bytes, int] | None = None,
    tombstones_before: int = TIMESTAMP_MIN,
) -> bytearray:
    """A copy of the visible records, in their order.

    Hidden are records outside [from_offset, to_offset), with any of `hide_flags`, inside `hidden` (pairs of
    int64 in machine order, [first, end), sorted and disjoint), with a `gq-deliver-at` after `due`; with
    `latest`, records whose key has a larger offset there; and tombstones stamped before `tombstones_before`.
    The last two never hide control records. The buffer holds whole records; their crcs are not checked.
    """
    fault, position, visible = _impl.filter(
        buffer, from_offset, to_offset, hide_flags, hidden, due, latest, tombstones_before
    )
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    copied: bytearray = visible
    return copied


def strip(buffer: Buffer, *parts: str) -> bytearray:
    """A copy of the records without the named parts (of `PART_BITS`), as if they had been published without them.

    The copies are whole records with crcs of their own. The buffer holds whole records; their crcs are not checked.
    """
    keep = sum(bit for name, bit in PART_BITS.items() if name not in parts)
    fault, position, stripped = _impl.strip(buffer, keep)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    left: bytearray = stripped
    return left


def latest(buffer: Buffer, table: dict[bytes, int]) -> None:
    """Note in `table` the last offset of each key; control records and records without a key are skipped."""
    fault, position = _impl.latest(buffer, table)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)


def waits(buffer: Buffer, now_ns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By priority, the number of messages, and the sum of the microseconds that they have waited since they were stored
    or, if they were delayed, since they were due. Crcs are not checked.
    """
    fault, position, counts, waited_us = _impl.waits(buffer, now_ns)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    return counts, waited_us


def outline(buffer: Buffer) -> Outline:
    """The records that delivery has to treat specially, found in one pass.

    The buffer holds whole records with rising offsets; their crcs are not checked. A malformed time in `gq-deliver-at`
    or `gq-expires-at` is ignored, and so is an empty `gq-for-group`.
    """
    fault, position, *fields, addressed = _impl.outline(buffer)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    if not addressed:
        return Outline._make([*fields, ()])
    view = memoryview(buffer)
    names = [(offset, bytes(view[at : at + size])) for offset, at, size in _ADDRESSED.iter_unpack(addressed)]
    return Outline._make([*fields, names])


def select(buffer: Buffer, wanted: "Buffer | array[int]", *, max_bytes: int) -> Selected:
    """A copy of the wanted records, in their order, as many as fit in `max_bytes` and at least one.

    `wanted` holds offsets, uint64 in machine order, sorted. The buffer holds whole records with rising offsets; their
    crcs are not checked, and nothing after the last wanted record is read.
    """
    fault, position, *fields = _impl.select(buffer, wanted, max_bytes)
    if fault:
        raise CorruptRecord(describe(RecordFault(fault)), position)
    return Selected(*fields)


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of the data, continued from `crc`."""
    value: int = _impl.crc32c(data, crc)
    return value


extend_crc32c: Final[Callable[[Buffer, int], int]] = _impl.crc32c
"""The same without a default and without a Python call in between: every frame needs it two or three times."""


def murmur2(key: bytes) -> int:
    """The murmur2 hash of 32 bits, unsigned, that Kafka's clients choose partitions with."""
    hashed: int = _impl.murmur2(key)
    return hashed


def describe(fault: RecordFault) -> str:
    """The text of a fault, as errors and reports show it."""
    return _WORDS[fault]


_WORDS: Final = {
    RecordFault.NONE: "no fault",
    RecordFault.TRUNCATED: "the record is cut off",
    RecordFault.MAGIC: "wrong magic",
    RecordFault.VERSION: "unknown version",
    RecordFault.UNKNOWN_FLAGS: "flags that this version does not know",
    RecordFault.FLAGS: "flags not allowed or contradicting the lengths",
    RecordFault.PRIORITY: "priority over 4",
    RecordFault.RESERVED: "reserved byte set",
    RecordFault.LENGTH: "value over the limit",
    RecordFault.HEADERS: "malformed headers",
    RecordFault.CRC: "checksum mismatch",
    RecordFault.OFFSET: "offset out of order",
}


def _summary(raw: tuple[Any, ...]) -> Summary:
    summary = Summary(*raw)
    return summary._replace(fault=RecordFault(summary.fault)) if summary.fault else summary
