"""The times at which failed messages were first delivered, to the nanosecond.

All failed messages of one delivery share a time and are one set. There may be as many deliveries as messages, and
every settled message has to be forgotten here, so the sets are grouped by second, each with the union of its sets: a
lookup iterates over seconds, not deliveries.
"""

from pyroaring import BitMap64

from goqueue.clock import SECOND


class _Second:
    __slots__ = ("offsets", "times")

    def __init__(self) -> None:
        self.offsets = BitMap64()
        self.times: dict[int, BitMap64] = {}


class FirstDeliveries:
    """The first deliveries of messages that are not done."""

    __slots__ = ("_seconds",)

    def __init__(self, times: dict[int, BitMap64] | None = None) -> None:
        self._seconds: dict[int, _Second] = {}
        for time_ns, offsets in (times or {}).items():
            self.note(offsets, time_ns)

    @property
    def times(self) -> dict[int, BitMap64]:
        """All of them, by their time."""
        return {time_ns: offsets for second in self._seconds.values() for time_ns, offsets in second.times.items()}

    def note(self, offsets: BitMap64, time_ns: int) -> None:
        """These were first delivered at that time."""
        second = self._seconds.get(time_ns // SECOND)
        if second is None:
            second = self._seconds[time_ns // SECOND] = _Second()
        second.offsets |= offsets
        if time_ns in second.times:
            second.times[time_ns] |= offsets
        else:
            second.times[time_ns] = offsets.copy()

    def find(self, offset: int) -> int | None:
        """When the message was first delivered; None if it has not failed."""
        for second in self._seconds.values():
            if offset in second.offsets:
                return next(time_ns for time_ns, offsets in second.times.items() if offset in offsets)
        return None

    def forget(self, offsets: BitMap64) -> None:
        """These are done."""
        for number in [number for number, second in self._seconds.items() if second.offsets.intersect(offsets)]:
            second = self._seconds[number]
            second.offsets -= offsets
            if not second.offsets:
                del self._seconds[number]
                continue
            for time_ns in [time_ns for time_ns, having in second.times.items() if having.intersect(offsets)]:
                second.times[time_ns] -= offsets
                if not second.times[time_ns]:
                    del second.times[time_ns]
