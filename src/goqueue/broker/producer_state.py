"""What producers and their transactions did to one partition, and how it is remembered.

All of it is in the log. Two snapshots in the ledger spare a start the reading of most of it: `producers`, which is
looked for when somebody first publishes, and `transactions`, which is looked for at the start, but only where there
ever were any. A snapshot is taken when a flush begins and written when it is through, so it never speaks of records
that are not on the medium; one that cannot be written, or read, costs time and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
from pyroaring import BitMap64

from goqueue.broker.live_ledger import Fact, LiveLedger
from goqueue.broker.pending import Pending
from goqueue.errors import StorageError, TopicNotFound
from goqueue.record.header import Flags
from goqueue.record.identity import BatchIdentity
from goqueue.storage.log import Appended, Log
from goqueue.transactions.partition_transactions import Decided, PartitionTransactions
from goqueue.transactions.sequences import Sequences

SEQUENCES_KEY = b"producers"
TRANSACTIONS_KEY = b"transactions"
LOAD_BYTES = 4 * 1024 * 1024


class ProducerState:
    """The sequences and the transactions of one partition."""

    def __init__(self, log: Log, ledger: Callable[[], LiveLedger]) -> None:
        self._log = log
        self._ledger = ledger
        self._sequences: Sequences | None = None
        self.transactions: PartitionTransactions | None = None  # nothing was ever written in one
        self.has_news = False  # which no snapshot tells
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
        transactions = PartitionTransactions()
        known = self._log.aborted()
        transactions.aborted |= known.offsets
        if known.replay_from is not None:
            transactions.aborted |= self._mended(known.replay_from)
        offset = self._restored(transactions, self._last(TRANSACTIONS_KEY))
        self.markers_known_to = offset
        for decided in self._replay(transactions, offset):
            self._note_aborted(decided)
        transactions.drop_below(max(self._log.start_offset, self._log.cleaned_offset))  # there all is decided
        self.transactions = transactions

    def _restored(self, transactions: PartitionTransactions, snapshot: bytes | None) -> int:
        """From where on the log has to be read; one that cannot be read or speaks of records that are gone is none."""
        with suppress(msgspec.DecodeError):
            if snapshot is not None:
                offset = transactions.restore(snapshot)
                if offset <= self._log.next_offset:
                    return max(offset, self._log.start_offset)
                transactions.forget_open()
        return self._log.start_offset

    def _mended(self, replay_from: int) -> BitMap64:
        """What was aborted since, as the log tells it; damaged indexes are replaced."""
        seen = PartitionTransactions()
        for decided in self._replay(seen, max(replay_from, self._log.start_offset)):
            self._note_aborted(decided)
        self._log.mend_txn_indexes()
        return seen.aborted

    def _replay(self, transactions: PartitionTransactions, offset: int) -> Iterator[Decided]:
        reader = self._log.reader(offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            if chunk.flags & Flags.TRANSACTIONAL:
                yield from transactions.note_records(chunk.records)

    def _note_aborted(self, decided: Decided) -> None:
        if not decided.is_commit:
            for first, end in decided.ranges:
                self._log.note_aborted(first, end, decided.marker_offset)

    def maintain(self, *, start_offset: int, now_ns: int) -> None:
        """Forget who has been silent for long, and what retention has taken."""
        if self._sequences is not None:
            self._sequences.forget_idle(now_ns=now_ns)
        if self.transactions is not None:
            self.transactions.drop_below(start_offset)

    def snapshots(self) -> list[Fact]:
        """All that there is to remember, as of the end of the log."""
        self.has_news = False
        facts: list[Fact] = []
        if self._sequences is not None:
            facts.append((SEQUENCES_KEY, self._sequences.snapshot(self._log.next_offset)))
        if self.transactions is not None:
            facts.append((TRANSACTIONS_KEY, self.transactions.snapshot(self._log.next_offset)))
        return facts

    def write(self, facts: Sequence[Fact], *, known_to: int) -> None:
        """Bring snapshots to the ledger; they tell of all below the offset, which is on the medium.

        One of transactions does not tell what was aborted, so the indexes that do have to be there first.
        """
        is_indexed = self._log.txn_synced_offset >= known_to
        told = [fact for fact in facts if is_indexed or fact[0] != TRANSACTIONS_KEY]
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

    def _load_sequences(self) -> Sequences:
        sequences = Sequences()
        offset = self._log.start_offset
        snapshot = self._last(SEQUENCES_KEY)
        if snapshot is not None:
            try:
                offset = max(offset, sequences.restore(snapshot))
            except msgspec.DecodeError:  # one that another version wrote is as good as none
                pass
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
