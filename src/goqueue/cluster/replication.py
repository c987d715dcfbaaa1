"""Replication on one node: what it fetches from others, what others fetch from it, and which of them are in sync.

    Reconciler ──changed──> Replication ──> Fetcher (one for each leader) ──> its followers here
                                 ├────────> FetchServer <── the fetches of other nodes
                                 └────────> InSyncReplicas ──> AlterPartitions ──> the controller

Roles come from the reconciler alone; here is only what follows from them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.follower import PartitionFollower
from goqueue.broker.partition.followers import Followers
from goqueue.clock import MS
from goqueue.cluster.fetch_messages import FetchRequest, ReplicaKey, fetch_of
from goqueue.cluster.fetch_server import FetchServer
from goqueue.cluster.fetcher import Fetcher
from goqueue.cluster.in_sync import InSyncReplicas
from goqueue.cluster.link import CallingNode, Peers
from goqueue.cluster.messages import IsrChange, PartitionsAltered
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.reconciler import Reconciler
from goqueue.runtime.entropy import Entropy

TICK_NS: Final = 250 * MS

_log = logging.getLogger(__name__)

AlterInSync = Callable[[Sequence[IsrChange]], Awaitable[PartitionsAltered | None]]
"""Asks the controller; None if it did not answer."""


class Replication:
    """The replication of one node. `start` comes when it has entered its cluster."""

    def __init__(
        self,
        node: int,
        directory: str,
        metadata: Metadata,
        partitions: LocalPartitions,
        reconciler: Reconciler,
        peers: Peers,
        *,
        alter: AlterInSync,
        broker_epoch: Callable[[], int | None],
        time: NodeTime,
        entropy: Entropy,
    ) -> None:
        self._node = node
        self._directory = directory
        self._metadata = metadata
        self._partitions = partitions
        self._reconciler = reconciler
        self._peers = peers
        self._alter = alter
        self._broker_epoch = broker_epoch
        self._time = time
        self._entropy = entropy
        self._fetchers: dict[int, Fetcher] = {}
        self._in_sync = InSyncReplicas(node, metadata)
        self._server = FetchServer(metadata, self._followers_of, took=self._took)
        self._is_due = False
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False
        reconciler.changed = self._roles_changed

    def close(self) -> None:
        """Fetch no more, and ask for nothing."""
        self._is_closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        if self._asking is not None:
            self._asking.cancel()

    async def answer(self, peer: CallingNode, request: bytes) -> bytes:
        """The reply to the fetch of another node."""
        return await self._server.answer(peer, request)

    def tick(self) -> None:
        """Look who is in sync, and who is still a member."""
        self._server.sessions.keep(self._metadata.brokers)
        if self._asking is None and not self._is_closed:
            changes = self._in_sync.changes(self._now_ns())
            if changes:
                self._asking = asyncio.get_running_loop().create_task(self._ask(changes))
                self._asking.add_done_callback(self._asked)

    # --- roles -----------------------------------------------------------------------------------

    def _roles_changed(self) -> None:
        """Once for all that is applied together."""
        if not self._is_due and not self._is_closed:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take_roles)

    def _take_roles(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        for key in self._in_sync.lead(self._reconciler.leads, self._now_ns()):
            leader = self._reconciler.leads[key].leader
            if leader is not None:
                leader.tell_followers(partial(self._server.sessions.has_news, key))
                # Followers that have heard of this leader before it has: a quiet one does not say again where it is.
                for session, fetch in self._server.sessions.positions(key):
                    self._in_sync.reported(key, session.node, session.broker_epoch, fetch, self._now_ns())
                self._server.sessions.has_news(key)
        followed: dict[int, dict[ReplicaKey, PartitionFollower]] = {node: {} for node in self._fetchers}
        for key, wanted in self._reconciler.follows.items():
            follower = self._follower_of(key)
            if follower is not None and wanted.leader is not None:
                followed.setdefault(wanted.leader, {})[key] = follower
        for node, followers in followed.items():
            fetcher = self._fetchers.get(node)
            if fetcher is None:
                fetcher = self._fetchers[node] = self._new_fetcher(node)
            fetcher.follow(followers)

    def _new_fetcher(self, node: int) -> Fetcher:
        fetcher = Fetcher(node, self._peers, self._speaker, time=self._time, entropy=self._entropy)
        fetcher.start()
        return fetcher

    def _follower_of(self, key: ReplicaKey) -> PartitionFollower | None:
        name = self._reconciler.topic_name(key[0])
        topic = None if name is None else self._partitions.find(name)
        replica = None if topic is None else topic.replicas.get(key[1])
        return None if replica is None else replica.follower

    def _followers_of(self, key: ReplicaKey) -> Followers | None:
        replica = self._reconciler.leads.get(key)
        return None if replica is None else replica.followers

    def _speaker(self) -> tuple[int, int, str] | None:
        broker_epoch = self._broker_epoch()
        return None if broker_epoch is None else (self._node, broker_epoch, self._directory)

    # --- who is in sync --------------------------------------------------------------------------

    def _took(self, request: FetchRequest) -> None:
        """A follower has said where it is."""
        now_ns = self._now_ns()
        self._in_sync.heard(request.node, now_ns)
        for asked in request.asked:
            key = (asked.topic_id, asked.partition)
            self._in_sync.reported(key, request.node, request.broker_epoch, fetch_of(asked), now_ns)

    async def _ask(self, changes: Sequence[IsrChange]) -> None:
        altered = await self._alter(changes)
        if altered is None:
            return  # it may have been decided: those who were to join go on to count, and it is asked again
        for change, result in zip(changes, altered.results, strict=True):
            self._in_sync.answered(change, result)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("a bug in asking for in-sync replicas", exc_info=task.exception())

    def _now_ns(self) -> int:
        return self._time.now().monotonic_ns
