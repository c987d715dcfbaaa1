"""Fetching records of a partition by their offsets: dense ones as they stand in the log, scattered ones picked out.

What is asked for may be gone, by retention, compaction or damage. It is told, and is nobody's business any more.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.live_partition import LivePartition
from goqueue.delivery.offsets import between, from_raw, span
from goqueue.errors import CorruptRecord, OffsetOutOfRange
from goqueue.record import kernel
from goqueue.record.header import Buffer
from goqueue.record.message import Message
from goqueue.storage.reader import Chunk

RECORD_BYTES_MARGIN = 16
WINDOW_BYTES_MIN = 4 * 1024
SCATTERED_WINDOW_BYTES = 128 * 1024
KEYS_BYTES = 4 * 1024 * 1024


class Found(NamedTuple):
    """Records in one piece, the offsets they have, and those that are not there any more."""

    records: Buffer
    flags: int
    offsets: BitMap64
    gone: BitMap64


class RecordFetcher:
    """Reads one partition by offset. Belongs to the owner of the partition."""

    def __init__(self, live: LivePartition) -> None:
        self._live = live

    def chunk(self, start: int, end: int, window: int) -> Chunk:
        """Stored records from `start` to before `end`, about so many bytes of them."""
        recent = self._live.recent(start, max_bytes=window, to_offset=end)
        if recent:
            return recent
        reader = self._live.reader(start)
        chunk = reader.read(max_bytes=window, to_offset=end)
        self._live.keep(reader)
        return chunk

    def timestamp_of(self, offset: int) -> int | None:
        """When the first message at or behind the offset was stored."""
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

    def _record_bytes(self) -> int:
        """How large a record is, by and large."""
        log = self._live.log
        return RECORD_BYTES_MARGIN + log.size // max(1, log.next_offset - log.start_offset)

    def messages(self, offsets: BitMap64, *, count: int, max_bytes: int) -> Iterator[list[Message]]:
        """The messages of the offsets, as they are stored, some at a time; those that are gone are left out."""
        left = offsets
        while left:
            found = self.some(left[:count], max_bytes)
            if found.offsets:
                yield kernel.decode(found.records, self._live.origin, Message, verify=False)
            left = left - found.offsets - found.gone

    def keys(self, offsets: BitMap64) -> Iterator[tuple[int, bytes | None]]:
        """The keys of the messages that are there."""
        left = offsets
        while left:
            found = self.some(left, KEYS_BYTES)
            for message in kernel.decode(found.records, None, Message, verify=False):
                yield message.offset, message.key
            left = left - found.offsets - found.gone


def offsets_in(records: Buffer) -> BitMap64:
    """The offsets that the records have."""
    return from_raw(kernel.columns(records, "offset", verify=False).offsets)
