"""The follower's side of fetches: one loop for each node that leads something this node follows.

    PartitionFollower.fetch ──> FetchRequest ──> the leader ──> FetchReply ──> PartitionFollower.take
          ▲                                                                          │
          └─────────────── moved: records appended, synced, or cut off ──────────────┘

There is always one request at the leader, which answers when there is news. When a follower has moved meanwhile, which
is how the leader learns that records are durable, a second request says so at once, and the leader answers the first.

A leader that cannot be reached is asked again, soon and then less often; the metadata say when there is another one.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from goqueue.broker.partition.fetching import Fetch
from goqueue.broker.partition.follower import PartitionFollower
from goqueue.clock import MS
from goqueue.cluster.fetch_messages import (
    FetchReply,
    FetchRequest,
    ReplicaKey,
    answer_of,
    asked_replica,
    decode_reply,
    encode,
)
from goqueue.cluster.link import Peers
from goqueue.cluster.node_time import NodeTime
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import Entropy

WAIT_MS: Final = 500
PATIENCE_S: Final = 3.0
"""How long an answer may take: the wait, a large read at the leader, and the way."""
RETRY_NS: Final = (20 * MS, 500 * MS)
IN_FLIGHT_MAX: Final = 2
_SESSION_BYTES: Final = 8

_log = logging.getLogger(__name__)

Speaker = Callable[[], tuple[int, int, str] | None]
"""This node, its broker epoch and its directory; None while it is not registered."""


class Fetcher:
    """Fetches from one node. `start` begins; `close` ends it."""

    def __init__(self, leader: int, peers: Peers, speaker: Speaker, *, time: NodeTime, entropy: Entropy) -> None:
        self.leader = leader
        self._peers = peers
        self._speaker = speaker
        self._time = time
        self._entropy = entropy
        self._followers: dict[ReplicaKey, PartitionFollower] = {}
        self._moved: dict[ReplicaKey, None] = {}  # since they were said last
        self._said: dict[ReplicaKey, Fetch] = {}
        self._dropped: set[ReplicaKey] = set()
        self._session = ""  # none yet
        self._in_flight = 0
        self._failures = 0
        self._due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to fetch."""
        self._spawn(self._run())

    def close(self) -> None:
        """Fetch no more."""
        for task in list(self._tasks):
            task.cancel()

    @property
    def is_asking(self) -> bool:
        """Whether a request is at the leader."""
        return self._in_flight > 0

    def follow(self, followers: Mapping[ReplicaKey, PartitionFollower]) -> None:
        """Fetch these, and no others."""
        for key in self._followers.keys() - followers.keys():
            self._moved.pop(key, None)
            if self._said.pop(key, None) is not None:
                self._dropped.add(key)
        for key, follower in followers.items():
            if self._followers.get(key) is not follower:
                follower.moved = partial(self._has_moved, key)
                self._moved[key] = None
        self._followers = dict(followers)
        self._due.set()

    def _has_moved(self, key: ReplicaKey) -> None:
        if key in self._followers:
            self._moved[key] = None
            self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            request = self._next()
            if request is not None:
                self._in_flight += 1
                self._spawn(self._ask(request))
            await self._due.wait()
            if self._failures:
                await self._time.sleep(min(RETRY_NS[0] << min(self._failures, 10), RETRY_NS[1]))

    def _next(self) -> FetchRequest | None:
        """The next request; None if the one that is there says all."""
        speaker = self._speaker()
        if speaker is None or self._in_flight >= IN_FLIGHT_MAX or not self._followers:
            return None
        is_first = not self._session
        if is_first:
            if self._in_flight:
                return None  # of the session before
            self._session = self._entropy.bytes(_SESSION_BYTES).hex()
            self._said.clear()
            self._dropped.clear()
            self._moved = dict.fromkeys(self._followers)
        asked = []
        for key in list(self._moved):
            follower = self._followers[key]
            if follower.ended is not None or follower.is_cutting:
                continue  # it says when that is over, or another follower takes its place
            del self._moved[key]
            fetch = follower.fetch()
            if self._said.get(key) != fetch:
                self._said[key] = fetch
                asked.append(asked_replica(key, fetch))
        dropped, self._dropped = tuple(self._dropped - self._said.keys()), set()
        if not asked and not dropped and self._in_flight:
            return None
        return FetchRequest(*speaker, self._session, is_first, tuple(asked), dropped, WAIT_MS)

    async def _ask(self, request: FetchRequest) -> None:
        reply: FetchReply | None = None
        try:
            raw = await self._peers.call(self.leader, encode(request), timeout_s=PATIENCE_S)
            reply = decode_reply(raw)
        except GoQueueError as error:
            if not self._failures:
                _log.warning("cannot fetch", extra={"leader": self.leader, "reason": str(error)})
        finally:
            self._in_flight -= 1
            self._due.set()
        if reply is None or not reply.is_known:
            if self._session == request.session:
                self._session = ""
            self._failures += 1 if reply is None else 0
            return
        self._failures = 0
        if self._session == request.session:
            self._take(reply)

    def _take(self, reply: FetchReply) -> None:
        for answered in reply.answers:
            key = (answered.topic_id, answered.partition)
            follower = self._followers.get(key)
            if follower is None:
                continue
            try:
                follower.take(answer_of(answered))
            except GoQueueError as error:  # its log has failed, or cannot follow this leader
                _log.error("cannot follow", extra={"leader": self.leader, "replica": key, "reason": str(error)})
                self._said.pop(key, None)
                self._spawn(self._again(key))
                continue
            self._moved[key] = None

    async def _again(self, key: ReplicaKey) -> None:
        """Ask for it again later: there may be room on the disk by then."""
        await self._time.sleep(RETRY_NS[1])
        self._has_moved(key)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a bug in a fetch", exc_info=task.exception())
