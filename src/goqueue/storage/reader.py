"""Reading a log in order, as raw buffers under a byte budget.

A reader remembers where the last record that it returned ended, so the next read costs one disk read and no lookup. It
returns the bytes of the file, validated and not copied again. Damage is never returned and never stops a reader: it
continues after the damage and reports which offsets are affected. A bit may also flip on its way from the disk, so
bytes that look damaged are read once more before they count as lost.

Segments may be added, deleted, compacted or truncated while a reader is in them. It notices by the generation of the
log and finds its place again by offset. If that offset no longer exists, it raises an error instead of skipping.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from goqueue.errors import OffsetOutOfRange, ReadFailed
from goqueue.record.header import RecordFault
from goqueue.record.kernel import scan
from goqueue.storage.layout import LOG
from goqueue.storage.segment import Segment
from goqueue.storage.walk import Damage, RecordRun, Spot

DOUBTS_MAX = 3
"""How many times one read trusts a second look. A disk that keeps flipping bits must not stall a reader."""


class Chunk(NamedTuple):
    """Complete, valid records, one after the other; `next_offset` is where to continue."""

    records: memoryview
    record_count: int
    next_offset: int
    gaps: tuple[Damage, ...] = ()  # offsets that are lost before the records
    flags: int = 0  # all flags of the records, or-ed


class Readable(Protocol):
    """What a reader needs of its log."""

    @property
    def generation(self) -> int: ...
    @property
    def directory(self) -> str: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def place_of(self, offset: int) -> tuple[Segment, int, bool]: ...
    def report(self, damage: Damage) -> None: ...


class LogReader:
    """A position in a log. Not thread-safe: it belongs to the owner of the log."""

    def __init__(self, log: Readable, offset: int) -> None:
        self._log = log
        self._segment: Segment | None = None
        self._spot = Spot(0, 0)
        self._generation = -1
        self.offset = offset

    def read(self, *, max_bytes: int, to_offset: int | None = None) -> Chunk:
        """The next records below `to_offset`, by default the end of the log; the first comes however large it is."""
        with reading():
            return self._read(max_bytes, self._limit(to_offset))

    def _limit(self, to_offset: int | None) -> int:
        start, end = self._log.start_offset, self._log.next_offset
        if not start <= self.offset <= end:
            raise OffsetOutOfRange(self.offset, start, end, log=self._log.directory)
        return end if to_offset is None else min(to_offset, end)

    def _read(self, max_bytes: int, limit: int) -> Chunk:
        gaps: list[Damage] = []
        doubts = 0
        while self.offset < limit:
            segment, end_offset, dense = self._find_place()
            for found in segment.walk(self._spot, end_offset=end_offset, to_offset=limit, window_bytes=max_bytes):
                if isinstance(found, RecordRun):
                    run = _from_offset(found, self.offset)
                    if not run.records:
                        continue
                    self.offset = run.summary.last_offset + 1
                    self._spot = Spot(run.end, self.offset)
                    return Chunk(run.records, run.summary.record_count, self.offset, tuple(gaps), run.summary.flags)
                if doubts < DOUBTS_MAX and self._is_whole_now(segment, found, end_offset):
                    doubts += 1
                    self._spot = Spot(found.position, found.first_offset)
                    break
                self._step_over(found, limit, gaps)
                if self.offset >= limit:
                    break
            else:
                if dense and self.offset < end_offset <= limit:
                    missing = (segment.size, segment.size, self.offset, end_offset, RecordFault.TRUNCATED)
                    gaps.append(Damage(segment.path(LOG), *missing))
                    self._log.report(gaps[-1])
                self.offset = min(end_offset, limit)
                self._segment = None
        return Chunk(memoryview(b""), 0, self.offset, tuple(gaps))

    def _is_whole_now(self, segment: Segment, damage: Damage, end_offset: int) -> bool:
        """Whether the same bytes, read again, are a valid record."""
        spot = Spot(damage.position, damage.first_offset)
        again = next(segment.walk(spot, end_offset=end_offset, to_offset=end_offset, window_bytes=1), None)
        return isinstance(again, RecordRun)

    def _find_place(self) -> tuple[Segment, int, bool]:
        segment, end_offset, dense = self._log.place_of(self.offset)
        if segment is not self._segment or self._generation != self._log.generation:
            self._segment = segment
            self._generation = self._log.generation
            self._spot = segment.seek(self.offset, end_offset=end_offset)
        return segment, end_offset, dense

    def _step_over(self, damage: Damage, limit: int, gaps: list[Damage]) -> None:
        self._log.report(damage)
        if damage.next_offset > self.offset:
            next_offset = min(damage.next_offset, limit)
            first_offset = max(damage.first_offset, self.offset)
            gaps.append(damage._replace(first_offset=first_offset, next_offset=next_offset))
            self.offset = next_offset
        if damage.next_offset <= limit:
            self._spot = Spot(damage.end, damage.next_offset)


def _from_offset(run: RecordRun, offset: int) -> RecordRun:
    """The run from the offset on. It begins earlier if damage at the offset was gone at a second look."""
    if run.summary.first_offset >= offset:
        return run
    summary = scan(run.records, from_offset=offset)
    return RecordRun(run.position + summary.start, run.records[summary.start : summary.end], summary)


@contextmanager
def reading() -> Iterator[None]:
    """Within it, `OSError` becomes `ReadFailed`."""
    try:
        yield
    except OSError as error:
        raise ReadFailed(str(error.filename or "the log"), error.strerror or str(error)) from error
