"""Finding the log again behind damage."""

import pytest

from goqueue.record.header import HEADER, OFFSET_MAX, VERSION
from tests.record.batches import TIME, stamped

SIZE = 44  # of a record with a value of 10 bytes


@pytest.fixture
def records():
    return stamped([b"0123456789"] * 6, first_offset=10)


def find(kernel, buffer, start=0, min_offset=0, max_offset=OFFSET_MAX):
    return kernel.resync(buffer, start, min_offset=min_offset, max_offset=max_offset)


def with_length(buffer, at, size):
    """A copy in which the record at `at` says that its value has `size` bytes."""
    copy = bytearray(buffer)
    copy[at + 28 : at + 32] = size.to_bytes(4)
    return copy


def test_the_record_behind_a_damaged_one_is_found(kernel, records):
    records[SIZE + 40] ^= 1

    assert find(kernel, records, SIZE) == 2 * SIZE


@pytest.mark.parametrize("size", [0, 5, 11, 100, 2**32 - 1])
def test_damaged_lengths_do_not_keep_the_next_record_from_being_found(kernel, records, size):
    assert find(kernel, with_length(records, SIZE, size), SIZE) == 2 * SIZE


def test_a_wiped_page_is_passed_over(kernel, records):
    records[20 : 3 * SIZE - 5] = bytes(3 * SIZE - 25)

    assert find(kernel, records, 0) == 3 * SIZE


def test_bytes_that_went_missing_are_passed_over(kernel, records):
    del records[20:100]

    assert find(kernel, records, 0) == 3 * SIZE - 80


def test_a_record_that_a_user_stored_inside_a_value_is_not_taken_for_one_of_the_log(kernel):
    inner = stamped([b"inner"], first_offset=11)
    records = stamped([inner + b"!", b"next", b"last"], first_offset=10)
    damaged = bytearray(records)
    damaged[6] ^= 1
    lost = with_length(records, 0, 2**31)

    for buffer in (damaged, lost):
        assert find(kernel, buffer, 0, min_offset=10) == 34 + len(inner) + 1


def test_not_even_when_the_damaged_record_is_the_last_one(kernel):
    records = stamped([stamped([b"inner"], first_offset=11)], first_offset=10)
    records[6] ^= 1

    assert find(kernel, records, min_offset=11, max_offset=11) == -1


def test_behind_the_last_record_nothing_is_found(kernel, records):
    records[-1] ^= 1

    assert find(kernel, records, 5 * SIZE) == -1
    assert find(kernel, records, len(records)) == -1
    assert find(kernel, records, len(records) + 1) == -1
    assert find(kernel, b"", 0) == -1


@pytest.mark.parametrize("kept", [1, 2, 3, 20, 33, 34, 43])
def test_a_torn_record_at_the_end_vouches_for_the_one_before_it(kernel, kept):
    # The value holds a whole record with nothing behind it, which would win if the torn one did not vouch.
    inner = stamped([b"inner"], first_offset=11)
    records = stamped([inner + b"!", b"0123456789"], first_offset=10)
    torn = with_length(records, 0, 2**31) + stamped([b"0123456789"], first_offset=12)[:kept]

    assert find(kernel, torn, 0) == 34 + len(inner) + 1


@pytest.mark.parametrize("tail", [b"!", b"G!", b"GQ" + bytes([VERSION + 1])])
def test_other_bytes_at_the_end_do_not_vouch(kernel, tail):
    inner = stamped([b"inner"], first_offset=11)
    records = stamped([inner + b"!", b"0123456789"], first_offset=10)
    torn = with_length(records, 0, 2**31) + tail

    assert find(kernel, torn, 0) == 34


def test_a_valid_record_before_more_damage_is_better_than_none(kernel, records):
    records[6] ^= 1
    records[2 * SIZE :] = bytes(100)

    assert find(kernel, records, 0) == SIZE


def test_more_damage_further_on_hides_nothing(kernel, records):
    records[6] ^= 1
    records[2 * SIZE + 6] ^= 1

    assert find(kernel, records, 0) == SIZE


def test_of_several_records_that_nothing_vouches_for_the_first_is_taken(kernel):
    gap = b"?" * 50
    records = gap + stamped([b"a"], first_offset=5) + gap + stamped([b"a"], first_offset=6) + gap

    assert find(kernel, records, 0) == 50


def test_only_offsets_in_the_range_count(kernel, records):
    records[6] ^= 1

    assert find(kernel, records, 0, min_offset=13) == 3 * SIZE
    assert find(kernel, records, 0, min_offset=16) == -1
    assert find(kernel, records, 0, max_offset=11) == -1
    assert find(kernel, records, 0, min_offset=-1) == SIZE


def test_what_follows_must_have_a_larger_offset(kernel):
    twice = stamped([b"a"], first_offset=7)
    records = b"?" + twice + twice + stamped([b"b"], first_offset=8)

    assert find(kernel, records, 0) == 1 + len(twice)


def test_a_payload_full_of_false_headers_ends_the_search_before_it_takes_forever(kernel):
    good = stamped([b"a", b"b"], first_offset=8)
    fakes = 2_000
    size = fakes * HEADER.size
    hostile = bytearray(b"?")
    for fake in range(fakes):
        value_bytes = size - (fake + 1) * HEADER.size
        hostile += HEADER.pack(b"GQ", 1, 0, 0, 7, TIME, 2, 0, 0, value_bytes, 0)

    assert find(kernel, hostile[: 10 * HEADER.size + 1] + good, 0) == 10 * HEADER.size + 1
    assert find(kernel, hostile + good, 0) == -1


def test_a_payload_full_of_false_headers_with_headers_does_not_take_forever_either(kernel):
    headers = b"\x3f\xff" + bytes(4 * 0x3FFF)
    fake = HEADER.pack(b"GQ", 1, 2, 0, 7, TIME, 2, 0, 0, 0, 0xFFFF)
    hostile = b"?" + fake * 500 + headers + stamped([b"a", b"b"], first_offset=8)

    assert find(kernel, hostile, 0) == -1


@pytest.mark.parametrize(
    ("argument", "error"),
    [({"start": -1}, ValueError), ({"start": 2**63}, OverflowError), ({"min_offset": ""}, TypeError)],
)
def test_numbers_that_cannot_be_are_refused(kernel, argument, error):
    with pytest.raises(error):
        find(kernel, b"GQ", **argument)
