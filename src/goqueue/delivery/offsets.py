"""Sets of offsets: small helpers over roaring bitmaps, none of which runs once per offset."""

from array import array

from pyroaring import BitMap64

from goqueue.record.header import Buffer

_LONG = 1 << 32  # a range costs time and memory by its length, a copy by what is in the set


def from_raw(raw: Buffer) -> BitMap64:
    """The offsets in a buffer of uint64 in machine order, as the kernel makes them."""
    numbers = array("Q")
    numbers.frombytes(raw)
    return BitMap64(numbers)


def first_gap(offsets: BitMap64, start: int) -> int:
    """The first offset from `start` on that is not in the set."""
    step = 1
    while offsets.range_cardinality(start, start + step) == step:
        step *= 2
    low, high = start + step // 2, start + step  # all below `low` are there, not all below `high`
    while high - low > 1:
        middle = (low + high) // 2
        if offsets.range_cardinality(low, middle) == middle - low:
            low = middle
        else:
            high = middle
    return low


def runs(offsets: BitMap64) -> list[tuple[int, int]]:
    """The set as ranges [first, end) that rise and do not touch."""
    left, found = offsets.copy(), []
    while left:
        first = left.min()
        end = first_gap(left, first)
        found.append((first, end))
        left.remove_range(first, end)
    return found


def span(start: int, end: int) -> BitMap64:
    """All offsets in [start, end)."""
    offsets = BitMap64()
    if start < end:
        offsets.add_range(start, end)
    return offsets


def between(offsets: BitMap64, start: int, end: int) -> BitMap64:
    """Those of the set in [start, end)."""
    if not offsets:
        return BitMap64()
    start, end = max(start, offsets.min()), min(end, offsets.max() + 1)
    if end - start < _LONG:
        found = span(start, end)
        found &= offsets
        return found
    found = offsets.copy()
    found.remove_range(0, start)
    found.remove_range(end, found.max() + 1)
    return found
