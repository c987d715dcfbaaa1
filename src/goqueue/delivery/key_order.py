"""Order per key, parallel over keys: who has which key in a key-shared group.

A key is held from the delivery of one of its messages until all that were delivered are settled. Meanwhile its other
messages are parked, so one that fails again and again holds back its own key and no other. What goes out in one answer
may hold several messages of a key: the member gets them in order, and nobody else gets any of them. A message that
failed goes out again before any later one of its key.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pyroaring import BitMap64


class Hold:
    """A key that somebody has, or that waits for a retry."""

    __slots__ = ("in_flight", "key", "member", "parked", "since_ns", "unsettled")

    def __init__(self, key: bytes, member: str, since_ns: int) -> None:
        self.key = key
        self.member = member
        self.since_ns = since_ns
        self.unsettled: set[int] = set()  # delivered at least once
        self.in_flight: set[int] = set()
        self.parked = BitMap64()


class Chosen(NamedTuple):
    """Candidates that may go out, and those that may not yet."""

    allowed: BitMap64
    parked: BitMap64


class KeyOrder:
    """The keys of one cursor that are held."""

    def __init__(self) -> None:
        self._holds: dict[bytes, Hold] = {}
        self._key_of: dict[int, bytes] = {}  # of what is unsettled

    @property
    def parked_count(self) -> int:
        """How many messages are held back."""
        return sum(len(hold.parked) for hold in self._holds.values())

    def lowest_parked(self) -> int | None:
        """The lowest offset that is held back."""
        return min((hold.parked.min() for hold in self._holds.values() if hold.parked), default=None)

    def choose(self, candidates: Iterable[tuple[int, bytes | None]], member: str, *, now_ns: int) -> Chosen:
        """Which of the candidates, in the order of their offsets, may go to the member now; they are taken to go."""
        allowed, parked = BitMap64(), BitMap64()
        begun: set[bytes] = set()
        for offset, key in candidates:
            if key is None:
                allowed.add(offset)
                continue
            hold = self._holds.get(key)
            if hold is None:
                hold = self._holds[key] = Hold(key, member, now_ns)
                begun.add(key)
            elif not self._may_go(hold, offset, member, is_begun=key in begun):
                hold.parked.add(offset)
                parked.add(offset)
                continue
            elif not hold.in_flight:
                begun.add(key)
            hold.member = member
            hold.unsettled.add(offset)
            hold.in_flight.add(offset)
            self._key_of[offset] = key
            allowed.add(offset)
        return Chosen(allowed, parked)

    def resume(self, offset: int, key: bytes, member: str, *, in_flight: bool, now_ns: int) -> None:
        """The message was delivered before a restart and is not settled."""
        hold = self._holds.setdefault(key, Hold(key, member, now_ns))
        hold.unsettled.add(offset)
        if in_flight:
            hold.member = member
            hold.in_flight.add(offset)
        self._key_of[offset] = key

    def withdraw(self, offsets: Iterable[int]) -> BitMap64:
        """These were chosen and did not go out after all; what is not held back any more."""
        return self.settled(offsets)

    def settled(self, offsets: Iterable[int]) -> BitMap64:
        """These are done; what is not held back any more."""
        freed = BitMap64()
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            hold = self._holds[key]
            hold.unsettled.discard(offset)
            hold.in_flight.discard(offset)
            if hold.unsettled:
                freed |= self._free_retries(hold)
            else:
                freed |= hold.parked
                del self._holds[key]
        return freed

    def failed(self, offsets: Iterable[int]) -> BitMap64:
        """These wait for another delivery; what is not held back any more."""
        freed = BitMap64()
        for offset in offsets:
            key = self._key_of.get(offset)
            if key is not None:
                hold = self._holds[key]
                hold.in_flight.discard(offset)
                freed |= self._free_retries(hold)
        return freed

    def forget(self) -> None:
        """Begin anew."""
        self._holds.clear()
        self._key_of.clear()

    def blocking(self) -> list[Hold]:
        """The keys that hold something back."""
        return [hold for hold in self._holds.values() if hold.parked]

    def _may_go(self, hold: Hold, offset: int, member: str, *, is_begun: bool) -> bool:
        """Whether a message of a key that is held may go out: not before an earlier one that waits for its retry."""
        if any(other < offset for other in hold.unsettled if other not in hold.in_flight):
            return False
        if is_begun or not hold.in_flight:
            return True
        return hold.member == member and offset in hold.unsettled and offset < min(hold.in_flight)

    def _free_retries(self, hold: Hold) -> BitMap64:
        """Parked messages that were delivered before may be next."""
        freed = BitMap64([offset for offset in hold.unsettled if offset in hold.parked])
        hold.parked -= freed
        return freed
