"""Reports of messages that a reader cannot read: damaged on the disk, or with a value that cannot be decompressed.

The reader skips exactly these offsets and continues with the next message. `on_damage` chooses what else happens:
`warn` issues a `DataLossWarning` for each gap, `raise` raises `CorruptRecord` when the reader comes to it, `skip` does
nothing. Records that retention or compaction has deleted are not damage.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from goqueue.errors import CorruptRecord, GoQueueWarning, InvalidRequest, lost_text
from goqueue.names import TopicPartition
from goqueue.record.message import Undecodable
from goqueue.wire.reports import Gap, PartitionGap

OnDamage = Literal["warn", "raise", "skip"]
_CHOICES = get_args(OnDamage)
STORED = "the stored record is damaged"
VALUE = "the value cannot be decompressed"
_CURES = {
    STORED: "`goqueue log verify` names the file; restore the partition from a backup to get the messages back",
    VALUE: "the topic setting verify_compression=on refuses such messages when they are published",
}


class Lost(NamedTuple):
    """Offsets [first_offset, next_offset) of a partition that a reader skipped, and why."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    kind: str  # STORED or VALUE
    reason: str

    @property
    def why(self) -> str:
        return f"{self.kind} ({self.reason})"


class DataLossWarning(GoQueueWarning):
    """Messages were skipped because they cannot be read; the attributes say which."""

    def __init__(self, topic: str, partition: int, first_offset: int, next_offset: int, reason: str, cure: str) -> None:
        super().__init__(f"{lost_text(topic, partition, first_offset, next_offset, reason)}; {cure}")
        self.topic = topic
        self.partition = partition
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.reason = reason
        self.cure = cure

    def __reduce__(self) -> tuple[type["DataLossWarning"], tuple[object, ...]]:
        facts = (self.topic, self.partition, self.first_offset, self.next_offset, self.reason, self.cure)
        return type(self), facts


def check_on_damage(on_damage: str) -> None:
    """Raise `InvalidRequest` for any other word."""
    if on_damage not in _CHOICES:
        raise InvalidRequest(f"invalid on_damage {on_damage!r}: must be {', '.join(_CHOICES)}", path="on_damage")


def damaged(origin: TopicPartition, gaps: Iterable[Gap], *, end_offset: int | None = None) -> list[Lost]:
    """The gaps of an answer, those below `end_offset`."""
    found: list[Lost] = []
    for gap in gaps:
        next_offset = gap.next_offset if end_offset is None else min(gap.next_offset, end_offset)
        if gap.first_offset < next_offset:
            found.append(Lost(*origin, gap.first_offset, next_offset, STORED, gap.reason))
    return found


def polled_gaps(gaps: Iterable[PartitionGap]) -> list[Lost]:
    """The gaps that a poll was told of."""
    return [Lost(one.topic, one.partition, one.first_offset, one.next_offset, STORED, one.reason) for one in gaps]


def undecodable(origin: TopicPartition, records: Iterable[Undecodable]) -> list[Lost]:
    """Records whose values cannot be decompressed."""
    return [Lost(*origin, one.offset, one.offset + 1, VALUE, one.reason) for one in records]


def error_of(lost: Lost) -> CorruptRecord:
    """The error that stops a reader."""
    return CorruptRecord.lost(lost.topic, lost.partition, lost.first_offset, lost.next_offset, lost.why)


def warn(lost: Sequence[Lost]) -> None:
    """Issue a warning for each of them."""
    for one in lost:
        warning = DataLossWarning(*one[:4], one.why, _CURES[one.kind])
        warnings.warn(warning, stacklevel=2)
