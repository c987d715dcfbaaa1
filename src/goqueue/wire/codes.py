"""The one table of errors: code, number, HTTP status, gRPC status, and exception.

Doors use it to answer, and clients to raise again what the broker raised. Some exceptions share a code, such as the
failures of a disk; a client then raises the exception of the table, and the text says which failure it was.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from goqueue import errors
from goqueue.errors import GoQueueError


class ErrorRow(NamedTuple):
    """One code at each door."""

    number: int
    http: int
    grpc: str
    exception: type[GoQueueError]


TABLE: Final[Mapping[str, ErrorRow]] = {
    "TOPIC_NOT_FOUND": ErrorRow(100, 404, "NOT_FOUND", errors.TopicNotFound),
    "TOPIC_ALREADY_EXISTS": ErrorRow(101, 409, "ALREADY_EXISTS", errors.TopicExists),
    "PARTITION_NOT_FOUND": ErrorRow(102, 404, "NOT_FOUND", errors.PartitionNotFound),
    "INVALID_PARTITION": ErrorRow(103, 400, "INVALID_ARGUMENT", errors.InvalidPartition),
    "INVALID_TOPIC": ErrorRow(104, 400, "INVALID_ARGUMENT", errors.InvalidTopic),
    "OFFSET_OUT_OF_RANGE": ErrorRow(105, 400, "OUT_OF_RANGE", errors.OffsetOutOfRange),
    "GROUP_NOT_FOUND": ErrorRow(200, 404, "NOT_FOUND", errors.GroupNotFound),
    "NOT_GROUP_MEMBER": ErrorRow(201, 404, "NOT_FOUND", errors.NotGroupMember),
    "REBALANCE_IN_PROGRESS": ErrorRow(202, 409, "ABORTED", errors.RebalanceInProgress),
    "INVALID_GENERATION": ErrorRow(203, 409, "FAILED_PRECONDITION", errors.StaleGeneration),
    "SESSION_TIMEOUT": ErrorRow(204, 404, "NOT_FOUND", errors.SessionExpired),
    "PARTITION_NOT_ASSIGNED": ErrorRow(205, 403, "FAILED_PRECONDITION", errors.PartitionNotAssigned),
    "GROUP_MODE_CONFLICT": ErrorRow(206, 409, "FAILED_PRECONDITION", errors.GroupModeConflict),
    "MESSAGE_TOO_LARGE": ErrorRow(300, 413, "INVALID_ARGUMENT", errors.MessageTooLarge),
    "INVALID_MESSAGE": ErrorRow(301, 400, "INVALID_ARGUMENT", errors.InvalidMessage),
    "RECEIPT_HANDLE_INVALID": ErrorRow(302, 400, "INVALID_ARGUMENT", errors.ReceiptMalformed),
    "RECEIPT_HANDLE_EXPIRED": ErrorRow(303, 410, "FAILED_PRECONDITION", errors.ReceiptExpired),
    "MESSAGE_NOT_FOUND": ErrorRow(304, 404, "NOT_FOUND", errors.MessageNotFound),
    "RECEIPT_HANDLE_UNKNOWN": ErrorRow(305, 404, "NOT_FOUND", errors.ReceiptUnknown),
    "SCHEMA_REJECTED": ErrorRow(306, 400, "INVALID_ARGUMENT", errors.SchemaRejected),
    "OUT_OF_ORDER_SEQUENCE": ErrorRow(307, 400, "FAILED_PRECONDITION", errors.OutOfOrderSequence),
    "CORRUPT_RECORD": ErrorRow(308, 500, "DATA_LOSS", errors.CorruptRecord),
    "INVALID_BATCH": ErrorRow(309, 400, "INVALID_ARGUMENT", errors.InvalidBatch),
    "TRANSACTION_NOT_FOUND": ErrorRow(400, 404, "NOT_FOUND", errors.TransactionNotFound),
    "TRANSACTION_TIMEOUT": ErrorRow(401, 409, "ABORTED", errors.TransactionAborted),
    "PRODUCER_FENCED": ErrorRow(402, 409, "FAILED_PRECONDITION", errors.ProducerFenced),
    "INVALID_TXN_STATE": ErrorRow(403, 409, "FAILED_PRECONDITION", errors.InvalidTransactionState),
    "PRODUCER_NOT_FOUND": ErrorRow(404, 404, "NOT_FOUND", errors.ProducerNotFound),
    "NOT_LEADER": ErrorRow(500, 503, "UNAVAILABLE", errors.NotLeader),
    "BROKER_NOT_AVAILABLE": ErrorRow(502, 503, "UNAVAILABLE", errors.BrokerUnavailable),
    "NOT_ENOUGH_REPLICAS": ErrorRow(504, 503, "UNAVAILABLE", errors.NotEnoughReplicas),
    "STORAGE_FULL": ErrorRow(505, 507, "RESOURCE_EXHAUSTED", errors.StorageFull),
    "STORAGE_FAILED": ErrorRow(506, 503, "UNAVAILABLE", errors.StorageFailed),
    "REQUEST_TIMEOUT": ErrorRow(507, 504, "DEADLINE_EXCEEDED", errors.RequestTimeout),
    "METADATA_UNAVAILABLE": ErrorRow(508, 503, "UNAVAILABLE", errors.MetadataUnavailable),
    "FORBIDDEN": ErrorRow(601, 403, "PERMISSION_DENIED", errors.Forbidden),
    "INVALID_REQUEST": ErrorRow(700, 400, "INVALID_ARGUMENT", errors.InvalidRequest),
    "NOT_FOUND": ErrorRow(701, 404, "NOT_FOUND", errors.NotFound),
    "METHOD_NOT_ALLOWED": ErrorRow(702, 405, "UNIMPLEMENTED", errors.MethodNotAllowed),
    "ALREADY_EXISTS": ErrorRow(703, 409, "ALREADY_EXISTS", errors.AlreadyExists),
    "CONFLICT": ErrorRow(704, 409, "FAILED_PRECONDITION", errors.Conflict),
    "REQUEST_TOO_LARGE": ErrorRow(705, 413, "RESOURCE_EXHAUSTED", errors.RequestTooLarge),
    "INTERNAL": ErrorRow(706, 500, "INTERNAL", errors.InternalError),
    "SUBJECT_NOT_FOUND": ErrorRow(800, 404, "NOT_FOUND", errors.SubjectNotFound),
    "SCHEMA_VERSION_NOT_FOUND": ErrorRow(801, 404, "NOT_FOUND", errors.SchemaVersionNotFound),
    "SCHEMA_NOT_FOUND": ErrorRow(802, 404, "NOT_FOUND", errors.SchemaNotFound),
    "INVALID_SCHEMA": ErrorRow(803, 422, "INVALID_ARGUMENT", errors.InvalidSchema),
    "SCHEMA_INCOMPATIBLE": ErrorRow(804, 409, "FAILED_PRECONDITION", errors.SchemaIncompatible),
    "INVALID_SCHEMA_REQUEST": ErrorRow(805, 422, "INVALID_ARGUMENT", errors.InvalidSchemaRequest),
    "SCHEMA_OPERATION_REFUSED": ErrorRow(806, 422, "INVALID_ARGUMENT", errors.SchemaOperationRefused),
}


def row(error: GoQueueError) -> ErrorRow:
    """The row of the error; an error without one is a bug, and looks like any other bug."""
    return TABLE.get(error.code, TABLE["INTERNAL"])


def restore(code: str, text: str, facts: Mapping[str, object]) -> GoQueueError:
    """The error that the other end raised; a code that only a newer broker knows makes a plain `GoQueueError`."""
    known = TABLE.get(code)
    exception = known.exception if known else GoQueueError
    return exception.restored(text, facts if known else {**facts, "code": code})
