"""Producers: ids, epochs, fencing, and how long they are remembered."""

import pytest

from goqueue.errors import (
    Conflict,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    ProducerNotFound,
)
from goqueue.transactions import facts
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.producers import EPOCH_MAX, ID_STEP, PRODUCER_ID_MAX
from goqueue.transactions.states import TransactionState, Verdict
from goqueue.wire.transaction_reports import ProducerSession
from tests.transactions.desk import DAY_NS, WALL_NS, Desk


def test_an_id_is_kept_and_its_epoch_rises_with_every_init() -> None:
    desk = Desk()

    sessions = [desk.init(name) for name in ("a", "b", "a", "a")] + [desk.restart().init("a")]

    assert [(one.producer_id, one.epoch) for one in sessions] == [(101, 0), (102, 0), (101, 1), (101, 2), (101, 3)]


def test_every_init_without_a_transactional_id_is_another_producer() -> None:
    desk = Desk()

    assert [desk.init(None), desk.init(None)] == [ProducerSession(101, 0), ProducerSession(102, 0)]
    desk.restart().core.heartbeat(102, 0, wall_ns=WALL_NS)


def test_a_new_id_that_somebody_has_is_passed_over() -> None:
    core = TransactionCoordinator()
    for name in ("a", "b"):
        core.init(name, timeout_ms=1, new_id=PRODUCER_ID_MAX - ID_STEP, wall_ns=WALL_NS)

    assert core.init(None, timeout_ms=1, new_id=PRODUCER_ID_MAX, wall_ns=WALL_NS).session.producer_id == 2 * ID_STEP - 1


def test_after_the_last_epoch_there_is_a_new_id_and_the_old_one_is_good_for_nothing() -> None:
    desk = Desk()
    desk.init("a")
    (raw,) = desk.stored.values()
    saved = facts.decode(facts.SavedTransactional, b"t:a", raw)
    last = facts.SavedTransactional(1, 101, EPOCH_MAX, 7, 60_000, TransactionState.EMPTY, 0, None, "", saved.used_at_ns)
    desk.stored[b"t:a"] = facts.encode(last)
    desk = desk.restart()
    old = desk.begin("a", ProducerSession(101, EPOCH_MAX))
    old.add_partition("orders", "id", 0, wall_ns=0)

    initiated = desk.core.init("a", timeout_ms=1_000, new_id=500, wall_ns=desk.wall_ns)

    assert (initiated.session.producer_id, initiated.session.epoch) == (500, 0)
    assert initiated.session.next_number > old.number
    assert initiated.abort
    assert [part.producer_id for part in initiated.abort.parts] == [101]
    assert desk.core.verdict(101, old.number) is Verdict.ABORT
    desk.carry_out(initiated.abort)
    assert desk.core.verdict(101, old.number) is Verdict.ABORT
    with pytest.raises(ProducerNotFound):
        desk.core.open.check_publish(101, EPOCH_MAX, old.number)
    with pytest.raises(ProducerNotFound):
        desk.begin("a", ProducerSession(101, EPOCH_MAX))
    assert desk.begin("a", initiated.session).number > old.number


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_its_range_is_refused_with_its_path(timeout_ms: int) -> None:
    desk = Desk()

    with pytest.raises(InvalidRequest) as raised:
        desk.init("a", timeout_ms=timeout_ms)

    assert raised.value.path == "transaction_timeout_ms"
    assert desk.stored == {}
    assert len(desk.core.list()) == desk.core.stats().producers == 0


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_the_shortest_and_the_longest_timeout_are_taken(timeout_ms: int) -> None:
    assert Desk().opened(timeout_ms=timeout_ms).timeout_ms == timeout_ms


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x00", "\ud800"])
def test_an_id_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Desk().init(name)
    assert raised.value.path == "transactional_id"


@pytest.mark.parametrize("name", ["a/b:7", "x" * 255, "ü €", ":", "a:1"])
def test_every_other_text_is_an_id_and_its_transactions_are_found_by_theirs(name: str) -> None:
    desk = Desk()
    transaction = desk.opened(name)

    assert desk.core.open.unfinished(transaction.id) is transaction
    assert desk.core.describe(transaction.id).transactional_id == name
    assert desk.restart().init(name).epoch == 1


def test_a_heartbeat_is_for_whom_it_says() -> None:
    desk = Desk()
    old = desk.init("a")
    desk.init("a")
    desk.init("b")
    desk.core.heartbeat(101, 1, wall_ns=WALL_NS)
    desk.core.heartbeat(101, 1, "a", wall_ns=WALL_NS)

    with pytest.raises(ProducerFenced) as fenced:
        desk.core.heartbeat(old.producer_id, old.epoch, "a", wall_ns=WALL_NS)
    assert fenced.value.current_epoch == 1
    for producer_id, epoch, name in ((101, 1, "b"), (101, 1, "c"), (7, 0, None), (7, 0, "a")):
        with pytest.raises(ProducerNotFound):
            desk.core.heartbeat(producer_id, epoch, name, wall_ns=WALL_NS)
    with pytest.raises(ProducerFenced):
        desk.core.heartbeat(101, 2, wall_ns=WALL_NS)


def test_a_producer_without_a_transactional_id_has_no_transactions() -> None:
    desk = Desk()
    plain = desk.init(None)

    with pytest.raises(ProducerNotFound):
        desk.begin("a", plain)
    for ask in (
        lambda: desk.core.open.of_producer(plain.producer_id, plain.epoch),
        lambda: desk.core.open.check_publish(plain.producer_id, plain.epoch, 5),
    ):
        with pytest.raises(
            InvalidTransactionState, match=f"no transaction open: producer {plain.producer_id} is Empty"
        ):
            ask()


def test_a_producer_is_forgotten_after_seven_idle_days_and_not_before() -> None:
    desk = Desk()
    desk.init(None)
    desk.init("a")
    desk.tick(7 * DAY_NS - 1)
    assert desk.core.stats().producers == 2
    desk = desk.restart()

    desk.tick(DAY_NS)

    assert desk.core.stats().producers == 0
    assert desk.stored == {}
    with pytest.raises(ProducerNotFound):
        desk.core.heartbeat(101, 0, wall_ns=WALL_NS)
    assert (desk.init("a").producer_id, desk.init("a").epoch) == (103, 1)


def test_use_keeps_a_producer_and_is_written_once_a_day() -> None:
    desk = Desk()
    desk.init(None)
    desk.init("a")
    desk.init(None)
    for _ in range(14):
        desk.tick(DAY_NS // 2)
        desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns)
        desk.core.published(102, wall_ns=desk.wall_ns)
        desk.core.published(999, wall_ns=desk.wall_ns)
        assert len(desk.core.take_facts()) in (0, 2)
    desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns + DAY_NS)
    news = desk.core.take_facts()
    desk.put(news)
    assert list(news) == [b"p:101"]

    desk.tick(1)
    assert desk.core.stats().producers == 2
    desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns + DAY_NS)
    assert desk.core.take_facts() == {}


def test_what_has_something_open_is_not_forgotten() -> None:
    desk = Desk(idle_ns_max=1)
    desk.opened("a")

    assert desk.tick(1_000) == []
    assert desk.core.stats().producers == 1


def test_beyond_the_limit_the_idlest_plain_producer_goes_and_a_new_transactional_id_is_refused() -> None:
    desk = Desk(producers_max=2, plain_producers_max=2)
    for _ in range(3):
        desk.init(None)
    desk.init("a")
    desk.init("b")
    with pytest.raises(Conflict):
        desk.init("c")
    assert desk.init("a").epoch == 1

    desk.put(desk.core.take_facts())

    assert {key for key in desk.stored if key.startswith(b"p:")} == {b"p:102", b"p:103"}


def test_commits_and_aborts_count_as_use() -> None:
    desk = Desk(idle_ns_max=100)
    transactions = [desk.opened(name) for name in "abc"]
    desk.now_ns = 90
    desk.carry_out(desk.commit(transactions[0]))
    desk.carry_out(desk.abort(transactions[1]))
    desk.carry_out(desk.core.abort_by_id(transactions[2].id))

    desk.tick(99)

    assert set(desk.stored) == {b"t:a", b"t:b"}
    assert {state: count for state, count in desk.core.stats().by_state.items() if count} == {
        "CompleteCommit": 1,
        "CompleteAbort": 1,
    }
    desk.tick(1)
    assert desk.stored == {}


def test_whoever_was_used_last_goes_last_also_after_a_restart() -> None:
    desk = Desk()
    for name in ("a", "b", None, None):
        desk.init(name)
        desk.now_ns += DAY_NS
    desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns)
    desk.core.heartbeat(103, 0, wall_ns=desk.wall_ns)
    desk.put(desk.core.take_facts())
    desk.stored = dict(reversed(desk.stored.items()))
    core = TransactionCoordinator(TransactionLimits(plain_producers_max=1))
    core.load({key: raw for key, raw in desk.stored.items() if key[:2] == b"p:"}, now_ns=0, wall_ns=WALL_NS)
    assert core.take_facts() == {b"p:104": None}

    for desk_then in (desk, desk.restart()):
        desk_then.tick(9 * DAY_NS - desk_then.now_ns)

        assert set(desk_then.stored) == {b"t:a", b"p:103", b"p:104"}
