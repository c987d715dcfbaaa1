"""GoQueue: one durable log that serves as both a Kafka and an SQS.

What stands here is public; `goqueue.testing` is, too. All else may move between versions.
"""

from typing import TYPE_CHECKING

from goqueue.errors import (
    Conflict,
    CorruptRecord,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryUnusable,
    ForeignFile,
    GoQueueError,
    InvalidBatch,
    InvalidConfig,
    InvalidMessage,
    InvalidTopic,
    MessageError,
    MessageTooLarge,
    OffsetOutOfRange,
    ReadFailed,
    StorageError,
    StorageFailed,
    StorageFull,
    UnsupportedFormat,
)
from goqueue.names import TopicPartition
from goqueue.record.header import Priority

if TYPE_CHECKING:
    from goqueue.record.message import Message

__version__ = "0.1.0"

__all__ = [
    "Conflict",
    "CorruptRecord",
    "DataDirectoryError",
    "DirectoryLocked",
    "DirectoryUnusable",
    "ForeignFile",
    "GoQueueError",
    "InvalidBatch",
    "InvalidConfig",
    "InvalidMessage",
    "InvalidTopic",
    "Message",
    "MessageError",
    "MessageTooLarge",
    "OffsetOutOfRange",
    "Priority",
    "ReadFailed",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "TopicPartition",
    "UnsupportedFormat",
    "__version__",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """`Message` is imported when it is first asked for, so that `goqueue` can say why a kernel does not load."""
        if name == "Message":
            from goqueue.record.message import Message

            return Message
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
