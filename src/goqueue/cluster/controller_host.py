"""The controller on this node: there from its election to the end of its reign, and what it answers meanwhile.

    election applied ──> begin ──> Reign ──> it ends: lost, resigned, stood still
                           ▲         └─────> `end`: a later election was applied, or the node stops

Two things can be wrong with a controller that believes in itself. It may be deposed without knowing: before it answers
for its state, and has not written or read the log for 300 ms, it reads the log (Z4). And it may, alone of all nodes,
not reach the log: then it does not answer heartbeats, and those who miss them look for another controller, which may.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from goqueue.clock import MS
from goqueue.cluster.controller import ClusterDefaults, Controller, ControllerRequest
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.messages import AnyNodeMessage, Decide, HeartbeatReply, RefusalReason, Refused
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import MetadataEntry, MetadataLog, MetadataSnapshot
from goqueue.cluster.metadata_writer import MetadataWriter
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.reign import Reign
from goqueue.cluster.timing import ClusterTiming
from goqueue.cluster.waiting import settled
from goqueue.errors import MetadataContradiction, MetadataUnavailable
from goqueue.runtime.entropy import Entropy

CONFIRMED_NS: Final = 300 * MS
"""How long a controller that has read or written the log may answer from its state."""
RETRY_NS: Final = 500 * MS

_log = logging.getLogger(__name__)


class ControllerHost:
    """Runs the controller while this node is elected. `ended` is called when a reign ends by itself, with whether it
    was futile.
    """

    def __init__(
        self,
        node: int,
        metadata: Metadata,
        log: MetadataLog,
        writer: MetadataWriter,
        follower: LogFollower,
        *,
        defaults: ClusterDefaults,
        time: NodeTime,
        timing: ClusterTiming,
        entropy: Entropy,
        spawn: Callable[[Coroutine[object, object, None]], None],
        barrier: Callable[[], Awaitable[None]],
        ended: Callable[[bool], None],
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._log = log
        self._writer = writer
        self._follower = follower
        self._defaults = defaults
        self._time = time
        self._timing = timing
        self._entropy = entropy
        self._spawn = spawn
        self._barrier = barrier
        self._ended = ended
        self._reign: Reign | None = None
        self._confirmed_ns = 0
        self._is_log_away = False

    @property
    def controller(self) -> Controller | None:
        """The controller, while it is this node."""
        return None if self._reign is None else self._reign.controller

    @property
    def reigns(self) -> bool:
        """Whether this node is the controller, as far as it has applied the log."""
        return self._reign is not None

    @property
    def is_stuck(self) -> bool:
        """Whether this controller does not reach the log: its brokers are to look for another one, which may."""
        return self._is_log_away or (self._reign is not None and self._reign.is_stuck)

    # --- beginning and end -------------------------------------------------------------------------

    def begin(self) -> None:
        """The election is applied, and nothing after it: what the controller decides comes after this state (R3)."""
        controller = Controller(
            self._metadata,
            node=self._node,
            timing=self._timing,
            defaults=self._defaults,
            entropy=self._entropy,
            now=self._time.now(),
        )
        self._confirmed_ns = self._now_ns()
        self._reign = Reign(
            controller,
            self._writer,
            self._follower,
            node=self._node,
            time=self._time,
            timing=self._timing,
            entropy=self._entropy,
        )
        self._spawn(self._run(self._reign))

    async def _run(self, reign: Reign) -> None:
        was_futile = await reign.run()
        if self._reign is reign:
            self.end()
            self._ended(was_futile)

    def end(self) -> None:
        """No decision any more."""
        reign, self._reign = self._reign, None
        if reign is not None:
            reign.end()

    # --- what it is told ---------------------------------------------------------------------------

    def applied(self, entry: MetadataEntry) -> None:
        """This entry is applied; it may be of this controller."""
        if self._reign is not None and self._reign.is_author_of(entry):
            self._confirmed_ns = self._now_ns()
            self._reign.applied(entry)

    def peer_lost(self, node: int, was_refused: bool) -> None:
        """The connection to a node broke, and could not be made again."""
        if self._reign is not None:
            self._reign.controller.connection_lost(node, was_refused, self._time.now())
            self._reign.touched()

    def share(self, snapshot: MetadataSnapshot, entries_kept: int) -> None:
        """There is a new snapshot of the state: the shared log gets it, and forgets what it covers."""
        if self._reign is not None:
            self._spawn(self._share(snapshot, entries_kept))

    async def _share(self, snapshot: MetadataSnapshot, entries_kept: int) -> None:
        try:
            await self._log.store_snapshot(snapshot)
            await self._log.trim(snapshot.position.index - entries_kept)
        except MetadataUnavailable as error:  # the next one will do
            _log.warning("cannot store a snapshot of the metadata", extra={"reason": str(error)})

    # --- what it answers ---------------------------------------------------------------------------

    async def answer(self, message: ControllerRequest) -> AnyNodeMessage:
        """What the controller says, if it is this node."""
        if message.controller_epoch > self._metadata.epoch:  # there is at least the entry that begins it
            self._follower.heard_of(self._metadata.position.index + 1)
            return self._not_controller()
        if isinstance(message, Decide) and self._reign is not None and not await self._is_confirmed():
            return Refused(RefusalReason.OVERLOADED, "the metadata log does not answer", self._metadata.epoch)
        reign = self._reign
        if reign is None:
            return self._not_controller()
        try:
            pending = reign.controller.handle(message, self._time.now())
        except MetadataContradiction as error:
            _log.error("a bug in the controller, which gives up", exc_info=error)
            reign.give_up()
            return self._not_controller()
        reign.touched()
        answer = await settled(pending)
        if isinstance(answer, HeartbeatReply) and self.is_stuck:
            return Refused(RefusalReason.NOT_CONTROLLER, "the metadata log cannot be reached from here")
        return answer

    def _not_controller(self) -> Refused:
        controller, epoch = self._metadata.controller, self._metadata.epoch
        if controller is None:
            known = "there is none"
        elif controller == self._node:
            known = f"it gave up epoch {epoch}"
        else:
            known = f"node {controller} is, of epoch {epoch}"
        text = f"node {self._node} is not the controller; {known}, as far as is known here"
        return Refused(RefusalReason.NOT_CONTROLLER, text, epoch)

    async def _is_confirmed(self) -> bool:
        """Whether this node was the controller a moment ago: then what it refuses now is refused on its true state."""
        now_ns = self._now_ns()
        if now_ns - self._confirmed_ns < CONFIRMED_NS:
            return True
        try:
            await self._barrier()
        except MetadataUnavailable:
            if not self._is_log_away:
                self._is_log_away = True
                self._spawn(self._until_the_log_is_back())
            return False
        self._confirmed_ns = now_ns
        return True

    async def _until_the_log_is_back(self) -> None:
        while self._is_log_away:
            await self._time.sleep(RETRY_NS)
            try:
                await self._barrier()
            except MetadataUnavailable:
                continue
            self._is_log_away = False

    def _now_ns(self) -> int:
        return self._time.now().monotonic_ns
