"""All series of a node. They are fed by events, once per batch, and by counters that are read at each scrape.

`Metrics.observe` is an observer of events. It finds the topic of a log event by the directory of the log. A series with
a topic label exists from the first scrape after the creation of the topic, at zero, until its deletion. Internal topics
are only in the series about storage and ledgers.
"""

import platform
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from goqueue import events
from goqueue.metrics.cluster import ClusterMetrics
from goqueue.metrics.delivery import DeliveryMetrics
from goqueue.metrics.event_loop import EventLoopMetrics
from goqueue.metrics.schemas import SchemaMetrics
from goqueue.metrics.storage import StorageMetrics
from goqueue.metrics.tracing import TraceMetrics
from goqueue.metrics.transactions import TransactionMetrics
from goqueue.names import VERSION
from goqueue.record import kernel

BATCH_BYTES = (1024, 16384, 65536, 262144, 1048576, 4194304)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type; older scrapers do not know newer versions of it."""


class _PublishTally:
    """Messages published to a topic since the last scrape: a series is too slow to update with each batch."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class Metrics:
    """The series of one node."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        topic = ("topic",)
        self._published = _counter(registry, "broker_messages_published", "Messages appended", topic)
        self._published_bytes = _counter(registry, "broker_bytes_published", "Bytes of records appended", topic)
        group = ("topic", "consumer_group")
        self._consumed = _counter(registry, "broker_messages_consumed", "Messages delivered or read", group)
        self._consumed_bytes = _counter(registry, "broker_bytes_consumed", "Bytes of records delivered or read", group)
        self._duplicates = _counter(registry, "broker_duplicates", "Batches that producers sent again", topic)
        self._partitions = _gauge(registry, "broker_topic_partitions", "Partitions of a topic", topic)
        self._topics = _gauge(registry, "broker_topic_count", "Topics, without internal ones")
        self._connections = _gauge(registry, "broker_active_connections", "Open connections", ("door",))
        self._fsyncs = _counter(registry, "storage_fsync", "Completed flushes", topic)
        self._fsync_bytes = Histogram(
            "goqueue_storage_fsync_batch_bytes",
            "Bytes made durable by one flush",
            topic,
            buckets=BATCH_BYTES,
            registry=registry,
        )
        self._segments_created = _counter(registry, "storage_segments_created", "Segments created", topic)
        self._segments_deleted = _counter(registry, "storage_segments_deleted", "Segments deleted", topic)
        self._corrupt = _counter(registry, "storage_corrupt_records", "Places in logs that fail their checks", topic)
        self._by_topic: tuple[Any, ...] = (self._published, self._published_bytes, self._duplicates, self._partitions)
        self._by_any_topic: tuple[Any, ...] = (  # including internal topics
            self._fsyncs,
            self._fsync_bytes,
            self._segments_created,
            self._segments_deleted,
            self._corrupt,
        )
        self._tallies: dict[str, _PublishTally] = {}
        self._not_rendered: dict[str, events.TopicCreated] = {}
        counts: dict[type[events.Event], Callable[[Any], None]] = {
            events.BatchPublished: self._count_published,
            events.Consumed: self._count_consumed,
            events.DuplicateFound: self._count_duplicate,
            events.TopicCreated: self._created,
            events.TopicDeleted: self._deleted,
            events.Flushed: self._count_flush,
            events.SegmentRolled: self._count_segment,
            events.SegmentsDeleted: self._count_deleted,
            events.DamageFound: self._count_damage,
        }
        self.delivery = DeliveryMetrics(registry, self._consumed, self._consumed_bytes)
        counts.update(self.delivery.handlers)
        self.storage = StorageMetrics(registry)
        counts.update(self.storage.handlers)
        self._schemas = SchemaMetrics(registry)
        counts.update(self._schemas.handlers)
        counts.update(TransactionMetrics(registry).handlers)
        self.observe = events.Handlers(counts)
        self.tracing = TraceMetrics(registry)
        self.cluster = ClusterMetrics(registry)
        self.event_loop = EventLoopMetrics(registry)
        build = _gauge(registry, "build_info", "This build", ("version", "python"))
        build.labels(VERSION, platform.python_version()).set(1)
        _gauge(registry, "kernel_info", "The record kernel", ("implementation",)).labels(kernel.IMPLEMENTATION).set(1)

    def _count_published(self, event: events.BatchPublished) -> None:
        tally = self._tallies.get(event.topic)
        if tally is not None:
            tally.messages += event.count
            tally.bytes += event.bytes

    def _count_consumed(self, event: events.Consumed) -> None:
        if event.topic in self._tallies:
            self._consumed.labels(event.topic, event.group).inc(event.count)
            self._consumed_bytes.labels(event.topic, event.group).inc(event.bytes)

    def _count_duplicate(self, event: events.DuplicateFound) -> None:
        if event.topic in self._tallies:
            self._duplicates.labels(event.topic).inc()

    def watch_connections(self, counts: Mapping[str, Callable[[], int]]) -> None:
        """Call these at each scrape for the number of connections of each door."""
        for door, count in counts.items():
            self._connections.labels(door).set_function(count)

    def render(self, as_openmetrics: bool) -> tuple[bytes, str]:
        """All series as text, and its content type."""
        self._begin_series()
        for topic, tally in self._tallies.items():
            self._published.labels(topic).inc(tally.messages)
            self._published_bytes.labels(topic).inc(tally.bytes)
            tally.messages = tally.bytes = 0
        self.delivery.look()
        if as_openmetrics:
            return openmetrics.generate_latest(self._registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        text: bytes = generate_latest(self._registry)
        return text, CONTENT_TYPE

    def _created(self, event: events.TopicCreated) -> None:
        self._not_rendered[event.topic] = event
        if not event.internal:
            self._topics.inc()
            self._tallies[event.topic] = _PublishTally()

    def _begin_series(self) -> None:
        """Create, at zero, the series of topics that were created since the last scrape.

        Not when a topic is created: each has about thirty series, and a broker that starts with 3,000 partitions would
        spend a fifth of a second on them before it serves anything.
        """
        created, self._not_rendered = self._not_rendered, {}
        for event in created.values():
            for series in self._by_any_topic:
                series.labels(event.topic)
            self.delivery.topic_created(event.topic, internal=event.internal)
            self.storage.topic_created(event.topic, event.partitions)
            if event.internal:
                continue
            self._schemas.topic_created(event.topic)
            for series in self._by_topic:
                series.labels(event.topic)
            self._consumed.labels(event.topic, "")
            self._consumed_bytes.labels(event.topic, "")
            self._partitions.labels(event.topic).set(event.partitions)

    def _deleted(self, event: events.TopicDeleted) -> None:
        self._not_rendered.pop(event.topic, None)
        for series in self._by_any_topic:
            series.remove(event.topic)
        self.delivery.topic_deleted(event.topic, internal=event.internal)
        self.storage.topic_deleted(event.topic)
        if event.internal:
            return
        self._topics.dec()
        del self._tallies[event.topic]
        for series in self._by_topic:
            series.remove(event.topic)
        self._schemas.topic_deleted(event.topic)
        self._consumed.remove_by_labels({"topic": event.topic})
        self._consumed_bytes.remove_by_labels({"topic": event.topic})

    def _count_flush(self, event: events.Flushed) -> None:
        topic = topic_of(event.log)
        self._fsyncs.labels(topic).inc()
        self._fsync_bytes.labels(topic).observe(event.bytes)

    def _count_segment(self, event: events.SegmentRolled) -> None:
        self._segments_created.labels(topic_of(event.log)).inc()

    def _count_deleted(self, event: events.SegmentsDeleted) -> None:
        self._segments_deleted.labels(topic_of(event.log)).inc(event.count)

    def _count_damage(self, event: events.DamageFound) -> None:
        self._corrupt.labels(topic_of(event.log)).inc()


def topic_of(log: str) -> str:
    """The topic of the log or ledger in that directory."""
    return log.rsplit("/", 3)[1]


def _counter(registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(f"goqueue_{name}", text, labels, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(f"goqueue_{name}", text, labels, registry=registry)
