"""The coordinator: numbers, commits and aborts, repeated requests, and what it refuses."""

import pytest
from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import (
    Conflict,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    RequestTooLarge,
    TransactionAborted,
)
from goqueue.transactions import facts
from goqueue.transactions.decisions import Busy, DecidedAcks, DecidedPosition, Decision
from goqueue.transactions.states import AbortReason, TransactionState, Verdict
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire.transaction_reports import ProducerSession, TransactionOutcome, TransactionOwner
from tests.transactions.desk import (
    ABORTED_ALREADY,
    COMMITTED,
    COMMITTED_ALREADY,
    WALL_NS,
    Desk,
    decided,
    owner_of,
    session_of,
)


def test_numbers_rise_whatever_the_calendar_does() -> None:
    desk = Desk()
    session = desk.init()
    numbers = []
    for jump_ns in (0, 10**9, -(10**15), 0, 5 * 10**15):
        desk.started_at_ns += jump_ns
        transaction = desk.begin("a", session)
        numbers.append(transaction.number)
        desk.carry_out(desk.abort(transaction))

    assert numbers == sorted(set(numbers))
    assert numbers[0] == WALL_NS // 1_000


def test_a_number_whose_begin_was_lost_in_a_crash_is_not_given_again() -> None:
    desk = Desk()
    session = desk.init()
    before = dict(desk.stored)
    lost = desk.begin("a", session)
    desk = Desk(before)
    desk.started_at_ns = WALL_NS - 10**9
    desk.core.load(before, now_ns=0, wall_ns=desk.wall_ns)

    assert desk.core.verdict(lost.producer_id, lost.number) is Verdict.ABORT
    with pytest.raises(TransactionAborted, match=f"restart.*{lost.id}"):
        desk.core.open.check_publish(lost.producer_id, lost.epoch, lost.number)

    assert desk.begin("a", session).number == lost.number + 1


def test_a_producer_may_number_its_transactions_by_itself_upwards_and_not_out_of_sight() -> None:
    desk = Desk()
    session = desk.init()
    assert session.next_number == WALL_NS // 1_000

    def begin(number: int) -> StagedTransaction:
        begun = desk.core.begin("a", session.producer_id, session.epoch, number=number, now_ns=0, wall_ns=WALL_NS)
        assert begun.transaction
        return begun.transaction

    first = begin(session.next_number)
    assert first.number == session.next_number
    desk.carry_out(desk.commit(first))
    for number in (first.number, first.number - 1, first.number + 2 * 10**9, -1):
        with pytest.raises(InvalidRequest) as raised:
            begin(number)
        assert raised.value.path == "number"
    second = begin(first.number + 10)
    assert second.number == first.number + 10
    desk.carry_out(desk.abort(second))
    assert desk.init("a").next_number == second.number + 1
    assert desk.restart().init("a").next_number > second.number
    assert desk.init(None).next_number == 0


def test_a_commit_that_misses_records_is_refused_and_everything_stays_open() -> None:
    desk = Desk()
    one, two = desk.opened("a"), desk.opened("b")
    one.record_count, two.record_count = 3, 5

    def commit(one_count: int | None, two_count: int | None) -> Decision | TransactionOutcome:
        owner, other = owner_of(one), owner_of(two)
        owner.record_count, other.record_count = one_count, two_count
        return desk.core.commit(owner, [other], wall_ns=WALL_NS)

    for counts in ((4, 5), (3, 4), (0, None), (None, 6)):
        with pytest.raises(InvalidTransactionState, match="records are stored"):
            commit(*counts)
        assert (one.state, two.state) == (TransactionState.ONGOING, TransactionState.ONGOING)
    assert desk.carry_out(commit(3, None)) == COMMITTED
    assert commit(3, 5) == COMMITTED_ALREADY


def test_verdicts_follow_the_decision() -> None:
    desk = Desk()
    transaction = desk.opened()
    key = (transaction.producer_id, transaction.number)
    verdicts = [desk.core.verdict(*key)]

    decision = decided(desk.commit(transaction))
    verdicts.append(desk.core.verdict(*key))
    desk.core.decided(decision)
    verdicts.append(desk.core.verdict(*key))
    desk.core.completed(decision, now_ns=0, wall_ns=WALL_NS)
    verdicts.append(desk.core.verdict(*key))
    desk.core.settled(decision)
    verdicts.append(desk.core.verdict(*key))

    assert verdicts == [Verdict.OPEN, Verdict.OPEN, Verdict.COMMIT, Verdict.COMMIT, Verdict.ABORT]
    assert desk.core.verdict(key[0], key[1] + 1) is Verdict.ABORT
    assert desk.core.verdict(12345, 1) is Verdict.ABORT


def test_a_transaction_that_is_being_aborted_is_as_good_as_aborted() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.abort(transaction)

    assert desk.core.verdict(transaction.producer_id, transaction.number) is Verdict.ABORT


def test_a_commit_that_could_not_be_written_leaves_everything_as_it_was() -> None:
    desk = Desk()
    one, two = desk.opened("a", timeout_ms=10), desk.opened("b")
    decision = decided(desk.commit(one, two, marker="m"))
    with pytest.raises(Busy):
        desk.abort(two)
    assert desk.tick(10 * MS) == []

    desk.core.withdrawn(decision)

    assert (one.state, two.state) == (TransactionState.ONGOING, TransactionState.ONGOING)
    assert desk.core.open.check_publish(two.producer_id, two.epoch, two.number) is two
    assert [expired.reason for expired in desk.tick()] == [AbortReason.TIMEOUT]
    assert desk.core.list()[0].state == "PrepareAbort"
    assert desk.carry_out(desk.commit(two, marker="m")) == COMMITTED


def test_the_last_outcome_is_known_until_the_next_begin_or_init() -> None:
    desk = Desk()
    first = desk.opened()
    desk.carry_out(desk.commit(first))
    assert desk.commit(first) == COMMITTED_ALREADY
    assert desk.restart().commit(first) == COMMITTED_ALREADY
    with pytest.raises(InvalidTransactionState):
        desk.abort(first)

    second = desk.begin("a", session_of(first))
    desk.carry_out(desk.abort(second))
    assert desk.abort(second) == ABORTED_ALREADY
    assert desk.restart().abort(second) == ABORTED_ALREADY
    with pytest.raises(InvalidTransactionState):
        desk.commit(second)
    with pytest.raises(InvalidTransactionState):
        desk.restart().commit(second)

    session = desk.init("a")
    owner = TransactionOwner("a", session.producer_id, session.epoch)
    for ask in (desk.core.commit, desk.core.abort):
        with pytest.raises(InvalidTransactionState, match="no transaction open: a is Empty"):
            ask(owner, wall_ns=WALL_NS)


def test_a_call_that_names_its_transaction_never_hits_another_one() -> None:
    desk = Desk()
    first = desk.opened()
    desk.carry_out(desk.commit(first))
    second = desk.begin("a", session_of(first))

    for late in (desk.commit, desk.abort):
        with pytest.raises(InvalidTransactionState, match="no transaction open"):
            late(first, number=first.number)
        assert second.state is TransactionState.ONGOING
    lost = second.number + 1
    with pytest.raises(TransactionAborted):
        desk.commit(first, number=lost)
    assert desk.abort(first, number=lost) == ABORTED_ALREADY
    assert desk.carry_out(desk.commit(second, number=second.number)) == COMMITTED
    assert desk.commit(second, number=second.number) == COMMITTED_ALREADY
    with pytest.raises(InvalidTransactionState):
        desk.commit(second, number=first.number)


def test_a_commit_whose_begin_was_lost_is_not_taken_for_the_last_one_again() -> None:
    desk = Desk()
    first = desk.opened()
    desk.carry_out(desk.commit(first))
    before = dict(desk.stored)
    second = desk.begin("a", session_of(first))
    desk = Desk(before)
    desk.core.load(before, now_ns=0, wall_ns=WALL_NS)

    with pytest.raises(TransactionAborted):
        desk.commit(second, number=second.number)


def test_whoever_asks_meanwhile_is_to_wait_but_a_zombie_is_refused_at_once() -> None:
    desk = Desk()
    transaction = desk.opened()
    decision = decided(desk.commit(transaction, marker="m"))
    other = desk.opened("b")

    for ask in (
        lambda: desk.init("a"),
        lambda: desk.begin("a", session_of(transaction)),
        lambda: desk.commit(transaction),
        lambda: desk.abort(transaction),
        lambda: desk.core.abort_by_id(transaction.id),
        lambda: desk.commit(other, transaction),
        lambda: desk.commit(other, marker="m"),
        lambda: desk.begin("c", desk.init("c"), marker="m"),
    ):
        with pytest.raises(Busy) as busy:
            ask()
        assert busy.value.decision is decision
    for ask in (
        lambda: desk.begin("a", ProducerSession(101, 7)),
        lambda: desk.core.commit(TransactionOwner("a", 101, 7), wall_ns=WALL_NS),
        lambda: desk.core.abort(TransactionOwner("a", 101, 7), wall_ns=WALL_NS),
    ):
        with pytest.raises(ProducerFenced):
            ask()
    with pytest.raises(InvalidTransactionState):
        desk.core.open.check_publish(101, 0, transaction.number)
    assert other.state is TransactionState.ONGOING


def test_transactions_that_were_committed_one_by_one_were_not_committed_together() -> None:
    desk = Desk()
    one, two = desk.opened("a"), desk.opened("b")
    desk.carry_out(desk.commit(one))
    desk.carry_out(desk.commit(two))

    with pytest.raises(InvalidTransactionState):
        desk.commit(one, two)


def test_an_owner_that_is_named_twice_counts_once() -> None:
    desk = Desk()
    transaction = desk.opened()

    decision = decided(desk.commit(transaction, transaction))

    assert len(decision.parts) == 1


def test_an_owner_that_is_named_twice_with_different_transactions_is_refused() -> None:
    desk = Desk()
    transaction = desk.opened()

    with pytest.raises(InvalidRequest) as raised:
        desk.core.commit(owner_of(transaction), [owner_of(transaction, number=5)], wall_ns=WALL_NS)
    assert raised.value.path == "transactions"


def test_too_much_is_refused_and_nothing_is_decided() -> None:
    desk = Desk(together_max=2, open_max=3, partitions_max=2, decision_bytes_max=300)
    one, two, three = (desk.opened(name) for name in "abc")
    with pytest.raises(Conflict, match="3 open transactions"):
        desk.opened("d")
    with pytest.raises(InvalidRequest):
        desk.commit(one, two, three)
    for number in range(2):
        one.add_partition("t", "id", number, wall_ns=0)
        one.add_position(DecidedPosition("g", "t", "id", number, 1), wall_ns=0)
        one.add_acks(DecidedAcks("g", "t", "id", number, BitMap64([1])), wall_ns=0)
    for add in (
        lambda: one.add_partition("t", "id", 2, wall_ns=0),
        lambda: one.add_position(DecidedPosition("g", "t", "id", 2, 1), wall_ns=0),
        lambda: one.add_acks(DecidedAcks("h", "t", "id", 0, BitMap64([1])), wall_ns=0),
    ):
        with pytest.raises(Conflict, match="which is the limit"):
            add()
    one.add_position(DecidedPosition("g", "t", "id", 1, 2), wall_ns=0)
    one.add_acks(DecidedAcks("g", "t", "id", 0, BitMap64(range(0, 1_000, 3))), wall_ns=0)

    with pytest.raises(RequestTooLarge):
        desk.commit(one, two, marker="m")

    assert {transaction.state for transaction in (one, two, three)} == {TransactionState.ONGOING}
    assert desk.carry_out(desk.commit(two, marker="m")) == COMMITTED
    desk.carry_out(desk.abort(one))


def test_settling_may_be_asked_for_again_and_says_what_is_true_by_then() -> None:
    desk = Desk()
    first = desk.opened()
    decision = decided(desk.commit(first, marker="m"))
    desk.carry_out(decision, settle=False)
    second = desk.begin("a", session_of(first))

    news = desk.core.settled(decision)

    assert list(news) == [b"t:a", b"m:m", b"d:" + first.id.encode()]
    assert facts.decode(facts.SavedTransactional, b"t:a", news[b"t:a"] or b"").number == second.number
    assert news[b"d:" + first.id.encode()] is None
    desk.carry_out(desk.abort(second))
    again = desk.core.settled(decision)
    assert facts.decode(facts.SavedTransactional, b"t:a", again[b"t:a"] or b"").state is TransactionState.COMPLETE_ABORT


def test_an_operator_cannot_abort_what_is_committed() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction))

    with pytest.raises(InvalidTransactionState):
        desk.core.abort_by_id(transaction.id)


def test_a_refusal_is_always_one_of_ours() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction))

    for producer_id, epoch, number in (
        (101, 0, 1),
        (101, 0, transaction.number),
        (101, 1, 1),
        (5, 0, 1),
        (101, 0, 2**62),
    ):
        with pytest.raises(GoQueueError):
            desk.core.open.check_publish(producer_id, epoch, number)


def test_an_abort_that_was_not_asked_for_is_told_for_its_own_transaction_only() -> None:
    desk = Desk()
    first = desk.opened(timeout_ms=10)
    desk.carry_out(desk.abort(first))
    second = desk.begin("a", session_of(first))
    (decision,) = desk.tick(10 * MS)
    desk.carry_out(decision)

    with pytest.raises(InvalidTransactionState):
        desk.abort(first, number=first.number)
    with pytest.raises(InvalidTransactionState):
        desk.core.open.check_publish(first.producer_id, first.epoch, first.number)
    with pytest.raises(TransactionAborted):
        desk.core.open.check_publish(first.producer_id, first.epoch, second.number)


def test_a_begin_and_an_init_make_the_last_abort_a_thing_of_the_past() -> None:
    desk = Desk()
    first = desk.opened(timeout_ms=10)
    (decision,) = desk.tick(10 * MS)
    desk.carry_out(decision)
    second = desk.begin("a", session_of(first))
    with pytest.raises(TransactionAborted, match="restart"):
        desk.restart().commit(second)
    (decision,) = desk.tick(10 * MS)
    desk.carry_out(decision)

    session = desk.init("a")

    with pytest.raises(InvalidTransactionState, match="a is Empty"):
        desk.core.open.of_producer(session.producer_id, session.epoch)
