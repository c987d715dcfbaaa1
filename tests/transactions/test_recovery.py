"""A coordinator after a restart: decisions are carried out again, everything else is aborted."""

import pytest

from goqueue.errors import (
    InvalidTransactionState,
    TransactionAborted,
)
from goqueue.transactions import facts
from goqueue.transactions.coordinator import Facts, TransactionCoordinator
from goqueue.transactions.decisions import Busy, DecidedPosition
from goqueue.transactions.states import AbortReason, TransactionState, Verdict
from goqueue.wire.transaction_reports import TransactionOwner
from tests.transactions.desk import WALL_NS, Desk, decided, holder, owner_of, session_of


def test_two_commits_that_are_both_not_settled_are_both_found_again() -> None:
    desk = Desk()
    first = desk.opened()
    desk.carry_out(desk.commit(first), settle=False)
    second = desk.begin("a", session_of(first))
    desk.carry_out(desk.commit(second), settle=False)
    del desk.stored[b"t:a"]
    for stored in (desk.stored, {**desk.stored, b"t:a": holder(number=first.number, state=TransactionState.ONGOING)}):
        core = TransactionCoordinator()

        recovery = core.load(stored, now_ns=0, wall_ns=WALL_NS)

        assert [decision.id for decision in recovery.decisions] == [first.id, second.id]
        assert recovery.aborted == []
        for transaction in (first, second):
            assert core.verdict(transaction.producer_id, transaction.number) is Verdict.OPEN
        for decision in recovery.decisions:
            core.decided(decision)
        for transaction in (first, second):
            assert core.verdict(transaction.producer_id, transaction.number) is Verdict.COMMIT
        for decision in recovery.decisions:
            core.completed(decision, now_ns=0, wall_ns=WALL_NS)
            core.settled(decision)
        assert core.list() == []
        assert core.verdict(second.producer_id, second.number) is Verdict.ABORT


def test_a_new_instance_that_came_after_a_commit_is_not_told_of_it_as_its_own() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction), settle=False)
    session = desk.init("a")

    desk = desk.restart()

    with pytest.raises(InvalidTransactionState, match="a is Empty"):
        desk.core.commit(TransactionOwner("a", session.producer_id, session.epoch), wall_ns=WALL_NS)


def test_a_commit_under_way_at_a_restart_is_shown_until_it_is_carried_out() -> None:
    desk = Desk()
    transaction = desk.opened()
    transaction.add_partition("orders", "id", 1, wall_ns=WALL_NS)
    transaction.add_position(DecidedPosition("billing", "in", "id", 0, 1), wall_ns=WALL_NS)
    desk.put(decided(desk.commit(transaction, marker="m")).facts)
    core = TransactionCoordinator()
    (decision,) = core.load(desk.stored, now_ns=0, wall_ns=WALL_NS + 5).decisions

    (shown,) = core.list()
    assert (shown.state, [str(one) for one in shown.partitions], shown.groups) == (
        "PrepareCommit",
        ["orders-1"],
        ["billing"],
    )
    with pytest.raises(Busy):
        core.init("a", timeout_ms=1, new_id=1, wall_ns=WALL_NS)
    with pytest.raises(Busy):
        core.begin("a", 101, 0, marker="m", now_ns=0, wall_ns=WALL_NS)
    core.decided(decision)
    core.completed(decision, now_ns=0, wall_ns=WALL_NS + 5)
    assert core.list() == []
    begun = core.begin("a", 101, 0, marker="m", now_ns=0, wall_ns=WALL_NS)
    assert (begun.answer.already_committed, begun.facts, begun.transaction) == (True, {}, None)


def test_a_decision_whose_data_is_lost_never_counts_and_its_transactions_are_aborted() -> None:
    desk = Desk()
    first, second = desk.opened("a"), desk.opened("b")
    desk.put(decided(desk.commit(first, second, marker="m")).facts)
    core = TransactionCoordinator()
    (decision,) = core.load(desk.stored, now_ns=0, wall_ns=WALL_NS).decisions

    abort = core.voided(decision, AbortReason.RESTART)

    assert abort is not None
    assert [part.transactional_id for part in abort.parts] == ["a", "b"]
    core.completed(abort, now_ns=0, wall_ns=WALL_NS)
    for transaction in (first, second):
        assert core.verdict(transaction.producer_id, transaction.number) is Verdict.ABORT
        with pytest.raises(TransactionAborted, match="restart"):
            core.commit(owner_of(transaction), wall_ns=WALL_NS)
    assert not core.begin("a", 101, 0, marker="m", now_ns=0, wall_ns=WALL_NS).answer.already_committed


@pytest.mark.parametrize(
    "state", [TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT]
)
def test_whatever_was_not_decided_is_aborted_by_a_restart(state: TransactionState) -> None:
    core = TransactionCoordinator()

    recovery = core.load({b"t:a": holder(number=7, state=state)}, now_ns=0, wall_ns=WALL_NS)

    assert recovery.aborted == ["a:7"]
    assert core.stats().by_state["CompleteAbort"] == core.stats().aborted_total == 1
    with pytest.raises(TransactionAborted, match="restart"):
        core.open.of_producer(101, 0)
    (raw,) = core.take_facts().values()
    assert facts.decode(facts.SavedTransactional, b"t:a", raw or b"").state is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (b"t:a", b"\xc1"),
        (b"t:a", b""),
        (b"t:a", b"\x92\x02\x01"),
        (b"t:a", b"not msgpack at all"),
        (b"t:\xff", holder(number=1, state=TransactionState.EMPTY)),
        (b"p:x", facts.encode(facts.SavedProducer(facts.VERSION, 0, 0))),
        (b"p:1", facts.encode(facts.SavedProducer(facts.VERSION + 1, 0, 0))),
        (b"d:a:1", facts.encode(facts.SavedMarker(facts.VERSION, 0, 0))),
        (b"x:1", facts.encode(facts.SavedMarker(facts.VERSION, 0, 0))),
        (b"", b""),
    ],
)
def test_a_fact_that_cannot_be_understood_is_passed_over_and_told_of(key: bytes, raw: bytes) -> None:
    core = TransactionCoordinator()
    good = facts.encode(facts.SavedProducer(facts.VERSION, 4, WALL_NS))

    recovery = core.load({key: raw, b"p:7": good}, now_ns=0, wall_ns=WALL_NS)

    assert recovery.unreadable.keys() == {key}
    assert "__transactions" in recovery.unreadable[key]
    core.heartbeat(7, 4, wall_ns=WALL_NS)


def test_what_a_later_version_adds_to_the_end_of_a_fact_does_no_harm() -> None:
    raw = facts.encode(facts.SavedProducer(facts.VERSION, 4, WALL_NS))
    longer = bytes([raw[0] + 1]) + raw[1:] + b"\xa1x"
    core = TransactionCoordinator()

    core.load({b"p:7": longer}, now_ns=0, wall_ns=WALL_NS)

    core.heartbeat(7, 4, wall_ns=WALL_NS)


def test_a_coordinator_that_wrote_everything_down_is_the_same_after_a_restart() -> None:
    desk = Desk()
    for name in "abc":
        transaction = desk.opened(name)
        desk.carry_out(desk.commit(transaction, marker=name) if name != "b" else desk.abort(transaction))
    desk.init(None)
    twin = desk.restart()

    assert twin.stored == desk.stored
    assert twin.core.stats().by_state == desk.core.stats().by_state
    assert twin.core.stats().producers == 4
    news: Facts = twin.core.take_facts()
    assert news == {}


def test_a_new_instance_hears_nothing_of_what_was_aborted_for_it_even_after_a_crash_in_between() -> None:
    desk = Desk()
    desk.opened()
    initiated = desk.core.init("a", timeout_ms=1_000, new_id=7, wall_ns=WALL_NS)
    desk.put(initiated.facts)

    desk = desk.restart()

    with pytest.raises(InvalidTransactionState, match="a is Empty"):
        desk.core.open.of_producer(initiated.session.producer_id, initiated.session.epoch)


def test_numbers_go_on_behind_a_commit_that_is_all_that_is_left_of_them() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction), settle=False)
    desk.stored[b"t:a"] = holder(number=1, state=TransactionState.ONGOING)
    desk = desk.restart()
    desk.started_at_ns = 0

    assert desk.begin("a", session_of(transaction)).number == transaction.number + 1
