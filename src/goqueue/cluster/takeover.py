"""How a node becomes the controller: it waits until that is due, asks its peers, and appends its election.

Whether and when is decided by `Candidate`. The election is an append like any other: at the applied position, one at a
time, and if its outcome is in doubt, the same entry again. If the old controller is heard meanwhile, the append is not
repeated any more; should it take effect later, this node is the controller, and has to act as one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from goqueue.clock import SECOND
from goqueue.cluster.candidate import Candidate
from goqueue.cluster.link import Peers
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.messages import PreVote, PreVoteReply, decode_message, encode_message
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.metadata_writer import MetadataWriter
from goqueue.cluster.node_identity import NodeIdentity
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.records import ControllerElected, encode_batch
from goqueue.cluster.timing import ClusterTiming
from goqueue.cluster.waiting import drop, set_or_later
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import Entropy

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Takeover:
    """Makes this node the controller, when there is none."""

    def __init__(
        self,
        identity: NodeIdentity,
        metadata: Metadata,
        candidate: Candidate,
        writer: MetadataWriter,
        follower: LogFollower,
        peers: Peers,
        *,
        reigns: Callable[[], bool],
        time: NodeTime,
        timing: ClusterTiming,
        entropy: Entropy,
    ) -> None:
        self._identity = identity
        self._metadata = metadata
        self._candidate = candidate
        self._writer = writer
        self._follower = follower
        self._peers = peers
        self._reigns = reigns
        self._time = time
        self._timing = timing
        self._entropy = entropy
        self.changed = asyncio.Event()
        """To be set when an attempt may be due earlier, or is possible again."""

    async def run(self) -> None:
        """For ever. Raises what halts the node."""
        while True:
            await self._until_due()
            await self._attempt()

    async def _until_due(self) -> None:
        while True:
            if self._reigns():
                wait_ns = None
            else:
                wait_ns = self._candidate.due_ns(self._metadata) - self._now_ns()
                if wait_ns <= 0:
                    return
            await set_or_later(self._time, wait_ns, self.changed)

    async def _attempt(self) -> None:
        epoch = self._metadata.epoch
        await self._while_silent(self._writer.settle())
        if self._is_superseded(epoch) or self._writer.is_open:
            return
        replies = await self._ask_peers(PreVote(self._identity.node, epoch))
        if self._is_superseded(epoch):
            return
        if not self._candidate.may_stand(self._metadata, replies, self._now_ns()):
            self._candidate.held_back(self._now_ns())
            return
        entry = self._election()
        _log.info(
            "stands as controller", extra={"epoch": entry.epoch, "index": entry.index, "peers_asked": len(replies)}
        )
        is_elected = await self._while_silent(self._writer.write(entry))
        if is_elected:
            await self._follower.wait_applied(entry.index)
        self._candidate.held_back(self._now_ns())

    def _is_superseded(self, epoch: int) -> bool:
        """Whether there is a controller again."""
        return self._reigns() or self._metadata.epoch != epoch or self._candidate.hears_controller(self._now_ns())

    def _election(self) -> MetadataEntry:
        position, epoch, node = self._metadata.position, self._metadata.epoch + 1, self._identity.node
        record = ControllerElected(epoch, node, self._identity.incarnation)
        return MetadataEntry(
            position.index + 1, self._entropy.bytes(16), position.id, epoch, node, encode_batch([record])
        )

    async def _ask_peers(self, question: PreVote) -> list[PreVoteReply]:
        """The replies of the peers that answer in time."""
        peers = [node for node in self._metadata.brokers if node != self._identity.node]
        asking = [asyncio.ensure_future(self._ask(node, encode_message(question))) for node in peers]
        if not asking:
            return []
        await asyncio.wait(asking)
        return [reply for reply in (task.result() for task in asking) if reply is not None]

    async def _ask(self, node: int, question: bytes) -> PreVoteReply | None:
        try:
            reply = decode_message(await self._peers.call(node, question, timeout_s=self._timing.pre_vote_ns / SECOND))
        except GoQueueError:  # it cannot be reached, or it answers nonsense: it has no say
            return None
        return reply if isinstance(reply, PreVoteReply) else None

    async def _while_silent(self, work: Awaitable[T]) -> T | None:
        """The result; None if the controller was heard before."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                if self._candidate.hears_controller(self._now_ns()):
                    return None
                looking = asyncio.ensure_future(self._time.sleep(self._timing.heartbeat_ns))
                await asyncio.wait((working, looking), return_when=asyncio.FIRST_COMPLETED)
                drop(looking)
            return working.result()
        finally:
            drop(working)

    def _now_ns(self) -> int:
        return self._time.now().monotonic_ns
