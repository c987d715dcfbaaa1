"""Producer ids: unique in the cluster, and each names its coordinator.

    bit 52        set: the id has this form
    bits 8 to 51  a number from an allocator, which gives every number once
    bits 0 to 7   the partition of `__transactions` whose leader coordinates the producer; 255: none does

A record carries the id of its producer and not the transactional id. So the id of a record of an open transaction
names the coordinator to ask about it. Ids stay below 2^53, where JSON numbers are exact. Ids of data directories from
before this form have bit 52 clear; any coordinator may know them.
"""

from collections.abc import Callable, Iterator
from typing import Final

from goqueue.transactions.producers import ID_STEP

NUMBER_BITS: Final = 44
_FORM: Final = 1 << 52
_NOBODY: Final = ID_STEP - 1


def producer_id(number: int, partition: int | None = None) -> int:
    """The id of that number; without a partition the producer has no coordinator."""
    assert 0 <= number < 1 << NUMBER_BITS
    assert partition is None or 0 <= partition < _NOBODY
    return _FORM | number * ID_STEP | (_NOBODY if partition is None else partition)


def has_coordinator(id: int) -> bool:
    """Whether some coordinator may know the id."""
    return not id & _FORM or id % ID_STEP != _NOBODY


def coordinator_of(id: int) -> int | None:
    """The partition of `__transactions` that knows the id; None if any may know it, or none does."""
    return id % ID_STEP if id & _FORM and id % ID_STEP != _NOBODY else None


class ProducerNumbers:
    """Numbers for producer ids, taken in blocks: in a cluster each block is given to one node, once."""

    def __init__(self, take_block: Callable[[], range]) -> None:
        self._take_block = take_block
        self._left: Iterator[int] = iter(())

    def take(self) -> int:
        """A number that no other producer gets."""
        for number in self._left:
            return number
        self._left = iter(self._take_block())
        return next(self._left)
