"""The series about schema validation, updated once per batch and removed with their topic."""

from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from goqueue import events
from goqueue.clock import SECOND

LATENCY: Final = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05)
RESULTS: Final = ("success", "failure")


class SchemaMetrics:
    """Fed by the events of the broker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.validations = Counter(
            "goqueue_broker_schema_validations",
            "Messages validated against a schema",
            ("topic", "result"),
            registry=registry,
        )
        self.latency = Histogram(
            "goqueue_broker_schema_validation_latency_seconds",
            "Time to validate a batch",
            ("topic",),
            buckets=LATENCY,
            registry=registry,
        )
        self.handlers: dict[type[events.Event], Callable[[Any], None]] = {events.SchemaChecked: self._checked}

    def topic_created(self, topic: str) -> None:
        """Create the series of the topic, at zero."""
        for result in RESULTS:
            self.validations.labels(topic, result)
        self.latency.labels(topic)

    def topic_deleted(self, topic: str) -> None:
        """Remove the series of the topic."""
        self.validations.remove_by_labels({"topic": topic})
        self.latency.remove_by_labels({"topic": topic})

    def _checked(self, event: events.SchemaChecked) -> None:
        success, failure = RESULTS
        self.validations.labels(event.topic, success).inc(event.accepted)
        self.validations.labels(event.topic, failure).inc(event.refused)
        self.latency.labels(event.topic).observe(event.duration_ns / SECOND)
