"""The verbs that plan bulk reads of a partition."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece


class DelayedView(StrEnum):
    """Which delayed messages a reader sees: those that are due, or all that are not cancelled."""

    DUE = "due"
    INCLUDE = "include"


class ScanVerbs(Protocol):
    """Plans for bulk readers. The records themselves are read by `MessageVerbs.read`, or from the files of the log."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER, not_http="plans for bulk readers of the native protocol")
    def pieces(
        self, topic: str, partition: int, *, start_offset: int, end_offset: int, piece_bytes: int
    ) -> Pending[Sequence[Piece]]:
        """The range cut into pieces of about so many bytes, without a gap; what is not stored takes none."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER, not_http="plans for bulk readers of the native protocol")
    def hidden(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int,
        end_offset: int,
        isolation: str = "read_committed",
        delayed: str = DelayedView.DUE,
    ) -> Pending[Sequence[HiddenRange]]:
        """The ranges of offsets that a reader may not see, besides control records, ascending."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER, not_http="plans for bulk readers of the native protocol")
    def rescheduled(
        self, topic: str, partition: int, *, start_offset: int, end_offset: int
    ) -> Pending[Sequence[DueTime]]:
        """The messages of the range that got another time than their record says, and that time, by offset."""
