"""Where the brokers are, and the sessions to them.

The addresses a client was given are tried in turn until one answers; the metadata it asks for tell who leads which
partition. A session is shared by all who talk to that broker and made anew when it ended. Metadata are kept until
somebody finds them wrong.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from weakref import WeakSet

from goqueue.client.reach import Reach
from goqueue.client.retries import Retries
from goqueue.client.session import CONNECT_TIMEOUT_S, CannotConnect, Session
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    InvalidPartition,
    PartitionNotFound,
    RequestTimeout,
)
from goqueue.wire import codes, verbs
from goqueue.wire.verbs import Verb

TOPICS_MAX = 1_000
"""Of so many topics it is remembered who leads them; of others it is asked again."""

T = TypeVar("T")


def any_turn(partition_count: int) -> int:
    """Where a producer begins to take turns: not all at the same partition, or those that send little fill that one."""
    return random.randrange(partition_count)


class Closes(Protocol):
    """Whoever has something to say before the client hangs up."""

    async def close(self) -> None: ...


class Connections:
    """The sessions of one client. Belongs to one event loop.

    `busy_poll_ns` is how long a thread that waits for an answer, without a loop, looks for it before it falls asleep.
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
    ) -> None:
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
        """The session to the broker, if there is only one and it is open: whoever leads, it is that one."""
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

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], *, only_unsent: bool = False, extra_s: float = 0
    ) -> T:
        """The result of the first attempt that does not fail for a passing reason, within the client's timeout; if no
        broker was ever reached, within that for connecting.

        `extra_s` is how long the broker is allowed to wait before it answers. With `only_unsent`, an attempt that may
        have reached the broker is not repeated.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self.timeout_s + extra_s
        failure: GoQueueError | None = None
        retries = Retries(self.reach, began_s=began, deadline_s=deadline)
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
                may_repeat = not self._is_closed and (not only_unsent or isinstance(error, CannotConnect))
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
