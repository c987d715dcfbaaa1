"""Facts of single messages, in tables by offset."""

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.tracing.rows import ByOffset


@given(st.dictionaries(st.integers(0, 2**62), st.integers(-(2**63), 2**63 - 1)))
def test_numbers_by_offset_are_what_a_dict_of_them_is(numbers: dict[int, int]) -> None:
    offsets = BitMap64(numbers)

    found = ByOffset(offsets, array("q", [numbers[offset] for offset in offsets]))

    assert dict(found) == numbers
    assert bool(found) == bool(numbers)
    assert found.get(2**62 + 1) is None
    with pytest.raises(KeyError):
        found[2**62 + 1]


def test_a_million_of_them_take_little_more_than_their_numbers() -> None:
    offsets, numbers = BitMap64(), array("q", bytes(8_000_000))
    offsets.add_range(0, 1_000_000)
    numbers[999_999] = 7

    assert ByOffset(offsets, numbers)[999_999] == 7
    assert len(offsets.serialize()) + sys.getsizeof(numbers) < 9_000_000
