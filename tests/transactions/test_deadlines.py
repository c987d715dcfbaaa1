"""Timeouts of open transactions."""

import pytest

from goqueue.clock import MS
from goqueue.errors import (
    TransactionAborted,
)
from goqueue.transactions.states import AbortReason
from tests.transactions.desk import Desk


def test_a_transaction_ends_when_its_time_is_over_and_not_before() -> None:
    desk = Desk()
    slow, quick = desk.opened("slow", timeout_ms=200), desk.opened("quick", timeout_ms=100)
    assert desk.core.next_deadline_ns == 100 * MS
    assert desk.tick(100 * MS - 1) == []

    (decision,) = desk.tick(1)

    assert (decision.id, decision.reason, decision.is_commit) == (quick.id, AbortReason.TIMEOUT, False)
    assert desk.core.next_deadline_ns == 200 * MS
    desk.carry_out(decision)
    desk.carry_out(desk.commit(slow))
    assert desk.tick(100 * MS) == []
    assert desk.core.next_deadline_ns is None
    with pytest.raises(TransactionAborted) as raised:
        desk.core.open.of_producer(quick.producer_id, quick.epoch)
    assert raised.value.facts() == {"transaction_id": quick.id, "reason": "timeout"}


def test_deadlines_of_what_has_ended_do_not_pile_up() -> None:
    desk = Desk()
    session = desk.init()
    for _ in range(5_000):
        desk.carry_out(desk.abort(desk.begin("a", session)))

    assert len(desk.core._deadlines) < 2_500
