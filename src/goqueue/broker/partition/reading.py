"""Reading a partition: the visible records in the order of offsets, without a gap.

Hidden are control records, delayed records that are not due (with `delayed=include` only cancelled ones) and, for
read-committed readers, records of aborted transactions. They are skipped, so `next_offset` advances even if a whole
range is hidden, and never over a visible record. A read-committed reader ends at the last stable offset.

A `Reading` is a position in a partition. It serves one request, or stays open as a subscription.
"""

from collections.abc import Callable, Sequence

from goqueue import events
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.record_fetcher import offsets_in
from goqueue.broker.timers import Timer, Timers
from goqueue.clock import Clock
from goqueue.errors import InvalidRequest, OffsetOutOfRange
from goqueue.record import kernel
from goqueue.record.header import OFFSET_POSITION, Flags
from goqueue.service.messages import READ_BYTES_MAX, READ_RECORDS_MAX, Isolation, ReadResult
from goqueue.service.scans import DelayedView
from goqueue.storage.reader import Chunk, LogReader
from goqueue.storage.walk import Damage
from goqueue.wire.reports import Gap

SCANNED_BYTES_MAX = 16 * 1024 * 1024
"""The most hidden bytes before an empty answer with the next offset: a request must not delay the others."""
RECORD_BYTES_GUESS = 512
GAPS_MAX = 100
"""The most in one answer, so that they fit into the meta of a frame."""
_ISOLATIONS = frozenset(Isolation)
_DELAYED = frozenset(DelayedView)
_HAS_HEADERS = int(Flags.HAS_HEADERS)
_SPECIAL = Flags.CONTROL | Flags.TRANSACTIONAL


class Reading:
    """A reader of the visible records of one partition."""

    def __init__(
        self,
        leader: PartitionLeader,
        *,
        offset: int,
        from_time_ns: int | None,
        to_time_ns: int | None,
        end_offset: int | None = None,
        is_committed: bool = True,
        sees_delayed: bool = False,
        without: Sequence[str] = (),
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._live = leader
        self._is_committed = is_committed
        self._sees_delayed = sees_delayed
        self._without = without
        self._end_offset = end_offset
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        self._from_time_ns = from_time_ns
        self._to_time_ns = to_time_ns
        self._reader: LogReader | None = None
        self.next_offset = offset

    def read(self, *, max_bytes: int, max_records: int = READ_RECORDS_MAX) -> ReadResult:
        """The records that are readable now, possibly none."""
        leader, log = self._live, self._live.log
        if leader.ended is not None:
            raise leader.ended
        max_bytes = max(1, min(max_bytes, READ_BYTES_MAX))
        limit, is_last = self._limit(self._visible_end)
        records: bytearray | memoryview = memoryview(b"")
        count = scanned = flags = 0
        pending: int | None = None
        gaps: tuple[Gap, ...] = ()
        if self.next_offset < log.start_offset:
            self._move(log.start_offset)
        if self._from_time_ns is not None:
            self._begin(self._from_time_ns)
        while self.next_offset < limit and not count and scanned < SCANNED_BYTES_MAX and len(gaps) < GAPS_MAX:
            window = max_bytes if max_records > max_bytes else min(max_bytes, max_records * self._record_bytes)
            chunk = self._read(window, limit)
            scanned += len(chunk.records)
            flags = chunk.flags
            if chunk.gaps:
                gaps = _with_damage(gaps, chunk.gaps)
            records, count, not_due = self._visible(chunk)
            pending = not_due if pending is None else pending
            if count > max_records:
                records, count = self._cut(records, max_records), max_records
        if self._reader:
            leader.keep(self._reader)
            self._reader = None
        if pending is not None and pending >= self.next_offset:  # it is still ahead
            pending = None
        if count:
            if self._without:
                records = kernel.strip(records, *self._without)
            leader.observe(events.Consumed(*leader.origin, "", count, len(records)))
        end_of_range = is_last and self.next_offset >= limit
        return ReadResult(
            records,
            count,
            self.next_offset,
            leader.high_watermark,
            leader.last_stable_offset,
            log.start_offset,
            pending,
            end_of_range,
            flags,
            gaps,
        )

    @property
    def _record_bytes(self) -> int:
        """Room for a record somewhat larger than the average of this log."""
        log = self._live.log
        average = log.size // max(1, log.next_offset - log.start_offset)
        return max(RECORD_BYTES_GUESS, average + average // 4)

    @property
    def has_more(self) -> bool:
        """Whether there are records that were not read yet."""
        return self.next_offset < self._limit(self._visible_end)[0]

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call once, when there may be more to read, or the range has ended, or the leader has ended."""
        self.close()
        if self._live.ended is not None or self.has_more:
            callback()
            return

        def wake() -> None:
            self.close()
            callback()

        self._live.watch(self, wake)
        ahead_ns = 0 if self._to_time_ns is None else self._to_time_ns - self._clock.wall_ns()
        if ahead_ns > 0:  # otherwise the range ends with records that are not visible yet
            self._timer = self._timers.at(self._clock.monotonic_ns() + ahead_ns, wake)

    def close(self) -> None:
        """Cancel `when_ready`."""
        self._live.unwatch(self)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    @property
    def _visible_end(self) -> int:
        return self._live.last_stable_offset if self._is_committed else self._live.high_watermark

    def _limit(self, visible_end: int) -> tuple[int, bool]:
        """The offset at which reading ends now, and whether that is the end of the range."""
        limit, is_last = visible_end, False
        if self._to_time_ns is not None:
            end = self._live.log.offset_at_time(self._to_time_ns)
            limit, is_last = min(end, limit), end <= limit and self._clock.wall_ns() >= self._to_time_ns
        if self._end_offset is not None and self._end_offset <= limit:
            return self._end_offset, True
        return limit, is_last

    def _begin(self, time_ns: int) -> None:
        """Skip records that were stored before the start time, which may be in the future."""
        begin = self._live.log.offset_at_time(time_ns)
        if begin > self.next_offset:
            self._move(begin)
        if self._clock.wall_ns() >= time_ns:
            self._from_time_ns = None

    def _move(self, offset: int) -> None:
        self.next_offset = offset
        self._reader = None

    def _read(self, window: int, limit: int) -> Chunk:
        """The next records as they are stored; none if there are none below the limit."""
        recent = self._live.recent(self.next_offset, max_bytes=window, to_offset=limit)
        if recent:
            self._move(recent.next_offset)
            return recent
        try:
            reader = self._reader or self._live.reader(self.next_offset)
            chunk = reader.read(max_bytes=window, to_offset=limit)
        except OffsetOutOfRange as error:
            if self.next_offset >= error.start:
                raise
            self._move(error.start)  # retention has removed the records
            return Chunk(memoryview(b""), 0, error.start)
        self._reader = reader
        self.next_offset = chunk.next_offset
        return chunk

    def _visible(self, chunk: Chunk) -> tuple[bytearray | memoryview, int, int | None]:
        """The visible records, their number, and the lowest offset that is not due yet."""
        leader = self._live
        if leader.search.known_from and chunk.flags & _HAS_HEADERS and chunk.record_count:
            first = int.from_bytes(chunk.records[OFFSET_POSITION : OFFSET_POSITION + 8])
            if first < leader.search.known_from:
                leader.look_for_delays(chunk.records, first, chunk.next_offset)
        delivery = leader.delivery  # there is one if there is a delayed message
        if not chunk.flags & (_SPECIAL if delivery is None else _SPECIAL | Flags.HAS_HEADERS):
            return chunk.records, chunk.record_count, None
        records: bytearray | memoryview = chunk.records
        if chunk.flags & Flags.CONTROL:
            records = kernel.filter(records, hide_flags=Flags.CONTROL)
        if not len(records):
            return records, 0, None
        first = int.from_bytes(records[OFFSET_POSITION : OFFSET_POSITION + 8])
        aborted = self._live.aborted if self._is_committed else None
        if aborted and not aborted.range_cardinality(first, chunk.next_offset):
            aborted = None
        hidden = None
        if delivery is not None:
            hidden = delivery.cancelled if self._sees_delayed else delivery.hidden(first, chunk.next_offset)
        if not aborted and not hidden and not chunk.flags & Flags.CONTROL:
            return records, chunk.record_count, None
        offsets = offsets_in(records)
        shown = offsets - aborted if aborted else offsets
        waiting = shown & hidden if hidden else None
        if waiting:
            shown = shown - waiting
        if len(shown) == len(offsets):
            return records, len(offsets), None
        visible = kernel.select(records, shown.to_array(), max_bytes=len(records)).records
        pending = waiting - delivery.cancelled if waiting and delivery is not None else None
        return visible, len(shown), pending.min() if pending else None

    def _cut(self, records: bytearray | memoryview, count: int) -> memoryview:
        positions = memoryview(kernel.scan(records, positions=True).positions).cast("I")
        at = positions[count]
        self._move(int.from_bytes(memoryview(records)[at + OFFSET_POSITION : at + OFFSET_POSITION + 8]))
        return memoryview(records)[:at]


def _with_damage(gaps: tuple[Gap, ...], found: Sequence[Damage]) -> tuple[Gap, ...]:
    """The gaps and the damage after them; adjacent ones are merged."""
    merged = list(gaps)
    for one in found:
        if merged and one.first_offset <= merged[-1].next_offset:
            merged[-1] = Gap(merged[-1].first_offset, one.next_offset, merged[-1].reason)
        else:
            merged.append(Gap(one.first_offset, one.next_offset, kernel.describe(one.fault)))
    return tuple(merged)


def check_isolation(isolation: str) -> bool:
    """Whether the isolation is read_committed. Raises `InvalidRequest` for an unknown one."""
    if isolation not in _ISOLATIONS:
        raise InvalidRequest(f"invalid isolation {isolation!r}: must be {' or '.join(Isolation)}", path="isolation")
    return isolation == Isolation.READ_COMMITTED


def check_delayed(delayed: str) -> bool:
    """Whether delayed messages are read before they are due. Raises `InvalidRequest` for an unknown choice."""
    if delayed not in _DELAYED:
        raise InvalidRequest(f"invalid delayed {delayed!r}: must be {' or '.join(DelayedView)}", path="delayed")
    return delayed == DelayedView.INCLUDE


def check_without(parts: Sequence[str]) -> Sequence[str]:
    """The parts that are left out. Raises `InvalidRequest` for an unknown part."""
    for part in parts:
        if part not in kernel.PART_BITS:
            raise InvalidRequest(f"invalid part {part!r}: must be of {', '.join(kernel.PART_BITS)}", path="without")
    return parts
