"""GoQueue: one durable log that serves as both a Kafka and an SQS.

What stands here is public; `goqueue.testing` is, too. All else may move between versions.
"""

from typing import TYPE_CHECKING

from goqueue.errors import (
    AlreadyExists,
    AvailabilityError,
    BrokerUnavailable,
    Conflict,
    CorruptRecord,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryUnusable,
    ForeignFile,
    GoQueueError,
    GroupError,
    GroupModeConflict,
    GroupNotFound,
    InternalError,
    InvalidBatch,
    InvalidConfig,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    InvalidSchema,
    InvalidSchemaRequest,
    InvalidTopic,
    InvalidTransactionState,
    MessageError,
    MessageNotFound,
    MessageTooLarge,
    MetadataUnavailable,
    MethodNotAllowed,
    NotFound,
    NotGroupMember,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionNotAssigned,
    PartitionNotFound,
    ProducerError,
    ProducerFenced,
    ProducerNotFound,
    ReadFailed,
    RebalanceInProgress,
    ReceiptError,
    ReceiptExpired,
    ReceiptMalformed,
    ReceiptUnknown,
    RequestError,
    RequestTimeout,
    RequestTooLarge,
    SchemaError,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaOperationRefused,
    SchemaRejected,
    SchemaVersionNotFound,
    SessionExpired,
    StaleGeneration,
    StorageError,
    StorageFailed,
    StorageFull,
    SubjectNotFound,
    TopicError,
    TopicExists,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionNotFound,
    UnsupportedFormat,
)
from goqueue.names import VERSION, TopicPartition
from goqueue.record.header import Priority

if TYPE_CHECKING:
    from goqueue.client.client import AsyncClient
    from goqueue.client.consumer import AsyncConsumer, Consumer
    from goqueue.client.handles import AsyncHandle, Handle, Published
    from goqueue.client.producer import AsyncProducer, Producer
    from goqueue.client.reading import AsyncMessages
    from goqueue.client.received import Message
    from goqueue.client.sync import Client, Messages
    from goqueue.client.transactions import AsyncTransaction, Transaction

__version__ = VERSION

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncHandle",
    "AsyncMessages",
    "AsyncProducer",
    "AsyncTransaction",
    "AvailabilityError",
    "BrokerUnavailable",
    "Client",
    "Conflict",
    "Consumer",
    "CorruptRecord",
    "DataDirectoryError",
    "DirectoryLocked",
    "DirectoryUnusable",
    "ForeignFile",
    "GoQueueError",
    "GroupError",
    "GroupModeConflict",
    "GroupNotFound",
    "Handle",
    "InternalError",
    "InvalidBatch",
    "InvalidConfig",
    "InvalidMessage",
    "InvalidPartition",
    "InvalidRequest",
    "InvalidSchema",
    "InvalidSchemaRequest",
    "InvalidTopic",
    "InvalidTransactionState",
    "Message",
    "MessageError",
    "MessageNotFound",
    "MessageTooLarge",
    "Messages",
    "MetadataUnavailable",
    "MethodNotAllowed",
    "NotFound",
    "NotGroupMember",
    "NotLeader",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionNotAssigned",
    "PartitionNotFound",
    "Priority",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "ProducerNotFound",
    "Published",
    "ReadFailed",
    "RebalanceInProgress",
    "ReceiptError",
    "ReceiptExpired",
    "ReceiptMalformed",
    "ReceiptUnknown",
    "RequestError",
    "RequestTimeout",
    "RequestTooLarge",
    "SchemaError",
    "SchemaIncompatible",
    "SchemaNotFound",
    "SchemaOperationRefused",
    "SchemaRejected",
    "SchemaVersionNotFound",
    "SessionExpired",
    "StaleGeneration",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "SubjectNotFound",
    "TopicError",
    "TopicExists",
    "TopicNotFound",
    "TopicPartition",
    "Transaction",
    "TransactionAborted",
    "TransactionError",
    "TransactionNotFound",
    "UnsupportedFormat",
    "__version__",
]


_LAZY = {
    "AsyncClient": "client.client",
    "AsyncConsumer": "client.consumer",
    "AsyncHandle": "client.handles",
    "AsyncMessages": "client.reading",
    "AsyncProducer": "client.producer",
    "Client": "client.sync",
    "Consumer": "client.consumer",
    "Handle": "client.handles",
    "Message": "client.received",
    "Messages": "client.sync",
    "Producer": "client.producer",
    "Published": "client.handles",
    "AsyncTransaction": "client.transactions",
    "Transaction": "client.transactions",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """What needs more than the errors is imported when it is first asked for.

        So `goqueue` can say why a kernel does not load, and a command line that shows its version starts quickly.
        """
        if name in _LAZY:
            from importlib import import_module

            return getattr(import_module(f"goqueue.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
