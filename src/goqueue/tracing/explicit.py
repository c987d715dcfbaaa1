"""The index of messages that name their trace: from message to trace, and from trace to messages.

Derived ids need no index, explicit ones do. It is bounded: the oldest entries go first; their records still name the
trace.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import Buffer
from goqueue.tracing.context import COPY_TRACE, TRACEPARENT, TraceContext, context_in
from goqueue.tracing.rows import MessageLocation

Contexts = Mapping[int, TraceContext]
NO_CONTEXTS: Contexts = {}
FEW_BYTES = 2_048
"""Up to this size, a search of the bytes is faster than the start of a kernel pass."""


def contexts_in(records: Buffer, first_offset: int) -> Contexts:
    """The traces that records name, by offset; the offsets of the records have no gap.

    If no record names a trace, this costs a search of the bytes or, in a large batch, one kernel pass over the headers.
    """
    if len(records) <= FEW_BYTES:
        raw = bytes(records)
        if b"traceparent" not in raw and b"gq-trace" not in raw:
            return NO_CONTEXTS
    columns = kernel.columns(records, "headers", verify=False)
    named = _values(columns, TRACEPARENT), _values(columns, COPY_TRACE)
    if not any(named):
        return NO_CONTEXTS
    parents, originals = named
    found = {}
    for at in sorted(parents.keys() | originals.keys()):
        context = context_in({TRACEPARENT: parents.get(at, ""), COPY_TRACE: originals.get(at, "")})
        if context is not None:
            found[first_offset + at] = context
    return found


def _values(columns: kernel.RecordColumns, name: str) -> dict[int, str]:
    """The values of the headers of that name, by index in the batch; the last one wins, as everywhere."""
    wanted, names = name.encode(), columns.header_name_data
    at = names.find(wanted)
    if at < 0:
        return {}
    starts = memoryview(columns.header_name_offsets).cast("i")
    values = memoryview(columns.header_value_offsets).cast("i")
    of_records = memoryview(columns.header_offsets).cast("i")
    found = {}
    while at >= 0:
        header = bisect_right(starts, at) - 1
        if starts[header] == at and starts[header + 1] == at + len(wanted):
            raw = columns.header_value_data[values[header] : values[header + 1]]
            found[bisect_right(of_records, header) - 1] = raw.decode("utf-8", "replace")
        at = names.find(wanted, at + 1)
    return found


class ExplicitTraces:
    """The latest messages that name their trace."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._contexts: dict[TopicPartition, dict[int, TraceContext]] = {}
        self._offsets: dict[TopicPartition, BitMap64] = {}
        self._places: dict[str, deque[MessageLocation]] = {}
        self._order: deque[MessageLocation] = deque()

    def __len__(self) -> int:
        """How many traces can be looked up."""
        return len(self._places)

    def note(self, source: TopicPartition, contexts: Contexts) -> None:
        """Add the traces that messages of a partition name."""
        known = self._contexts.setdefault(source, {})
        for offset, context in contexts.items():
            if offset in known:
                continue
            place = MessageLocation(*source, offset)
            known[offset] = context
            self._places.setdefault(context.trace_id, deque()).append(place)
            self._order.append(place)
        self._offsets.setdefault(source, BitMap64()).update(contexts)
        while len(self._order) > self._count_max:
            self._forget_oldest()

    def of(self, source: TopicPartition, offsets: BitMap64) -> Contexts:
        """The traces that these messages name, by offset."""
        known = self._offsets.get(source)
        if known is None:
            return NO_CONTEXTS
        contexts = self._contexts[source]
        return {offset: contexts[offset] for offset in known & offsets}

    def context(self, place: MessageLocation) -> TraceContext | None:
        """The trace that one message names."""
        return self._contexts.get(TopicPartition(place.topic, place.partition), {}).get(place.offset)

    def places(self, trace_id: str) -> Iterable[MessageLocation]:
        """The messages that name the trace, oldest first."""
        return tuple(self._places.get(trace_id, ()))

    def shared(self) -> Iterator[str]:
        """The traces that more than one message names."""
        return (trace_id for trace_id, places in self._places.items() if len(places) > 1)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        kept = [place for place in self._order if place.topic != topic]
        contexts = self._contexts
        self._contexts, self._offsets, self._places, self._order = {}, {}, {}, deque()
        for place in kept:
            source = TopicPartition(place.topic, place.partition)
            self.note(source, {place.offset: contexts[source][place.offset]})

    def _forget_oldest(self) -> None:
        place = self._order.popleft()
        source = TopicPartition(place.topic, place.partition)
        context = self._contexts[source].pop(place.offset)
        self._offsets[source].discard(place.offset)
        places = self._places[context.trace_id]
        places.popleft()  # the oldest entry is also the oldest of its trace
        if not places:
            del self._places[context.trace_id]
        if not self._contexts[source]:
            del self._contexts[source], self._offsets[source]
