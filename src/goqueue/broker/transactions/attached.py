"""One coordinator while it is attached: it stores decisions in its journal, and has the participants carry them out.

    commit ──> the data of its partitions is committed, and the decision, as one record of the journal
           ──> markers, positions and acks are applied everywhere ──> answered ──> all of that is committed, too
           ──> the decision is tombstoned

A coordinator is attached to one partition of `__transactions` while this node leads it. What it knows and has not
stored ends with it: open transactions are aborted by the next attach. A decision whose record was written is found by
the next attach, and is carried out again; all its effects can be repeated (`participants.py`).

A commit becomes visible in all partitions of this node before its first marker is written, so no reader sees a part of
it. What a partition cannot do now, because it has no leader or its disk has no room, is asked again (`errands.py`):
until then the commit is not answered, and the producer's next transaction waits. On a failed disk nothing is written
before the next attach, which applies it again.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from goqueue import events
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.broker.transactions.errands import Ask, Errands
from goqueue.broker.transactions.participants import LocalParticipants, RecordsLost
from goqueue.clock import Clock
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    NotLeader,
    StorageError,
    StorageFull,
    TransactionAborted,
    TransactionNotFound,
)
from goqueue.service.pending import Pending, after, chained
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.decisions import Busy, Decision
from goqueue.transactions.states import AbortReason, Verdict
from goqueue.wire.transaction_reports import TransactionOutcome

T = TypeVar("T")


class AttachedCoordinator:
    """The coordinator of one partition of `__transactions`. Without a journal it can only have plain producers."""

    def __init__(
        self,
        partition: int,
        journal: Journal | None,
        participants: LocalParticipants,
        *,
        clock: Clock,
        timers: Timers,
        run_woken: Callable[[], None],
        observe: Callable[[events.TransactionEvent], None],
    ) -> None:
        self.partition = partition
        self.core = TransactionCoordinator()
        self.ended: GoQueueError | None = None  # why it is not attached any more
        self.errands = Errands(timers, clock)
        self._journal = journal
        self._participants = participants
        self._clock = clock
        self._run_woken = run_woken
        self._observe = observe
        self._ends: dict[Decision, Pending[None]] = {}  # by decision under way, its end

    # --- attach and detach ---------------------------------------------------------------------

    def load(self, *, is_first: bool) -> None:
        """Resume what was under way when the coordinator was last attached; `is_first` in this process.

        A decision of another process counts if the logs had all its data when they were opened: what has come into them
        since is not what the decision is about. What this process has stored, it can only lose with its leaders.
        """
        assert self._journal is not None
        now_ns, wall_ns = self._now()
        recovery = self.core.load(self._journal.load(), now_ns=now_ns, wall_ns=wall_ns)
        for key, reason in recovery.unreadable.items():
            self._journal.pass_over(key, reason)
        prepared = {one: self._recovered(one) if is_first else self._prepared(one) for one in recovery.decisions}
        lost = [one for one, data in prepared.items() if isinstance(data.error, RecordsLost)]
        # Before any other decision makes a partition long enough for them.
        self._journal.put_now({key: None for one in lost for key in one.facts})
        for decision in recovery.decisions:
            self._ends[decision] = Pending()
            if decision in lost:
                self._void(decision, AbortReason.RESTART)
            else:
                prepared[decision].then(partial(self._resumed, decision))
        self.tell()

    def detach(self, error: GoQueueError) -> None:
        """Forget everything: who waits gets the error, and the next attach resumes what is decided."""
        self.ended = error
        self.errands.stop()
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.fail(error)

    def _resumed(self, decision: Decision, prepared: Pending[None]) -> None:
        if self.ended is not None:
            return
        if isinstance(prepared.error, RecordsLost):
            self._withdraw(decision, prepared.error)
        elif prepared.error is None:
            self.core.decided(decision)
            self.carry_out(decision, is_again=True)
        else:  # a disk has failed: in doubt
            self._ends.pop(decision).fail(prepared.error)

    def _recovered(self, decision: Decision) -> Pending[None]:
        places = (place for part in decision.parts for place in part.partitions)
        is_whole = all(map(self._participants.was_recovered, places))
        return Pending.of(None) if is_whole else Pending.failed(RecordsLost())

    # --- for the verbs -------------------------------------------------------------------------

    def patiently(self, ask: Callable[[], Pending[T]]) -> Pending[T]:
        """Call `ask`, and again after the end of a decision that it has to wait for."""
        if self.ended is not None:
            return Pending.failed(self.ended)
        try:
            return ask()
        except Busy as busy:
            end = self._ends.get(busy.decision)
            if end is None:  # in doubt
                reason = f"the outcome of {busy.decision.id} is not known until its coordinator is started again"
                raise BrokerUnavailable(reason) from None
            again: Pending[None] = Pending()
            end.then(lambda _: again.resolve(None))
            return chained(again, lambda _: self.patiently(ask))

    def put(self, facts: Mapping[bytes, bytes | None], *, lazily: bool = False) -> Pending[None]:
        """Write facts to the journal. Raises as `Journal.put`."""
        if self._journal is None:
            raise TransactionNotFound("")
        return self._journal.put(facts, lazily=lazily)

    def tell(self) -> None:
        """Emit events of the coordinator, and store facts that need not be durable."""
        for event in self.core.take_events():
            self._observe(event)
        if self._journal is not None:
            facts = self.core.take_facts()
            if facts:
                with suppress(StorageError, NotLeader):
                    self._journal.put(facts, lazily=True)

    def outcome(self, found: Decision | TransactionOutcome) -> Pending[TransactionOutcome]:
        """The answer to a commit or an abort, once that is carried out."""
        self.tell()
        if isinstance(found, TransactionOutcome):
            return Pending.of(found)
        ended = self._decide(found) if found.is_commit else self.carry_out(found)
        return after(ended, lambda _: found.answer)

    def refuse_lost(self, lost: RecordsLost) -> Pending[TransactionOutcome]:
        """Abort a transaction that cannot be committed, as records of it are lost; fails with `TransactionAborted`."""
        found = self.core.abort_by_id(lost.transaction_id, AbortReason.LOST)
        refusal = Pending[TransactionOutcome].failed(TransactionAborted(lost.transaction_id, AbortReason.LOST.value))
        return chained(self.outcome(found), lambda _: refusal)

    def abort_now(self, transaction_id: str) -> None:
        """Abort a transaction whose begin could not be stored."""
        decision = self.core.abort_by_id(transaction_id)
        assert isinstance(decision, Decision)
        self.carry_out(decision)

    def tick(self) -> None:
        """Abort transactions whose timeout is over."""
        now_ns, wall_ns = self._now()
        for decision in self.core.tick(now_ns=now_ns, wall_ns=wall_ns):
            self.carry_out(decision)
        self.tell()

    # --- decisions -----------------------------------------------------------------------------

    def _decide(self, decision: Decision) -> Pending[None]:
        """Make the decision and the data of its partitions durable, then apply it.

        Both at the same time: all partitions are on this node, and a crash of it that leaves only the decision is
        noticed by the next attach. A partition on another node has to be prepared before the decision is written.
        """
        end = self._ends[decision] = Pending()
        prepared = self._prepared(decision)
        try:
            stored = self.put(decision.facts)
        except GoQueueError as error:
            self.core.withdrawn(decision)
            del self._ends[decision]
            end.fail(error)
        else:
            stored.then(lambda done: self._written(decision, done, prepared))
        return end

    def _written(self, decision: Decision, stored: Pending[None], prepared: Pending[None]) -> None:
        if self.ended is not None or isinstance(stored.error, NotLeader):  # `detach` tells who waits
            return
        if stored.error is not None:  # in doubt until the next attach: the record may be in the journal, or not
            self._ends.pop(decision).fail(stored.error)
            return

        def look(done: Pending[None]) -> None:
            if self.ended is not None:
                return
            if done.error is not None:
                self._withdraw(decision, done.error)
            else:
                self.core.decided(decision)
                self.carry_out(decision)

        prepared.then(look)

    def _prepared(self, decision: Decision) -> Pending[None]:
        """Done when all that the decision is about is committed; a partition without a leader is asked again."""
        asks: list[Ask] = []
        for part in decision.parts:
            asks += [partial(self._participants.prepare, place) for place in part.partitions]
        return self.errands.run(asks)[1]

    def _withdraw(self, decision: Decision, why: Exception) -> None:
        """A partition has lost records of it: tombstone the decision. Until that is durable, it is in doubt."""
        end = self._ends[decision]

        def gone(done: Pending[None]) -> None:
            if self.ended is not None or isinstance(done.error, NotLeader):
                return
            del self._ends[decision]
            if done.error is None and isinstance(why, RecordsLost):
                self._void(decision, AbortReason.LOST)
            elif done.error is None:
                self.core.withdrawn(decision)
            is_lost = isinstance(why, RecordsLost)
            end.fail(TransactionAborted(decision.id, AbortReason.LOST.value) if is_lost else why)

        try:
            self.put(dict.fromkeys(decision.facts)).then(gone)
        except GoQueueError as error:
            gone(Pending.failed(error))

    def _void(self, decision: Decision, reason: AbortReason) -> None:
        """Records of the decision are lost, and it is tombstoned: its transactions are aborted."""
        self._ends.pop(decision, None)
        abort = self.core.voided(decision, reason)
        if abort is not None:
            self.carry_out(abort)

    def carry_out(self, decision: Decision, *, is_again: bool = False) -> Pending[None]:
        """Apply the decision everywhere; done when it is applied. It is tombstoned when all of that is committed.

        `is_again` says that an earlier coordinator may have applied it.
        """
        end = self._ends.setdefault(decision, Pending())
        if decision.is_commit:
            places = [(place, (part.producer_id, part.number)) for part in decision.parts for place in part.partitions]
            self._participants.show(places)
        accepted, acknowledged = self.errands.run(self._effects(decision, is_again=is_again))
        accepted.then(lambda _: self._completed(decision, acknowledged))
        return end

    def _effects(self, decision: Decision, *, is_again: bool) -> list[Ask]:
        """What the participants have to do."""
        asks: list[Ask] = []
        topics = set()
        for part in decision.parts:
            key = (part.producer_id, part.number)
            write_marker = partial(self._participants.write_marker, key=key, commit=decision.is_commit)
            apply_acks = partial(self._participants.apply_acks, key=key, commit=decision.is_commit, is_again=is_again)
            asks += [partial(write_marker, place) for place in part.partitions]
            asks += [partial(apply_acks, acks) for acks in part.acks]
            if decision.is_commit:
                asks += [partial(self._participants.apply_position, position) for position in part.positions]
            topics |= {place.topic for some in (part.partitions, part.acks, part.positions) for place in some}
        asks += [partial(self._participants.check_quarantine, topic) for topic in topics]
        return asks

    def _completed(self, decision: Decision, acknowledged: Pending[None]) -> None:
        if self.ended is not None:
            return
        now_ns, wall_ns = self._now()
        self.core.completed(decision, now_ns=now_ns, wall_ns=wall_ns)
        acknowledged.then(lambda done: self._settle(decision, done))
        end = self._ends.pop(decision)
        self.tell()
        end.resolve(None)
        self._run_woken()

    def _settle(self, decision: Decision, acknowledged: Pending[None]) -> None:
        """Tombstone a decision whose effects are committed; if a disk failed, the next attach applies it again."""
        if self.ended is not None or acknowledged.error is not None:
            return
        try:
            self.put(self.core.settled(decision), lazily=True)
        except StorageFull:
            self.errands.later(lambda: self._settle(decision, acknowledged))
        except GoQueueError:
            pass

    # --- orphans -------------------------------------------------------------------------------

    def end_orphan(self, leader: PartitionLeader, key: tuple[int, int]) -> None:
        """Abort a transaction that is open in the partition, if this coordinator knows that it has ended."""
        if self.core.verdict(*key) is Verdict.ABORT:
            self.errands.run([partial(self._abort_orphan, leader, key)])

    def _abort_orphan(self, leader: PartitionLeader, key: tuple[int, int]) -> Pending[None]:
        """If the leader has ended, the next one is looked at when it begins."""
        if leader.ended is None:
            self._participants.abort(leader, key)
        return Pending.of(None)

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()
