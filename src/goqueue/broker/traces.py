"""Traces: recorded events of messages, found by id, place, time or outcome.

    events ──> Recorder ──> ring                       get, recent, search, stats
                   └──> outbox ──(tick)──> `__traces`, exporters

The ring is searched first. What it does not have, or not from the first event on, is searched in `__traces`, if that is
enabled: in a bounded number of bytes at its end. The log has the rest: when a message was stored, and the trace that it
names. So a query costs at most a search of the ring, of a bounded part of a log, and of the messages in question.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.clock import MS, Clock
from goqueue.delivery.offsets import between
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest, NotFound, StorageError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.kernel import crc32c
from goqueue.record.message import StoredMessage
from goqueue.service.pending import Pending
from goqueue.topics.config import TRACES_TOPIC, is_internal
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.context import TraceContext, context_of, derived_trace_id, invert, is_trace_id
from goqueue.tracing.counts import TraceCounts
from goqueue.tracing.export import Export, Sink
from goqueue.tracing.journeys import Journey, journey, parent_span_id, span_id
from goqueue.tracing.lookup import STEP, RowsBySource, Stamps, by_source, candidates, grouped, rows_of
from goqueue.tracing.recorder import Recorder
from goqueue.tracing.rows import NOWHERE, PUBLISH, EventRow, EventType, MessageLocation, Moment, moments
from goqueue.tracing.table import StoredRow, encode_line, read_lines
from goqueue.wire import trace_reports as reports

TRACES_SETTINGS: Mapping[str, object] = {"flush": "interval", "retention": "72h", "retention_bytes": 1024**3}
LIST_MAX = 1_000
EXAMINED_MAX = 5_000
"""The most messages that one search examines."""
STEP_MIN = 100
PLACES_MAX = 1_000
"""The most messages of one trace in an answer."""
HISTORY_BYTES = 8 * 1024 * 1024
READ_BYTES = 1024 * 1024
LINES_MAX = 5_000
"""The most rows in one write."""
IDENTIFIED_MAX = 10_000
"""The most messages that exporters get in one call with their ids."""

_NO_ROWS: Sequence[EventRow] = ()


class Known(NamedTuple):
    """The rows to examine, oldest first, and traces that messages name by older rows."""

    rows: Sequence[EventRow]
    by_source: RowsBySource
    contexts: Mapping[MessageLocation, TraceContext]
    places: Mapping[str, Sequence[MessageLocation]]


class Traces:
    """The verbs about traces, and the path of rows to the topic and to exporters."""

    topics: LocalPartitions  # set before the first use: the partitions send their events to the traces

    def __init__(self, config: TraceConfig, *, clock: Clock, sinks: Sequence[Sink], default_rate: float) -> None:
        self._config = config
        self._clock = clock
        self._sinks = sinks
        self._default_rate = default_rate
        self.recorder = Recorder(config, clock=clock)
        self.observe: events.Observer = self.recorder.observe if config.enabled else events.ignore
        self.recorder.keeps_outbox = config.topic or bool(sinks)
        self._opening: Pending[PartitionLeader] | None = None
        self._exported_ns = clock.monotonic_ns()
        self._exporters = [*([TRACES_TOPIC] if config.topic else []), *(sink.name for sink in sinks)]
        for name in self._exporters:
            for result in ("success", "failure"):
                self.recorder.tallies.exports[name, result] = 0

    def configured(self, topic: str, rate: float) -> None:
        """Apply the sampling rate of a new or changed topic."""
        self.recorder.configure(topic, 0.0 if is_internal(topic) else rate)

    def exported(self, name: str, count: int, error: Exception | None) -> None:
        """An exporter has handled events; if it failed, they are lost."""
        tallies = self.recorder.tallies
        tallies.exports[name, "failure" if error else "success"] += 1
        if error:
            tallies.exporter += count

    # --- export --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write and export recorded events, if it is time."""
        now_ns = self._clock.monotonic_ns()
        if self.recorder.outbox and now_ns - self._exported_ns >= self._config.export_interval_ms * MS:
            self._exported_ns = now_ns
            self.flush()

    def flush(self, *, is_last: bool = False) -> None:
        """Write and export recorded events; at the last call the closing of the log flushes it."""
        leader = self._traces_log() if self._config.topic and not is_last else self._last_traces_log()
        if leader is None and self._opening is not None and not self._opening.is_done:
            return  # the topic is being created; the outbox is bounded
        rows = self.recorder.take_outbox()
        if not rows:
            return
        explicit = self.recorder.explicit
        needs_ids = any(sink.needs_trace_ids for sink in self._sinks)
        identified = self._identified(rows) if needs_ids else {}
        exports = [
            Export(row, explicit.of(row.source, row.offset_set()), identified.get(row.sequence, {})) for row in rows
        ]
        if self._config.topic:
            self._write(leader, exports, is_last=is_last)
        for sink in self._sinks:
            if not sink.put(exports):
                self.recorder.drop(rows)

    def _traces_log(self) -> PartitionLeader | None:
        if self._opening is None or (self._opening.is_done and _result(self._opening) is None):
            self._opening = self.topics.trace_log(TRACES_SETTINGS)
        return _result(self._opening) if self._opening.is_done else None

    def _last_traces_log(self) -> PartitionLeader | None:
        opening, self._opening = self._opening, None
        return _result(opening) if opening is not None and opening.is_done else None

    def _write(self, leader: PartitionLeader | None, exports: Sequence[Export], *, is_last: bool) -> None:
        lines: list[bytes] = []
        written = 0
        for export in exports:
            if len(lines) >= LINES_MAX:
                break
            lines += map(encode_line, export.lines())
            written += 1
        error: Exception | None = None
        try:
            if leader is None:
                raise BrokerUnavailable(f"{TRACES_TOPIC} could not be made")
            if is_last:
                leader.log.append(kernel.encode(lines), now_ns=self._clock.wall_ns())
            else:
                leader.append(kernel.encode(lines))
        except GoQueueError as raised:
            error = raised
        self.exported(TRACES_TOPIC, sum(export.row.event_count for export in exports[:written]), error)
        self.recorder.drop(export.row for export in exports[written:])

    def _identified(self, rows: Sequence[EventRow]) -> dict[int, dict[int, str]]:
        """The ids of messages, by number of the row and offset."""
        stamps = Stamps(self.recorder.ring)
        found: dict[int, dict[int, str]] = {}
        left = IDENTIFIED_MAX
        for row in rows:
            offsets = row.offset_set()[:left]
            left -= len(offsets)
            if len(offsets) < row.count:
                self.recorder.tallies.exporter += row.event_count * (row.count - len(offsets)) // row.count
            found[row.sequence] = self._ids(stamps, row, offsets)
        return found

    def _ids(self, stamps: Stamps, row: EventRow, offsets: BitMap64) -> dict[int, str]:
        contexts = self.recorder.explicit.of(row.source, offsets)
        ids = {offset: context.trace_id for offset, context in contexts.items()}
        unknown = []
        for offset in offsets - BitMap64(ids):
            timestamp_ns = stamps.of(row.source, offset)
            if timestamp_ns is None:
                unknown.append(offset)
            else:
                ids[offset] = derived_trace_id(*row.source, offset, timestamp_ns)
        for message in self._messages(row.source, BitMap64(unknown)):
            ids[message.offset] = _context(message).trace_id
        return ids

    # --- queries -------------------------------------------------------------------------------

    def recent(self, *, limit: int = 100) -> list[reports.Trace]:
        """Newest first."""
        return self.search(reports.TraceQuery(limit=limit))

    def search(self, query: reports.TraceQuery) -> list[reports.Trace]:
        """Newest first."""
        if not 1 <= query.limit <= LIST_MAX:
            raise InvalidRequest(f"invalid limit {query.limit}: must be 1 to {LIST_MAX}", path="limit")
        choices = dict.fromkeys((*reports.STATUSES, *reports.OUTCOMES))
        if query.status is not None and query.status not in choices:
            raise InvalidRequest(f"invalid status {query.status!r}: must be one of {' '.join(choices)}", path="status")
        found = self._search(self._known(), query)
        if len(found) < query.limit and self._has_history:
            found = self._search(self._known(with_history=True), query)
        return sorted(found, key=lambda trace: -trace.end_ns)

    def get(self, trace_id: str) -> reports.Trace:
        """One trace with its spans."""
        if not is_trace_id(trace_id):
            raise InvalidRequest("invalid trace ID format: must be 32 hex digits, not all of them 0", path="trace_id")
        known = self._known()
        found = self._journeys(known, {trace_id: None})
        if self._has_history and not (found and _is_from_the_start(found[0])):
            known = self._known(with_history=True)
            found = self._journeys(known, {trace_id: None})
        if not found:
            raise NotFound(f"trace {trace_id}")
        return self._report(known, found[0], with_spans=True)

    def stats(self) -> reports.TraceStats:
        """Statistics of the traces in the ring: those that a search of the ring finds."""
        ring = self.recorder.ring
        counts = TraceCounts()
        for row in ring:
            if row.count:
                counts.add(row)
        traces = self._of_several(counts)
        total, completed, error, by_topic = counts.sum_up()
        latency_count, latency_ns = counts.latency(ring)
        for trace in traces:
            total += 1
            by_topic[trace.topic] = by_topic.get(trace.topic, 0) + 1
            error += trace.outcome == "error"
            if trace.outcome == "completed":
                completed += 1
                latency_count += 1
                latency_ns += trace.end_ns - trace.start_ns
        return reports.TraceStats(
            enabled=self._config.enabled,
            spans_in_buffer=ring.event_count,
            buffer_capacity=ring.capacity,
            traces_indexed=len(self.recorder.explicit),
            sampling_rate=self._default_rate,
            exporters_enabled=self._exporters,
            traces_total=total,
            traces_completed=completed,
            traces_pending=total - completed - error,
            traces_error=error,
            average_latency_ns=latency_ns // latency_count if latency_count else 0,
            by_topic=by_topic,
        )

    def _of_several(self, counts: TraceCounts) -> list[reports.Trace]:
        """The traces with several messages, which the counts leave out, as they do copies of messages.

        At most `EXAMINED_MAX` messages are examined: the rest counts as one trace per message.
        """
        explicit = self.recorder.explicit
        ids = dict.fromkeys(explicit.shared())
        copies = [row for row in self.recorder.ring if row.origin is not NOWHERE]
        for row in copies:
            for origin in counts.unseen(row.origin, BitMap64(row.origin_offsets.values())):
                offset = next(copy for copy, one in row.origin_offsets.items() if one == origin)
                context = explicit.context(MessageLocation(*row.source, offset))
                if context is not None:
                    ids[context.trace_id] = None
        for row in copies:
            counts.leave_out(row.source, row.offset_set())
        examined: dict[str, MessageLocation | None] = dict.fromkeys(islice(ids, EXAMINED_MAX))
        if not examined:
            return []
        known = self._known()
        for places in self._places(known, examined).values():
            for source, offsets in by_source(places).items():
                counts.leave_out(source, offsets)
        return [self._report(known, one) for one in self._journeys(known, examined)]

    # --- what is known -------------------------------------------------------------------------

    @property
    def _has_history(self) -> bool:
        return self._config.topic and self.topics.stored_traces() is not None

    def _known(self, *, with_history: bool = False) -> Known:
        ring = self.recorder.ring
        if not with_history:
            return Known(list(ring), grouped(ring), {}, {})
        rows: list[EventRow] = []
        contexts: dict[MessageLocation, TraceContext] = {}
        places: dict[str, list[MessageLocation]] = {}
        for row, context in self._history():
            rows.append(row)
            if context is not None and len(contexts) < self._config.ids_max:
                for offset in range(row.first, row.end):
                    place = MessageLocation(*row.source, offset)
                    if place not in contexts:
                        contexts[place] = context
                        places.setdefault(context.trace_id, []).append(place)
        first = ring.first_sequence
        waiting = [row for row in self.recorder.outbox if first is not None and row.sequence < first]
        rows = [*rows, *waiting, *ring]
        return Known(rows, grouped(rows), contexts, places)

    def _history(self) -> Iterator[StoredRow]:
        """Rows of `__traces` that the ring does not have, from the end backward, up to a number of bytes."""
        leader = self.topics.stored_traces()
        if leader is None:
            return
        log = leader.log
        begin, end = log.start_offset, log.next_offset
        line_bytes = max(1, log.size // max(1, end - begin))
        first_in_ring = self.recorder.ring.first_sequence
        counts = self.topics.partition_counts()
        created = {topic: self.topics.created_at_ns(topic) for topic in counts}
        with suppress(StorageError):
            reader = log.reader(max(begin, end - HISTORY_BYTES // line_bytes))
            while (chunk := reader.read(max_bytes=READ_BYTES)).record_count:
                values = [message.value for message in kernel.decode(chunk.records, None, StoredMessage, verify=False)]
                for stored in read_lines(values):
                    row = stored.row
                    is_in_ring = first_in_ring is not None and row.sequence >= first_in_ring
                    if not is_in_ring and row.time_ns >= created.get(row.source.topic, row.time_ns + 1):
                        yield stored

    def _messages(self, source: TopicPartition, offsets: BitMap64) -> Iterator[StoredMessage]:
        """The messages of the offsets that still exist."""
        if not offsets:
            return
        with suppress(GoQueueError):
            leader = self.topics.leader(*source)
            in_log = between(offsets, leader.log.start_offset, leader.log.next_offset)
            for some in RecordFetcher(leader).messages(in_log, count=LIST_MAX, max_bytes=READ_BYTES):
                yield from some

    # --- journeys ------------------------------------------------------------------------------

    def _search(self, known: Known, query: reports.TraceQuery) -> list[reports.Trace]:
        found: dict[str, reports.Trace | None] = {}
        left = EXAMINED_MAX
        places = candidates(
            known.rows,
            topic=query.topic,
            partition=query.partition,
            group=query.group,
            offset=query.offset,
            among=None if query.status is None else _of_outcome(known.rows, query.status),
        )
        step = max(STEP_MIN, query.limit)
        while left > 0 and (some := list(islice(places, step))):
            left -= len(some)
            step = STEP
            chosen = some if query.key is None else self._of_key(some, query.key)
            new = {one: place for one, place in self._trace_ids(known, chosen).items() if one not in found}
            for one in self._journeys(known, new):
                trace = self._report(known, one)
                found[one.trace_id] = trace if _matches(trace, query) else None
            if sum(trace is not None for trace in found.values()) >= query.limit:
                break
        return [trace for trace in found.values() if trace is not None][: query.limit]

    def _of_key(self, places: Sequence[MessageLocation], key: bytes) -> list[MessageLocation]:
        wanted = {
            (source, message.offset)
            for source, offsets in by_source(places).items()
            for message in self._messages(source, offsets)
            if message.key == key
        }
        return [place for place in places if (TopicPartition(*place[:2]), place.offset) in wanted]

    def _trace_ids(self, known: Known, places: Sequence[MessageLocation]) -> dict[str, MessageLocation | None]:
        """The traces of messages, in their order; empty for a message whose trace is no longer known."""
        rows = rows_of(known.by_source, places)
        found: dict[str, MessageLocation | None] = {}
        for place in places:
            context = self._context(known, place, rows.get(place, _NO_ROWS))
            if context is not None:
                found.setdefault(context.trace_id, place)
        return found

    def _context(self, known: Known, place: MessageLocation, rows: Sequence[EventRow]) -> TraceContext | None:
        context = self.recorder.explicit.context(place) or known.contexts.get(place)
        if context is not None:
            return context
        stamped = next((row for row in rows if row.timestamp_ns is not None), None)
        if stamped is None or stamped.is_explicit:
            for message in self._messages(TopicPartition(*place[:2]), BitMap64([place.offset])):
                return _context(message)
        if stamped is None or stamped.timestamp_ns is None:
            return None
        return context_of(*place, stamped.timestamp_ns)

    def _journeys(self, known: Known, trace_ids: Mapping[str, MessageLocation | None]) -> list[Journey]:
        """The journeys of traces, each with a message if one is known; without traces that have no row."""
        places = self._places(known, trace_ids)
        rows = rows_of(known.by_source, [place for some in places.values() for place in some])
        found = []
        for trace_id, some in places.items():
            told = [moment for place in some for moment in self._moments(place, rows.get(place, _NO_ROWS))]
            if any(moment.sequence >= 0 for moment in told):
                found.append(journey(trace_id, told))
        return found

    def _moments(self, place: MessageLocation, rows: Sequence[EventRow]) -> Iterator[Moment]:
        """The events of a message at one place; if no row has the time of its publish, the log has it."""
        is_known = False
        for row in rows:
            is_known |= row.kind in (PUBLISH, EventType.RECEIVED)
            yield from moments(row, place.offset)
        if not is_known:
            for message in self._messages(TopicPartition(*place[:2]), BitMap64([place.offset])):
                yield Moment(message.timestamp_ns, -1, 0, EventType.RECEIVED, place, attributes={"source": "log"})

    def _places(
        self, known: Known, trace_ids: Mapping[str, MessageLocation | None]
    ) -> dict[str, list[MessageLocation]]:
        """The places of the messages of each trace; the message that the id is derived from comes first."""
        derived = self._derived_places(trace_ids)
        rows = rows_of(known.by_source, [place for some in derived.values() for place in some])
        found = {}
        for trace_id, sure in trace_ids.items():
            named = (*known.places.get(trace_id, ()), *self.recorder.explicit.places(trace_id))
            first = [
                place
                for place in derived[trace_id]
                if place == sure or self._is_of(known, place, rows.get(place, _NO_ROWS), trace_id)
            ]
            known_for_sure = () if sure is None else (sure,)
            found[trace_id] = list(dict.fromkeys((*first, *known_for_sure, *named)))[:PLACES_MAX]
        return found

    def _derived_places(self, trace_ids: Iterable[str]) -> dict[str, list[MessageLocation]]:
        """The places from which ids are derived, if they are derived ids."""
        counts = self.topics.partition_counts()
        topics: dict[int, list[str]] = {}
        for topic in counts:
            topics.setdefault(crc32c(topic.encode()), []).append(topic)
        found = {}
        for trace_id in trace_ids:
            crc, partition, offset, _ = invert(trace_id)
            found[trace_id] = [
                MessageLocation(topic, partition, offset) for topic in topics.get(crc, ()) if partition < counts[topic]
            ]
        return found

    def _is_of(self, known: Known, place: MessageLocation, rows: Sequence[EventRow], trace_id: str) -> bool:
        context = self._context(known, place, rows)
        return context is not None and context.trace_id == trace_id

    def _report(self, known: Known, one: Journey, *, with_spans: bool = False) -> reports.Trace:
        spans = []
        for moment in one.moments if with_spans else ():
            context = None
            if moment.event_type == EventType.RECEIVED:
                context = self._context(known, moment.place, _NO_ROWS)
            spans.append(
                reports.Span(
                    span_id=span_id(one.trace_id, moment),
                    event_type=str(moment.event_type),
                    time_ns=moment.time_ns,
                    topic=moment.place.topic,
                    partition=moment.place.partition,
                    offset=moment.place.offset,
                    parent_span_id=parent_span_id(one.trace_id, moment, context),
                    group=moment.group,
                    consumer_id=moment.member,
                    duration_ns=moment.duration_ns,
                    error=moment.error,
                    attributes=dict(moment.attributes),
                )
            )
        return reports.Trace(
            trace_id=one.trace_id,
            topic=one.start.topic,
            partition=one.start.partition,
            offset=one.start.offset,
            start_ns=one.start_ns,
            end_ns=one.end_ns,
            status=one.status,
            span_count=len(one.moments),
            spans=spans,
        )


def _of_outcome(rows: Iterable[EventRow], status: str) -> Callable[[TopicPartition, BitMap64], BitMap64]:
    """The messages that may belong to a trace of that outcome: a trace has the outcome of one of its messages."""
    counts = TraceCounts()
    for row in rows:
        if row.count:
            counts.add(row)

    @cache
    def wanted(source: TopicPartition) -> BitMap64:
        match status:
            case "completed":
                return counts.completed(source)
            case "failed" | "expired" | "error":
                return counts.error(source)
            case _:
                return counts.pending(source)

    def among(source: TopicPartition, offsets: BitMap64) -> BitMap64:
        return offsets & wanted(source)

    return among


def _matches(trace: reports.Trace, query: reports.TraceQuery) -> bool:
    if query.status is not None and query.status not in (trace.status, trace.outcome):
        return False
    if query.start_ns is not None and trace.end_ns < query.start_ns:
        return False
    if query.end_ns is not None and trace.start_ns >= query.end_ns:
        return False
    return query.slower_than_ns is None or trace.end_ns - trace.start_ns > query.slower_than_ns


def _is_from_the_start(found: Journey) -> bool:
    """Whether the rows have a journey from its first event on."""
    first = found.moments[0]
    return first.event_type == EventType.RECEIVED and first.sequence >= 0 and "copied_from" not in first.attributes


def _context(message: StoredMessage) -> TraceContext:
    origin: TopicPartition = message.origin
    return context_of(*origin, message.offset, message.timestamp_ns, message.encoded_headers)


def _result(pending: Pending[PartitionLeader]) -> PartitionLeader | None:
    try:
        return pending.result()
    except GoQueueError:
        return None
