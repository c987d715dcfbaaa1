"""The bytes of the delay index: every delayed message of a partition, and its state.

    0      3     4           8                16
    +------+-----+-----------+----------------+
    | GQD  | ver | crc       | covered offset |                      the header: covered without any entry
    +------+-----+-----------+----------------+
    | GQDB       | crc       | covered offset | count | state | avg|  a block header, before `count` entries
    +------------+-----------+----------------+-------+-------+----+
    | offset                 | deliver at     | key   | prio  | 0  |  an entry
    +------------------------+----------------+-------+-------+----+
    0                        8                16      20     24    32

The log is authoritative. The index is a hint, with which a restart need not read the whole log. All delayed records of
the log below the *covered offset* are in it, if they still wait. Blocks are appended on each change. The entries of a
block have the same new state, and one checksum (CRC-32C of the block after that field). A later entry of an offset
replaces the earlier ones.

The index is not synced, so a crash may lose its end or leave a hole. Blocks after a hole still count, but their covered
offset does not: an entry in the hole would be missing, and its message would be delivered too early. So the log is read
again from the covered offset of the last block before the hole.

`avg` is the average delay of messages in nanoseconds when the block was written; 0 if it is not known.

Numbers are in the byte order of the machine; a machine of the other order does not recognize the file and rewrites it.
"""

import struct
from array import array
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from goqueue.delivery.delay_table import DelayColumns
from goqueue.record.header import Buffer
from goqueue.record.kernel import crc32c

VERSION = 1
HEADER_BYTES = 16
ENTRY_BYTES = 32
BLOCK_ENTRIES = 4_096
"""The most entries of one block, which are lost together if it is damaged."""

_HEADER = struct.Struct("=3sBIQ")
_BLOCK = struct.Struct("=4sIQIIQ")
_MAGIC, _BLOCK_MAGIC = b"GQD", b"GQDB"
_CRC_END = 8
assert _HEADER.size == HEADER_BYTES
assert _BLOCK.size == ENTRY_BYTES


class DelayState(StrEnum):
    """The state of a delayed message."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_STATES = tuple(DelayState)


class Block(NamedTuple):
    """Messages with the same new state, sorted by offset."""

    state: DelayState
    columns: DelayColumns


class Decoded(NamedTuple):
    """The valid content of an index."""

    blocks: list[Block]
    covered_offset: int
    is_whole: bool
    """Whether nothing is damaged or missing before the end of the file; if not, the file has to be rewritten."""
    average_delay_ns: int = 0
    """From the last block that has it."""


def header(covered_offset: int) -> bytes:
    crc = crc32c(_HEADER.pack(_MAGIC, VERSION, 0, covered_offset))
    return _HEADER.pack(_MAGIC, VERSION, crc, covered_offset)


def encode(state: DelayState, columns: DelayColumns, covered_offset: int, *, average_delay_ns: int = 0) -> bytes:
    """Blocks with all of these entries; without entries one empty block, for its covered offset.

    Blocks of waiting messages raise the covered offset step by step, other blocks only with the last one.
    """
    offsets = columns.offsets
    chunks: list[Buffer] = []
    for start in range(0, max(len(offsets), 1), BLOCK_ENTRIES):
        end = start + BLOCK_ENTRIES
        covered = covered_offset
        if end < len(offsets):
            covered = min(covered, offsets[end]) if state is DelayState.PENDING else 0
        chunks += _block(state, columns.between(start, end), covered, average_delay_ns)
    return b"".join(chunks)


def _block(
    state: DelayState, columns: DelayColumns, covered_offset: int, average_delay_ns: int
) -> tuple[bytes, bytearray]:
    count = len(columns.offsets)
    body = bytearray(count * ENTRY_BYTES)
    if count:
        with memoryview(body) as view:
            view.cast("Q")[0::4] = memoryview(columns.offsets)
            view.cast("q")[1::4] = memoryview(columns.dues_ns)
            view.cast("I")[4::8] = memoryview(columns.key_crcs)
            view.cast("I")[5::8] = memoryview(columns.priorities)
    fields = (covered_offset, count, _STATES.index(state), average_delay_ns)
    crc = crc32c(body, crc32c(_BLOCK.pack(_BLOCK_MAGIC, 0, *fields)[_CRC_END:]))
    return _BLOCK.pack(_BLOCK_MAGIC, crc, *fields), body


def decode(raw: bytes) -> Decoded:
    """Everything in these bytes that is valid, in the order in which it was written."""
    covered_offset = _read_header(raw)
    if covered_offset is None:
        return Decoded([], 0, False)
    blocks: list[Block] = []
    is_whole = True
    position = HEADER_BYTES
    average_delay_ns = 0
    for start, end, covered, average_ns, block in _read_blocks(raw):
        average_delay_ns = average_ns or average_delay_ns
        is_whole = is_whole and start == position
        if block.columns.offsets:
            blocks.append(block)
        if is_whole:
            covered_offset = max(covered_offset, covered)
        position = end
    return Decoded(blocks, covered_offset, is_whole and position == len(raw), average_delay_ns)


def _read_header(raw: bytes) -> int | None:
    """The covered offset of the header; None if the header is damaged or of another format."""
    if len(raw) < HEADER_BYTES:
        return None
    covered_offset: int = _HEADER.unpack_from(raw)[3]
    return covered_offset if raw[:HEADER_BYTES] == header(covered_offset) else None


def _read_blocks(raw: bytes) -> Iterator[tuple[int, int, int, int, Block]]:
    """(start, end, covered offset, average delay, block) for each valid block, at any position."""
    view = memoryview(raw)
    start = raw.find(_BLOCK_MAGIC, HEADER_BYTES)
    while 0 <= start <= len(raw) - ENTRY_BYTES:
        _, crc, covered_offset, count, state, average_ns = _BLOCK.unpack_from(raw, start)
        body = start + ENTRY_BYTES
        end = body + count * ENTRY_BYTES
        is_valid = count <= BLOCK_ENTRIES and state < len(_STATES) and end <= len(raw)
        if is_valid and crc == crc32c(view[start + _CRC_END : end]):
            yield start, end, covered_offset, average_ns, Block(_STATES[state], _read_entries(view[body:end]))
            start = raw.find(_BLOCK_MAGIC, end)
        else:
            start = raw.find(_BLOCK_MAGIC, start + 1)


def _read_entries(body: memoryview) -> DelayColumns:
    columns = DelayColumns.empty()
    if body:
        words, halves = array("Q", bytes(body)), array("I", bytes(body))
        columns.offsets.extend(words[0::4])
        columns.dues_ns.frombytes(words[1::4].tobytes())
        columns.key_crcs.extend(halves[4::8])
        columns.priorities.extend(halves[5::8])
    return columns
