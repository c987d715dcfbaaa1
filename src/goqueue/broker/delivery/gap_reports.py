"""The damaged records that the cursor of a group has passed, until a poll reports them.

Damage is reported once to each group. A poll may be repeated because its answer was lost; what that answer reported is
reported again, so it is kept until the member's next numbered poll that reports anything.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.partition.record_fetcher import KnownDamage
from goqueue.delivery.offsets import between
from goqueue.record.header import OFFSET_MAX
from goqueue.wire.reports import Gap


class _Reported(NamedTuple):
    number: int  # that the member gave its poll
    offsets: BitMap64


class GapReports:
    """What one group on one partition has to be told, and was told."""

    __slots__ = ("_open", "_reported")

    def __init__(self) -> None:
        self._open = BitMap64()
        self._reported: dict[str, _Reported] = {}  # by member

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._open)

    def add(self, offsets: BitMap64) -> None:
        """The cursor has passed these."""
        self._open |= offsets

    def take(self, damage: KnownDamage, most: int, *, member: str, number: int) -> Sequence[Gap]:
        """The first ranges to report, `most` of them at most. A `number` other than 0 makes the poll repeatable."""
        gaps = damage.gaps(self._open, most=most)
        end = gaps[-1].next_offset if len(gaps) == most else OFFSET_MAX
        if number:
            self._reported[member] = _Reported(number, between(self._open, 0, end))
        self._open = between(self._open, end, OFFSET_MAX)
        return gaps

    def has_reported(self, member: str, number: int) -> bool:
        """Whether the member's poll of that number reported any."""
        return member in self._reported and self._reported[member].number == number

    def report_again(self, member: str, number: int) -> None:
        """The answer to the member's poll of that number was lost."""
        if self.has_reported(member, number):
            self._open |= self._reported.pop(member).offsets

    def forget(self, member: str) -> None:
        """The member is gone, or counts its polls anew."""
        self._reported.pop(member, None)
