"""Every error that GoQueue raises, in one tree.

    GoQueueError
    ├── InvalidConfig            a setting has an invalid value
    ├── RequestError             the request is wrong; sending it again does not help
    │   ├── InvalidRequest
    │   ├── RequestTooLarge
    │   ├── MethodNotAllowed
    │   └── NotFound             no such route or resource
    ├── TopicError               the request names a topic or partition that is invalid, missing or taken
    │   ├── InvalidTopic
    │   ├── InvalidPartition
    │   ├── TopicNotFound
    │   ├── PartitionNotFound
    │   └── TopicExists
    ├── Forbidden                the caller may not do this
    ├── Conflict                 the state of the resource does not allow the request
    ├── MessageError             the message is wrong; sending it again does not help
    │   ├── InvalidMessage
    │   ├── MessageTooLarge
    │   ├── InvalidBatch
    │   └── SchemaRejected       the message breaks its schema
    ├── GroupError               the membership, generation or assignment of a consumer is outdated
    │   ├── GroupNotFound
    │   ├── NotGroupMember
    │   │   └── SessionExpired
    │   ├── RebalanceInProgress  retryable
    │   ├── StaleGeneration
    │   ├── PartitionNotAssigned
    │   └── GroupModeConflict
    ├── ReceiptError             the receipt does not name a current lease
    │   ├── ReceiptMalformed
    │   ├── ReceiptExpired
    │   └── ReceiptUnknown
    ├── MessageNotFound          no such delayed message or dead letter
    ├── AlreadyExists            the name is taken
    ├── ProducerError            the epoch or sequence of a producer is outdated
    │   ├── OutOfOrderSequence
    │   ├── ProducerFenced
    │   └── ProducerNotFound
    ├── TransactionError         the state of the transaction does not allow the request
    │   ├── TransactionNotFound
    │   ├── TransactionAborted   aborted by a timeout, an operator or a restart
    │   └── InvalidTransactionState
    ├── SchemaError              the schema registry
    │   ├── SubjectNotFound
    │   ├── SchemaVersionNotFound
    │   ├── SchemaNotFound
    │   ├── InvalidSchema
    │   ├── InvalidSchemaRequest
    │   ├── SchemaIncompatible
    │   └── SchemaOperationRefused
    ├── AvailabilityError        retryable: the request cannot be answered now
    │   ├── NotLeader
    │   ├── NotEnoughReplicas
    │   ├── BrokerUnavailable
    │   ├── MetadataUnavailable  nothing can be created, changed or elected; publish, poll and ack work
    │   └── RequestTimeout       the outcome of the request is unknown
    ├── ClusterError             the metadata of the cluster, or what this node is in it
    │   ├── MetadataTrimmed      entries of the metadata log are gone; a snapshot covers them
    │   ├── MetadataDamaged      bytes of the metadata log are not what was written
    │   ├── MetadataWentBack     the metadata log does not have what a node has applied
    │   ├── MetadataTooNew       the metadata log has records that only a newer version knows
    │   └── MetadataContradiction  a record of the metadata log does not fit what came before it
    ├── InternalError            a bug
    └── StorageError             the logs on the disk
        ├── OffsetOutOfRange
        ├── CorruptRecord
        ├── ReadFailed           retryable: the disk returned an error
        ├── StorageFull          retryable: no room now; reads work
        ├── StorageFailed        retryable elsewhere: this log takes no more writes
        ├── TopicQuarantined     retryable: the files of the topic have to be repaired first
        └── DataDirectoryError   the data directory cannot be opened; no record in it was changed
            ├── DirectoryUnusable
            │   └── DamagedFile
            ├── DirectoryLocked
            ├── ForeignFile
            └── UnsupportedFormat

An error carries its facts as attributes and builds its sentence from them: what is wrong, where, and what to do where
that is not obvious. `code` names the error at every door; `retryable` says whether the same request may succeed later.
An error crosses the wire as its code, its sentence and its facts, and `restored` rebuilds it.
"""

# Over 800 lines in one file, because the tree above is one thing: doors, clients and docs map it class by class, and a
# reader who looks for an error should have to open one file. There is no logic here to split, only about 70 classes.

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

_PLAIN = (str, int, float, bool, type(None))


class GoQueueWarning(RuntimeWarning):
    """The application works, and loses messages or time by what it does."""


class GoQueueError(Exception):
    """The base of all errors of this package."""

    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def facts(self) -> dict[str, object]:
        """The attributes of the error, in types that JSON has."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def restored(cls, text: str, facts: Mapping[str, object]) -> Self:
        """The error that another process raised, from its sentence and its facts."""
        error = cls.__new__(cls, text)
        error.__dict__.update(facts)
        return error


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, _PLAIN) else str(value)


class InvalidConfig(GoQueueError):
    """A setting has an invalid value."""

    code = "INVALID_CONFIG"

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(f"{setting} = {value!r}: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason


class RequestError(GoQueueError):
    """The request is wrong; sending it again does not help."""

    code = "INVALID_REQUEST"


class InvalidRequest(RequestError):
    """A field is missing, unknown, malformed or out of range; `path` says which, where that is known.

    `nearest` is the known field that is most like an unknown one.
    """

    code = "INVALID_REQUEST"

    def __init__(self, reason: str, *, path: str | None = None, nearest: str | None = None) -> None:
        super().__init__(reason)
        if path is not None:
            self.path = path
        if nearest is not None:
            self.nearest = nearest


class RequestTooLarge(RequestError):
    """The request is larger than the limit."""

    code = "REQUEST_TOO_LARGE"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"request too large: {size} bytes are over the limit of {limit}")
        self.size = size
        self.limit = limit


class MethodNotAllowed(RequestError):
    """The resource exists, and does not have this method."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method not allowed: {method}; allowed: {allowed}")
        self.method = method
        self.allowed = allowed


class NotFound(RequestError):
    """There is no such route, key, trace, node or other resource."""

    code = "NOT_FOUND"

    def __init__(self, what: str) -> None:
        super().__init__(f"not found: {what}")
        self.what = what


class TopicError(GoQueueError):
    """The request names a topic or partition that is invalid, missing or taken."""

    code = "INVALID_TOPIC"


class InvalidTopic(TopicError):
    """The name or a setting of a topic is invalid; `nearest` is the setting that is most like an unknown one."""

    code = "INVALID_TOPIC"
    path: str  # of the setting in the request, if the door knows it

    def __init__(self, name: object, reason: str, *, setting: str | None = None, nearest: str | None = None) -> None:
        what = f"invalid topic name {name!r}" if setting is None else f"invalid topic setting {setting}"
        super().__init__(f"{what}: {reason}")
        self.name = name
        self.reason = reason
        if setting is not None:
            self.setting = setting
        if nearest is not None:
            self.nearest = nearest


class InvalidPartition(TopicError):
    """A partition is not a whole number of 0 or more."""

    code = "INVALID_PARTITION"

    def __init__(self, partition: object) -> None:
        super().__init__(f"invalid partition ID: {partition}")
        self.partition = partition


class TopicNotFound(TopicError):
    """There is no topic of that name."""

    code = "TOPIC_NOT_FOUND"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic not found: {topic}")
        self.topic = topic


class PartitionNotFound(TopicError):
    """The topic has fewer partitions than that."""

    code = "PARTITION_NOT_FOUND"

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"partition not found: {topic}-{partition}")
        self.topic = topic
        self.partition = partition


class TopicExists(TopicError):
    """There is a topic of that name."""

    code = "TOPIC_ALREADY_EXISTS"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic already exists: {topic}")
        self.topic = topic


class Forbidden(GoQueueError):
    """The caller may not do this; `topic` names the topic that it has no access to, if that is the reason."""

    code = "FORBIDDEN"

    def __init__(self, reason: str, *, topic: str | None = None) -> None:
        super().__init__(reason)
        if topic is not None:
            self.topic = topic


class Conflict(GoQueueError):
    """The state of the resource does not allow the request."""

    code = "CONFLICT"


class MessageError(GoQueueError):
    """The message is wrong; sending it again does not help."""

    code = "INVALID_MESSAGE"


class InvalidMessage(MessageError):
    """A field of a message has a value that cannot be stored."""

    code = "INVALID_MESSAGE"

    def __init__(self, reason: str, *, index: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index


class MessageTooLarge(MessageError):
    """The key, value or headers of a message are over their limit."""

    code = "MESSAGE_TOO_LARGE"

    def __init__(self, field: str, size: int, limit: int, *, index: int = 0) -> None:
        super().__init__(f"message {index}: {field} of {size} bytes is over the limit of {limit}")
        self.field = field
        self.size = size
        self.limit = limit
        self.index = index


class InvalidBatch(MessageError):
    """A batch of encoded records violates the record format."""

    code = "INVALID_BATCH"

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"invalid batch: {reason} in the record at byte {position}")
        self.reason = reason
        self.position = position


class SchemaRejected(MessageError):
    """A message violates the schema of its subject; `path` is a JSON Pointer to the fault. Nothing was written."""

    code = "SCHEMA_REJECTED"

    def __init__(
        self,
        subject: str,
        version: int,
        schema_id: int,
        path: str,
        reason: str,
        *,
        index: int = 0,
        field: str = "value",
    ) -> None:
        schema = f"version {version} of {subject}" if version else f"the schemas of {subject}"
        super().__init__(
            f"message {index}: the {field} does not fit {schema}{', at ' + path if path else ''}: {reason}"
        )
        self.subject = subject
        self.version = version  # 0, as is the id, if there was no schema to check the message against
        self.schema_id = schema_id
        self.path = path
        self.reason = reason
        self.index = index
        self.field = field


class GroupError(GoQueueError):
    """The membership, generation or assignment of a consumer is outdated."""

    code = "GROUP_NOT_FOUND"


class GroupNotFound(GroupError):
    """There is no group of that name."""

    code = "GROUP_NOT_FOUND"

    def __init__(self, group: str) -> None:
        super().__init__(f"group not found: {group}")
        self.group = group


class NotGroupMember(GroupError):
    """The group has no member of that id; join again."""

    code = "NOT_GROUP_MEMBER"

    def __init__(self, group: str, member_id: str) -> None:
        super().__init__(f"member not found: {member_id} in group {group}")
        self.group = group
        self.member_id = member_id


class SessionExpired(NotGroupMember):
    """The member sent no heartbeat within its session timeout; join again."""

    code = "SESSION_TIMEOUT"

    def __init__(self, group: str, member_id: str) -> None:
        super().__init__(group, member_id)
        self.args = (f"member not found: session expired: {member_id} in group {group}",)


class RebalanceInProgress(GroupError):
    """Partitions are being moved between members; retry shortly."""

    code = "REBALANCE_IN_PROGRESS"
    retryable = True

    def __init__(self, group: str, retry_after_ms: int) -> None:
        super().__init__(f"rebalance in progress: group {group}; try again in {retry_after_ms} ms")
        self.group = group
        self.retry_after_ms = retry_after_ms


class StaleGeneration(GroupError):
    """The generation of the member has been replaced; `assigned_partitions` are its partitions now."""

    code = "INVALID_GENERATION"

    def __init__(self, given: int, generation: int, assigned_partitions: Sequence[str] = ()) -> None:
        super().__init__(f"stale generation {given}: the group has generation {generation}")
        self.given = given
        self.generation = generation
        self.assigned_partitions = list(assigned_partitions)


class PartitionNotAssigned(GroupError):
    """The partition is not assigned to the member."""

    code = "PARTITION_NOT_ASSIGNED"

    def __init__(self, topic: str, partition: int, member_id: str = "") -> None:
        super().__init__(f"partition not assigned: {topic}-{partition}{' to ' + member_id if member_id else ''}")
        self.topic = topic
        self.partition = partition
        self.member_id = member_id


class GroupModeConflict(GroupError):
    """A member asks for another mode, protocol, assignor or ack mode than its group has."""

    code = "GROUP_MODE_CONFLICT"

    def __init__(self, group: str, setting: str, asked: str, current: str) -> None:
        super().__init__(f"group {group} has {setting} {current}, not {asked}")
        self.group = group
        self.setting = setting
        self.asked = asked
        self.current = current


class ReceiptError(GoQueueError):
    """The receipt does not name a current lease."""

    code = "RECEIPT_HANDLE_UNKNOWN"


class ReceiptMalformed(ReceiptError):
    """The text is not a receipt."""

    code = "RECEIPT_HANDLE_INVALID"

    def __init__(self, receipt: str) -> None:
        shown = receipt if len(receipt) <= 100 else f"{receipt[:100]}..."
        super().__init__(f"malformed receipt handle {shown!r}")
        self.receipt = shown


class ReceiptExpired(ReceiptError):
    """The lease has ended: its deadline passed, the message was redelivered, or the offsets were reset."""

    code = "RECEIPT_HANDLE_EXPIRED"

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"receipt handle expired: the lease on {topic}-{partition} @ {offset} is over")
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ReceiptUnknown(ReceiptError):
    """No delivery has this receipt, or its message is `settled` already."""

    code = "RECEIPT_HANDLE_UNKNOWN"

    def __init__(self, topic: str, partition: int, offset: int, reason: str = "unknown") -> None:
        what = "is settled already" if reason == "settled" else "was never given out"
        super().__init__(f"receipt handle unknown: the one for {topic}-{partition} @ {offset} {what}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class MessageNotFound(GoQueueError):
    """There is no such delayed message or dead letter."""

    code = "MESSAGE_NOT_FOUND"

    def __init__(self, text: str) -> None:
        super().__init__(text)


class AlreadyExists(GoQueueError):
    """There is a resource of that kind and name."""

    code = "ALREADY_EXISTS"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} already exists: {name}")
        self.what = what
        self.name = name


class ProducerError(GoQueueError):
    """The epoch or sequence of a producer is outdated."""

    code = "OUT_OF_ORDER_SEQUENCE"


class OutOfOrderSequence(ProducerError):
    """The batch does not follow the last one of its producer. Nothing was written."""

    code = "OUT_OF_ORDER_SEQUENCE"

    def __init__(self, sequence: int, expected: int) -> None:
        super().__init__(f"sequence {sequence} out of order, expected {expected}")
        self.sequence = sequence
        self.expected = expected


class ProducerFenced(ProducerError):
    """A newer instance of the producer has taken over."""

    code = "PRODUCER_FENCED"

    def __init__(self, producer_id: int, epoch: int, current_epoch: int) -> None:
        super().__init__(f"producer fenced: {producer_id} has epoch {current_epoch}, not {epoch}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current_epoch = current_epoch


class ProducerNotFound(ProducerError):
    """There is no such producer, or it was forgotten; initiate it."""

    code = "PRODUCER_NOT_FOUND"

    def __init__(self, producer_id: int) -> None:
        super().__init__(f"producer not found: {producer_id}; initiate it again")
        self.producer_id = producer_id


class TransactionError(GoQueueError):
    """The state of the transaction does not allow the request."""

    code = "INVALID_TXN_STATE"


class TransactionNotFound(TransactionError):
    """No open transaction has that id."""

    code = "TRANSACTION_NOT_FOUND"

    def __init__(self, transaction_id: str) -> None:
        shown = transaction_id if len(transaction_id) <= 300 else f"{transaction_id[:300]}..."
        super().__init__(f"transaction not found: {shown}")
        self.transaction_id = shown


class TransactionAborted(TransactionError):
    """The transaction was aborted by its timeout, an operator or a restart, not by its owner."""

    code = "TRANSACTION_TIMEOUT"

    def __init__(self, transaction_id: str, reason: str) -> None:
        super().__init__(f"transaction aborted ({reason}): {transaction_id}; begin again")
        self.transaction_id = transaction_id
        self.reason = reason


class InvalidTransactionState(TransactionError):
    """The request needs an open transaction and there is none, or the other way round."""

    code = "INVALID_TXN_STATE"

    def __init__(self, fault: str, transactional_id: str, state: str) -> None:
        super().__init__(f"{fault}: {transactional_id} is {state}")
        self.transactional_id = transactional_id
        self.state = state


class SchemaError(GoQueueError):
    """The schema registry refuses the request; `error_code` is the number that Confluent's clients know."""

    code = "INVALID_SCHEMA_REQUEST"
    error_code: int


class SubjectNotFound(SchemaError):
    """The registry has no such subject in the requested state, or no setting for it."""

    code = "SUBJECT_NOT_FOUND"

    def __init__(self, subject: str, reason: str = "", *, error_code: int = 40401) -> None:
        super().__init__(f"subject not found: {subject}{': ' + reason if reason else ''}")
        self.subject = subject
        self.reason = reason
        self.error_code = error_code


class SchemaVersionNotFound(SchemaError):
    """The subject has no such version in the requested state."""

    code = "SCHEMA_VERSION_NOT_FOUND"

    def __init__(self, subject: str, version: int | str, reason: str = "", *, error_code: int = 40402) -> None:
        super().__init__(f"version not found: {version} of {subject}{': ' + reason if reason else ''}")
        self.subject = subject
        self.version = version
        self.reason = reason
        self.error_code = error_code


class SchemaNotFound(SchemaError):
    """The registry has no such schema."""

    code = "SCHEMA_NOT_FOUND"

    def __init__(self, what: str) -> None:
        super().__init__(f"schema not found: {what}")
        self.what = what
        self.error_code = 40403


class InvalidSchema(SchemaError):
    """The text is not a schema of its type, or refers to a missing one."""

    code = "INVALID_SCHEMA"

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"invalid schema{' at ' + path if path else ''}: {reason}")
        self.reason = reason
        self.path = path
        self.error_code = 42201


class InvalidSchemaRequest(SchemaError):
    """A version, a compatibility level or policy, or a mode is not valid; `what` says which."""

    code = "INVALID_SCHEMA_REQUEST"

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"invalid {what} {value!r}: {reason}")
        self.what = what
        self.value = value
        self.reason = reason
        codes = {"version": 42202, "compatibility level": 42203, "compatibility policy": 42203, "mode": 42204}
        self.error_code = codes.get(what, 422)


class SchemaIncompatible(SchemaError):
    """The schema is not compatible with earlier ones of its subject; `messages` has each reason."""

    code = "SCHEMA_INCOMPATIBLE"

    def __init__(self, subject: str, level: str, messages: Sequence[str]) -> None:
        shown = "; ".join(messages[:3])
        more = f"; and {len(messages) - 3} more" if len(messages) > 3 else ""
        super().__init__(f"incompatible schema: {subject} is {level}: {shown}{more}")
        self.subject = subject
        self.level = level
        self.messages = list(messages)
        self.error_code = 409


class SchemaOperationRefused(SchemaError):
    """The registry cannot do this now: the subject is read-only, or another schema refers to the version."""

    code = "SCHEMA_OPERATION_REFUSED"

    def __init__(self, reason: str, *, error_code: int = 42205) -> None:
        super().__init__(f"operation refused: {reason}")
        self.reason = reason
        self.error_code = error_code


class AvailabilityError(GoQueueError):
    """The request cannot be answered now; the same request may succeed later."""

    code = "BROKER_NOT_AVAILABLE"
    retryable = True


class NotLeader(AvailabilityError):
    """Another node leads the partition. Nothing was written."""

    code = "NOT_LEADER"

    def __init__(self, topic: str, partition: int, leader: str = "") -> None:
        super().__init__(f"not the leader of {topic}-{partition}{', which is ' + leader if leader else ''}")
        self.topic = topic
        self.partition = partition
        self.leader = leader


class NotEnoughReplicas(AvailabilityError):
    """Fewer replicas of the partition are in sync than `acks=all` needs. Nothing was written."""

    code = "NOT_ENOUGH_REPLICAS"

    def __init__(self, topic: str, partition: int, in_sync: int, required: int) -> None:
        super().__init__(f"{in_sync} replicas of {topic}-{partition} are in sync, and acks=all needs {required}")
        self.topic = topic
        self.partition = partition
        self.in_sync = in_sync
        self.required = required


class BrokerUnavailable(AvailabilityError):
    """The broker is starting, stopping or cannot be reached."""

    code = "BROKER_NOT_AVAILABLE"

    def __init__(self, reason: str) -> None:
        super().__init__(f"broker unavailable: {reason}")
        self.reason = reason


class MetadataUnavailable(AvailabilityError):
    """The metadata log does not answer: nothing can be created, changed or elected. Publish, poll and ack work."""

    code = "METADATA_UNAVAILABLE"

    def __init__(self, reason: str) -> None:
        super().__init__(f"metadata unavailable: {reason}")
        self.reason = reason


class ClusterError(GoQueueError):
    """The metadata of the cluster, or what this node is in it."""

    code = "INTERNAL"


class MetadataDamaged(ClusterError):
    """Bytes of the metadata log are not what was written, or are of a newer version."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the metadata log cannot be read: {reason}")
        self.reason = reason


class MetadataTrimmed(ClusterError):
    """Entries of the metadata log below `first` are gone: a snapshot covers them."""

    def __init__(self, asked: int, first: int) -> None:
        super().__init__(f"metadata entry {asked} was trimmed; the log begins at {first}")
        self.asked = asked
        self.first = first


class MetadataWentBack(ClusterError):
    """The metadata log does not have what this node has applied already."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the metadata log went back (restored or re-created): {reason}. "
            f"This node does not serve; see `goqueue cluster recover`"
        )
        self.reason = reason


class MetadataTooNew(ClusterError):
    """The metadata log has a record, a field or a feature level that this version does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the metadata log was written by a newer version of GoQueue ({what}): update this node")
        self.what = what


class MetadataContradiction(ClusterError):
    """A record of the metadata log does not fit the state before it: a bug, or versions that disagree."""

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(f"entry {index} of the metadata log contradicts the state before it: {reason}")
        self.reason = reason
        self.index = index


class RequestTimeout(AvailabilityError):
    """No answer came in time; the outcome of the request is unknown."""

    code = "REQUEST_TIMEOUT"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} was not answered within {seconds:g} s")
        self.what = what
        self.seconds = seconds


class InternalError(GoQueueError):
    """A bug; the log of the broker has the details under `request_id`."""

    code = "INTERNAL"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"internal error; look for {request_id} in the log of the broker")
        self.request_id = request_id


class StorageError(GoQueueError):
    """The logs on the disk."""

    code = "STORAGE_FAILED"


class OffsetOutOfRange(StorageError):
    """The offset is outside [start, end] of the log."""

    code = "OFFSET_OUT_OF_RANGE"

    def __init__(self, offset: int, start: int, end: int, *, log: str = "") -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end}]{' of ' + log if log else ''}")
        self.offset = offset
        self.start = start
        self.end = end
        self.log = log


class CorruptRecord(StorageError):
    """Stored bytes fail the checks of a record."""

    code = "CORRUPT_RECORD"

    def __init__(self, reason: str, position: int, *, source: str = "") -> None:
        super().__init__(f"corrupt record ({reason}) at byte {position}{' of ' + source if source else ''}")
        self.reason = reason
        self.position = position
        self.source = source

    @classmethod
    def lost(cls, topic: str, partition: int, first_offset: int, next_offset: int, reason: str) -> Self:
        """The error of a reader at the damaged offsets [first_offset, next_offset)."""
        error = cls.__new__(cls, lost_text(topic, partition, first_offset, next_offset, reason))
        error.__dict__.update(
            topic=topic, partition=partition, first_offset=first_offset, next_offset=next_offset, reason=reason
        )
        return error


def lost_text(topic: str, partition: int, first_offset: int, next_offset: int, reason: str) -> str:
    """The text about offsets that cannot be read."""
    if next_offset - first_offset == 1:
        return f"offset {first_offset} of {topic}/{partition} cannot be read: {reason}"
    return f"offsets {first_offset} to {next_offset - 1} of {topic}/{partition} cannot be read: {reason}"


class ReadFailed(StorageError):
    """The disk returned an error. Other records may still be readable."""

    code = "STORAGE_FAILED"
    retryable = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}")
        self.path = path
        self.reason = reason


class StorageFull(StorageError):
    """The disk has no room, or the process no free descriptors. Nothing was written; reads work."""

    code = "STORAGE_FULL"
    retryable = True

    def __init__(self, path: str, reason: str = "No space left on device") -> None:
        super().__init__(f"cannot write {path}: {reason}; nothing was written, retry when there is room")
        self.path = path
        self.reason = reason


class StorageFailed(StorageError):
    """The disk failed, and this log takes no more writes until the broker is restarted."""

    code = "STORAGE_FAILED"
    retryable = True

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} of {path} failed: {reason}; this log takes no more writes until a restart")
        self.path = path
        self.operation = operation
        self.reason = reason


class TopicQuarantined(StorageError):
    """The files of the topic cannot be used, so it is not served. They are left as they are, for an operator."""

    code = "STORAGE_FAILED"
    retryable = True

    def __init__(self, topic: str, directory: str, reason: str) -> None:
        cure = f"repair or restore them, or move {directory} out of the data directory, then restart the broker"
        super().__init__(f"topic {topic} is quarantined: {reason}; its files were not changed: {cure}")
        self.topic = topic
        self.directory = directory
        self.reason = reason


class DataDirectoryError(StorageError):
    """The data directory cannot be opened; no record in it was changed."""

    code = "STORAGE_FAILED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DirectoryUnusable(DataDirectoryError):
    """The path is missing, not a directory, or may not be read or written."""


class DamagedFile(DirectoryUnusable):
    """A file is damaged that is needed to read all others in its directory."""


class DirectoryLocked(DataDirectoryError):
    """Another process has the data directory open."""


class ForeignFile(DataDirectoryError):
    """There is a file that GoQueue did not write in one of its directories."""


class UnsupportedFormat(DataDirectoryError):
    """The data has a format that this version does not know."""
