"""Messages that a group has delivered: each can be settled by itself, by its receipt.

A message knows the connection (`goqueue.client.consumer_connection`) over which it came, and settles itself over that.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from goqueue.client import telemetry
from goqueue.client.consumer_core import DeliveryOrigin
from goqueue.client.options import Duration
from goqueue.client.received import Message
from goqueue.client.settling import extension_of, nack_of, reject_of
from goqueue.errors import InvalidRequest
from goqueue.names import TopicPartition
from goqueue.wire.reports import Settlement

if TYPE_CHECKING:
    from goqueue.client.consumer_connection import AsyncConsumerConnection, BlockingConsumerConnection


class _Delivered(Message):
    """A message that was delivered to a member of a group."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """The right to settle this delivery of the message."""
        batch = self._delivery.batch
        return f"{batch.topic}:{batch.partition}:{self.offset}:{self.delivery_count}:{batch.nonce}"

    @property
    def delivery_count(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self._delivery.batch.counts.get(self.offset, 1)

    @property
    def _delivery(self) -> DeliveryOrigin:
        delivery: DeliveryOrigin = self.origin
        return delivery

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return Message, (TopicPartition(*self._delivery), *self._fields()[1:])


class Delivered(_Delivered):
    """A message that is to be settled: by `ack` and the like, or by leaving `with message:`."""

    __slots__ = ()

    @property
    def _connection(self) -> "BlockingConsumerConnection":
        connection: BlockingConsumerConnection = self._delivery.connection  # type: ignore[assignment]
        return connection

    def ack(self) -> None:
        """The message is done."""
        self._connection.settle(self, Settlement("ack"))

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        self._connection.settle(self, nack_of(delay, reason))

    def reject(self, *, reason: str = "") -> None:
        """Dead-letter the message."""
        self._connection.settle(self, reject_of(reason))

    def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        self._connection.settle(self, extension_of(by))

    def __enter__(self) -> Self:
        if telemetry.is_in_use() and self._connection.core.config.telemetry:
            telemetry.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        telemetry.leave(self)
        self._connection.leave_block(self, error)


class AsyncDelivered(_Delivered):
    """A message that is to be settled: by `await message.ack()` and the like, or by leaving `async with message:`."""

    __slots__ = ()

    @property
    def _connection(self) -> "AsyncConsumerConnection":
        connection: AsyncConsumerConnection = self._delivery.connection  # type: ignore[assignment]
        return connection

    async def ack(self) -> None:
        """The message is done."""
        await self._connection.settle(self, Settlement("ack"))

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Deliver the message again, after a backoff or the delay."""
        await self._connection.settle(self, nack_of(delay, reason))

    async def reject(self, *, reason: str = "") -> None:
        """Dead-letter the message."""
        await self._connection.settle(self, reject_of(reason))

    async def extend(self, by: Duration) -> None:
        """Keep the message for that long from now on."""
        await self._connection.settle(self, extension_of(by))

    async def __aenter__(self) -> Self:
        if telemetry.is_in_use() and self._connection.core.config.telemetry:
            telemetry.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        telemetry.leave(self)
        self._connection.leave_block(self, error)


def by_connection(messages: Any) -> Iterable[tuple[Any, Sequence[Any]]]:
    """One message or several, by the connection that they came over."""
    found: dict[int, tuple[Any, list[Any]]] = {}
    for message in [messages] if isinstance(messages, Message) else messages:
        if not isinstance(message, Delivered | AsyncDelivered):
            raise InvalidRequest("only a message that a group has delivered can be acknowledged")
        connection = message._connection
        found.setdefault(id(connection), (connection, []))[1].append(message)
    return found.values()
