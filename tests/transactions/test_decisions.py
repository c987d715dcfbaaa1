"""Decisions: everything that has to happen, in one record."""

import pytest
from pyroaring import BitMap64

from goqueue.errors import (
    ProducerNotFound,
)
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.decisions import DecidedAcks, DecidedPosition
from goqueue.transactions.states import TransactionState
from goqueue.wire.transaction_reports import TransactionOwner
from tests.transactions.desk import COMMITTED, COMMITTED_ALREADY, WALL_NS, Desk, decided, owner_of


def test_a_decision_says_everything_that_has_to_happen() -> None:
    desk = Desk()
    transaction = desk.opened()
    assert transaction.add_partition("orders", "id-1", 2, wall_ns=WALL_NS + 5)
    assert not transaction.add_partition("orders", "id-1", 2, wall_ns=WALL_NS + 6)
    transaction.add_position(DecidedPosition("billing", "in", "id-2", 0, 7, "x"), wall_ns=WALL_NS + 7)
    transaction.add_position(DecidedPosition("billing", "in", "id-2", 0, 8, "y"), wall_ns=WALL_NS + 8)
    transaction.add_acks(DecidedAcks("shipping", "in", "id-2", 1, BitMap64([5, 2**40])), wall_ns=WALL_NS + 9)
    transaction.add_acks(DecidedAcks("shipping", "in", "id-2", 1, BitMap64([6])), wall_ns=WALL_NS + 9)

    decision = decided(desk.commit(transaction, marker="m"))
    desk.put(decision.facts)
    recovery = TransactionCoordinator().load(desk.stored, now_ns=0, wall_ns=WALL_NS)

    (found,) = recovery.decisions
    assert recovery.aborted == []
    assert (found.id, found.marker, found.is_commit, found.parts) == (transaction.id, "m", True, decision.parts)
    (part,) = found.parts
    assert (part.transactional_id, part.producer_id, part.number) == ("a", 101, transaction.number)
    assert [(one.topic, one.topic_id, one.partition) for one in part.partitions] == [("orders", "id-1", 2)]
    assert part.positions == [DecidedPosition("billing", "in", "id-2", 0, 8, "y")]
    assert part.acks == [DecidedAcks("shipping", "in", "id-2", 1, BitMap64([5, 6, 2**40]))]


def test_several_are_committed_in_one_record_or_none_is() -> None:
    desk = Desk()
    transactions = [desk.opened(name) for name in "abc"]
    stranger = TransactionOwner("d", 999, 0)

    with pytest.raises(ProducerNotFound):
        desk.core.commit(owner_of(transactions[0]), [owner_of(transactions[1]), stranger], wall_ns=WALL_NS)
    assert {one.state for one in transactions} == {TransactionState.ONGOING}
    decision = decided(desk.commit(*transactions))

    assert len(decision.facts) == 1
    assert [part.transactional_id for part in decision.parts] == ["a", "b", "c"]
    assert desk.carry_out(decision) == COMMITTED
    assert desk.commit(*transactions) == COMMITTED_ALREADY
    assert desk.restart().commit(*reversed(transactions)) == COMMITTED_ALREADY
