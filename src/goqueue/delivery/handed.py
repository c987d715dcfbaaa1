"""Messages that members of a group without leases were given, and whose positions are not committed yet.

A poll says that everything from earlier polls is processed, whichever partitions it brings messages from. So what a
member got is kept in two parts: by its last poll that brought something from this partition, and before that.
"""

from typing import Final, NamedTuple

from pyroaring import BitMap64


class Handed(NamedTuple):
    """What one member has: before its last poll of this partition that brought something, and by that poll."""

    before: BitMap64
    last: BitMap64
    poll: int  # the number of that poll


_NOTHING: Final = Handed(BitMap64(), BitMap64(), 0)


class HandedOver:
    """What all members have on one partition."""

    __slots__ = ("_by_member",)

    def __init__(self) -> None:
        self._by_member: dict[str, Handed] = {}

    def add(self, member: str, offsets: BitMap64, *, poll: int) -> None:
        """The poll of that number brings these."""
        before, last, _ = self._by_member.get(member, _NOTHING)
        self._by_member[member] = Handed(before | last, offsets, poll)

    def processed(self, member: str, *, poll: int, is_leaving: bool) -> BitMap64:
        """What the member has processed: all from before its poll of that number; when it leaves, everything."""
        before, last, last_poll = self._by_member.get(member, _NOTHING)
        return before | last if is_leaving or last_poll < poll else before

    def discard(self, offsets: BitMap64) -> None:
        """These are done: no member has them any longer."""
        for member, (before, last, poll) in self._by_member.items():
            self._by_member[member] = Handed(before - offsets, last - offsets, poll)

    def remove(self, member: str) -> BitMap64:
        """The member has nothing any longer; returns what it had."""
        before, last, _ = self._by_member.pop(member, _NOTHING)
        return before | last

    def clear(self) -> None:
        """No member has anything."""
        self._by_member.clear()
