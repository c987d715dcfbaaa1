"""Messages that members of a group without leases were given, and whose positions are not committed yet.

A poll confirms that all messages of earlier polls are processed, from all partitions. So the messages of a member are
kept in two parts: those of its last poll that returned messages of this partition, and those before. The first part is
what a repeated poll brings again.
"""

from typing import Final, NamedTuple

from pyroaring import BitMap64


class Handed(NamedTuple):
    """The messages of one member: those of its last poll that returned any of this partition, and those before."""

    before: BitMap64
    last: BitMap64
    poll: int  # which poll of the member that was, by the broker's count
    number: int  # that the member gave the poll; 0 without one


_NOTHING: Final = Handed(BitMap64(), BitMap64(), 0, 0)


class HandedOver:
    """The messages of all members on one partition."""

    __slots__ = ("_by_member",)

    def __init__(self) -> None:
        self._by_member: dict[str, Handed] = {}

    def add(self, member: str, offsets: BitMap64, *, poll: int, number: int = 0) -> None:
        """The poll returns these; `number` is the one that the member gave it. A repeated poll may return more."""
        before, last, _, last_number = self._by_member.get(member, _NOTHING)
        if number and number == last_number:
            self._by_member[member] = Handed(before, last | offsets, poll, number)
        else:
            self._by_member[member] = Handed(before | last, offsets, poll, number)

    def polled(self, member: str, number: int) -> BitMap64:
        """What the last poll has returned, if the member gave it that number."""
        last = self._by_member.get(member, _NOTHING)
        return last.last if last.number == number else _NOTHING.last

    def forget_poll(self, member: str) -> None:
        """The member counts its polls anew."""
        if member in self._by_member:
            self._by_member[member] = self._by_member[member]._replace(number=0)

    def processed(self, member: str, *, poll: int, is_leaving: bool) -> BitMap64:
        """The messages that the member has processed: all of earlier polls than `poll`; all of them when it leaves."""
        before, last, last_poll, _ = self._by_member.get(member, _NOTHING)
        return before | last if is_leaving or last_poll < poll else before

    def last_poll(self, member: str) -> int:
        """The number of the member's last poll that returned any."""
        return self._by_member.get(member, _NOTHING).poll

    def discard(self, offsets: BitMap64) -> None:
        """These are done: no member has them any longer."""
        for member, (before, last, poll, number) in self._by_member.items():
            self._by_member[member] = Handed(before - offsets, last - offsets, poll, number)

    def remove(self, member: str) -> BitMap64:
        """The member has nothing any longer; returns what it had."""
        before, last, _, _ = self._by_member.pop(member, _NOTHING)
        return before | last

    def clear(self) -> None:
        """No member has anything."""
        self._by_member.clear()
