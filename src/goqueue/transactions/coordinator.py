"""All producers and transactions of one coordinator: it decides, and others carry out.

It takes facts, requests and the time, and says what is to be written and done. `now_ns` is the clock that never jumps,
`wall_ns` the calendar. What has to be written are keyed facts (`facts.py`); they come

    from `init`, `begin` and a commit   with the answer, and are durable before that is given, as each of them says;
    from `settled`                      when a decision is over;
    from `take_facts`                   at any time: small news that nobody waits for, and that may be lost.

Facts are written in the order in which they were asked for, at once or never: a fact that is written late would bring
back what is no longer true. (The facts of a decision are the exception: their key is theirs alone.)

**How a transaction goes.** `begin` gives it a number, and its records in the partitions carry that number. What it
touches is noted in the `Transaction`, in memory. `commit` makes a `Decision` of it (`decisions.py`), which is written
as one record, and then carried out. What becomes of the records of a transaction depends on that one record alone:

    verdict(producer_id, number)   open     it may still be decided
                                   commit   the decision is there, and not yet everywhere
                                   abort    anything else

So after a restart decisions that are found are carried out again, and everything else that was open is aborted: nothing
has to be known of it. Numbers rise and are never used twice, not even if the last ones were lost in a crash (they are
not below the microseconds of the calendar), so a marker that comes late can only be about a transaction that is over.

**Who may ask.** Each request names the epoch that `init` gave; an older one is fenced before anything else is looked
at. A request about something that is being decided raises `Busy`, and is to be made again when the decision is
completed; so outcomes are never told before they are certain.

**What is told of the past.** The last outcome of a transactional id stays known until the next begin or init: to repeat
it answers the same again. An abort that the owner did not ask for (timeout, admin, restart, marker) it hears as
`TransactionAborted`, with whatever it asks for next except a begin.

**Markers** are texts of the caller: a commit that names one happens once. If it was committed before, what is open
under the owners is aborted, for it is the same again; and they are told that it is committed.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from goqueue.errors import (
    Conflict,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    RequestTooLarge,
    TransactionAborted,
    TransactionError,
    TransactionNotFound,
    UnsupportedFormat,
)
from goqueue.events import TransactionAborted as AbortedEvent
from goqueue.events import TransactionBegun as BegunEvent
from goqueue.events import TransactionCommitted as CommittedEvent
from goqueue.events import TransactionEvent
from goqueue.names import TopicPartition
from goqueue.transactions import facts
from goqueue.transactions.committed import CommittedMarkers, marker_key
from goqueue.transactions.decisions import Busy, DecidedPartition, Decision, DecisionPart, Stage
from goqueue.transactions.jobs import Jobs, validate_job
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.producers import PRODUCER_ID_MAX, Producer, Producers, validate_transactional_id
from goqueue.transactions.states import Reason, State, Turn, Verdict
from goqueue.transactions.transaction import Transaction, split_transaction_id, transaction_id
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)

Facts = dict[bytes, bytes | None]
"""What to write; None deletes."""

FORGET_COUNT_MAX = 1_000
"""Per tick, so that a tick is short."""
_STALE_DEADLINES_MAX = 64
_NUMBER_UNIT_NS = 1_000
_NUMBERS_AHEAD_MAX = 10**9
"""How far a producer may be ahead that numbers its transactions by itself, so that numbers cannot be used up."""

COMMITTED = "committed"
ABORTED = "aborted"


class Recovery(NamedTuple):
    """What is left to do after a restart, before anything is served."""

    decisions: list[Decision]
    """To be carried out again, each; they are `decided`."""
    void: Facts
    """Decisions that do not count. They must be gone for good before anything is written to their partitions."""
    aborted: list[str]
    """The transactions that were open. Their records are in partitions that ask for the `verdict`."""
    unreadable: dict[bytes, str]
    """By key, the facts that cannot be understood, and why."""


class Initiated(NamedTuple):
    """A producer. It is told when the facts are durable, and the abort is completed."""

    facts: Facts
    session: ProducerSession
    abort: Decision | None


class Begun(NamedTuple):
    """A transaction was begun, unless the marker was committed before.

    The facts are written at once. Nothing that is done inside of the transaction may be answered before they are
    durable: else a restart could take the commit of this transaction for a repeated one of the last.
    """

    facts: Facts
    answer: BegunTransaction
    transaction: Transaction | None
    replaced: Decision | None = None
    """What earlier runs of the same job had open; it is aborted."""


class Coordinator:
    """Who may commit what, and how everything ends. Not thread-safe; knows deadlines, owns no timer."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits()
        self._producers = Producers(self.limits)
        self._open: dict[tuple[int, int], Transaction] = {}
        self._jobs = Jobs()
        self._unsettled: dict[tuple[int, int], Decision] = {}  # commits that are durable, and what they did is not yet
        self._markers = CommittedMarkers(self.limits)
        self._marking: dict[str, Decision] = {}  # commits under way that name a marker
        self._deadlines: list[tuple[int, int, Transaction]] = []  # a heap; of those that have ended, too
        self._deadlines_max = _STALE_DEADLINES_MAX
        self._order = count()
        self._news: dict[bytes, Producer | str] = {}  # for `take_facts`
        self._events: list[TransactionEvent] = []
        self._committed_count = 0
        self._aborted_count = 0
        self._committed_ns = 0

    # What outlives a restart

    def load(
        self,
        stored: Mapping[bytes, bytes],
        *,
        is_stored: Callable[[DecidedPartition], bool] = lambda _: True,
        now_ns: int,
        wall_ns: int,
    ) -> Recovery:
        """Know what the facts say, of decisions only those about partitions that have all of it.

        What cannot be understood is passed over, and told of in the result.
        """
        assert not self._producers
        producers: list[Producer] = []
        markers: list[tuple[str, facts.SavedMarker]] = []
        decisions: list[Decision] = []
        unreadable: dict[bytes, str] = {}
        for key, raw in stored.items():
            try:
                kind, name = key[: facts.KIND_BYTES], _text(key)
                if kind == facts.TRANSACTIONAL_KEY:
                    holder = facts.decode(facts.SavedTransactional, key, raw)
                    validate_transactional_id(name)
                    producers.append(_restored_holder(name, holder))
                elif kind == facts.PRODUCER_KEY:
                    plain = facts.decode(facts.SavedProducer, key, raw)
                    producers.append(Producer(_whole(key), plain.epoch, plain.used_at_ns, saved_at_ns=plain.used_at_ns))
                elif kind == facts.DECISION_KEY:
                    decisions.append(_restored_decision(name, facts.decode(facts.SavedDecision, key, raw)))
                elif kind == facts.MARKER_KEY:
                    markers.append((name, facts.decode(facts.SavedMarker, key, raw)))
                else:
                    raise UnsupportedFormat(facts.TOPIC, f"{key!r}: no such kind of fact")
            except GoQueueError as error:
                unreadable[key] = str(error)
        whole = [one for one in decisions if all(is_stored(place) for part in one.parts for place in part.partitions)]
        void: Facts = {_decision_key(one.id): None for one in decisions if one not in whole}
        for producer in sorted(producers, key=lambda one: one.used_at_ns):
            forgotten = self._producers.add(producer)
            if forgotten:
                self._tell(forgotten)
        self._markers.restore(markers)
        parts = [(decision, part) for decision in whole for part in decision.parts]
        for decision, part in sorted(parts, key=lambda pair: pair[1].number, reverse=True):
            self._resume(decision, part, begun_ns=now_ns - max(0, wall_ns - part.started_at_ns))
        interrupted = [one for one in producers if one.state in _INTERRUPTED and not one.under_way]
        return Recovery(whole, void, [self._abandon(one) for one in interrupted], unreadable)

    def _resume(self, decision: Decision, part: DecisionPart, *, begun_ns: int) -> None:
        """A commit that was decided before the restart is under way again; the newest of a producer comes first."""
        if decision.marker is not None:
            self._marking[decision.marker] = decision
        self._unsettled[part.producer_id, part.number] = decision
        producer = self._producers.find(part.transactional_id)
        if not producer or producer.producer_id != part.producer_id or _has_gone_on(producer, part.number):
            return
        producer.number = part.number
        producer.number_min = part.number + 1
        producer.reason = None
        producer.under_way = decision
        producer.transaction = self._remembered(producer, part, begun_ns=begun_ns)
        self._producers.become(producer, State.PREPARE_COMMIT)

    def _remembered(self, producer: Producer, part: DecisionPart, *, begun_ns: int) -> Transaction:
        transaction = Transaction(
            part.transactional_id,
            part.producer_id,
            producer.epoch,
            part.number,
            timeout_ms=producer.timeout_ms,
            begun_ns=begun_ns,
            started_at_ns=part.started_at_ns,
            limits=self.limits,
        )
        transaction.partitions = {TopicPartition(one.topic, one.partition): one for one in part.partitions}
        transaction.positions = {(one.group, one.topic, one.partition): one for one in part.positions}
        transaction.acks = {(one.group, one.topic, one.partition): one for one in part.acks}
        self._open[part.producer_id, part.number] = transaction
        return transaction

    def _abandon(self, producer: Producer) -> str:
        """What was open when the broker ended, and not decided, is over."""
        if producer.state is State.PREPARE_COMMIT:  # the decision was not written
            self._producers.turn(producer, Turn.WITHDRAWN)
        if producer.state is State.ONGOING:
            self._producers.turn(producer, Turn.ABORTED)
        self._producers.turn(producer, Turn.COMPLETED)
        if producer.reason is None:
            producer.reason = Reason.RESTART
        self._tell(producer)
        self._aborted_count += 1
        self._events.append(AbortedEvent(len(self._open), producer.reason.value))
        return producer.transaction_id

    def take_facts(self) -> Facts:
        """What is new since the last call, beside what was handed out: to be written at once, and not waited for."""
        news, self._news = self._news, {}
        return {key: self._fact(one) for key, one in news.items()}

    def _fact(self, one: Producer | str) -> bytes | None:
        return one.fact() if isinstance(one, Producer) else self._markers.fact(one)

    def _tell(self, one: Producer | str) -> None:
        """Write it when facts are taken next."""
        self._news[_key(one)] = one

    def _facts_of(self, *things: Producer | str) -> Facts:
        """These as they are now, to be written at once."""
        found: Facts = {}
        for one in things:
            key = _key(one)
            self._news.pop(key, None)
            found[key] = self._fact(one)
        return found

    # Producers

    def init(self, transactional_id: str | None, *, timeout_ms: int, new_id: int, wall_ns: int) -> Initiated:
        """A producer with an epoch of its own; older holders of the transactional id are fenced from now on.

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
            _check_free(producer)
            if producer.transaction:
                abort = self._aborting([producer.transaction], Reason.FENCED)
            else:
                self._producers.turn(producer, Turn.INITIATED)
                producer.reason = None
            self._producers.renew(producer, new_id=new_id)
            self._producers.use(producer, wall_ns=wall_ns)
        producer.timeout_ms = timeout_ms
        lowest = max(producer.number_min, wall_ns // _NUMBER_UNIT_NS)
        session = ProducerSession(producer.producer_id, producer.epoch, 0 if transactional_id is None else lowest)
        return Initiated(self._facts_of(producer), session, abort)

    def _new_producer(self, transactional_id: str | None, *, new_id: int, wall_ns: int) -> Producer:
        if transactional_id is not None:
            self._producers.check_room()
        producer = Producer(self._producers.free_id(new_id), 0, wall_ns, transactional_id)
        forgotten = self._producers.add(producer)
        if forgotten:
            self._tell(forgotten)
        return producer

    def heartbeat(self, producer_id: int, epoch: int, transactional_id: str | None = None, *, wall_ns: int) -> None:
        """The producer is in use. Raises `ProducerNotFound` or `ProducerFenced`."""
        producer = self._producers.get(producer_id, epoch, transactional_id)
        self._producers.use(producer, wall_ns=wall_ns)
        if wall_ns - producer.saved_at_ns >= self.limits.refresh_ns:
            self._tell(producer)

    def published(self, producer_id: int, *, wall_ns: int) -> None:
        """A batch came from the producer, which counts as use; ids that nobody initiated are nothing to us."""
        producer = self._producers.find_id(producer_id)
        if producer:
            self._producers.use(producer, wall_ns=wall_ns)
            if wall_ns - producer.saved_at_ns >= self.limits.refresh_ns:
                self._tell(producer)

    # Open transactions

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
    ) -> Begun:
        """A transaction, if none is open; or the word that the marker was committed before, and then nothing is opened.

        With a `number` it gets that, which has to be higher than all before. In the run of a `job`, what other runs of
        it have open is aborted; a run that has ended is refused with `TransactionAborted`.

        Raises `Busy`, `ProducerNotFound`, `ProducerFenced`, `InvalidTransactionState`, `InvalidRequest` or `Conflict`.
        """
        producer = self._producers.get(producer_id, epoch, transactional_id)
        _check_free(producer)
        if producer.transaction:
            raise _invalid("transaction already in progress", producer)
        validate_job(job, run)
        if marker is not None:
            self._check_marker(marker)
            if marker in self._markers:
                self._repeat(marker, wall_ns=wall_ns)
                already = BegunTransaction("", producer_id, epoch, 0, already_committed=True)
                return Begun({}, already, None, self._replace(job, run))
        if job is not None and self._jobs.has_ended(job, run):
            raise TransactionAborted(transaction_id(transactional_id, number), Reason.REPLACED.value)
        if len(self._open) >= self.limits.open_max:
            raise Conflict(f"there are {len(self._open)} open transactions, which is the limit")
        lowest = max(producer.number_min, wall_ns // _NUMBER_UNIT_NS)
        if number and not producer.number_min <= number <= lowest + _NUMBERS_AHEAD_MAX:
            raise InvalidRequest(f"number must be {producer.number_min} or a little more", path="number")
        number = number or lowest
        producer.number = number
        producer.number_min = number + 1
        producer.started_at_ns = wall_ns
        producer.reason = None
        producer.transaction = transaction = Transaction(
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
        self._producers.turn(producer, Turn.BEGUN)
        self._producers.use(producer, wall_ns=wall_ns)
        replaced = self._replace(job, run)
        self._open[producer_id, number] = transaction
        self._set_deadline(transaction)
        self._events.append(BegunEvent(len(self._open)))
        answer = BegunTransaction(transaction.id, producer_id, epoch, number)
        return Begun(self._facts_of(producer), answer, transaction, replaced)

    def keep(self, owners: Sequence[TransactionOwner], *, now_ns: int, wall_ns: int) -> None:
        """Let the timeout of what they have open start anew.

        Raises `ProducerNotFound`, `ProducerFenced`, `TransactionAborted` or `InvalidTransactionState`.
        """
        for one in owners:
            producer = self._producers.get(one.producer_id, one.epoch, one.transactional_id)
            if not producer.under_way:
                _ongoing(producer, one.number).keep(now_ns=now_ns, wall_ns=wall_ns)

    def keep_job(self, job: str, run: str, *, now_ns: int, wall_ns: int) -> int:
        """Let the timeout of all that the run has open start anew; how many transactions that are."""
        found = self._jobs.find(job, run)
        if found is None:
            return 0
        found.keep(now_ns=now_ns, wall_ns=wall_ns)
        return len(found.transactions)

    def abort_job(self, job: str, run: str | None = None) -> Decision | None:
        """Abort all that a run has open, or all runs of the job; the run has ended."""
        validate_job(job, run or "")
        found = self._jobs.end_all(job) if run is None else self._jobs.end(job, run)
        return self._aborting_open(found, Reason.CLIENT)

    def _replace(self, job: str | None, run: str) -> Decision | None:
        """Abort what other runs of the job have open, which have ended by that."""
        if job is None:
            return None
        return self._aborting_open(self._jobs.end_all(job, but=run), Reason.REPLACED)

    def _aborting_open(self, transactions: Sequence[Transaction], reason: Reason) -> Decision | None:
        """Abort those of them that are not being decided about already."""
        ongoing = [one for one in transactions if one.state is State.ONGOING]
        return self._aborting(ongoing, reason) if ongoing else None

    def check_publish(self, producer_id: int, epoch: int, number: int) -> Transaction:
        """The transaction to publish into.

        Raises `ProducerNotFound`, `ProducerFenced`, `TransactionAborted` or `InvalidTransactionState`.
        """
        transaction = self._open.get((producer_id, number))
        if transaction and transaction.epoch == epoch and transaction.state is State.ONGOING:
            return transaction
        raise _refusal(self._producers.get(producer_id, epoch), number)

    def open_of(self, producer_id: int, epoch: int, transactional_id: str | None = None) -> Transaction:
        """The transaction that the producer has open; raises as `check_publish` does."""
        producer = self._producers.get(producer_id, epoch, transactional_id)
        if producer.transaction and producer.state is State.ONGOING:
            return producer.transaction
        raise _refusal(producer)

    def open_by_id(self, id: str) -> Transaction:
        """The transaction to publish into.

        Raises `TransactionNotFound`, `TransactionAborted` or `InvalidTransactionState`.
        """
        producer, number = self._named(id)
        transaction = self._open.get((producer.producer_id, number))
        if transaction and transaction.state is State.ONGOING:
            return transaction
        if number != producer.number:
            raise TransactionNotFound(id)
        raise _refusal(producer, number)

    def open_by_number(self, producer_id: int, number: int) -> Transaction | None:
        """The transaction of that number, if it has not ended."""
        return self._open.get((producer_id, number))

    def by_id(self, id: str) -> Transaction:
        """The transaction of that id, if it has not ended. Raises `TransactionNotFound`."""
        producer, number = self._named(id)
        if producer.transaction and producer.transaction.number == number:
            return producer.transaction
        raise TransactionNotFound(id)

    def _named(self, id: str) -> tuple[Producer, int]:
        named = split_transaction_id(id)
        producer = self._producers.find(named[0]) if named else None
        if not named or not producer:
            raise TransactionNotFound(id)
        return producer, named[1]

    # How they end

    def commit(
        self,
        owner: TransactionOwner,
        together: Sequence[TransactionOwner] = (),
        *,
        marker: str | None = None,
        replaces: str | None = None,
        end_of: Callable[[DecidedPartition], int] = lambda _: 0,
        wall_ns: int,
    ) -> Decision | TransactionOutcome:
        """All of them or none, once per marker: what is to be done for it, or what was done before.

        What the partitions hold of it, up to `end_of`, and the facts have to be durable before it is decided. Raises
        `Busy`, `ProducerNotFound`, `ProducerFenced`, `TransactionAborted`, `InvalidTransactionState`, `InvalidRequest`
        or `RequestTooLarge`; then nothing is decided.
        """
        owners = self._owners(owner, together)
        for producer, _ in owners:
            _check_free(producer)
        if marker is not None:
            self._check_marker(marker)
            if marker in self._markers:
                self._repeat(marker, wall_ns=wall_ns)
                return self._committed_before(owners)
        elif self._is_repeated(owners):
            return TransactionOutcome(COMMITTED, already=True)
        transactions = [_ongoing(producer, number) for producer, number in owners]
        stored = {transaction.transactional_id: transaction.record_count for transaction in transactions}
        for one in (owner, *together):
            if one.record_count not in (None, stored[one.transactional_id]):
                fault = f"{stored[one.transactional_id]} of {one.record_count} records are stored"
                raise InvalidTransactionState(fault, one.transactional_id, State.ONGOING.value)
        for producer, _ in owners:
            self._producers.use(producer, wall_ns=wall_ns)
        decision = self._committing(transactions, marker, end_of, wall_ns=wall_ns)
        decision.replaces = replaces
        return decision

    def _owners(self, owner: TransactionOwner, together: Sequence[TransactionOwner]) -> list[tuple[Producer, int]]:
        """Who commits, each once, and which transaction it means (0: the one that it has)."""
        if len(together) >= self.limits.together_max:
            rule = f"{len(together) + 1} transactions are over the limit of {self.limits.together_max}"
            raise InvalidRequest(f"transactions: {rule}", path="transactions")
        found: dict[str, tuple[Producer, int]] = {}
        for one in (owner, *together):
            producer = self._producers.get(one.producer_id, one.epoch, one.transactional_id)
            known = found.setdefault(one.transactional_id, (producer, one.number))
            if known[1] != one.number:
                raise InvalidRequest(f"transactions: {one.transactional_id} is there twice", path="transactions")
        return list(found.values())

    def _is_repeated(self, owners: list[tuple[Producer, int]]) -> bool:
        """Whether exactly this was committed in one step, and none of them has gone on since."""
        return len({producer.decision_id for producer, _ in owners}) == 1 and all(
            producer.state is State.COMPLETE_COMMIT and number in (0, producer.number) for producer, number in owners
        )

    def _committed_before(self, owners: list[tuple[Producer, int]]) -> Decision | TransactionOutcome:
        """What is open is the same once more, and must not be seen."""
        repeated = [
            producer.transaction
            for producer, number in owners
            if producer.transaction and number in (0, producer.number)
        ]
        answer = TransactionOutcome(COMMITTED, already=True)
        return self._aborting(repeated, Reason.MARKER, answer) if repeated else answer

    def _committing(
        self,
        transactions: list[Transaction],
        marker: str | None,
        end_of: Callable[[DecidedPartition], int],
        *,
        wall_ns: int,
    ) -> Decision:
        id = transactions[0].id
        parts = tuple(transaction.part(end_of) for transaction in transactions)
        raw = facts.encode(facts.SavedDecision(facts.VERSION, wall_ns, marker, list(parts)))
        if len(raw) > self.limits.decision_bytes_max:
            raise RequestTooLarge(len(raw), self.limits.decision_bytes_max)
        decision = Decision(
            id=id,
            is_commit=True,
            parts=parts,
            answer=TransactionOutcome(COMMITTED),
            marker=marker,
            facts={_decision_key(id): raw},
        )
        if marker is not None:
            self._marking[marker] = decision
        self._start(decision, transactions, Turn.COMMITTED)
        return decision

    def abort(self, owner: TransactionOwner, *, wall_ns: int) -> Decision | TransactionOutcome:
        """Nothing of it ever was: what is to be done for it, or what was done before.

        Raises `Busy`, `ProducerNotFound`, `ProducerFenced` or `InvalidTransactionState`.
        """
        producer = self._producers.get(owner.producer_id, owner.epoch, owner.transactional_id)
        self._producers.use(producer, wall_ns=wall_ns)
        return self._end(producer, owner.number, Reason.CLIENT)

    def abort_by_id(self, id: str, reason: Reason = Reason.ADMIN) -> Decision | TransactionOutcome:
        """The same for somebody else's. Raises `Busy`, `TransactionNotFound` or `InvalidTransactionState`."""
        producer, number = self._named(id)
        if number != producer.number:
            raise TransactionNotFound(id)
        return self._end(producer, number, reason)

    def _end(self, producer: Producer, number: int, reason: Reason) -> Decision | TransactionOutcome:
        _check_free(producer)
        is_lost = number > producer.number
        if is_lost or (producer.state is State.COMPLETE_ABORT and number in (0, producer.number)):
            return TransactionOutcome(ABORTED, already=True)
        if not producer.transaction or number not in (0, producer.number):
            raise _invalid("no transaction open", producer)
        return self._aborting([producer.transaction], reason)

    def _aborting(
        self, transactions: list[Transaction], reason: Reason, answer: TransactionOutcome | None = None
    ) -> Decision:
        decision = Decision(
            id=transactions[0].id,
            is_commit=False,
            parts=tuple(transaction.part() for transaction in transactions),
            answer=answer or TransactionOutcome(ABORTED),
            reason=reason,
        )
        self._start(decision, transactions, Turn.ABORTED)
        return decision

    def _start(self, decision: Decision, transactions: Iterable[Transaction], turn: Turn) -> None:
        for transaction in transactions:
            producer = self._producers.find(transaction.transactional_id)
            assert producer
            assert producer.transaction is transaction
            self._producers.turn(producer, turn)
            producer.under_way = decision
            producer.reason = decision.reason

    def decided(self, decision: Decision) -> None:
        """The facts of the commit are durable: it will happen, whatever comes."""
        assert decision.is_commit
        assert decision.stage is Stage.ASKED
        decision.stage = Stage.DECIDED
        for part in decision.parts:
            self._unsettled[part.producer_id, part.number] = decision

    def withdrawn(self, decision: Decision) -> None:
        """Nothing of the facts of the commit was written, nor will be: the transactions are open as before."""
        assert decision.is_commit
        assert decision.stage is Stage.ASKED
        decision.stage = Stage.WITHDRAWN
        if decision.marker is not None:
            del self._marking[decision.marker]
        for producer in self._under_way(decision):
            assert producer.transaction
            self._producers.turn(producer, Turn.WITHDRAWN)
            producer.under_way = None
            self._set_deadline(producer.transaction)

    def completed(self, decision: Decision, *, now_ns: int, wall_ns: int) -> None:
        """It is carried out everywhere: whoever waits for it is answered, and whoever was `Busy` goes on."""
        assert decision.stage is (Stage.DECIDED if decision.is_commit else Stage.ASKED)
        decision.stage = Stage.COMPLETED
        for producer in self._under_way(decision):
            transaction = producer.transaction
            assert transaction
            self._producers.turn(producer, Turn.COMPLETED)
            del self._open[transaction.producer_id, transaction.number]
            self._jobs.remove(transaction)
            producer.transaction = None
            producer.under_way = None
            if decision.is_commit:
                producer.decision_id = decision.id
            elif decision.reason is Reason.FENCED:
                self._producers.turn(producer, Turn.INITIATED)
                producer.reason = None
            self._note_end(decision, now_ns - transaction.begun_ns)
        if decision.marker is not None:
            del self._marking[decision.marker]
            self._markers.add(decision.marker, wall_ns=wall_ns)
            if decision.replaces not in (None, decision.marker) and self._markers.remove(decision.replaces):
                self._tell(decision.replaces)
            self._forget_markers(wall_ns=wall_ns)

    def settled(self, decision: Decision) -> Facts:
        """What to write when all that the decision did is durable; after that it is forgotten. May be asked again."""
        assert decision.stage in (Stage.COMPLETED, Stage.SETTLED)
        decision.stage = Stage.SETTLED
        news: list[Producer | str] = []
        for part in decision.parts:
            self._unsettled.pop((part.producer_id, part.number), None)
            producer = self._producers.find(part.transactional_id)
            if producer:
                news.append(producer)
        if decision.marker is not None:
            news.append(decision.marker)
        found = self._facts_of(*news)
        if decision.is_commit:
            found[_decision_key(decision.id)] = None  # the last, for what comes before makes up for it
        return found

    def _under_way(self, decision: Decision) -> list[Producer]:
        found = (self._producers.find(part.transactional_id) for part in decision.parts)
        return [producer for producer in found if producer and producer.under_way is decision]

    def _note_end(self, decision: Decision, duration_ns: int) -> None:
        if decision.is_commit:
            self._committed_count += 1
            self._committed_ns += duration_ns
            self._events.append(CommittedEvent(len(self._open), duration_ns))
        else:
            assert decision.reason
            self._aborted_count += 1
            self._events.append(AbortedEvent(len(self._open), decision.reason.value))

    def verdict(self, producer_id: int, number: int) -> Verdict:
        """What becomes of a transaction of which a partition has records and no marker."""
        if (producer_id, number) in self._unsettled:
            return Verdict.COMMIT
        transaction = self._open.get((producer_id, number))
        if transaction:
            return Verdict.ABORT if transaction.state is State.PREPARE_ABORT else Verdict.OPEN
        producer = self._producers.find_id(producer_id)
        if producer:  # it may be one that was lost with the end of our own log
            producer.number_min = max(producer.number_min, number + 1)
        return Verdict.ABORT

    def _check_marker(self, marker: str) -> None:
        """Raise `InvalidRequest` if it is no marker, or `Busy` if it is just being committed."""
        self._markers.validate(marker)
        if marker in self._marking:
            raise Busy(self._marking[marker])

    def _repeat(self, marker: str, *, wall_ns: int) -> None:
        if self._markers.use(marker, wall_ns=wall_ns):
            self._tell(marker)

    # Time

    @property
    def next_deadline_ns(self) -> int | None:
        """When to tick next. Nothing is due before; that something is due then is not certain."""
        return self._deadlines[0][0] if self._deadlines else None

    def tick(self, *, now_ns: int, wall_ns: int) -> list[Decision]:
        """Abort what was open for too long, and forget what was not used for too long."""
        decisions = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            transaction = heapq.heappop(self._deadlines)[2]
            if transaction.state is not State.ONGOING:
                continue
            if transaction.deadline_ns > now_ns:  # it was kept; entries of the heap are not moved by that
                self._set_deadline(transaction)
            else:
                decisions.append(self._aborting([transaction], Reason.TIMEOUT))
        for producer in self._producers.forget_idle(wall_ns=wall_ns, count_max=FORGET_COUNT_MAX):
            self._tell(producer)
        self._forget_markers(wall_ns=wall_ns)
        return decisions

    def _forget_markers(self, *, wall_ns: int) -> None:
        for marker in self._markers.forget_old(wall_ns=wall_ns, count_max=FORGET_COUNT_MAX):
            self._tell(marker)

    def _set_deadline(self, transaction: Transaction) -> None:
        if len(self._deadlines) > self._deadlines_max:
            self._deadlines = [entry for entry in self._deadlines if entry[2].state is State.ONGOING]
            heapq.heapify(self._deadlines)
            self._deadlines_max = max(_STALE_DEADLINES_MAX, 2 * len(self._deadlines))
        heapq.heappush(self._deadlines, (transaction.deadline_ns, next(self._order), transaction))

    # Who wants to know

    def list(self) -> Sequence[TransactionInfo]:
        """Those that have not ended, the oldest first."""
        oldest_first = sorted(self._open.values(), key=lambda transaction: transaction.begun_ns)
        return [transaction.info() for transaction in oldest_first]

    def describe(self, id: str) -> TransactionInfo:
        """One that has not ended. Raises `TransactionNotFound`."""
        return self.by_id(id).info()

    def stats(self) -> TransactionStats:
        """Everything in numbers; totals and the mean duration of commits since the start."""
        return TransactionStats(
            len(self._open),
            self._committed_count,
            self._aborted_count,
            self._committed_ns // self._committed_count if self._committed_count else 0,
            {state.value: self._producers.by_state[state] for state in State},
            len(self._producers),
        )

    def take_events(self) -> Sequence[TransactionEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events


_INTERRUPTED = (State.ONGOING, State.PREPARE_ABORT, State.PREPARE_COMMIT)


def _check_free(producer: Producer) -> None:
    if producer.under_way:
        raise Busy(producer.under_way)


def _ongoing(producer: Producer, number: int) -> Transaction:
    """The transaction of that number (0: any) that is open; the caller knows that nothing is under way."""
    if producer.transaction and number in (0, producer.number):
        return producer.transaction
    raise _refusal(producer, number)


def _refusal(producer: Producer, number: int = 0) -> TransactionError:
    """Why nothing can be done inside of the transaction of that number (0: the last one)."""
    if producer.transactional_id is None:
        return _invalid("no transaction open", producer)
    if number > producer.number:
        return TransactionAborted(transaction_id(producer.transactional_id, number), Reason.RESTART.value)
    if number in (0, producer.number) and producer.reason not in (None, Reason.CLIENT):
        return TransactionAborted(producer.transaction_id, producer.reason.value)
    return _invalid("no transaction open", producer)


def _invalid(fault: str, producer: Producer) -> InvalidTransactionState:
    name = f"producer {producer.producer_id}" if producer.transactional_id is None else producer.transactional_id
    return InvalidTransactionState(fault, name, producer.state.value)


def _has_gone_on(producer: Producer, number: int) -> bool:
    """Whether what is known of the producer is newer than the transaction of that number."""
    return number < producer.number or (number == producer.number and producer.state is State.EMPTY)


def _key(one: Producer | str) -> bytes:
    return one.key if isinstance(one, Producer) else marker_key(one)


def _decision_key(id: str) -> bytes:
    return facts.DECISION_KEY + id.encode()


def _text(key: bytes) -> str:
    try:
        return key[facts.KIND_BYTES :].decode()
    except UnicodeDecodeError:
        raise UnsupportedFormat(facts.TOPIC, f"{key!r} is no valid text") from None


def _whole(key: bytes) -> int:
    try:
        return int(_text(key))
    except ValueError:
        raise UnsupportedFormat(facts.TOPIC, f"{key!r} names no producer") from None


def _restored_holder(transactional_id: str, saved: facts.SavedTransactional) -> Producer:
    return Producer(
        saved.producer_id,
        saved.epoch,
        saved.used_at_ns,
        transactional_id,
        saved.timeout_ms,
        saved.state,
        saved.number,
        saved.number + 1,
        saved.started_at_ns,
        saved.reason,
        saved.decision_id,
        saved_at_ns=saved.used_at_ns,
    )


def _restored_decision(id: str, saved: facts.SavedDecision) -> Decision:
    return Decision(
        id=id,
        is_commit=True,
        parts=tuple(saved.parts),
        answer=TransactionOutcome(COMMITTED),
        marker=saved.marker,
        stage=Stage.DECIDED,
    )
