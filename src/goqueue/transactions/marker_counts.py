"""How many markers a partition holds: they have offsets as messages do, and are not messages.

They are counted per stretch of 4,096 offsets, so that millions of markers cost little memory. Retention deletes whole
segments, which end anywhere: `drop_below` names the offsets of the first stretch that its caller has to count again.
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
        """Counts by stretch, without empty stretches."""
        return self._by_stretch

    def add(self, offset: int, count: int = 1) -> None:
        """Count markers in the stretch of the offset."""
        if count:
            stretch = offset // STRETCH
            self._by_stretch[stretch] = self._by_stretch.get(stretch, 0) + count
            self.total += count

    def drop_below(self, start: int) -> range:
        """The log begins there now; the caller counts the markers in the returned range, and adds them."""
        if start <= self._start:
            return range(0)
        self._start = start
        for stretch in [one for one in self._by_stretch if one * STRETCH < start]:
            self.total -= self._by_stretch.pop(stretch)
        return range(start, -(-start // STRETCH) * STRETCH)
