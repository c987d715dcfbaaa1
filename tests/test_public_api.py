"""The public names, written down: to change one is a decision, not an accident."""

import inspect

import goqueue
import goqueue.testing
from goqueue import errors

PUBLIC = {
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
    "MetadataUnavailable",
    "Messages",
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
}


def test_the_package_exports_exactly_its_public_names() -> None:
    assert set(goqueue.__all__) == PUBLIC
    assert all(hasattr(goqueue, name) for name in PUBLIC)


def test_the_test_doubles_are_public() -> None:
    assert set(goqueue.testing.__all__) == {"EmbeddedBroker", "FaultyDisk", "ManualClock", "MemoryDisk", "PowerLoss"}
    assert all(hasattr(goqueue.testing, name) for name in goqueue.testing.__all__)


def test_every_error_is_exported_and_stands_in_the_drawing_of_the_tree() -> None:
    drawn = inspect.getdoc(errors) or ""
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, goqueue.GoQueueError):
            assert name in goqueue.__all__
            assert name in drawn
            assert error.code.isupper()


def test_every_error_says_what_is_wrong_and_carries_it() -> None:
    full = goqueue.StorageFull("/data/log")
    too_large = goqueue.MessageTooLarge("key", 70_000, 65_535, index=3)

    assert "/data/log" in str(full)
    assert full.retryable
    assert (too_large.field, too_large.size, too_large.limit, too_large.index) == ("key", 70_000, 65_535, 3)
    assert "key of 70000 bytes" in str(too_large)
    assert not too_large.retryable
