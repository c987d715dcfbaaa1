"""The leader's side of fetches: what each node has asked for, and of which partitions there is news for it.

    take(request) ──> positions ──┐
    news(partition) ──────────────┴──> to be looked at ──> answers: those with news, up to a size

A node has one session here, the last one that it began. A partition is looked at when the follower has moved or when
something happened on it, so a node that follows a thousand quiet partitions costs nothing. What was answered waits for
the follower's next position: before that, the same records would be sent again.
"""

import logging
from collections.abc import Callable, Container, Iterator
from typing import Final

from goqueue.broker.partition.fetching import Fetch, FetchAnswer
from goqueue.broker.partition.followers import FETCH_BYTES, Followers
from goqueue.cluster.fetch_messages import (
    AnsweredReplica,
    FetchRequest,
    ReplicaKey,
    answered_replica,
    fetch_of,
)
from goqueue.errors import GoQueueError

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""When the records of an answer are more than this, no other partition is added."""

_log = logging.getLogger(__name__)

FindFollowers = Callable[[ReplicaKey], Followers | None]
"""The followers of a partition that this node leads; None if it does not."""


class FetchSession:
    """What one node has asked for."""

    def __init__(self, session: str, node: int, broker_epoch: int) -> None:
        self.session = session
        self.node = node
        self.broker_epoch = broker_epoch  # another process begins another session
        self._positions: dict[ReplicaKey, Fetch] = {}
        self._news: dict[ReplicaKey, None] = {}
        self._answered: set[ReplicaKey] = set()  # and the follower has not said where it is since
        self.wake: Callable[[], None] = _nobody
        """Called when there may be something to answer."""

    def take(self, request: FetchRequest) -> None:
        """The follower says where it is."""
        for key in request.dropped:
            self._positions.pop(key, None)
            self._news.pop(key, None)
            self._answered.discard(key)
        for asked in request.asked:
            key = (asked.topic_id, asked.partition)
            self._positions[key] = fetch_of(asked)
            self._news[key] = None
            self._answered.discard(key)

    def position(self, key: ReplicaKey) -> Fetch | None:
        """Where the follower of the partition is; None if the node follows it elsewhere."""
        return self._positions.get(key)

    def has_news(self, key: ReplicaKey) -> None:
        """Something happened on the partition."""
        if key in self._positions and key not in self._news:
            self._news[key] = None
            if key not in self._answered:
                self.wake()

    def answers(self, find: FindFollowers) -> list[AnsweredReplica]:
        """What there is to tell, for those that wait for something."""
        found: list[AnsweredReplica] = []
        size = 0
        for key in list(self._news):
            if size >= ANSWER_BYTES_MAX:
                break
            if key in self._answered:
                continue
            del self._news[key]
            fetch = self._positions[key]
            answer = _answer(find(key), self.node, fetch)
            if answer is None or not answer.has_news(fetch):
                continue  # it is looked at again when something happens
            self._answered.add(key)
            found.append(answered_replica(key, answer))
            size += len(found[-1].log.records) + len(found[-1].ledger.records)
        return found


class FetchSessions:
    """The sessions of all nodes that follow this one."""

    def __init__(self) -> None:
        self._of: dict[int, FetchSession] = {}

    def take(self, request: FetchRequest) -> FetchSession | None:
        """The session of the request, with what it says; None if this node does not know it."""
        session = self._of.get(request.node)
        if request.is_first:
            if session is not None:
                session.wake()  # what waits there is answered, and says nothing more
            session = self._of[request.node] = FetchSession(request.session, request.node, request.broker_epoch)
        if session is None or session.session != request.session:
            return None
        session.take(request)
        return session

    def is_current(self, session: FetchSession) -> bool:
        """Whether its node has not begun another one."""
        return self._of.get(session.node) is session

    def positions(self, key: ReplicaKey) -> Iterator[tuple[FetchSession, Fetch]]:
        """Where the followers of the partition are, as they have said last."""
        for session in self._of.values():
            position = session.position(key)
            if position is not None:
                yield session, position

    def has_news(self, key: ReplicaKey) -> None:
        """Something happened on a partition that this node leads."""
        for session in self._of.values():
            session.has_news(key)

    def keep(self, nodes: Container[int]) -> None:
        """Forget the sessions of all other nodes: they are members no longer."""
        for node in [node for node in self._of if node not in nodes]:
            del self._of[node]


def _answer(followers: Followers | None, node: int, fetch: Fetch) -> FetchAnswer | None:
    """None: there is nothing to say now. One of the two has not applied yet who leads; when it has, this node begins to
    lead, which is news, or the follower asks somebody else.
    """
    if followers is None:
        return None
    try:
        answer = followers.answer(node, fetch, max_bytes=FETCH_BYTES)
    except GoQueueError as error:
        _log.warning("a fetch is not answered", extra={"follower": node, "reason": str(error)})
        return None
    return None if answer.refusal is not None else answer


def _nobody() -> None:
    """Waits for nothing."""
