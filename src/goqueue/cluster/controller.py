"""The controller: decides who is in the cluster and who leads what, for one epoch that its node has won.

    requests, lost connections, ticks ──> decisions ──> drafts ──> next_entry ──> the metadata log
                                                                                     │
                   answers <── applied <────────── the node has applied it <─────────┘

It is pure: the node calls it, tells it the time, writes what `next_entry` returns, and comes back with `applied`. An
answer that rests on a decision is given only then: so nobody is told what the log may still lose. When the entry of
another node is at that index, the node calls `deposed`, and drops the controller.

Heartbeats and connections say only *when* to decide (R6). All decisions are compared with the state by the code that
every node applies records with, so a wrong belief about a broker costs an election, nothing else.

    a broker registers            fenced at first
      applies its registration    online: may lead, and leads what nobody leads
      falls silent, or dies       fenced: leads nothing and is in sync with nothing; so it is until it applies that
      wants to stop               stopping: others lead; then fenced, and it may stop
"""

from collections.abc import Iterator
from typing import Final

from goqueue.cluster.administration import Administration, ClusterDefaults
from goqueue.cluster.drafts import Drafts
from goqueue.cluster.elections import with_isr
from goqueue.cluster.leadership import drain, fence, improve_leaders, put_online, stop
from goqueue.cluster.messages import (
    AlterPartitions,
    AnyNodeMessage,
    ControlledShutdown,
    Decide,
    Heartbeat,
    HeartbeatReply,
    IsrChange,
    IsrRefusal,
    IsrResult,
    PartitionsAltered,
    RefusalReason,
    Refused,
    Register,
    Registered,
    ShutdownProgress,
)
from goqueue.cluster.metadata import BrokerState, Metadata
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.records import BrokerStatus, PartitionKey
from goqueue.cluster.registrations import disqualified, refusal, registration
from goqueue.cluster.sessions import Sessions
from goqueue.cluster.timing import ClusterTiming, Now
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending

__all__ = ["ClusterDefaults", "Controller", "ControllerRequest"]

ControllerRequest = Register | Heartbeat | AlterPartitions | ControlledShutdown | Decide

QUEUED_BYTES_MAX: Final = 4 * 1024 * 1024
"""What waits for the log may not be larger: requests are refused, and come again."""
MOVES_PER_TICK: Final = 500
"""Leaders move in steps, so that requests are decided in between."""


class Controller:
    """The controller of one epoch. `metadata` is the state right after its node applied its own `ControllerElected`;
    the controller decides on a copy of it.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        node: int,
        timing: ClusterTiming,
        defaults: ClusterDefaults,
        entropy: Entropy,
        now: Now,
    ) -> None:
        self._drafts = Drafts(metadata)
        self._node = node
        self._timing = timing
        self._sessions = Sessions(timing, node=node, now_ns=now.monotonic_ns)
        self._administration = Administration(self._drafts, defaults=defaults, entropy=entropy)
        self._must_apply: dict[int, int] = {}  # what a fenced broker has to apply before it is online, by node
        self._must_apply_others = metadata.position.index
        self._stopped: dict[int, int] = {}  # the broker epoch that may stop, by node
        self._may_move = True  # leaders, or replicas of leaving nodes, since the last tick found nothing to move
        self._higher_epoch = 0  # of another controller, that a broker knows
        self._is_over = False

    @property
    def state(self) -> Metadata:
        """The state with all decisions, applied or not. Not to be changed."""
        return self._drafts.state

    # Requests

    def handle(self, message: ControllerRequest, now: Now) -> Pending[AnyNodeMessage]:
        """Answer a request: at once if it changes nothing, else when the entry with the decision is applied.

        Raises `MetadataContradiction`, as all that decides does, if a decision does not fit the state. That is a bug:
        nothing of the decision is written, nor any later one, and `should_resign` says so.
        """
        refused = self._refusal(message)
        if refused is not None:
            return Pending.of(refused)
        if isinstance(message, Register):
            return self._register(message, now)
        if isinstance(message, Decide):
            self._may_move = True
            return self._drafts.answer(self._administration.decide(message.request, now))
        broker = self._caller(message)
        if isinstance(broker, Refused):
            return Pending.of(broker)
        if not self._has_stopped(broker):
            self._sessions.hear(broker.node, now.monotonic_ns)
        match message:
            case Heartbeat():
                return self._heartbeat(message, broker)
            case AlterPartitions():
                return self._alter_partitions(message)
            case ControlledShutdown():
                return self._shut_down(broker)

    def _refusal(self, message: ControllerRequest) -> Refused | None:
        """Why no request of this kind is answered now."""
        epoch = self.state.epoch
        if message.controller_epoch > epoch:
            self._higher_epoch = max(self._higher_epoch, message.controller_epoch)
        if self._is_over or self._higher_epoch or self._drafts.is_broken:
            return Refused(RefusalReason.NOT_CONTROLLER, "this node is not the controller any more", epoch)
        if self._drafts.size >= QUEUED_BYTES_MAX and not isinstance(message, Heartbeat):
            text = f"decisions of {self._drafts.size} bytes wait for the metadata log, which does not keep up"
            return Refused(RefusalReason.OVERLOADED, text, epoch)
        return None

    def _caller(self, message: Heartbeat | AlterPartitions | ControlledShutdown) -> BrokerState | Refused:
        """The broker that the request comes from, if it is that still."""
        broker, node = self.state.broker(message.node), message.node
        if broker is not None and message.broker_epoch == broker.broker_epoch:
            return broker
        if broker is not None and message.broker_epoch < broker.broker_epoch:
            text = f"another process is node {node} now: stop this one, or give it an id of its own"
            return Refused(RefusalReason.STALE_BROKER_EPOCH, text, self.state.epoch)
        if broker is None and 0 < message.broker_epoch <= self._drafts.last_index:
            text = (
                f"node {node} was removed from the cluster: stop it; with an empty data directory it can be added again"
            )
            return Refused(RefusalReason.STALE_BROKER_EPOCH, text, self.state.epoch)
        text = f"node {node} is not registered under broker epoch {message.broker_epoch}: it registers first"
        return Refused(RefusalReason.NOT_REGISTERED, text, self.state.epoch)

    def _register(self, asked: Register, now: Now) -> Pending[AnyNodeMessage]:
        before = self.state.broker(asked.node)
        if before is not None and before.registration.incarnation == asked.incarnation:
            self._sessions.hear(asked.node, now.monotonic_ns)
            return self._drafts.answer(Registered(self.state.epoch, before.broker_epoch))
        refused = refusal(self.state, asked, may_live=self._may_another_live(asked, before, now))
        if refused is not None:
            return Pending.of(refused)
        if before is not None and not before.is_fenced:
            self._fence(before)
        self._drafts.add_each(disqualified(self.state, asked))
        index = self._drafts.add((registration(asked, at_ns=now.wall_ns),))
        self._must_apply[asked.node] = index
        self._sessions.hear(asked.node, now.monotonic_ns)
        return self._drafts.answer(Registered(self.state.epoch, index))

    def _may_another_live(self, asked: Register, before: BrokerState | None, now: Now) -> bool:
        """Whether another process than the one that asks is the node, and may be alive.

        A data directory is locked by its process. So one that asks with the same data directory replaces a dead one,
        unless that was heard from since: then it has a copy of the directory.
        """
        if asked.node == self._node:
            return asked.incarnation != self.state.controller_incarnation
        if before is None or self._sessions.is_expired(asked.node, now.monotonic_ns):
            return False
        has_same_disk = before.registration.directories == asked.directories
        return not (has_same_disk and self._sessions.is_doubtful(asked.node))

    def _heartbeat(self, message: Heartbeat, broker: BrokerState) -> Pending[AnyNodeMessage]:
        if broker.is_fenced and not message.wants_shutdown and not self._has_stopped(broker):
            required = self._must_apply.get(broker.node, self._must_apply_others)
            if message.applied_index >= required:
                put_online(self._drafts, broker)
                self._may_move = True
        state = self.state
        return Pending.of(HeartbeatReply(state.epoch, self._drafts.committed_index, state.brokers[broker.node].status))

    def _alter_partitions(self, message: AlterPartitions) -> Pending[AnyNodeMessage]:
        results = tuple([self._alter_partition(message.node, change) for change in message.changes])
        self._may_move = True  # a preferred replica may be in sync again
        return self._drafts.answer(PartitionsAltered(self.state.epoch, results))

    def _alter_partition(self, leader: int, change: IsrChange) -> IsrResult:
        partition = self.state.partition(change.topic_id, change.partition)
        if partition is None:
            return IsrResult(0, IsrRefusal.NOT_LEADER)
        epoch, isr = partition.partition_epoch, [member.node for member in change.isr]
        if partition.leader != leader:
            return IsrResult(epoch, IsrRefusal.NOT_LEADER)
        if change.leader_epoch != partition.leader_epoch:
            return IsrResult(epoch, IsrRefusal.STALE_LEADER_EPOCH)
        if change.partition_epoch != epoch:
            return IsrResult(epoch, IsrRefusal.STALE_PARTITION_EPOCH)
        if (
            leader not in isr
            or not set(isr) <= set(partition.replicas)
            or not self._are_eligible(change, partition.isr)
        ):
            return IsrResult(epoch, IsrRefusal.INELIGIBLE_REPLICA)
        if set(isr) == set(partition.isr):
            return IsrResult(epoch)
        after = with_isr(self.state, partition, isr)
        self._drafts.add((after,))
        return IsrResult(after.partition_epoch)

    def _are_eligible(self, change: IsrChange, isr: tuple[int, ...]) -> bool:
        """Whether the members of the ISR are the processes, with the disks, that are registered (P9)."""
        for member in change.isr:
            broker = self.state.broker(member.node)
            if broker is None or broker.broker_epoch != member.broker_epoch:
                return False
            if member.directory not in broker.registration.directories:
                return False
            if not broker.is_online and member.node not in isr:
                return False
        return True

    def _shut_down(self, broker: BrokerState) -> Pending[AnyNodeMessage]:
        epoch = self.state.epoch
        if not broker.is_fenced:
            moved = stop(self._drafts, broker)
            if moved:
                return self._drafts.answer(ShutdownProgress(epoch, moved, may_stop=False))
            self._fence(self.state.brokers[broker.node])
        self._stopped[broker.node] = broker.broker_epoch
        self._sessions.end(broker.node)
        return self._drafts.answer(ShutdownProgress(epoch, 0, may_stop=True))

    def _has_stopped(self, broker: BrokerState) -> bool:
        """Whether the process was told that it may stop."""
        return self._stopped.get(broker.node) == broker.broker_epoch

    # What the node observes

    def connection_lost(self, node: int, was_refused: bool, now: Now) -> None:
        """The connection to a broker broke; `was_refused` if its host also refuses a new one: its process is dead."""
        broker = self.state.broker(node)
        if broker is None or node == self._node or self._is_over or self._drafts.is_broken:
            return
        self._sessions.reset(node, now.monotonic_ns)
        if was_refused:
            self._sessions.end(node)
            if not broker.is_fenced:
                self._fence(broker)

    def tick(self, now: Now) -> None:
        """Fence brokers that are silent, move leaders to preferred replicas and away from leaving nodes."""
        if self._is_over or self.should_resign(now):
            return
        self._fence_silent(now)
        if self._may_move and self._drafts.size < QUEUED_BYTES_MAX:
            self._move()

    def should_resign(self, now: Now) -> bool:
        """Whether the node should give up the epoch: it hears fewer than half of the live brokers that it has heard in
        this epoch, or a broker knows a later controller, or a decision has contradicted the state.
        """
        return self._drafts.is_broken or bool(self._higher_epoch) or not self._hears_half(self._timing.silence_ns, now)

    def last_heard_ns(self, node: int) -> int | None:
        """When the broker was last heard in this epoch."""
        return self._sessions.last_heard_ns(node)

    def _hears_half(self, within_ns: int, now: Now) -> bool:
        live = [node for node, broker in self.state.brokers.items() if not broker.is_fenced]
        return self._sessions.hears_half(live, within_ns=within_ns, now_ns=now.monotonic_ns)

    def _fence_silent(self, now: Now) -> None:
        silent = [
            broker
            for node, broker in sorted(self.state.brokers.items())
            if not broker.is_fenced and self._sessions.is_expired(node, now.monotonic_ns)
        ]
        for broker in silent:
            # The sessions of brokers end one after another when this node is cut off from all of them. So it looks at
            # the last heartbeats, and does not fence the first one while the others are silent too.
            if self._hears_half(self._timing.reset_ns, now):
                self._fence(broker)

    def _fence(self, broker: BrokerState) -> None:
        self._must_apply[broker.node] = fence(self._drafts, broker)

    def _move(self) -> None:
        left = MOVES_PER_TICK - improve_leaders(self._drafts, self._movable(), limit=MOVES_PER_TICK)
        for node, broker in sorted(self.state.brokers.items()):
            if broker.is_leaving and left:
                left -= drain(self._drafts, node, limit=left)
        self._may_move = left < MOVES_PER_TICK  # what was drained may have another preferred leader now

    def _movable(self) -> Iterator[PartitionKey]:
        """Partitions that another broker may lead rather."""
        yield from self.state.misplaced()
        for node, broker in sorted(self.state.brokers.items()):
            if broker.is_leaving or broker.status is BrokerStatus.STOPPING:
                yield from self.state.led_by(node)

    # Writing

    @property
    def has_decided(self) -> bool:
        """Whether there are decisions that are not applied yet."""
        return self._drafts.has_any

    def next_entry(self, entry_id: bytes) -> MetadataEntry | None:
        """The next entry to append: None if nothing is decided, or if one is in flight.

        The entry is in flight until `applied` or `deposed`.
        """
        return None if self._is_over else self._drafts.next_entry(entry_id)

    def applied(self, entry: MetadataEntry) -> None:
        """The node has applied the entry in flight: the requests that it answers are answered now."""
        self._drafts.applied(entry)

    def deposed(self) -> None:
        """The epoch is over. Whatever waits is refused, although its decision may have been written: it is to be sent
        again, with the same request id, to the next controller.
        """
        self._is_over = True
        text = "this node is not the controller any more: ask the next one, with the same request id"
        self._drafts.drop(Refused(RefusalReason.NOT_CONTROLLER, text, self.state.epoch))
