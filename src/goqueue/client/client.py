"""The client, in its asynchronous form. `sync.py` is derived from it.

A client is cheap to make and connects when it is first used. It may be shared by all tasks of its event loop. What is
retryable is retried, for up to `timeout`, as long as it cannot happen twice by that.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self, TypeVar

import msgspec

from goqueue.client import environment, messages
from goqueue.client.accumulator import ProducerConfig
from goqueue.client.blocking import DirectPublisher
from goqueue.client.connections import Connections
from goqueue.client.handles import AsyncHandle, Published
from goqueue.client.messages import Duration, Time
from goqueue.client.producer import AsyncProducer, ProducerCore
from goqueue.client.reading import AsyncMessages, Follow, Read
from goqueue.client.session import split_address
from goqueue.clock import SECOND, Clock, SystemClock
from goqueue.errors import GoQueueError, InvalidRequest, TopicExists, TopicNotFound
from goqueue.record.header import OFFSET_MAX, Priority
from goqueue.times import format_duration, parse_duration
from goqueue.wire import verbs
from goqueue.wire.verbs import Stats, TopicState, Verb

M = TypeVar("M", bound=msgspec.Struct)
SPARE_MAX = 8

_DURATION_SETTINGS = frozenset(
    (
        "retention",
        "flush_interval",
        "visibility_timeout",
        "backoff_initial",
        "backoff_max",
        "ttl",
        "tombstone_retention",
    )
)
_decode_names = msgspec.msgpack.Decoder(list[str]).decode


class AsyncClient:
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
        addresses = [part for part in (server or environment.default_server()).split(",") if part.strip()]
        if not addresses:
            raise InvalidRequest(f"invalid server {server!r}: must be host:port[,host:port...]")
        for address in addresses:
            split_address(address)
        self._clock = clock or SystemClock()
        self._timeout_ns = max(1, messages.asked_duration_ns(timeout, "timeout"))
        self._connections = Connections(
            addresses,
            client_id=client_id,
            api_key=environment.default_api_key() if api_key is None else api_key,
            timeout_s=self._timeout_ns / SECOND,
        )
        self._spare: list[ProducerCore] = []  # of `publish_many`: an identity is not used up by one call
        self._single: ProducerCore | None = None  # publishes what is published one by one
        self._producers: list[ProducerCore] = []

    def direct(self) -> DirectPublisher:
        """A publisher for a thread without an event loop."""
        return DirectPublisher(self._connections, self._clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Flush what producers have and hang up."""
        producers, self._producers, self._spare = [*self._producers, *self._spare], [], []
        failure: GoQueueError | None = None
        try:
            for producer in producers:
                try:
                    await producer.close()
                except GoQueueError as error:
                    failure = failure or error
        finally:
            await self._connections.close()
        if failure:
            raise failure

    # --- topics --------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        exist_ok: bool = False,
        **settings: Any,
    ) -> TopicState:
        """Make a topic. Settings are given as keywords: `retention="7d"`, `cleanup="compact"`, `flush="interval"`."""
        asked = verbs.CreateTopic(name, partitions, _settings(settings), replication_factor)
        try:
            return await self._ask(Verb.CREATE_TOPIC, asked, TopicState, is_repeatable=exist_ok)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.describe_topic(name)

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic with all that is in it."""
        try:
            await self._ask(Verb.DELETE_TOPIC, verbs.TopicName(name), verbs.Empty, is_repeatable=missing_ok)
        except TopicNotFound:
            if not missing_ok:
                raise
        finally:
            self._connections.forget_topic(name)

    async def alter_topic(self, name: str, changes: Mapping[str, object] | None = None, **settings: Any) -> TopicState:
        """Change settings of a topic; None resets one to its default."""
        asked = verbs.AlterTopic(name, _settings({**(changes or {}), **settings}))
        altered = await self._ask(Verb.ALTER_TOPIC, asked, TopicState)
        self._connections.forget_topic(name)
        return altered

    async def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""

        async def attempt() -> list[str]:
            session = await self._connections.any()
            _, names = await session.ask_for_payload(Verb.LIST_TOPICS, verbs.ListTopics(internal), verbs.Empty)
            return _decode_names(names)

        return await self._connections.retrying(attempt)

    async def describe_topic(self, name: str) -> TopicState:
        """A topic with its settings and the ends of its partitions."""
        return await self._ask(Verb.DESCRIBE_TOPIC, verbs.TopicName(name), TopicState)

    async def offsets(self, topic: str, *, time: Time = "latest") -> list[int]:
        """By partition, the first offset at or after a time; `"earliest"` or `"latest"` (the end) are times, too."""
        if time in ("earliest", "latest"):
            asked = verbs.Offsets(topic, None, str(time))
        else:
            asked = verbs.Offsets(topic, self._time_ns(time, "time"))
        return (await self._ask(Verb.OFFSETS, asked, verbs.OffsetsAnswer)).offsets

    async def stats(self) -> Stats:
        """What the broker costs: processor time, memory, bytes stored."""
        return await self._ask(Verb.STATS, verbs.Empty(), Stats)

    # --- publishing ----------------------------------------------------------------------------

    async def publish(
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
        handle = await AsyncProducer(self._single_producer()).send(
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
        return await handle.result()

    async def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs. Those of one partition are stored together or not at all."""
        core = self._spare.pop() if self._spare else self._many_producer()
        producer = AsyncProducer(core)
        handles: list[AsyncHandle] = []
        try:
            for item in items:
                key, value = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
                handles.append(await producer.send(topic, value, key=key))
        except BaseException:
            await core.close(flush=False)  # nothing of it was sent yet
            raise
        await core.flush()
        if any(handle.batch.error for handle in handles) or len(self._spare) >= SPARE_MAX:
            await core.close(raises=False)
        else:
            self._spare.append(core)
        return [await handle.result() for handle in handles]

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
    ) -> AsyncProducer:
        """A producer that gathers messages into batches."""
        return AsyncProducer(
            self._new_producer(
                ProducerConfig(
                    acks=acks,
                    linger_ns=messages.asked_duration_ns(linger, "linger"),
                    batch_count=batch_count,
                    batch_bytes=batch_bytes,
                    compression=compression,
                    idempotent=idempotent,
                    buffer_bytes=buffer_bytes,
                    delivery_timeout_ns=messages.asked_duration_ns(delivery_timeout, "delivery_timeout"),
                )
            )
        )

    # --- reading -------------------------------------------------------------------------------

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
    ) -> AsyncMessages:
        """The messages that are there now, from an offset or a time on, in order within each partition."""
        _check_range(offset, limit)
        return Read(
            self._connections,
            topic,
            partition=partition,
            offset=offset,
            from_time_ns=self._maybe_time_ns(from_time, "from_time"),
            to_time_ns=self._maybe_time_ns(to_time, "to_time"),
            limit=limit,
            isolation=isolation,
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
    ) -> AsyncMessages:
        """The messages that come from now on (`start="earliest"`: all of them), like `tail -f`."""
        _check_range(offset or 0, limit)
        if start not in ("latest", "earliest"):
            raise InvalidRequest(f"invalid start {start!r}: must be latest or earliest", path="start")
        return Follow(
            self._connections,
            topic,
            partition=partition,
            offset=offset,
            start=start,
            from_time_ns=self._maybe_time_ns(from_time, "from_time"),
            limit=limit,
            isolation=isolation,
        )

    # --- inside --------------------------------------------------------------------------------

    async def _ask(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], *, is_repeatable: bool = True) -> M:
        async def attempt() -> M:
            session = await self._connections.any()
            return await session.ask(verb, meta, answer_type)

        return await self._connections.retrying(attempt, only_unsent=not is_repeatable)

    def _single_producer(self) -> ProducerCore:
        if self._single is None:
            self._single = self._new_producer(ProducerConfig(linger_ns=0, delivery_timeout_ns=self._timeout_ns))
        return self._single

    def _many_producer(self) -> ProducerCore:
        return self._new_producer(
            ProducerConfig(
                linger_ns=SECOND,
                batch_count=100_000,
                batch_bytes=2**31,
                buffer_bytes=2**40,
                delivery_timeout_ns=self._timeout_ns,
            ),
            keep=False,
        )

    def _new_producer(self, config: ProducerConfig, *, keep: bool = True) -> ProducerCore:
        core = ProducerCore(self._connections, config, clock=self._clock, loop=asyncio.get_running_loop())
        if keep:
            self._producers = [producer for producer in self._producers if not producer.is_closed]
            self._producers.append(core)
        return core

    def _time_ns(self, value: Time, name: str) -> int:
        found = messages.asked_time_ns(value, name, self._clock.wall_ns())
        assert found is not None
        return found

    def _maybe_time_ns(self, value: Time | None, name: str) -> int | None:
        return None if value is None else self._time_ns(value, name)


def _settings(given: Mapping[str, object]) -> dict[str, object]:
    """Settings as the broker takes them: durations as text."""
    settings = dict(given)
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, timedelta) or (name in _DURATION_SETTINGS and is_number):
            settings[name] = format_duration(parse_duration(value))  # type: ignore[arg-type]
    return settings


def _check_range(offset: int, limit: int | None) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequest(f"invalid offset {offset}: must be 0 or more", path="offset")
    if limit is not None and limit < 0:
        raise InvalidRequest(f"invalid limit {limit}: must be 0 or more", path="limit")
