"""The message as an application gets it: a record that knows which trace it belongs to."""

from typing import cast

from goqueue.names import TopicPartition
from goqueue.record.header import Buffer
from goqueue.record.message import StoredMessage, Undecodable, decode_messages
from goqueue.tracing.context import TraceContext, context_of


class Message(StoredMessage):
    """One message of a partition. Immutable; equal when all of it is equal."""

    __slots__ = ()

    @property
    def trace(self) -> TraceContext:
        """The trace that the message belongs to: that of its publisher, or else one of its own."""
        return context_of(self.topic, self.partition, self.offset, self.timestamp_ns, self.encoded_headers)


def decode_received(
    records: Buffer, origin: TopicPartition, *, flags: int, undecodable: list[Undecodable] | None = None
) -> list[Message]:
    """The messages in a buffer of whole records; `flags` are those that any of them may have.

    A record whose value cannot be decompressed goes to `undecodable`; without that list it raises `CorruptRecord`.
    """
    decoded = decode_messages(records, origin, flags=flags, message_type=Message, undecodable=undecodable)
    return cast("list[Message]", decoded)
