"""One partition on this node, for as long as its topic exists here, whatever its role.

    become_leader(epoch) ────> PartitionLeader ──┐
         ▲                                       ├──resign──> no role ──> the next role, in a higher epoch
    become_follower(epoch) ──> PartitionFollower ┘

A replica owns what outlives a role: the logs, the jobs that are under way on them, the gates up to which they are
committed, and what was derived from the log (the state of producers, the knowledge about delayed messages). A leader
owns what ends with it: the waiters, the delivery to groups, the permission to write.

Epochs rise. A node that leads again leads in a higher epoch, and stores where that begins before its first append
(`ledger.must_begin`). Without followers a restart is no change of leader: no other node has led meanwhile, so the epoch
stays. With followers it is one: they may have fetched records that the crash has taken from the leader, and an epoch
has only one record for each offset.

In a cluster the epoch itself is stored before it is used: a replica that has heard of an epoch never again follows, or
leads in, an earlier one. One such fence is enough for both logs, because a role has one epoch for both. It is kept with
the log.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from goqueue import events
from goqueue.broker.partition.commit_gate import CommitGate, FollowedGate, InSync, LocalGate, ReplicatedGate
from goqueue.broker.partition.delay_search import DelaySearch
from goqueue.broker.partition.follower import PartitionFollower
from goqueue.broker.partition.followers import Followers
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact, facts_in
from goqueue.broker.partition.log_jobs import Flushable, LogJobs, Workers
from goqueue.broker.partition.producer_state import ProducerState
from goqueue.broker.partition.unreadable import UnreadableFacts
from goqueue.clock import Clock
from goqueue.errors import GoQueueError, NotLeader, StorageError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.storage.log import Log
from goqueue.topics.partition import Partition
from goqueue.transactions.sequences import identities

LOAD_BYTES = 4 * 1024 * 1024


class Replicas(dict[int, "Replica"]):
    """The replicas of one topic on this node, by partition. To ask for one that is elsewhere raises `NotLeader`."""

    def __init__(self, topic: str, replicas: Mapping[int, "Replica"]) -> None:
        super().__init__(replicas)
        self._topic = topic

    def __missing__(self, partition: int) -> "Replica":
        raise NotLeader(self._topic, partition)


class Replica:
    """A partition of this node."""

    __slots__ = (
        "_clock",
        "_gate",
        "_has_had_role",
        "_jobs",
        "_ledger_gate",
        "_observe",
        "_serves",
        "_unflushed",
        "ended",
        "epoch",
        "follower",
        "followers",
        "leader",
        "log",
        "opened_end",
        "origin",
        "partition",
        "producers",
        "search",
        "unreadable",
    )

    def __init__(
        self,
        partition: Partition,
        *,
        clock: Clock,
        workers: Workers,
        unflushed: set[Flushable],
        observe: events.Observer = events.ignore,
    ) -> None:
        self.partition = partition
        self.origin = TopicPartition(partition.topic, partition.number)
        self.log = partition.log
        self.leader: PartitionLeader | None = None
        self.followers: Followers | None = None  # of the leader, in a cluster
        self.follower: PartitionFollower | None = None
        self.ended: GoQueueError | None = None  # why it has no role any more: the topic was deleted
        with suppress(StorageError):  # a log that cannot be truncated now is as good as before
            _cut_torn_batch(self.log)
        self.opened_end = self.log.next_offset  # what the disk had when this process opened it
        self.epoch = max(self.log.highest_epoch, 0)
        self.unreadable = UnreadableFacts(self.log.directory, observe)
        self.producers = ProducerState(self.log, self._facts, unreadable=self.unreadable)
        self.search = DelaySearch(self.log, partition.delay_file)
        self._clock = clock
        self._jobs = LogJobs(workers, self._handed_over)
        self._gate: CommitGate = FollowedGate(0)
        self._ledger_gate: CommitGate | None = None
        self._has_had_role = False  # since it was opened
        self._serves = False  # whether the leader has begun to
        self._unflushed = unflushed
        self._observe = observe

    @property
    def leading(self) -> PartitionLeader:
        """The leader. Raises `NotLeader` if this node does not lead, and `TopicNotFound` if the topic is gone.

        `NotLeader` is also raised until a new leader knows that all it has is committed: before, it could show less
        than an earlier leader has shown. That takes one round of fetches.
        """
        if self.leader is None or not (self._serves or self._begins_to_serve()):
            raise self.ended or NotLeader(*self.origin)
        return self.leader

    @property
    def high_watermark(self) -> int:
        """Records below it are committed; it never decreases."""
        return self._gate.offset

    # --- roles ---------------------------------------------------------------------------------

    def was_made(self) -> None:
        """This process has made it: no process has had a role in the epoch that it has heard of, so this one may."""
        self.epoch = max(self.log.highest_epoch - 1, 0)

    def become_leader(self, epoch: int, *, replica: int = 0, in_sync: InSync | None = None) -> PartitionLeader:
        """Lead from now on, in an epoch above all earlier ones; without followers, in the same one after a restart.

        With `in_sync` there are followers: records are committed when those replicas have them, and this one is
        `replica` among them. Raises `StorageError` or `DirectoryUnusable` if the logs cannot be read or written.
        """
        assert in_sync is None or epoch > self.epoch
        self._begin_role(epoch, is_replicated=in_sync is not None)
        if in_sync is None:
            self._gate = self._gate if isinstance(self._gate, LocalGate) else LocalGate(self.log)
        else:
            self.log.note_epoch(epoch)
            self._gate = ReplicatedGate(self.log, replica=replica, in_sync=in_sync, known=self._gate.offset)
            known = 0 if self._ledger_gate is None else self._ledger_gate.offset
            self._ledger_gate = ReplicatedGate(self.partition.ledger, replica=replica, in_sync=in_sync, known=known)
        self.leader = leader = PartitionLeader(
            self.partition,
            self.origin,
            epoch=epoch,
            gate=self._gate,
            ledger_gate=self._gate_of_ledger,
            jobs=self._jobs,
            producers=self.producers,
            search=self.search,
            unreadable=self.unreadable,
            clock=self._clock,
            unflushed=self._unflushed,
            observe=self._observe,
        )
        if isinstance(self._gate, ReplicatedGate) and isinstance(self._ledger_gate, ReplicatedGate):
            self.followers = Followers(leader, self._gate, self._ledger_gate)
        if self._gate.offset < self.log.next_offset:  # records of an earlier leader that are not committed
            self._unflushed.add(leader)
        return leader

    def become_follower(self, epoch: int) -> PartitionFollower:
        """Follow the leader of that epoch, which is durable when this returns.

        Raises `StorageError` or `DirectoryUnusable` if the logs cannot be read or written.
        """
        self._begin_role(epoch, is_replicated=True)
        self.log.note_epoch(epoch)
        self._gate = gate = FollowedGate(self._gate.offset)
        self._ledger_gate = ledger_gate = FollowedGate(self._ledger_gate.offset if self._ledger_gate else 0)
        self.follower = PartitionFollower(
            self.partition,
            epoch=epoch,
            gate=gate,
            ledger_gate=ledger_gate,
            jobs=self._jobs,
            producers=self.producers,
            search=self.search,
            clock=self._clock,
            unflushed=self._unflushed,
        )
        return self.follower

    def resign(self, error: GoQueueError | None = None) -> None:
        """Lead or follow no longer: what waits fails with the error, by default `NotLeader`.

        A follower first ends the truncation that is under way (`PartitionFollower.is_cutting`).
        """
        assert error is not None or self.follower is None or not self.follower.is_cutting
        leader, self.leader, self.followers = self.leader, None, None
        follower, self.follower = self.follower, None
        self._jobs.role_changed()
        reason = error or NotLeader(*self.origin)
        if follower is not None:
            follower.end(reason)
        if leader is not None:
            self.search.looked_to(self.log.next_offset)
            leader.end(reason)
        if leader is not None or follower is not None:
            self._flush()

    def end(self, error: GoQueueError) -> None:
        """The topic is gone."""
        self.ended = error
        self.resign(error)

    def maintain(self, *, may_compact: bool, compacted: Callable[[], None]) -> bool:
        """Run retention and compaction; returns whether a compaction was started, whose end calls `compacted`."""
        role = self.leader or self.follower
        return role is not None and role.maintain(may_compact=may_compact, compacted=compacted)

    # --- inside --------------------------------------------------------------------------------

    def _begin_role(self, epoch: int, *, is_replicated: bool) -> None:
        assert self.leader is None
        assert self.follower is None
        assert epoch >= self.epoch
        if is_replicated and not self._has_had_role:
            # The file is not replicated: it may have what a crash has taken from the log and the ledger here, and what
            # the other replicas never had.
            self.search.discard_file()
        self._has_had_role = True
        if self.search.look_at_tail() and self.producers.transactions is None:
            self.producers.load_transactions()
        self.epoch = epoch
        self._serves = False
        self._jobs.role_changed()

    def _begins_to_serve(self) -> bool:
        """Whether both gates have reached what an earlier leader may have shown."""
        followers = self.followers
        self._serves = followers is None or followers.has_begun
        return self._serves

    def _flush(self) -> None:
        """Begin to make durable what the last leader has left: no other one may come for long."""
        for log in self.partition.open_logs:
            with suppress(StorageError):
                job = log.begin_flush(monotonic_ns=self._clock.monotonic_ns())
                if job:
                    self._jobs.run(log, job, _do_nothing)

    def _handed_over(self) -> None:
        if self.leader is not None:
            self.leader.taken_over()
        if self.follower is not None:
            self.follower.flush()

    def _gate_of_ledger(self, log: Log) -> CommitGate:
        if self._ledger_gate is None:
            self._ledger_gate = LocalGate(log)
        return self._ledger_gate

    def _facts(self) -> Iterator[Fact]:
        """All facts of the ledger; none if there is no ledger yet."""
        return facts_in(self.partition.ledger, self.origin) if self.partition.has_ledger else iter(())


def _do_nothing() -> None:
    """What has become durable is told to the next leader (`LogJobs`)."""


def _cut_torn_batch(log: Log) -> None:
    """Remove a batch of which a crash has left only the first records.

    It was never acknowledged, and its producer sends it again. With its first record in the log it would count as
    stored. All records of a batch have the same time, so records after it are not mistaken for its own.
    """
    reader = log.reader(max(log.recovered_offset, log.start_offset))
    first_offset, end_offset, begun_ns, last_ns = 0, 0, 0, 0
    while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
        last_ns = kernel.scan(chunk.records).last_timestamp
        for offset, timestamp_ns, batch in identities(chunk.records):
            first_offset, end_offset, begun_ns = offset, offset + batch.record_count, timestamp_ns
    if end_offset > log.next_offset and begun_ns == last_ns:
        log.truncate(first_offset)
