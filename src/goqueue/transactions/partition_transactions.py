"""The transactions of one partition: which records are undecided, and which were aborted.

    appended ──> open ──ended, commit──> visible as any other record
                  │
                  └────ended, abort───> aborted

A transaction is open in the partition from its first batch to its marker. The first offset of the oldest open one is
the last stable offset: `read_committed` readers stop there. Aborted offsets are hidden for as long as their records
exist. Transactions are told apart by producer and number, so a late marker changes nothing: its transaction has ended.

All of this is in the log, and is read from there after a crash: open transactions from the last snapshot on, and
earlier aborts from the indexes beside the log (`storage/txn_index.py`).
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from heapq import merge
from itertools import pairwise
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.transactions.markers import Marker, markers_in
from goqueue.transactions.sequences import identities

TransactionKey = tuple[int, int]
"""Producer id and number of a transaction."""
Ranges = list[tuple[int, int]]
"""Offsets [first, end), rising, with gaps between them."""


class Decided(NamedTuple):
    """A marker found in the log, and the offsets that it decided."""

    marker_offset: int
    is_commit: bool
    ranges: Ranges


class OpenTransactionsSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The open transactions of a partition with their ranges, as of the record before `next_offset`."""

    next_offset: int
    transactions: list[tuple[int, int, list[int]]]


class PartitionTransactions:
    """The open transactions of one partition, and all aborted offsets that are still in the log."""

    def __init__(self) -> None:
        self._first: OrderedDict[TransactionKey, int] = OrderedDict()  # oldest first
        self._bounds: dict[TransactionKey, list[int]] = {}  # first, end, first, end, ...
        self._uncommitted = BitMap64()
        self.aborted = BitMap64()

    @property
    def open(self) -> Mapping[TransactionKey, int]:
        """The first offset of each open transaction, the lowest first."""
        return self._first

    @property
    def first_open_offset(self) -> int | None:
        """All records below it are decided; None if all are."""
        return next(iter(self._first.values()), None)

    def appended(self, producer_id: int, number: int, first_offset: int, record_count: int) -> None:
        """A batch of the transaction was appended to the log."""
        transaction = producer_id, number
        end_offset = first_offset + record_count
        bounds = self._bounds.get(transaction)
        if bounds is None:
            self._first[transaction] = first_offset
            self._bounds[transaction] = [first_offset, end_offset]
        elif bounds[-1] >= first_offset:  # above it only if a crash tore the previous batch and it could not be cut off
            bounds[-1] = max(bounds[-1], end_offset)
        else:
            bounds += (first_offset, end_offset)
        self._uncommitted.add_range(first_offset, end_offset)

    def ended(self, producer_id: int, number: int, *, commit: bool) -> Ranges | None:
        """A marker was appended: the ranges that it decided, or None if the transaction was not open here."""
        bounds = self._bounds.pop((producer_id, number), None)
        if bounds is None:
            return None
        del self._first[producer_id, number]
        ranges = _pairs(bounds)
        for first, end in ranges:
            self._uncommitted.remove_range(first, end)
            if not commit:
                self.aborted.add_range(first, end)
        return ranges

    def note_records(self, records: memoryview) -> list[Decided]:
        """Learn from stored records, which are complete and valid; the transactions that ended among them."""
        decided: list[Decided] = []
        for _, found in merge(_batches(records), ((one.offset, one) for one in markers_in(records))):
            if not isinstance(found, Marker):
                self.appended(*found)
                continue
            ranges = self.ended(found.producer_id, found.number, commit=found.is_commit)
            if ranges is not None:
                decided.append(Decided(found.offset, found.is_commit, ranges))
        return decided

    def record_count(self, producer_id: int, number: int) -> int:
        """How many records of the open transaction are in the log."""
        return sum(end - first for first, end in _pairs(self._bounds.get((producer_id, number), [])))

    def uncommitted(self, start: int, end: int) -> BitMap64:
        """The offsets in [start, end) that belong to open transactions."""
        found = BitMap64()
        if self._uncommitted:
            start, end = max(start, self._uncommitted.min()), min(end, self._uncommitted.max() + 1)
        if self._uncommitted and start < end:
            found.add_range(start, end)
            found &= self._uncommitted
        return found

    def drop_below(self, offset: int) -> None:
        """Records below the offset were deleted; a transaction without any record left is not open here any more."""
        if self.aborted and self.aborted.min() < offset:
            self.aborted.remove_range(0, offset)
        first_open = self.first_open_offset
        if first_open is None or first_open >= offset:
            return
        self._uncommitted.remove_range(0, offset)
        for transaction, first in list(self._first.items()):
            if first >= offset:
                break
            kept = [bound for pair in _pairs(self._bounds.pop(transaction)) if pair[1] > offset for bound in pair]
            if kept:
                kept[0] = max(kept[0], offset)
                self._bounds[transaction] = kept
        by_first = sorted(self._bounds.items(), key=lambda item: item[1][0])
        self._first = OrderedDict((transaction, bounds[0]) for transaction, bounds in by_first)

    def forget_open(self) -> None:
        """Forget the open transactions; aborted offsets stay."""
        self._first = OrderedDict()
        self._bounds = {}
        self._uncommitted = BitMap64()

    def snapshot(self, next_offset: int) -> bytes:
        """The encoded open transactions, as of that offset."""
        transactions = [(*transaction, self._bounds[transaction]) for transaction in self._first]
        return msgspec.msgpack.encode(OpenTransactionsSnapshot(next_offset, transactions))

    def restore(self, raw: bytes) -> int:
        """Take the open transactions from a snapshot; returns the offset from which the log has to be replayed.

        Aborted offsets stay. Raises `msgspec.DecodeError` for bytes that are no snapshot, and then changes nothing.
        """
        snapshot = msgspec.msgpack.decode(raw, type=OpenTransactionsSnapshot)
        for _, _, bounds in snapshot.transactions:
            rising = all(earlier < later for earlier, later in pairwise(bounds))
            if not bounds or len(bounds) % 2 or bounds[0] < 0 or bounds[-1] > snapshot.next_offset or not rising:
                raise msgspec.ValidationError("the ranges of a transaction do not rise")
        self.forget_open()
        for producer_id, number, bounds in snapshot.transactions:
            self._first[producer_id, number] = bounds[0]
            self._bounds[producer_id, number] = bounds
            for first, end in _pairs(bounds):
                self._uncommitted.add_range(first, end)
        return snapshot.next_offset


def _batches(records: memoryview) -> Iterable[tuple[int, tuple[int, int, int, int]]]:
    """Offsets and arguments of `appended` for the transactional batches that begin among the records.

    A record without the flag is not trusted: in a plain batch, a client may send any headers after the first record.
    """
    found = [(offset, batch) for offset, _, batch in identities(records) if batch.transaction]
    if not found:
        return
    wanted = array("Q", (offset for offset, _ in found))
    selected = kernel.select(records, wanted, max_bytes=len(records)).records
    firsts = kernel.decode(selected, None, kernel.RecordBase, verify=False)
    for first, (offset, batch) in zip(firsts, found, strict=True):
        if first.flags & Flags.TRANSACTIONAL:
            yield offset, (batch.producer_id, batch.transaction, offset, batch.record_count)


def _pairs(bounds: list[int]) -> Ranges:
    return list(zip(bounds[::2], bounds[1::2], strict=True))
