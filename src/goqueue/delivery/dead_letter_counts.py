"""Counting the dead letters of one partition by what their headers say, without reading them twice.

Every text that was seen (a reason, a group or an error) has the set of offsets of its dead letters. The caller knows
which are still dead; the intersection of the two sets is the count. So nothing has to be subtracted when dead letters
are redriven or removed by retention, and those that could not be redriven after all count again.

The tables are bounded. When one is full its rarest texts are forgotten: frequent texts are counted in full, and a text
that returns after it was forgotten is counted from then on.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery import dead_letter
from goqueue.delivery.dead_letter_filter import ALL_TOPICS, OriginTopics
from goqueue.delivery.offsets import between, span

REASONS_MAX = 100
GROUPS_MAX = 1_000
ERRORS_MAX = 100
TOPICS_MAX = 10_000
"""Origins; a topic that is forgotten counts no dead letters, and only names that no topic has can be so many."""
ERROR_CHARACTERS_MAX = 200


class DeadLetterTally(NamedTuple):
    """How many dead letters have which text, the most frequent first."""

    by_reason: dict[str, int]
    by_group: dict[str, int]
    by_error: dict[str, int]


class DeadLetterTallies:
    """The dead letters of one partition from its start to `end`."""

    def __init__(self, start: int) -> None:
        self.end = start
        self._seen = BitMap64()
        self._topics = _CountTable(TOPICS_MAX)
        self._tables = (_CountTable(REASONS_MAX), _CountTable(GROUPS_MAX), _CountTable(ERRORS_MAX), self._topics)

    def note(self, dead_letters: Iterable[tuple[int, Mapping[str, str]]], *, end: int) -> None:
        """These, by offset and headers, are all dead letters up to the new end."""
        reasons, groups, errors, topics = self._tables
        offsets: list[int] = []
        for offset, headers in dead_letters:
            offsets.append(offset)
            reasons.add(headers.get(dead_letter.REASON, ""), offset)
            groups.add(headers.get(dead_letter.GROUP, ""), offset)
            errors.add(headers.get(dead_letter.ERROR, "")[:ERROR_CHARACTERS_MAX], offset)
            origin = dead_letter.parse_origin(headers.get(dead_letter.ORIGIN, ""))
            topics.add(origin[0] if origin else "", offset)
        self._seen.update(offsets)
        for table in self._tables:
            table.settle()
        self.end = end

    def dead_letters(self, start: int, end: int, origins: OriginTopics = ALL_TOPICS) -> BitMap64:
        """Every offset in that range that may be a dead letter of these topics: from `end` on, all of them; but where
        only those of one topic are meant, none, because others are likely to have most.
        """
        if origins.only:
            return between(self._topics.offsets(origins.only), start, end)
        found = between(self._seen, start, end) | span(max(start, self.end), end)
        for topic in origins.without:
            found -= self._topics.offsets(topic)
        return found

    def forget_below(self, offset: int) -> None:
        """Nothing below the offset will count again."""
        self.end = max(self.end, offset)
        if self._seen and self._seen.min() < offset:
            self._seen.remove_range(0, offset)
            for table in self._tables:
                table.forget_below(offset)

    def tally(self, dead: BitMap64) -> DeadLetterTally:
        """The counts of these, as far as they were seen."""
        return DeadLetterTally(*(table.tally(dead) for table in self._tables[:3]))


_NONE = BitMap64()


class _CountTable:
    """Texts and the offsets of the dead letters that have them."""

    __slots__ = ("_fresh", "_limit", "_offsets")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._offsets: dict[str, BitMap64] = {}
        self._fresh: dict[str, list[int]] = {}

    def add(self, text: str, offset: int) -> None:
        self._fresh.setdefault(text, []).append(offset)

    def settle(self) -> None:
        """Take in what was added; above twice the limit, which lets texts become frequent, forget the rarest."""
        for text, offsets in self._fresh.items():
            self._offsets.setdefault(text, BitMap64()).update(offsets)
        self._fresh.clear()
        if len(self._offsets) > 2 * self._limit:
            frequent = sorted(self._offsets.items(), key=lambda item: len(item[1]), reverse=True)
            self._offsets = dict(frequent[: self._limit])

    def forget_below(self, offset: int) -> None:
        for text, offsets in list(self._offsets.items()):
            offsets.remove_range(0, offset)
            if not offsets:
                del self._offsets[text]

    def offsets(self, text: str) -> BitMap64:
        return self._offsets.get(text, _NONE)

    def tally(self, dead: BitMap64) -> dict[str, int]:
        counts = {text: offsets.intersection_cardinality(dead) for text, offsets in self._offsets.items() if text}
        frequent = sorted(((count, text) for text, count in counts.items() if count), key=lambda one: (-one[0], one[1]))
        return {text: count for count, text in frequent[: self._limit]}
