"""The client, in its asynchronous form. `sync.py` is derived from it.

A client is cheap to make and connects when it is first used. It may be shared by all tasks of its event loop. What is
retryable is retried, for up to `timeout`, as long as it cannot happen twice by that.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Literal, Self, TypeVar

import msgspec

from goqueue.client import environment, messages
from goqueue.client.accumulator import Message as NewMessage
from goqueue.client.accumulator import ProducerConfig
from goqueue.client.blocking import DirectPublisher
from goqueue.client.connections import Connections
from goqueue.client.consumer import AsyncConsumer, AsyncConsumption, Limits
from goqueue.client.consumer_core import ConsumerConfig
from goqueue.client.damage import OnDamage, check_on_damage
from goqueue.client.exits import FLUSH_TIMEOUT_S, OpenClient, Unstored
from goqueue.client.handles import AsyncHandle, Published
from goqueue.client.messages import Duration, Time
from goqueue.client.producer import AsyncProducer, ProducerCore
from goqueue.client.reading import AsyncMessages, Follow, Read
from goqueue.client.received import Message
from goqueue.client.scanning import SCAN_BYTES, AsyncScan, ConnectionPool
from goqueue.client.session import split_address
from goqueue.client.staging import STAGED_TIMEOUT, AsyncKeeping, AsyncStaging
from goqueue.client.transactions import AsyncTransaction, TransactionalProducer
from goqueue.clock import MS, SECOND, Clock, SystemClock
from goqueue.errors import (
    AlreadyExists,
    BrokerUnavailable,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    NotFound,
    ProducerError,
    TopicExists,
    TopicNotFound,
)
from goqueue.names import nearest, suggestion
from goqueue.record.header import OFFSET_MAX, Priority
from goqueue.times import format_duration, parse_duration
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.reports import (
    BlockedKey,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterQueue,
    DelayedMessage,
    DelayReport,
    DoneAbove,
    GroupInfo,
    LaneReport,
    NodeHealth,
    Position,
    PositionCommit,
    PositionReset,
    RebalanceReport,
    RecurringMessage,
    RedriveInfo,
    RedrivePlan,
    ScheduleInfo,
)
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece
from goqueue.wire.schema_reports import Compatibility, NewSchema, SchemaInfo, SchemaReference, SchemaStats
from goqueue.wire.trace_reports import Trace, TraceQuery, TraceStats
from goqueue.wire.transaction_reports import TransactionInfo, TransactionOutcome, TransactionOwner, TransactionStats
from goqueue.wire.verbs import Stats, TopicState, Verb

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")
SPARE_MAX = 8
TRANSACTIONAL_MAX = 1_000
"""Producers that are kept, one for each transactional id; one that is not begins with a new epoch."""
CLIENT_ID_SHOWN_MAX = 200
"""Of a client's id in that of a member, so that this is not too long."""

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
_FILTER_FIELDS = (
    "reason",
    "group",
    "key",
    "key_prefix",
    "header",
    "error_contains",
    "from_time",
    "to_time",
    "partition",
    "offsets",
    "min_attempts",
)
_NOT_REPEATABLE = frozenset(
    (
        "transactions.begin",
        "schedules.create",
        "schedules.run",
        "dead_letters.redrive",
        "schemas.delete_version",
        "schemas.delete_subject",
        "schemas.delete_level",
        "schemas.delete_mode",
    )
)
_decode_names = msgspec.msgpack.Decoder(list[str]).decode


class AsyncClient:
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
        )
        self._telemetry = environment.default_telemetry() if telemetry is None else telemetry
        self._spare: list[ProducerCore] = []  # of `publish_many`: an identity is not used up by one call
        self._single: ProducerCore | None = None  # publishes what is published one by one
        self._producers: list[ProducerCore] = []
        self._transactional: dict[str, TransactionalProducer] = {}
        self._opened: OpenClient | None = None
        self._connections.before_use = self._close_with_loop

    def kept_by(self, loop: asyncio.AbstractEventLoop) -> OpenClient:
        """What closes the client if the application does not, for one that has a loop in a thread of its own."""
        self._connections.before_use = None
        self._opened = OpenClient(self, loop, has_thread=True)
        return self._opened

    def _close_with_loop(self) -> None:
        self._opened = OpenClient(self, asyncio.get_running_loop(), has_thread=False)
        self._opened.watch_loop()

    def direct(self) -> DirectPublisher:
        """A publisher for a thread without an event loop."""
        return DirectPublisher(self._connections, self._clock, telemetry=self._telemetry)

    def lines(self) -> ConnectionPool:
        """What threads without an event loop scan over."""
        return ConnectionPool(self._connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self.leave(error)

    async def close(self) -> None:
        """Flush what producers have, abort open transactions, leave groups and hang up."""
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        """Close at the end of a block. What could not be stored is raised, or noted on the error that leaves it."""
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
        """What producers were given that is not stored now, as far as the application was not told."""
        unstored = Unstored()
        for producer in self._producers:
            unstored.add(producer.unstored())
        return unstored

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
        asked = verbs.CreateTopicRequest(name, partitions, _settings(settings), replication_factor)
        try:
            return await self._ask(Verb.CREATE_TOPIC, asked, TopicState, is_repeatable=exist_ok)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.describe_topic(name)

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic with all that is in it."""
        try:
            await self._ask(Verb.DELETE_TOPIC, verbs.TopicRequest(name), verbs.Empty, is_repeatable=missing_ok)
        except TopicNotFound:
            if not missing_ok:
                raise
        finally:
            self._connections.forget_topic(name)

    async def alter_topic(self, name: str, changes: Mapping[str, object] | None = None, **settings: Any) -> TopicState:
        """Change settings of a topic; None resets one to its default."""
        asked = verbs.AlterTopicRequest(name, _settings({**(changes or {}), **settings}))
        altered = await self._ask(Verb.ALTER_TOPIC, asked, TopicState)
        self._connections.forget_topic(name)
        return altered

    async def health(self) -> NodeHealth:
        """How the broker is, aspect by aspect, and how much room its disk has."""
        return await self._call("node.health", NodeHealth)

    async def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""

        async def attempt() -> list[str]:
            session = await self._connections.any()
            _, names = await session.ask_for_payload(Verb.LIST_TOPICS, verbs.ListTopicsRequest(internal), verbs.Empty)
            return _decode_names(names)

        return await self._connections.retrying(attempt)

    async def describe_topic(self, name: str) -> TopicState:
        """A topic with its settings and the ends of its partitions."""
        return await self._ask(Verb.DESCRIBE_TOPIC, verbs.TopicRequest(name), TopicState)

    async def offsets(self, topic: str, *, time: Time = "latest") -> list[int]:
        """By partition, the first offset at or after a time; `"earliest"` or `"latest"` (the end) are times, too."""
        if time in ("earliest", "latest"):
            asked = verbs.OffsetsRequest(topic, None, str(time))
        else:
            asked = verbs.OffsetsRequest(topic, self._time_ns(time, "time"))
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
        items = messages.several(items)
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
            ),
            is_own=True,
        )

    # --- transactions --------------------------------------------------------------------------

    def transaction(
        self, transactional_id: str, *, timeout: Duration = "60s", marker: str | None = None
    ) -> AsyncTransaction:
        """Messages and acks that count together: `async with gq.transaction("billing-1") as tx` commits at the end, and
        aborts when an exception leaves the block. What has a `marker` is committed once.
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
        compression: str | None = None,
        job: str | None = None,
        run: str = "",
    ) -> AsyncStaging:
        """Messages that another client commits: `async with gq.stage("job/7") as staging` stores what is added, hidden,
        and `staging.prepare()` returns the owner to name for the commit. `rate` is in messages per second.

        While the block is open the `timeout` starts anew by itself, so it counts from `prepare`. Tasks that name the
        same `job` and `run` keep each other alive, and what earlier runs of the job have left open is aborted.
        """
        config = ProducerConfig(
            acks="none", compression=compression, delivery_timeout_ns=self._timeout_ns, all_or_none=True
        )
        core = self._new_producer(config, keep=False)
        staging = AsyncStaging(
            TransactionalProducer(transactional_id, core, self._call, self._send),
            self._call,
            timeout_ms=_milliseconds(timeout, "timeout"),
            marker=marker,
            rate=rate,
            job=job,
            run=run,
        )
        self._connections.close_first(staging)
        return staging

    async def commit_staged(
        self, owners: Iterable[TransactionOwner], *, marker: str | None = None, replaces: str | None = None
    ) -> TransactionOutcome:
        """Let all that they have prepared be seen, in one step, and once per marker. One that it `replaces` need not be
        remembered any more.
        """
        given = list(owners)
        if not given:
            raise InvalidRequest("nobody has staged anything", path="owners")
        arguments = {"owner": given[0], "together": given[1:], "marker": marker, "replaces": replaces}
        return await self._call("transactions.commit", TransactionOutcome, **arguments)

    async def abort_staged(self, owners: Iterable[TransactionOwner]) -> None:
        """Let nothing that they have prepared ever be seen. What is over already stays as it is."""
        for owner in owners:
            with suppress(InvalidTransactionState, ProducerError):
                await self._call("transactions.abort", TransactionOutcome, owner=owner)

    def keep_staged(self, job: str, *, run: str, timeout: Duration = STAGED_TIMEOUT) -> AsyncKeeping:
        """While its block is open, nothing that the run of the job has staged with this `timeout` times out."""

        async def beat() -> None:
            await self._call("transactions.keep_job", int, job=job, run=run)

        keeping = AsyncKeeping(beat, _milliseconds(timeout, "timeout"))
        self._connections.close_first(keeping)
        return keeping

    async def abort_staged_job(self, job: str, *, run: str | None = None) -> int:
        """Abort all that a run of the job has staged, or all of its runs, with or without `prepare`: how many
        transactions that were. A task of such a run that comes late is refused.
        """
        return await self._call("transactions.abort_job", int, job=job, run=run)

    async def transactions(self) -> list[TransactionInfo]:
        """The transactions that are open, the oldest first."""
        return await self._call("transactions.list", list[TransactionInfo])

    async def describe_transaction(self, transaction_id: str) -> TransactionInfo:
        """One that is open."""
        return await self._call("transactions.describe", TransactionInfo, transaction_id=transaction_id)

    async def abort_transaction(self, transaction_id: str) -> TransactionOutcome:
        """End somebody else's transaction: nothing of it is ever seen."""
        return await self._call("transactions.abort_by_admin", TransactionOutcome, transaction_id=transaction_id)

    async def transaction_stats(self) -> TransactionStats:
        """Transactions in numbers."""
        return await self._call("transactions.stats", TransactionStats)

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
        on_damage: OnDamage = "warn",
    ) -> AsyncMessages:
        """The messages that are there now, from an offset or a time on, in order within each partition.

        Messages that cannot be read are passed over: with a `DataLossWarning`, with `on_damage="raise"` as a
        `CorruptRecord`, with `"skip"` silently.
        """
        _check_range(offset, limit)
        check_on_damage(on_damage)
        return Read(
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
        isolation: str = "read_committed",
        delayed: str = "due",
        without: Sequence[str] = (),
        read_bytes: int = SCAN_BYTES,
        on_damage: OnDamage = "warn",
    ) -> AsyncScan:
        """Encoded records of a range, for those who decode many at once; `delayed="include"` takes what is not due yet,
        too. Without "key", "value" or "headers", which are empty then, less has to come over the wire. Damage is in
        the `gaps` of each part, whatever `on_damage` says.
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

    async def scan_pieces(
        self, topic: str, partition: int, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[Piece]:
        """The range cut into pieces of about so many bytes, without a gap."""
        return await self._call(
            "scans.pieces",
            list[Piece],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            piece_bytes=piece_bytes,
        )

    async def hidden_ranges(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        isolation: str = "read_committed",
        delayed: str = "due",
    ) -> list[HiddenRange]:
        """What a scan of the range passes over, besides control records: for those who read the files of the log."""
        return await self._call(
            "scans.hidden",
            list[HiddenRange],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            isolation=isolation,
            delayed=delayed,
        )

    async def rescheduled_times(self, topic: str, partition: int, start_offset: int, end_offset: int) -> list[DueTime]:
        """The messages of the range that were rescheduled, by offset: a record keeps the time of its publisher."""
        return await self._call(
            "scans.rescheduled",
            list[DueTime],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
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
        on_damage: OnDamage = "warn",
    ) -> AsyncMessages:
        """The messages that come from now on (`start="earliest"`: all of them), like `tail -f`; `on_damage` as for
        `read`.
        """
        _check_range(offset or 0, limit)
        check_on_damage(on_damage)
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
            on_damage=on_damage,
        )

    # --- groups --------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        mode: str = "partitioned",
        visibility: Duration | None = None,
        max_in_flight: int | None = None,
        start: str = "earliest",
        ack: str = "each",
        auto_extend: bool = True,
        protocol: str = "cooperative",
        assignor: str = "sticky",
        session_timeout: Duration = "30s",
        member_id: str | None = None,
        auto_commit_interval: Duration = "5s",
    ) -> AsyncConsumer:
        """A member of the group. It joins with its first poll, and leaves with `close`.

        `ack="auto"` commits positions every `auto_commit_interval`, up to what came before the last poll.

        With a `member_id` of its own it keeps its partitions over a restart. Whoever comes under the same id later
        takes its place.
        """
        client_id = self._connections.client_id or "consumer"
        config = ConsumerConfig(
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            group=group,
            client_id=client_id,
            member_id=f"{client_id[:CLIENT_ID_SHOWN_MAX]}-{token_hex(6)}" if member_id is None else member_id,
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
        stop: str | None = None,
        limit: int | None = None,
        idle: Duration | None = None,
        batch: int = 100,
        mode: str = "partitioned",
        visibility: Duration | None = None,
        max_in_flight: int | None = None,
        start: str = "earliest",
        ack: str = "each",
        auto_extend: bool = True,
        member_id: str | None = None,
        auto_commit_interval: Duration = "5s",
    ) -> AsyncConsumption:
        """The messages of a group, one by one and for ever: `async with message` acknowledges each.

        `stop="empty"` ends when there is nothing left, `idle` when nothing came for so long, `limit` after so many.
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
        return AsyncConsumption(consumer, Limits(stop, limit, idle, batch))

    async def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return await self._call("groups.names", list[str])

    async def describe_group(self, group: str) -> GroupInfo:
        """A group with its members, and what they have."""
        return await self._call("groups.describe", GroupInfo, group=group)

    async def group_positions(self, group: str, *, topic: str | None = None) -> list[Position]:
        """Where a group stands in each partition, and how far that is behind."""
        return await self._call("groups.positions", list[Position], group=group, topic=topic)

    async def group_done_above(self, group: str, *, topic: str | None = None) -> list[DoneAbove]:
        """What a group has done above its positions, as where a delayed message is still to come."""
        return await self._call("groups.done_above", list[DoneAbove], group=group, topic=topic)

    async def commit_group(
        self,
        group: str,
        positions: Mapping[tuple[str, int], int],
        *,
        pending: Mapping[tuple[str, int], Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        """Set where a group goes on, by topic and partition, for one that reads without members.

        Delayed messages below that are not due are left to it, unless `pending` says what is: all is done but these
        ranges [first, end).
        """
        commits = [
            PositionCommit(
                topic=topic,
                partition=partition,
                offset=offset,
                pending=None if pending is None else list(pending.get((topic, partition), ())),
            )
            for (topic, partition), offset in positions.items()
        ]
        await self._call("groups.commit", list[PositionCommit], group=group, commits=commits)

    async def reset_group(
        self,
        group: str,
        to: str | int | datetime,
        *,
        topic: str | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[PositionReset]:
        """Set positions: `"earliest"`, `"latest"`, an offset, or a time. Leases on the partitions end."""
        arguments: dict[str, object] = {"topic": topic, "partition": partition, "dry_run": dry_run}
        if to in ("earliest", "latest"):
            arguments["strategy"] = to
        elif isinstance(to, int):
            arguments.update(strategy="offset", offset=to)
        else:
            arguments.update(strategy="timestamp", time_ns=self._time_ns(to, "timestamp"))
        return await self._call("groups.reset", list[PositionReset], group=group, **arguments)

    async def delete_group(self, group: str) -> None:
        """Put all members out and drop the positions."""
        await self._call("groups.delete", None, group=group)

    async def blocked_keys(self, group: str) -> list[BlockedKey]:
        """Which message of a key-shared group holds back which key."""
        return await self._call("groups.blocked", list[BlockedKey], group=group)

    async def rebalances(self, group: str | None = None) -> RebalanceReport:
        """How the rebalances of a group, or of all, went."""
        return await self._call("groups.rebalance_stats", RebalanceReport, group=group)

    async def lanes(self, *, topic: str | None = None, group: str | None = None) -> list[LaneReport]:
        """What is in which lane, partition by partition."""
        return await self._call("groups.lanes", list[LaneReport], topic=topic, group=group)

    # --- delays --------------------------------------------------------------------------------

    async def delayed(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        state: str = "pending",
        skip: int = 0,
        limit: int = 100,
    ) -> list[DelayedMessage]:
        """Delayed messages by due time; those that wait or, with `state`, were delivered, cancelled or expired."""
        return await self._call(
            "delays.list",
            list[DelayedMessage],
            topic=topic,
            partition=partition,
            key=messages.key_bytes(key),
            state=state,
            skip=skip,
            limit=limit,
        )

    async def cancel(
        self, message: Published | DelayedMessage | str, *, key: bytes | str | None = None
    ) -> list[DelayedMessage]:
        """Never deliver a delayed message; with a topic and a key, all that wait under that key."""
        return await self._call("delays.cancel", list[DelayedMessage], **_which(message, key))

    async def cancel_many(self, topic: str, partition: int, offsets: Iterable[int]) -> list[DelayedMessage]:
        """Never deliver these messages of one partition; those that are not waiting any more are passed over."""
        return await self._call(
            "delays.cancel", list[DelayedMessage], topic=topic, partition=partition, offsets=list(offsets)
        )

    async def reschedule(
        self,
        message: Published | DelayedMessage | str,
        *,
        key: bytes | str | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver a delayed message at another time; with a topic and a key, all that wait under that key."""
        due_ns = self._due_ns(delay, deliver_at)
        return await self._call("delays.reschedule", list[DelayedMessage], deliver_at_ns=due_ns, **_which(message, key))

    async def reschedule_many(
        self,
        topic: str,
        partition: int,
        offsets: Iterable[int],
        *,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver these messages of one partition at another time; those that wait no longer are passed over."""
        return await self._call(
            "delays.reschedule",
            list[DelayedMessage],
            topic=topic,
            deliver_at_ns=self._due_ns(delay, deliver_at),
            partition=partition,
            offsets=list(offsets),
        )

    async def delay_stats(self) -> DelayReport:
        """Delays in numbers."""
        return await self._call("delays.stats", DelayReport)

    async def schedule(
        self,
        topic: str,
        value: Any,
        *,
        name: str,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catch_up: str = "skip",
        start: Time | None = None,
        end: Time | None = None,
        paused: bool = False,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        ttl: Duration | None = None,
        exist_ok: bool = False,
    ) -> ScheduleInfo:
        """Publish a message again and again: `cron="0 9 * * MON-FRI"`, or `every="15m"`.

        With `exist_ok` a schedule of that name stays as it is, and is returned.
        """
        now_ns = self._clock.wall_ns()
        made = messages.message(value, key, priority, headers, None, None, None, False, now_ns=now_ns)
        try:
            return await self._call(
                "schedules.create",
                ScheduleInfo,
                topic=topic,
                name=name,
                message=_recurring(made, partition),
                cron=cron,
                every_ns=None if every is None else messages.asked_duration_ns(every, "every"),
                timezone=timezone,
                catch_up=catch_up,
                start_ns=self._maybe_time_ns(start, "start"),
                end_ns=self._maybe_time_ns(end, "end"),
                ttl_ns=None if ttl is None else messages.ttl_ns(ttl),
                paused=paused,
            )
        except AlreadyExists:
            if not exist_ok:
                raise
            return await self.describe_schedule(topic, name)

    async def schedules(self, topic: str) -> list[ScheduleInfo]:
        """The recurring messages of a topic."""
        return await self._call("schedules.list", list[ScheduleInfo], topic=topic)

    async def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """A recurring message, with its last runs."""
        return await self._call("schedules.get", ScheduleInfo, topic=topic, name=name)

    async def delete_schedule(self, topic: str, name: str) -> None:
        """Publish it no more."""
        await self._call("schedules.delete", None, topic=topic, name=name)

    async def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Do not publish it until it is resumed."""
        return await self._call("schedules.pause", ScheduleInfo, topic=topic, name=name)

    async def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish it again, from its next time on."""
        return await self._call("schedules.resume", ScheduleInfo, topic=topic, name=name)

    async def run_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish it now, once."""
        return await self._call("schedules.run", ScheduleInfo, topic=topic, name=name)

    # --- dead letters --------------------------------------------------------------------------

    async def dead_letter_queues(self) -> list[DeadLetterQueue]:
        """The topics that have dead letters, in numbers."""
        return await self._call("dead_letters.queues", list[DeadLetterQueue])

    async def describe_dead_letters(self, topic: str) -> DeadLetterQueue:
        """The dead letters of a topic, in numbers."""
        return await self._call("dead_letters.describe", DeadLetterQueue, topic=topic)

    async def dead_letters(
        self, topic: str, *, where: Mapping[str, Any] | None = None, skip: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """The dead letters of a topic; `where` as for `redrive`."""
        wanted = self._filter(where)
        return await self._call(
            "dead_letters.list", list[DeadLetter], topic=topic, wanted=wanted, skip=skip, limit=limit
        )

    async def redrive(
        self,
        topic: str,
        *,
        where: Mapping[str, Any] | None = None,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: Literal["group", "all"] | None = None,
    ) -> RedriveInfo:
        """Put dead letters back: `where={"reason": "TIMEOUT", "group": "billing", "key_prefix": "eu-"}`.

        Each goes only to the group that gave it up; `to="all"` delivers it to all groups. That is the default if
        `target_topic` is another topic, whose groups have not had the messages.
        """
        return await self._call(
            "dead_letters.redrive",
            RedriveInfo,
            topic=topic,
            wanted=self._filter(where),
            rate=rate,
            limit=limit,
            target_topic=target_topic,
            max_redrives=max_redrives,
            to=to,
        )

    async def plan_redrive(
        self,
        topic: str,
        *,
        where: Mapping[str, Any] | None = None,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: Literal["group", "all"] | None = None,
    ) -> RedrivePlan:
        """What `redrive` would do."""
        return await self._call(
            "dead_letters.plan",
            RedrivePlan,
            topic=topic,
            wanted=self._filter(where),
            limit=limit,
            target_topic=target_topic,
            max_redrives=max_redrives,
            to=to,
        )

    async def describe_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """How far a redrive is."""
        return await self._call("dead_letters.redrive_info", RedriveInfo, topic=topic, redrive_id=redrive_id)

    async def stop_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """Put back no more."""
        return await self._call("dead_letters.stop_redrive", RedriveInfo, topic=topic, redrive_id=redrive_id)

    # --- schemas -------------------------------------------------------------------------------

    async def register_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: str | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
    ) -> SchemaInfo:
        """Make the schema the newest version of the subject; one that it has already stays what it is.

        Without a type, what parses as Avro is Avro and all else JSON Schema. A reference is (name, subject, version).
        """
        new = _new_schema(schema, type, references)
        return await self._call("schemas.register", SchemaInfo, subject=subject, new=new, normalize=normalize)

    async def schema(
        self, id: int | None = None, *, subject: str | None = None, version: int | str = "latest", deleted: bool = False
    ) -> SchemaInfo:
        """A schema by its id, or the version of a subject; those that were deleted if asked for."""
        if id is not None:
            return await self._call("schemas.by_id", SchemaInfo, schema_id=id, subject=subject)
        if subject is None:
            raise InvalidRequest("either id or subject is required", path="subject")
        return await self._call("schemas.get", SchemaInfo, subject=subject, version=str(version), deleted=deleted)

    async def lookup_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: str | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
        deleted: bool = False,
    ) -> SchemaInfo:
        """The version of the subject that has this schema."""
        new = _new_schema(schema, type, references)
        return await self._call(
            "schemas.lookup", SchemaInfo, subject=subject, new=new, normalize=normalize, deleted=deleted
        )

    async def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """The names of the subjects, sorted; those that were deleted, too, if asked for."""
        return await self._call("schemas.subjects", list[str], prefix=prefix, deleted=deleted)

    async def schema_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject; those that were deleted, too, if asked for."""
        return await self._call("schemas.versions", list[int], subject=subject, deleted=deleted)

    async def check_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: str | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        version: int | str | None = None,
        normalize: bool = False,
    ) -> Compatibility:
        """Whether the schema could be registered, and each reason why not; against one version if that is given."""
        return await self._call(
            "schemas.compatibility",
            Compatibility,
            subject=subject,
            new=_new_schema(schema, type, references),
            version=None if version is None else str(version),
            normalize=normalize,
        )

    async def delete_schema(
        self, subject: str, version: int | str | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete a version, or all of the subject; for good only if `permanent`, and deleted before. Returns which."""
        if version is None:
            return await self._call("schemas.delete_subject", list[int], subject=subject, permanent=permanent)
        deleted = await self._call(
            "schemas.delete_version", int, subject=subject, version=str(version), permanent=permanent
        )
        return [deleted]

    async def schema_config(self, subject: str | None = None) -> str:
        """The compatibility level of a subject, which is that of all unless it has its own."""
        return await self._call("schemas.level", str, subject=subject, default_to_global=True)

    async def set_schema_config(self, subject: str | None, level: str | None) -> str:
        """Set the compatibility level of a subject, or of those that have none; None resets it and returns the old."""
        if level is None:
            return await self._call("schemas.delete_level", str, subject=subject)
        return await self._call("schemas.set_level", str, subject=subject, level=level)

    async def schema_policy(self, subject: str | None = None) -> str:
        """How strictly JSON Schemas are compared, STRICT or LENIENT; the global one unless the subject has its own."""
        return await self._call("schemas.policy", str, subject=subject, default_to_global=True) or "STRICT"

    async def set_schema_policy(self, subject: str | None, policy: str | None) -> None:
        """Set the compatibility policy of a subject, or of subjects that have none; None resets it."""
        await self._call("schemas.set_policy", str, subject=subject, policy=policy)

    async def schema_mode(self, subject: str | None = None) -> str:
        """READWRITE, READONLY or IMPORT; that of all unless the subject has its own."""
        return await self._call("schemas.mode", str, subject=subject, default_to_global=True)

    async def set_schema_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> str:
        """Set the mode of a subject, or of those that have none; None resets it and returns the old."""
        if mode is None:
            return await self._call("schemas.delete_mode", str, subject=subject)
        return await self._call("schemas.set_mode", str, subject=subject, mode=mode, force=force)

    async def validate(self, topic: str, values: Iterable[Any]) -> list[str | None]:
        """What is wrong with each value, if it were published to the topic; None where nothing is."""
        encoded = [messages.value_bytes(value) for value in values]
        return await self._call("schemas.check", list[str | None], topic=topic, values=encoded)

    async def schema_stats(self) -> SchemaStats:
        """The registry in numbers."""
        return await self._call("schemas.stats", SchemaStats)

    # --- traces --------------------------------------------------------------------------------

    async def trace(self, which: str | Message | Published | tuple[str, int, int]) -> Trace:
        """What happened to a message: by its trace id, or the message itself, or where it is."""
        if isinstance(which, Message):
            which = which.trace.trace_id
        if isinstance(which, str):
            return await self._call("traces.get", Trace, trace_id=which)
        topic, partition, offset = which[:3]
        found = await self.search_traces(topic=topic, partition=partition, offset=offset, limit=1)
        if not found:
            raise NotFound(f"trace of {topic}-{partition} @ {offset}")
        return await self._call("traces.get", Trace, trace_id=found[0].trace_id)

    async def traces(self, *, limit: int = 100) -> list[Trace]:
        """The messages to which something happened last, newest first, without their spans."""
        return await self._call("traces.recent", list[Trace], limit=limit)

    async def search_traces(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        offset: int | None = None,
        key: bytes | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        status: str | None = None,
        slower_than: Duration | None = None,
        limit: int = 100,
    ) -> list[Trace]:
        """The traces for which all holds that is given, newest first; `status` is that of a trace, or its outcome."""
        query = TraceQuery(
            topic=topic,
            partition=partition,
            group=group,
            offset=offset,
            key=messages.key_bytes(key),
            start_ns=self._maybe_time_ns(since, "since"),
            end_ns=self._maybe_time_ns(until, "until"),
            status=status,
            slower_than_ns=None if slower_than is None else messages.asked_duration_ns(slower_than, "slower_than"),
            limit=limit,
        )
        return await self._call("traces.search", list[Trace], query=query)

    async def trace_stats(self) -> TraceStats:
        """Traces in numbers."""
        return await self._call("traces.stats", TraceStats)

    # --- inside --------------------------------------------------------------------------------

    async def _call(self, verb: str, answer_type: type[T] | None, **arguments: object) -> T:
        """The answer to one of the many verbs that need no frame of their own."""
        payload = _encode_arguments(verb, arguments)

        async def attempt() -> T:
            session = await self._connections.any()
            frame = await session.ask_frame(Verb.CALL, verbs.CallRequest(verb), payload)
            return msgspec.msgpack.decode(frame.payload, type=answer_type)

        return await self._connections.retrying(attempt, only_unsent=verb in _NOT_REPEATABLE)

    def _send(self, verb: str, answer_type: type[T], **arguments: object) -> "asyncio.Future[T] | None":
        """The same, without waiting: it goes out behind what producers have sent. None if there is no connection."""
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

        session.send(Verb.CALL, verbs.CallRequest(verb), _encode_arguments(verb, arguments), answered, in_time=True)
        return future

    def _filter(self, where: Mapping[str, Any] | None) -> DeadLetterFilter:
        """The filter as the broker takes it."""
        given = dict(where or {})
        for name in given:
            if name not in _FILTER_FIELDS:
                reason = f"unknown filter {name!r}: {suggestion(str(name), _FILTER_FIELDS)}"
                raise InvalidRequest(reason, path=f"where.{name}", nearest=nearest(str(name), _FILTER_FIELDS))
        for name in ("key", "key_prefix"):
            if name in given:
                given[name] = messages.key_bytes(given[name])
        for name in ("from_time", "to_time"):
            if name in given:
                given[f"{name}_ns"] = self._time_ns(given.pop(name), name)
        if "header" in given:
            given["headers"] = given.pop("header")
        return DeadLetterFilter(**given)

    async def _ask(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], *, is_repeatable: bool = True) -> M:
        async def attempt() -> M:
            session = await self._connections.any()
            return await session.ask(verb, meta, answer_type)

        return await self._connections.retrying(attempt, only_unsent=not is_repeatable)

    def _single_producer(self) -> ProducerCore:
        if self._single is None:
            self._single = self._new_producer(ProducerConfig(linger_ns=0, delivery_timeout_ns=self._timeout_ns))
        return self._single

    def _transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """The one of that id; where there are many, one that was not used lately makes room."""
        producer = self._transactional.pop(transactional_id, None)
        if producer is None:
            if len(self._transactional) >= TRANSACTIONAL_MAX:
                idle = [name for name, one in self._transactional.items() if not one.is_busy]
                for name in idle[:1]:
                    del self._transactional[name]
            config = ProducerConfig(batch_count=1_000, batch_bytes=256 * 1024, delivery_timeout_ns=self._timeout_ns)
            core = self._new_producer(config, keep=False)
            producer = TransactionalProducer(transactional_id, core, self._call, self._send)
        self._transactional[transactional_id] = producer
        return producer

    def _many_producer(self) -> ProducerCore:
        return self._new_producer(
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

    def _new_producer(self, config: ProducerConfig, *, keep: bool = True) -> ProducerCore:
        core = ProducerCore(
            self._connections,
            config,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            telemetry=self._telemetry,
        )
        if keep:
            self._producers = [producer for producer in self._producers if not producer.is_closed]
            self._producers.append(core)
        return core

    def _due_ns(self, delay: Duration | None, deliver_at: Time | None) -> int:
        now_ns = self._clock.wall_ns()
        if delay is not None and deliver_at is None:
            return now_ns + messages.asked_delay_ns(delay)
        if deliver_at is None or delay is not None:
            raise InvalidRequest("one of delay and deliver_at is required, and not both", path="delay")
        return messages.asked_time_ns(deliver_at, "deliver_at", now_ns) or 0

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


def _recurring(message: NewMessage, partition: int | None) -> RecurringMessage:
    headers = {
        name: value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        for name, value in (message.headers or {}).items()
    }
    return RecurringMessage(message.value, message.key, headers, partition, int(message.priority))


def _new_schema(
    schema: str | Mapping[str, Any], type: str | None, references: Iterable[SchemaReference | tuple[str, str, int]]
) -> NewSchema:
    """The schema as the broker takes it."""
    given = [
        one if isinstance(one, SchemaReference) else SchemaReference(name=one[0], subject=one[1], version=one[2])
        for one in references
    ]
    return NewSchema(schema if isinstance(schema, str) else _json_text(schema), type, given)


def _json_text(document: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(document).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"invalid schema: {error}", path="schema") from None


def _encode_arguments(verb: str, arguments: Mapping[str, object]) -> bytes:
    try:
        return verbs.encode(arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{verb}: {error}") from None


def _milliseconds(value: Duration, name: str) -> int:
    found_ns = messages.asked_duration_ns(value, name)
    if found_ns <= 0:
        raise InvalidRequest(f"invalid {name} {value!r}: must be more than 0", path=name)
    return max(1, found_ns // MS)


def _which(message: Published | DelayedMessage | str, key: bytes | str | None) -> dict[str, object]:
    """Which delayed messages are meant."""
    if isinstance(message, str):
        if key is None:
            raise InvalidRequest("a topic needs the key of the messages that are meant", path="key")
        return {"topic": message, "key": messages.key_bytes(key)}
    return {"topic": message.topic, "partition": message.partition, "offset": message.offset}


def _check_range(offset: object, limit: object) -> None:
    if not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequest(f"invalid offset {offset!r}: must be 0 or more", path="offset")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(f"invalid limit {limit!r}: must be 0 or more", path="limit")
