"""A marker says how a transaction ended, nothing else passes for one, and a batch cannot lie about its transaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidBatch
from goqueue.record import kernel
from goqueue.record.header import FLAGS_FROM_PRODUCERS, FLAGS_KNOWN, Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity, identity_of
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from goqueue.transactions.markers import (
    MARKER_FLAGS,
    TRANSACTION,
    TRANSACTIONAL_FLAGS,
    Marker,
    check_batch,
    check_later,
    marker,
    markers_in,
)

TIME = 1_700_000_000 * 10**9
Headers = dict[str, str | bytes]


def stored(*batches: bytearray) -> memoryview:
    """The batches as they stand in the log."""
    records, offset = bytearray(), 0
    for batch in batches:
        summary = kernel.stamp(batch, first_offset=offset, timestamp=TIME, flags_allowed=FLAGS_KNOWN)
        records += batch
        offset = summary.last_offset + 1
    return memoryview(records)


def batch_of(identity: BatchIdentity, *, flags: int | list[int] = Flags.TRANSACTIONAL) -> bytearray:
    headers: list[Headers | None] = [{PRODUCER: identity.encode()}, *[None] * (identity.record_count - 1)]
    return kernel.encode([b"v"] * identity.record_count, headers=headers, flags=flags)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(1, 2**63 - 1), st.integers(1, 2**62 - 1), st.booleans()),
            st.sampled_from([b"plain", b"gq-transaction", b"\0\1\0\x0egq-transaction\0\x031:2"]),
        ),
        max_size=20,
    )
)
def test_markers_are_found_wherever_they_stand(steps: list[tuple[int, int, bool] | bytes]) -> None:
    batches = [
        kernel.encode([step], keys=[step], headers=[{"note": step}])
        if isinstance(step, bytes)
        else marker(step[0], step[1], commit=step[2])
        for step in steps
    ]

    found = list(markers_in(stored(*batches)))

    assert found == [Marker(at, *step) for at, step in enumerate(steps) if not isinstance(step, bytes)]


def test_a_marker_is_taken_by_a_log_and_only_by_its_flags() -> None:
    log = Log.open(MemoryDisk(), "/log")
    for commit in (True, False):
        log.append(marker(7, 3, commit=commit), now_ns=TIME, flags_allowed=MARKER_FLAGS)

    with pytest.raises(InvalidBatch):
        log.append(marker(7, 3, commit=True), now_ns=TIME)
    with pytest.raises(InvalidBatch):
        log.append(marker(7, 3, commit=False), now_ns=TIME, flags_allowed=TRANSACTIONAL_FLAGS)

    assert list(markers_in(log.read(0).records)) == [Marker(0, 7, 3, True), Marker(1, 7, 3, False)]


@pytest.mark.parametrize(
    "flags",
    [0, Flags.TRANSACTIONAL, Flags.CONTROL, Flags.CONTROL | Flags.COMMIT],
    ids=["plain", "transactional", "control", "commit"],
)
def test_a_record_of_another_kind_is_no_marker(flags: int) -> None:
    records = stored(kernel.encode([b""], headers=[{TRANSACTION: "7:3"}], flags=flags), marker(7, 4, commit=True))

    assert list(markers_in(records)) == [Marker(1, 7, 4, True)]


@pytest.mark.parametrize(
    "text", ["", "7", "7:", ":3", "7:3:1", "0:3", "7:0", "-7:3", "7:x", f"7:{2**62}", f"{2**63}:1"]
)
def test_a_marker_that_makes_no_sense_is_passed_over(text: str) -> None:
    flags = Flags.CONTROL | Flags.TRANSACTIONAL
    records = stored(kernel.encode([b""], headers=[{TRANSACTION: text}], flags=flags), marker(7, 4, commit=False))

    assert list(markers_in(records)) == [Marker(1, 7, 4, False)]


def test_nothing_holds_no_markers() -> None:
    assert list(markers_in(b"")) == []


# --- what a batch may say ------------------------------------------------------------------------------------------


def checked(records: bytearray) -> int:
    allowed = check_batch(records, identity_of(records))
    check_later(records)
    return allowed


def test_a_batch_of_a_transaction_may_be_transactional_and_no_other_may() -> None:
    assert checked(batch_of(BatchIdentity(7, 0, 0, 3, 9))) == TRANSACTIONAL_FLAGS
    assert checked(batch_of(BatchIdentity(7, 0, 0, 3), flags=0)) == FLAGS_FROM_PRODUCERS
    assert checked(kernel.encode([b"a", b"b"])) == FLAGS_FROM_PRODUCERS
    assert not TRANSACTIONAL_FLAGS & (Flags.CONTROL | Flags.COMMIT)


@pytest.mark.parametrize("records", [memoryview, bytearray])
def test_it_takes_what_a_door_gives(records: type) -> None:
    batch = batch_of(BatchIdentity(7, 0, 0, 3, 9))

    assert check_batch(records(batch), identity_of(batch)) == TRANSACTIONAL_FLAGS


@pytest.mark.parametrize("plain", range(3))
def test_all_records_of_a_transactional_batch_are_transactional(plain: int) -> None:
    flags = [Flags.TRANSACTIONAL] * 3
    flags[plain] = 0

    with pytest.raises(InvalidBatch, match="not all records are transactional"):
        checked(batch_of(BatchIdentity(7, 0, 0, 3, 9), flags=list(map(int, flags))))


@pytest.mark.parametrize("identity", [None, BatchIdentity(7, 0, 0, 2)])
@pytest.mark.parametrize("flag", [Flags.TRANSACTIONAL, Flags.CONTROL, Flags.CONTROL | Flags.COMMIT])
@pytest.mark.parametrize("at", range(2))
def test_what_is_the_brokers_own_is_refused_from_a_producer(
    identity: BatchIdentity | None, flag: Flags, at: int
) -> None:
    flags = [0, 0]
    flags[at] = int(flag)
    records = batch_of(identity, flags=flags) if identity else kernel.encode([b"a", b"b"], flags=flags)
    log = Log.open(MemoryDisk(), "/log")

    with pytest.raises(InvalidBatch):
        log.append(records, now_ns=TIME, flags_allowed=checked(records))

    assert log.next_offset == log.size == 0


def test_a_control_record_in_a_transactional_batch_is_refused() -> None:
    flags = [Flags.TRANSACTIONAL, Flags.TRANSACTIONAL | Flags.CONTROL]
    records = batch_of(BatchIdentity(7, 0, 0, 2, 9), flags=list(map(int, flags)))
    log = Log.open(MemoryDisk(), "/log")

    with pytest.raises(InvalidBatch):
        log.append(records, now_ns=TIME, flags_allowed=checked(records))

    assert log.next_offset == 0


@pytest.mark.parametrize("claimed", [1, 2, 4, 2**31 - 1])
def test_a_batch_holds_as_many_records_as_it_says(claimed: int) -> None:
    log = Log.open(MemoryDisk(), "/log")
    records = batch_of(BatchIdentity(7, 0, 0, 3, 9))

    with pytest.raises(InvalidBatch, match=f"3 records instead of {claimed}"):
        log.append(records, now_ns=TIME, flags_allowed=TRANSACTIONAL_FLAGS, record_count=claimed)

    assert log.next_offset == log.size == 0
    appended = log.append(
        batch_of(BatchIdentity(7, 0, 0, 3, 9)), now_ns=TIME, flags_allowed=TRANSACTIONAL_FLAGS, record_count=3
    )
    assert (appended.first_offset, appended.record_count) == (0, 3)


@pytest.mark.parametrize("first", [None, {PRODUCER: "7:0:0:3"}])
@pytest.mark.parametrize("other", [{PRODUCER: "8:0:0:1"}, {"a": "b", "": "", PRODUCER: "8:0:0:1:5", "z": ""}])
@pytest.mark.parametrize("at", [1, 2])
def test_only_the_first_record_says_who_sent_the_batch(first: Headers | None, other: Headers, at: int) -> None:
    headers: list[Headers | None] = [first, None, None]
    headers[at] = other

    with pytest.raises(InvalidBatch, match="header gq-producer in a record that is not the first"):
        checked(kernel.encode([b"a", b"b", b"c"], headers=headers))


@pytest.mark.parametrize(
    "other",
    [
        {"note": "gq-producer"},
        {"x-gq-producer": "8:0:0:1"},
        {"gq-producer-x": "8:0:0:1"},
        {"gq-": "", "producer": ""},
        {"gq-producergq-producer": "", "": "gq-producer"},
    ],
)
def test_what_only_looks_like_it_is_the_users_business(other: Headers) -> None:
    records = kernel.encode(
        [b"gq-producer", b"\0\1\0\x0bgq-producer\0\x071:0:0:1"],
        keys=[b"gq-producer", b"gq-producer"],
        headers=[{PRODUCER: "7:0:0:2"}, other],
    )

    assert checked(records) == FLAGS_FROM_PRODUCERS


@given(st.integers(0, 2**31), st.integers(0, 255))
def test_a_batch_of_broken_bytes_is_an_invalid_batch_at_most(place: int, byte: int) -> None:
    records = batch_of(BatchIdentity(7, 0, 0, 3, 9))
    records += kernel.encode([b"v"], headers=[{"a": PRODUCER}], flags=Flags.TRANSACTIONAL)
    records[place % len(records)] = byte

    try:
        check_batch(records, identity_of(records))
    except InvalidBatch:
        pass


@pytest.mark.parametrize("size", [0, 1, 33, 34, 50])
def test_a_batch_that_is_cut_off_is_left_to_the_log(size: int) -> None:
    records = kernel.encode([b"v" * 100])[:size]
    log = Log.open(MemoryDisk(), "/log")

    with pytest.raises(InvalidBatch):
        log.append(records, now_ns=TIME, flags_allowed=check_batch(records, None))
