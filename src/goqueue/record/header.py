"""The record: byte map, flags, limits, and the ways in which one can be wrong.

Every record opens with a 34-byte header, big-endian, followed by key, value and headers:

    0     2   3     4     8        16          24   25   26     28      32     34
    +-----+---+-----+-----+--------+-----------+----+----+------+-------+------+-----+-------+---------+
    | GQ  |ver|flags| crc | offset | timestamp |prio| 0  | klen | vlen  | hlen | key | value | headers |
    +-----+---+-----+-----+--------+-----------+----+----+------+-------+------+-----+-------+---------+

The crc is CRC-32C of the whole record except the crc field itself, so that every single flipped bit
is caught. A record is canonical: there is one way to write it, and any deviation is a `RecordFault`.
Headers are count(2), then keylen(2) key vallen(2) value for each, filling `hlen` exactly. An empty key and no key have
the same `klen`, so a flag tells them apart.

docs/reference/protocol.md has this format with test vectors, for clients in other languages.
"""

import struct
from enum import IntEnum
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#                       magic ver flags crc offset timestamp prio reserved klen vlen hlen
HEADER = struct.Struct(">2s   B   B     I   Q      q         B    B        H    I    H")
HEADER_BYTES = 34
assert HEADER.size == HEADER_BYTES

MAGIC = b"GQ"
VERSION = 1
CRC_POSITION = 4
CRC_END = 8
OFFSET_POSITION = 8

INDEX_STRIDE_BYTES = 4096
"""A record gets an index entry if it starts at least this many bytes after the last one that has one."""

KEY_BYTES_MAX = 0xFFFF  # klen and hlen have two bytes: 65,535, one less than 64 KiB
HEADERS_BYTES_MAX = 0xFFFF
VALUE_BYTES_MAX = 16 * 1024 * 1024

OFFSET_MAX = 2**63 - 1
"""Offsets are unsigned on disk but stay below 2**63, so that Arrow and Java can hold them."""
TIMESTAMP_MIN = -(2**63)


class Flags(IntEnum):
    """The kind of a record: bits, to be or-ed.

    Not an `IntFlag`: its `&` takes longer than to decode a message.
    """

    COMPRESSED = 0x01
    HAS_HEADERS = 0x02  # set exactly when hlen > 0
    TOMBSTONE = 0x04  # deletes its key when the log is compacted; has no value
    CONTROL = 0x08  # written by the broker for itself, never sent to a consumer
    COMMIT = 0x10  # on a control record: commit, otherwise abort
    TRANSACTIONAL = 0x20
    EMPTY_KEY = 0x40  # the key is there, and empty; without the flag, a klen of 0 is no key


FLAGS_KNOWN = 0x7F
FLAGS_FROM_PRODUCERS = Flags.COMPRESSED | Flags.HAS_HEADERS | Flags.TOMBSTONE | Flags.EMPTY_KEY
"""The flags that a producer may set outside of transactions; the broker sets the others."""


class Priority(IntEnum):
    """The lane of a message. Lower is served first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4


class RecordFault(IntEnum):
    """Why a run of records ends. The kernels check for them in this order, so both report the same one."""

    NONE = 0  # the buffer, or the requested part of it, ends after a whole record
    TRUNCATED = 1  # fewer bytes are left than the header, or the lengths in it, need
    MAGIC = 2
    VERSION = 3
    UNKNOWN_FLAGS = 4  # a later version may give them a meaning
    FLAGS = 5  # not allowed here, or contradicting the lengths or each other
    PRIORITY = 6
    RESERVED = 7
    LENGTH = 8  # a value over the limit
    HEADERS = 9  # the header count, or a length in the headers, is wrong
    CRC = 10
    OFFSET = 11  # not larger than the one before, or not the expected one


def first_record(records: Buffer) -> memoryview:
    """The first record of a buffer that holds whole records."""
    *_, key_size, value_size, headers_size = HEADER.unpack_from(records)
    return memoryview(records)[: HEADER_BYTES + int(key_size) + int(value_size) + int(headers_size)]
