"""Messages that were delayed and are due by now: their age counts from then on, not from when they were stored.

So retention has to leave them for as long as it leaves others. What was due at about the same time is kept together:
the time of retention is cut into a few parts, and of each only the lowest offset is remembered.
"""

from typing import NamedTuple

PARTS = 8


class _DueOffset(NamedTuple):
    since_ns: int
    until_ns: int
    offset: int


class DueLately:
    """What retention has to leave of messages that have waited. Times are wall clock."""

    def __init__(self) -> None:
        self._kept: list[_DueOffset] = []

    def note(self, offset: int, *, now_ns: int, retention_ns: int) -> None:
        """Messages from that offset on were due now."""
        kept = [one for one in self._kept if one.until_ns > now_ns]
        last = kept[-1] if kept else None
        if last is not None and now_ns - last.since_ns < retention_ns // PARTS:
            kept[-1] = last._replace(until_ns=now_ns + retention_ns, offset=min(last.offset, offset))
        else:
            kept.append(_DueOffset(now_ns, now_ns + retention_ns, offset))
        self._kept = kept

    def first(self, *, now_ns: int) -> int | None:
        """The lowest offset that is still to be kept."""
        return min((one.offset for one in self._kept if one.until_ns > now_ns), default=None)
