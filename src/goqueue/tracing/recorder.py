"""The recorder: an observer of events that makes rows of them.

    BatchPublished ──> a row ──(Persisted)──> complete ──> outbox
    MessagesDelivered, MessagesSettled, ... ──> a row ──> outbox

Everything here is done once per batch. Times never go back, even if the clock does: later events get later times.
Internal topics are never traced.
"""

from collections import deque
from collections.abc import Iterable
from itertools import count

from pyroaring import BitMap64

from goqueue import events
from goqueue.clock import Clock
from goqueue.names import TopicPartition
from goqueue.record.header import Flags
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.explicit import NO_CONTEXTS, Contexts, ExplicitTraces, contexts_in
from goqueue.tracing.ring import Ring
from goqueue.tracing.rows import ERRORS, NOWHERE, PUBLISH, ByOffset, EventRow, EventType
from goqueue.tracing.sampling import Sampler

_SETTLED = {
    "ack": EventType.ACKED,
    "nack": EventType.NACKED,
    "reject": EventType.REJECTED,
    "extend": EventType.EXTENDED,
}
_OF_PUBLISH = (EventType.RECEIVED, EventType.PARTITIONED, EventType.PERSISTED)
_OTHERS = tuple(str(event_type) for event_type in EventType if event_type not in _OF_PUBLISH)
_HAS_HEADERS = int(Flags.HAS_HEADERS)
_CONTROL = int(Flags.CONTROL)
ERROR_CHARACTERS_MAX = 1_000
"""The limit of an error text of a consumer: it may be long, and the ring keeps thousands of them."""
TTL_OVER = "the time to live ended"
LEASE_OVER = "the lease expired"


class RecorderCounters:
    """Recorded and dropped events of single messages since the start."""

    __slots__ = ("exporter", "exports", "others", "persisted", "published", "ring", "sampled")

    def __init__(self) -> None:
        self.published = self.persisted = 0
        self.others: dict[str, int] = dict.fromkeys(_OTHERS, 0)
        self.sampled = self.ring = self.exporter = 0
        self.exports: dict[tuple[str, str], int] = {}  # by exporter and result

    @property
    def recorded(self) -> dict[str, int]:
        """By type."""
        received = {str(EventType.RECEIVED): self.published, str(EventType.PARTITIONED): self.published}
        return {**received, str(EventType.PERSISTED): self.persisted, **self.others}

    @property
    def dropped(self) -> dict[str, int]:
        """By reason."""
        return {"sampled": self.sampled, "ring": self.ring, "exporter": self.exporter}


class Recorder:
    """Records events of messages as rows. Belongs to the owner of the broker."""

    def __init__(self, config: TraceConfig, *, clock: Clock) -> None:
        self.ring = Ring(config.ring)
        self.explicit = ExplicitTraces(config.ids_max)
        self.tallies = RecorderCounters()
        self.outbox: list[EventRow] = []
        self.keeps_outbox = False  # whether rows are exported
        self._config = config
        self._clock = clock
        self._now_ns = 0
        self._numbers = count(clock.wall_ns())
        self._rates: dict[str, float] = {}
        self._sampler = Sampler()
        self._sources: dict[tuple[str, int], TopicPartition] = {}
        self._unpersisted: dict[tuple[str, int], deque[EventRow]] = {}
        self.observe = events.Handlers(
            {
                events.BatchPublished: self._published,
                events.Persisted: self._persisted,
                events.MessagesDelivered: self._delivered,
                events.MessagesSettled: self._settled,
                events.LeasesExpired: self._leases_expired,
                events.LeasesLost: self._leases_lost,
                events.MessagesPassedOver: self._passed_over,
                events.MessagesExpired: self._messages_expired,
                events.DelaysBegun: self._delays_begun,
                events.DelaysFired: self._delays_fired,
                events.DelaysCancelled: self._delays_cancelled,
                events.DelaysExpired: self._delays_expired,
                events.DeadLettered: self._dead_lettered,
                events.RebalanceStarted: self._rebalance_started,
                events.RebalanceEnded: self._rebalance_ended,
                events.PartitionsRevoked: self._partitions_revoked,
                events.PartitionsAssigned: self._partitions_assigned,
                events.TopicDeleted: self._topic_deleted,
            }
        )

    def configure(self, topic: str, rate: float) -> None:
        """Trace this share of the topic's messages from now on."""
        self._rates[topic] = rate

    def take_outbox(self) -> list[EventRow]:
        """The rows that were completed since the last call."""
        rows, self.outbox = self.outbox, []
        return rows

    def drop(self, rows: Iterable[EventRow]) -> None:
        """Count rows that could not be exported."""
        self.tallies.exporter += sum(row.event_count for row in rows)

    # --- publishing ----------------------------------------------------------------------------

    def _published(self, event: events.BatchPublished) -> None:
        rate = self._rates.get(event.topic)
        if not rate or event.flags & _CONTROL:
            return
        source = self._source(event.topic, event.partition)
        first, number = event.first_offset, event.count
        end = first + number
        contexts = contexts_in(event.records, first) if event.flags & _HAS_HEADERS else NO_CONTEXTS
        origin = event.copied_from
        if contexts or origin is not None:
            self._decide(source, first, end, contexts, is_copy=origin is not None)
        offsets = None
        if not self._sampler.takes_all(source, rate):
            offsets = self._sampler.choose_range(source, rate, first, end)
            number = len(offsets)
            self.tallies.sampled += 3 * (event.count - number)
            if not number:
                return
            if number == event.count:
                offsets = None
        received_ns = max(self._now_ns, event.received_ns)
        row = EventRow(
            next(self._numbers),
            PUBLISH,
            received_ns,
            source,
            first,
            end,
            offsets,
            number,
            written_ns=max(received_ns, self._time()),
            timestamp_ns=event.timestamp_ns,
            is_explicit=contexts is not NO_CONTEXTS,
        )
        if origin is not None:
            row.origin = TopicPartition(origin.topic, origin.partition)
            row.origin_offsets = dict(zip(range(first, end), origin.offsets, strict=True))
        tallies = self.tallies
        tallies.ring += self.ring.add(row)
        tallies.published += number
        waiting = self._unpersisted.get(source)
        if waiting is None:
            waiting = self._unpersisted[source] = deque(maxlen=self._config.ring)
        waiting.append(row)

    def _decide(self, source: TopicPartition, first: int, end: int, contexts: Contexts, *, is_copy: bool) -> None:
        """Decide the messages of a batch that are sampled or left out regardless of the rate."""
        self.explicit.note(source, contexts)
        if is_copy:
            self._sampler.take_in(source, _span(first, end))
            return
        self._sampler.take_in(source, BitMap64([at for at, context in contexts.items() if context.is_sampled]))
        self._sampler.leave_out(source, BitMap64([at for at, context in contexts.items() if not context.is_sampled]))

    def _persisted(self, event: events.Persisted) -> None:
        waiting = self._unpersisted.get((event.topic, event.partition))
        if not waiting:
            return
        now_ns = self._time()
        while waiting and waiting[0].end <= event.end_offset:
            row = waiting.popleft()
            row.persisted_ns = now_ns
            self.tallies.persisted += row.count
            self._send(row)

    # --- delivery ------------------------------------------------------------------------------

    def _delivered(self, event: events.MessagesDelivered) -> None:
        row = self._record(EventType.FETCHED, event.topic, event.partition, event.offsets, event.group, event.member)
        if row is not None:
            row.attempts = dict(event.attempts)

    def _settled(self, event: events.MessagesSettled) -> None:
        row = self._record(
            _SETTLED[event.kind], event.topic, event.partition, event.offsets, event.group, event.member, event.reason
        )
        if row is not None and event.delivered_ns and event.kind != "extend":
            row.duration_ns = max(0, row.time_ns - event.delivered_ns)

    def _leases_expired(self, event: events.LeasesExpired) -> None:
        where = (event.topic, event.partition, event.offsets)
        self._record(EventType.TIMEOUT, *where, event.group, event.member, LEASE_OVER)

    def _leases_lost(self, event: events.LeasesLost) -> None:
        where = (event.topic, event.partition, event.offsets)
        self._record(EventType.TIMEOUT, *where, event.group, event.member, event.reason)

    def _passed_over(self, event: events.MessagesPassedOver) -> None:
        row = self._record(EventType.ACKED, event.topic, event.partition, event.offsets, event.group)
        if row is not None:
            row.reason = "committed"

    def _messages_expired(self, event: events.MessagesExpired) -> None:
        row = self._record(EventType.EXPIRED, event.topic, event.partition, event.offsets, event.group, error=TTL_OVER)
        if row is not None:
            row.reason = "ttl"

    def _dead_lettered(self, event: events.DeadLettered) -> None:
        row = self._record(
            EventType.ROUTED,
            event.topic,
            event.partition,
            BitMap64(event.dead_letters),
            event.group,
            event.member,
            event.error,
        )
        if row is not None:
            row.reason = event.reason
            row.dlq_topic = event.dlq_topic
            row.dead_letters = dict(event.dead_letters)
            row.duration_ns = max(0, row.time_ns - event.began_ns) if event.began_ns else None

    # --- delays --------------------------------------------------------------------------------

    def _delays_begun(self, event: events.DelaysBegun) -> None:
        row = self._record(EventType.SCHEDULED, event.topic, event.partition, event.offsets)
        if row is not None:
            row.deliver_at_ns = ByOffset(event.offsets, event.due_ns)

    def _delays_fired(self, event: events.DelaysFired) -> None:
        self._record(EventType.READY, event.topic, event.partition, event.offsets)

    def _delays_cancelled(self, event: events.DelaysCancelled) -> None:
        self._record(EventType.CANCELLED, event.topic, event.partition, event.offsets)

    def _delays_expired(self, event: events.DelaysExpired) -> None:
        row = self._record(
            EventType.EXPIRED,
            event.topic,
            event.partition,
            event.offsets,
            error="retention removed it before it was due",
        )
        if row is not None:
            row.reason = "retention"

    # --- groups --------------------------------------------------------------------------------

    def _rebalance_started(self, event: events.RebalanceStarted) -> None:
        self._of_group(EventType.REBALANCE_STARTED, event.group).reason = event.trigger

    def _rebalance_ended(self, event: events.RebalanceEnded) -> None:
        row = self._of_group(EventType.REBALANCE_ENDED, event.group)
        row.duration_ns = event.duration_ns
        row.reason = event.kind
        row.error = "another change came first" if event.failed else ""

    def _partitions_revoked(self, event: events.PartitionsRevoked) -> None:
        for source in event.partitions:
            if self._rates.get(source[0]):
                row = self._of_group(EventType.REVOKED, event.group, TopicPartition(*source), event.member_id)
                row.reason = "timeout" if event.timed_out else ""

    def _partitions_assigned(self, event: events.PartitionsAssigned) -> None:
        for source in event.partitions:
            if self._rates.get(source[0]):
                self._of_group(EventType.ASSIGNED, event.group, TopicPartition(*source), event.member_id)

    def _topic_deleted(self, event: events.TopicDeleted) -> None:
        self._rates.pop(event.topic, None)
        self.ring.forget(event.topic)
        self.explicit.forget(event.topic)
        self._sampler.forget(event.topic)
        for table in (self._sources, self._unpersisted):
            for source in [source for source in table if source[0] == event.topic]:
                del table[source]

    # --- inside --------------------------------------------------------------------------------

    def _record(
        self,
        event_type: EventType,
        topic: str,
        partition: int,
        offsets: BitMap64,
        group: str = "",
        member: str = "",
        error: str = "",
    ) -> EventRow | None:
        """A row for the sampled messages; None if there are none."""
        rate = self._rates.get(topic)
        if not rate or not offsets:
            return None
        source = self._source(topic, partition)
        chosen = offsets
        if event_type in ERRORS:
            if not self._sampler.takes_all(source, rate):
                self._sampler.take_in(source, offsets)
        elif not self._sampler.takes_all(source, rate):
            chosen = self._sampler.choose(source, rate, offsets)
            self.tallies.sampled += len(offsets) - len(chosen)
            if not chosen:
                return None
        first, end, number = chosen.min(), chosen.max() + 1, len(chosen)
        row = EventRow(
            next(self._numbers),
            event_type,
            self._time(),
            source,
            first,
            end,
            None if end - first == number else chosen.copy(),
            number,
            group,
            member,
            error[:ERROR_CHARACTERS_MAX],
        )
        return self._keep(row)

    def _of_group(
        self, event_type: EventType, group: str, source: TopicPartition = NOWHERE, member: str = ""
    ) -> EventRow:
        row = EventRow(next(self._numbers), event_type, self._time(), source, group=group, member=member)
        return self._keep(row)

    def _keep(self, row: EventRow) -> EventRow:
        self.tallies.ring += self.ring.add(row)
        self.tallies.others[row.kind] += max(1, row.count)
        self._send(row)
        return row

    def _send(self, row: EventRow) -> None:
        if self.keeps_outbox:
            if len(self.outbox) < self._config.outbox_max:
                self.outbox.append(row)
            else:
                self.tallies.exporter += row.event_count

    def _source(self, topic: str, partition: int) -> TopicPartition:
        source = self._sources.get((topic, partition))
        if source is None:
            source = self._sources[topic, partition] = TopicPartition(topic, partition)
        return source

    def _time(self) -> int:
        self._now_ns = max(self._now_ns, self._clock.wall_ns())
        return self._now_ns


def _span(first: int, end: int) -> BitMap64:
    offsets = BitMap64()
    offsets.add_range(first, end)
    return offsets
