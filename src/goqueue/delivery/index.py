"""The index of a partition: which offsets are special, for all of its cursors.

Special are records that are not of normal priority, control records, offsets that compaction left empty, messages
that expire, and messages for one group only. What is in none of these sets is a plain message. The index is made from
the log, stretch by stretch, as cursors come to it; it can be dropped at any time. `covered` holds the offsets that
were indexed.

A message expires at the time it names or else, where the topic has a TTL, that long after it was stored or was due.
"""

import heapq
import struct
from collections.abc import Sequence

from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.delivery.lanes import LANE_COUNT, NORMAL
from goqueue.delivery.offsets import first_gap, from_raw
from goqueue.record.kernel import Outline

EXPIRY_TICK_NS = 10 * MS
_DELAYED = struct.Struct("=QqII")
_EXPIRING = struct.Struct("=Qq")
_HOLE = struct.Struct("=QQ")


class PartitionIndex:
    """The special offsets of one partition."""

    def __init__(self) -> None:
        self.lanes: tuple[BitMap64, ...] = tuple(BitMap64() for _ in range(LANE_COUNT))  # that of normal stays empty
        self.hidden = BitMap64()
        self.covered = BitMap64()
        self.own_expiry = BitMap64()  # exempt from the TTL of the topic: they have a time of their own, or were delayed
        self.expired = BitMap64()
        self._for_group: dict[str, BitMap64] = {}
        self._expiring: dict[int, BitMap64] = {}  # tick -> offsets
        self._expiry_ticks: list[int] = []  # a heap

    def covered_until(self, offset: int) -> int:
        """The first offset from there on that is not indexed."""
        return first_gap(self.covered, offset)

    def cover_plain(self, start: int, end: int) -> None:
        """All offsets in [start, end) are plain messages."""
        self.covered.add_range(start, end)

    def cover(self, start: int, end: int, outline: Outline, *, ttl_ns: int | None) -> None:
        """Index the outline of the records in [start, end); offsets without a record are gone."""
        self.covered.add_range(start, end)
        for lane, raw in enumerate(outline.lanes):
            if raw:
                self.lanes[lane].update(from_raw(raw))
        if outline.control:
            self.hidden.update(from_raw(outline.control))
        self.hide_missing(start, end, outline)
        for offset, group in outline.addressed:
            self._for_group.setdefault(group.decode("utf-8", "surrogateescape"), BitMap64()).add(offset)
        named = BitMap64()
        for offset, expires_ns in _EXPIRING.iter_unpack(outline.expiring):
            named.add(offset)
            self.own_expiry.add(offset)
            self._expire_at(offset, expires_ns)
        if outline.delayed:
            self.own_expiry.update(BitMap64(memoryview(outline.delayed).cast("Q")[:: _DELAYED.size // 8].tolist()))
        if ttl_ns is not None:
            for offset, due_ns, _, _ in _DELAYED.iter_unpack(outline.delayed):
                if offset not in named:
                    self._expire_at(offset, due_ns + ttl_ns)

    def hide_missing(self, start: int, end: int, outline: Outline) -> None:
        """Offsets in [start, end) without a record are not messages: compaction has removed them."""
        if outline.record_count:
            self._hide(start, outline.first_offset)
            self._hide(outline.last_offset + 1, end)
        else:
            self._hide(start, end)
        for first, last in _HOLE.iter_unpack(outline.holes):
            self._hide(first, last)

    def for_others(self, group: str) -> BitMap64 | None:
        """The messages that only other groups get; None if there are none."""
        others = [offsets for name, offsets in self._for_group.items() if name != group]
        return BitMap64().union(*others) if others else None

    def split(self, offsets: BitMap64) -> Sequence[tuple[int, BitMap64]]:
        """The offsets by lane."""
        if not any(self.lanes):
            return ((NORMAL, offsets),) if offsets else ()
        left = offsets
        parts: list[tuple[int, BitMap64]] = []
        for lane, having in enumerate(self.lanes):
            if having and having.intersect(left):
                part = left & having
                left = left - part
                parts.append((lane, part))
        if left:
            parts.append((NORMAL, left))
        return parts

    def expire(self, now_ns: int) -> BitMap64:
        """The messages that have expired since the last call; `expired` holds them, too."""
        fired = BitMap64()
        while self._expiry_ticks and self._expiry_ticks[0] <= now_ns // EXPIRY_TICK_NS:
            fired |= self._expiring.pop(heapq.heappop(self._expiry_ticks))
        self.expired |= fired
        return fired

    @property
    def next_expiry_ns(self) -> int | None:
        """When the next message expires."""
        return self._expiry_ticks[0] * EXPIRY_TICK_NS if self._expiry_ticks else None

    def drop_below(self, offset: int) -> None:
        """Forget offsets below the new start of the log."""
        for offsets in (*self.lanes, self.hidden, self.covered, self.own_expiry, self.expired):
            if offsets and offsets.min() < offset:
                offsets.remove_range(0, offset)
        for group, offsets in list(self._for_group.items()):
            offsets.remove_range(0, offset)
            if not offsets:
                del self._for_group[group]

    def _hide(self, start: int, end: int) -> None:
        if start < end:
            self.hidden.add_range(start, end)

    def _expire_at(self, offset: int, time_ns: int) -> None:
        tick = time_ns // EXPIRY_TICK_NS
        offsets = self._expiring.get(tick)
        if offsets is None:
            offsets = self._expiring[tick] = BitMap64()
            heapq.heappush(self._expiry_ticks, tick)
        offsets.add(offset)
