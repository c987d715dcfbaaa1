"""GoQueue: one durable log that serves as both a Kafka and an SQS.

What stands here is public; `goqueue.testing` is, too. All else may move between versions.
"""

from goqueue.errors import (
    CorruptRecord,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryUnusable,
    ForeignFile,
    GoQueueError,
    InvalidBatch,
    InvalidConfig,
    InvalidMessage,
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
from goqueue.record.message import Message

__version__ = "0.1.0"

__all__ = [
    "CorruptRecord",
    "DataDirectoryError",
    "DirectoryLocked",
    "DirectoryUnusable",
    "ForeignFile",
    "GoQueueError",
    "InvalidBatch",
    "InvalidConfig",
    "InvalidMessage",
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
