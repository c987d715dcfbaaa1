"""What producers and their transactions did to one partition, and how it is remembered.

All of it is in the log. Two snapshots in the ledger spare a start the reading of most of it: `producers`, which is
looked for when somebody first publishes, and `transactions`, which is looked for at the start, but only where there
ever were any. A snapshot is taken when a flush begins and written when it is through, so it never speaks of records
that are not on the medium; one that cannot be written, or read, costs time and nothing else. The one of transactions
also tells how many markers there are, and which segments have an index of what was aborted: one that is missing is made
anew from the log, as one that is damaged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from pyroaring import BitMap64

from goqueue.broker.partition.ledger import Fact, PartitionLedger
from goqueue.broker.partition.unreadable import UnreadableFacts
from goqueue.errors import StorageError, TopicNotFound
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
    """What is remembered of transactions."""

    transactions: bytes  # `PartitionTransactions.snapshot`
    markers: dict[_Whole, _Whole]
    indexed: list[int] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


class ProducerState:
    """The sequences and the transactions of one partition."""

    def __init__(
        self, log: Log, ledger: Callable[[], PartitionLedger], *, unreadable: UnreadableFacts | None = None
    ) -> None:
        self._log = log
        self._ledger = ledger
        self._unreadable = UnreadableFacts(log.directory) if unreadable is None else unreadable
        self._sequences: Sequences | None = None
        self.transactions: PartitionTransactions | None = None  # nothing was ever written in one
        self.has_news = False  # which no snapshot tells
        self.markers = MarkerCounts()
        self.markers_known_to = 0  # a snapshot that was written tells of all transactions below

    @property
    def sequences(self) -> Sequences:
        """What the producers have sent."""
        if self._sequences is None:
            self._sequences = self._load_sequences()
        return self._sequences

    def stored(self, identity: BatchIdentity, appended: Appended) -> None:
        """A batch of a producer is in the log."""
        self.has_news = True
        self.sequences.note(identity, first_offset=appended.first_offset, timestamp_ns=appended.timestamp)
        if identity.transaction:
            self.begun().appended(
                identity.producer_id, identity.transaction, appended.first_offset, appended.record_count
            )

    def begun(self) -> PartitionTransactions:
        """The transactions, from the first one on."""
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        return self.transactions

    def load_transactions(self) -> None:
        """Find out what transactions did: from the last snapshot, the indexes beside the log, and what came since."""
        log, saved = self._log, self._saved()
        decided_below = max(log.start_offset, log.cleaned_offset)  # nothing that is open was ever compacted
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
        """From where on the log has to be read; one that cannot be read or speaks of records that are gone is none."""
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
        # The log has no trace of the markers that compaction took out; they were counted until the snapshot was lost.
        self.markers.add(self._log.start_offset, self._log.control_missing)
        return self._log.start_offset

    def _mended(self, replay_from: int) -> BitMap64:
        """What was aborted since, as the log tells it; damaged indexes are replaced."""
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
        """The log begins there."""
        again = self.markers.drop_below(start_offset)
        if again:
            with suppress(StorageError):  # a few too many messages are told of then
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
        """Forget who has been silent for long, and what retention has taken."""
        if self._sequences is not None:
            self._sequences.forget_idle(now_ns=now_ns)
        if self.transactions is not None:
            self.transactions.drop_below(start_offset)
            self._count_markers_from(start_offset)

    def snapshots(self) -> list[Fact]:
        """All that there is to remember, as of the end of the log."""
        self.has_news = False
        facts: list[Fact] = []
        if self._sequences is not None:
            facts.append((SEQUENCES_KEY, self._sequences.snapshot(self._log.next_offset)))
        if self.transactions is not None:
            saved = _Saved(self.transactions.snapshot(self._log.next_offset), self.markers.saved)
            facts.append((TRANSACTIONS_KEY, _encode(saved)))
        return facts

    def write(self, facts: Sequence[Fact], *, known_to: int) -> None:
        """Bring snapshots to the ledger; they tell of all below the offset, which is on the medium.

        One of transactions does not tell what was aborted, so the indexes that do have to be there first.
        """
        is_indexed = self._log.transactions.synced_offset >= known_to
        told = [self._with_indexes(fact) for fact in facts if is_indexed or fact[0] != TRANSACTIONS_KEY]
        try:
            end = self._ledger().write(told) if told else 0
        except StorageError:
            self.has_news = True
            return
        self.has_news |= not is_indexed
        if is_indexed:
            self._ledger().when_stored(end).then(lambda done: self._written(done, known_to))

    def _written(self, done: Pending[None], known_to: int) -> None:
        with suppress(StorageError, TopicNotFound):
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
            except msgspec.DecodeError as error:  # as good as none: the log tells the same, only later
                self._unreadable.pass_over(SEQUENCES_KEY, error)
            if offset > self._log.next_offset:
                sequences, offset = Sequences(), self._log.start_offset
        reader = self._log.reader(offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            sequences.note_records(chunk.records)
        return sequences

    def _last(self, wanted: bytes) -> bytes | None:
        found = None
        for key, value in self._ledger().facts():
            if key == wanted:
                found = value
        return found
