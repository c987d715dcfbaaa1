"""Answers the fetches of followers: at once if there is news, else when something happens or the time is over.

A durable offset that a follower reports is what the high watermark is made of, so it counts only if it comes from the
process that the metadata know as that node, on the disk that they know. A process that registered just now may be known
here a moment later: it is told to ask again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from goqueue.clock import MS, SECOND
from goqueue.cluster.fetch_messages import AnsweredReplica, FetchReply, FetchRequest, decode_request, encode
from goqueue.cluster.fetch_sessions import FetchSession, FetchSessions, FindFollowers
from goqueue.cluster.link import CallingNode
from goqueue.cluster.metadata import Metadata
from goqueue.errors import InvalidRequest

UNKNOWN_PAUSE_NS: Final = 20 * MS
"""A follower whose session is not known asks again at once: so long it has to wait for that."""


class FetchServer:
    """The fetches of all nodes that follow partitions of this one."""

    def __init__(self, metadata: Metadata, find: FindFollowers, *, took: Callable[[FetchRequest], None]) -> None:
        self._metadata = metadata
        self._find = find
        self._took = took
        self._waiting: dict[FetchSession, asyncio.Event] = {}
        self.sessions = FetchSessions()

    async def answer(self, peer: CallingNode, raw: bytes) -> bytes:
        """The reply to one request: the `Answerer` for fetches of a `PeerServer`."""
        request = decode_request(raw)
        if request.node != peer.node:
            raise InvalidRequest(f"node {peer.node} speaks for node {request.node}")
        session = self.sessions.take(request) if self._is_registered(request) else None
        if session is None:
            await asyncio.sleep(UNKNOWN_PAUSE_NS / SECOND)
            return encode(FetchReply(is_known=False))
        self._took(request)
        self._wake(session)  # a request that waits is answered: this one says more
        return encode(FetchReply(True, tuple(await self._news(session, request.wait_ms / 1000))))

    async def _news(self, session: FetchSession, wait_s: float) -> list[AnsweredReplica]:
        found = session.answers(self._find)
        if found or not wait_s:
            return found
        woken = self._waiting[session] = asyncio.Event()
        session.wake = woken.set
        try:
            async with asyncio.timeout(wait_s):
                await woken.wait()
        except TimeoutError:
            pass
        if self._waiting.get(session) is not woken:
            return []  # a later request of the session waits now
        del self._waiting[session]
        return session.answers(self._find) if self.sessions.is_current(session) else []

    def _wake(self, session: FetchSession) -> None:
        waiting = self._waiting.pop(session, None)
        if waiting is not None:
            waiting.set()

    def _is_registered(self, request: FetchRequest) -> bool:
        broker = self._metadata.broker(request.node)
        return (
            broker is not None
            and broker.broker_epoch == request.broker_epoch
            and request.directory in broker.registration.directories
        )
