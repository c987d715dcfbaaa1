"""Commit markers: each is committed once, and remembered for seven days."""

import pytest

from goqueue.errors import (
    InvalidRequest,
    TransactionAborted,
)
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import TransactionState
from tests.transactions.desk import COMMITTED, COMMITTED_ALREADY, DAY_NS, WALL_NS, Desk, decided, owner_of, session_of


def test_a_marker_that_was_committed_stops_a_begin_but_not_one_that_was_not() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.abort(transaction))
    transaction = desk.begin("a", session_of(transaction), marker="m")
    desk.carry_out(desk.commit(transaction, marker="m"))

    begun = desk.core.begin("a", 101, 0, marker="m", now_ns=0, wall_ns=WALL_NS)

    assert begun.answer.already_committed
    assert desk.core.list() == []
    assert desk.begin("a", session_of(transaction), marker="n").state is TransactionState.ONGOING


def test_a_marker_that_is_replaced_is_forgotten() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction, marker="batch 1"))
    transaction = desk.begin("a", session_of(transaction), marker="batch 2")
    owner = owner_of(transaction)
    desk.carry_out(desk.core.commit(owner, marker="batch 2", replaces="batch 1", wall_ns=desk.wall_ns))

    again = desk.core.begin("a", owner.producer_id, owner.epoch, marker="batch 2", now_ns=0, wall_ns=WALL_NS)
    assert again.answer.already_committed
    assert desk.begin("a", session_of(transaction), marker="batch 1").state is TransactionState.ONGOING


def test_the_same_work_under_a_marker_that_was_committed_is_aborted_and_told_to_be_committed() -> None:
    desk = Desk()
    first, other = desk.opened(), desk.opened("b")
    desk.carry_out(desk.commit(first, marker="m"))
    again = desk.begin("a", session_of(first))

    late = desk.commit(again, marker="m", number=first.number)
    assert late == COMMITTED_ALREADY
    assert again.state is TransactionState.ONGOING
    decision = decided(desk.commit(again, other, marker="m"))

    assert not decision.is_commit
    assert [part.number for part in decision.parts] == [again.number, other.number]
    assert desk.carry_out(decision) == COMMITTED_ALREADY
    assert desk.commit(again, other, marker="m") == COMMITTED_ALREADY
    with pytest.raises(TransactionAborted, match="marker"):
        desk.commit(again)
    assert desk.core.stats().committed_total == 1


@pytest.mark.parametrize("marker", ["", "x" * 1_025, "\ud800"])
def test_a_marker_that_is_no_good_text_is_refused(marker: str) -> None:
    desk = Desk()
    transaction = desk.opened()
    session = desk.init("b")

    for ask in (lambda: desk.commit(transaction, marker=marker), lambda: desk.begin("b", session, marker=marker)):
        with pytest.raises(InvalidRequest) as raised:
            ask()
        assert raised.value.path == "marker"
    assert transaction.state is TransactionState.ONGOING


def test_markers_are_forgotten_after_seven_days_without_use_and_use_is_written_once_a_day() -> None:
    desk = Desk()
    for marker in ("used", "unused"):
        transaction = desk.opened(marker)
        desk.carry_out(desk.commit(transaction, marker=marker))
    for _ in range(13):
        desk.tick(DAY_NS // 2)
        desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns)
        desk.core.begin("used", 101, 0, marker="used", now_ns=desk.now_ns, wall_ns=desk.wall_ns)
        assert b"m:unused" not in desk.core.take_facts()
    desk.put({b"m:used": desk.stored[b"m:used"]})

    desk.tick(DAY_NS)

    assert b"m:unused" not in desk.stored
    begun = desk.core.begin("used", 101, 0, marker="used", now_ns=desk.now_ns, wall_ns=desk.wall_ns)
    assert begun.answer.already_committed
    assert desk.core.begin("used", 101, 0, marker="unused", now_ns=0, wall_ns=desk.wall_ns).transaction


def test_too_many_markers_drive_out_the_one_that_was_used_least_recently() -> None:
    desk = Desk(markers_max=2)
    transaction = desk.opened()
    for number, marker in enumerate(("one", "two", "three")):
        desk.now_ns = number
        desk.carry_out(desk.commit(transaction, marker=marker))
        if marker == "two":
            desk.core.begin("a", 101, 0, marker="one", now_ns=number, wall_ns=desk.wall_ns)
        transaction = desk.begin("a", session_of(transaction))
    desk.put(desk.core.take_facts())

    assert {key for key in desk.stored if key.startswith(b"m:")} == {b"m:one", b"m:three"}
    assert desk.carry_out(desk.commit(transaction, marker="two")) == COMMITTED


def test_a_marker_lives_for_seven_days_to_the_moment_and_the_oldest_goes_first_also_after_a_restart() -> None:
    desk = Desk(marker_ns_max=100, refresh_ns=20)
    for marker in ("one", "two"):
        desk.carry_out(desk.commit(desk.opened(marker), marker=marker))
        desk.now_ns += 10
    desk.core.begin("one", 101, 0, marker="one", now_ns=20, wall_ns=desk.wall_ns)
    assert set(desk.core.take_facts()) == set(desk.core.take_facts()) | {b"m:one"}
    desk.core.begin("one", 101, 0, marker="one", now_ns=20, wall_ns=desk.wall_ns + 19)
    assert desk.core.take_facts() == {}
    desk.stored = dict(reversed(desk.stored.items()))
    core = TransactionCoordinator(TransactionLimits(markers_max=1))
    core.load({key: raw for key, raw in desk.stored.items() if key[:2] == b"m:"}, now_ns=0, wall_ns=WALL_NS)
    core.tick(now_ns=0, wall_ns=WALL_NS)
    assert core.take_facts() == {b"m:one": None}

    desk.tick(89)
    assert b"m:two" in desk.stored
    desk.tick(1)
    assert b"m:two" not in desk.stored
    assert b"m:one" in desk.stored
