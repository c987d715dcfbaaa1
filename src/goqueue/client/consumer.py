"""Consumers: members of a group that poll messages and settle them.

`AsyncConsumer` is for an event loop, `Consumer` for threads without one. Both drive `ConsumerCore`, which knows what to
ask the broker, over a connection (`goqueue.client.consumer_connection`), which knows how.

A loop over a consumer (`consume`) settles in the background: leaving the `with` block of a message notes the ack, which
is sent with others a few milliseconds later, and before the next poll at the latest. What is settled by a call is
settled when the call returns, or it raises.

A loop over a consumer warns once if it is asked for the next message while the last one is not settled: such messages
are delivered again when their lease is over, and end as dead letters.

A consumer leaves its group when it is closed, when its client is, or when the last reference to it is gone. A loop that
is left early releases the messages that it has polled and not yielded: they count as never delivered.
"""

import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from goqueue.client import messages as asked
from goqueue.client.connections import Connections
from goqueue.client.consumer_connection import AsyncConsumerConnection, BlockingConsumerConnection, ConsumerConnection
from goqueue.client.consumer_core import ConsumerConfig, PolledBatch
from goqueue.client.delivered import AsyncDelivered, Delivered
from goqueue.client.loop_thread import LoopThread
from goqueue.client.options import Duration
from goqueue.client.received import Message
from goqueue.client.settling import extension_of, nack_of, reject_of
from goqueue.clock import MS, Clock
from goqueue.errors import Conflict, GoQueueWarning, InvalidRequest
from goqueue.names import TopicPartition
from goqueue.wire.reports import PartitionName, Settlement

POLL_MESSAGES_MAX = 10_000


class ConsumerStanding(NamedTuple):
    """The member that a consumer is in its group, and the positions after everything that it has polled."""

    group: str
    member_id: str
    generation: int | None
    positions: dict[tuple[str, int], int]


def standing_of(consumer: "_Shell") -> ConsumerStanding:
    """The standing of the consumer now."""
    core = consumer._connection.core
    positions = {(topic, partition): offset for (topic, partition), offset in core.positions.items()}
    return ConsumerStanding(core.config.group, core.config.member_id, core.generation, positions)


class _Shell:
    """What both forms of a consumer have in common."""

    _connection: ConsumerConnection
    _last: PolledBatch = PolledBatch([])  # what the last poll has brought

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._connection.core.config.group

    @property
    def member_id(self) -> str:
        """The id in the group."""
        return self._connection.core.config.member_id

    @property
    def partitions(self) -> list[PartitionName]:
        """The partitions that are assigned to it."""
        return list(self._connection.core.partitions)

    def settle_soon(self, messages: Message | Sequence[Message], settlement: Settlement) -> None:
        """Settle in the background; any thread may ask for it."""
        self._connection.settle_soon(messages, settlement)

    def _has_nothing_more(self, limits: "ConsumeLimits") -> bool:
        """Whether a poll that brought nothing is the end of a loop."""
        return limits.ends(self._connection.core.reason)

    def _done_before(self, batch: Sequence[Message], index: int) -> dict[TopicPartition, int] | None:
        """What is done when a loop ends in the middle of a batch, at the last message that it has yielded.

        Messages after that one are released. Without leases the positions say so, and the last message counts as not
        done: the loop ended before the application asked for the next.
        """
        connection = self._connection
        if connection.core.config.ack == "each":
            if not connection.is_closed:
                connection.settle_soon(batch[index + 1 :], Settlement("release"))
            return None
        done = dict(connection.core.positions)
        for message in batch[index:]:
            name = TopicPartition(message.topic, message.partition)
            done[name] = min(done.get(name, message.offset), message.offset)
        return done

    @property
    def _warns_of_unsettled(self) -> bool:
        """Whether its messages have to be settled one by one."""
        return self._connection.core.config.ack == "each"

    def _warn_of_unsettled(self, message: Message, block: str) -> None:
        """The next message is asked for, and this one is not settled."""
        text = (
            f"the next message is asked for while {message.topic}-{message.partition} @ {message.offset} is not "
            f"settled: it will be delivered to group {self.group} again. Do your work inside `{block} message:`, "
            "or call message.ack(); to work on several at a time, use gq.consumer(...).poll()"
        )
        warnings.warn(text, GoQueueWarning, stacklevel=3)

    def __repr__(self) -> str:
        state = (
            "closed" if self._connection.is_closed else "joined" if self._connection.core.is_member else "not joined"
        )
        return f"<{type(self).__name__} {self.member_id} of {self.group}, {state}>"


class AsyncConsumer(_Shell):
    """A member of a group. One task at a time polls; any may settle."""

    _connection: AsyncConsumerConnection

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock) -> None:
        self._arguments = (config, connections, clock)
        self._connection = AsyncConsumerConnection(config, connections, clock)
        self._is_polling = False

    def blocking(self, loop: LoopThread) -> "Consumer":
        """The same for a thread without an event loop."""
        return Consumer(*self._arguments, loop)

    async def join(self) -> None:
        """Join the group now, and not with the first poll."""
        self._connection.check_open()
        self._connection.member.watch()
        if not self._connection.core.is_member:
            await self._connection.drive(self._connection.core.join())

    async def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[AsyncDelivered]:
        """The next messages, as soon as there are any; none if there are none in time."""
        connection = self._connection
        connection.check_open()
        timeout_ms = _poll_arguments(max_messages, timeout)
        if self._is_polling:
            raise Conflict("a consumer belongs to one task at a time, and another one is polling")
        self._is_polling = True
        try:
            connection.member.watch()
            if connection.member.background:
                await connection.member.flush()
            self._last = await connection.drive(
                connection.core.poll(max_messages, timeout_ms, connection, AsyncDelivered)
            )
            return self._last.messages.copy()
        finally:
            self._is_polling = False
            connection.pump_now()

    async def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        if self._last.is_whole(messages):
            await self._connection.drive(self._connection.core.ack_whole(self._last))
        else:
            await self._connection.settle(messages, Settlement("ack"))

    async def nack(
        self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = ""
    ) -> None:
        """Deliver them again, after a backoff or the delay."""
        await self._connection.settle(messages, nack_of(delay, reason))

    async def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Dead-letter them."""
        await self._connection.settle(messages, reject_of(reason))

    async def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        await self._connection.settle(messages, extension_of(by))

    async def commit(
        self, positions: Mapping[tuple[str, int], int] | None = None, *, allow_backwards: bool = False
    ) -> None:
        """Commit the positions after everything that was polled, except of partitions that were revoked since.

        With `positions`, by topic and partition, these are committed instead. One below the committed position is
        ignored; with `allow_backwards` the messages from there on are polled again.
        """
        await self._connection.drive(self._connection.core.commit(positions, allow_backwards=allow_backwards))

    async def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        await self._connection.member.close()

    async def _close_within(self, batch: Sequence[Message], index: int) -> None:
        """Close in the middle of a batch."""
        await self._connection.member.close(self._done_before(batch, index))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConsumption:
    """An endless, or limited, loop over the messages of a consumer, which it closes."""

    def __init__(self, consumer: AsyncConsumer, limits: "ConsumeLimits") -> None:
        self._consumer = consumer
        self._limits = limits

    def blocking(self, loop: LoopThread) -> "Consumption":
        """The same for a thread without an event loop."""
        return Consumption(self._consumer.blocking(loop), self._limits)

    async def __aiter__(self) -> AsyncIterator[AsyncDelivered]:
        consumer, limits, left = self._consumer, self._limits, self._limits.limit
        connection, warns = consumer._connection, consumer._warns_of_unsettled
        try:
            while left is None or left > 0:
                batch = await consumer.poll(limits.count(left), limits.timeout)
                if not batch and consumer._has_nothing_more(limits):
                    return
                for index, message in enumerate(batch):
                    connection.unsettled_id = id(message)
                    try:
                        yield message
                    except BaseException:
                        await consumer._close_within(batch, index)
                        raise
                    if connection.unsettled_id and warns:
                        warns = False
                        consumer._warn_of_unsettled(message, "async with")
                left = None if left is None else left - len(batch)
        finally:
            await consumer.close()


class ConsumeLimits:
    """When a loop over messages ends."""

    def __init__(self, stop: str | None, limit: int | None, idle: Duration | None, batch: int) -> None:
        if stop not in (None, "empty"):
            raise InvalidRequest(f"invalid stop {stop!r}: must be empty", path="stop")
        wanted: object = limit
        if wanted is not None and (not isinstance(wanted, int) or wanted < 0):
            raise InvalidRequest(f"invalid limit {limit!r}: must be 0 or more", path="limit")
        _check_count(batch, "batch")
        if idle is not None:
            asked.asked_duration_ns(idle, "idle")
        self.limit = limit
        self.timeout: Duration = idle if idle is not None else "200ms" if stop else "20s"
        self._has_end = stop is not None or idle is not None
        self._batch = batch

    def ends(self, reason: str) -> bool:
        """Whether nothing came for long enough; `reason` says why."""
        return self._has_end and reason != "rebalancing"

    def count(self, left: int | None) -> int:
        """How many to poll."""
        return self._batch if left is None else max(1, min(self._batch, left))


class Consumer(_Shell):
    """A member of a group, for a thread without an event loop. Belongs to one thread at a time."""

    _connection: BlockingConsumerConnection

    def __init__(self, config: ConsumerConfig, connections: Connections, clock: Clock, loop: LoopThread) -> None:
        self._connection = BlockingConsumerConnection(config, connections, clock, loop)

    def join(self) -> None:
        """Join the group now, and not with the first poll."""
        self._connection.check_open()
        self._connection.watch()
        if not self._connection.core.is_member:
            self._connection.drive(self._connection.core.join())

    def poll(self, max_messages: int = 500, timeout: Duration = "5s") -> list[Delivered]:
        """The next messages, as soon as there are any; none if there are none in time."""
        connection = self._connection
        connection.check_open()
        timeout_ms = _poll_arguments(max_messages, timeout)
        if not connection.is_watched:
            connection.watch()
        if connection.member.background:
            connection.flush()
        try:
            self._last = connection.drive(connection.core.poll(max_messages, timeout_ms, connection, Delivered))
            return self._last.messages.copy()
        finally:
            connection.pump_now()

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """They are done."""
        if self._last.is_whole(messages):
            self._connection.ack_whole(self._last)
        else:
            self._connection.settle(messages, Settlement("ack"))

    def nack(self, messages: Message | Iterable[Message], *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver them again, after a backoff or the delay."""
        self._connection.settle(messages, nack_of(delay, reason))

    def reject(self, messages: Message | Iterable[Message], *, reason: str = "") -> None:
        """Dead-letter them."""
        self._connection.settle(messages, reject_of(reason))

    def extend(self, messages: Message | Iterable[Message], by: Duration) -> None:
        """Keep them for that long from now on."""
        self._connection.settle(messages, extension_of(by))

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None, *, allow_backwards: bool = False) -> None:
        """Commit the positions after everything that was polled, except of partitions that were revoked since.

        With `positions`, by topic and partition, these are committed instead. One below the committed position is
        ignored; with `allow_backwards` the messages from there on are polled again.
        """
        self._connection.drive(self._connection.core.commit(positions, allow_backwards=allow_backwards))

    def flush(self) -> None:
        """Settle what is noted in the background, and return when that is done."""
        self._connection.check_open()
        self._connection.flush()

    def close(self) -> None:
        """Settle what is noted, commit if that is automatic, and leave the group."""
        self._connection.close()

    def _close_within(self, batch: Sequence[Message], index: int) -> None:
        """Close in the middle of a batch."""
        self._connection.close(self._done_before(batch, index))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumption:
    """An endless, or limited, loop over the messages of a consumer, which it closes."""

    def __init__(self, consumer: Consumer, limits: ConsumeLimits) -> None:
        self._consumer = consumer
        self._limits = limits

    def __iter__(self) -> Iterator[Delivered]:
        consumer, limits, left = self._consumer, self._limits, self._limits.limit
        connection, warns = consumer._connection, consumer._warns_of_unsettled
        try:
            while left is None or left > 0:
                batch = consumer.poll(limits.count(left), limits.timeout)
                if not batch and consumer._has_nothing_more(limits):
                    return
                for index, message in enumerate(batch):
                    connection.unsettled_id = id(message)
                    try:
                        yield message
                    except BaseException:
                        consumer._close_within(batch, index)
                        raise
                    if connection.unsettled_id and warns:
                        warns = False
                        consumer._warn_of_unsettled(message, "with")
                left = None if left is None else left - len(batch)
        finally:
            consumer.close()


def _poll_arguments(max_messages: int, timeout: Duration) -> int:
    _check_count(max_messages, "max_messages")
    return max(0, asked.asked_duration_ns(timeout, "timeout")) // MS


def _check_count(count: object, name: str) -> None:
    if not isinstance(count, int) or not 1 <= count <= POLL_MESSAGES_MAX:
        raise InvalidRequest(f"invalid {name} {count!r}: must be 1 to {POLL_MESSAGES_MAX}", path=name)
