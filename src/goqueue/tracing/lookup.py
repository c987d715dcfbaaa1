"""Lookups in rows: from rows to messages and back."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.rows import EventRow, MessageLocation

STEP = 1_000

RowsBySource = Mapping[TopicPartition, Sequence[EventRow]]


def grouped(rows: Iterable[EventRow]) -> RowsBySource:
    """Rows about messages, by partition, in their order."""
    found: dict[TopicPartition, list[EventRow]] = {}
    for row in rows:
        if row.count:
            found.setdefault(row.source, []).append(row)
    return found


def candidates(
    rows: Sequence[EventRow],
    *,
    topic: str | None,
    partition: int | None,
    group: str | None,
    offset: int | None,
    among: Callable[[TopicPartition, BitMap64], BitMap64] | None,
) -> Iterator[MessageLocation]:
    """The messages in rows that pass the filters, each once, those of the latest rows first."""
    seen: dict[TopicPartition, BitMap64] = {}
    for row in reversed(rows):
        source = row.source
        if not row.count or topic not in (None, source.topic) or partition not in (None, source.partition):
            continue
        if group not in (None, row.group) or (offset is not None and not row.has(offset)):
            continue
        known = seen.setdefault(source, BitMap64())
        new = (row.offset_set() if offset is None else BitMap64([offset])) - known
        known |= new
        if among is not None:
            new = among(source, new)
        while new:
            last = new[-STEP:] if len(new) > STEP else new
            yield from (MessageLocation(*source, one) for one in reversed(last.to_array()))
            new = new - last


def by_source(places: Iterable[MessageLocation]) -> dict[TopicPartition, BitMap64]:
    """The offsets of messages by their partitions."""
    found: dict[TopicPartition, list[int]] = {}
    for place in places:
        found.setdefault(TopicPartition(*place[:2]), []).append(place.offset)
    return {source: BitMap64(offsets) for source, offsets in found.items()}


def rows_of(rows: RowsBySource, places: Iterable[MessageLocation]) -> dict[MessageLocation, list[EventRow]]:
    """The rows about each of these messages."""
    found: dict[MessageLocation, list[EventRow]] = {}
    for source, asked in by_source(places).items():
        low, high = asked.min(), asked.max()
        for row in rows.get(source, ()):
            if row.first <= high and row.end > low:
                for offset in row.among(asked):
                    found.setdefault(MessageLocation(*source, offset), []).append(row)
    return found


class Stamps:
    """The append times of messages, from rows whose messages have derived ids."""

    def __init__(self, rows: Iterable[EventRow]) -> None:
        self._runs: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for row in rows:
            if row.timestamp_ns is not None and not row.is_explicit:
                self._runs.setdefault(row.source, []).append((row.first, row.end, row.timestamp_ns))

    def of(self, source: TopicPartition, offset: int) -> int | None:
        """The append time of one message; None if no row has it."""
        runs = self._runs.get(source)
        place = bisect_right(runs, offset, key=itemgetter(0)) - 1 if runs else -1
        if runs is None or place < 0:
            return None
        _, end, timestamp_ns = runs[place]
        return timestamp_ns if offset < end else None
