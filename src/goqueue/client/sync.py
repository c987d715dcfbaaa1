"""The client, in its synchronous form. Made by scripts/derive-client from client.py; not edited by hand.

Calls are handed to an event loop in a thread of the client's own. A client may be shared by all threads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self

from goqueue.client.client import AsyncClient
from goqueue.client.consumer import Consumer, Consumption
from goqueue.client.damage import OnDamage
from goqueue.client.handles import Published
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import Duration, Time, several
from goqueue.client.producer import Producer
from goqueue.client.reading import AsyncMessages
from goqueue.client.received import Message
from goqueue.client.scanning import SCAN_BYTES, Scan
from goqueue.client.staging import STAGED_TIMEOUT, Keeping, Staging
from goqueue.client.transactions import Transaction
from goqueue.clock import Clock
from goqueue.record.header import Priority
from goqueue.wire.reports import (
    BlockedKey,
    DeadLetter,
    DeadLetterQueue,
    DelayedMessage,
    DelayReport,
    DoneAbove,
    GroupInfo,
    LaneReport,
    NodeHealth,
    Position,
    PositionReset,
    RebalanceReport,
    RedriveInfo,
    RedrivePlan,
    ScheduleInfo,
)
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece
from goqueue.wire.schema_reports import Compatibility, SchemaInfo, SchemaReference, SchemaStats
from goqueue.wire.trace_reports import Trace, TraceStats
from goqueue.wire.transaction_reports import TransactionInfo, TransactionOutcome, TransactionOwner, TransactionStats
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
            )
        except BaseException:
            self._loop.close()
            raise
        self._direct = self._client.direct()
        self._lines = self._client.lines()
        self._loop.keep(self._client.kept_by, self._direct.close, self._lines.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        if self._loop.is_closed:
            return
        self._lines.close()
        try:
            self._loop.run(self._client.leave(error))
        finally:
            self._direct.close()
            self._loop.close()

    def close(self) -> None:
        """Flush what producers have, abort open transactions, leave groups and hang up."""
        self._leave(None)

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

    def health(self) -> NodeHealth:
        """How the broker is, aspect by aspect, and how much room its disk has."""
        return self._loop.run(self._client.health())

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
        return self._loop.run(self._client.publish_many(topic, several(items)))

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
        """Messages and acks that count together: `with gq.transaction("billing-1") as tx` commits at the end, and
        aborts when an exception leaves the block. What has a `marker` is committed once.
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
        compression: str | None = None,
        job: str | None = None,
        run: str = "",
    ) -> Staging:
        """Messages that another client commits: `with gq.stage("job/7") as staging` stores what is added, hidden,
        and `staging.prepare()` returns the owner to name for the commit. `rate` is in messages per second.

        While the block is open the `timeout` starts anew by itself, so it counts from `prepare`. Tasks that name the
        same `job` and `run` keep each other alive, and what earlier runs of the job have left open is aborted.
        """
        return self._loop.call(
            lambda: self._client.stage(
                transactional_id, timeout=timeout, marker=marker, rate=rate, compression=compression, job=job, run=run
            )
        ).blocking(self._loop.run)

    def commit_staged(
        self, owners: Iterable[TransactionOwner], *, marker: str | None = None, replaces: str | None = None
    ) -> TransactionOutcome:
        """Let all that they have prepared be seen, in one step, and once per marker. One that it `replaces` need not be
        remembered any more.
        """
        return self._loop.run(self._client.commit_staged(several(owners), marker=marker, replaces=replaces))

    def abort_staged(self, owners: Iterable[TransactionOwner]) -> None:
        """Let nothing that they have prepared ever be seen. What is over already stays as it is."""
        self._loop.run(self._client.abort_staged(several(owners)))

    def keep_staged(self, job: str, *, run: str, timeout: Duration = STAGED_TIMEOUT) -> Keeping:
        """While its block is open, nothing that the run of the job has staged with this `timeout` times out."""
        return self._loop.call(lambda: self._client.keep_staged(job, run=run, timeout=timeout)).blocking(self._loop.run)

    def abort_staged_job(self, job: str, *, run: str | None = None) -> int:
        """Abort all that a run of the job has staged, or all of its runs, with or without `prepare`: how many
        transactions that were. A task of such a run that comes late is refused.
        """
        return self._loop.run(self._client.abort_staged_job(job, run=run))

    def transactions(self) -> list[TransactionInfo]:
        """The transactions that are open, the oldest first."""
        return self._loop.run(self._client.transactions())

    def describe_transaction(self, transaction_id: str) -> TransactionInfo:
        """One that is open."""
        return self._loop.run(self._client.describe_transaction(transaction_id))

    def abort_transaction(self, transaction_id: str) -> TransactionOutcome:
        """End somebody else's transaction: nothing of it is ever seen."""
        return self._loop.run(self._client.abort_transaction(transaction_id))

    def transaction_stats(self) -> TransactionStats:
        """Transactions in numbers."""
        return self._loop.run(self._client.transaction_stats())

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
    ) -> Messages:
        """The messages that are there now, from an offset or a time on, in order within each partition.

        Messages that cannot be read are passed over: with a `DataLossWarning`, with `on_damage="raise"` as a
        `CorruptRecord`, with `"skip"` silently.
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
        isolation: str = "read_committed",
        delayed: str = "due",
        without: Sequence[str] = (),
        read_bytes: int = SCAN_BYTES,
        on_damage: OnDamage = "warn",
    ) -> Scan:
        """Encoded records of a range, for those who decode many at once; `delayed="include"` takes what is not due yet,
        too. Without "key", "value" or "headers", which are empty then, less has to come over the wire. Damage is in
        the `gaps` of each part, whatever `on_damage` says.
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
        ).blocking(self._loop.run, self._lines)

    def scan_pieces(
        self, topic: str, partition: int, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[Piece]:
        """The range cut into pieces of about so many bytes, without a gap."""
        return self._loop.run(
            self._client.scan_pieces(topic, partition, start_offset, end_offset, piece_bytes=piece_bytes)
        )

    def hidden_ranges(
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
        return self._loop.run(
            self._client.hidden_ranges(topic, partition, start_offset, end_offset, isolation=isolation, delayed=delayed)
        )

    def rescheduled_times(self, topic: str, partition: int, start_offset: int, end_offset: int) -> list[DueTime]:
        """The messages of the range that were rescheduled, by offset: a record keeps the time of its publisher."""
        return self._loop.run(self._client.rescheduled_times(topic, partition, start_offset, end_offset))

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
    ) -> Messages:
        """The messages that come from now on (`start="earliest"`: all of them), like `tail -f`; `on_damage` as for
        `read`.
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
    ) -> Consumer:
        """A member of the group. It joins with its first poll, and leaves with `close`.

        `ack="auto"` commits positions every `auto_commit_interval`, up to what came before the last poll.

        With a `member_id` of its own it keeps its partitions over a restart. Whoever comes under the same id later
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
    ) -> Consumption:
        """The messages of a group, one by one and for ever: `with message` acknowledges each.

        `stop="empty"` ends when there is nothing left, `idle` when nothing came for so long, `limit` after so many.
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

    def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return self._loop.run(self._client.groups())

    def describe_group(self, group: str) -> GroupInfo:
        """A group with its members, and what they have."""
        return self._loop.run(self._client.describe_group(group))

    def group_positions(self, group: str, *, topic: str | None = None) -> list[Position]:
        """Where a group stands in each partition, and how far that is behind."""
        return self._loop.run(self._client.group_positions(group, topic=topic))

    def group_done_above(self, group: str, *, topic: str | None = None) -> list[DoneAbove]:
        """What a group has done above its positions, as where a delayed message is still to come."""
        return self._loop.run(self._client.group_done_above(group, topic=topic))

    def commit_group(
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
        self._loop.run(self._client.commit_group(group, positions, pending=pending))

    def reset_group(
        self,
        group: str,
        to: str | int | datetime,
        *,
        topic: str | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[PositionReset]:
        """Set positions: `"earliest"`, `"latest"`, an offset, or a time. Leases on the partitions end."""
        return self._loop.run(self._client.reset_group(group, to, topic=topic, partition=partition, dry_run=dry_run))

    def delete_group(self, group: str) -> None:
        """Put all members out and drop the positions."""
        self._loop.run(self._client.delete_group(group))

    def blocked_keys(self, group: str) -> list[BlockedKey]:
        """Which message of a key-shared group holds back which key."""
        return self._loop.run(self._client.blocked_keys(group))

    def rebalances(self, group: str | None = None) -> RebalanceReport:
        """How the rebalances of a group, or of all, went."""
        return self._loop.run(self._client.rebalances(group))

    def lanes(self, *, topic: str | None = None, group: str | None = None) -> list[LaneReport]:
        """What is in which lane, partition by partition."""
        return self._loop.run(self._client.lanes(topic=topic, group=group))

    def delayed(
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
        return self._loop.run(
            self._client.delayed(topic, partition=partition, key=key, state=state, skip=skip, limit=limit)
        )

    def cancel(
        self, message: Published | DelayedMessage | str, *, key: bytes | str | None = None
    ) -> list[DelayedMessage]:
        """Never deliver a delayed message; with a topic and a key, all that wait under that key."""
        return self._loop.run(self._client.cancel(message, key=key))

    def cancel_many(self, topic: str, partition: int, offsets: Iterable[int]) -> list[DelayedMessage]:
        """Never deliver these messages of one partition; those that are not waiting any more are passed over."""
        return self._loop.run(self._client.cancel_many(topic, partition, several(offsets)))

    def reschedule(
        self,
        message: Published | DelayedMessage | str,
        *,
        key: bytes | str | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver a delayed message at another time; with a topic and a key, all that wait under that key."""
        return self._loop.run(self._client.reschedule(message, key=key, delay=delay, deliver_at=deliver_at))

    def reschedule_many(
        self,
        topic: str,
        partition: int,
        offsets: Iterable[int],
        *,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver these messages of one partition at another time; those that wait no longer are passed over."""
        return self._loop.run(
            self._client.reschedule_many(topic, partition, several(offsets), delay=delay, deliver_at=deliver_at)
        )

    def delay_stats(self) -> DelayReport:
        """Delays in numbers."""
        return self._loop.run(self._client.delay_stats())

    def schedule(
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
        return self._loop.run(
            self._client.schedule(
                topic,
                value,
                name=name,
                cron=cron,
                every=every,
                timezone=timezone,
                catch_up=catch_up,
                start=start,
                end=end,
                paused=paused,
                key=key,
                partition=partition,
                priority=priority,
                headers=headers,
                ttl=ttl,
                exist_ok=exist_ok,
            )
        )

    def schedules(self, topic: str) -> list[ScheduleInfo]:
        """The recurring messages of a topic."""
        return self._loop.run(self._client.schedules(topic))

    def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """A recurring message, with its last runs."""
        return self._loop.run(self._client.describe_schedule(topic, name))

    def delete_schedule(self, topic: str, name: str) -> None:
        """Publish it no more."""
        self._loop.run(self._client.delete_schedule(topic, name))

    def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Do not publish it until it is resumed."""
        return self._loop.run(self._client.pause_schedule(topic, name))

    def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish it again, from its next time on."""
        return self._loop.run(self._client.resume_schedule(topic, name))

    def run_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish it now, once."""
        return self._loop.run(self._client.run_schedule(topic, name))

    def dead_letter_queues(self) -> list[DeadLetterQueue]:
        """The topics that have dead letters, in numbers."""
        return self._loop.run(self._client.dead_letter_queues())

    def describe_dead_letters(self, topic: str) -> DeadLetterQueue:
        """The dead letters of a topic, in numbers."""
        return self._loop.run(self._client.describe_dead_letters(topic))

    def dead_letters(
        self, topic: str, *, where: Mapping[str, Any] | None = None, skip: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """The dead letters of a topic; `where` as for `redrive`."""
        return self._loop.run(self._client.dead_letters(topic, where=where, skip=skip, limit=limit))

    def redrive(
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
        return self._loop.run(
            self._client.redrive(
                topic, where=where, rate=rate, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
            )
        )

    def plan_redrive(
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
        return self._loop.run(
            self._client.plan_redrive(
                topic, where=where, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
            )
        )

    def describe_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """How far a redrive is."""
        return self._loop.run(self._client.describe_redrive(topic, redrive_id))

    def stop_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """Put back no more."""
        return self._loop.run(self._client.stop_redrive(topic, redrive_id))

    def register_schema(
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
        return self._loop.run(
            self._client.register_schema(subject, schema, type=type, references=references, normalize=normalize)
        )

    def schema(
        self, id: int | None = None, *, subject: str | None = None, version: int | str = "latest", deleted: bool = False
    ) -> SchemaInfo:
        """A schema by its id, or the version of a subject; those that were deleted if asked for."""
        return self._loop.run(self._client.schema(id, subject=subject, version=version, deleted=deleted))

    def lookup_schema(
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
        return self._loop.run(
            self._client.lookup_schema(
                subject, schema, type=type, references=references, normalize=normalize, deleted=deleted
            )
        )

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """The names of the subjects, sorted; those that were deleted, too, if asked for."""
        return self._loop.run(self._client.subjects(prefix, deleted=deleted))

    def schema_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject; those that were deleted, too, if asked for."""
        return self._loop.run(self._client.schema_versions(subject, deleted=deleted))

    def check_schema(
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
        return self._loop.run(
            self._client.check_schema(
                subject, schema, type=type, references=references, version=version, normalize=normalize
            )
        )

    def delete_schema(self, subject: str, version: int | str | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a version, or all of the subject; for good only if `permanent`, and deleted before. Returns which."""
        return self._loop.run(self._client.delete_schema(subject, version, permanent=permanent))

    def schema_config(self, subject: str | None = None) -> str:
        """The compatibility level of a subject, which is that of all unless it has its own."""
        return self._loop.run(self._client.schema_config(subject))

    def set_schema_config(self, subject: str | None, level: str | None) -> str:
        """Set the compatibility level of a subject, or of those that have none; None resets it and returns the old."""
        return self._loop.run(self._client.set_schema_config(subject, level))

    def schema_policy(self, subject: str | None = None) -> str:
        """How strictly JSON Schemas are compared, STRICT or LENIENT; the global one unless the subject has its own."""
        return self._loop.run(self._client.schema_policy(subject))

    def set_schema_policy(self, subject: str | None, policy: str | None) -> None:
        """Set the compatibility policy of a subject, or of subjects that have none; None resets it."""
        self._loop.run(self._client.set_schema_policy(subject, policy))

    def schema_mode(self, subject: str | None = None) -> str:
        """READWRITE, READONLY or IMPORT; that of all unless the subject has its own."""
        return self._loop.run(self._client.schema_mode(subject))

    def set_schema_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> str:
        """Set the mode of a subject, or of those that have none; None resets it and returns the old."""
        return self._loop.run(self._client.set_schema_mode(subject, mode, force=force))

    def validate(self, topic: str, values: Iterable[Any]) -> list[str | None]:
        """What is wrong with each value, if it were published to the topic; None where nothing is."""
        return self._loop.run(self._client.validate(topic, several(values)))

    def schema_stats(self) -> SchemaStats:
        """The registry in numbers."""
        return self._loop.run(self._client.schema_stats())

    def trace(self, which: str | Message | Published | tuple[str, int, int]) -> Trace:
        """What happened to a message: by its trace id, or the message itself, or where it is."""
        return self._loop.run(self._client.trace(which))

    def traces(self, *, limit: int = 100) -> list[Trace]:
        """The messages to which something happened last, newest first, without their spans."""
        return self._loop.run(self._client.traces(limit=limit))

    def search_traces(
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
        return self._loop.run(
            self._client.search_traces(
                topic=topic,
                partition=partition,
                group=group,
                offset=offset,
                key=key,
                since=since,
                until=until,
                status=status,
                slower_than=slower_than,
                limit=limit,
            )
        )

    def trace_stats(self) -> TraceStats:
        """Traces in numbers."""
        return self._loop.run(self._client.trace_stats())
