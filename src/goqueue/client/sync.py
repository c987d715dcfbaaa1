"""The client, in its synchronous form. Made by scripts/derive-client from client.py; not edited by hand.

Calls are handed to an event loop in a thread of the client's own. A client may be shared by all threads.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from goqueue.client.client import AsyncClient
from goqueue.client.handles import Published
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import Duration, Time
from goqueue.client.producer import Producer
from goqueue.client.reading import AsyncMessages
from goqueue.clock import Clock
from goqueue.record.header import Priority
from goqueue.record.message import Message
from goqueue.wire.verbs import Stats, TopicState


class Messages:
    """Messages, in batches or one by one."""

    def __init__(self, messages: AsyncMessages, loop: LoopThread) -> None:
        self._messages = messages
        self._loop = loop

    def next_batch(self) -> list[Message]:
        """The next messages, as many as came together; none at the end."""
        return self._loop.run(self._messages.next_batch())

    def __iter__(self) -> Iterator[Message]:
        try:
            while batch := self.next_batch():
                yield from batch
        finally:
            self.close()

    def close(self) -> None:
        """Let go of what is on its way."""
        if not self._loop.is_closed:
            self._loop.run(self._messages.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Talks to a broker, or to a cluster of them: `"host:port[,host:port...]"`."""

    def __init__(
        self,
        server: str | None = None,
        *,
        api_key: str | None = None,
        client_id: str = "",
        timeout: Duration = "30s",
        clock: Clock | None = None,
    ) -> None:
        self._loop = LoopThread()
        try:
            self._client = AsyncClient(server, api_key=api_key, client_id=client_id, timeout=timeout, clock=clock)
        except BaseException:
            self._loop.close()
            raise
        self._direct = self._client.direct()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush what producers have and hang up."""
        if self._loop.is_closed:
            return
        try:
            self._loop.run(self._client.close())
        finally:
            self._direct.close()
            self._loop.close()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        exist_ok: bool = False,
        **settings: Any,
    ) -> TopicState:
        """Make a topic. Settings are given as keywords: `retention="7d"`, `cleanup="compact"`, `flush="interval"`."""
        return self._loop.run(
            self._client.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, exist_ok=exist_ok, **settings
            )
        )

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic with all that is in it."""
        self._loop.run(self._client.delete_topic(name, missing_ok=missing_ok))

    def alter_topic(self, name: str, changes: Mapping[str, object] | None = None, **settings: Any) -> TopicState:
        """Change settings of a topic; None resets one to its default."""
        return self._loop.run(self._client.alter_topic(name, changes, **settings))

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self._loop.run(self._client.topics(internal=internal))

    def describe_topic(self, name: str) -> TopicState:
        """A topic with its settings and the ends of its partitions."""
        return self._loop.run(self._client.describe_topic(name))

    def offsets(self, topic: str, *, time: Time = "latest") -> list[int]:
        """By partition, the first offset at or after a time; `"earliest"` or `"latest"` (the end) are times, too."""
        return self._loop.run(self._client.offsets(topic, time=time))

    def stats(self) -> Stats:
        """What the broker costs: processor time, memory, bytes stored."""
        return self._loop.run(self._client.stats())

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
    ) -> Published:
        """Publish one message and return where it is, once the broker vouches for it."""
        published = self._direct.publish(
            topic,
            value,
            key=key,
            partition=partition,
            priority=priority,
            headers=headers,
            delay=delay,
            deliver_at=deliver_at,
            ttl=ttl,
            tombstone=tombstone,
        )
        return (
            self._loop.run(
                self._client.publish(
                    topic,
                    value,
                    key=key,
                    partition=partition,
                    priority=priority,
                    headers=headers,
                    delay=delay,
                    deliver_at=deliver_at,
                    ttl=ttl,
                    tombstone=tombstone,
                )
            )
            if published is None
            else published
        )

    def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs. Those of one partition are stored together or not at all."""
        return self._loop.run(self._client.publish_many(topic, list(items)))

    def producer(
        self,
        *,
        acks: str | None = None,
        linger: Duration = "5ms",
        batch_count: int = 100,
        batch_bytes: int = 64 * 1024,
        compression: str | None = None,
        idempotent: bool = True,
        buffer_bytes: int = 64 * 1024 * 1024,
        delivery_timeout: Duration = "120s",
    ) -> Producer:
        """A producer that gathers messages into batches."""
        return Producer(
            self._loop.call(
                lambda: self._client.producer(
                    acks=acks,
                    linger=linger,
                    batch_count=batch_count,
                    batch_bytes=batch_bytes,
                    compression=compression,
                    idempotent=idempotent,
                    buffer_bytes=buffer_bytes,
                    delivery_timeout=delivery_timeout,
                )
            ).core,
            self._loop.run,
        )

    def read(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int = 0,
        from_time: Time | None = None,
        to_time: Time | None = None,
        limit: int | None = None,
        isolation: str = "read_committed",
    ) -> Messages:
        """The messages that are there now, from an offset or a time on, in order within each partition."""
        return Messages(
            self._client.read(
                topic,
                partition=partition,
                offset=offset,
                from_time=from_time,
                to_time=to_time,
                limit=limit,
                isolation=isolation,
            ),
            self._loop,
        )

    def follow(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str = "latest",
        offset: int | None = None,
        from_time: Time | None = None,
        limit: int | None = None,
        isolation: str = "read_committed",
    ) -> Messages:
        """The messages that come from now on (`start="earliest"`: all of them), like `tail -f`."""
        return Messages(
            self._client.follow(
                topic,
                partition=partition,
                start=start,
                offset=offset,
                from_time=from_time,
                limit=limit,
                isolation=isolation,
            ),
            self._loop,
        )
