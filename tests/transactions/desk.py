"""What tests of the coordinator share: a desk that asks it, carries out its decisions, and moves the clock."""

from collections.abc import Mapping

from goqueue.clock import MS
from goqueue.transactions import facts
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.decisions import Decision, Stage
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import TransactionState
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


def holder(*, number: int, state: TransactionState) -> bytes:
    return facts.encode(
        facts.SavedTransactional(facts.VERSION, 101, 0, number, 60_000, state, WALL_NS, None, "", WALL_NS)
    )
