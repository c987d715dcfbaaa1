"""Rows as a table: flat, typed, one schema for all rows, as JSON lines. This is the format of `__traces` and of files.

A line is one event of a run of messages with consecutive offsets, so its size does not depend on the batch. Every line
has every field; numbers that do not apply are null, and text is empty. `dlq_offset` and `origin_offset` are those of
the first message of the run; for each following message they are one higher.

Scattered offsets take one line per run, up to a limit; then one line covers all the rest, and its `count` is smaller
than the length of its range.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.context import TraceContext
from goqueue.tracing.explicit import NO_CONTEXTS, Contexts
from goqueue.tracing.rows import EventRow, Facts

RUNS_MAX = 1_000
_NO_CONTEXT = TraceContext("", "", is_sampled=True)


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    event_type: str
    time_ns: int
    sequence: int
    topic: str = ""
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    count: int = 0
    trace_id: str = ""
    parent_span_id: str = ""
    consumer_group: str = ""
    consumer_id: str = ""
    attempt: int | None = None
    duration_ns: int | None = None
    error: str = ""
    reason: str = ""
    record_time_ns: int | None = None
    deliver_at_ns: int | None = None
    dlq_topic: str = ""
    dlq_partition: int | None = None
    dlq_offset: int | None = None
    origin_topic: str = ""
    origin_partition: int | None = None
    origin_offset: int | None = None


encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(TraceRow).decode


class _OffsetRun(NamedTuple):
    """`size` messages in [first, end) with the same facts."""

    first: int
    end: int
    size: int
    facts: Facts
    context: TraceContext


def lines(row: EventRow, contexts: Contexts = NO_CONTEXTS) -> Iterator[TraceRow]:
    """The lines of the row; `contexts` are the traces that its messages name."""
    if not row.count:
        topic, partition = row.source
        yield TraceRow(
            event_type=row.kind,
            time_ns=row.time_ns,
            sequence=row.sequence,
            topic=topic,
            partition=partition if topic else None,
            consumer_group=row.group,
            consumer_id=row.member,
            duration_ns=row.duration_ns,
            error=row.error,
            reason=row.reason,
        )
        return
    for run in _runs(row, contexts):
        for event_type, time_ns, duration_ns in row.times():
            yield TraceRow(
                event_type=event_type,
                time_ns=time_ns,
                sequence=row.sequence,
                topic=row.source.topic,
                partition=row.source.partition,
                first_offset=run.first,
                last_offset=run.end - 1,
                count=run.size,
                trace_id=run.context.trace_id,
                parent_span_id=run.context.span_id,
                consumer_group=row.group,
                consumer_id=row.member,
                attempt=run.facts.attempt,
                duration_ns=duration_ns,
                error=row.error,
                reason=row.reason,
                record_time_ns=row.timestamp_ns,
                deliver_at_ns=run.facts.deliver_at_ns,
                dlq_topic=row.dlq_topic,
                dlq_partition=run.facts.dlq_partition,
                dlq_offset=run.facts.dlq_offset,
                origin_topic=row.origin.topic if run.facts.origin_offset is not None else "",
                origin_partition=row.origin.partition if run.facts.origin_offset is not None else None,
                origin_offset=run.facts.origin_offset,
            )


class StoredRow(NamedTuple):
    """A row that was read from a line, and the trace that its messages name, if they name one."""

    row: EventRow
    context: TraceContext | None


def read_lines(values: Iterable[bytes]) -> Iterator[StoredRow]:
    """The rows of encoded lines. Invalid lines, and those without exact offsets, are skipped."""
    for value in values:
        try:
            line = _decode_line(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        stored = _stored(line)
        if stored is not None:
            yield stored


def _stored(line: TraceRow) -> StoredRow | None:
    first, last = line.first_offset, line.last_offset
    if first is None or last is None or line.partition is None or last - first + 1 != line.count:
        return None
    offsets = range(first, last + 1)
    row = EventRow(
        line.sequence,
        line.event_type,
        line.time_ns,
        TopicPartition(line.topic, line.partition),
        first,
        last + 1,
        None,
        line.count,
        line.consumer_group,
        line.consumer_id,
        line.error,
        line.reason,
        line.duration_ns,
        dlq_topic=line.dlq_topic,
        timestamp_ns=line.record_time_ns,
    )
    if line.attempt not in (None, 1):
        row.attempts = dict.fromkeys(offsets, line.attempt or 1)
    if line.deliver_at_ns is not None:
        row.deliver_at_ns = dict.fromkeys(offsets, line.deliver_at_ns)
    if line.dlq_partition is not None and line.dlq_offset is not None:
        row.dead_letters = {
            offset: (line.dlq_partition, line.dlq_offset + place) for place, offset in enumerate(offsets)
        }
    if line.origin_partition is not None and line.origin_offset is not None:
        row.origin = TopicPartition(line.origin_topic, line.origin_partition)
        row.origin_offsets = {offset: line.origin_offset + place for place, offset in enumerate(offsets)}
    context = TraceContext(line.trace_id, line.parent_span_id, is_sampled=True) if line.trace_id else None
    return StoredRow(row, context)


def _runs(row: EventRow, contexts: Contexts) -> Iterator[_OffsetRun]:
    offsets = row.offset_set()
    if row.is_plain and not contexts:
        yield from _plain_runs(row, offsets)
        return
    special = BitMap64()
    for table in (row.attempts, row.deliver_at_ns, row.dead_letters, row.origin_offsets, contexts):
        special.update(table)
    special &= offsets
    yield from _plain_runs(row, offsets - special)
    run: _OffsetRun | None = None
    for offset in special:
        one = _OffsetRun(offset, offset + 1, 1, row.facts(offset), contexts.get(offset, _NO_CONTEXT))
        if run is not None and _continues(run, one):
            run = run._replace(end=one.end, size=run.size + 1)
        else:
            if run is not None:
                yield run
            run = one
    if run is not None:
        yield run


def _plain_runs(row: EventRow, offsets: BitMap64) -> Iterator[_OffsetRun]:
    if not offsets:
        return
    facts, last = row.facts(offsets.min()), offsets.max()
    for number, (first, end) in enumerate(_ranges(offsets)):
        if number == RUNS_MAX:
            yield _OffsetRun(first, last + 1, offsets.range_cardinality(first, last + 1), facts, _NO_CONTEXT)
            return
        yield _OffsetRun(first, end, end - first, facts, _NO_CONTEXT)


def _continues(run: _OffsetRun, one: _OffsetRun) -> bool:
    """Whether a message continues the run before it."""
    following = run.facts
    if following.dlq_offset is not None:
        following = following._replace(dlq_offset=following.dlq_offset + run.size)
    if following.origin_offset is not None:
        following = following._replace(origin_offset=following.origin_offset + run.size)
    return run.end == one.first and following == one.facts and run.context == one.context


def _ranges(offsets: BitMap64) -> Iterator[tuple[int, int]]:
    """The offsets as ranges, with gaps between them."""
    end, last = 0, offsets.max()
    while end <= last:
        first = offsets.next_set_bit(end)
        end = _first_gap(offsets, first)
        yield first, end


def _first_gap(offsets: BitMap64, start: int) -> int:
    step = 1
    while offsets.range_cardinality(start, start + step) == step:
        step *= 2
    low, high = start + step // 2, start + step
    while high - low > 1:
        middle = (low + high) // 2
        if offsets.range_cardinality(low, middle) == middle - low:
            low = middle
        else:
            high = middle
    return low
