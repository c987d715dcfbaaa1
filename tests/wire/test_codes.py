"""The table of errors is complete, agrees with what is documented, and brings every error back as it was."""

import inspect
from pathlib import Path

import msgspec
import pytest

from goqueue import errors
from goqueue.errors import GoQueueError
from goqueue.wire import codes, verbs
from goqueue.wire.frames import META_BYTES_MAX

SAMPLES: list[GoQueueError] = [
    errors.InvalidRequest("invalid limit 0", path="limit"),
    errors.InvalidRequest("no HELLO"),
    errors.RequestTooLarge(10, 5),
    errors.MethodNotAllowed("PUT", "GET, POST"),
    errors.NotFound("route /x"),
    errors.InvalidTopic("a/b", "must be a name"),
    errors.InvalidTopic("orders", "must be a number", setting="acks"),
    errors.InvalidPartition(-1),
    errors.TopicNotFound("orders"),
    errors.PartitionNotFound("orders", 7),
    errors.TopicExists("orders"),
    errors.Forbidden("__groups is an internal topic", topic="__groups"),
    errors.Conflict("another change is under way"),
    errors.InvalidMessage("value is required", index=3),
    errors.MessageTooLarge("key", 70_000, 65_535, index=2),
    errors.InvalidBatch("wrong magic", 40),
    errors.SchemaRejected("orders-value", 2, 7, "/total", "-1 is less than 0", index=3),
    errors.SubjectNotFound("orders-value"),
    errors.SchemaVersionNotFound("orders-value", 7, "it is soft-deleted", error_code=40406),
    errors.SchemaNotFound("id 7"),
    errors.InvalidSchema("not JSON"),
    errors.InvalidSchemaRequest("version", "x", "must be a number"),
    errors.SchemaIncompatible("orders-value", "BACKWARD", ["/total: gone"]),
    errors.SchemaOperationRefused("orders-value is read-only"),
    errors.GroupNotFound("billing"),
    errors.NotGroupMember("billing", "worker-1"),
    errors.SessionExpired("billing", "worker-1"),
    errors.RebalanceInProgress("billing", 500),
    errors.StaleGeneration(3, 5, ["orders-0", "orders-1"]),
    errors.PartitionNotAssigned("orders", 2, "worker-1"),
    errors.GroupModeConflict("billing", "mode", "shared", "partitioned"),
    errors.ReceiptMalformed("not a receipt"),
    errors.ReceiptExpired("orders", 0, 7),
    errors.ReceiptUnknown("orders", 0, 7, "settled"),
    errors.MessageNotFound("delayed message not found"),
    errors.AlreadyExists("schedule", "daily"),
    errors.OutOfOrderSequence(7, 5),
    errors.ProducerFenced(12, 0, 1),
    errors.ProducerNotFound(12),
    errors.TransactionNotFound("billing-1:7"),
    errors.TransactionAborted("billing-1:7", "timeout"),
    errors.InvalidTransactionState("no transaction open", "billing-1", "Empty"),
    errors.NotLeader("orders", 0, "host:7000"),
    errors.NotEnoughReplicas("orders", 0, 1, 2),
    errors.BrokerUnavailable("it is stopping"),
    errors.MetadataUnavailable("no answer from etcd"),
    errors.RequestTimeout("publish", 2.5),
    errors.InternalError("127.0.0.1:5/ab"),
    errors.OffsetOutOfRange(9, 0, 5, log="orders-0"),
    errors.CorruptRecord("checksum mismatch", 40, source="x.log"),
    errors.ReadFailed("/data/x", "Input/output error"),
    errors.StorageFull("/data/x"),
    errors.StorageFailed("/data/x", "sync", "Input/output error"),
    errors.TopicQuarantined("orders", "/data/topics/orders", "/data/topics/orders/topic.json: damaged"),
    errors.DamagedFile("/data/topics/orders/topic.json", "damaged"),
    errors.DirectoryLocked("/data", "locked"),
    errors.ForeignFile("/data/x", "not ours"),
    errors.UnsupportedFormat("/data/x", "version 9"),
]
# Raised where a configuration is read, or where a node reads the metadata log: nobody's request.
STAYS_AT_HOME = {errors.InvalidConfig, *errors.ClusterError.__subclasses__()}
SHARES_A_CODE = {
    errors.ReadFailed,
    errors.TopicQuarantined,
    errors.DamagedFile,
    errors.DirectoryLocked,
    errors.ForeignFile,
    errors.UnsupportedFormat,
}


def leaves() -> set[type[GoQueueError]]:
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, GoQueueError)]
    return {found for found in classes if not found.__subclasses__() or found in codes_table()}


def codes_table() -> set[type[GoQueueError]]:
    return {row.exception for row in codes.TABLE.values()}


def over_the_wire(error: GoQueueError) -> GoQueueError:
    told = msgspec.msgpack.decode(verbs.encode(verbs.error_meta(error)), type=verbs.ErrorMeta)
    return codes.restore(told.code, told.text, told.facts)


def test_every_error_stands_in_the_table_once() -> None:
    assert codes_table() == leaves() - STAYS_AT_HOME - SHARES_A_CODE
    assert all(found.code in codes.TABLE for found in SHARES_A_CODE)
    assert all(row.exception.code == code for code, row in codes.TABLE.items())
    numbers = [row.number for row in codes.TABLE.values()]
    assert sorted(set(numbers)) == sorted(numbers)


def test_every_error_has_a_sample_here() -> None:
    assert {type(sample) for sample in SAMPLES} == leaves() - STAYS_AT_HOME


DOCUMENTED = {
    # code: (number, exception, HTTP, gRPC, retryable), from the HTTP contract
    "TOPIC_NOT_FOUND": (100, "TopicNotFound", 404, "NOT_FOUND", False),
    "PARTITION_NOT_FOUND": (102, "PartitionNotFound", 404, "NOT_FOUND", False),
    "TOPIC_ALREADY_EXISTS": (101, "TopicExists", 409, "ALREADY_EXISTS", False),
    "INVALID_PARTITION": (103, "InvalidPartition", 400, "INVALID_ARGUMENT", False),
    "INVALID_TOPIC": (104, "InvalidTopic", 400, "INVALID_ARGUMENT", False),
    "OFFSET_OUT_OF_RANGE": (105, "OffsetOutOfRange", 400, "OUT_OF_RANGE", False),
    "CONFLICT": (704, "Conflict", 409, "FAILED_PRECONDITION", False),
    "GROUP_NOT_FOUND": (200, "GroupNotFound", 404, "NOT_FOUND", False),
    "NOT_GROUP_MEMBER": (201, "NotGroupMember", 404, "NOT_FOUND", False),
    "REBALANCE_IN_PROGRESS": (202, "RebalanceInProgress", 409, "ABORTED", True),
    "INVALID_GENERATION": (203, "StaleGeneration", 409, "FAILED_PRECONDITION", False),
    "SESSION_TIMEOUT": (204, "SessionExpired", 404, "NOT_FOUND", False),
    "PARTITION_NOT_ASSIGNED": (205, "PartitionNotAssigned", 403, "FAILED_PRECONDITION", False),
    "GROUP_MODE_CONFLICT": (206, "GroupModeConflict", 409, "FAILED_PRECONDITION", False),
    "RECEIPT_HANDLE_INVALID": (302, "ReceiptMalformed", 400, "INVALID_ARGUMENT", False),
    "RECEIPT_HANDLE_EXPIRED": (303, "ReceiptExpired", 410, "FAILED_PRECONDITION", False),
    "MESSAGE_NOT_FOUND": (304, "MessageNotFound", 404, "NOT_FOUND", False),
    "RECEIPT_HANDLE_UNKNOWN": (305, "ReceiptUnknown", 404, "NOT_FOUND", False),
    "ALREADY_EXISTS": (703, "AlreadyExists", 409, "ALREADY_EXISTS", False),
    "MESSAGE_TOO_LARGE": (300, "MessageTooLarge", 413, "INVALID_ARGUMENT", False),
    "INVALID_MESSAGE": (301, "InvalidMessage", 400, "INVALID_ARGUMENT", False),
    "INVALID_BATCH": (309, "InvalidBatch", 400, "INVALID_ARGUMENT", False),
    "SCHEMA_REJECTED": (306, "SchemaRejected", 400, "INVALID_ARGUMENT", False),
    "SUBJECT_NOT_FOUND": (800, "SubjectNotFound", 404, "NOT_FOUND", False),
    "SCHEMA_VERSION_NOT_FOUND": (801, "SchemaVersionNotFound", 404, "NOT_FOUND", False),
    "SCHEMA_NOT_FOUND": (802, "SchemaNotFound", 404, "NOT_FOUND", False),
    "INVALID_SCHEMA": (803, "InvalidSchema", 422, "INVALID_ARGUMENT", False),
    "SCHEMA_INCOMPATIBLE": (804, "SchemaIncompatible", 409, "FAILED_PRECONDITION", False),
    "INVALID_SCHEMA_REQUEST": (805, "InvalidSchemaRequest", 422, "INVALID_ARGUMENT", False),
    "SCHEMA_OPERATION_REFUSED": (806, "SchemaOperationRefused", 422, "INVALID_ARGUMENT", False),
    "OUT_OF_ORDER_SEQUENCE": (307, "OutOfOrderSequence", 400, "FAILED_PRECONDITION", False),
    "CORRUPT_RECORD": (308, "CorruptRecord", 500, "DATA_LOSS", False),
    "TRANSACTION_NOT_FOUND": (400, "TransactionNotFound", 404, "NOT_FOUND", False),
    "TRANSACTION_TIMEOUT": (401, "TransactionAborted", 409, "ABORTED", False),
    "PRODUCER_FENCED": (402, "ProducerFenced", 409, "FAILED_PRECONDITION", False),
    "INVALID_TXN_STATE": (403, "InvalidTransactionState", 409, "FAILED_PRECONDITION", False),
    "PRODUCER_NOT_FOUND": (404, "ProducerNotFound", 404, "NOT_FOUND", False),
    "NOT_LEADER": (500, "NotLeader", 503, "UNAVAILABLE", True),
    "NOT_ENOUGH_REPLICAS": (504, "NotEnoughReplicas", 503, "UNAVAILABLE", True),
    "BROKER_NOT_AVAILABLE": (502, "BrokerUnavailable", 503, "UNAVAILABLE", True),
    "METADATA_UNAVAILABLE": (508, "MetadataUnavailable", 503, "UNAVAILABLE", True),
    "STORAGE_FAILED": (506, "StorageFailed", 503, "UNAVAILABLE", True),
    "STORAGE_FULL": (505, "StorageFull", 507, "RESOURCE_EXHAUSTED", True),
    "REQUEST_TIMEOUT": (507, "RequestTimeout", 504, "DEADLINE_EXCEEDED", True),
    "FORBIDDEN": (601, "Forbidden", 403, "PERMISSION_DENIED", False),
    "INVALID_REQUEST": (700, "InvalidRequest", 400, "INVALID_ARGUMENT", False),
    "NOT_FOUND": (701, "NotFound", 404, "NOT_FOUND", False),
    "METHOD_NOT_ALLOWED": (702, "MethodNotAllowed", 405, "UNIMPLEMENTED", False),
    "REQUEST_TOO_LARGE": (705, "RequestTooLarge", 413, "RESOURCE_EXHAUSTED", False),
    "INTERNAL": (706, "InternalError", 500, "INTERNAL", False),
}


def test_the_table_is_what_is_documented() -> None:
    table = {
        code: (row.number, row.exception.__name__, row.http, row.grpc, row.exception.retryable)
        for code, row in codes.TABLE.items()
    }

    assert table == DOCUMENTED


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: GoQueueError) -> None:
    restored = over_the_wire(error)

    assert type(restored) is codes.TABLE[error.code].exception
    assert (restored.code, str(restored), restored.facts()) == (error.code, str(error), error.facts())


def test_an_error_that_only_a_newer_broker_knows_keeps_its_code_and_text() -> None:
    restored = codes.restore("LEASE_LOST", "lease lost", {"lease": 7})

    assert type(restored) is GoQueueError
    assert restored.code == "LEASE_LOST"
    assert str(restored) == "lease lost"
    assert restored.facts()["lease"] == 7
    assert GoQueueError.code == "INTERNAL"
    assert codes.row(restored) is codes.TABLE["INTERNAL"]


def test_an_error_about_something_huge_still_fits_a_frame() -> None:
    error = errors.InvalidTopic("\N{GRINNING FACE}" * 60_000, "no" * 60_000, setting="s" * 60_000)

    assert len(verbs.encode(verbs.error_meta(error))) < META_BYTES_MAX


def test_the_source_of_the_errors_draws_every_one_of_them() -> None:
    drawing = (errors.__doc__ or "").split()

    assert {found.__name__ for found in leaves()} <= set(drawing)
    assert Path(errors.__file__).name == "errors.py"
