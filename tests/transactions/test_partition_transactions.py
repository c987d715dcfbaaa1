"""What is open and what was aborted in a partition, against a list of all that ever happened to it."""

from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.record import kernel
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.transactions.markers import marker
from goqueue.transactions.partition_transactions import Decided, OpenTransactionsSnapshot, PartitionTransactions, Ranges

TIME = 1_700_000_000 * 10**9


@dataclass
class Model:
    """Who wrote each offset, and what became of it."""

    owners: dict[int, tuple[int, int]] = field(default_factory=dict)  # of what is open
    aborted: set[int] = field(default_factory=set)

    def end(self, transaction: tuple[int, int], commit: bool) -> set[int]:
        decided = {offset for offset, owner in self.owners.items() if owner == transaction}
        self.owners = {offset: owner for offset, owner in self.owners.items() if owner != transaction}
        if not commit:
            self.aborted |= decided
        return decided

    def drop_below(self, start: int) -> None:
        self.owners = {offset: owner for offset, owner in self.owners.items() if offset >= start}
        self.aborted = {offset for offset in self.aborted if offset >= start}


def check(transactions: PartitionTransactions, model: Model, end: int) -> None:
    firsts: dict[tuple[int, int], int] = {}
    for offset in sorted(model.owners):
        firsts.setdefault(model.owners[offset], offset)
    assert list(transactions.open.items()) == list(firsts.items())
    assert transactions.first_open_offset == min(model.owners, default=None)
    assert set(transactions.aborted) == model.aborted
    assert set(transactions.uncommitted(0, end)) == set(model.owners)
    middle = end // 2
    assert set(transactions.uncommitted(middle, end - 1)) == {at for at in model.owners if middle <= at < end - 1}


def offsets(ranges: Ranges | None) -> set[int]:
    assert ranges is None or all(before[1] < after[0] for before, after in pairwise(ranges))
    return {offset for first, end in ranges or [] for offset in range(first, end)}


@dataclass
class Log:
    """Records as they stand in a partition."""

    records: bytearray = field(default_factory=bytearray)
    positions: dict[int, int] = field(default_factory=dict)  # of the batches, by their first offset
    next_offset: int = 0

    def append(self, batch: bytearray) -> tuple[int, int]:
        first = self.next_offset
        self.positions[first] = len(self.records)
        summary = kernel.stamp(batch, first_offset=first, timestamp=TIME, flags_allowed=FLAGS_KNOWN)
        self.records += batch
        self.next_offset = summary.last_offset + 1
        return first, summary.record_count

    def transactional(self, producer_id: int, number: int, count: int) -> tuple[int, int]:
        identity = BatchIdentity(producer_id, 0, 0, count, number)
        headers: list[dict[str, str | bytes] | None] = [{PRODUCER: identity.encode()}, *[None] * (count - 1)]
        return self.append(kernel.encode([b"v"] * count, headers=headers, flags=Flags.TRANSACTIONAL))

    def read(self, offset: int, end: int | None = None) -> memoryview:
        begin = self.positions[offset] if offset < self.next_offset else len(self.records)
        to = self.positions[end] if end is not None and end < self.next_offset else len(self.records)
        return memoryview(self.records)[begin:to]


producers = st.integers(1, 3)
numbers = st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), producers, numbers, st.integers(1, 4)),
        st.tuples(st.just("end"), producers, numbers, st.booleans()),
        st.tuples(st.just("plain"), st.integers(1, 3)),
        st.tuples(st.just("idempotent"), producers),
        st.tuples(st.just("drop"), st.integers(0, 100)),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=60,
)


@given(steps)
def test_it_says_what_a_list_of_all_records_says(steps: list[tuple[str, int, int, int]]) -> None:
    log, model, transactions = Log(), Model(), PartitionTransactions()
    snapshot, indexed, dropped = b"", BitMap64(), 0

    for kind, *what in steps:
        match kind:
            case "batch":
                producer_id, number, count = what
                first, _ = log.transactional(producer_id, number, count)
                transactions.appended(producer_id, number, first, count)
                model.owners |= dict.fromkeys(range(first, first + count), (producer_id, number))
            case "end":
                producer_id, number, commit = what
                log.append(marker(producer_id, number, commit=bool(commit)))
                was_open = (producer_id, number) in model.owners.values()
                ranges = transactions.ended(producer_id, number, commit=bool(commit))
                assert (ranges is not None) == was_open
                assert offsets(ranges) == model.end((producer_id, number), bool(commit))
            case "plain":
                log.append(kernel.encode([b"gq-producer gq-transaction"] * what[0]))
            case "idempotent":
                headers: dict[str, str | bytes] = {PRODUCER: BatchIdentity(what[0], 0, 0, 1).encode()}
                log.append(kernel.encode([b"v"], headers=[headers]))
            case "drop":
                dropped = max(dropped, what[0] * log.next_offset // 100)
                transactions.drop_below(dropped)
                model.drop_below(dropped)
            case "snapshot":
                snapshot, indexed = transactions.snapshot(log.next_offset), transactions.aborted.copy()
            case _:
                transactions, begin = PartitionTransactions(), 0
                if what[0] and snapshot:
                    transactions.aborted |= indexed
                    begin = transactions.restore(snapshot)
                transactions.note_records(log.read(begin))
                transactions.drop_below(dropped)
        check(transactions, model, log.next_offset)


def test_a_replay_tells_what_each_marker_decided() -> None:
    log = Log()
    log.transactional(1, 1, 2)
    log.transactional(2, 1, 1)
    log.transactional(1, 1, 2)
    log.append(marker(1, 1, commit=False))
    log.append(marker(9, 9, commit=False))
    log.append(marker(2, 1, commit=True))

    decided = PartitionTransactions().note_records(log.read(0))

    assert decided == [Decided(5, False, [(0, 2), (3, 5)]), Decided(7, True, [(2, 3)])]


def test_a_replay_goes_on_from_chunk_to_chunk() -> None:
    log, transactions = Log(), PartitionTransactions()
    log.transactional(1, 1, 2)
    cut, _ = log.append(kernel.encode([b"v"]))
    log.append(marker(1, 1, commit=False))

    assert transactions.note_records(log.read(0, cut)) == []
    assert transactions.note_records(log.read(cut)) == [Decided(3, False, [(0, 2)])]
    assert list(transactions.aborted) == [0, 1]


def test_what_a_plain_record_says_of_a_transaction_is_not_believed() -> None:
    log, transactions = Log(), PartitionTransactions()
    said: dict[str, str | bytes] = {PRODUCER: BatchIdentity(6, 0, 0, 5, 1).encode()}
    log.append(kernel.encode([b"a", b"b"], headers=[None, said]))
    first, _ = log.transactional(7, 1, 2)
    log.append(kernel.encode([b"a", b"b"], headers=[said, said]))

    transactions.note_records(log.read(0))

    assert dict(transactions.open) == {(7, 1): first}
    assert list(transactions.uncommitted(0, 100)) == [first, first + 1]


def test_a_late_marker_touches_nothing_not_even_the_next_transaction() -> None:
    transactions = PartitionTransactions()
    transactions.appended(1, 1, 0, 2)
    assert transactions.ended(1, 1, commit=True) == [(0, 2)]
    transactions.appended(1, 2, 3, 1)

    assert transactions.ended(1, 1, commit=False) is None

    assert dict(transactions.open) == {(1, 2): 3}
    assert not transactions.aborted
    assert list(transactions.uncommitted(0, 100)) == [3]


def test_batches_that_follow_each_other_are_one_range() -> None:
    transactions = PartitionTransactions()
    for first in range(0, 1_000, 10):
        transactions.appended(1, 1, first, 10)
    transactions.appended(1, 1, 1_001, 1)

    assert len(transactions.snapshot(1_002)) < 30
    assert transactions.ended(1, 1, commit=True) == [(0, 1_000), (1_001, 1_002)]


def test_the_oldest_of_a_hundred_thousand_open_transactions_is_found_at_once() -> None:
    transactions, count = PartitionTransactions(), 100_000
    for number in range(1, count + 1):
        transactions.appended(number % 7 + 1, number, 2 * number, 1)
    restored = PartitionTransactions()

    assert restored.restore(transactions.snapshot(2 * count + 1)) == 2 * count + 1
    for number in range(1, count + 1):  # in the order in which they began, which is the worst for a plain dict
        assert restored.first_open_offset == 2 * number
        assert restored.ended(number % 7 + 1, number, commit=number % 2 == 0) == [(2 * number, 2 * number + 1)]

    assert restored.first_open_offset is None
    assert len(restored.aborted) == count // 2


def test_a_transaction_of_which_retention_has_left_nothing_is_not_open_here() -> None:
    transactions = PartitionTransactions()
    transactions.appended(1, 1, 0, 5)
    transactions.appended(2, 1, 5, 5)
    transactions.appended(1, 2, 10, 5)
    transactions.appended(2, 1, 20, 5)

    transactions.drop_below(12)

    assert dict(transactions.open) == {(1, 2): 12, (2, 1): 20}
    assert transactions.first_open_offset == 12
    assert transactions.ended(1, 1, commit=False) is None
    assert transactions.ended(2, 1, commit=False) == [(20, 25)]


def test_a_batch_that_a_crash_tore_and_nobody_could_cut_off_does_not_stop_a_replay() -> None:
    transactions = PartitionTransactions()
    transactions.appended(1, 1, 0, 5)

    transactions.appended(1, 1, 2, 5)

    assert transactions.ended(1, 1, commit=False) == [(0, 7)]
    assert list(transactions.uncommitted(0, 100)) == []


@pytest.mark.parametrize(
    "bounds", [[], [1], [1, 2, 3], [2, 1], [1, 1], [-1, 1], [1, 3, 2, 4], [1, 11]], ids=lambda bounds: str(bounds)
)
def test_ranges_that_make_no_sense_are_no_snapshot(bounds: list[int]) -> None:
    transactions = PartitionTransactions()
    transactions.appended(1, 1, 0, 2)

    with pytest.raises(msgspec.DecodeError):
        transactions.restore(msgspec.msgpack.encode(OpenTransactionsSnapshot(10, [(2, 2, bounds)])))

    assert dict(transactions.open) == {(1, 1): 0}


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"\x90", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1, 2])]
)
def test_what_is_no_snapshot_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        PartitionTransactions().restore(raw)


def test_a_snapshot_says_nothing_of_what_was_aborted() -> None:
    transactions = PartitionTransactions()
    transactions.appended(1, 1, 0, 2)
    transactions.appended(2, 1, 2, 2)
    transactions.ended(1, 1, commit=False)
    restored = PartitionTransactions()
    restored.aborted.add(77)

    restored.restore(transactions.snapshot(5))

    assert list(restored.aborted) == [77]
    assert dict(restored.open) == {(2, 1): 2}
    restored.forget_open()
    assert dict(restored.open) == {}
    assert not restored.uncommitted(0, 10)
    assert list(restored.aborted) == [77]
