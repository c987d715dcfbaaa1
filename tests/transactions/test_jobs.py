"""Jobs: all transactions of a run are kept, replaced and aborted together, with and without their owners."""

import pytest

from goqueue.clock import MS
from goqueue.errors import InvalidRequest, InvalidTransactionState, TransactionAborted
from goqueue.transactions import jobs
from goqueue.transactions.states import AbortReason, TransactionState
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire.transaction_reports import TransactionOwner
from tests.transactions.desk import Desk


def begun(desk: Desk, name: str, run: str = "one", *, job: str = "job", timeout_ms: int = 100) -> StagedTransaction:
    """A transaction in a run; what that replaces is carried out."""
    session = desk.init(name, timeout_ms=timeout_ms)
    answer = desk.core.begin(
        name, session.producer_id, session.epoch, job=job, run=run, now_ns=desk.now_ns, wall_ns=desk.wall_ns
    )
    desk.put(answer.facts)
    if answer.replaced is not None:
        desk.carry_out(answer.replaced)
    assert answer.transaction
    return answer.transaction


def names(desk: Desk) -> list[str]:
    return [one.transactional_id for one in desk.core.list()]


def kept(desk: Desk, run: str = "one") -> int:
    return desk.core.keep_job("job", run, now_ns=desk.now_ns, wall_ns=desk.wall_ns)


def test_all_that_a_run_has_open_is_kept_together() -> None:
    desk = Desk()
    begun(desk, "job/0")
    begun(desk, "job/1", timeout_ms=150)
    begun(desk, "other", job="another job")
    assert desk.tick(90 * MS) == []

    assert kept(desk) == 2
    (decision,) = desk.tick(20 * MS)
    assert decision.id.startswith("other:")
    desk.carry_out(decision)
    assert desk.tick(70 * MS - 1) == []

    (decision,) = desk.tick(10 * MS + 1)
    assert decision.id.startswith("job/0:")
    assert decision.reason is AbortReason.TIMEOUT
    desk.carry_out(decision)
    assert kept(desk) == 1
    assert kept(desk, "a run that has nothing open") == 0


def test_to_begin_one_keeps_the_others_of_its_run() -> None:
    desk = Desk()
    begun(desk, "job/0")
    for number in range(1, 20):
        assert desk.tick(60 * MS) == []
        begun(desk, f"job/{number}")
    assert len(desk.tick(100 * MS)) == 20


def test_an_owner_keeps_its_own() -> None:
    desk = Desk()
    one = desk.opened("a", timeout_ms=100)
    owner = TransactionOwner("a", one.producer_id, one.epoch, one.number)
    for _ in range(5):
        assert desk.tick(90 * MS) == []
        desk.core.keep([owner], now_ns=desk.now_ns, wall_ns=desk.wall_ns)
    assert one.info().updated_at_ns == desk.wall_ns

    (decision,) = desk.tick(100 * MS)
    desk.core.keep([owner], now_ns=desk.now_ns, wall_ns=desk.wall_ns)  # it is being decided about
    desk.carry_out(decision)
    with pytest.raises(TransactionAborted, match="timeout"):
        desk.core.keep([owner], now_ns=desk.now_ns, wall_ns=desk.wall_ns)


def test_a_new_run_aborts_what_others_have_open_whatever_their_number() -> None:
    desk = Desk()
    old = [begun(desk, f"job/{number}") for number in range(5)]
    begun(desk, "elsewhere/0", job="elsewhere")

    begun(desk, "job/0", "two")

    assert names(desk) == ["elsewhere/0", "job/0"]
    with pytest.raises(TransactionAborted, match="replaced"):
        desk.core.open.check_publish(old[3].producer_id, old[3].epoch, old[3].number)
    with pytest.raises(TransactionAborted, match="replaced"):
        begun(desk, "job/7", "one")
    assert begun(desk, "job/1", "two").state is TransactionState.ONGOING


def test_a_run_that_is_being_committed_is_not_replaced() -> None:
    desk = Desk()
    old = begun(desk, "job/0")
    decision = desk.commit(old, marker="m")
    begun(desk, "job/1", "two")
    desk.carry_out(decision)
    assert names(desk) == ["job/1"]


def test_a_job_is_aborted_as_a_whole_or_one_run_of_it() -> None:
    desk = Desk()
    one = begun(desk, "job/0")
    begun(desk, "job/1")
    assert desk.core.abort_job("job", "another run") is None
    assert desk.core.abort_job("job/0") is None

    decision = desk.core.abort_job("job", "one")
    assert decision is not None
    desk.carry_out(decision)

    assert names(desk) == []
    with pytest.raises(InvalidTransactionState, match="no transaction open"):
        desk.core.open.check_publish(one.producer_id, one.epoch, one.number)
    with pytest.raises(TransactionAborted):
        begun(desk, "job/2", "one")
    begun(desk, "job/0", "two")
    every = desk.core.abort_job("job")
    assert every is not None
    desk.carry_out(every)
    assert names(desk) == []


def test_runs_that_ended_are_forgotten_beyond_a_bound() -> None:
    known = jobs.Jobs(ended_max=2)
    for run in ("one", "two", "three"):
        known.end("job", run)
    assert [known.has_ended("job", run) for run in ("one", "two", "three")] == [False, True, True]


@pytest.mark.parametrize(("job", "run"), [("", "r"), (None, "r"), ("j" * 256, "r"), ("j", "\n"), ("j\0", "r")])
def test_names_are_short_and_can_be_shown(job: str | None, run: str) -> None:
    with pytest.raises(InvalidRequest):
        jobs.validate_job(job, run)
    jobs.validate_job(None, "")
