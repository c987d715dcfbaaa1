"""Trace statistics: how many messages of the ring are completed, and how long that took.

Everything is computed with sets of offsets, nothing once per message. A message is a trace, unless it shares its trace
with copies of it or with messages that name the same one. Those are left out here, and counted one by one
(`journeys.py`).
"""

from collections.abc import Iterable

from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.rows import PUBLISH, EventRow, EventType


class TraceCounts:
    """The status of the messages in rows, by topic and partition."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, BitMap64] = {}
        self._done: dict[TopicPartition, BitMap64] = {}
        self._open: dict[tuple[TopicPartition, str], BitMap64] = {}
        self._wrong: dict[tuple[TopicPartition, str], BitMap64] = {}

    def add(self, row: EventRow) -> None:
        """Add the next row."""
        source, offsets = row.source, row.offset_set()
        group = (source, row.group)
        self._seen.setdefault(source, BitMap64()).update(offsets)
        match row.kind:
            case EventType.ACKED | EventType.CANCELLED:
                self._done.setdefault(source, BitMap64()).update(offsets)
                self._move(group, offsets, None)
            case EventType.REJECTED | EventType.ROUTED | EventType.EXPIRED:
                self._move(group, offsets, self._wrong)
            case EventType.FETCHED | EventType.NACKED | EventType.TIMEOUT:
                self._move(group, offsets, self._open)
            case _:
                pass

    def leave_out(self, source: TopicPartition, offsets: BitMap64) -> None:
        """Do not count these messages."""
        for by_source in (self._seen, self._done):
            if source in by_source:
                by_source[source] -= offsets
        for by_group in (self._open, self._wrong):
            for group in [group for group in by_group if group[0] == source]:
                by_group[group] -= offsets

    def unseen(self, source: TopicPartition, offsets: BitMap64) -> BitMap64:
        """The messages that no row mentions."""
        return offsets - self._seen.get(source, BitMap64())

    def sum_up(self) -> tuple[int, int, int, dict[str, int]]:
        """The number of messages, of completed ones, of failed ones; and of all messages by topic."""
        by_topic: dict[str, int] = {}
        for source, seen in self._seen.items():
            if seen:
                by_topic[source.topic] = by_topic.get(source.topic, 0) + len(seen)
        completed = sum(len(self.completed(source)) for source in self._seen)
        error = sum(len(self.error(source)) for source in self._seen)
        return sum(by_topic.values()), completed, error, by_topic

    def completed(self, source: TopicPartition) -> BitMap64:
        """The messages of a partition that every group that got them has acked."""
        done = self._done.get(source)
        return BitMap64() if done is None else done - self._of(self._open, source) - self.error(source)

    def pending(self, source: TopicPartition) -> BitMap64:
        """The messages of a partition that are neither completed nor failed."""
        return self._seen.get(source, BitMap64()) - self.completed(source) - self.error(source)

    def error(self, source: TopicPartition) -> BitMap64:
        """The failed messages of a partition: rejected, expired or dead-lettered."""
        return self._of(self._wrong, source)

    def latency(self, rows: Iterable[EventRow]) -> tuple[int, int]:
        """The number of completed messages whose publish is in the rows, and the sum of the nanoseconds from there to
        their last ack.
        """
        ordered = list(rows)
        published: dict[TopicPartition, BitMap64] = {}
        for row in ordered:
            if row.kind == PUBLISH and row.source in self._done:
                published.setdefault(row.source, BitMap64()).update(row.offset_set())
        acked = {source: self.completed(source) & offsets for source, offsets in published.items()}
        left = {source: offsets.copy() for source, offsets in acked.items()}
        count, total_ns = sum(map(len, acked.values())), 0
        for row in reversed(ordered):
            if row.source not in left:
                continue
            if row.kind in (EventType.ACKED, EventType.CANCELLED):
                last = row.among(left[row.source])
                total_ns += row.time_ns * len(last)
                left[row.source] -= last
            elif row.kind == PUBLISH:
                total_ns -= row.time_ns * len(row.among(acked[row.source]))
        return count, total_ns

    def _of(self, table: dict[tuple[TopicPartition, str], BitMap64], source: TopicPartition) -> BitMap64:
        return BitMap64().union(*(offsets for (owner, _), offsets in table.items() if owner == source))

    def _move(
        self,
        group: tuple[TopicPartition, str],
        offsets: BitMap64,
        target: dict[tuple[TopicPartition, str], BitMap64] | None,
    ) -> None:
        for table in (self._open, self._wrong):
            if table is target:
                table.setdefault(group, BitMap64()).update(offsets)
            elif group in table:
                table[group] -= offsets
