"""The settings of one log."""

from dataclasses import dataclass, fields
from enum import StrEnum

from goqueue.errors import InvalidConfig
from goqueue.record.header import VALUE_BYTES_MAX


class Flush(StrEnum):
    """When records are synced to the disk, and so what a power cut can lose.

    A crash of the process alone loses nothing that was appended, in any mode: the operating system has it.
    """

    GROUP = "group"
    """Acks wait for fdatasync, which many appends share. A power cut loses nothing that was acked."""
    INTERVAL = "interval"
    """Acks do not wait; fdatasync runs every `flush_interval_ms`. A power cut loses at most about that much."""
    NONE = "none"
    """Acks do not wait, and only sealed segments are synced. A power cut may lose the active segment."""


class Cleanup(StrEnum):
    """What becomes of old records."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


NUMBER_MAX = 9 * 10**12
"""The upper bound of all settings: 285 years in milliseconds, nine terabytes in bytes."""
_MAY_BE_ZERO = frozenset({"retention_ms", "retention_bytes", "tombstone_retention_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log; each has a bound or says why it has none."""

    segment_bytes: int = 64 * 1024 * 1024  # the unit of retention, and the most that recovery has to read
    segment_age_ms: int = 7 * 86_400_000  # so that a quiet log can expire and be compacted
    value_bytes_max: int = VALUE_BYTES_MAX
    flush: Flush = Flush.GROUP
    flush_interval_ms: int = 1_000
    cleanup: Cleanup = Cleanup.DELETE
    retention_ms: int = 168 * 3_600_000  # 0 = forever
    retention_bytes: int = 0  # 0 = unlimited
    dirty_ratio: float = 0.5  # compaction starts when this share of the sealed bytes is new since the last one
    tombstone_retention_ms: int = 24 * 3_600_000  # a reader that lags by more may miss a deletion
    compaction_keys_max: int = 500_000  # per run; bounds the memory of the key table

    def __post_init__(self) -> None:
        for name, allowed in (("flush", Flush), ("cleanup", Cleanup)):
            value = getattr(self, name)
            if value not in list(allowed):
                raise InvalidConfig(name, value, f"must be one of {', '.join(allowed)}")
            object.__setattr__(self, name, allowed(value))
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if field.type is int and (type(value) is not int or not least <= value <= NUMBER_MAX):
                raise InvalidConfig(field.name, value, f"must be a whole number from {least} to {NUMBER_MAX}")
        if self.value_bytes_max > 2**31 - 1:
            raise InvalidConfig("value_bytes_max", self.value_bytes_max, "must be below 2 GiB")
        if type(self.dirty_ratio) not in (float, int) or not 0 < self.dirty_ratio <= 1:
            raise InvalidConfig("dirty_ratio", self.dirty_ratio, "must be above 0 and at most 1")

    @property
    def compacts(self) -> bool:
        return self.cleanup in (Cleanup.COMPACT, Cleanup.COMPACT_DELETE)

    @property
    def deletes(self) -> bool:
        return self.cleanup in (Cleanup.DELETE, Cleanup.COMPACT_DELETE)
