"""The series about traces: as the recorder counted, for every type and reason from the start on."""

from goqueue.metrics.registry import Metrics
from goqueue.testing import ManualClock
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.recorder import Recorder
from goqueue.tracing.rows import EventType
from tests.metrics.test_registry import value


def test_there_is_nothing_before_anybody_records() -> None:
    assert b"goqueue_trace" not in Metrics().render(False)[0]


def test_the_series_are_there_at_zero_and_follow_the_recorder() -> None:
    metrics, recorder = Metrics(), Recorder(TraceConfig(), clock=ManualClock())
    recorder.tallies.exports["otlp", "failure"] = 0
    metrics.tracing.watch(recorder.tallies, lambda: recorder.ring.event_count)

    for event_type in EventType:
        assert value(metrics, f'trace_events_total{{event_type="{event_type}"}}') == 0
    for reason in ("sampled", "ring", "exporter"):
        assert value(metrics, f'trace_dropped_total{{reason="{reason}"}}') == 0
    assert value(metrics, 'trace_exports_total{exporter="otlp",result="failure"}') == 0
    assert value(metrics, "trace_buffer_events") == 0

    recorder.tallies.published, recorder.tallies.persisted = 7, 5
    recorder.tallies.others[EventType.ACKED] += 3
    recorder.tallies.ring, recorder.tallies.exporter = 11, 2
    recorder.tallies.exports["otlp", "failure"] += 1
    assert value(metrics, 'trace_events_total{event_type="publish.received"}') == 7
    assert value(metrics, 'trace_events_total{event_type="publish.persisted"}') == 5
    assert value(metrics, 'trace_events_total{event_type="consume.acked"}') == 3
    assert value(metrics, 'trace_dropped_total{reason="ring"}') == 11
    assert value(metrics, 'trace_dropped_total{reason="exporter"}') == 2
    assert value(metrics, 'trace_exports_total{exporter="otlp",result="failure"}') == 1
    assert b"# TYPE goqueue_trace_events counter" in metrics.render(True)[0]
