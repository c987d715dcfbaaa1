"""The state of producers and their transactions on one partition.

All of it is in the log. Two snapshots in the ledger save a start from reading most of it: `producers`, which is loaded
at the first publish, and `transactions`, which is loaded at the start, but only if the log ever had any. A snapshot is
taken when a flush starts and written when it has ended, so it only covers durable records. A snapshot that cannot be
written or read costs only time. That of transactions also has the number of markers, and the segments that have an
index of aborted records: an index that is missing is rebuilt from the log, like a damaged one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from pyroaring import BitMap64

from goqueue.broker.partition.ledger import Fact, PartitionLedger
from goqueue.broker.partition.unreadable import UnreadableFacts
from goqueue.errors import GoQueueError, StorageError
from goqueue.record.header import OFFSET_MAX, Flags
from goqueue.record.identity import BatchIdentity
from goqueue.service.pending import Pending
from goqueue.storage.log import Appended, Log
from goqueue.transactions.marker_counts import MarkerCounts
from goqueue.transactions.markers import markers_in
from goqueue.transactions.partition_transactions import Decided, PartitionTransactions
from goqueue.transactions.sequences import Sequences

SEQUENCES_KEY = b"producers"
TRANSACTIONS_KEY = b"transactions"
LOAD_BYTES = 4 * 1024 * 1024


_Whole = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


class _Saved(msgspec.Struct, array_like=True, frozen=True):
    """The snapshot of transactions."""

    transactions: bytes  # `PartitionTransactions.snapshot`
    markers: dict[_Whole, _Whole]
    indexed: list[int] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


class ProducerState:
    """The sequences and the transactions of one partition."""

    def __init__(self, log: Log, facts: Callable[[], Iterator[Fact]], *, unreadable: UnreadableFacts) -> None:
        self._log = log
        self._facts = facts  # all facts of the ledger
        self._unreadable = unreadable
        self._sequences: Sequences | None = None
        self.transactions: PartitionTransactions | None = None  # None: the log never had one
        self.has_news = False  # changes since the last snapshot
        self.markers = MarkerCounts()
        self.markers_known_to = 0  # a written snapshot covers all transactions below
        self.owed: set[tuple[int, int]] = set()  # committed transactions whose marker is not in the log yet

    @property
    def sequences(self) -> Sequences:
        """The sequences of the producers, loaded on first use."""
        if self._sequences is None:
            self._sequences = self._load_sequences()
        return self._sequences

    @property
    def is_loaded(self) -> bool:
        """Whether the sequences are in memory."""
        return self._sequences is not None

    def load(self) -> None:
        """Load everything anew: a follower has both logs now as far as they are committed."""
        self._sequences = None
        self._reload_transactions()
        self._sequences = self._load_sequences()

    def stable_below(self, end_offset: int) -> int:
        """Records below it, and below the given offset, belong to no open transaction."""
        first_open = self.transactions.first_open_offset if self.transactions is not None else None
        return end_offset if first_open is None else min(end_offset, first_open)

    @property
    def message_count(self) -> int:
        """The number of messages in the log, those of open and aborted transactions included."""
        control_count = self.markers.total - self._log.control_missing
        return self._log.record_count - max(0, control_count)

    def stored(self, identity: BatchIdentity, appended: Appended) -> None:
        """A batch of a producer is in the log."""
        self.has_news = True
        self.sequences.note(identity, first_offset=appended.first_offset, timestamp_ns=appended.timestamp)
        if identity.transaction:
            self.begun().appended(
                identity.producer_id, identity.transaction, appended.first_offset, appended.record_count
            )

    def begun(self) -> PartitionTransactions:
        """The transactions, made with the first one."""
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        return self.transactions

    def load_transactions(self) -> None:
        """Restore the transactions: from the last snapshot, the indexes beside the log, and the log after it."""
        log, saved = self._log, self._saved()
        decided_below = max(log.start_offset, log.cleaned_offset)  # compaction never touches open transactions
        transactions = PartitionTransactions()
        known = log.transactions.aborted()
        transactions.aborted |= known.offsets
        indexed = saved.indexed if saved else ()
        missing = [
            one for one in indexed if decided_below <= one < log.next_offset and one not in log.transactions.indexed
        ]
        unknown = missing if known.replay_from is None else [*missing, known.replay_from]
        if unknown:
            transactions.aborted |= self._mended(min(unknown))
        offset = self._restored(transactions, saved)
        self.markers_known_to = offset
        for decided in self._replay(transactions, offset, markers=self.markers):
            self._note_aborted(decided)
        transactions.drop_below(decided_below)
        self.transactions = transactions
        self._count_markers_from(log.start_offset)

    def _saved(self) -> _Saved | None:
        """The last snapshot, if it can be read."""
        raw = self._last(TRANSACTIONS_KEY)
        if raw is None:
            return None
        try:
            return _decode(raw)
        except msgspec.DecodeError as error:
            self._unreadable.pass_over(TRANSACTIONS_KEY, error)
            return None

    def _restored(self, transactions: PartitionTransactions, saved: _Saved | None) -> int:
        """The offset from which on the log has to be read. A damaged snapshot, or one of lost records, is ignored."""
        try:
            offset = None if saved is None else transactions.restore(saved.transactions)
        except msgspec.DecodeError as error:
            offset = None
            self._unreadable.pass_over(TRANSACTIONS_KEY, error)
        if saved is not None and offset is not None:
            if offset <= self._log.next_offset:
                self.markers = MarkerCounts(saved.markers)
                return max(offset, self._log.start_offset)
            transactions.forget_open()
        # The log has no trace of markers that compaction has removed; only the lost snapshot had their number.
        self.markers.add(self._log.start_offset, self._log.control_missing)
        return self._log.start_offset

    def _mended(self, replay_from: int) -> BitMap64:
        """The aborted records since then, by the log; damaged indexes are replaced."""
        seen = PartitionTransactions()
        for decided in self._replay(seen, max(replay_from, self._log.start_offset)):
            self._note_aborted(decided)
        self._log.transactions.mend()
        return seen.aborted

    def _replay(
        self, transactions: PartitionTransactions, offset: int, *, markers: MarkerCounts | None = None
    ) -> Iterator[Decided]:
        reader = self._log.reader(offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            if chunk.flags & Flags.TRANSACTIONAL:
                yield from transactions.note_records(chunk.records)
                if markers is not None:
                    for one in markers_in(chunk.records):
                        markers.add(one.offset)

    def _count_markers_from(self, start_offset: int) -> None:
        """Count the markers from the new start of the log on."""
        again = self.markers.drop_below(start_offset)
        if again:
            with suppress(StorageError):  # then the number of messages is a little too high
                self.markers.add(again.start, self._count_markers(again.start, again.stop))

    def _count_markers(self, start: int, end: int) -> int:
        reader, count = self._log.reader(start), 0
        while (chunk := reader.read(max_bytes=LOAD_BYTES, to_offset=end)).record_count:
            if chunk.flags & Flags.CONTROL:
                count += sum(1 for _ in markers_in(chunk.records))
        return count

    def _note_aborted(self, decided: Decided) -> None:
        if not decided.is_commit:
            for first, end in decided.ranges:
                self._log.transactions.note_aborted(first, end, decided.marker_offset)

    def maintain(self, *, start_offset: int, now_ns: int) -> None:
        """Forget producers that were not used for long, and transactions below the start of the log."""
        if self._sequences is not None:
            self._sequences.forget_idle(now_ns=now_ns)
        if self.transactions is not None:
            self.transactions.drop_below(start_offset)
            self._count_markers_from(start_offset)

    def appended(self, records: memoryview, flags: int) -> None:
        """A follower has appended records of its leader, which have these flags."""
        self.has_news = True
        if self._sequences is not None:
            self._sequences.note_records(records)
        if flags & Flags.TRANSACTIONAL:
            for decided in self.begun().note_records(records):
                self._note_aborted(decided)
            for one in markers_in(records):
                self.owed.discard((one.producer_id, one.number))
                self.markers.add(one.offset)

    def truncated(self, offset: int) -> None:
        """The log ends at the offset now: what is known of records after it was never committed.

        All of it is read again, from the snapshots, which cover committed records only, and from the log after them.
        """
        self._sequences = None
        self.has_news = True
        self.owed.clear()
        self._reload_transactions()

    def _reload_transactions(self) -> None:
        if self.transactions is not None:
            self.markers = MarkerCounts()
            self.load_transactions()

    def snapshots(self) -> list[Fact]:
        """The snapshots as of the end of the log."""
        self.has_news = False
        facts: list[Fact] = []
        if self._sequences is not None:
            facts.append((SEQUENCES_KEY, self._sequences.snapshot(self._log.next_offset)))
        if self.transactions is not None:
            saved = _Saved(self.transactions.snapshot(self._log.next_offset), self.markers.saved)
            facts.append((TRANSACTIONS_KEY, _encode(saved)))
        return facts

    def write(self, facts: Sequence[Fact], ledger: PartitionLedger, *, known_to: int) -> None:
        """Write snapshots to the ledger; they cover all records below the offset, which are committed.

        That of transactions does not have the aborted records, so the indexes that have them must be durable first.
        """
        is_indexed = self._log.transactions.synced_offset >= known_to
        told = [self._with_indexes(fact) for fact in facts if is_indexed or fact[0] != TRANSACTIONS_KEY]
        try:
            end = ledger.write(told) if told else 0
        except StorageError:
            self.has_news = True
            return
        self.has_news |= not is_indexed
        if is_indexed:
            ledger.when_stored(end).then(lambda done: self._written(done, known_to))

    def _written(self, done: Pending[None], known_to: int) -> None:
        with suppress(GoQueueError):
            done.result()
            self.markers_known_to = max(self.markers_known_to, known_to)

    def _with_indexes(self, fact: Fact) -> Fact:
        key, raw = fact
        if key != TRANSACTIONS_KEY or raw is None:
            return fact
        return key, _encode(msgspec.structs.replace(_decode(raw), indexed=sorted(self._log.transactions.indexed)))

    def _load_sequences(self) -> Sequences:
        sequences = Sequences()
        offset = self._log.start_offset
        snapshot = self._last(SEQUENCES_KEY)
        if snapshot is not None:
            try:
                offset = max(offset, sequences.restore(snapshot))
            except msgspec.DecodeError as error:  # as if there were none: the log has the same, and takes longer
                self._unreadable.pass_over(SEQUENCES_KEY, error)
            if offset > self._log.next_offset:
                sequences, offset = Sequences(), self._log.start_offset
        reader = self._log.reader(offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            sequences.note_records(chunk.records)
        return sequences

    def _last(self, wanted: bytes) -> bytes | None:
        found = None
        for key, value in self._facts():
            if key == wanted:
                found = value
        return found
