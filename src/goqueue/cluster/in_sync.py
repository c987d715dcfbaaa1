"""Which followers are in sync: what the leader of a partition asks the controller for.

A follower that has not been where the leader was for `lag_ns` leaves the in-sync replicas, and one that has all that is
committed joins them. The leader only asks: what counts is what the controller has decided, when it is applied here. A
follower that is about to join counts from the moment it is asked for, because the controller may have decided already.

The answer of the controller may come before its decision is applied here, or not at all. Until the decision is applied,
or the controller has named an epoch of the partition that is applied already, a follower that was to join still counts.

A follower is caught up when its disk has what the leader had at the follower's last report. Under constant load it
never has all that the leader has. A quiet one says nothing new, but its node still asks: silence is another matter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import Fetch
from goqueue.broker.partition.replica import Replica
from goqueue.clock import MS
from goqueue.cluster.fetch_messages import ReplicaKey
from goqueue.cluster.messages import IsrChange, IsrMember, IsrResult
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import PartitionChanged

LAG_NS: Final = 1_500 * MS
ASK_AGAIN_NS: Final = 3_000 * MS
"""After so long without a decision the leader asks again."""


class LogEnds(NamedTuple):
    """Where the log and the ledger end, or are durable."""

    log: int
    ledger: int

    def covers(self, other: "LogEnds") -> bool:
        """Whether both are at least as far."""
        return self.log >= other.log and self.ledger >= other.ledger


@dataclass(slots=True)
class _Follower:
    """What a leader knows of one follower."""

    broker_epoch: int  # of the process that reported
    durable: LogEnds
    leader_had: LogEnds  # at the last report
    reported_ns: int
    caught_up_ns: int
    had_all: bool  # when this node looked last


@dataclass(slots=True)
class _Led:
    """One partition that this node leads."""

    replica: Replica
    epoch: int
    began_ns: int
    followers: dict[int, _Follower] = field(default_factory=dict)
    asked_ns: int | None = None  # when the controller was asked for a change that is not decided yet
    asked_epoch: int = 0  # of the partition, in that change
    decided_epoch: int = 0  # of the partition, as the controller has answered: it may not be applied here yet
    joining: frozenset[int] = frozenset()  # asked for; the controller may have decided already


class InSyncReplicas:
    """The in-sync replicas of all partitions that this node leads."""

    def __init__(self, node: int, metadata: Metadata, *, lag_ns: int = LAG_NS) -> None:
        self._node = node
        self._metadata = metadata
        self._lag_ns = lag_ns
        self._led: dict[ReplicaKey, _Led] = {}
        self._heard_ns: dict[int, int] = {}

    def lead(self, leads: Mapping[ReplicaKey, Replica], now_ns: int) -> list[ReplicaKey]:
        """This node leads these partitions, and no others; returns those that it leads since now."""
        for key in self._led.keys() - leads.keys():
            del self._led[key]
        began = []
        for key, replica in leads.items():
            known, leader = self._led.get(key), replica.leader
            if leader is not None and (known is None or known.replica is not replica or known.epoch != leader.epoch):
                self._led[key] = _Led(replica, leader.epoch, now_ns)
                began.append(key)
        return began

    def heard(self, node: int, now_ns: int) -> None:
        """The node asks for what it follows."""
        self._heard_ns[node] = now_ns

    def reported(self, key: ReplicaKey, node: int, broker_epoch: int, fetch: Fetch, now_ns: int) -> None:
        """The follower says where it is."""
        led = self._led.get(key)
        if led is None or fetch.epoch != led.epoch:
            return
        durable = LogEnds(fetch.log.durable_offset, fetch.ledger.durable_offset)
        ends, before = _ends(led.replica), led.followers.get(node)
        has_all = durable.covers(ends)
        caught_up_ns = led.began_ns
        if before is not None and before.broker_epoch == broker_epoch:
            caught_up_ns = before.caught_up_ns
            if durable.covers(before.leader_had):
                caught_up_ns = max(caught_up_ns, before.reported_ns)
            if before.had_all:
                caught_up_ns = now_ns
        if has_all:
            caught_up_ns = now_ns
        led.followers[node] = _Follower(broker_epoch, durable, ends, now_ns, caught_up_ns, has_all)

    def changes(self, now_ns: int) -> list[IsrChange]:
        """What to ask the controller for now."""
        return list(self._changes(now_ns))

    def answered(self, change: IsrChange, result: IsrResult) -> None:
        """The controller has decided. What it has decided takes effect when it is applied; a change that was refused in
        the epoch that is known here is forgotten.
        """
        key = (change.topic_id, change.partition)
        led, partition = self._led.get(key), self._metadata.partition(*key)
        if led is None or led.epoch != change.leader_epoch:
            return
        led.asked_ns = None
        led.decided_epoch = max(led.decided_epoch, result.partition_epoch)
        if partition is not None:
            self._take_decision(led, partition)

    def _changes(self, now_ns: int) -> Iterator[IsrChange]:
        for key, led in self._led.items():
            partition = self._metadata.partition(*key)
            if partition is None or partition.leader != self._node or partition.leader_epoch != led.epoch:
                continue
            _look(led, now_ns)
            self._take_decision(led, partition)
            if partition.partition_epoch < led.decided_epoch:
                continue
            if led.asked_ns is not None and now_ns - led.asked_ns < ASK_AGAIN_NS:
                continue
            isr = frozenset(partition.isr)
            wanted = frozenset(
                node
                for node in partition.replicas
                if node == self._node
                or (self._is_with(led, node, now_ns) if node in isr else self._may_join(led, node, now_ns))
            )
            members = tuple(self._member(node) for node in sorted(wanted))
            # A follower that was asked for, and does not join any more, counts until the controller has answered.
            if (wanted == isr and not led.joining) or None in members:
                continue
            led.asked_ns, led.asked_epoch = now_ns, partition.partition_epoch
            self._count(led, partition, (wanted - isr) | led.joining)
            known = tuple(member for member in members if member is not None)
            yield IsrChange(*key, led.epoch, partition.partition_epoch, known)

    def _take_decision(self, led: _Led, partition: PartitionChanged) -> None:
        """Nothing that was asked for in an earlier epoch of the partition can be decided any more."""
        if partition.partition_epoch > led.asked_epoch:
            led.asked_ns = None
        if led.joining and led.asked_ns is None and partition.partition_epoch >= led.decided_epoch:
            self._count(led, partition, frozenset())

    def _count(self, led: _Led, partition: PartitionChanged, joining: frozenset[int]) -> None:
        """Those who may lead next."""
        led.joining = joining
        at_least = self._metadata.min_insync(partition)
        if led.replica.followers is not None:
            led.replica.followers.change(InSync(frozenset(partition.isr), joining=joining, at_least=at_least))

    def _is_with(self, led: _Led, node: int, now_ns: int) -> bool:
        """Whether an in-sync follower stays one."""
        follower = led.followers.get(node)
        if now_ns - max(self._heard_ns.get(node, 0), led.began_ns) > self._lag_ns:
            return False
        if follower is None:
            return now_ns - led.began_ns <= self._lag_ns
        return follower.durable.covers(_ends(led.replica)) or now_ns - follower.caught_up_ns <= self._lag_ns

    def _may_join(self, led: _Led, node: int, now_ns: int) -> bool:
        """Whether a follower has all that is committed, as the process that the metadata know."""
        broker, follower, followers = self._metadata.broker(node), led.followers.get(node), led.replica.followers
        return (
            broker is not None
            and broker.is_online
            and follower is not None
            and follower.broker_epoch == broker.broker_epoch
            and followers is not None
            and followers.has_caught_up(node)
            and now_ns - self._heard_ns.get(node, 0) <= self._lag_ns
        )

    def _member(self, node: int) -> IsrMember | None:
        broker = self._metadata.broker(node)
        if broker is None:
            return None
        return IsrMember(node, broker.broker_epoch, broker.registration.directories[0])


def _look(led: _Led, now_ns: int) -> None:
    """A quiet follower reports nothing: it falls behind when the leader appends, not earlier than at the last look."""
    ends = _ends(led.replica)
    for follower in led.followers.values():
        has_all = follower.durable.covers(ends)
        if has_all or follower.had_all:
            follower.caught_up_ns = now_ns
        follower.had_all = has_all


def _ends(replica: Replica) -> LogEnds:
    return LogEnds(replica.log.next_offset, replica.partition.ledger.next_offset)
