"""What is written is read again; what is damaged is noticed, costs its block, and is never taken for covered."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.delivery.delay_index import (
    BLOCK_ENTRIES,
    ENTRY_BYTES,
    HEADER_BYTES,
    Block,
    Decoded,
    DelayState,
    decode,
    encode,
    header,
)
from goqueue.delivery.delay_table import DelayColumns

Entry = tuple[int, int, int, int]

entries = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    max_size=20,
)
parts = st.lists(st.tuples(st.sampled_from(DelayState), entries, st.integers(0, 2**64 - 1)), max_size=8)


def columns(entries: list[Entry]) -> DelayColumns:
    found = DelayColumns.empty()
    for entry in entries:
        found.append(*entry)
    return found


def of(first: int, count: int) -> DelayColumns:
    return columns([(offset, offset * 10, offset % 7, offset % 5) for offset in range(first, first + count)])


@given(parts, st.integers(0, 2**64 - 1))
def test_what_is_written_is_read(parts: list[tuple[DelayState, list[Entry], int]], covered: int) -> None:
    raw = header(covered) + b"".join(encode(state, columns(entries), upto) for state, entries, upto in parts)

    blocks = [Block(state, columns(entries)) for state, entries, _ in parts if entries]
    assert decode(raw) == Decoded(blocks, max([covered, *(upto for *_, upto in parts)]), True)


@given(parts, st.data())
def test_what_is_cut_off_costs_the_tail(parts: list[tuple[DelayState, list[Entry], int]], data: st.DataObject) -> None:
    raw = header(0) + b"".join(encode(state, columns(entries), upto) for state, entries, upto in parts)
    size = data.draw(st.integers(0, len(raw) - 1))

    cut = decode(raw[:size])

    ends = [HEADER_BYTES]
    for state, entries, upto in parts:
        ends.append(ends[-1] + len(encode(state, columns(entries), upto)))
    whole = [part for part, end in zip(parts, ends[1:], strict=True) if end <= size]
    assert cut.blocks == [Block(state, columns(entries)) for state, entries, _ in whole if entries]
    assert cut.covered_offset == max([0, *(upto for *_, upto in whole)])
    assert cut.is_whole == (size in ends)


@given(st.data())
def test_a_flipped_bit_costs_its_block_and_what_is_covered_behind_it(data: st.DataObject) -> None:
    blocks = [encode(DelayState.PENDING, of(10 * number, 3), 10 * (number + 1)) for number in range(4)]
    raw = bytearray(header(0) + b"".join(blocks))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8

    found = decode(bytes(raw))

    assert not found.is_whole
    if bit // 8 < HEADER_BYTES:
        assert found == Decoded([], 0, False)
    else:
        hit = (bit // 8 - HEADER_BYTES) // len(blocks[0])
        assert [block.columns.offsets[0] for block in found.blocks] == [10 * n for n in range(4) if n != hit]
        assert found.covered_offset == 10 * hit


def test_a_hole_of_zeros_is_damage() -> None:
    blocks = [encode(DelayState.PENDING, of(10 * number, 3), 10 * (number + 1)) for number in range(3)]
    blocks[1] = bytes(len(blocks[1]))

    found = decode(header(5) + b"".join(blocks))

    assert [block.columns.offsets[0] for block in found.blocks] == [0, 20]
    assert (found.covered_offset, found.is_whole) == (10, False)


def test_a_write_that_stopped_in_the_middle_does_not_hide_the_next() -> None:
    first, torn, last = (encode(DelayState.PENDING, of(10 * number, 3), 10 * (number + 1)) for number in range(3))

    found = decode(header(0) + first + torn[:41] + last)

    assert [block.columns.offsets[0] for block in found.blocks] == [0, 20]
    assert (found.covered_offset, found.is_whole) == (10, False)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"G",
        bytes(16),
        bytes(1_000),
        b"not an index of ours, but long enough for one",
        b"GQD\x02" + header(0)[4:],
        b"\xff" * 64,
        header(0)[::-1] + encode(DelayState.PENDING, of(0, 3), 3),
    ],
)
def test_a_stranger_is_taken_for_nothing(raw: bytes) -> None:
    assert decode(raw) == Decoded([], 0, False)


@given(st.binary(max_size=300))
def test_garbage_behind_the_header_is_taken_for_nothing(garbage: bytes) -> None:
    assert decode(header(9) + garbage) == Decoded([], 9, not garbage)


def test_a_block_that_claims_to_be_huge_is_skipped() -> None:
    bad = b"GQDB" + bytes(12) + (2**32 - 1).to_bytes(4, "little") + bytes(12)

    found = decode(header(0) + bad + encode(DelayState.CANCELLED, of(1, 1), 7))

    assert [block.state for block in found.blocks] == [DelayState.CANCELLED]


def test_many_entries_are_cut_into_blocks_and_covered_one_by_one() -> None:
    count = 2 * BLOCK_ENTRIES + 5
    raw = header(0) + encode(DelayState.PENDING, of(100, count), 10**9)
    assert len(raw) == HEADER_BYTES + ENTRY_BYTES * (count + 3)

    whole = decode(raw)
    assert [len(block.columns.offsets) for block in whole.blocks] == [BLOCK_ENTRIES, BLOCK_ENTRIES, 5]
    assert whole.covered_offset == 10**9
    assert decode(raw[:-1]).covered_offset == 100 + 2 * BLOCK_ENTRIES
    assert decode(raw[: -5 * ENTRY_BYTES - ENTRY_BYTES - 1]).covered_offset == 100 + BLOCK_ENTRIES


def test_what_no_longer_waits_covers_nothing_before_its_end() -> None:
    raw = header(0) + encode(DelayState.DELIVERED, of(100, BLOCK_ENTRIES + 1), 10**9)

    assert decode(raw).covered_offset == 10**9
    assert decode(raw[:-1]).covered_offset == 0


def test_the_bytes_are_where_the_drawing_has_them() -> None:
    raw = encode(DelayState.EXPIRED, columns([(1, 2, 3, 4)]), 5)

    assert raw[:4] == b"GQDB"
    assert array("Q", raw[8:16])[0] == 5
    assert list(array("I", raw[16:32])) == [1, 3, 0, 0]
    assert list(array("Q", raw[32:48])) == [1, 2]
    assert list(array("I", raw[48:])) == [3, 4, 0, 0]
