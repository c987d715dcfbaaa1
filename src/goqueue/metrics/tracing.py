"""The series about traces, read from the counters of the recorder at each scrape."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class TraceCounterSource(Protocol):
    """Recorded and dropped events of single messages."""

    @property
    def recorded(self) -> Mapping[str, int]: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def exports(self) -> Mapping[tuple[str, str], int]:
        """By exporter and result."""


class TraceMetrics(Collector):
    """Reads the counters that `watch` names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tallies: TraceCounterSource | None = None
        self._buffered: Callable[[], int] = int
        registry.register(self)

    def watch(self, tallies: TraceCounterSource, buffered: Callable[[], int]) -> None:
        """Read these counters, and the number of buffered events, at each scrape."""
        self._tallies = tallies
        self._buffered = buffered

    def collect(self) -> Iterator[Metric]:
        """The series with their current values."""
        if self._tallies is None:
            return
        recorded = CounterMetricFamily("goqueue_trace_events", "Lifecycle events recorded", labels=["event_type"])
        for event_type, count in self._tallies.recorded.items():
            recorded.add_metric([event_type], count)
        dropped = CounterMetricFamily("goqueue_trace_dropped", "Lifecycle events not kept", labels=["reason"])
        for reason, count in self._tallies.dropped.items():
            dropped.add_metric([reason], count)
        exports = CounterMetricFamily(
            "goqueue_trace_exports", "Calls of exporters that returned", labels=["exporter", "result"]
        )
        for labels, count in self._tallies.exports.items():
            exports.add_metric(list(labels), count)
        buffered = GaugeMetricFamily("goqueue_trace_buffer_events", "Lifecycle events in the ring")
        buffered.add_metric([], self._buffered())
        yield from (recorded, dropped, exports, buffered)
