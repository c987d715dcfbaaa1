from collections.abc import Mapping

import pytest
from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import (
    Conflict,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    ProducerNotFound,
    RequestTooLarge,
    TransactionAborted,
    TransactionNotFound,
)
from goqueue.transactions import facts
from goqueue.transactions.coordinator import Facts, TransactionCoordinator
from goqueue.transactions.decisions import Busy, DecidedAcks, DecidedPosition, Decision, Stage
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.producers import EPOCH_MAX, PRODUCER_ID_MAX
from goqueue.transactions.states import AbortReason, TransactionState, Verdict
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire.transaction_reports import ProducerSession, TransactionOutcome, TransactionOwner

WALL_NS = 1_700_000_000 * 10**9
DAY_NS = 86_400 * 10**9
COMMITTED = TransactionOutcome("committed")
COMMITTED_ALREADY = TransactionOutcome("committed", already=True)
ABORTED = TransactionOutcome("aborted")
ABORTED_ALREADY = TransactionOutcome("aborted", already=True)


class Desk:
    """A coordinator at a time, and every fact it ever gave out to be written."""

    def __init__(self, stored: Mapping[bytes, bytes] | None = None, **limits: int) -> None:
        self.core = TransactionCoordinator(TransactionLimits(**limits))
        self.now_ns = 0
        self.started_at_ns = WALL_NS
        self.stored: dict[bytes, bytes] = dict(stored or {})
        self.new_id = 100

    @property
    def wall_ns(self) -> int:
        return self.started_at_ns + self.now_ns

    def put(self, news: Mapping[bytes, bytes | None]) -> None:
        for key, value in news.items():
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value

    def init(self, name: str | None = "a", *, timeout_ms: int = 60_000) -> ProducerSession:
        self.new_id += 1
        initiated = self.core.init(name, timeout_ms=timeout_ms, new_id=self.new_id, wall_ns=self.wall_ns)
        self.put(initiated.facts)
        if initiated.abort:
            self.carry_out(initiated.abort)
        return initiated.session

    def begin(self, name: str, session: ProducerSession, marker: str | None = None) -> StagedTransaction:
        begun = self.core.begin(
            name, session.producer_id, session.epoch, marker=marker, now_ns=self.now_ns, wall_ns=self.wall_ns
        )
        self.put(begun.facts)
        assert begun.transaction
        return begun.transaction

    def opened(self, name: str = "a", **options: int) -> StagedTransaction:
        return self.begin(name, self.init(name, **options))

    def commit(
        self, *transactions: StagedTransaction, marker: str | None = None, number: int = 0
    ) -> Decision | TransactionOutcome:
        owner, *together = (owner_of(one, number=number) for one in transactions)
        return self.core.commit(owner, together, marker=marker, wall_ns=self.wall_ns)

    def abort(self, transaction: StagedTransaction, *, number: int = 0) -> Decision | TransactionOutcome:
        return self.core.abort(owner_of(transaction, number=number), wall_ns=self.wall_ns)

    def carry_out(self, decision: Decision | TransactionOutcome, *, settle: bool = True) -> TransactionOutcome:
        assert isinstance(decision, Decision)
        if decision.is_commit and decision.stage is Stage.ASKED:
            self.put(decision.facts)
            self.core.decided(decision)
        self.core.completed(decision, now_ns=self.now_ns, wall_ns=self.wall_ns)
        if settle:
            self.put(self.core.settled(decision))
        return decision.answer

    def tick(self, duration_ns: int = 0) -> list[Decision]:
        self.now_ns += duration_ns
        decisions = self.core.tick(now_ns=self.now_ns, wall_ns=self.wall_ns)
        self.put(self.core.take_facts())
        return decisions

    def restart(self) -> "Desk":
        """Another coordinator, that knows what was written."""
        desk = Desk(self.stored)
        desk.now_ns = self.now_ns + MS
        desk.new_id = self.new_id
        recovery = desk.core.load(desk.stored, now_ns=desk.now_ns, wall_ns=desk.wall_ns)
        for decision in recovery.decisions:
            desk.carry_out(decision)
        desk.put(desk.core.take_facts())
        return desk


def owner_of(transaction: StagedTransaction, *, number: int = 0) -> TransactionOwner:
    return TransactionOwner(transaction.transactional_id, transaction.producer_id, transaction.epoch, number)


def session_of(transaction: StagedTransaction) -> ProducerSession:
    return ProducerSession(transaction.producer_id, transaction.epoch)


def decided(decision: Decision | TransactionOutcome) -> Decision:
    assert isinstance(decision, Decision)
    return decision


# Producers


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
        core.init(name, timeout_ms=1, new_id=PRODUCER_ID_MAX, wall_ns=WALL_NS)

    assert core.init(None, timeout_ms=1, new_id=PRODUCER_ID_MAX, wall_ns=WALL_NS).session.producer_id == 2


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


def test_news_that_nobody_waits_for_never_bring_back_what_is_over() -> None:
    desk = Desk(refresh_ns=1)
    desk.init("a")
    desk.now_ns = 10
    desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns)
    desk.init("a")

    assert desk.core.take_facts() == {}
    assert facts.decode(facts.SavedTransactional, b"t:a", desk.stored[b"t:a"]).epoch == 1


# Numbers


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


# How a transaction ends


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


def test_acks_that_are_handed_in_are_not_kept_hold_of() -> None:
    transaction = Desk().opened()
    offsets = BitMap64([1])
    transaction.add_acks(DecidedAcks("g", "t", "id", 0, offsets), wall_ns=0)
    offsets.add(2)
    transaction.add_acks(DecidedAcks("g", "t", "id", 0, BitMap64([3])), wall_ns=0)

    assert transaction.part().acks[0].offsets == BitMap64([1, 3])
    assert offsets == BitMap64([1, 2])


def test_a_topic_that_was_made_anew_meanwhile_takes_the_place_of_the_old_one() -> None:
    transaction = Desk().opened()
    transaction.add_partition("t", "old", 0, wall_ns=0)
    transaction.add_acks(DecidedAcks("g", "t", "old", 0, BitMap64([1])), wall_ns=0)

    assert transaction.add_partition("t", "new", 0, wall_ns=0)
    transaction.add_acks(DecidedAcks("g", "t", "new", 0, BitMap64([2])), wall_ns=0)

    assert [one.topic_id for one in transaction.part().partitions] == ["new"]
    assert transaction.part().acks == [DecidedAcks("g", "t", "new", 0, BitMap64([2]))]


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
    core.completed(decision, now_ns=0, wall_ns=WALL_NS + 5)
    assert core.list() == []
    begun = core.begin("a", 101, 0, marker="m", now_ns=0, wall_ns=WALL_NS)
    assert (begun.answer.already_committed, begun.facts, begun.transaction) == (True, {}, None)


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


def holder(*, number: int, state: TransactionState) -> bytes:
    return facts.encode(
        facts.SavedTransactional(facts.VERSION, 101, 0, number, 60_000, state, WALL_NS, None, "", WALL_NS)
    )


# Markers


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


# Time, and who wants to know


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


def test_an_operator_cannot_abort_what_is_committed() -> None:
    desk = Desk()
    transaction = desk.opened()
    desk.carry_out(desk.commit(transaction))

    with pytest.raises(InvalidTransactionState):
        desk.core.abort_by_id(transaction.id)


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


# What is stored


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


def test_an_epoch_that_was_never_given_publishes_nothing() -> None:
    desk = Desk()
    transaction = desk.opened()

    with pytest.raises(ProducerFenced):
        desk.core.open.check_publish(transaction.producer_id, transaction.epoch + 1, transaction.number)


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
