"""A node of a cluster: it follows the metadata log, lives by heartbeats, and may be the controller.

    metadata log ──> LogFollower ──> LocalCopy ──> Metadata ──> applied(records): the reconciler of the broker
         ▲                                            │
         │                                            ▼
    MetadataWriter <── Controller (here, while elected) <── requests of all nodes, through `Peers` or from this one
         ▲             (ControllerHost, Reign)        ▲
         └── Takeover <── Candidate (silence)         └── ControllerLink: registration, heartbeats, `decide`

This module puts the parts together. What they decide is in pure classes (`controller.py`, `candidate.py`, ...); here is
only what has to wait: for the log, for a peer, for a time. Every wait is a call of `MetadataLog`, of `Peers` or of
`NodeTime`, so the simulator can hold a node still wherever it stands.

A node halts, with one sentence, when going on could do harm: its log went back, has a record that it does not know or
that contradicts the state, or another process is this node now. `halted` has the error; what serves clients has to stop
then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from goqueue import events
from goqueue.clock import MS, SECOND
from goqueue.cluster.candidate import Candidate
from goqueue.cluster.controller import ClusterDefaults, Controller
from goqueue.cluster.controller_host import ControllerHost
from goqueue.cluster.controller_link import ControllerLink, Unproven
from goqueue.cluster.formation import NOTHING, OwnData, enter
from goqueue.cluster.link import CallingNode, Peers, PeerUnreachable
from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.messages import (
    AlterPartitions,
    AnyAdminAnswer,
    AnyAdminRequest,
    ControlledShutdown,
    Decide,
    Heartbeat,
    IsrChange,
    PartitionsAltered,
    PreVote,
    PreVoteReply,
    Register,
    decode_message,
    encode_message,
)
from goqueue.cluster.metadata_log import MetadataEntry, MetadataLog, MetadataPosition, MetadataSnapshot
from goqueue.cluster.metadata_writer import MetadataWriter
from goqueue.cluster.node_identity import NodeIdentity
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.records import (
    BrokerAddresses,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    BrokerStatus,
    Record,
)
from goqueue.cluster.takeover import Takeover
from goqueue.cluster.timing import ClusterTiming
from goqueue.cluster.waiting import drop, within
from goqueue.errors import ClusterError, GoQueueError, InvalidRequest, MetadataUnavailable
from goqueue.runtime.entropy import Entropy

__all__ = ["Node", "NodeIdentity"]

T = TypeVar("T")

DECIDE_NS: Final = 10 * SECOND
HAND_OVER_NS: Final = 10 * SECOND
START_RETRY_NS: Final = 500 * MS

Applied = Callable[[Sequence[Record]], None]

_log = logging.getLogger(__name__)


def _nobody(records: Sequence[Record]) -> None:
    """Takes no roles."""


def _all_unproven() -> None:
    """Knows nothing about the logs of this node."""


class Node:
    """One node. All calls in one event loop, which runs already. After `stop` it is of no use any more."""

    def __init__(
        self,
        identity: NodeIdentity,
        log: MetadataLog,
        peers: Peers,
        copy: LocalCopy,
        *,
        time: NodeTime,
        entropy: Entropy,
        timing: ClusterTiming,
        defaults: ClusterDefaults,
        applied: Applied = _nobody,
        observe: events.Observer = events.ignore,
        own: OwnData = NOTHING,
        unproven: Unproven = _all_unproven,
        is_disk_replaced: bool = False,
    ) -> None:
        self.identity = identity
        self.metadata = copy.metadata
        """The applied state. The object stays the same one."""
        self.halted: asyncio.Future[GoQueueError] = asyncio.get_running_loop().create_future()
        """Done with the reason when this node must not go on."""
        self._log = log
        self._peers = peers
        self._copy = copy
        self._time = time
        self._timing = timing
        self._entropy = entropy
        self._applied = applied
        self._observe = observe
        self._own = own
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._elected = self._last_election()
        self._has_handed_over = False
        self._follower = LogFollower(log, self.metadata, copy, time=time, applied=self._entry_applied)
        self._follower.stored = self._copy_stored
        self._writer = MetadataWriter(log, self._follower, time=time, observe=observe)
        self._candidate = Candidate(identity.node, timing=timing, entropy=entropy, now_ns=time.now().monotonic_ns)
        self._host = ControllerHost(
            identity.node,
            self.metadata,
            log,
            self._writer,
            self._follower,
            defaults=defaults,
            time=time,
            timing=timing,
            entropy=entropy,
            spawn=self._spawn,
            barrier=self.barrier,
            ended=self._reign_ended,
        )
        self._takeover = Takeover(
            identity,
            self.metadata,
            self._candidate,
            self._writer,
            self._follower,
            peers,
            reigns=lambda: self._host.reigns,
            time=time,
            timing=timing,
            entropy=entropy,
        )
        self._link = ControllerLink(
            identity,
            self.metadata,
            copy,
            self._follower,
            self._candidate,
            peers,
            here=self._host.answer,
            spawn=self._spawn,
            controller_died=self._controller_died,
            unproven=unproven,
            is_disk_replaced=is_disk_replaced,
            time=time,
            timing=timing,
            observe=observe,
        )

    @property
    def controller(self) -> Controller | None:
        """The controller, while it is this node."""
        return self._host.controller

    @property
    def broker_epoch(self) -> int | None:
        """The broker epoch of this process, once its registration is applied."""
        return self._link.broker_epoch

    @property
    def hears_controller(self) -> bool:
        """Whether this node is the controller, or has heard it lately."""
        if self._host.reigns:
            return not self._host.is_stuck
        return self._candidate.hears_controller(self._now_ns())

    @property
    def is_online(self) -> bool:
        """Whether this process may lead, as far as it has applied the log."""
        broker = self.metadata.broker(self.identity.node)
        return broker is not None and broker.is_online and broker.registration.incarnation == self.identity.incarnation

    @property
    def is_metadata_available(self) -> bool:
        """Whether decisions can be made, as far as this node knows: a controller that cannot reach the log answers no
        heartbeats.
        """
        return self.hears_controller

    # --- start and stop ----------------------------------------------------------------------------

    async def start(self, *, within_ns: int | None = None) -> None:
        """Enter the cluster, and begin to take part."""
        await self.enter(within_ns=within_ns)
        self.take_part()

    async def enter(self, *, within_ns: int | None = None) -> None:
        """Check that this is the right log, form or join the cluster, and read to the end; then go on reading.

        Waits for a metadata log that does not answer, for ever unless `within_ns` says how long: then it raises
        `MetadataUnavailable`. Raises `ClusterError`, one sentence, for what halts a node. `applied` is called for
        everything that is newer than the local copy.
        """
        try:
            if within_ns is None:
                await self._enter()
            else:
                await self._enter_within(within_ns)
        except BaseException:
            self.abandon()
            self._copy.close()
            raise

    async def _enter_within(self, duration_ns: int) -> None:
        try:
            await within(self._time, duration_ns, self._enter())
        except TimeoutError:
            raise MetadataUnavailable(f"the metadata log did not answer within {duration_ns / SECOND:g} s") from None

    async def _enter(self) -> None:
        await self._once_available(self._form_or_join)
        for broker in self.metadata.brokers.values():
            self._learn_address(broker.registration)
        self._spawn(self._follower.read())
        self._spawn(self._follower.apply())
        tail = await self._once_available(self._log.tail)
        await self._unless_halted(self._follower.wait_applied(tail.index))

    def take_part(self, addresses: BrokerAddresses | None = None) -> None:
        """Register, with these addresses if they were not known before, send heartbeats, and be a candidate."""
        if addresses is not None:
            self.identity = replace(self.identity, addresses=addresses)
        now_ns = self._now_ns()
        self._candidate.began(now_ns)
        if self.metadata.controller == self.identity.node or (self._copy.has_formed and not self.metadata.epoch):
            self._candidate.controller_died(now_ns)  # it was a process of this node, or there never was one
        self._spawn(self._link.run(self.identity))
        self._spawn(self._takeover.run())

    async def _form_or_join(self) -> None:
        await enter(self._log, self._copy, self.identity, own=self._own, entropy=self._entropy, now=self._time.now())

    async def _once_available(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except MetadataUnavailable as error:
                _log.warning("waiting for the metadata log", extra={"reason": str(error)})
                await self._time.sleep(START_RETRY_NS)

    async def _unless_halted(self, work: Awaitable[T]) -> T:
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, self.halted), return_when=asyncio.FIRST_COMPLETED)
            if self.halted.done():
                raise self.halted.result()
            return working.result()
        finally:
            drop(working)

    async def hand_over(self, *, within_ns: int = HAND_OVER_NS) -> bool:
        """Let others lead what this node leads; whether the controller has said that it may stop."""
        self._has_handed_over = True
        return await self._link.hand_over(within_ns)

    async def stop(self, *, controlled: bool) -> None:
        """Stop taking part. With `controlled`, hand over first, unless that was done, and mark the copy as cleanly
        stopped: the logs of the broker have to be closed by then. The log and the peers belong to the caller.
        """
        if controlled and not self._has_handed_over:
            await self.hand_over()
        broker_epoch = self.broker_epoch
        self.abandon()
        if controlled and broker_epoch is not None:
            self._copy.mark_clean(broker_epoch)
        self._copy.close()

    def abandon(self) -> None:
        """End everything at once, as a crash does: nothing is written and nobody is told."""
        self._host.end()
        for task in list(self._tasks):
            task.cancel()

    # --- requests ----------------------------------------------------------------------------------

    async def answer(self, peer: CallingNode, request: bytes) -> bytes:
        """The answer to a request of another node: the `Answerer` of a `PeerServer`."""
        message = decode_message(request)
        match message:
            case PreVote():
                hears = self.hears_controller and self.metadata.epoch >= message.epoch
                return encode_message(PreVoteReply(self.identity.node, self.metadata.epoch, hears))
            case Register() | Heartbeat() | AlterPartitions() | ControlledShutdown():
                if message.node != peer.node:
                    raise InvalidRequest(f"node {peer.node} speaks for node {message.node}")
                return encode_message(await self._host.answer(message))
            case Decide():
                return encode_message(await self._host.answer(message))
            case _:
                raise InvalidRequest("this message is an answer")

    def peer_lost(self, node: int, was_refused: bool) -> None:
        """The connection to a node broke, and could not be made again: the `lost` of `PeerLinks`."""
        self._host.peer_lost(node, was_refused)
        if was_refused and node == self.metadata.controller:
            self._controller_died()

    def _controller_died(self) -> None:
        if not self._host.reigns:
            self._candidate.controller_died(self._now_ns())
            self._takeover.changed.set()

    def _reign_ended(self, was_futile: bool) -> None:
        self._candidate.reign_ended(self._now_ns(), was_futile=was_futile)
        if not was_futile:
            self._controller_died()  # if nobody else is, this node can be it again

    async def decide(self, request: AnyAdminRequest, *, within_ns: int = DECIDE_NS) -> AnyAdminAnswer:
        """Have the controller carry this out; returns when its effect is applied here.

        Raises the error of the verb, or `MetadataUnavailable` if nobody could decide in time: the same request, with
        the same id, may be tried again.
        """
        return await self._unless_halted(self._link.decide(request, within_ns))

    async def alter_in_sync(self, changes: Sequence[IsrChange]) -> PartitionsAltered | None:
        """Have the controller change the in-sync replicas of partitions that this node leads; None: it did not answer,
        and may have done so.
        """
        return await self._link.alter_in_sync(changes)

    async def barrier(self) -> None:
        """Return when everything that was in the log at this call is applied here. Raises `MetadataUnavailable`."""
        tail = await self._log.tail()
        self._follower.heard_of(tail.index)
        await self._unless_halted(self._follower.wait_applied(tail.index))

    # --- what is applied ---------------------------------------------------------------------------

    def _entry_applied(self, entry: MetadataEntry | None, records: Sequence[Record]) -> None:
        """Called after each entry, before the next one."""
        metadata = self.metadata
        for record in records:
            self._heed(record)
        elected = self._last_election()
        if elected != self._elected:
            self._elected = elected
            self._controller_changed()
        elif entry is not None:
            self._host.applied(entry)
        self._observe(events.MetadataApplied(metadata.position.index))
        if records:
            self._applied(records)

    def _heed(self, record: Record) -> None:
        match record:
            case BrokerRegistered():
                self._learn_address(record)
                if record.node == self.identity.node:
                    self._link.registered(record)
            case BrokerRemoved(node=node):
                self._peers.forget(node)
                if node == self.identity.node:
                    self._link.removed()
            case BrokerChanged(node=node, status=status):
                self._observe(events.BrokerStatusChanged(node, status))
                if status is BrokerStatus.ONLINE and self._host.reigns:
                    self._watch(node)

    def _learn_address(self, registration: BrokerRegistered) -> None:
        """Of this node, too, if another process is it: that one may be the controller, and refuse this one."""
        host, _, port = registration.addresses.peer.rpartition(":")
        if registration.incarnation == self.identity.incarnation:
            self._peers.forget(registration.node)
        elif port.isdigit():
            self._peers.set_address(registration.node, host.strip("[]"), int(port))

    def _last_election(self) -> tuple[int, int | None, str]:
        return self.metadata.epoch, self.metadata.controller, self.metadata.controller_incarnation

    def _controller_changed(self) -> None:
        metadata, was_here = self.metadata, self._host.reigns
        self._host.end()
        is_here = (metadata.controller, metadata.controller_incarnation) == (
            self.identity.node,
            self.identity.incarnation,
        )
        self._candidate.epoch_began(self._now_ns(), is_here=is_here)
        if was_here and not is_here:
            self._candidate.deposed(self._now_ns())
        _log.info(
            "controller elected", extra={"epoch": metadata.epoch, "controller": metadata.controller, "is_here": is_here}
        )
        self._observe(events.ControllerChanged(metadata.epoch, metadata.controller, is_here))
        if is_here:
            self._host.begin()
            for broker in self.metadata.brokers.values():
                if not broker.is_fenced:
                    self._watch(broker.node)
        self._takeover.changed.set()
        self._link.due.set()

    def _watch(self, node: int) -> None:
        """Have a connection to the broker: it breaks when its process dies, which is known at once then."""
        if node != self.identity.node:
            self._spawn(self._greet(node))

    async def _greet(self, node: int) -> None:
        question = encode_message(PreVote(self.identity.node, self.metadata.epoch))
        try:
            await self._peers.call(node, question, timeout_s=self._timing.heartbeat_ns / SECOND)
        except PeerUnreachable as error:
            if error.was_refused:  # as the last controller is, if it has died
                self.peer_lost(node, True)
        except GoQueueError:  # that it does not answer is found out by its silence
            return

    def _copy_stored(self, position: MetadataPosition, state: bytes) -> None:
        self._host.share(MetadataSnapshot(position, state), self._copy.policy.entries_kept)

    # --- tasks -------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GoQueueError):
            self._halt(error)
        elif isinstance(error, Exception):
            _log.error("a bug in the node", exc_info=error)
            self._halt(ClusterError(f"a bug: {error!r}; the log of this node has the details"))

    def _halt(self, error: GoQueueError) -> None:
        if not self.halted.done():
            _log.error("the node halts", extra={"reason": str(error)})
            self.halted.set_result(error)
        self.abandon()

    def _now_ns(self) -> int:
        return self._time.now().monotonic_ns
