"""Lookups of open transactions: by number, by producer, by id."""

import pytest
from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import (
    InvalidTransactionState,
    ProducerFenced,
    TransactionAborted,
    TransactionNotFound,
)
from goqueue.transactions.decisions import DecidedAcks
from tests.transactions.desk import (
    ABORTED_ALREADY,
    WALL_NS,
    Desk,
    decided,
    session_of,
)


def test_transactions_are_listed_the_oldest_first_and_described() -> None:
    desk = Desk()
    names = ("c", "a", "b")
    transactions = []
    for name in names:
        transactions.append(desk.opened(name))
        desk.now_ns += MS
    transactions[0].add_partition("t", "id", 1, wall_ns=desk.wall_ns)
    transactions[0].add_partition("t", "id", 0, wall_ns=desk.wall_ns)
    transactions[0].add_acks(DecidedAcks("g", "t", "id", 0, BitMap64([1])), wall_ns=desk.wall_ns)

    assert tuple(one.transactional_id for one in desk.core.list()) == names
    shown = desk.core.describe(transactions[0].id)
    assert (shown.state, shown.started_at_ns, shown.updated_at_ns) == ("Ongoing", WALL_NS, desk.wall_ns)
    assert ([str(one) for one in shown.partitions], shown.groups) == (["t-0", "t-1"], ["g"])
    desk.carry_out(desk.commit(transactions[0]))
    with pytest.raises(TransactionNotFound):
        desk.core.describe(transactions[0].id)


@pytest.mark.parametrize("id", ["", "a", "a:", ":", "a:x", "a:0", "a:01", "a:-1", "b:1", "a:" + "9" * 30, "a:²"])
def test_what_is_no_transaction_is_not_found(id: str) -> None:
    desk = Desk()
    desk.opened()

    for ask in (desk.core.open.unfinished, desk.core.describe, desk.core.open.by_id, desk.core.abort_by_id):
        with pytest.raises(TransactionNotFound):
            ask(id)


def test_a_transaction_is_found_for_publishing_only_while_it_is_open() -> None:
    desk = Desk()
    transaction = desk.opened()
    assert desk.core.open.by_id(transaction.id) is transaction
    assert desk.core.open.find(transaction.producer_id, transaction.number) is transaction
    decision = decided(desk.commit(transaction))
    with pytest.raises(InvalidTransactionState):
        desk.core.open.by_id(transaction.id)
    assert desk.core.open.unfinished(transaction.id) is transaction
    desk.carry_out(decision)
    with pytest.raises(InvalidTransactionState):
        desk.core.open.by_id(transaction.id)
    assert desk.core.open.find(transaction.producer_id, transaction.number) is None

    later = desk.begin("a", session_of(transaction))
    with pytest.raises(TransactionNotFound):
        desk.core.open.by_id(transaction.id)
    desk.carry_out(desk.core.abort_by_id(later.id))
    with pytest.raises(TransactionAborted, match="admin"):
        desk.core.open.by_id(later.id)
    assert desk.core.abort_by_id(later.id) == ABORTED_ALREADY
    with pytest.raises(TransactionNotFound):
        desk.core.abort_by_id(transaction.id)


def test_a_transaction_has_one_name_only() -> None:
    desk = Desk()
    transaction = desk.opened()

    with pytest.raises(TransactionNotFound):
        desk.core.open.unfinished(f"a:0{transaction.number}")


def test_an_epoch_that_was_never_given_publishes_nothing() -> None:
    desk = Desk()
    transaction = desk.opened()

    with pytest.raises(ProducerFenced):
        desk.core.open.check_publish(transaction.producer_id, transaction.epoch + 1, transaction.number)
