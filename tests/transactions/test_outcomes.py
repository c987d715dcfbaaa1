"""The totals of a coordinator."""

from goqueue.clock import MS
from goqueue.transactions.states import TransactionState
from tests.transactions.desk import Desk, session_of


def test_the_numbers_add_up() -> None:
    desk = Desk()
    first, second, third = (desk.opened(name) for name in "abc")
    desk.init(None)
    desk.now_ns = 10 * MS
    desk.carry_out(desk.commit(first))
    desk.now_ns = 30 * MS
    desk.carry_out(desk.commit(second))
    desk.carry_out(desk.abort(third))
    desk.begin("a", session_of(first))

    stats = desk.core.stats()

    assert (stats.active_transactions, stats.committed_total, stats.aborted_total) == (1, 2, 1)
    assert stats.average_duration_ns == 20 * MS
    assert stats.producers == 4
    assert {state: count for state, count in stats.by_state.items() if count} == {
        "Ongoing": 1,
        "CompleteCommit": 1,
        "CompleteAbort": 1,
    }
    assert set(stats.by_state) == {state.value for state in TransactionState}
