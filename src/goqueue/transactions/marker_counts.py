"""How many markers stand in a partition: they have offsets like messages, and are none.

They are counted by stretches of 4,096 offsets, so that millions cost little to remember. Retention takes whole
segments, which end anywhere: the stretch in which the log begins then is to be counted anew by whoever can read it.
"""

from collections.abc import Mapping

STRETCH = 4_096


class MarkerCounts:
    """The markers of one partition from the start of its log on."""

    __slots__ = ("_by_stretch", "_start", "total")

    def __init__(self, saved: Mapping[int, int] | None = None, *, start: int = 0) -> None:
        self._by_stretch = dict(saved or {})
        self._start = start
        self.total = sum(self._by_stretch.values())

    @property
    def saved(self) -> dict[int, int]:
        """What is to be remembered: counts by stretch, of those that have any."""
        return self._by_stretch

    def add(self, offset: int, count: int = 1) -> None:
        """There are so many more in the stretch of the offset."""
        if count:
            stretch = offset // STRETCH
            self._by_stretch[stretch] = self._by_stretch.get(stretch, 0) + count
            self.total += count

    def drop_below(self, start: int) -> range:
        """The log begins there now; the offsets in the returned range are to be counted again, and added."""
        if start <= self._start:
            return range(0)
        self._start = start
        for stretch in [one for one in self._by_stretch if one * STRETCH < start]:
            self.total -= self._by_stretch.pop(stretch)
        return range(start, -(-start // STRETCH) * STRETCH)
