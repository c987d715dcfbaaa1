"""Copies of the records that are asked for by their offsets, and of no others."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import CorruptRecord
from goqueue.record.header import HEADER_BYTES, OFFSET_MAX, Flags
from tests.record.batches import stamped, valid_batches, with_fields

RECORD_BYTES = HEADER_BYTES + 1
TEN = stamped([b"a"] * 10, first_offset=100)
PLENTY = 1 << 30


def wanted(*offsets: int) -> "array[int]":
    return array("Q", offsets)


def offsets_in(kernel, records: bytearray) -> list[int]:
    return [record.offset for record in kernel.decode(records, None, kernel.RecordBase)]


def select(kernel, *offsets: int, max_bytes: int = PLENTY) -> list[int]:
    selected = kernel.select(TEN, wanted(*offsets), max_bytes=max_bytes)
    found = offsets_in(kernel, selected.records)
    assert (selected.record_count, selected.last_offset) == (len(found), found[-1] if found else -1)
    return found


def test_nothing_wanted_is_nothing_found(kernel):
    selected = kernel.select(TEN, b"", max_bytes=PLENTY)

    assert selected == (bytearray(), 0, -1, 0)
    assert type(selected) is kernel.Selected
    assert kernel.select(b"", wanted(1, 2), max_bytes=PLENTY) == (bytearray(), 0, -1, 0)


def test_all_records_are_copied_as_they_are(kernel):
    selected = kernel.select(TEN, wanted(*range(100, 110)), max_bytes=PLENTY)

    assert selected == (TEN, 10, 109, 0)
    assert type(selected.records) is bytearray
    assert selected.records is not TEN


def test_runs_and_single_records_are_found_in_their_order(kernel):
    assert select(kernel, 100) == [100]
    assert select(kernel, 109) == [109]
    assert select(kernel, 101, 102, 103, 106, 108, 109) == [101, 102, 103, 106, 108, 109]
    assert select(kernel, *range(100, 110, 2)) == [100, 102, 104, 106, 108]


def test_offsets_that_are_not_there_are_passed_over(kernel):
    assert select(kernel, 0, 5, 99, 104, 110, OFFSET_MAX, 2**64 - 1) == [104]
    assert select(kernel, 0, 99) == []
    assert select(kernel, 110) == []
    assert select(kernel, 2**63, 2**64 - 1) == []


def test_an_offset_that_is_wanted_twice_is_found_once(kernel):
    assert select(kernel, 101, 101, 101, 103, 103) == [101, 103]


def test_offsets_in_holes_are_passed_over(kernel):
    records = b"".join(stamped([b"a"], first_offset=offset) for offset in (1, 5, 6, 9))

    assert offsets_in(kernel, kernel.select(records, wanted(2, 5, 7, 8, 9), max_bytes=PLENTY).records) == [5, 9]


@pytest.mark.parametrize(
    ("max_bytes", "found"),
    [
        (0, [101]),
        (1, [101]),
        (2 * RECORD_BYTES - 1, [101]),
        (2 * RECORD_BYTES, [101, 102]),
        (3 * RECORD_BYTES - 1, [101, 102]),
        (3 * RECORD_BYTES, [101, 102, 105]),
        (OFFSET_MAX, [101, 102, 105]),
    ],
)
def test_the_copy_stays_within_its_limit_but_holds_at_least_one(kernel, max_bytes, found):
    assert select(kernel, 101, 102, 105, max_bytes=max_bytes) == found


def test_a_smaller_record_behind_one_that_does_not_fit_is_not_taken(kernel):
    records = stamped([b"a", bytes(500), b"c"])

    selected = kernel.select(records, wanted(0, 1, 2), max_bytes=100)

    assert selected == (stamped([b"a"]), 1, 0, 0)


def test_only_the_flags_of_the_copied_records_are_told(kernel):
    flags = [Flags.CONTROL, Flags.TRANSACTIONAL, Flags.COMPRESSED, 0, Flags.CONTROL | Flags.COMMIT]
    records = stamped([b"a"] * 5, flags=flags)

    assert kernel.select(records, wanted(1, 2, 3), max_bytes=PLENTY).flags == Flags.TRANSACTIONAL | Flags.COMPRESSED
    assert kernel.select(records, wanted(3), max_bytes=PLENTY).flags == 0
    assert kernel.select(records, wanted(3, 4), max_bytes=0).flags == 0


def test_the_result_is_a_copy(kernel):
    records = stamped([b"a", b"b"])

    selected = kernel.select(records, wanted(0, 1), max_bytes=PLENTY)
    records[0] = 0

    assert selected.records == stamped([b"a", b"b"])


@pytest.mark.parametrize("size", [1, 7, 9, 15])
def test_wanted_must_be_whole_numbers(kernel, size):
    with pytest.raises(ValueError, match=r"^wanted must hold uint64$"):
        kernel.select(TEN, bytes(size), max_bytes=PLENTY)


@pytest.mark.parametrize("offsets", [(1, 0), (1, 2, 3, 2), (2**64 - 1, 0), (2**63, 2**63 - 1)])
def test_wanted_must_be_sorted(kernel, offsets):
    for buffer in (TEN, b""):
        with pytest.raises(ValueError, match=r"^wanted must be sorted$"):
            kernel.select(buffer, wanted(*offsets), max_bytes=PLENTY)


def test_wanted_may_be_any_bytes_at_any_address(kernel):
    raw = wanted(101, 104).tobytes()

    for given_bytes in (raw, bytearray(raw), memoryview(raw), memoryview(b"?" + raw)[1:]):
        assert kernel.select(TEN, given_bytes, max_bytes=PLENTY).record_count == 2
    with pytest.raises(TypeError):
        kernel.select(TEN, [101, 104], max_bytes=PLENTY)
    with pytest.raises(BufferError):
        kernel.select(TEN, memoryview(raw * 2)[::2], max_bytes=PLENTY)


def test_a_limit_below_zero_is_refused(kernel):
    with pytest.raises(ValueError, match="must not be negative"):
        kernel.select(TEN, wanted(101), max_bytes=-1)


@pytest.mark.parametrize("order", [(4, 4), (4, 3), (4, 5, 0)])
def test_offsets_must_rise(kernel, order):
    records = b"".join(stamped([b"a"], first_offset=offset) for offset in order)

    with pytest.raises(CorruptRecord) as caught:
        kernel.select(records, wanted(9), max_bytes=PLENTY)

    assert (caught.value.reason, caught.value.position) == ("offset out of order", RECORD_BYTES * (len(order) - 1))


def test_a_malformed_record_is_reported_with_its_position(kernel):
    with pytest.raises(CorruptRecord) as caught:
        kernel.select(TEN[:-1], wanted(102, 109), max_bytes=PLENTY)

    assert (caught.value.reason, caught.value.position) == ("the record is cut off", 9 * RECORD_BYTES)


def test_damage_behind_the_last_wanted_record_is_not_looked_at(kernel):
    damaged = TEN[: 3 * RECORD_BYTES] + b"?" * 100

    assert kernel.select(damaged, wanted(100, 102), max_bytes=PLENTY).last_offset == 102


def test_checksums_are_not_looked_at(kernel):
    record = with_fields(stamped([b"a"]), crc=0)

    assert kernel.select(record, wanted(0), max_bytes=PLENTY).records == record


@given(
    valid_batches(max_size=20),
    st.sets(st.integers(0, 80) | st.integers(0, 2**64 - 1)),
    st.integers(0, 2_000) | st.just(PLENTY),
)
def test_a_simple_model_finds_the_same(kernel, batch, chosen, max_bytes):
    """Against `decode` and a set."""
    records = bytearray()
    flags, last_offset, count = 0, -1, 0
    for record in kernel.decode(batch, None, kernel.RecordBase):
        if record.offset not in chosen:
            continue
        stored = kernel.filter(batch, from_offset=record.offset, to_offset=record.offset + 1)
        if count and len(records) + len(stored) > max_bytes:
            break
        records += stored
        flags, last_offset, count = flags | record.flags, record.offset, count + 1

    selected = kernel.select(batch, wanted(*sorted(chosen)), max_bytes=max_bytes)

    assert selected == (records, count, last_offset, flags)
