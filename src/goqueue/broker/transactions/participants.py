"""What partitions do in a transaction, wherever their leaders are.

    prepare          all records of the transaction are committed: no crash and no change of leader can take them back
    check_acks       it still holds the messages that it has acknowledged
    write_marker     its records are visible, or hidden for good; done when the marker is committed
    apply_acks       what it holds is done, or is delivered again
    apply_position   the position of a group takes effect

Every call names the transaction by producer and number, and can be repeated: a transaction that has ended in a
partition is not touched again, and a number is never used twice. So a coordinator asks until it is answered, whichever
leader the partition has by then, and a late marker cannot touch a later transaction.

A call raises, or fails with, `NotLeader` and `StorageFull` if it has to be repeated. A topic that was deleted, or was
created again since, has nothing to do. A topic that is quarantined has nothing to do now: `check_quarantine` tells.
"""

from contextlib import suppress
from typing import Protocol

from goqueue.broker.groups.groups import Groups
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.errors import GoQueueError
from goqueue.service.pending import Pending
from goqueue.topics.config import is_internal
from goqueue.transactions.decisions import DecidedAcks, DecidedPartition, DecidedPosition
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire import reports

TransactionKey = tuple[int, int]
"""Producer id and number."""


class RecordsLost(Exception):
    """A change of leader has lost records or acks of the transaction, which can only be aborted."""

    def __init__(self, transaction_id: str = "") -> None:
        super().__init__(transaction_id)
        self.transaction_id = transaction_id


class Participants(Protocol):
    """The partitions that a transaction touches."""

    def end_of(self, transaction: StagedTransaction, place: DecidedPartition) -> DecidedPartition:
        """The partition with its end now, below which all records of the transaction are. Raises `RecordsLost`."""

    def check_acks(self, transaction: StagedTransaction, acks: DecidedAcks) -> None:
        """Raise `RecordsLost` unless the transaction holds these."""

    def prepare(self, place: DecidedPartition) -> Pending[None]:
        """Done when all records below the end are committed; fails with `RecordsLost` if they are gone."""

    def show(self, places: list[tuple[DecidedPartition, TransactionKey]]) -> None:
        """Make committed transactions visible, as far as that is possible at once."""

    def write_marker(self, place: DecidedPartition, key: TransactionKey, *, commit: bool) -> Pending[None]:
        """End the transaction in the partition; done when that is committed."""

    def apply_acks(
        self, acks: DecidedAcks, key: TransactionKey, *, commit: bool, is_again: bool = False
    ) -> Pending[None]:
        """Finish what the transaction holds, or deliver it again; done when that is committed. With `is_again`, after a
        restart, finish it even if it is no longer held: a power failure may have lost what the ledger knew.
        """

    def apply_position(self, position: DecidedPosition) -> Pending[None]:
        """Commit the position of the group; done when that is committed."""

    def check_quarantine(self, topic: str) -> Pending[None]:
        """Fails if the topic has files that cannot be used now: nothing in it has been done."""


class LocalParticipants:
    """The partitions of this node. The leader is looked up for each call."""

    def __init__(self, partitions: LocalPartitions, groups: Groups) -> None:
        self._partitions = partitions
        self._groups = groups

    # --- before the decision -------------------------------------------------------------------

    def end_of(self, transaction: StagedTransaction, place: DecidedPartition) -> DecidedPartition:
        """As `Participants`. A leader of another epoch than the one that stored the first record is asked whether it
        has all of them: an earlier leader may have lost what was not committed.
        """
        leader = self._leader(place)
        if leader is None:
            return place
        written = transaction.written_to(place)
        if written is not None and written.epoch != leader.epoch:
            transactions = leader.producers.transactions
            if transactions is None or transactions.record_count(*transaction.key) != written.record_count:
                raise RecordsLost(transaction.id)
        return DecidedPartition(place.topic, place.topic_id, place.partition, leader.log.next_offset, leader.epoch)

    def check_acks(self, transaction: StagedTransaction, acks: DecidedAcks) -> None:
        """As `Participants`. A leader of the same epoch has lost nothing. From now on no leader here will: after a
        restart, acks of a decision take effect whether they are held or not.
        """
        leader = self._leader(acks)
        if leader is None or leader.epoch == transaction.held_in(acks):
            return
        found = self._partitions.delivery(leader).groups.get(acks.group)
        if found is not None and not acks.offsets.issubset(found.cursor.held_by(transaction.key)):
            raise RecordsLost(transaction.id)

    def prepare(self, place: DecidedPartition) -> Pending[None]:
        """As `Participants`."""
        leader = self._leader(place)
        if leader is None:
            return Pending.of(None)
        log = leader.log
        if log.epochs.end_of(place.epoch, log_end=log.next_offset).start_offset < place.end_offset:
            return Pending.failed(RecordsLost())
        return leader.when_stored(place.end_offset, None)

    def was_recovered(self, place: DecidedPartition) -> bool:
        """Whether the log had all records below the end when this process opened it."""
        found = self._partitions.find(place.topic) if not is_internal(place.topic) else None
        replica = found.replicas.get(place.partition) if found and found.topic.id == place.topic_id else None
        return replica is None or replica.opened_end >= place.end_offset

    # --- after the decision --------------------------------------------------------------------

    def show(self, places: list[tuple[DecidedPartition, TransactionKey]]) -> None:
        """Make the commit visible in all partitions at once, before the first marker: a later one may fail."""
        shown = []
        for place, key in places:
            with suppress(GoQueueError):  # without a leader there are no reads; its next leader writes the marker
                leader = self._leader(place)
                if leader is not None:
                    leader.commit_transaction(*key)
                    shown.append(leader)
        for leader in shown:
            leader.advance_visible()

    def write_marker(self, place: DecidedPartition, key: TransactionKey, *, commit: bool) -> Pending[None]:
        """As `Participants`."""
        leader = self._leader(place)
        if leader is None:
            return Pending.of(None)
        if commit:
            leader.commit_transaction(*key)
            leader.advance_visible()
        return leader.end_transaction(*key, commit=commit)

    def apply_acks(
        self, acks: DecidedAcks, key: TransactionKey, *, commit: bool, is_again: bool = False
    ) -> Pending[None]:
        """As `Participants`."""
        leader = self._leader(acks)
        if leader is None:
            return Pending.of(None)
        if commit:
            return self._groups.apply_acks(acks.group, leader, acks.offsets, key, is_again=is_again)
        return self._groups.release_acks(acks.group, leader, key)

    def apply_position(self, position: DecidedPosition) -> Pending[None]:
        """As `Participants`."""
        leader = self._leader(position)
        if leader is None:
            return Pending.of(None)
        commit = reports.PositionCommit(position.topic, position.partition, position.offset, position.metadata)
        return self._groups.apply_position(position.group, commit)

    def check_quarantine(self, topic: str) -> Pending[None]:
        """As `Participants`."""
        quarantined = self._partitions.quarantined(topic)
        return Pending.of(None) if quarantined is None else Pending.failed(quarantined)

    # --- transactions that a partition has and no coordinator knows -----------------------------

    def open_in(self, leader: PartitionLeader) -> set[TransactionKey]:
        """The transactions that have records or acks in the partition, and have not ended there."""
        transactions = leader.producers.transactions
        found = set(transactions.open) if transactions is not None else set()
        if leader.delivery is not None:
            for group_delivery in self._partitions.delivery(leader).groups.values():
                found |= group_delivery.cursor.held.keys()
        return found

    def abort(self, leader: PartitionLeader, key: TransactionKey) -> None:
        """End a transaction whose coordinator does not know it. Raises as `write_marker`."""
        leader.end_transaction(*key, commit=False)
        if leader.delivery is not None:
            for group in list(self._partitions.delivery(leader).groups):
                self._groups.release_acks(group, leader, key)

    # --- inside --------------------------------------------------------------------------------

    def _leader(self, place: DecidedPartition | DecidedAcks | DecidedPosition) -> PartitionLeader | None:
        """The leader; None if the topic was deleted or is quarantined. Raises `NotLeader`."""
        return self._partitions.local_leader(place.topic, place.topic_id, place.partition)
