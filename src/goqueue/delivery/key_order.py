"""Order per key, parallel over keys: which member has which key in a key-shared group.

A key is held from the delivery of one of its messages until all delivered ones are settled. Meanwhile its other
messages are parked, so a message that fails repeatedly blocks its own key and no other. One answer may have several
messages of a key: the member gets them in order, and no other member gets any of them. A message that returned, because
it failed or was released, is redelivered before any later message of its key.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pyroaring import BitMap64


class Hold:
    """A key that a member has, or that waits for a retry."""

    __slots__ = ("in_flight", "key", "member", "parked", "returned", "since_ns")

    def __init__(self, key: bytes, member: str, since_ns: int) -> None:
        self.key = key
        self.member = member
        self.since_ns = since_ns
        self.in_flight: set[int] = set()
        self.returned: set[int] = set()  # were delivered, and will be redelivered
        self.parked = BitMap64()

    @property
    def first(self) -> int:
        """The lowest offset that holds the key."""
        return min(self.in_flight | self.returned)

    def may_go(self, offset: int, *, is_begun: bool) -> bool:
        """Whether a message of the key may be delivered now.

        Not while another one is delivered, except in the same answer; not before an earlier one that returned; and for
        the first time not before a parked one.
        """
        if (self.in_flight and not is_begun) or (self.returned and offset > min(self.returned)):
            return False
        return offset in self.returned or not self.parked or offset < self.parked.min()


class Chosen(NamedTuple):
    """Candidates that may be delivered now, and those that may not."""

    allowed: BitMap64
    parked: BitMap64


class KeyOrder:
    """The keys of one cursor that are held."""

    def __init__(self) -> None:
        self._holds: dict[bytes, Hold] = {}
        self._key_of: dict[int, bytes] = {}  # of messages that were delivered and are not settled

    @property
    def parked(self) -> BitMap64:
        return BitMap64().union(*(hold.parked for hold in self._holds.values()))

    def lowest_parked(self) -> int | None:
        return min((hold.parked.min() for hold in self._holds.values() if hold.parked), default=None)

    def choose(self, candidates: Iterable[tuple[int, bytes | None]], member: str, *, now_ns: int) -> Chosen:
        """The candidates, in the order of offsets, that may go to the member now; their keys are held from now on."""
        allowed, parked = BitMap64(), BitMap64()
        begun: set[bytes] = set()  # keys that were free when this answer started
        for offset, key in candidates:
            if key is None:
                allowed.add(offset)
                continue
            hold = self._holds.get(key)
            if hold is None:
                hold = self._holds[key] = Hold(key, member, now_ns)
                begun.add(key)
            elif not hold.may_go(offset, is_begun=key in begun):
                hold.parked.add(offset)
                parked.add(offset)
                continue
            elif not hold.in_flight:
                begun.add(key)
            hold.member = member
            hold.returned.discard(offset)
            hold.in_flight.add(offset)
            self._key_of[offset] = key
            allowed.add(offset)
        return Chosen(allowed, parked)

    def resume(self, offset: int, key: bytes, member: str, *, in_flight: bool, now_ns: int) -> None:
        """The message was delivered before a restart and is not settled."""
        hold = self._holds.setdefault(key, Hold(key, member, now_ns))
        if in_flight:
            hold.member = member
            hold.in_flight.add(offset)
        else:
            hold.returned.add(offset)
        self._key_of[offset] = key

    def settled(self, offsets: Iterable[int]) -> BitMap64:
        """These are done; returns the messages that are no longer parked."""
        freed = BitMap64()
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            hold = self._holds[key]
            hold.in_flight.discard(offset)
            hold.returned.discard(offset)
            if hold.in_flight or hold.returned:
                freed |= _free_returned(hold)
            else:
                freed |= hold.parked
                del self._holds[key]
        return freed

    def returned(self, offsets: Iterable[int]) -> BitMap64:
        """These are delivered again, now or later; returns the messages that are no longer parked."""
        freed = BitMap64()
        for offset in offsets:
            key = self._key_of.get(offset)
            if key is not None:
                hold = self._holds[key]
                hold.in_flight.discard(offset)
                hold.returned.add(offset)
                freed |= _free_returned(hold)
        return freed

    def drop(self, offsets: BitMap64) -> BitMap64:
        """These are done, in any state; returns the messages that are no longer parked."""
        for hold in self._holds.values():
            hold.parked -= offsets
        return self.settled([offset for offset in self._key_of if offset in offsets])

    def blocking(self) -> list[Hold]:
        """The keys with parked messages."""
        return [hold for hold in self._holds.values() if hold.parked]


def _free_returned(hold: Hold) -> BitMap64:
    """Parked messages that were delivered before may be next."""
    freed = BitMap64([offset for offset in hold.returned if offset in hold.parked]) if hold.parked else BitMap64()
    hold.parked -= freed
    return freed
