"""The verbs about producers and transactions.

Every producer has a coordinator: the leader of a partition of `__transactions`. Transactional ids share one, so that
any of them can be committed together, by one record (`coordination.partition_of`); other producers are spread over all.
A verb finds the coordinator by the transactional id or, where it only knows the producer, by the producer id, which
names it. A coordinator that is not attached to this node is not here: `NotLeader`, which clients retry.

`attached.py` has the coordinators that are here. A transaction that is open in a partition and that its coordinator
does not know has ended: it is aborted when both are here, never because one of them is not.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from goqueue import events
from goqueue.broker.coordination import PARTITION_COUNTS, TRANSACTIONS_TOPIC, Journals, partition_of
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.groups.groups import Groups
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.broker.transactions.attached import AttachedCoordinator
from goqueue.broker.transactions.enlisted import Enlisted
from goqueue.broker.transactions.participants import LocalParticipants, RecordsLost
from goqueue.clock import Clock
from goqueue.errors import GoQueueError, InvalidRequest, NotLeader, StorageError, TransactionNotFound
from goqueue.record.header import Buffer
from goqueue.record.identity import BatchIdentity
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.service.transactions import TIMEOUT_MS
from goqueue.transactions.producer_ids import ProducerNumbers, coordinator_of, has_coordinator, producer_id
from goqueue.transactions.states import TransactionState
from goqueue.transactions.transaction import StagedTransaction, split_transaction_id
from goqueue.wire import reports
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)

COUNT = PARTITION_COUNTS[TRANSACTIONS_TOPIC]


class Transactions:
    """The verbs about producers and transactions, over the coordinators that are attached to this node."""

    # More than 40 methods: a third are the verbs of the service, each of which finds its coordinator and asks that; the
    # others attach and detach coordinators and spread requests over all of them.

    def __init__(
        self,
        topics: LocalPartitions,
        journals: Journals,
        groups: Groups,
        *,
        clock: Clock,
        timers: Timers,
        numbers: ProducerNumbers,
        observe: events.Observer,
    ) -> None:
        self._topics = topics
        self._journals = journals
        self._groups = groups
        self._clock = clock
        self._timers = timers
        self._numbers = numbers
        self._observe = observe
        self._participants = LocalParticipants(topics, groups)
        self._attached: dict[int, AttachedCoordinator] = {}
        self._were_attached: set[int] = set()  # in this process
        self._turn = 0  # which coordinator the next producer without a transactional id gets
        self._former = TransactionStats(0, 0, 0, 0, {}, 0)  # of coordinators that were detached
        self._volatile = self._coordinator(0, None)  # while there is no journal

    # --- coordinators come and go --------------------------------------------------------------

    def attach(self, journal: Journal) -> None:
        """Resume what the partition of `__transactions` knows; then end what is open in partitions and has ended."""
        number = journal.partition
        one = self._attached[number] = self._coordinator(number, journal)
        one.load(is_first=number not in self._were_attached)
        self._were_attached.add(number)
        for leader in self._topics.all_leaders():
            self._end_orphans(leader)

    def detach(self, partition: int, error: GoQueueError) -> None:
        """Forget what its journal does not know; who waits for it gets the error."""
        one = self._attached.pop(partition)
        self._former = _sum([self._former, one.core.stats()])
        self._former.active_transactions = self._former.producers = 0
        self._former.by_state.clear()
        one.detach(error)

    def leader_began(self, leader: PartitionLeader) -> None:
        """A partition has a leader again: do what waits for it, and end what has ended meanwhile."""
        for one in list(self._attached.values()):
            one.errands.repeat_now()
        self._end_orphans(leader)

    def delivery_opened(self, delivery: PartitionDelivery) -> None:
        """The ledger of a partition was read: messages that ended transactions hold are delivered again."""
        if any(group_delivery.cursor.held for group_delivery in delivery.groups.values()):
            self._end_orphans(delivery.leader)

    def start(self) -> None:
        """Coordinators that are here are attached: end what a node without any of their facts has open."""
        for leader in self._topics.all_leaders() if self._topics.find(TRANSACTIONS_TOPIC) is None else ():
            self._end_orphans(leader)

    def _end_orphans(self, leader: PartitionLeader) -> None:
        for key in self._participants.open_in(leader):
            one = self._judge(key[0])
            if one is not None:
                one.end_orphan(leader, key)

    def _judge(self, producer_id: int) -> AttachedCoordinator | None:
        """The coordinator that knows whether a transaction of the producer has ended; None if it is not here.

        Of an id without this knowledge in it, only all coordinators together can say that none knows it.
        """
        if self._topics.find(TRANSACTIONS_TOPIC) is None:
            return None if self._topics.quarantined(TRANSACTIONS_TOPIC) else self._volatile
        number = coordinator_of(producer_id)
        if number is not None and number < COUNT:
            return self._attached.get(number)
        if len(self._attached) < COUNT:
            return None
        return next((one for one in self._attached.values() if one.core.knows(producer_id)), self._volatile)

    def _coordinator(self, partition: int, journal: Journal | None) -> AttachedCoordinator:
        return AttachedCoordinator(
            partition,
            journal,
            self._participants,
            clock=self._clock,
            timers=self._timers,
            run_woken=self._groups.run_woken,
            observe=partial(self._tell, partition),
        )

    def _tell(self, partition: int, event: events.TransactionEvent) -> None:
        """Emit an event of a coordinator, with the number of open transactions of all."""
        event.open_count += sum(len(one.core.open) for number, one in self._attached.items() if number != partition)
        self._observe(event)

    # --- producers -----------------------------------------------------------------------------

    def init(self, transactional_id: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> Pending[ProducerSession]:
        """A producer. With a transactional id it fences earlier ones of that id, and aborts what they have open."""
        if transactional_id is None and self._topics.quarantined(TRANSACTIONS_TOPIC):  # it needs no journal to publish
            return self._init(self._volatile, None, timeout_ms)
        if transactional_id is None:
            partition = self._next_partition()
        else:
            partition = partition_of(transactional_id, TRANSACTIONS_TOPIC)
        opened = self._journals.open_at(partition)
        return chained(opened, lambda _: self._init(self._at(partition), transactional_id, timeout_ms))

    def _init(
        self, one: AttachedCoordinator, transactional_id: str | None, timeout_ms: int
    ) -> Pending[ProducerSession]:
        def ask() -> Pending[ProducerSession]:
            new_id = producer_id(self._numbers.take(), one.partition)
            initiated = one.core.init(
                transactional_id, timeout_ms=timeout_ms, new_id=new_id, wall_ns=self._clock.wall_ns()
            )
            ended = one.carry_out(initiated.abort) if initiated.abort else Pending.of(None)
            if one is self._volatile:
                return Pending.of(initiated.session)
            stored = one.put(initiated.facts)
            if transactional_id is None:  # it need not be durable: a crash loses only its heartbeats
                return Pending.of(initiated.session)
            return after(all_of([stored, ended]), lambda _: initiated.session)

        return one.patiently(ask)

    def _next_partition(self) -> int:
        """Producers without a transactional id are spread over the coordinators that are here."""
        self._turn += 1
        here = sorted(self._attached)
        return here[self._turn % len(here)] if here else self._turn % COUNT

    def heartbeat(self, producer_id: int, epoch: int, *, transactional_id: str | None = None) -> None:
        """Renew the producer, which is forgotten if it is not used for long."""
        one = self._of_producer(producer_id)
        one.core.heartbeat(producer_id, epoch, transactional_id, wall_ns=self._clock.wall_ns())
        one.tell()

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
        """Begin a transaction. With a `number` of its owner the answer does not wait until it is durable. With a `job`,
        open transactions of other runs of that job are aborted.
        """
        one = self._of(transactional_id)

        def ask() -> Pending[BegunTransaction]:
            now_ns, wall_ns = self._now()
            begun = one.core.begin(
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
                one.carry_out(begun.replaced)
            try:
                stored = one.put(begun.facts, lazily=bool(number))
            except (StorageError, NotLeader):
                one.abort_now(begun.answer.transaction_id)
                raise
            one.tell()
            return Pending.of(begun.answer) if number else after(stored, lambda _: begun.answer)

        return one.patiently(ask)

    def keep(self, owners: Sequence[TransactionOwner]) -> None:
        """Restart the timeout of the open transactions of these owners."""
        now_ns, wall_ns = self._now()
        for owner in owners:
            self._of(owner.transactional_id).core.keep([owner], now_ns=now_ns, wall_ns=wall_ns)

    def keep_job(self, job: str, *, run: str) -> int:
        """Restart the timeout of all open transactions of the run; returns their number."""
        now_ns, wall_ns = self._now()
        return self._of(_first_of(job)).core.keep_job(job, run, now_ns=now_ns, wall_ns=wall_ns)

    def abort_job(self, job: str, *, run: str | None = None) -> Pending[int]:
        """Abort all open transactions of the run, or of all runs of the job; returns their number."""
        one = self._of(_first_of(job))
        decision = one.core.abort_job(job, run)
        one.tell()
        if decision is None:
            return Pending.of(0)
        return after(one.carry_out(decision), lambda _: len(decision.parts))

    def open(self, transaction_id: str) -> Enlisted:
        """The open transaction of that id. Raises if there is none."""
        return self._enlisted(self._of_id(transaction_id).core.open.by_id(transaction_id))

    def used(self, producer_id: int) -> None:
        """The producer has published a batch, which renews it."""
        if has_coordinator(producer_id):
            number = coordinator_of(producer_id)
            for one in self._attached.values() if number is None else self._here(number):
                one.core.published(producer_id, wall_ns=self._clock.wall_ns())

    def current(self, producer_id: int, epoch: int) -> str:
        """The id of the open transaction of the producer. Raises if it has none."""
        return self._open_of(producer_id, epoch).id

    def publishing(self, identity: BatchIdentity, topic: str, partition: int) -> Enlisted:
        """The transaction of the batch. Raises if the batch cannot be a part of it."""
        open_ones = self._of_producer(identity.producer_id).core.open
        transaction = open_ones.check_publish(identity.producer_id, identity.epoch, identity.transaction)
        enlisted = self._enlisted(transaction)
        enlisted.add_partition(topic, partition)  # for each batch: the topic may have been created again
        return enlisted

    def add_partition(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int
    ) -> Pending[None]:
        """Add a partition to the transaction; a publish does the same."""
        transaction = self._open_of(producer_id, epoch, transactional_id)
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
        self._open_of(producer_id, epoch)
        if any(one.pending is not None for one in commits):
            raise InvalidRequest("pending cannot be a part of a transaction", path="offsets")

        def add(_: None) -> list[reports.PositionCommit]:
            enlisted = self._enlisted(self._open_of(producer_id, epoch))
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
        """Acks of one delivery that take effect with the commit."""
        return self._groups.settle_batch(topic, partition, nonce, offsets, self._acks_in(producer_id, epoch))

    def _acks_in(self, producer_id: int, epoch: int) -> reports.Settlement:
        return reports.Settlement("ack", transaction_id=self._open_of(producer_id, epoch).id)

    # --- the outcome ---------------------------------------------------------------------------

    def commit(
        self,
        owner: TransactionOwner,
        *,
        together: Sequence[TransactionOwner] = (),
        marker: str | None = None,
        replaces: str | None = None,
    ) -> Pending[TransactionOutcome]:
        """Commit all of them or none, once per marker; the marker `replaces` is forgotten."""
        one = self._of(owner.transactional_id)

        def ask() -> Pending[TransactionOutcome]:
            wall_ns = self._clock.wall_ns()
            try:
                found = one.core.commit(
                    owner, together, marker=marker, replaces=replaces, ends=self._participants, wall_ns=wall_ns
                )
            except RecordsLost as lost:
                return one.refuse_lost(lost)
            return one.outcome(found)

        return one.patiently(ask)

    def abort(self, owner: TransactionOwner) -> Pending[TransactionOutcome]:
        """Abort: its messages are never readable, and the messages that it acknowledged are delivered again."""
        one = self._of(owner.transactional_id)
        return one.patiently(lambda: one.outcome(one.core.abort(owner, wall_ns=self._clock.wall_ns())))

    def abort_by_admin(self, transaction_id: str) -> Pending[TransactionOutcome]:
        """Abort the transaction of another producer."""
        one = self._of_id(transaction_id)
        return one.patiently(lambda: one.outcome(one.core.abort_by_id(transaction_id)))

    # --- queries -------------------------------------------------------------------------------

    def list(self) -> Sequence[TransactionInfo]:
        """The open transactions of the coordinators that are here, the oldest first."""
        found = [info for one in self._attached.values() for info in one.core.list()]
        return sorted(found, key=lambda info: info.started_at_ns)

    def describe(self, transaction_id: str) -> TransactionInfo:
        """One open transaction."""
        return self._of_id(transaction_id).core.describe(transaction_id)

    def stats(self) -> TransactionStats:
        """Statistics of the coordinators that are here; totals since the start."""
        return _sum([self._former, self._volatile.core.stats(), *(one.core.stats() for one in self._attached.values())])

    def tick(self) -> None:
        """Abort transactions whose timeout is over."""
        for one in list(self._attached.values()):
            one.tick()

    # --- finding the coordinator ---------------------------------------------------------------

    def _at(self, partition: int) -> AttachedCoordinator:
        """The coordinator of a partition of `__transactions`; one that knows nothing if there is no such topic.

        Raises `NotLeader`.
        """
        one = self._attached.get(partition)
        if one is None and self._topics.find(TRANSACTIONS_TOPIC) is not None:
            raise NotLeader(TRANSACTIONS_TOPIC, partition)
        return one or self._volatile

    def _here(self, partition: int) -> Sequence[AttachedCoordinator]:
        one = self._attached.get(partition, self._volatile)
        return (one,)

    def _of(self, transactional_id: str) -> AttachedCoordinator:
        return self._at(partition_of(transactional_id, TRANSACTIONS_TOPIC))

    def _of_id(self, transaction_id: str) -> AttachedCoordinator:
        """The coordinator of a transaction that users name. Raises `TransactionNotFound`, too."""
        named = split_transaction_id(transaction_id)
        if named is None:
            raise TransactionNotFound(transaction_id)
        return self._of(named[0])

    def _of_producer(self, producer_id: int) -> AttachedCoordinator:
        """The coordinator that knows the producer; one that knows nothing if none does. Raises `NotLeader`."""
        number = coordinator_of(producer_id)
        if number is not None and number < COUNT:
            return self._at(number)
        if not has_coordinator(producer_id):
            return self._volatile
        found = next((one for one in self._attached.values() if one.core.knows(producer_id)), None)
        if found is None and len(self._attached) < COUNT:
            self._at(next(number for number in range(COUNT) if number not in self._attached))
        return found or self._volatile

    def _open_of(self, producer_id: int, epoch: int, transactional_id: str | None = None) -> StagedTransaction:
        return self._of_producer(producer_id).core.open.of_producer(producer_id, epoch, transactional_id)

    def _enlisted(self, transaction: StagedTransaction) -> Enlisted:
        return Enlisted(transaction, self._topics, self._clock.wall_ns)

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()


def _first_of(job: str) -> str:
    """A transactional id of the job."""
    return f"{job}/0"


def _sum(stats: Sequence[TransactionStats]) -> TransactionStats:
    committed = sum(one.committed_total for one in stats)
    spent_ns = sum(one.committed_total * one.average_duration_ns for one in stats)
    by_state: Counter[str] = Counter()
    for one in stats:
        by_state.update(one.by_state)
    return TransactionStats(
        sum(one.active_transactions for one in stats),
        committed,
        sum(one.aborted_total for one in stats),
        spent_ns // committed if committed else 0,
        {state.value: by_state[state.value] for state in TransactionState},
        sum(one.producers for one in stats),
    )
