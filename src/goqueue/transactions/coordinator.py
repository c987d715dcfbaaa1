"""The transaction coordinator: it decides, and the owner of the partitions carries out.

It takes requests, facts and the time, and returns what is to be written and done. `now_ns` is the monotonic clock,
`wall_ns` the wall clock. What has to be written are keyed facts (`facts.py`). They come

    from `init`, `begin` and `commit`   with the answer; each result says what must be durable before it is given
    from `settled`                      when a decision is over
    from `take_facts`                   at any time: changes that no answer waits for, and that a crash may lose

Facts are written in the order in which they are returned, at once or never: a fact that is written late would overwrite
a newer state. (The facts of a decision are the exception: no other fact has their key.)

**The life of a transaction.** `begin` gives it a number, and its records in the partitions carry that number. What it
touches is noted in the `StagedTransaction`, in memory. `commit` turns it into a `Decision` (`decisions.py`), which is
written as one record and then carried out. The fate of the records of a transaction depends on that one record alone:

    verdict(producer_id, number)   open     it may still be decided
                                   commit   the decision is durable, its effects may not be yet
                                   abort    anything else

So after a restart, decisions that are found are carried out again, and all other transactions that were open are
aborted, although nothing is stored about them (`recovery.py`). Numbers rise and are never used twice, not even if a
crash loses the last ones: they are not below the microseconds of the wall clock. So a marker that arrives late can only
speak of a transaction that has ended.

**Fencing.** Each request names the epoch that `init` returned; an older epoch is refused before anything else is
checked. A request about something that is being decided raises `Busy`, and is repeated when the decision is completed.
So an outcome is never reported before it is certain.

**The last outcome** of a transactional id stays known until the next begin or init: a repeated commit or abort gets the
same answer again. An abort that the owner did not ask for (timeout, admin, restart, marker) is reported to the owner as
`TransactionAborted` by its next request, unless that is a begin.

**Markers** are texts chosen by the caller: a commit that names one happens once. If the marker was committed before,
the open transactions of the request are the same work once more: they are aborted, and the answer is "committed".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from goqueue.errors import (
    Conflict,
    InvalidRequest,
    InvalidTransactionState,
    RequestTooLarge,
    TransactionAborted,
    TransactionNotFound,
)
from goqueue.events import TransactionEvent
from goqueue.transactions import facts
from goqueue.transactions.deadlines import Deadlines
from goqueue.transactions.decisions import ABORTED, COMMITTED, Decision, Stage
from goqueue.transactions.jobs import Jobs, validate_job
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.outbox import Facts
from goqueue.transactions.producers import PRODUCER_ID_MAX, ProducerEntry, validate_transactional_id
from goqueue.transactions.recovery import CoordinatorRecovery, recover
from goqueue.transactions.states import AbortReason, TransactionState, TransactionTrigger, Verdict
from goqueue.transactions.tables import TransactionTables
from goqueue.transactions.transaction import PartitionEnds, StagedTransaction, transaction_id
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)

FORGET_COUNT_MAX = 1_000
"""Per tick, so that a tick is short."""
_NUMBER_UNIT_NS = 1_000
_NUMBERS_AHEAD_MAX = 10**9
"""How far ahead a producer that chooses its own numbers may be: numbers are never reused, so they must not run out."""


class InitResult(NamedTuple):
    """A producer. The answer waits until the facts are durable and the abort is completed."""

    facts: Facts
    session: ProducerSession
    abort: Decision | None


class BeginResult(NamedTuple):
    """A transaction was begun, unless the marker was committed before.

    The facts are written at once. No request inside the transaction may be answered before they are durable: otherwise
    a restart could take the commit of this transaction for a repeated commit of the previous one.
    """

    facts: Facts
    answer: BegunTransaction
    transaction: StagedTransaction | None
    replaced: Decision | None = None
    """The abort of what earlier runs of the same job had open."""


class TransactionCoordinator:
    """Decides which transactions commit and which abort. Not thread-safe; knows deadlines, owns no timer."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits()
        self._tables = TransactionTables(self.limits)
        self._producers = self._tables.producers
        self._markers = self._tables.markers
        self._outbox = self._tables.outbox
        self._outcomes = self._tables.outcomes
        self.open = self._tables.open
        self._jobs = Jobs()
        self._deadlines = Deadlines()

    def load(
        self,
        stored: Mapping[bytes, bytes],
        *,
        now_ns: int,
        wall_ns: int,
    ) -> CoordinatorRecovery:
        """Start from the stored facts. Each decision is under way again, until it is `decided` or `voided`."""
        return recover(self._tables, stored, now_ns=now_ns, wall_ns=wall_ns)

    def take_facts(self) -> Facts:
        """The changes since the last call that no result has carried: to be written at once, and not waited for."""
        return self._outbox.take()

    # --- producers -----------------------------------------------------------------------------

    def init(self, transactional_id: str | None, *, timeout_ms: int, new_id: int, wall_ns: int) -> InitResult:
        """Start a producer with a new epoch; earlier holders of the transactional id are fenced from now on.

        Raises `Busy`, `InvalidRequest` or `Conflict`.
        """
        assert 1 <= new_id <= PRODUCER_ID_MAX
        if not 1 <= timeout_ms <= self.limits.timeout_ms_max:
            rule = f"transaction_timeout_ms must be 1 to {self.limits.timeout_ms_max}"
            raise InvalidRequest(rule, path="transaction_timeout_ms")
        if transactional_id is not None:
            validate_transactional_id(transactional_id)
        producer = self._producers.find(transactional_id) if transactional_id is not None else None
        abort = None
        if not producer:
            producer = self._new_producer(transactional_id, new_id=new_id, wall_ns=wall_ns)
        else:
            producer.check_free()
            if producer.transaction:
                abort = self._aborting([producer.transaction], AbortReason.FENCED)
            else:
                self._producers.turn(producer, TransactionTrigger.INITIATED)
                producer.reason = None
            self._producers.renew(producer, new_id=new_id)
            self._producers.use(producer, wall_ns=wall_ns)
        producer.timeout_ms = timeout_ms
        lowest = max(producer.number_min, wall_ns // _NUMBER_UNIT_NS)
        session = ProducerSession(producer.producer_id, producer.epoch, 0 if transactional_id is None else lowest)
        return InitResult(self._outbox.facts_of(producer), session, abort)

    def _new_producer(self, transactional_id: str | None, *, new_id: int, wall_ns: int) -> ProducerEntry:
        if transactional_id is not None:
            self._producers.check_room()
        producer = ProducerEntry(self._producers.free_id(new_id), 0, wall_ns, transactional_id)
        forgotten = self._producers.add(producer)
        if forgotten:
            self._outbox.note(forgotten)
        return producer

    def knows(self, producer_id: int) -> bool:
        """Whether there is a producer of that id, or a decision about it that is not over."""
        if self._producers.find_id(producer_id) is not None:
            return True
        return any(known == producer_id for known, _ in self._tables.unsettled)

    def heartbeat(self, producer_id: int, epoch: int, transactional_id: str | None = None, *, wall_ns: int) -> None:
        """Note that the producer is in use. Raises `ProducerNotFound` or `ProducerFenced`."""
        producer = self._producers.get(producer_id, epoch, transactional_id)
        self._producers.use(producer, wall_ns=wall_ns)
        if wall_ns - producer.saved_at_ns >= self.limits.refresh_ns:
            self._outbox.note(producer)

    def published(self, producer_id: int, *, wall_ns: int) -> None:
        """A batch came from the producer, which counts as use; an id that was never initiated is ignored."""
        producer = self._producers.find_id(producer_id)
        if producer:
            self._producers.use(producer, wall_ns=wall_ns)
            if wall_ns - producer.saved_at_ns >= self.limits.refresh_ns:
                self._outbox.note(producer)

    # --- open transactions ---------------------------------------------------------------------

    def begin(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        marker: str | None = None,
        number: int = 0,
        job: str | None = None,
        run: str = "",
        now_ns: int,
        wall_ns: int,
    ) -> BeginResult:
        """Begin a transaction. If the marker was committed before, nothing is begun and the answer says so.

        A `number` that the caller chooses has to be higher than all before. If the transaction belongs to a `job`, the
        open transactions of its other runs are aborted; a run that has ended is refused with `TransactionAborted`.

        Raises `Busy`, `ProducerNotFound`, `ProducerFenced`, `InvalidTransactionState`, `InvalidRequest` or `Conflict`.
        """
        producer = self._producers.get(producer_id, epoch, transactional_id)
        producer.check_free()
        if producer.transaction:
            raise producer.invalid("transaction already in progress")
        validate_job(job, run)
        if marker is not None:
            self._markers.check(marker)
            if marker in self._markers:
                self._repeat(marker, wall_ns=wall_ns)
                already = BegunTransaction("", producer_id, epoch, 0, already_committed=True)
                return BeginResult({}, already, None, self._replace(job, run))
        if job is not None and self._jobs.has_ended(job, run):
            raise TransactionAborted(transaction_id(transactional_id, number), AbortReason.REPLACED.value)
        if len(self.open) >= self.limits.open_max:
            raise Conflict(f"there are {len(self.open)} open transactions, which is the limit; commit or abort some")
        lowest = max(producer.number_min, wall_ns // _NUMBER_UNIT_NS)
        if number and not producer.number_min <= number <= lowest + _NUMBERS_AHEAD_MAX:
            rule = f"number must be from {producer.number_min} to {lowest + _NUMBERS_AHEAD_MAX}"
            raise InvalidRequest(rule, path="number")
        number = number or lowest
        producer.number = number
        producer.number_min = number + 1
        producer.started_at_ns = wall_ns
        producer.reason = None
        producer.transaction = transaction = StagedTransaction(
            transactional_id,
            producer_id,
            epoch,
            number,
            timeout_ms=producer.timeout_ms,
            begun_ns=now_ns,
            started_at_ns=wall_ns,
            limits=self.limits,
            run=None if job is None else self._jobs.open(job, run),
        )
        if transaction.run is not None:
            transaction.run.transactions.add(transaction)
            transaction.run.keep(now_ns=now_ns, wall_ns=wall_ns)
        self._producers.turn(producer, TransactionTrigger.BEGUN)
        self._producers.use(producer, wall_ns=wall_ns)
        replaced = self._replace(job, run)
        self.open.add(transaction)
        self._deadlines.add(transaction)
        self._outcomes.started(len(self.open))
        answer = BegunTransaction(transaction.id, producer_id, epoch, number)
        return BeginResult(self._outbox.facts_of(producer), answer, transaction, replaced)

    def keep(self, owners: Sequence[TransactionOwner], *, now_ns: int, wall_ns: int) -> None:
        """Restart the timeout of the open transactions of these owners.

        Raises `ProducerNotFound`, `ProducerFenced`, `TransactionAborted` or `InvalidTransactionState`.
        """
        for one in owners:
            producer = self._producers.get(one.producer_id, one.epoch, one.transactional_id)
            if not producer.under_way:
                producer.ongoing(one.number).keep(now_ns=now_ns, wall_ns=wall_ns)

    def keep_job(self, job: str, run: str, *, now_ns: int, wall_ns: int) -> int:
        """Restart the timeout of all open transactions of the run; how many there are."""
        found = self._jobs.find(job, run)
        if found is None:
            return 0
        found.keep(now_ns=now_ns, wall_ns=wall_ns)
        return len(found.transactions)

    def abort_job(self, job: str, run: str | None = None) -> Decision | None:
        """Abort the open transactions of a run, or of all runs of the job; the run has ended and cannot begin any."""
        validate_job(job, run or "")
        found = self._jobs.end_all(job) if run is None else self._jobs.end(job, run)
        return self._aborting_open(found, AbortReason.CLIENT)

    def _replace(self, job: str | None, run: str) -> Decision | None:
        """End the other runs of the job, and abort their open transactions."""
        if job is None:
            return None
        return self._aborting_open(self._jobs.end_all(job, but=run), AbortReason.REPLACED)

    def _aborting_open(self, transactions: Sequence[StagedTransaction], reason: AbortReason) -> Decision | None:
        """Abort the transactions for which no decision is under way."""
        ongoing = [one for one in transactions if one.state is TransactionState.ONGOING]
        return self._aborting(ongoing, reason) if ongoing else None

    # --- commit and abort ----------------------------------------------------------------------

    def commit(
        self,
        owner: TransactionOwner,
        together: Sequence[TransactionOwner] = (),
        *,
        marker: str | None = None,
        replaces: str | None = None,
        ends: PartitionEnds | None = None,
        wall_ns: int,
    ) -> Decision | TransactionOutcome:
        """Commit all of them or none, once per marker: the decision to carry out, or the outcome of an earlier commit.

        `ends` says where a partition ends now. The commit is decided when the facts and all records below these ends
        are durable. Raises what `ends` raises, `Busy`, `ProducerNotFound`, `ProducerFenced`, `TransactionAborted`,
        `InvalidRequest`, `InvalidTransactionState` or `RequestTooLarge`; then nothing is decided.
        """
        owners = self._owners(owner, together)
        for producer, _ in owners:
            producer.check_free()
        if marker is not None:
            self._markers.check(marker)
            if marker in self._markers:
                self._repeat(marker, wall_ns=wall_ns)
                return self._committed_before(owners)
        elif self._is_repeated(owners):
            return TransactionOutcome(COMMITTED, already=True)
        transactions = [producer.ongoing(number) for producer, number in owners]
        stored = {transaction.transactional_id: transaction.record_count for transaction in transactions}
        for one in (owner, *together):
            if one.record_count not in (None, stored[one.transactional_id]):
                fault = f"only {stored[one.transactional_id]} of {one.record_count} records are stored"
                raise InvalidTransactionState(fault, one.transactional_id, TransactionState.ONGOING.value)
        for producer, _ in owners:
            self._producers.use(producer, wall_ns=wall_ns)
        decision = self._committing(transactions, marker, ends, wall_ns=wall_ns)
        decision.replaces = replaces
        return decision

    def _owners(self, owner: TransactionOwner, together: Sequence[TransactionOwner]) -> list[tuple[ProducerEntry, int]]:
        """The producers that commit, each once, with the number that the request names (0: the open transaction)."""
        if len(together) >= self.limits.together_max:
            rule = f"{len(together) + 1} transactions are over the limit of {self.limits.together_max}"
            raise InvalidRequest(f"transactions: {rule}", path="transactions")
        found: dict[str, tuple[ProducerEntry, int]] = {}
        for one in (owner, *together):
            producer = self._producers.get(one.producer_id, one.epoch, one.transactional_id)
            known = found.setdefault(one.transactional_id, (producer, one.number))
            if known[1] != one.number:
                raise InvalidRequest(
                    f"transactions: {one.transactional_id} is named with two numbers", path="transactions"
                )
        return list(found.values())

    def _is_repeated(self, owners: list[tuple[ProducerEntry, int]]) -> bool:
        """Whether exactly these transactions were committed in one step, and no producer has begun another since."""
        return len({producer.decision_id for producer, _ in owners}) == 1 and all(
            producer.state is TransactionState.COMPLETE_COMMIT and number in (0, producer.number)
            for producer, number in owners
        )

    def _committed_before(self, owners: list[tuple[ProducerEntry, int]]) -> Decision | TransactionOutcome:
        """The answer, once the open transactions are aborted: they hold the same work a second time."""
        repeated = [
            producer.transaction
            for producer, number in owners
            if producer.transaction and number in (0, producer.number)
        ]
        answer = TransactionOutcome(COMMITTED, already=True)
        return self._aborting(repeated, AbortReason.MARKER, answer) if repeated else answer

    def _committing(
        self,
        transactions: list[StagedTransaction],
        marker: str | None,
        ends: PartitionEnds | None,
        *,
        wall_ns: int,
    ) -> Decision:
        id = transactions[0].id
        parts = tuple(transaction.part(ends) for transaction in transactions)
        raw = facts.encode(facts.SavedDecision(facts.VERSION, wall_ns, marker, list(parts)))
        if len(raw) > self.limits.decision_bytes_max:
            raise RequestTooLarge(len(raw), self.limits.decision_bytes_max)
        decision = Decision(
            id=id,
            is_commit=True,
            parts=parts,
            answer=TransactionOutcome(COMMITTED),
            marker=marker,
            facts={facts.decision_key(id): raw},
        )
        if marker is not None:
            self._markers.committing[marker] = decision
        self._start(decision, transactions, TransactionTrigger.COMMITTED)
        return decision

    def abort(self, owner: TransactionOwner, *, wall_ns: int) -> Decision | TransactionOutcome:
        """Abort the transaction of the owner: the decision to carry out, or the outcome of an earlier abort.

        Raises `Busy`, `ProducerNotFound`, `ProducerFenced` or `InvalidTransactionState`.
        """
        producer = self._producers.get(owner.producer_id, owner.epoch, owner.transactional_id)
        self._producers.use(producer, wall_ns=wall_ns)
        return self._end(producer, owner.number, AbortReason.CLIENT)

    def abort_by_id(self, id: str, reason: AbortReason = AbortReason.ADMIN) -> Decision | TransactionOutcome:
        """Abort the transaction of any owner. Raises `Busy`, `TransactionNotFound` or `InvalidTransactionState`."""
        producer, number = self.open.split_id(id)
        if number != producer.number:
            raise TransactionNotFound(id)
        return self._end(producer, number, reason)

    def _end(self, producer: ProducerEntry, number: int, reason: AbortReason) -> Decision | TransactionOutcome:
        producer.check_free()
        is_lost = number > producer.number  # it was begun, and a crash lost the fact that says so
        if is_lost or (producer.state is TransactionState.COMPLETE_ABORT and number in (0, producer.number)):
            return TransactionOutcome(ABORTED, already=True)
        if not producer.transaction or number not in (0, producer.number):
            raise producer.invalid("no transaction open")
        return self._aborting([producer.transaction], reason)

    def _aborting(
        self, transactions: list[StagedTransaction], reason: AbortReason, answer: TransactionOutcome | None = None
    ) -> Decision:
        decision = Decision(
            id=transactions[0].id,
            is_commit=False,
            parts=tuple(transaction.part() for transaction in transactions),
            answer=answer or TransactionOutcome(ABORTED),
            reason=reason,
        )
        self._start(decision, transactions, TransactionTrigger.ABORTED)
        return decision

    def _start(
        self, decision: Decision, transactions: Iterable[StagedTransaction], trigger: TransactionTrigger
    ) -> None:
        for transaction in transactions:
            producer = self._producers.find(transaction.transactional_id)
            assert producer
            assert producer.transaction is transaction
            self._producers.turn(producer, trigger)
            producer.under_way = decision
            producer.reason = decision.reason

    def decided(self, decision: Decision) -> None:
        """Note that the facts of the commit are durable: from here on it happens, crash or not."""
        assert decision.is_commit
        assert decision.stage is Stage.ASKED
        decision.stage = Stage.DECIDED
        for part in decision.parts:
            self._tables.unsettled[part.producer_id, part.number] = decision

    def withdrawn(self, decision: Decision) -> None:
        """Note that the facts of the commit could not be written: the transactions are open as before."""
        assert decision.is_commit
        assert decision.stage is Stage.ASKED
        decision.stage = Stage.WITHDRAWN
        if decision.marker is not None:
            del self._markers.committing[decision.marker]
        for producer in self._under_way(decision):
            assert producer.transaction
            self._producers.turn(producer, TransactionTrigger.WITHDRAWN)
            producer.under_way = None
            self._deadlines.add(producer.transaction)

    def voided(self, decision: Decision, reason: AbortReason) -> Decision | None:
        """Note that the decision never counts, as records of it are lost; returns the abort of its transactions.

        Its facts must be tombstoned first: until that is durable, a restart may find it.
        """
        transactions = [producer.transaction for producer in self._under_way(decision) if producer.transaction]
        for part in decision.parts:
            self._tables.unsettled.pop((part.producer_id, part.number), None)
        self.withdrawn(decision)
        return self._aborting(transactions, reason) if transactions else None

    def completed(self, decision: Decision, *, now_ns: int, wall_ns: int) -> None:
        """Note that the decision is carried out everywhere: its callers and those that got `Busy` can be answered."""
        assert decision.stage is (Stage.DECIDED if decision.is_commit else Stage.ASKED)
        decision.stage = Stage.COMPLETED
        for producer in self._under_way(decision):
            transaction = producer.transaction
            assert transaction
            self._producers.turn(producer, TransactionTrigger.COMPLETED)
            self.open.remove(transaction)
            self._jobs.remove(transaction)
            producer.transaction = None
            producer.under_way = None
            if decision.is_commit:
                producer.decision_id = decision.id
            elif decision.reason is AbortReason.FENCED:
                self._producers.turn(producer, TransactionTrigger.INITIATED)
                producer.reason = None
            if decision.is_commit:
                self._outcomes.committed(len(self.open), now_ns - transaction.begun_ns)
            else:
                assert decision.reason
                self._outcomes.aborted(len(self.open), decision.reason)
        if decision.marker is not None:
            self._markers.add(decision.marker, wall_ns=wall_ns)
            if decision.replaces not in (None, decision.marker) and self._markers.remove(decision.replaces):
                self._outbox.note(decision.replaces)
            self._forget_markers(wall_ns=wall_ns)

    def settled(self, decision: Decision) -> Facts:
        """Forget the decision, whose effects are all durable: the facts that say so. May be called again."""
        assert decision.stage in (Stage.COMPLETED, Stage.SETTLED)
        decision.stage = Stage.SETTLED
        changed: list[ProducerEntry | str] = []
        for part in decision.parts:
            self._tables.unsettled.pop((part.producer_id, part.number), None)
            producer = self._producers.find(part.transactional_id)
            if producer:
                changed.append(producer)
        if decision.marker is not None:
            changed.append(decision.marker)
        found = self._outbox.facts_of(*changed)
        if decision.is_commit:
            # Last: a crash in between leaves the decision with newer facts of its producers, which recovery tolerates.
            found[facts.decision_key(decision.id)] = None
        return found

    def _under_way(self, decision: Decision) -> list[ProducerEntry]:
        found = (self._producers.find(part.transactional_id) for part in decision.parts)
        return [producer for producer in found if producer and producer.under_way is decision]

    def verdict(self, producer_id: int, number: int) -> Verdict:
        """The fate of a transaction that has records and no marker in a partition."""
        decision = self._tables.unsettled.get((producer_id, number))
        if decision is not None:
            return Verdict.OPEN if decision.stage is Stage.ASKED else Verdict.COMMIT
        transaction = self.open.find(producer_id, number)
        if transaction:
            return Verdict.ABORT if transaction.state is TransactionState.PREPARE_ABORT else Verdict.OPEN
        producer = self._producers.find_id(producer_id)
        if producer:  # the begin may have been lost with the end of `__transactions`: its number must not come again
            producer.number_min = max(producer.number_min, number + 1)
        return Verdict.ABORT

    def _repeat(self, marker: str, *, wall_ns: int) -> None:
        if self._markers.use(marker, wall_ns=wall_ns):
            self._outbox.note(marker)

    # --- time ----------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """When to tick next. Nothing is due before; that something is due then is not certain."""
        return self._deadlines.next_ns

    def tick(self, *, now_ns: int, wall_ns: int) -> list[Decision]:
        """Abort transactions that have timed out; forget idle producers and old markers."""
        expired = self._deadlines.take_expired(now_ns)
        decisions = [self._aborting([transaction], AbortReason.TIMEOUT) for transaction in expired]
        for producer in self._producers.forget_idle(wall_ns=wall_ns, count_max=FORGET_COUNT_MAX):
            self._outbox.note(producer)
        self._forget_markers(wall_ns=wall_ns)
        return decisions

    def _forget_markers(self, *, wall_ns: int) -> None:
        for marker in self._markers.forget_old(wall_ns=wall_ns, count_max=FORGET_COUNT_MAX):
            self._outbox.note(marker)

    # --- reports -------------------------------------------------------------------------------

    def list(self) -> Sequence[TransactionInfo]:
        """The transactions that have not ended, oldest first."""
        return [transaction.info() for transaction in self.open.oldest_first()]

    def describe(self, id: str) -> TransactionInfo:
        """A transaction that has not ended. Raises `TransactionNotFound`."""
        return self.open.unfinished(id).info()

    def stats(self) -> TransactionStats:
        """Totals and the mean duration of commits, since the start."""
        return TransactionStats(
            len(self.open),
            self._outcomes.committed_count,
            self._outcomes.aborted_count,
            self._outcomes.mean_commit_ns,
            {state.value: self._producers.by_state[state] for state in TransactionState},
            len(self._producers),
        )

    def take_events(self) -> Sequence[TransactionEvent]:
        """The events since the last call."""
        return self._outcomes.take_events()
