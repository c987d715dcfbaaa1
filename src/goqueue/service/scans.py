"""What can be asked of a broker by those who read whole ranges of a partition. The rules are those of `service.py`."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece


class Delayed(StrEnum):
    """Which delayed messages a reader sees: those that are due, or all that nobody has cancelled."""

    DUE = "due"
    INCLUDE = "include"


class ScanVerbs(Protocol):
    """Plans for bulk readers. The records themselves are read by `Service.read`, or from the files of the log."""

    def pieces(
        self, topic: str, partition: int, *, start_offset: int, end_offset: int, piece_bytes: int
    ) -> Sequence[Piece]:
        """The range cut into pieces of about so many bytes, without a gap; what is not stored takes none."""

    def hidden(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int,
        end_offset: int,
        isolation: str = "read_committed",
        delayed: str = Delayed.DUE,
    ) -> Sequence[HiddenRange]:
        """What of the range is not to be seen, besides control records, in ranges that rise."""

    def rescheduled(self, topic: str, partition: int, *, start_offset: int, end_offset: int) -> Sequence[DueTime]:
        """The messages of the range that got another time than their record says, and that time, by offset."""
