"""Records without some of their parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import CorruptRecord
from goqueue.record.header import HEADER_BYTES, Flags
from tests.record.batches import stamped, valid_batches

PARTS = ("key", "value", "headers")


NUMBERS = ("offset", "timestamp", "priority")


def test_without_nothing_is_the_same(kernel):
    records = stamped([b"one", b"two"], keys=[b"k", None], headers=[None, {"a": "b"}])

    assert kernel.strip(records) == records
    assert kernel.strip(b"") == b""


def test_what_is_left_are_whole_records(kernel):
    records = stamped([b"one", b"two"], keys=[b"k", None], headers=[None, {"a": "b"}], priorities=[0, 4])

    without_value = kernel.strip(records, "value")
    bare = kernel.strip(records, *PARTS)

    assert kernel.columns(without_value, "key", "headers", *NUMBERS) == kernel.columns(
        records, "key", "headers", *NUMBERS
    )
    assert kernel.columns(without_value, "value").value_data == b""
    assert kernel.columns(bare, *NUMBERS) == kernel.columns(records, *NUMBERS)
    assert len(bare) == 2 * HEADER_BYTES


def test_no_flag_tells_of_what_is_not_there(kernel):
    records = stamped([b"packed", None], keys=[b"a", b"b"], headers=[{"x": "y"}] * 2, flags=[Flags.COMPRESSED, 0])

    empty_key = kernel.strip(stamped([b"v"], keys=[b""]), "key")

    flags = [kernel.scan(kernel.strip(records, *parts)).flags for parts in ((), ("value",), PARTS)]

    assert flags == [
        Flags.COMPRESSED | Flags.HAS_HEADERS | Flags.TOMBSTONE,
        Flags.HAS_HEADERS | Flags.TOMBSTONE,
        Flags.TOMBSTONE,
    ]
    assert kernel.scan(empty_key).flags == 0


def test_a_fault_is_told_with_its_place(kernel):
    records = stamped([b"one", b"two"])

    with pytest.raises(CorruptRecord) as caught:
        kernel.strip(records[:-1], "value")

    assert caught.value.position == len(records) // 2


@given(valid_batches(), st.sets(st.sampled_from(PARTS)))
def test_whatever_is_left_out_the_rest_is_as_it_was(kernel, batch, parts):
    stripped = kernel.strip(batch, *parts)

    assert not kernel.scan(stripped).fault
    for name in {*PARTS, *NUMBERS} - parts:
        assert kernel.columns(stripped, name) == kernel.columns(batch, name)
