"""The client, in its synchronous form. Derived from client.py by scripts/derive-client; do not edit it by hand.

Calls are handed to an event loop in a thread of the client's own. All threads may share a client.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self, Unpack

from goqueue.client.client import AsyncClient
from goqueue.client.consumer import Consumer, Consumption
from goqueue.client.damage import OnDamage
from goqueue.client.handles import Published
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import several
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
from goqueue.client.producer import Producer
from goqueue.client.reading import AsyncMessages
from goqueue.client.received import Message
from goqueue.client.scanning import SCAN_BYTES, Scan
from goqueue.client.staging import STAGED_TIMEOUT, Keeping, Staging
from goqueue.client.sync_admin import (
    ClusterAdmin,
    DeadLetterAdmin,
    DelayAdmin,
    GroupAdmin,
    SchemaAdmin,
    TopicAdmin,
    TraceAdmin,
    TransactionAdmin,
)
from goqueue.client.transactions import Transaction
from goqueue.clock import Clock
from goqueue.runtime.entropy import Entropy


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
        """Cancel the requests that are in flight."""
        if not self._loop.is_closed:
            self._loop.run(self._messages.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(TopicAdmin, GroupAdmin, TransactionAdmin, DelayAdmin, DeadLetterAdmin, SchemaAdmin, TraceAdmin):
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
        self._loop = LoopThread()
        try:
            self._client = AsyncClient(
                server,
                api_key=api_key,
                client_id=client_id,
                timeout=timeout,
                connect_timeout=connect_timeout,
                clock=clock,
                telemetry=telemetry,
                entropy=entropy,
            )
        except BaseException:
            self._loop.close()
            raise
        self._blocking_publisher = self._client.blocking_publisher()
        self._connection_pool = self._client.connection_pool()
        self._loop.keep(self._client.kept_by, self._blocking_publisher.close, self._connection_pool.close)

    @property
    def cluster(self) -> ClusterAdmin:
        """The nodes, their health, and who leads which partition."""
        return ClusterAdmin(self._client.cluster, self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        if self._loop.is_closed:
            return
        self._connection_pool.close()
        try:
            self._loop.run(self._client.leave(error))
        finally:
            self._blocking_publisher.close()
            self._loop.close()

    def close(self) -> None:
        """Flush what producers have, abort open transactions, leave groups and hang up."""
        self._leave(None)

    @shows(MessageOptions)
    def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish one message and return where it is, once the broker has stored it as `acks` of its topic demands."""
        published = self._blocking_publisher.publish(topic, value, **options)
        return self._loop.run(self._client.publish(topic, value, **options)) if published is None else published

    def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs. Those of one partition are stored together or not at all."""
        return self._loop.run(self._client.publish_many(topic, several(items)))

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
    ) -> Producer:
        """A producer that collects messages in batches."""
        return self._loop.call(
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
        ).blocking(self._loop.run)

    def transaction(
        self, transactional_id: str, *, timeout: Duration = "60s", marker: str | None = None
    ) -> Transaction:
        """Messages and acks that are committed together: `with gq.transaction("billing-1") as tx` commits at the
        end, and aborts when an exception leaves the block. A transaction with a `marker` is committed once.
        """
        return self._loop.call(
            lambda: self._client.transaction(transactional_id, timeout=timeout, marker=marker)
        ).blocking(self._loop.run)

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
    ) -> Staging:
        """Messages that another client commits: `with gq.stage("job/7") as staging` stores what is added, hidden
        from readers, and `staging.prepare()` returns the owner for `commit_staged`. `rate` is in messages per second.

        Heartbeats restart the `timeout` while the block is open, so it counts from `prepare`. Tasks that name the same
        `job` and `run` keep each other alive; transactions that earlier runs of the job left open are aborted.
        """
        return self._loop.call(
            lambda: self._client.stage(
                transactional_id, timeout=timeout, marker=marker, rate=rate, compression=compression, job=job, run=run
            )
        ).blocking(self._loop.run)

    def keep_staged(self, job: str, *, run: str, timeout: Duration = STAGED_TIMEOUT) -> Keeping:
        """While its block is open, nothing that the run of the job has staged with this `timeout` times out."""
        return self._loop.call(lambda: self._client.keep_staged(job, run=run, timeout=timeout)).blocking(self._loop.run)

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
    ) -> Messages:
        """The messages that the topic holds now, from an offset or a time on, in order within each partition.

        Messages that cannot be read are skipped with a `DataLossWarning`; `on_damage="raise"` raises `CorruptRecord`
        instead, `"skip"` skips them silently.
        """
        return Messages(
            self._client.read(
                topic,
                partition=partition,
                offset=offset,
                from_time=from_time,
                to_time=to_time,
                limit=limit,
                isolation=isolation,
                on_damage=on_damage,
            ),
            self._loop,
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
    ) -> Scan:
        """Encoded records of a range, for readers that decode many at once; `delayed="include"` includes messages that
        are not due yet. Fields named in `without` arrive empty, which saves bandwidth. Damage is in the `gaps` of each
        part, whatever `on_damage` says.
        """
        return self._client.scan(
            topic,
            partition,
            start_offset,
            end_offset,
            isolation=isolation,
            delayed=delayed,
            without=without,
            read_bytes=read_bytes,
            on_damage=on_damage,
        ).blocking(self._loop.run, self._connection_pool)

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
    ) -> Messages:
        """The messages that are published from now on (`start="earliest"`: all messages), like `tail -f`; `on_damage`
        as for `read`.
        """
        return Messages(
            self._client.follow(
                topic,
                partition=partition,
                start=start,
                offset=offset,
                from_time=from_time,
                limit=limit,
                isolation=isolation,
                on_damage=on_damage,
            ),
            self._loop,
        )

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
    ) -> Consumer:
        """A member of the group. It joins with its first poll, and leaves with `close`.

        `ack="auto"` commits positions every `auto_commit_interval`, up to the messages before the last poll.

        A member with a `member_id` keeps its partitions over a restart. A consumer that joins under the same id later
        takes its place.
        """
        return self._client.consumer(
            topics,
            group=group,
            mode=mode,
            visibility=visibility,
            max_in_flight=max_in_flight,
            start=start,
            ack=ack,
            auto_extend=auto_extend,
            protocol=protocol,
            assignor=assignor,
            session_timeout=session_timeout,
            member_id=member_id,
            auto_commit_interval=auto_commit_interval,
        ).blocking(self._loop)

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
    ) -> Consumption:
        """The messages of a group, one by one, without an end: `with message` acknowledges each.

        `stop="empty"` ends the loop when no message is left, `idle` when none came for so long, `limit` after so many.
        """
        return self._client.consume(
            topics,
            group=group,
            stop=stop,
            limit=limit,
            idle=idle,
            batch=batch,
            mode=mode,
            visibility=visibility,
            max_in_flight=max_in_flight,
            start=start,
            ack=ack,
            auto_extend=auto_extend,
            member_id=member_id,
            auto_commit_interval=auto_commit_interval,
        ).blocking(self._loop)
