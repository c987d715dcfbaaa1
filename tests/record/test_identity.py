"""Who sent a batch is read from its first record, and from nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidBatch, InvalidRequest
from goqueue.record import kernel
from goqueue.record.header import HEADER, HEADER_BYTES
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import (
    DERIVED_FROM,
    BatchIdentity,
    derived_producer_id,
    identity_of,
    refuse_derived,
)

identities = st.builds(
    BatchIdentity,
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62 - 1),
    st.integers(1, 2**31 - 1),
    st.one_of(st.just(0), st.integers(1, 2**62 - 1)),
)
MALFORMED = [
    b"",
    b"1",
    b"1:2:3",
    b"1:2:3:4:5:6",
    b"1:2:3:4:0",
    b"1:2:3:4:-1",
    b"1:2:3:4:x",
    b"1:2:3:4:4611686018427387904",
    b"1:2:3:4:" + b"9" * 5_000,
    b"1:2:x:3:4",
    b"1:2:3:4:",
    b":1:2:3:4",
    b" 1:2:3:4",
    b"-1:2:3:4",
    b"+1:0:0:1",
    b"1:0:0:1\n",
    b"0:0:0:1",
    b"1:0:0:0",
    b"9223372036854775808:0:0:1",
    b"1:2147483648:0:1",
    b"1:0:4611686018427387904:1",
    b"1:0:0:2147483648",
    b"1:0:0:" + b"9" * 5_000,
    "1:0:0:\N{ARABIC-INDIC DIGIT ONE}".encode(),
]


@given(identities)
def test_an_identity_is_read_as_it_was_written(identity: BatchIdentity) -> None:
    records = kernel.encode([b"v", b"w"], headers=[{PRODUCER: identity.encode()}, None])

    assert BatchIdentity.parse(identity.encode()) == identity
    assert identity_of(records) == identity


def test_a_derived_id_is_the_same_for_the_same_names_and_is_one_that_no_client_may_have() -> None:
    names = [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"ab",), (b"a", b"b", b"")]
    ids = [derived_producer_id(*one) for one in names]

    assert ids == [derived_producer_id(*one) for one in names]
    assert len(set(ids)) == len(names)
    for producer_id in ids:
        assert BatchIdentity.parse(BatchIdentity(producer_id, 0, 0, 1).encode()).producer_id == producer_id
        with pytest.raises(InvalidRequest, match="handed out"):
            refuse_derived(producer_id)
    refuse_derived(DERIVED_FROM - 1)


def test_outside_of_a_transaction_it_is_written_as_it_always_was() -> None:
    assert BatchIdentity(7, 1, 2, 3).encode() == b"7:1:2:3"
    assert BatchIdentity.parse(b"7:1:2:3").transaction == 0


def test_in_a_transaction_its_number_comes_last() -> None:
    assert BatchIdentity(7, 1, 2, 3, 9).encode() == b"7:1:2:3:9"
    assert BatchIdentity.parse(b"7:1:2:3:9").transaction == 9


@pytest.mark.parametrize("raw", MALFORMED)
@pytest.mark.parametrize("before", [{}, {"a": "b"}])
def test_an_identity_that_makes_no_sense_is_refused(raw: bytes, before: dict[str, str | bytes]) -> None:
    with pytest.raises(InvalidBatch):
        identity_of(kernel.encode([b"v"], headers=[{**before, PRODUCER: raw}]))


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"gq-producer", b"v", None),
        (b"k", b"\0\1\0\x0bgq-producer\0\x071:0:0:1", {"a": "b"}),
        (b"k", b"v", {"x-gq-producer": "1:0:0:1"}),
        (b"k", b"v", {"gq-producer-x": "1:0:0:1"}),
        (b"k", b"v", {"a": "gq-producer"}),
        (b"k", b"v", {"a": "\0\x0bgq-producer\0\x071:0:0:1"}),
    ],
)
def test_other_places_where_the_name_stands_say_nothing(
    key: bytes, value: bytes, headers: dict[str, str | bytes] | None
) -> None:
    assert identity_of(kernel.encode([value], keys=[key], headers=[headers])) is None


def test_the_identity_is_found_behind_other_headers() -> None:
    records = kernel.encode([b"v"], headers=[{"a": "gq-producer", PRODUCER: "7:1:2:3"}])

    assert identity_of(records) == BatchIdentity(7, 1, 2, 3)


def test_later_records_are_not_asked() -> None:
    records = kernel.encode([b"v", b"w"], headers=[None, {PRODUCER: "7:0:0:1"}])

    assert identity_of(records) is None


@given(st.integers(0, 2**31), st.integers(0, 255))
def test_a_batch_that_lies_about_its_headers_is_an_invalid_batch_at_most(place: int, byte: int) -> None:
    records = kernel.encode([b"v"], headers=[{"a": "b", PRODUCER: "7:0:0:1"}])
    records[place % len(records)] = byte

    try:
        identity_of(records)
    except InvalidBatch:
        pass


def test_headers_that_lie_are_refused_as_the_batch_they_are_in() -> None:
    records = kernel.encode([b"v"], headers=[{"a": "b", PRODUCER: "7:0:0:1"}])
    records[HEADER_BYTES + 1 : HEADER_BYTES + 3] = (9).to_bytes(2)  # nine headers instead of two

    with pytest.raises(InvalidBatch):
        identity_of(records)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 5])
def test_a_batch_that_is_cut_off_has_no_identity(size: int) -> None:
    assert identity_of(kernel.encode([b"v"], headers=[{PRODUCER: "7:0:0:1"}])[:size]) is None
