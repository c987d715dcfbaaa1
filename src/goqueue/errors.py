"""Every error GoQueue raises, in one tree.

    GoQueueError
    ├── InvalidConfig            a setting has a value that cannot be
    ├── InvalidTopic             a topic, or a partition of it, has a name that cannot be
    ├── Conflict                 the state of the thing forbids what was asked of it
    ├── MessageError             the message itself is wrong; sending it again will not help
    │   ├── InvalidMessage
    │   ├── MessageTooLarge
    │   └── InvalidBatch
    └── StorageError             the log on the disk
        ├── OffsetOutOfRange
        ├── CorruptRecord
        ├── ReadFailed           retryable: the disk did not deliver
        ├── StorageFull          retryable: no room now, reads go on
        ├── StorageFailed        retryable elsewhere: this log takes no more writes
        └── DataDirectoryError   the data directory cannot be opened; no record in it was changed
            ├── DirectoryUnusable
            ├── DirectoryLocked
            ├── ForeignFile
            └── UnsupportedFormat

An error carries its facts as attributes and builds its sentence from them. `code` names the error at
every door; `retryable` says whether the same request may succeed later.
"""

from typing import ClassVar


class GoQueueError(Exception):
    """The base of all errors of this package."""

    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False


class InvalidConfig(GoQueueError):
    """A setting has a value that cannot be."""

    code = "INVALID_CONFIG"

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(f"{setting} = {value!r}: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason


class InvalidTopic(GoQueueError):
    """A topic, or a partition of it, has a name that cannot be."""

    code = "INVALID_TOPIC"

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"invalid topic name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class Conflict(GoQueueError):
    """The state of the thing forbids what was asked of it."""

    code = "CONFLICT"


class MessageError(GoQueueError):
    """The message itself is wrong; sending it again will not help."""

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
    """A raw batch of records breaks the record format."""

    code = "INVALID_BATCH"

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"invalid batch: {reason} in the record at byte {position}")
        self.reason = reason
        self.position = position


class StorageError(GoQueueError):
    """The log on the disk."""

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
    """Bytes that should be a record fail their checks."""

    code = "CORRUPT_RECORD"

    def __init__(self, reason: str, position: int, *, source: str = "") -> None:
        super().__init__(f"corrupt record ({reason}) at byte {position}{' of ' + source if source else ''}")
        self.reason = reason
        self.position = position
        self.source = source


class ReadFailed(StorageError):
    """The disk did not deliver what is stored there. Nothing follows from it for other records."""

    code = "STORAGE_FAILED"
    retryable = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}")
        self.path = path
        self.reason = reason


class StorageFull(StorageError):
    """The disk has no room, or the process no more descriptors. Nothing of the request was written; reads go on."""

    code = "STORAGE_FULL"
    retryable = True

    def __init__(self, path: str, reason: str = "No space left on device") -> None:
        super().__init__(f"cannot write {path} now: {reason}")
        self.path = path
        self.reason = reason


class StorageFailed(StorageError):
    """The disk failed, and this log takes no more writes. It is never retried and called a success."""

    code = "STORAGE_FAILED"
    retryable = True

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} of {path} failed: {reason}; this log takes no more writes")
        self.path = path
        self.operation = operation
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


class DirectoryLocked(DataDirectoryError):
    """Another process has the data directory open."""


class ForeignFile(DataDirectoryError):
    """A file that GoQueue did not write stands where only its own belong."""


class UnsupportedFormat(DataDirectoryError):
    """The data were written in a format this version does not know."""
