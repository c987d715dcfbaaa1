"""Sets of offsets as spans: sorted pairs [first, end) that neither touch nor overlap.

A position is an offset and the few offsets before it that are still to be read. These are stored as spans, so that a
checkpoint is small and readable: `"10,17-19"`. All functions are linear in the number of spans, never of offsets.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from goqueue.record.header import OFFSET_MAX

Span = tuple[int, int]
Spans = tuple[Span, ...]

NONE: Spans = ()
_TEXT = re.compile(r"(\d{1,19}(-\d{1,19})?(,\d{1,19}(-\d{1,19})?)*)?", re.ASCII)


def union(*several: Iterable[Span]) -> Spans:
    """The offsets in any of them; the input need not be sorted."""
    merged: list[Span] = []
    for first, end in sorted(span for spans in several for span in spans):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return tuple(merged)


def minus(one: Iterable[Span], other: Sequence[Span]) -> Spans:
    """The offsets in the first and not in the second."""
    left: list[Span] = []
    place = 0
    for first, end in one:
        at = first
        while place and other[place - 1][1] > at:  # a span of `other` may cover several spans of `one`
            place -= 1
        while place < len(other) and other[place][1] <= at:
            place += 1
        while place < len(other) and other[place][0] < end:
            if at < other[place][0]:
                left.append((at, other[place][0]))
            at = max(at, other[place][1])
            if at >= end:
                break
            place += 1
        if at < end:
            left.append((at, end))
    return tuple(left)


def within(one: Iterable[Span], other: Sequence[Span]) -> Spans:
    """The offsets in both."""
    of_one = tuple(one)
    return minus(of_one, minus(of_one, other))


def offset_count(spans: Iterable[Span]) -> int:
    """The number of offsets, not of spans."""
    return sum(end - first for first, end in spans)


def first_of(spans: Iterable[Span], count_max: int) -> Spans:
    """The first `count_max` offsets."""
    taken: list[Span] = []
    for first, end in spans:
        if count_max <= 0:
            break
        taken.append((first, min(end, first + count_max)))
        count_max -= end - first
    return tuple(taken)


def covering(spans: Iterable[Span], gap: int) -> Spans:
    """Fewer spans that contain all: spans at most `gap` apart become one."""
    joined: list[Span] = []
    for first, end in spans:
        if joined and first - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def to_text(spans: Iterable[Span]) -> str:
    """`10,17-19` are offset 10 and offsets 17 to 19."""
    return ",".join(str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in spans)


def from_text(text: str) -> Spans | None:
    """The spans of a text that `to_text` writes; None for any other."""
    if not _TEXT.fullmatch(text):
        return None
    found = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.append((int(first), int(last or first) + 1))
    is_sorted = all(one[1] < other[0] for one, other in pairwise(found))
    is_valid = all(first < end <= OFFSET_MAX for first, end in found)
    return tuple(found) if is_sorted and is_valid else None
