"""The series about the disk: writes and flushes that failed, logs that stopped, and free space."""

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from goqueue import events


class StorageMetrics:
    """Fed by the events of logs; `watch` adds the free space."""

    def __init__(self, registry: CollectorRegistry) -> None:
        topic = ("topic",)
        self._log_failed = Gauge(
            "goqueue_storage_log_failed",
            "1 once the log refuses writes after a disk error",
            ("topic", "partition"),
            registry=registry,
        )
        self._write_errors = Counter("goqueue_storage_write_errors", "Writes that failed", topic, registry=registry)
        self._fsync_errors = Counter("goqueue_storage_fsync_errors", "Flushes that failed", topic, registry=registry)
        self._free = Gauge(
            "goqueue_storage_disk_free_bytes", "Free space on the disk of the data directory", registry=registry
        )
        self._total = Gauge(
            "goqueue_storage_disk_total_bytes", "Size of the disk of the data directory", registry=registry
        )
        self.handlers: Mapping[type[events.Event], Callable[[Any], None]] = {
            events.WriteRefused: self._count_refused,
            events.LogFailed: self._count_failed,
        }

    def watch(self, space: Callable[[], tuple[int, int] | None]) -> None:
        """Call this at each scrape for the free and the total bytes."""
        self._free.set_function(lambda: (space() or (float("nan"), 0))[0])
        self._total.set_function(lambda: (space() or (0, float("nan")))[1])

    def topic_created(self, topic: str, partitions: int) -> None:
        """Create the series of the topic, at zero."""
        for number in range(partitions):
            self._log_failed.labels(topic, str(number))
        self._write_errors.labels(topic)
        self._fsync_errors.labels(topic)

    def topic_deleted(self, topic: str) -> None:
        """Remove the series of the topic."""
        self._log_failed.remove_by_labels({"topic": topic})
        self._write_errors.remove(topic)
        self._fsync_errors.remove(topic)

    def _count_refused(self, event: events.WriteRefused) -> None:
        topic, _ = _place(event.log)
        self._write_errors.labels(topic).inc()

    def _count_failed(self, event: events.LogFailed) -> None:
        topic, partition = _place(event.log)
        self._log_failed.labels(topic, partition).set(1)
        (self._fsync_errors if event.operation == "sync" else self._write_errors).labels(topic).inc()


def _place(log: str) -> tuple[str, str]:
    """The topic and partition of the log or ledger in that directory."""
    _, topic, partition, _ = log.rsplit("/", 3)
    return topic, partition
