"""The series about groups, deliveries, delays and dead letters.

Counters follow events, one per batch. Gauges such as lag and messages in flight are computed when the metrics are
scraped. The series of a group are removed with the group, those of a topic with the topic.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from goqueue import events
from goqueue.clock import SECOND

LATENCY = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
LATENESS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
REBALANCE = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
SIZES = (0, 1, 5, 10, 25, 50, 100, 250, 500, 1000)
PRIORITIES = ("critical", "high", "normal", "low", "background")
STATES = ("Empty", "Stable", "Rebalancing", "Dead")


class GroupProgress(NamedTuple):
    """The progress of a group in a partition."""

    topic: str
    partition: int
    group: str
    floor: int
    lag: int
    in_flight: int
    acked_ranges: int


class DeliveryTally:
    """What a group did with a topic since the last scrape: too frequent to update a series with each batch."""

    __slots__ = ("bytes", "commits", "delivered", "ledger_bytes", "ledger_records", "redelivered", "settled")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self.commits = self.delivered = self.bytes = self.redelivered = self.ledger_records = self.ledger_bytes = 0
        self.settled: dict[str, int] = {}


class DeliveryMetrics:
    """Fed by the events of the broker."""

    def __init__(self, registry: CollectorRegistry, consumed: Counter, consumed_bytes: Counter) -> None:
        self.consumed = consumed
        self.consumed_bytes = consumed_bytes
        self._tallies: dict[tuple[str, str], DeliveryTally] = {}
        self._poll_series: dict[str, tuple[Any, ...]] = {}
        self._standings: Callable[[], Iterable[GroupProgress]] = tuple
        self._pending: Callable[[], dict[str, int]] = dict

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"goqueue_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"goqueue_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"goqueue_{name}", text, labels, buckets=buckets, registry=registry)

        both, group = ("topic", "consumer_group"), "consumer_group"
        self.redelivered = counter("broker_messages_redelivered", "Messages delivered again", *both)
        self.expired = counter("broker_messages_expired", "Messages whose TTL ended", *both)
        self.settled = {
            "ack": counter("broker_messages_acked", "Messages acknowledged", *both),
            "nack": counter("broker_messages_nacked", "Messages nacked", *both),
            "reject": counter("broker_messages_rejected", "Messages rejected", *both),
            "extend": counter("broker_visibility_extensions", "Leases extended", *both),
        }
        self.timeouts = counter("broker_visibility_timeouts", "Leases that expired", *both)
        self.in_flight = gauge("broker_in_flight", "Messages in flight: leased and not settled", *both)
        self.delays = {
            name: counter(f"broker_delayed_messages_{name}", f"Delayed messages {name}", "topic")
            for name in ("scheduled", "fired", "cancelled", "expired")
        }
        self.delays_pending = gauge("broker_delayed_messages_pending", "Delayed messages that are not due yet", "topic")
        self.lateness = histogram("broker_delay_lateness_seconds", "How late delayed messages fire", LATENESS, "topic")
        self.dead = counter("broker_dlq_routed", "Dead letters written", "topic", "reason")
        self.boosts = counter("broker_priority_boosts", "Lanes served first after a long wait", "topic", "priority")
        self.redriven = counter("broker_dlq_redriven", "Dead letters redriven", "topic")
        self.ledger_records = counter("ledger_records", "Facts appended to ledgers", "topic")
        self.ledger_bytes = counter("ledger_bytes_written", "Bytes appended to ledgers", "topic")
        self.acked_ranges = gauge("ledger_acked_ranges", "Acknowledged ranges above the floor", *both)
        self.committed = gauge("consumer_committed_offset", "The floor", "topic", "partition", group)
        self.lag = gauge("consumer_lag", "Messages that are readable and not acked", "topic", "partition", group)
        self.commits = counter("consumer_offset_commits", "Committed positions that advanced", *both)
        self.members = gauge("consumer_group_members", "Members", group)
        self.generation = gauge("consumer_group_generation", "Generation", group)
        self.assigned = gauge("consumer_assigned_partitions", "Partitions assigned to members", group)
        self.state = gauge("consumer_group_state", "1 for the state it is in", group, "state")
        self.joins = counter("consumer_group_joins", "Members that joined", group)
        self.given = counter("consumer_partitions_assigned", "Partitions assigned by rebalances", group)
        self.taken = counter("consumer_partitions_revoked", "Partitions revoked by rebalances", group)
        self.rebalances = counter("consumer_rebalances", "Rebalances begun", group, "trigger")
        self.rebalance_latency = histogram(
            "consumer_rebalance_latency_seconds", "How long rebalances take", REBALANCE, group, "rebalance_type"
        )
        self.polls = counter("consumer_polls", "Polls answered", group)
        self.empty_polls = counter("consumer_polls_empty", "Polls answered with nothing", group)
        self.poll_latency = histogram("consumer_poll_latency_seconds", "Polls, waiting included", LATENCY, group)
        self.poll_size = histogram("consumer_poll_batch_size", "Messages per poll", SIZES, group)
        self.heartbeats = counter("consumer_heartbeats_sent", "Heartbeats", group)
        self.late_heartbeats = counter("consumer_heartbeat_timeouts", "Heartbeats two intervals late", group)
        self.sessions_over = counter("consumer_session_timeouts", "Members whose session expired", group)

        self._by_topic: tuple[Any, ...] = (
            *self.delays.values(),
            self.delays_pending,
            self.lateness,
            self.redriven,
        )
        self._by_any_topic: tuple[Any, ...] = (self.ledger_records, self.ledger_bytes)  # including internal topics
        self._of_topic: tuple[Any, ...] = (
            self.redelivered,
            self.expired,
            *self.settled.values(),
            self.timeouts,
            self.in_flight,
            self.dead,
            self.boosts,
            self.acked_ranges,
            self.committed,
            self.lag,
            self.commits,
        )
        self.handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.MessagesDelivered: self._delivered,
            events.MessagesSettled: self._settled,
            events.LeasesExpired: lambda e: self._count(self.timeouts, e, e.count),
            events.MessagesExpired: lambda e: self._count(self.expired, e, e.count),
            events.DelaysScheduled: lambda e: self.delays["scheduled"].labels(e.topic).inc(e.count),
            events.DelaysFired: self._fired,
            events.DelaysCancelled: lambda e: self.delays["cancelled"].labels(e.topic).inc(e.count),
            events.DelaysExpired: lambda e: self.delays["expired"].labels(e.topic).inc(e.count),
            events.DeadLettered: lambda e: self.dead.labels(e.topic, e.reason.lower()).inc(e.count),
            events.LaneBoosted: lambda e: self.boosts.labels(e.topic, PRIORITIES[e.lane]).inc(),
            events.DeadLettersRedriven: lambda e: self.redriven.labels(e.topic).inc(e.count),
            events.LedgerWritten: self._ledger,
            events.PositionCommitted: self._committed,
            events.PollAnswered: self._polled,
            events.MemberJoined: lambda e: self.joins.labels(e.group).inc(),
            events.MemberLeft: self._left,
            events.GroupChanged: self._changed,
            events.GroupStateChanged: self._state_changed,
            events.GroupDetached: self._detached,
            events.RebalanceStarted: lambda e: self.rebalances.labels(e.group, e.trigger).inc(),
            events.RebalanceEnded: self._rebalanced,
            events.PartitionsAssigned: lambda e: self.given.labels(e.group).inc(len(e.partitions)),
            events.PartitionsRevoked: lambda e: self.taken.labels(e.group).inc(len(e.partitions)),
            events.HeartbeatReceived: lambda e: self.heartbeats.labels(e.group).inc(),
            events.HeartbeatLate: lambda e: self.late_heartbeats.labels(e.group).inc(),
        }

    def _delivered(self, event: events.MessagesDelivered) -> None:
        tally = self._tally(event.topic, event.group)
        tally.delivered += event.count
        tally.bytes += event.bytes
        tally.redelivered += event.redelivered

    def _settled(self, event: events.MessagesSettled) -> None:
        settled = self._tally(event.topic, event.group).settled
        settled[event.kind] = settled.get(event.kind, 0) + event.count

    def _committed(self, event: events.PositionCommitted) -> None:
        self._tally(event.topic, event.group).commits += 1

    def _ledger(self, event: events.LedgerWritten) -> None:
        tally = self._tally(event.topic, "")
        tally.ledger_records += event.count
        tally.ledger_bytes += event.bytes

    def _tally(self, topic: str, group: str) -> "DeliveryTally":
        tally = self._tallies.get((topic, group))
        if tally is None:
            tally = self._tallies[topic, group] = DeliveryTally()
        return tally

    def watch(self, standings: Callable[[], Iterable[GroupProgress]], pending: Callable[[], dict[str, int]]) -> None:
        """Call these at each scrape for the gauges."""
        self._standings = standings
        self._pending = pending

    def look(self) -> None:
        """Compute the gauges, and add the tallies to their counters."""
        for (topic, group), tally in self._tallies.items():
            self._add(topic, group, tally)
        for series in (self.in_flight, self.acked_ranges, self.committed, self.lag):
            series.clear()
        for one in self._standings():
            self.in_flight.labels(one.topic, one.group).inc(one.in_flight)
            self.acked_ranges.labels(one.topic, one.group).inc(one.acked_ranges)
            self.committed.labels(one.topic, one.partition, one.group).set(one.floor)
            self.lag.labels(one.topic, one.partition, one.group).set(one.lag)
        for topic, count in self._pending().items():
            self.delays_pending.labels(topic).set(count)

    def _add(self, topic: str, group: str, tally: "DeliveryTally") -> None:
        if tally.delivered:
            self.consumed.labels(topic, group).inc(tally.delivered)
            self.consumed_bytes.labels(topic, group).inc(tally.bytes)
        if tally.redelivered:
            self.redelivered.labels(topic, group).inc(tally.redelivered)
        if tally.commits:
            self.commits.labels(topic, group).inc(tally.commits)
        for kind, count in tally.settled.items():
            self.settled[kind].labels(topic, group).inc(count)
        if tally.ledger_records:
            self.ledger_records.labels(topic).inc(tally.ledger_records)
            self.ledger_bytes.labels(topic).inc(tally.ledger_bytes)
        tally.clear()

    def topic_created(self, topic: str, *, internal: bool) -> None:
        """Create the series of the topic, at zero."""
        for series in self._by_any_topic:
            series.labels(topic)
        if internal:
            return
        for series in self._by_topic:
            series.labels(topic)
        for priority in PRIORITIES:
            self.boosts.labels(topic, priority)

    def topic_deleted(self, topic: str, *, internal: bool) -> None:
        """Remove the series of the topic."""
        for key in [key for key in self._tallies if key[0] == topic]:
            del self._tallies[key]
        for series in self._by_any_topic if internal else (*self._by_any_topic, *self._by_topic):
            series.remove(topic)
        for series in self._of_topic:
            series.remove_by_labels({"topic": topic})

    def _count(self, series: Counter, event: Any, count: int) -> None:
        if count:
            series.labels(event.topic, event.group).inc(count)

    def _fired(self, event: events.DelaysFired) -> None:
        self.delays["fired"].labels(event.topic).inc(event.count)
        self.lateness.labels(event.topic).observe(event.lateness_ns / SECOND)

    def _polled(self, event: events.PollAnswered) -> None:
        series = self._poll_series.get(event.group)
        if series is None:
            of_group = (self.polls, self.empty_polls, self.poll_latency, self.poll_size)
            series = self._poll_series[event.group] = tuple(one.labels(event.group) for one in of_group)
        polls, empty_polls, latency, size = series
        polls.inc()
        if not event.count:
            empty_polls.inc()
        latency.observe(event.waited_ns / SECOND)
        size.observe(event.count)

    def _left(self, event: events.MemberLeft) -> None:
        if event.reason == "timeout":
            self.sessions_over.labels(event.group).inc()

    def _changed(self, event: events.GroupChanged) -> None:
        self.members.labels(event.group).set(event.members)
        self.generation.labels(event.group).set(event.generation)
        self.assigned.labels(event.group).set(event.assigned_partitions)

    def _state_changed(self, event: events.GroupStateChanged) -> None:
        for state in STATES:
            self.state.labels(event.group, state).set(state == event.state)
        if event.state == "Dead":
            self._group_deleted(event.group)

    def _detached(self, event: events.GroupDetached) -> None:
        """Its coordinator says from now on what the group is like; what happened here stays counted."""
        for series in (self.members, self.generation, self.assigned, self.state):
            series.remove_by_labels({"consumer_group": event.group})

    def _rebalanced(self, event: events.RebalanceEnded) -> None:
        if not event.failed:
            self.rebalance_latency.labels(event.group, event.kind).observe(event.duration_ns / SECOND)

    def _group_deleted(self, group: str) -> None:
        self._poll_series.pop(group, None)
        for key in [key for key in self._tallies if key[1] == group]:
            del self._tallies[key]
        for series in vars(self).values():
            if isinstance(series, Counter | Gauge | Histogram) and "consumer_group" in series._labelnames:
                series.remove_by_labels({"consumer_group": group})
        for counter in self.settled.values():
            counter.remove_by_labels({"consumer_group": group})
