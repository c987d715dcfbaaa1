"""Where the brokers are, and the sessions to them.

A client tries the addresses that it was given in turn until one answers; the metadata of a topic name the leader of
each partition. All requests to a broker share one session, which is replaced when it has ended. Metadata are cached
until an answer contradicts them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from weakref import WeakSet

from goqueue.client.reach import Reach
from goqueue.client.retries import ClientRetryPolicy, Retries
from goqueue.client.session import CONNECT_TIMEOUT_S, CannotConnect, Session
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    InvalidPartition,
    NotLeader,
    PartitionNotFound,
    RequestTimeout,
)
from goqueue.runtime.entropy import Entropy, SystemEntropy
from goqueue.wire import codes, verbs
from goqueue.wire.verbs import Verb

TOPICS_MAX = 1_000
"""How many topics have their leaders cached; the metadata of others are asked for again."""

T = TypeVar("T")


class Closes(Protocol):
    """A part of a client that has requests to send before the client hangs up."""

    async def close(self) -> None: ...


class Connections:
    """The sessions of one client. Belongs to one event loop.

    `busy_poll_ns` is how long a thread that waits for an answer, without a loop, busy-polls before it sleeps.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        client_id: str,
        api_key: str,
        timeout_s: float,
        busy_poll_ns: int = 0,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        entropy: Entropy | None = None,
    ) -> None:
        self.entropy = entropy or SystemEntropy()
        self.retry_policy = ClientRetryPolicy(self.entropy)
        self.addresses = list(addresses)
        self.client_id = client_id
        self.api_key = api_key
        self.timeout_s = timeout_s
        self.busy_poll_ns = busy_poll_ns
        self.reach = Reach(self.addresses, min(connect_timeout_s, timeout_s))
        self._sessions: dict[str, asyncio.Task[Session]] = {}
        self._preferred = 0
        self._topics: dict[str, verbs.TopicMetadata] = {}
        self._nodes: dict[int, str] = {}
        self._is_closed = False
        self.before_use: Callable[[], None] | None = None  # called once, in the loop, before the first connection
        self._closing_first: WeakSet[Closes] = WeakSet()

    def close_first(self, user: Closes) -> None:
        """Close this one before the sessions end, if it is still there."""
        self._closing_first.add(user)

    async def any(self) -> Session:
        """A session to any broker."""
        if self.reach.is_up and not self._is_closed:
            session = self._opened(self.addresses[self._preferred])
            if session is not None:
                return session
        failure: GoQueueError = BrokerUnavailable("no address")
        for step in range(len(self.addresses)):
            index = (self._preferred + step) % len(self.addresses)
            try:
                session = await self._to(self.addresses[index])
            except GoQueueError as error:
                failure = error
            else:
                self._preferred = index
                return session
        raise failure

    async def leader(self, topic: str, partition: int) -> Session:
        """A session to the broker that leads the partition."""
        asked: object = partition
        if not isinstance(asked, int) or asked < 0:
            raise InvalidPartition(partition)
        metadata = await self.topic(topic)
        if partition >= len(metadata.leaders):  # the topic may be another by now
            self.forget_topic(topic)
            metadata = await self.topic(topic)
            if partition >= len(metadata.leaders):
                raise PartitionNotFound(topic, partition)
        address = self._nodes.get(metadata.leaders[partition], "")
        return await (self._to(address) if address else self.any())

    def only_now(self) -> Session | None:
        """The session to the broker, if the cluster has only one and the session is open: it leads every partition."""
        if len(self._nodes) > 1 or len(self._sessions) != 1:
            return None
        return self._opened(self.addresses[self._preferred])

    def leader_now(self, topic: str, partition: int) -> Session | None:
        """The same, if it is open and known."""
        metadata = self._topics.get(topic)
        if metadata is None or partition >= len(metadata.leaders):
            return None
        address = self._nodes.get(metadata.leaders[partition], "") or self.addresses[self._preferred]
        return self._opened(address)

    def _opened(self, address: str) -> Session | None:
        task = self._sessions.get(address)
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        session = task.result()
        return None if session.is_closed else session

    async def topic(self, name: str) -> verbs.TopicMetadata:
        """What there is to know of a topic."""
        known = self._topics.get(name)
        if known:
            return known
        session = await self.any()
        answer = await session.ask(Verb.METADATA, verbs.MetadataRequest([name]), verbs.MetadataAnswer)
        self._nodes = answer.nodes
        if len(answer.nodes) > 1:  # a node alone may have several addresses: any of those given will do
            self._nodes = {node: address or session.address for node, address in answer.nodes.items()}
        (metadata,) = answer.topics
        if metadata.error:
            raise codes.restore(metadata.error.code, metadata.error.text, metadata.error.facts)
        if len(self._topics) >= TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
        self._topics[name] = metadata
        return metadata

    def forget_topic(self, name: str) -> None:
        """What is known of the topic turned out wrong."""
        self._topics.pop(name, None)

    def forget_leader(self, error: GoQueueError) -> None:
        """If a broker has refused a request because it is not the leader, or a node cannot be reached, ask for the
        leader before the next one.
        """
        if isinstance(error, NotLeader):
            self._topics.pop(getattr(error, "topic", ""), None)  # a broker may tell an error without its facts
        elif isinstance(error, BrokerUnavailable) and len(self._nodes) > 1:  # a node is gone: others lead by now
            self._topics.clear()

    def retries(self, began_s: float, deadline_s: float) -> Retries:
        """The attempts of one request; both times are of the clock that its caller waits by."""
        return Retries(self.retry_policy, self.reach, began_s=began_s, deadline_s=deadline_s)

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], *, only_unsent: bool = False, extra_s: float = 0
    ) -> T:
        """The result of the first attempt that does not fail with a retryable error, within the client's timeout; or
        within its timeout for connecting, if no broker was ever reached.

        `extra_s` is how long the broker may wait before it answers. With `only_unsent`, an attempt that a broker may
        have carried out is not repeated.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self.timeout_s + extra_s
        failure: GoQueueError | None = None
        retries: Retries | None = None
        while True:
            try:
                if not self.reach.was_reached:
                    await self._first(began, deadline)
                async with asyncio.timeout_at(deadline):
                    if only_unsent:
                        await self.any()
                    return await attempt()
            except TimeoutError:
                raise failure or RequestTimeout("a request", self.timeout_s) from None
            except GoQueueError as error:
                failure = error
                self.forget_leader(error)
                retries = retries or self.retries(began, deadline)
                may_repeat = not self._is_closed and (not only_unsent or isinstance(error, CannotConnect | NotLeader))
                await asyncio.sleep(retries.wait_s(error, now_s=loop.time(), may_repeat=may_repeat))

    async def _first(self, began: float, deadline: float) -> None:
        """Reach a broker for the first time, or raise that there is none."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.reach.time_left_s(deadline - now, now - began)):
                await self.any()
        except TimeoutError:
            raise self.reach.no_answer() from None

    async def close(self) -> None:
        """End all sessions."""
        try:
            for user in list(self._closing_first):
                await user.close()
        finally:
            self._end_sessions()

    def _end_sessions(self) -> None:
        self._is_closed = True
        tasks, self._sessions = list(self._sessions.values()), {}
        for task in tasks:
            if task.done() and not task.cancelled() and not task.exception():
                task.result().close()
            else:
                task.cancel()

    async def _to(self, address: str) -> Session:
        if self._is_closed:
            raise Conflict("a client cannot be used after close")
        task = self._sessions.get(address)
        if task is not None and task.done() and (task.cancelled() or task.exception() or task.result().is_closed):
            task = None
        if task is None:
            before_use, self.before_use = self.before_use, None
            if before_use is not None:
                before_use()
            connecting = Session.connect(
                address, client_id=self.client_id, api_key=self.api_key, timeout_s=self.reach.attempt_s
            )
            task = self._sessions[address] = asyncio.ensure_future(connecting)
        try:
            session = await asyncio.shield(task)
        except CannotConnect as error:
            self.reach.failed(error)
            raise
        if not self.reach.is_up:
            self.reach.reached(address)
        return session
