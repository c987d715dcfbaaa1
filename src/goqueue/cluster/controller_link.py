"""How a broker speaks with the controller: it registers, sends heartbeats, and has things decided.

    metadata has this process as a broker?   no ──> Register, until the record is applied
                                            yes ──> Heartbeat every 300 ms

What counts is what is applied: a broker whose answer got lost finds its registration in the log. Heartbeats do not wait
for each other, so a slow network makes them late, and not rare. A request for a decision goes to whichever node is the
controller, again and again with the same id, until it is answered or its time is over.

Some refusals end the process: another one is this node, its data directory is a clone, or its version does not fit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final

from goqueue import events
from goqueue.clock import MS, SECOND, until_next
from goqueue.cluster.candidate import Candidate
from goqueue.cluster.controller import ControllerRequest
from goqueue.cluster.link import PeerRefused, Peers, PeerUnreachable
from goqueue.cluster.local_copy import LocalCopy, removed_sentence
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.messages import (
    AlterPartitions,
    AnyAdminAnswer,
    AnyAdminRequest,
    AnyNodeMessage,
    ControlledShutdown,
    Decide,
    DecisionFailed,
    Done,
    Heartbeat,
    HeartbeatReply,
    IsrChange,
    PartitionsAltered,
    RefusalReason,
    Refused,
    Register,
    Registered,
    ShutdownProgress,
    decode_message,
    encode_message,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.node_identity import NodeIdentity
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.records import FEATURE_LEVEL, FEATURE_LEVEL_MIN, BrokerRegistered
from goqueue.cluster.timing import ClusterTiming
from goqueue.cluster.waiting import within
from goqueue.errors import ClusterError, InvalidRequest, MetadataUnavailable, RequestTimeout
from goqueue.wire import codes

IN_FLIGHT_MAX: Final = 4
REGISTER_NS: Final = 2 * SECOND
"""A registration is answered when it is in the log."""
NODE_ID_TAKEN_NS: Final = 10 * SECOND
"""How long a node id may be taken in one epoch: a controller that does not hear a process fences it before that."""
RETRY_NS: Final = 50 * MS
ATTEMPT_NS: Final = 5 * SECOND
"""Of a request for a decision. Its controller may be gone without a word."""

_log = logging.getLogger(__name__)

Unproven = Callable[[], Mapping[str, tuple[int, ...]] | None]
"""The replicas whose logs may have lost records in an unclean stop, as `Register` has them; None: all of them."""


class ControllerLink:
    """The broker of this node, as the controller sees it."""

    def __init__(
        self,
        identity: NodeIdentity,
        metadata: Metadata,
        copy: LocalCopy,
        follower: LogFollower,
        candidate: Candidate,
        peers: Peers,
        *,
        here: Callable[[ControllerRequest], Awaitable[AnyNodeMessage]],
        spawn: Callable[[Coroutine[object, object, None]], object],
        controller_died: Callable[[], None],
        unproven: Unproven,
        is_disk_replaced: bool,
        time: NodeTime,
        timing: ClusterTiming,
        observe: events.Observer,
    ) -> None:
        self._identity = identity
        self._metadata = metadata
        self._copy = copy
        self._follower = follower
        self._candidate = candidate
        self._peers = peers
        self._here = here
        self._spawn = spawn
        self._controller_died = controller_died
        self._unproven = unproven
        self._is_disk_replaced = is_disk_replaced
        self._time = time
        self._timing = timing
        self._observe = observe
        self._in_flight = 0
        self._is_registering = False
        self._registered_as: int | None = None
        """The highest broker epoch of this process that it was told or has applied."""
        self._must_register = False
        known = metadata.broker(identity.node)
        self._is_of_this_directory = known is not None and copy.directory_id in known.registration.directories
        self._is_disk_stale = False
        self._taken: tuple[int, int] | None = None  # by which epoch the node id was first found taken, and when
        self.wants_shutdown = False
        self.due = asyncio.Event()
        """To be set when the controller should hear of this node at once."""

    @property
    def broker_epoch(self) -> int | None:
        """The broker epoch of this process, once its registration is applied."""
        broker = self._metadata.broker(self._identity.node)
        if broker is None or broker.registration.incarnation != self._identity.incarnation:
            return None
        return broker.broker_epoch

    # --- registration and heartbeats ---------------------------------------------------------------

    async def run(self, identity: NodeIdentity) -> None:
        """Tell the controller that this node lives, endlessly. By now it is known where the node listens."""
        self._identity = identity
        self._begin_process()
        while True:
            if self._metadata.controller is not None and self._in_flight < IN_FLIGHT_MAX:
                request = self._next()
                if request is not None:
                    self._spawn(self._tell(request))
            self.due.clear()
            try:
                # Rather late than early, and never at once again.
                pause_ns = until_next(self._time.now().monotonic_ns, self._timing.heartbeat_ns) + MS
                await within(self._time, pause_ns, self.due.wait())
            except TimeoutError:
                continue

    def _begin_process(self) -> None:
        """Raises `ClusterError` if this data directory is an older copy of the one that the node has used since.

        Its logs lack what the other one has told to be durable, and nothing in them says so. But the directory knows
        all processes that have registered from it, and the metadata know the last one.
        """
        node = self._identity.node
        known = self._metadata.broker(node)
        registered = "" if known is None else known.registration.incarnation
        is_same_disk = known is not None and self._copy.directory_id in known.registration.directories
        if is_same_disk and not self._copy.has_been(registered):
            if not self._is_disk_replaced:
                raise ClusterError(
                    f"this data directory is an older copy of the one that node {node} has used since: start it with "
                    f"that one; if it is lost, start it once with --disk-replaced, and what only that one had is lost"
                )
            self._is_disk_stale = True
            _log.warning("the data directory is an older copy, as was said: its replicas come last")
        self._copy.begin_process(self._identity.incarnation, registered)

    def _next(self) -> Register | Heartbeat | None:
        epoch, node, broker_epoch = self._metadata.epoch, self._identity.node, self.broker_epoch
        if broker_epoch is not None and not self._must_register:
            applied_index = self._metadata.position.index
            return Heartbeat(epoch, node, broker_epoch, applied_index, wants_shutdown=self.wants_shutdown)
        return None if self._is_registering else self._registration()

    def _registration(self) -> Register:
        identity = self._identity
        unproven: Mapping[str, tuple[int, ...]] | None = {}  # a process that lives on has lost nothing
        if self._registered_as is None:
            unproven = None if self._is_disk_stale else self._unproven()
        return Register(
            controller_epoch=self._metadata.epoch,
            node=identity.node,
            incarnation=identity.incarnation,
            directories=(self._copy.directory_id,),
            addresses=identity.addresses,
            version=identity.version,
            feature_level_min=FEATURE_LEVEL_MIN,
            feature_level_max=FEATURE_LEVEL,
            last_clean_epoch=None if self._is_disk_stale else self._copy.clean_epoch,
            unproven=None if unproven is None else dict(unproven),
            rack=identity.rack,
            is_disk_replaced=self._is_disk_replaced,
        )

    async def _tell(self, request: Register | Heartbeat) -> None:
        is_registration = isinstance(request, Register)
        self._in_flight += 1
        self._is_registering |= is_registration
        try:
            answer = await self._ask(request, REGISTER_NS if is_registration else self._timing.silence_ns)
        finally:
            self._in_flight -= 1
            if is_registration:
                self._is_registering = False
        if answer is not None:
            self._answered(request, answer)

    def _answered(self, request: Register | Heartbeat, answer: AnyNodeMessage) -> None:
        """Raises `ClusterError` if this process cannot be the node."""
        match answer:
            case Registered(controller_epoch=epoch, broker_epoch=index):
                self._heard(epoch)
                self._follower.heard_of(index)
                self._registered_as = max(index, self._registered_as or 0)
                self._must_register, self._taken = False, None
            case HeartbeatReply(controller_epoch=epoch, committed_index=index):
                self._heard(epoch)
                self._follower.heard_of(index)
            case Refused(reason=reason, controller_epoch=epoch):
                self._refused(request, answer)
                if reason is RefusalReason.NOT_CONTROLLER:
                    self._heard_of_epoch(epoch)
                else:
                    self._heard(epoch)

    def _refused(self, request: Register | Heartbeat, refusal: Refused) -> None:
        now_ns = self._time.now().monotonic_ns
        if isinstance(request, Heartbeat) and (self._is_registering or request.broker_epoch != self.broker_epoch):
            return  # of an earlier registration of this process
        match refusal.reason:
            case RefusalReason.NOT_CONTROLLER | RefusalReason.OVERLOADED:
                return
            case RefusalReason.NOT_REGISTERED:
                self._must_register = True
                self.due.set()
                return
            case RefusalReason.NODE_ID_TAKEN:
                if self._taken is None or self._taken[0] != refusal.controller_epoch:
                    self._taken = (refusal.controller_epoch, now_ns)
                if now_ns - self._taken[1] < NODE_ID_TAKEN_NS:
                    return
        raise ClusterError(refusal.text)

    def _heard(self, epoch: int) -> None:
        if epoch >= self._metadata.epoch:
            self._candidate.heard(self._time.now().monotonic_ns)
        self._heard_of_epoch(epoch)

    def _heard_of_epoch(self, epoch: int) -> None:
        if epoch > self._metadata.epoch:  # there is at least the entry that begins it
            self._follower.heard_of(self._metadata.position.index + 1)

    # --- what is applied ---------------------------------------------------------------------------

    def registered(self, record: BrokerRegistered) -> None:
        """This node was registered. Raises `ClusterError` if this process is not it any more.

        The answer to a registration may be here before the log is: then the process before this one may follow.
        """
        broker = self._metadata.broker(record.node)
        registered_as = 0 if broker is None else broker.broker_epoch  # the same entry may have removed it
        self._is_of_this_directory = self._copy.directory_id in record.directories
        if record.incarnation == self._identity.incarnation:
            self._registered_as, self._must_register = registered_as, False
            self.due.set()
        elif self._registered_as is not None and registered_as > self._registered_as:
            raise ClusterError(
                f"another process is node {record.node} now, at {record.addresses.peer}: this one stops. Give every "
                f"process a node id of its own"
            )

    def removed(self) -> None:
        """This node id was removed from the cluster. Raises `ClusterError` if that was this data directory."""
        if self._is_of_this_directory:
            self._copy.mark_removed()
            raise ClusterError(removed_sentence(self._identity.node))

    # --- requests ----------------------------------------------------------------------------------

    async def decide(self, request: AnyAdminRequest, duration_ns: int) -> AnyAdminAnswer:
        """Have it decided and applied here. Raises the error of the verb, or `MetadataUnavailable`."""
        try:
            return await within(self._time, duration_ns, self._decide(request))
        except TimeoutError:
            raise MetadataUnavailable(
                f"nobody could decide within {duration_ns / SECOND:g} s; the same request may be tried again"
            ) from None

    async def _decide(self, request: AnyAdminRequest) -> AnyAdminAnswer:
        while True:
            answer = await self._ask(Decide(self._metadata.epoch, request), ATTEMPT_NS)
            match answer:
                case Done(index=index, answer=result):
                    self._follower.heard_of(index)
                    await self._follower.wait_applied(index)
                    return result
                case DecisionFailed(code=code, text=text, facts=facts):
                    raise codes.restore(code, text, facts)
                case Refused(reason=reason, text=text) if not reason.is_retryable:
                    raise ClusterError(text)
            await self._time.sleep(RETRY_NS)

    async def alter_in_sync(self, changes: Sequence[IsrChange]) -> PartitionsAltered | None:
        """The results; None if there are none."""
        broker_epoch = self.broker_epoch
        if broker_epoch is None:
            return None
        request = AlterPartitions(self._metadata.epoch, self._identity.node, broker_epoch, tuple(changes))
        answer = await self._ask(request, ATTEMPT_NS)
        return answer if isinstance(answer, PartitionsAltered) else None

    async def hand_over(self, duration_ns: int) -> bool:
        """Let others lead what this node leads; whether the controller lets it stop."""
        self.wants_shutdown = True
        try:
            await within(self._time, duration_ns, self._until_it_may_stop())
        except TimeoutError:
            return False
        return True

    async def _until_it_may_stop(self) -> None:
        while (broker_epoch := self.broker_epoch) is not None:
            request = ControlledShutdown(self._metadata.epoch, self._identity.node, broker_epoch)
            answer = await self._ask(request, ATTEMPT_NS)
            if isinstance(answer, ShutdownProgress) and answer.may_stop:
                return
            await self._time.sleep(RETRY_NS)

    async def _ask(self, request: ControllerRequest, duration_ns: int) -> AnyNodeMessage | None:
        """The answer of the controller, in this process or in another one; None if there is none."""
        identity = self._identity
        controller, epoch = self._metadata.controller, self._metadata.epoch
        if controller is None:
            return None
        try:
            if (controller, self._metadata.controller_incarnation) == (identity.node, identity.incarnation):
                return await within(self._time, duration_ns, self._here(request))
            timeout_s = duration_ns / SECOND
            return decode_message(await self._peers.call(controller, encode_message(request), timeout_s=timeout_s))
        except PeerUnreachable as error:
            if error.was_refused and self._metadata.epoch == epoch:
                self._controller_died()
            reason = str(error)
        except TimeoutError:
            reason = "no answer"
        except (PeerRefused, RequestTimeout, InvalidRequest) as error:
            reason = str(error)
        if isinstance(request, Heartbeat):
            self._observe(events.HeartbeatMissed(controller))
        _log.debug("the controller does not answer", extra={"controller": controller, "reason": reason})
        return None
