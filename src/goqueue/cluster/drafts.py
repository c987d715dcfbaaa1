"""Entries of the metadata log that are decided and not applied yet, in order.

    decide ──> last draft ──> ... ──> first draft ──> in flight ──> applied: its requests are answered

A decision is a list of records that stay together. It takes effect on the controller's copy of the state at once, so
the next decision is computed on it (R3), and no record that contradicts the state gets any further. While one entry is
in flight, decisions gather in the last draft, up to `ENTRY_BYTES`; so the index of the entry that a decision will be in
is known from the start. The log makes it true: an entry is at its index or it is lost, and then this controller with
all of its drafts is done.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from goqueue.cluster.messages import AnyNodeMessage
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.records import BrokerRegistered, Record, encode_record, join_batch
from goqueue.errors import ClusterError
from goqueue.service.pending import Pending

ENTRY_BYTES: Final = 128 * 1024
"""A decision that is larger has an entry of its own."""


class EntryDraft:
    """One entry to be."""

    __slots__ = ("answers", "index", "records", "size")

    def __init__(self, index: int) -> None:
        self.index = index
        self.records: list[bytes] = []
        self.size = 0
        self.answers: list[tuple[Pending[AnyNodeMessage], AnyNodeMessage]] = []


class Drafts:
    """The entries that a controller has decided on, and its copy of the state with all of them.

    A decision that contradicts the state is a bug: `add` raises `MetadataContradiction`. A part of it may have changed
    the copy, so nothing that was computed on the copy is written any more.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.state = metadata.copy()
        self._drafts: deque[EntryDraft] = deque()
        self._is_in_flight = False  # the first of them
        self.size = 0
        """The bytes of all drafts."""
        self.is_broken = False
        """Whether a decision has contradicted the state."""

    @property
    def has_any(self) -> bool:
        """Whether something is decided and not applied yet."""
        return bool(self._drafts)

    @property
    def last_index(self) -> int:
        """The index of the last entry that is decided."""
        return self.state.position.index + len(self._drafts)

    @property
    def committed_index(self) -> int:
        """The index of the last entry that is applied."""
        return self.state.position.index

    def add(self, records: Sequence[Record]) -> int:
        """Decide on these records, in one entry; returns its index."""
        encoded = [encode_record(record) for record in records]
        size = sum(map(len, encoded))
        draft = self._draft_for(size, records)
        try:
            for record in records:
                self.state.change(record, draft.index)
        except ClusterError:
            self.is_broken = True
            raise
        draft.records += encoded
        draft.size += size
        self.size += size
        return draft.index

    def add_each(self, records: Iterable[Record]) -> None:
        """Decide on records that need not be in one entry. Each is computed after the last one has taken effect."""
        for record in records:
            self.add((record,))

    def answer(self, message: AnyNodeMessage) -> Pending[AnyNodeMessage]:
        """The answer, once all that is decided now is applied; at once if it is."""
        if not self._drafts:
            return Pending.of(message)
        pending: Pending[AnyNodeMessage] = Pending()
        self._drafts[-1].answers.append((pending, message))
        return pending

    def next_entry(self, entry_id: bytes) -> MetadataEntry | None:
        """The first draft as an entry, which is in flight from now on; None if there is none that can be written."""
        if self._is_in_flight or not self._drafts or self.is_broken:
            return None
        self._is_in_flight = True
        draft, state = self._drafts[0], self.state
        assert state.controller is not None
        return MetadataEntry(
            index=draft.index,
            id=entry_id,
            previous_id=state.position.id,
            epoch=state.epoch,
            node=state.controller,
            batch=join_batch(draft.records),
        )

    def applied(self, entry: MetadataEntry) -> None:
        """The entry in flight is in the log, and applied."""
        assert self._is_in_flight
        assert entry.index == self._drafts[0].index
        draft = self._drafts.popleft()
        self._is_in_flight = False
        self.size -= draft.size
        self.state.reach(entry)
        for pending, answer in draft.answers:
            pending.resolve(answer)

    def drop(self, answer: AnyNodeMessage) -> None:
        """Forget all drafts; who waits for them gets this answer."""
        drafts = list(self._drafts)
        self._drafts.clear()
        self._is_in_flight = False
        self.size = 0
        for draft in drafts:
            for pending, _ in draft.answers:
                pending.resolve(answer)

    def _draft_for(self, size: int, records: Sequence[Record]) -> EntryDraft:
        """The last draft, if it is not in flight and has room, else a new one."""
        if self._drafts and not (self._is_in_flight and len(self._drafts) == 1):
            draft = self._drafts[-1]
            if (not draft.records or draft.size + size <= ENTRY_BYTES) and not self._registers_again(draft, records):
                return draft
        draft = EntryDraft(self.last_index + 1)
        self._drafts.append(draft)
        return draft

    def _registers_again(self, draft: EntryDraft, records: Sequence[Record]) -> bool:
        """Whether a node would register twice in one entry: both would have the same broker epoch."""
        for record in records:
            if isinstance(record, BrokerRegistered):
                before = self.state.broker(record.node)
                if before is not None and before.broker_epoch == draft.index:
                    return True
        return False
