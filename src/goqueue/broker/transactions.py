"""Transactions of one broker: what the coordinator decides is written down and carried out here.

    commit ──> the data of its partitions is on the medium, and the decision, as one record of `__transactions`
           ──> markers, positions and acks are applied everywhere ──> answered ──> all of that is on the medium, too
           ──> the decision is forgotten

A restart in between carries out again what was decided, before anything is served; all of it may be done twice. What
was open and not decided is aborted, in each partition that has records of it.

A commit is shown everywhere before its first marker is written, so nobody sees a half of it. A marker, a position or an
ack for which a disk has no room is tried again: until then nobody is told of the outcome, and the producer's next
transaction waits. Where a disk has failed nothing is written before the next start, which does it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.groups.groups import Groups
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.clock import SECOND, Clock
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InvalidRequest,
    StorageError,
    StorageFailed,
    StorageFull,
    TopicNotFound,
    TransactionNotFound,
)
from goqueue.record.header import Buffer
from goqueue.record.identity import BatchIdentity
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.service.transactions import TIMEOUT_MS
from goqueue.transactions.coordinator import TransactionCoordinator
from goqueue.transactions.decisions import (
    Busy,
    DecidedAcks,
    DecidedPartition,
    DecidedPosition,
    Decision,
    DecisionPart,
)
from goqueue.transactions.facts import TOPIC
from goqueue.transactions.states import Verdict
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire import reports
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)

RETRY_NS = SECOND // 4
"""How long to wait before a disk that did not take a marker is asked again."""

T = TypeVar("T")
Positions = dict[str, list[reports.PositionCommit]]


class Enlisted:
    """An open transaction, to be given to whoever does something inside of it."""

    __slots__ = ("_topics", "_wall_ns", "epoch", "key", "number", "producer_id", "transaction")

    def __init__(self, transaction: StagedTransaction, topics: LocalPartitions, wall_ns: Callable[[], int]) -> None:
        self.transaction = transaction
        self.producer_id = transaction.producer_id
        self.epoch = transaction.epoch
        self.number = transaction.number
        self.key = (transaction.producer_id, transaction.number)
        self._topics = topics
        self._wall_ns = wall_ns

    def add_partition(self, topic: str, partition: int) -> None:
        """The partition gets a marker when the transaction ends."""
        topic_id = self._topics.topic_id(topic, partition)
        self.transaction.add_partition(topic, topic_id, partition, wall_ns=self._wall_ns())

    def stored(self, record_count: int) -> None:
        """So many records more are a part of it."""
        self.transaction.record_count += record_count

    def add_acks(self, group: str, topic: str, partition: int, offsets: BitMap64) -> None:
        """The group is done with these when the transaction is committed."""
        acks = DecidedAcks(group, topic, self._topics.topic_id(topic, partition), partition, offsets)
        self.transaction.add_acks(acks, wall_ns=self._wall_ns())

    def add_position(self, group: str, commit: reports.PositionCommit) -> None:
        """The group is there when the transaction is committed."""
        topic_id = self._topics.topic_id(commit.topic, commit.partition)
        position = DecidedPosition(group, commit.topic, topic_id, commit.partition, commit.offset, commit.metadata)
        self.transaction.add_position(position, wall_ns=self._wall_ns())


class Transactions:
    """The verbs about producers and transactions."""

    def __init__(
        self,
        topics: LocalPartitions,
        groups: Groups,
        *,
        clock: Clock,
        timers: Timers,
        new_id: Callable[[], int],
        observe: events.Observer,
    ) -> None:
        self._coordinator = TransactionCoordinator()
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._timers = timers
        self._new_id = new_id
        self._observe = observe
        self._journal: Journal | None = None
        self._ends: dict[Decision, Pending[None]] = {}  # of decisions that are under way

    def load(self, journal: Journal | None, *, is_lost: bool = False) -> None:
        """Bring to an end what was under way before a restart.

        Without the journal that was there (`is_lost`) nothing is known of what was decided, so what is open in a
        partition stays open, and hidden, until a start finds the journal again.
        """
        self._journal = journal
        if is_lost:
            return
        if journal is not None:
            now_ns, wall_ns = self._now()
            recovery = self._coordinator.load(journal.load(), is_stored=self._is_stored, now_ns=now_ns, wall_ns=wall_ns)
            for key, reason in recovery.unreadable.items():
                journal.pass_over(key, reason)
            journal.put_now(recovery.void)  # before a partition is long enough again
            for decision in recovery.decisions:
                self._carry_out(decision, is_again=True)
        for leader in self._topics.all_leaders():
            transactions = leader.producers.transactions
            for producer_id, number in list(transactions.open) if transactions is not None else ():
                if self._coordinator.verdict(producer_id, number) is Verdict.ABORT:
                    self._abort_orphan(leader, producer_id, number)
        self._tell()

    def _abort_orphan(self, leader: PartitionLeader, producer_id: int, number: int) -> None:
        """Nobody will decide about these records any more; a disk that does not take that now is asked again."""
        try:
            leader.end_transaction(producer_id, number, commit=False)
        except StorageError:
            again = partial(self._abort_orphan, leader, producer_id, number)
            self._timers.at(self._clock.monotonic_ns() + RETRY_NS, again)

    # --- producers -----------------------------------------------------------------------------

    def init(self, transactional_id: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> Pending[ProducerSession]:
        """A producer. One with a transactional id fences the older holders of it, and aborts what they left open."""

        def ask() -> Pending[ProducerSession]:
            initiated = self._coordinator.init(
                transactional_id, timeout_ms=timeout_ms, new_id=self._new_id(), wall_ns=self._clock.wall_ns()
            )
            ended = self._carry_out(initiated.abort) if initiated.abort else Pending.of(None)
            if self._journal is None:
                return Pending.of(initiated.session)
            stored = self._put(initiated.facts)
            if transactional_id is None:  # a crash costs it nothing but its heartbeats
                return Pending.of(initiated.session)
            return after(all_of([stored, ended]), lambda _: initiated.session)

        if transactional_id is None and self._topics.quarantined(TOPIC):  # it needs no journal to publish
            return self._patiently(ask)
        return chained(self._opened(), lambda _: self._patiently(ask))

    def heartbeat(self, producer_id: int, epoch: int, *, transactional_id: str | None = None) -> None:
        """The producer is in use."""
        self._coordinator.heartbeat(producer_id, epoch, transactional_id, wall_ns=self._clock.wall_ns())
        self._tell()

    # --- inside of a transaction ---------------------------------------------------------------

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
    ) -> Pending[BegunTransaction]:
        """A transaction. One that its owner has numbered is there at once, else it is durable first. With a `job`, what
        other runs of it have open is aborted.
        """

        def ask() -> Pending[BegunTransaction]:
            now_ns, wall_ns = self._now()
            begun = self._coordinator.begin(
                transactional_id,
                producer_id,
                epoch,
                marker=marker,
                number=number,
                job=job,
                run=run,
                now_ns=now_ns,
                wall_ns=wall_ns,
            )
            if begun.replaced is not None:
                self._carry_out(begun.replaced)
            try:
                stored = self._put(begun.facts, lazily=bool(number))
            except StorageError:
                self._abort_now(begun.answer.transaction_id)
                raise
            self._tell()
            return Pending.of(begun.answer) if number else after(stored, lambda _: begun.answer)

        return self._patiently(ask)

    def keep(self, owners: Sequence[TransactionOwner]) -> None:
        """The timeout of what these have open starts anew."""
        now_ns, wall_ns = self._now()
        self._coordinator.keep(owners, now_ns=now_ns, wall_ns=wall_ns)

    def keep_job(self, job: str, *, run: str) -> int:
        """The timeout of all that the run has open starts anew; how many transactions that are."""
        now_ns, wall_ns = self._now()
        return self._coordinator.keep_job(job, run, now_ns=now_ns, wall_ns=wall_ns)

    def abort_job(self, job: str, *, run: str | None = None) -> Pending[int]:
        """Abort all that the run has open, or all runs of the job; how many transactions that were."""
        decision = self._coordinator.abort_job(job, run)
        self._tell()
        if decision is None:
            return Pending.of(0)
        return after(self._carry_out(decision), lambda _: len(decision.parts))

    def _abort_now(self, transaction_id: str) -> None:
        """It could not be written that the transaction is there, so it is not."""
        decision = self._coordinator.abort_by_id(transaction_id)
        assert isinstance(decision, Decision)
        self._carry_out(decision)

    def open(self, transaction_id: str) -> Enlisted:
        """The open transaction of that id; raises what is wrong with it."""
        return self._enlisted(self._coordinator.open.by_id(transaction_id))

    def used(self, producer_id: int) -> None:
        """A batch came from the producer, so it is in use."""
        self._coordinator.published(producer_id, wall_ns=self._clock.wall_ns())

    def current(self, producer_id: int, epoch: int) -> str:
        """The id of the transaction that the producer has open; raises why it has none."""
        return self._coordinator.open.of_producer(producer_id, epoch).id

    def publishing(self, identity: BatchIdentity, topic: str, partition: int) -> Enlisted:
        """The transaction that the batch is to be a part of; raises what is wrong with that."""
        transaction = self._coordinator.open.check_publish(identity.producer_id, identity.epoch, identity.transaction)
        enlisted = self._enlisted(transaction)
        enlisted.add_partition(topic, partition)  # again and again: the topic may have been made anew
        return enlisted

    def add_partition(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int
    ) -> Pending[None]:
        """The partition belongs to the transaction; publishing does it by itself."""
        transaction = self._coordinator.open.of_producer(producer_id, epoch, transactional_id)
        self._enlisted(transaction).add_partition(topic, partition)
        return Pending.of(None)

    def add_offsets(
        self,
        producer_id: int,
        epoch: int,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[list[reports.PositionCommit]]:
        """Positions that take effect with the commit."""
        self._coordinator.open.of_producer(producer_id, epoch)
        if any(one.pending is not None for one in commits):
            raise InvalidRequest("pending cannot be a part of a transaction", path="offsets")

        def add(_: None) -> list[reports.PositionCommit]:
            enlisted = self._enlisted(self._coordinator.open.of_producer(producer_id, epoch))
            for one in commits:
                enlisted.add_position(group, one)
            return list(commits)

        ready = self._groups.prepare_commit(group, commits, member_id=member_id, generation=generation)
        return after(ready, add)

    def add_acks(
        self, producer_id: int, epoch: int, receipts: Sequence[str]
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Acks that take effect with the commit; the leases are held until then."""
        return self._groups.settle(receipts, self._acks_in(producer_id, epoch))

    def add_ack_batch(
        self, producer_id: int, epoch: int, topic: str, partition: int, nonce: str, offsets: Buffer
    ) -> Pending[reports.SettledBatch]:
        """The same for messages of one delivery."""
        return self._groups.settle_batch(topic, partition, nonce, offsets, self._acks_in(producer_id, epoch))

    def _acks_in(self, producer_id: int, epoch: int) -> reports.Settlement:
        return reports.Settlement("ack", transaction_id=self._coordinator.open.of_producer(producer_id, epoch).id)

    # --- the outcome ---------------------------------------------------------------------------

    def commit(
        self,
        owner: TransactionOwner,
        *,
        together: Sequence[TransactionOwner] = (),
        marker: str | None = None,
        replaces: str | None = None,
    ) -> Pending[TransactionOutcome]:
        """All of them or none, and once per marker; a marker that it replaces is forgotten."""

        def ask() -> Pending[TransactionOutcome]:
            wall_ns = self._clock.wall_ns()
            found = self._coordinator.commit(
                owner, together, marker=marker, replaces=replaces, end_of=self._end_offset, wall_ns=wall_ns
            )
            return self._ended(found)

        return self._patiently(ask)

    def abort(self, owner: TransactionOwner) -> Pending[TransactionOutcome]:
        """Nothing of it is ever seen, and what it acknowledged is delivered again."""
        return self._patiently(lambda: self._ended(self._coordinator.abort(owner, wall_ns=self._clock.wall_ns())))

    def abort_by_admin(self, transaction_id: str) -> Pending[TransactionOutcome]:
        """End somebody else's transaction."""
        return self._patiently(lambda: self._ended(self._coordinator.abort_by_id(transaction_id)))

    def _ended(self, found: Decision | TransactionOutcome) -> Pending[TransactionOutcome]:
        self._tell()
        if isinstance(found, TransactionOutcome):
            return Pending.of(found)
        ended = self._decide(found) if found.is_commit else self._carry_out(found)
        return after(ended, lambda _: found.answer)

    def _decide(self, decision: Decision) -> Pending[None]:
        """Let the commit be durable, and all that it is about, then carry it out."""
        end = self._ends[decision] = Pending()
        data = all_of(
            [
                _unless_deleted(leader.when_stored(leader.log.next_offset, None))
                for part in decision.parts
                for leader in self._found(part.partitions)
            ]
        )

        def fail(error: Exception) -> None:
            del self._ends[decision]
            end.fail(error)

        def written(done: Pending[None]) -> None:
            try:
                done.result()
            except GoQueueError as error:  # in doubt until the next start: the record may be there, or not
                fail(error)
            else:
                data.then(decided)

        def decided(done: Pending[None]) -> None:
            try:
                done.result()
            except GoQueueError as error:
                self._take_back(decision, error, fail)
            else:
                self._coordinator.decided(decision)
                self._carry_out(decision)

        try:
            stored = self._put(decision.facts)
        except GoQueueError as error:
            self._coordinator.withdrawn(decision)
            fail(error)
        else:
            stored.then(written)
        return end

    def _take_back(self, decision: Decision, why: GoQueueError, fail: Callable[[Exception], None]) -> None:
        """A partition has lost some of it: it is not decided, once that is on the medium. Until then it is in doubt."""

        def gone(done: Pending[None]) -> None:
            with suppress(GoQueueError):
                done.result()
                self._coordinator.withdrawn(decision)
            fail(why)

        try:
            self._put(dict.fromkeys(decision.facts)).then(gone)
        except GoQueueError:
            fail(why)

    def _end_offset(self, partition: DecidedPartition) -> int:
        """Where the partition ends; 0 if it is gone."""
        leader = self._topics.local_leader(partition.topic, partition.topic_id, partition.partition)
        return 0 if leader is None else leader.log.next_offset

    def _is_stored(self, partition: DecidedPartition) -> bool:
        """Whether a partition that is still there has all that it had when it was decided about."""
        leader = self._topics.local_leader(partition.topic, partition.topic_id, partition.partition)
        return leader is None or leader.log.next_offset >= partition.end_offset

    def _carry_out(
        self, decision: Decision, *, is_again: bool = False, waits: list[Pending[None]] | None = None
    ) -> Pending[None]:
        """Do what was decided, everywhere; done when it is done, and forgotten when all of that is durable."""
        end = self._ends.setdefault(decision, Pending())
        waits = [] if waits is None else waits
        if decision.is_commit:
            self._show(decision)
        applied = [self._apply(decision, part, waits, is_again=is_again) for part in decision.parts]
        if not all(applied):
            again = partial(self._try_again, decision, is_again=is_again, waits=waits)
            self._timers.at(self._clock.monotonic_ns() + RETRY_NS, again)
            return end
        now_ns, wall_ns = self._now()
        self._coordinator.completed(decision, now_ns=now_ns, wall_ns=wall_ns)
        all_of([_unless_deleted(one) for one in waits]).then(lambda done: self._settle(decision, done))
        del self._ends[decision]
        self._tell()
        end.resolve(None)
        self._groups.run_woken()
        return end

    def _try_again(self, decision: Decision, *, is_again: bool, waits: list[Pending[None]]) -> None:
        self._carry_out(decision, is_again=is_again, waits=waits)

    def _show(self, decision: Decision) -> None:
        """Let all of it be seen at once, before a marker that a disk does not take lets a half be seen."""
        leaders = [(leader, part) for part in decision.parts for leader in self._found(part.partitions)]
        for leader, part in leaders:
            leader.commit_transaction(part.producer_id, part.number)
        for leader, _ in leaders:
            leader.show()

    def _apply(self, decision: Decision, part: DecisionPart, waits: list[Pending[None]], *, is_again: bool) -> bool:
        """Write down what the decision means; False if a disk has no room for all of it now."""
        key = (part.producer_id, part.number)
        commit = decision.is_commit
        acts = [partial(leader.end_transaction, *key, commit=commit) for leader in self._found(part.partitions)]
        for acks in part.acks:
            if self._topics.local_leader(acks.topic, acks.topic_id, acks.partition) is None:
                continue
            name = (acks.group, acks.topic, acks.partition)
            if commit:
                acts.append(partial(self._groups.apply_acks, *name, acks.offsets, key, is_again=is_again))
            else:
                self._groups.release_acks(*name, key)
        positions: Positions = {}
        for one in part.positions if commit else ():
            if self._topics.local_leader(one.topic, one.topic_id, one.partition) is not None:
                position = reports.PositionCommit(one.topic, one.partition, one.offset, one.metadata)
                positions.setdefault(one.group, []).append(position)
        acts += [partial(self._groups.apply_positions, group, commits) for group, commits in positions.items()]
        places = (part.partitions, part.acks, part.positions)
        for topic in {place.topic for some in places for place in some}:
            quarantined = self._topics.quarantined(topic)
            if quarantined is not None:  # the decision is kept until a start finds the topic again
                waits.append(Pending.failed(quarantined))
        is_done = True
        for act in acts:
            try:
                waits.append(act())
            except StorageFailed as error:  # nothing is written there before the next start, which does it again
                waits.append(Pending.failed(error))
            except StorageError:
                is_done = False
        return is_done

    def _settle(self, decision: Decision, done: Pending[None]) -> None:
        """All that it did is on the medium; if a disk failed, the next start does it once more."""
        try:
            done.result()
            self._put(self._coordinator.settled(decision), lazily=True)
        except StorageFull:
            self._timers.at(self._clock.monotonic_ns() + RETRY_NS, partial(self._settle, decision, done))
        except GoQueueError:
            pass

    # --- who wants to know ---------------------------------------------------------------------

    def list(self) -> Sequence[TransactionInfo]:
        """Those that are open, the oldest first."""
        return self._coordinator.list()

    def describe(self, transaction_id: str) -> TransactionInfo:
        """One that is open."""
        return self._coordinator.describe(transaction_id)

    def stats(self) -> TransactionStats:
        """The coordinator in numbers."""
        return self._coordinator.stats()

    def tick(self) -> None:
        """Abort what was open for too long."""
        now_ns, wall_ns = self._now()
        for decision in self._coordinator.tick(now_ns=now_ns, wall_ns=wall_ns):
            self._carry_out(decision)
        self._tell()

    # --- inside --------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], Pending[T]]) -> Pending[T]:
        """Ask, and again as soon as a decision is through that is in the way."""
        try:
            return ask()
        except Busy as busy:
            end = self._ends.get(busy.decision)
            if end is None:  # in doubt
                reason = f"the outcome of {busy.decision.id} is not known until the broker is started again"
                raise BrokerUnavailable(reason) from None
            again: Pending[None] = Pending()
            end.then(lambda _: again.resolve(None))
            return chained(again, lambda _: self._patiently(ask))

    def _enlisted(self, transaction: StagedTransaction) -> Enlisted:
        return Enlisted(transaction, self._topics, self._clock.wall_ns)

    def _found(self, partitions: Sequence[DecidedPartition]) -> Iterator[PartitionLeader]:
        """Those that are still there."""
        for one in partitions:
            leader = self._topics.local_leader(one.topic, one.topic_id, one.partition)
            if leader is not None:
                yield leader

    def _opened(self) -> Pending[Journal]:
        if self._journal is not None:
            return Pending.of(self._journal)
        return after(self._topics.journal(TOPIC), self._first)

    def _first(self, journal: Journal) -> Journal:
        if self._journal is None:
            self._journal = journal
        return self._journal

    def _put(self, facts: Mapping[bytes, bytes | None], *, lazily: bool = False) -> Pending[None]:
        if self._journal is None:
            raise TransactionNotFound("")
        return self._journal.put(facts, lazily=lazily)

    def _tell(self) -> None:
        """Write down small news, and pass on what happened."""
        for event in self._coordinator.take_events():
            self._observe(event)
        if self._journal is not None:
            facts = self._coordinator.take_facts()
            if facts:
                with suppress(StorageError):
                    self._journal.put(facts, lazily=True)

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()


def _unless_deleted(stored: Pending[None]) -> Pending[None]:
    """The same, but nothing has to be stored in a topic that is deleted meanwhile."""
    made: Pending[None] = Pending()

    def look(done: Pending[None]) -> None:
        try:
            done.result()
        except TopicNotFound:
            made.resolve(None)
        except GoQueueError as error:
            made.fail(error)
        else:
            made.resolve(None)

    stored.then(look)
    return made
