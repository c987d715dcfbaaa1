"""Plans for bulk reads of ranges of a partition: where to cut them, and which offsets are hidden.

Cuts are at entries of the offset index, so that a plan reads no record. Sizes are exact to a few kilobytes.
"""

from collections.abc import Callable

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.reading import check_delayed, check_isolation
from goqueue.delivery.offsets import between, runs
from goqueue.errors import InvalidRequest
from goqueue.service.messages import Isolation
from goqueue.service.scans import DelayedView
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece

PIECES_MAX = 10_000
PIECE_BYTES_MIN = 4096


class Scans:
    """The verbs of bulk readers."""

    def __init__(self, partition_of: Callable[[str, int], PartitionLeader]) -> None:
        self._partition_of = partition_of

    def pieces(
        self, topic: str, partition: int, *, start_offset: int, end_offset: int, piece_bytes: int
    ) -> list[Piece]:
        """The range cut into pieces of about `piece_bytes`, without a gap; offsets that are not stored have size 0."""
        log = self._partition_of(topic, partition).log
        _check_range(start_offset, end_offset)
        if piece_bytes < 1:
            raise InvalidRequest(f"invalid piece_bytes {piece_bytes}: must be positive", path="piece_bytes")
        size = max(piece_bytes, PIECE_BYTES_MIN, log.size // PIECES_MAX)
        pieces = log.pieces(start_offset, end_offset, piece_bytes=size)
        return [Piece(first_offset=first, size_bytes=held) for first, held in pieces]

    def hidden(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int,
        end_offset: int,
        isolation: str = Isolation.READ_COMMITTED,
        delayed: str = DelayedView.DUE,
    ) -> list[HiddenRange]:
        """The hidden offsets of the range, without control records, as ascending ranges."""
        leader = self._partition_of(topic, partition)
        _check_range(start_offset, end_offset)
        start, end = max(start_offset, leader.log.start_offset), min(end_offset, leader.high_watermark)
        sees_all, is_committed = check_delayed(delayed), check_isolation(isolation)
        if start >= end:
            return []
        delivery = leader.delivery or leader.begin_delivery()
        found = between(delivery.cancelled, start, end) if sees_all else delivery.hidden(start, end)
        if is_committed and leader.aborted:
            found = found | between(leader.aborted, start, end)
        return [HiddenRange(first_offset=first, end_offset=end) for first, end in runs(found)]

    def rescheduled(self, topic: str, partition: int, *, start_offset: int, end_offset: int) -> list[DueTime]:
        """The rescheduled messages of the range with their new times, by offset."""
        leader = self._partition_of(topic, partition)
        _check_range(start_offset, end_offset)
        times_ns = (leader.delivery or leader.begin_delivery()).rescheduled
        return [
            DueTime(offset=offset, due_ns=due_ns)
            for offset, due_ns in sorted(times_ns.items())
            if start_offset <= offset < end_offset
        ]


def _check_range(start_offset: int, end_offset: int) -> None:
    if not 0 <= start_offset <= end_offset:
        raise InvalidRequest(f"invalid range {start_offset} to {end_offset}", path="start_offset")
