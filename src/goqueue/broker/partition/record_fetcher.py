"""Fetching records of a partition by offset: dense ones as one piece of the log, scattered ones selected from it.

Records may be gone by retention, compaction or damage. The result names their offsets; damaged ones are kept in
`damage`, because they are reported to consumers.

A caller that fetches a few records is likely to fetch the next ones after them. So a little more is read than
requested, and kept until it is used: the next records need neither a lookup nor the disk.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.delivery.offsets import between, first_gap, from_raw, span
from goqueue.errors import CorruptRecord, OffsetOutOfRange
from goqueue.record import kernel
from goqueue.record.header import Buffer
from goqueue.record.message import StoredMessage
from goqueue.storage.reader import Chunk
from goqueue.storage.walk import Damage
from goqueue.wire.reports import Gap

RECORD_BYTES_MARGIN = 16
WINDOW_BYTES_MIN = 4 * 1024
NEARBY_BYTES = 8 * 1024
"""How much is read at a time for a request of a few records."""
FEW = 10
SCATTERED_WINDOW_BYTES = 128 * 1024
KEYS_BYTES = 4 * 1024 * 1024


class Found(NamedTuple):
    """Records in one piece, their offsets, and the offsets that are gone."""

    records: Buffer
    flags: int
    offsets: BitMap64
    gone: BitMap64


class Nearby(NamedTuple):
    """The records in a range of offsets of the log, at that generation."""

    records: memoryview
    start: int
    end: int
    generation: int


class KnownDamage:
    """The damaged offsets that were found so far, without those that retention or compaction has removed."""

    def __init__(self) -> None:
        self.offsets = BitMap64()
        self._found: list[Damage] = []

    def add(self, found: Sequence[Damage]) -> None:
        """Note damage; the same place may be found repeatedly."""
        for one in found:
            if span(one.first_offset, one.next_offset) - self.offsets:
                self.offsets.add_range(one.first_offset, one.next_offset)
                self._found.append(one)

    def gaps(self, offsets: BitMap64, *, most: int) -> list[Gap]:
        """Those of the offsets that are damaged, as ranges; no more than the first `most` of them."""
        left = offsets & self.offsets
        gaps: list[Gap] = []
        while left and len(gaps) < most:
            first = left.min()
            end = first_gap(left, first)
            reason = next(
                kernel.describe(one.fault) for one in self._found if one.first_offset <= first < one.next_offset
            )
            gaps.append(Gap(first, end, reason))
            left.remove_range(first, end)
        return gaps

    def drop_below(self, offset: int) -> None:
        """Forget damage below the new start of the log."""
        self.offsets.remove_range(0, offset)
        self._found = [one for one in self._found if one.next_offset > offset]


class RecordFetcher:
    """Reads one partition by offset. Belongs to the owner of the partition."""

    def __init__(self, leader: PartitionLeader) -> None:
        self._live = leader
        self._nearby: Nearby | None = None
        self.damage = KnownDamage()

    def chunk(self, start: int, end: int, window: int) -> Chunk:
        """Stored records from `start` to before `end`, about so many bytes of them."""
        recent = self._live.recent(start, max_bytes=window, to_offset=end)
        if recent:
            return recent
        reader = self._live.reader(start)
        chunk = reader.read(max_bytes=window, to_offset=end)
        self._live.keep(reader)
        if chunk.gaps:
            self.damage.add(chunk.gaps)
        return chunk

    def timestamp_of(self, offset: int) -> int | None:
        """The time at which the first message at or after the offset was stored."""
        limit = self._live.last_stable_offset
        with suppress(CorruptRecord):
            chunk = self.chunk(offset, limit, WINDOW_BYTES_MIN) if offset < limit else None
            if chunk and chunk.record_count:
                return kernel.scan(chunk.records).first_timestamp
        return None

    def some(self, wanted: BitMap64, max_bytes: int) -> Found:
        """The first of the wanted records, in one piece."""
        start, end = wanted.min(), wanted.max() + 1
        is_dense = end - start == len(wanted)
        if is_dense and end - start <= FEW:
            few = self._few(start, end, max_bytes)
            if few is not None:
                return few
        window = len(wanted) * self._record_bytes() if is_dense else SCATTERED_WINDOW_BYTES
        window = max(1, min(max(window, WINDOW_BYTES_MIN), max_bytes))
        try:
            chunk = self.chunk(start, end, window)
        except OffsetOutOfRange as error:
            return Found(b"", 0, BitMap64(), between(wanted, 0, max(error.start, start + 1)))
        except CorruptRecord:
            return Found(b"", 0, BitMap64(), BitMap64([start]))
        covered_end = max(chunk.next_offset, start + 1)
        if is_dense and chunk.record_count == chunk.next_offset - start:
            return Found(chunk.records, chunk.flags, span(start, chunk.next_offset), BitMap64())
        asked = between(wanted, start, covered_end)
        selected = kernel.select(chunk.records, asked.to_array(), max_bytes=max_bytes)
        if selected.record_count == len(asked):
            return Found(selected.records, selected.flags, asked, BitMap64())
        offsets = offsets_in(selected.records)
        if selected.last_offset >= 0:
            asked = between(asked, start, selected.last_offset + 1)
        return Found(selected.records, selected.flags, offsets, asked - offsets)

    def _few(self, start: int, end: int, max_bytes: int) -> Found | None:
        """A few consecutive records, from the kept ones or one small read; None: the general path reads them."""
        nearby, self._nearby = self._nearby, None
        is_there = nearby is not None and nearby.start <= start and end <= nearby.end
        if nearby is None or not is_there or nearby.generation != self._live.log.generation:
            nearby = self._read_nearby(start, end)
        if nearby is None:
            return None
        found = kernel.scan(nearby.records, from_offset=start, to_offset=end)
        if found.fault or found.record_count != end - start or found.end - found.start > max_bytes:
            return None
        if end < nearby.end:
            self._nearby = Nearby(nearby.records[found.end :], end, nearby.end, nearby.generation)
        return Found(nearby.records[found.start : found.end], found.flags, span(start, end), BitMap64())

    def _read_nearby(self, start: int, end: int) -> Nearby | None:
        """The records at and after the offset that one small read returns; only records that will not change."""
        try:
            chunk = self.chunk(start, max(end, self._live.high_watermark), NEARBY_BYTES)
        except (OffsetOutOfRange, CorruptRecord):
            return None
        if chunk.next_offset < end:
            return None
        return Nearby(memoryview(chunk.records), start, chunk.next_offset, self._live.log.generation)

    def _record_bytes(self) -> int:
        """The average size of a record."""
        log = self._live.log
        return RECORD_BYTES_MARGIN + log.size // max(1, log.next_offset - log.start_offset)

    def messages(self, offsets: BitMap64, *, count: int, max_bytes: int) -> Iterator[list[StoredMessage]]:
        """The stored messages of the offsets, some at a time, without those that are gone."""
        left = offsets
        while left:
            found = self.some(left[:count], max_bytes)
            if found.offsets:
                yield kernel.decode(found.records, self._live.origin, StoredMessage, verify=False)
            left = left - found.offsets - found.gone

    def keys(self, offsets: BitMap64) -> Iterator[tuple[int, bytes | None]]:
        """The keys of the messages that exist, by offset."""
        left = offsets
        while left:
            found = self.some(left, KEYS_BYTES)
            for message in kernel.decode(found.records, None, StoredMessage, verify=False):
                yield message.offset, message.key
            left = left - found.offsets - found.gone


def offsets_in(records: Buffer) -> BitMap64:
    return from_raw(kernel.columns(records, "offset", verify=False).offsets)
