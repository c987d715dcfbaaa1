"""Traces to a collector over OTLP/HTTP, such as Jaeger or Tempo, with the exporter of OpenTelemetry.

Each moment of each message is a span. `publish.received` is the root, or a child of the span of the publisher; all
other moments at the same place are children of it. A moment with a duration is a span of that length.

A span costs some tens of microseconds, in a thread that shares the interpreter with the broker. With more messages than
that allows, lower `trace_sample_rate`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from goqueue.names import VERSION
from goqueue.tracing.export import Export
from goqueue.tracing.journeys import parent_span_id, span_id
from goqueue.tracing.rows import Moment, moments

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SPANS_MAX = 512
"""Spans in one request."""
TIMEOUT_S = 3.0
"""For one request with all its retries; a server that stops waits no longer than that."""
_KINDS = {"publish": "PRODUCER", "consume": "CONSUMER", "visibility": "CONSUMER"}


class ExportRefused(Exception):
    """The collector did not accept the spans."""


class OtlpExporter:
    """Sends spans to a collector."""

    name = "otlp"
    needs_trace_ids = True

    def __init__(self, endpoint: str, *, node_id: int = 0) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )  # slow to import, and seldom needed
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        logging.getLogger("opentelemetry.exporter").propagate = False  # the caller logs the failure, once
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        facts = {"service.name": "goqueue", "service.version": VERSION, "service.instance.id": str(node_id)}
        self._resource = Resource.create(facts)
        self._scope = InstrumentationScope("goqueue", VERSION)

    def export(self, exports: Sequence[Export]) -> None:
        """Send them in several requests; raises when one of them fails, and drops the rest."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = self._spans(exports)
        while some := list(islice(spans, SPANS_MAX)):
            if self._exporter.export(some) is not SpanExportResult.SUCCESS:
                raise ExportRefused("the collector is unreachable or refused the spans")

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _spans(self, exports: Sequence[Export]) -> Iterator["ReadableSpan"]:
        for row, contexts, trace_ids in exports:
            for offset, trace_id in trace_ids.items():
                for moment in moments(row, offset):
                    parent = parent_span_id(trace_id, moment, contexts.get(offset))
                    yield self._span(trace_id, moment, parent)

    def _span(self, trace_id: str, moment: Moment, parent: str) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(span: str, *, is_remote: bool) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))

        kind = _KINDS.get(moment.event_type.partition(".")[0], "INTERNAL")
        return ReadableSpan(
            name=moment.event_type,
            context=context(span_id(trace_id, moment), is_remote=False),
            parent=context(parent, is_remote=True) if parent else None,
            resource=self._resource,
            attributes=_attributes(moment),
            kind=SpanKind[kind],
            status=Status(StatusCode.ERROR, moment.error) if moment.error else Status(),
            start_time=moment.time_ns - (moment.duration_ns or 0),
            end_time=moment.time_ns,
            instrumentation_scope=self._scope,
        )


def _attributes(moment: Moment) -> Mapping[str, str | int]:
    """The attributes of a span, with the names of OpenTelemetry where it has one."""
    named: dict[str, str | int] = {
        "messaging.system": "goqueue",
        "messaging.destination.name": moment.place.topic,
        "messaging.destination.partition.id": str(moment.place.partition),
        "messaging.goqueue.offset": moment.place.offset,
        "messaging.consumer.group.name": moment.group,
        "messaging.client.id": moment.member,
    }
    own = {f"messaging.goqueue.{name}": value for name, value in moment.attributes.items()}
    return {name: value for name, value in named.items() if value != ""} | own
