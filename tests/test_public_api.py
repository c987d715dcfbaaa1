"""The public names, written down: to change one is a decision, not an accident."""

import inspect
from typing import get_args, get_type_hints

import pytest

import goqueue
import goqueue.testing
from goqueue import errors

PUBLIC = {
    "AsyncClusterAdmin",
    "ClusterAdmin",
    "ClusterHealth",
    "ClusterNode",
    "ClusterState",
    "ElectionResult",
    "FeatureLevel",
    "NodeDetails",
    "PartitionPlacement",
    "RemovalProgress",
    "AlreadyExists",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncConsumption",
    "AsyncDelivered",
    "AsyncHandle",
    "AsyncKeeping",
    "AsyncMessages",
    "AsyncProducer",
    "AsyncScan",
    "AsyncStaging",
    "AsyncTransaction",
    "AvailabilityError",
    "BlockedKey",
    "BrokerUnavailable",
    "Client",
    "Compatibility",
    "Conflict",
    "Consumer",
    "Consumption",
    "CorruptRecord",
    "DataDirectoryError",
    "DataLossWarning",
    "DamagedFile",
    "DeadLetter",
    "DeadLetterQueue",
    "DelayReport",
    "DelayedMessage",
    "Delivered",
    "DirectoryLocked",
    "DirectoryUnusable",
    "DoneAbove",
    "DueTime",
    "Forbidden",
    "ForeignFile",
    "GoQueueError",
    "GoQueueWarning",
    "GroupError",
    "GroupInfo",
    "GroupModeConflict",
    "GroupNotFound",
    "Handle",
    "HiddenRange",
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
    "Keeping",
    "LaneReport",
    "Message",
    "MessageError",
    "MessageNotFound",
    "MessageOptions",
    "MessageTooLarge",
    "MetadataUnavailable",
    "MetadataWentBack",
    "Messages",
    "MethodNotAllowed",
    "NodeHealth",
    "NotEnoughReplicas",
    "NotFound",
    "NotGroupMember",
    "NotLeader",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionName",
    "PartitionNotAssigned",
    "PartitionNotFound",
    "Piece",
    "Position",
    "PositionReset",
    "Priority",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "ProducerNotFound",
    "Published",
    "ReadFailed",
    "RebalanceInProgress",
    "RebalanceReport",
    "ReliabilityReport",
    "ReceiptError",
    "ReceiptExpired",
    "ReceiptMalformed",
    "ReceiptUnknown",
    "RedriveInfo",
    "RedrivePlan",
    "RequestError",
    "RequestTimeout",
    "RequestTooLarge",
    "Scan",
    "ScannedPart",
    "ScheduleInfo",
    "SchemaError",
    "SchemaIncompatible",
    "SchemaInfo",
    "SchemaNotFound",
    "SchemaOperationRefused",
    "SchemaReference",
    "SchemaRejected",
    "SchemaStats",
    "SchemaVersionNotFound",
    "SessionExpired",
    "Staging",
    "StaleGeneration",
    "Stats",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "SubjectNotFound",
    "TopicError",
    "TopicExists",
    "TopicNotFound",
    "TopicPartition",
    "TopicSettings",
    "TopicState",
    "Trace",
    "TraceStats",
    "Transaction",
    "TopicQuarantined",
    "TransactionAborted",
    "TransactionError",
    "TransactionInfo",
    "TransactionNotFound",
    "TransactionOutcome",
    "TransactionOwner",
    "TransactionStats",
    "UnsupportedFormat",
    "__version__",
    "ClusterError",
    "MetadataContradiction",
    "MetadataDamaged",
    "MetadataTooNew",
    "MetadataTrimmed",
}


def test_the_package_exports_exactly_its_public_names() -> None:
    assert set(goqueue.__all__) == PUBLIC
    assert all(hasattr(goqueue, name) for name in PUBLIC)


def test_the_test_doubles_are_public() -> None:
    assert set(goqueue.testing.__all__) == {
        "EmbeddedBroker",
        "FaultyDisk",
        "ManualClock",
        "MemoryDisk",
        "PowerLoss",
        "SimulatedCluster",
        "SimulatedEngine",
        "SimulatedMetadataLog",
        "SimulationFailed",
    }
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


def _named_types(annotation: object) -> set[str]:
    """The types of this package in an annotation."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("goqueue"):
        return {annotation.__name__}
    return {name for inside in get_args(annotation) for name in _named_types(inside)}


@pytest.mark.parametrize(
    "name",
    [
        "Client",
        "AsyncClient",
        "ClusterAdmin",
        "AsyncClusterAdmin",
        "Consumer",
        "Producer",
        "Transaction",
        "Scan",
        "Staging",
    ],
)
def test_every_type_that_a_public_method_returns_is_public(name: str) -> None:
    public = getattr(goqueue, name)
    inside = {"blocking_publisher", "connection_pool", "kept_by", "end", "unstored", "publisher", "blocking", "course"}
    for method, function in inspect.getmembers(public, inspect.isfunction):
        if not method.startswith("_") and method not in inside:
            returned = get_type_hints(function).get("return")
            assert _named_types(returned) <= PUBLIC, (method, returned)
