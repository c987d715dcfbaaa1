"""The client, in its asynchronous form. `sync.py` is derived from it.

A client is cheap to make and connects when it is first used. All tasks of its event loop may share it. A request that
fails with a retryable error is sent again for up to `timeout`, unless the broker might then carry it out twice.

Verbs that only return a report of the broker are in `goqueue.client.admin`. Here is what keeps state: producers,
transactions, readers and consumers, and the end of all of them.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack

import msgspec

from goqueue.client import environment, messages
from goqueue.client.accumulator import ProducerConfig
from goqueue.client.admin import (
    AsyncDeadLetterAdmin,
    AsyncDelayAdmin,
    AsyncGroupAdmin,
    AsyncTopicAdmin,
    AsyncTraceAdmin,
    AsyncTransactionAdmin,
    encode_arguments,
)
from goqueue.client.blocking_publisher import BlockingPublisher
from goqueue.client.cluster_admin import AsyncClusterAdmin
from goqueue.client.connections import Connections
from goqueue.client.consumer import AsyncConsumer, AsyncConsumption, ConsumeLimits
from goqueue.client.consumer_core import ConsumerConfig
from goqueue.client.damage import OnDamage, check_on_damage
from goqueue.client.exits import FLUSH_TIMEOUT_S, OpenClient, Unstored
from goqueue.client.handles import AsyncHandle, Published
from goqueue.client.loop_publisher import LoopPublisher
from goqueue.client.options import (
    AckMode,
    Acks,
    Assignor,
    Compression,
    DelayedReads,
    Duration,
    Field,
    GroupMode,
    GroupProtocol,
    Isolation,
    MessageOptions,
    StartPosition,
    Time,
    shows,
)
from goqueue.client.producer import AsyncProducer
from goqueue.client.reading import AsyncMessages, TopicFollow, TopicRead
from goqueue.client.scanning import SCAN_BYTES, AsyncScan, ConnectionPool
from goqueue.client.schema_admin import AsyncSchemaAdmin
from goqueue.client.session import split_address
from goqueue.client.staging import STAGED_TIMEOUT, AsyncKeeping, AsyncStaging
from goqueue.client.transactions import AsyncTransaction, TransactionalProducer
from goqueue.clock import MS, SECOND, Clock, SystemClock
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest
from goqueue.record.header import OFFSET_MAX
from goqueue.runtime.entropy import Entropy
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.verbs import Verb

T = TypeVar("T")
SPARE_MAX = 8
"""Publishers of `publish_many` that are kept for the next call, each with its producer id."""
TRANSACTIONAL_MAX = 1_000
"""Producers that are kept, one for each transactional id; one that is not kept starts with a new epoch."""
CLIENT_ID_SHOWN_MAX = 200
"""How much of a client id goes into a member id, so that the broker accepts its length."""


class AsyncClient(
    AsyncTopicAdmin,
    AsyncGroupAdmin,
    AsyncTransactionAdmin,
    AsyncDelayAdmin,
    AsyncDeadLetterAdmin,
    AsyncSchemaAdmin,
    AsyncTraceAdmin,
):
    """Talks to a broker, or to a cluster of them: `"host:port[,host:port...]"`.

    Requests are tried again for up to `timeout`. If no broker was ever reached, the first one fails after
    `connect_timeout`.

    In an application that uses OpenTelemetry, messages carry the context of the span in which they are published, and
    it is current again inside `with message:`. `telemetry=False`, or `GOQUEUE_TELEMETRY=off`, switches that off.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        api_key: str | None = None,
        client_id: str = "",
        timeout: Duration = "30s",
        connect_timeout: Duration = "3s",
        clock: Clock | None = None,
        telemetry: bool | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if server is not None and not isinstance(server, str):
            raise InvalidRequest(f"invalid server {server!r}: must be host:port[,host:port...]")
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
            busy_poll_ns=environment.default_busy_poll_ns(),
            connect_timeout_s=_milliseconds(connect_timeout, "connect_timeout") / 1_000,
            entropy=entropy,
        )
        self._telemetry = environment.default_telemetry() if telemetry is None else telemetry
        self._spare: list[LoopPublisher] = []  # of `publish_many`: the next call uses the same producer id
        self._single: LoopPublisher | None = None  # of `publish`
        self._producers: list[LoopPublisher] = []
        self._transactional: dict[str, TransactionalProducer] = {}
        self._opened: OpenClient | None = None
        self._connections.before_use = self._close_with_loop

    @property
    def cluster(self) -> AsyncClusterAdmin:
        """The nodes, their health, and who leads which partition."""
        return AsyncClusterAdmin(self)

    def kept_by(self, loop: asyncio.AbstractEventLoop) -> OpenClient:
        """What closes the client if the application does not, for a client whose loop has a thread of its own."""
        self._connections.before_use = None
        self._opened = OpenClient(self, loop, has_thread=True)
        return self._opened

    def _close_with_loop(self) -> None:
        self._opened = OpenClient(self, asyncio.get_running_loop(), has_thread=False)
        self._opened.watch_loop()

    def blocking_publisher(self) -> BlockingPublisher:
        """A publisher for a thread without an event loop."""
        return BlockingPublisher(self._connections, self._clock, telemetry=self._telemetry)

    def connection_pool(self) -> ConnectionPool:
        """Connections for scans by threads without an event loop."""
        return ConnectionPool(self._connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self.leave(error)

    async def close(self) -> None:
        """Flush what producers have, abort open transactions, leave groups and hang up."""
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        """Close at the end of a block. Raises why a message was not stored, or notes it on the error that leaves."""
        timeout_s = None if error is None or isinstance(error, Exception) else FLUSH_TIMEOUT_S
        try:
            unstored = await self.end(timeout_s)
        finally:
            if self._opened is not None:
                await self._opened.closed()
        if error is not None:
            unstored.note_on(error)
        elif unstored.error is not None:
            raise unstored.error

    async def end(self, timeout_s: float | None) -> Unstored:
        """Flush for so long, abort transactions, leave groups and hang up; what is not stored. May be called twice."""
        unstored = Unstored()
        producers = [*self._producers, *self._spare]
        transactional = list(self._transactional.values())
        try:
            aborting = asyncio.gather(*[one.close() for one in transactional])
            for found in await asyncio.gather(*[producer.finish(timeout_s) for producer in producers]):
                unstored.add(found)
            await aborting
        finally:
            await self._connections.close()
        self._producers, self._spare, self._transactional = [], [], {}
        return unstored

    def unstored(self) -> Unstored:
        """Messages of producers that are not stored now, as far as the application was not told."""
        unstored = Unstored()
        for producer in self._producers:
            unstored.add(producer.unstored())
        return unstored

    # --- publishing ----------------------------------------------------------------------------

    @shows(MessageOptions)
    async def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish one message and return where it is, once the broker has stored it as `acks` of its topic demands."""
        handle = await AsyncProducer(self._single_publisher()).send(topic, value, **options)
        return await handle.result()

    async def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs. Those of one partition are stored together or not at all."""
        items = messages.several(items)
        publisher = self._spare.pop() if self._spare else self._many_publisher()
        producer = AsyncProducer(publisher)
        handles: list[AsyncHandle] = []
        try:
            for item in items:
                key, value = messages.key_and_value(item)
                handles.append(await producer.send(topic, value, key))
        except BaseException:
            await publisher.close(flush=False)  # no batch was full, so no message was sent
            raise
        await publisher.flush()
        if any(handle.batch.error for handle in handles) or len(self._spare) >= SPARE_MAX:
            await publisher.close(raises=False)
        else:
            self._spare.append(publisher)
        return [await handle.result() for handle in handles]

    def producer(
        self,
        *,
        acks: Acks | None = None,
        linger: Duration = "5ms",
        batch_count: int = 100,
        batch_bytes: int = 64 * 1024,
        compression: Compression | None = None,
        idempotent: bool = True,
        buffer_bytes: int = 64 * 1024 * 1024,
        delivery_timeout: Duration = "120s",
    ) -> AsyncProducer:
        """A producer that collects messages in batches."""
        return AsyncProducer(
            self._new_publisher(
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
            ),
            is_own=True,
        )

    # --- transactions --------------------------------------------------------------------------

    def transaction(
        self, transactional_id: str, *, timeout: Duration = "60s", marker: str | None = None
    ) -> AsyncTransaction:
        """Messages and acks that are committed together: `async with gq.transaction("billing-1") as tx` commits at the
        end, and aborts when an exception leaves the block. A transaction with a `marker` is committed once.
        """
        timeout_ms = messages.asked_duration_ns(timeout, "timeout") // MS
        return AsyncTransaction(self._transactional_producer(transactional_id), timeout_ms, marker, self._call)

    def stage(
        self,
        transactional_id: str,
        *,
        timeout: Duration = STAGED_TIMEOUT,
        marker: str | None = None,
        rate: float | None = None,
        compression: Compression | None = None,
        job: str | None = None,
        run: str = "",
    ) -> AsyncStaging:
        """Messages that another client commits: `async with gq.stage("job/7") as staging` stores what is added, hidden
        from readers, and `staging.prepare()` returns the owner for `commit_staged`. `rate` is in messages per second.

        Heartbeats restart the `timeout` while the block is open, so it counts from `prepare`. Tasks that name the same
        `job` and `run` keep each other alive; transactions that earlier runs of the job left open are aborted.
        """
        config = ProducerConfig(
            acks="none", compression=compression, delivery_timeout_ns=self._timeout_ns, all_or_none=True
        )
        publisher = self._new_publisher(config, keep=False)
        staging = AsyncStaging(
            TransactionalProducer(transactional_id, publisher, self._call, self._send),
            self._call,
            timeout_ms=_milliseconds(timeout, "timeout"),
            marker=marker,
            rate=rate,
            job=job,
            run=run,
        )
        self._connections.close_first(staging)
        return staging

    def keep_staged(self, job: str, *, run: str, timeout: Duration = STAGED_TIMEOUT) -> AsyncKeeping:
        """While its block is open, nothing that the run of the job has staged with this `timeout` times out."""

        async def beat() -> None:
            await self._call("transactions.keep_job", int, job=job, run=run)

        keeping = AsyncKeeping(beat, _milliseconds(timeout, "timeout"))
        self._connections.close_first(keeping)
        return keeping

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
        isolation: Isolation = "read_committed",
        on_damage: OnDamage = "warn",
    ) -> AsyncMessages:
        """The messages that the topic holds now, from an offset or a time on, in order within each partition.

        Messages that cannot be read are skipped with a `DataLossWarning`; `on_damage="raise"` raises `CorruptRecord`
        instead, `"skip"` skips them silently.
        """
        _check_range(offset, limit)
        check_on_damage(on_damage)
        return TopicRead(
            self._connections,
            topic,
            partition=partition,
            offset=offset,
            from_time_ns=self._maybe_time_ns(from_time, "from_time"),
            to_time_ns=self._maybe_time_ns(to_time, "to_time"),
            limit=limit,
            isolation=isolation,
            on_damage=on_damage,
        )

    def scan(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        isolation: Isolation = "read_committed",
        delayed: DelayedReads = "due",
        without: Sequence[Field] = (),
        read_bytes: int = SCAN_BYTES,
        on_damage: OnDamage = "warn",
    ) -> AsyncScan:
        """Encoded records of a range, for readers that decode many at once; `delayed="include"` includes messages that
        are not due yet. Fields named in `without` arrive empty, which saves bandwidth. Damage is in the `gaps` of each
        part, whatever `on_damage` says.
        """
        check_on_damage(on_damage)
        asked = verbs.ReadRequest(
            topic,
            partition,
            offset=start_offset,
            max_bytes=read_bytes,
            isolation=isolation,
            end_offset=end_offset,
            delayed=delayed,
            without=tuple(without),
        )
        return AsyncScan(self._connections, asked, on_damage)

    def follow(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: StartPosition = "latest",
        offset: int | None = None,
        from_time: Time | None = None,
        limit: int | None = None,
        isolation: Isolation = "read_committed",
        on_damage: OnDamage = "warn",
    ) -> AsyncMessages:
        """The messages that are published from now on (`start="earliest"`: all messages), like `tail -f`; `on_damage`
        as for `read`.
        """
        _check_range(offset or 0, limit)
        check_on_damage(on_damage)
        if start not in ("latest", "earliest"):
            raise InvalidRequest(f"invalid start {start!r}: must be latest or earliest", path="start")
        return TopicFollow(
            self._connections,
            topic,
            partition=partition,
            offset=offset,
            start=start,
            from_time_ns=self._maybe_time_ns(from_time, "from_time"),
            limit=limit,
            isolation=isolation,
            on_damage=on_damage,
        )

    # --- groups --------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        mode: GroupMode = "partitioned",
        visibility: Duration | None = None,
        max_in_flight: int | None = None,
        start: StartPosition = "earliest",
        ack: AckMode = "each",
        auto_extend: bool = True,
        protocol: GroupProtocol = "cooperative",
        assignor: Assignor = "sticky",
        session_timeout: Duration = "30s",
        member_id: str | None = None,
        auto_commit_interval: Duration = "5s",
    ) -> AsyncConsumer:
        """A member of the group. It joins with its first poll, and leaves with `close`.

        `ack="auto"` commits positions every `auto_commit_interval`, up to the messages before the last poll.

        A member with a `member_id` keeps its partitions over a restart. A consumer that joins under the same id later
        takes its place.
        """
        client_id = self._connections.client_id or "consumer"
        config = ConsumerConfig(
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            group=group,
            client_id=client_id,
            member_id=f"{client_id[:CLIENT_ID_SHOWN_MAX]}-{self._connections.entropy.bytes(6).hex()}"
            if member_id is None
            else member_id,
            is_static=member_id is not None,
            mode=mode,
            protocol=protocol,
            assignor=assignor,
            start=start,
            ack=ack,
            auto_extend=auto_extend,
            visibility_ms=None if visibility is None else _milliseconds(visibility, "visibility"),
            max_in_flight=max_in_flight,
            session_timeout_ms=_milliseconds(session_timeout, "session_timeout"),
            auto_commit_interval_ms=_milliseconds(auto_commit_interval, "auto_commit_interval"),
            telemetry=self._telemetry,
        )
        return AsyncConsumer(config, self._connections, self._clock)

    def consume(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        stop: Literal["empty"] | None = None,
        limit: int | None = None,
        idle: Duration | None = None,
        batch: int = 100,
        mode: GroupMode = "partitioned",
        visibility: Duration | None = None,
        max_in_flight: int | None = None,
        start: StartPosition = "earliest",
        ack: AckMode = "each",
        auto_extend: bool = True,
        member_id: str | None = None,
        auto_commit_interval: Duration = "5s",
    ) -> AsyncConsumption:
        """The messages of a group, one by one, without an end: `async with message` acknowledges each.

        `stop="empty"` ends the loop when no message is left, `idle` when none came for so long, `limit` after so many.
        """
        consumer = self.consumer(
            topics,
            group=group,
            mode=mode,
            visibility=visibility,
            max_in_flight=max_in_flight,
            start=start,
            ack=ack,
            auto_extend=auto_extend,
            member_id=member_id,
            auto_commit_interval=auto_commit_interval,
        )
        return AsyncConsumption(consumer, ConsumeLimits(stop, limit, idle, batch))

    # --- inside --------------------------------------------------------------------------------

    def _send(self, verb: str, answer_type: type[T], **arguments: object) -> "asyncio.Future[T] | None":
        """Call a verb without waiting; it is sent after what producers have sent. None if there is no connection."""
        session = self._connections.only_now()
        if session is None:
            return None
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answered(frame: Frame | None, error: GoQueueError | None) -> None:
            if future.done():
                return
            if frame is None:
                future.set_exception(error or BrokerUnavailable("no answer"))
            else:
                future.set_result(msgspec.msgpack.decode(frame.payload, type=answer_type))

        session.send(Verb.CALL, verbs.CallRequest(verb), encode_arguments(verb, arguments), answered, in_time=True)
        return future

    def _single_publisher(self) -> LoopPublisher:
        if self._single is None:
            self._single = self._new_publisher(ProducerConfig(linger_ns=0, delivery_timeout_ns=self._timeout_ns))
        return self._single

    def _transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """The producer of that id. Where too many are kept, the one that was not used for longest makes room."""
        producer = self._transactional.pop(transactional_id, None)
        if producer is None:
            if len(self._transactional) >= TRANSACTIONAL_MAX:
                idle = [name for name, one in self._transactional.items() if not one.is_busy]
                for name in idle[:1]:
                    del self._transactional[name]
            config = ProducerConfig(batch_count=1_000, batch_bytes=256 * 1024, delivery_timeout_ns=self._timeout_ns)
            publisher = self._new_publisher(config, keep=False)
            producer = TransactionalProducer(transactional_id, publisher, self._call, self._send)
        self._transactional[transactional_id] = producer
        return producer

    def _many_publisher(self) -> LoopPublisher:
        return self._new_publisher(
            ProducerConfig(
                linger_ns=SECOND,
                batch_count=100_000,
                batch_bytes=2**31,
                buffer_bytes=2**40,
                delivery_timeout_ns=self._timeout_ns,
                all_or_none=True,
            ),
            keep=False,
        )

    def _new_publisher(self, config: ProducerConfig, *, keep: bool = True) -> LoopPublisher:
        publisher = LoopPublisher(
            self._connections,
            config,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            telemetry=self._telemetry,
        )
        if keep:
            self._producers = [producer for producer in self._producers if not producer.is_closed]
            self._producers.append(publisher)
        return publisher


def _milliseconds(value: Duration, name: str) -> int:
    found_ns = messages.asked_duration_ns(value, name)
    if found_ns <= 0:
        raise InvalidRequest(f"invalid {name} {value!r}: must be more than 0", path=name)
    return max(1, found_ns // MS)


def _check_range(offset: object, limit: object) -> None:
    if not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequest(f"invalid offset {offset!r}: must be 0 or more", path="offset")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(f"invalid limit {limit!r}: must be 0 or more", path="limit")
