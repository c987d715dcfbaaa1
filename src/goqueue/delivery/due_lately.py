"""Messages that were delayed and have fallen due: retention counts their age from then, not from when they were stored.

Messages that were due at about the same time are kept together: the retention time is divided into a few parts, and
only the lowest offset of each part is remembered.
"""

from typing import NamedTuple

PARTS = 8


class _DueOffset(NamedTuple):
    since_ns: int
    until_ns: int
    offset: int


class DueLately:
    """What retention has to keep of messages that were delayed. Times are wall clock."""

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
        """The lowest offset that retention has to keep."""
        return min((one.offset for one in self._kept if one.until_ns > now_ns), default=None)
