"""Traces to a collector: a real one of a few lines, which understands what OpenTelemetry's exporter sends."""

from collections.abc import Iterator
from contextlib import contextmanager
from gzip import decompress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from goqueue.names import TopicPartition
from goqueue.tracing.context import TraceContext, span_id_of
from goqueue.tracing.export import Export
from goqueue.tracing.otlp import SPANS_MAX, ExportRefused, OtlpExporter
from goqueue.tracing.rows import PUBLISH, EventRow, EventType, MessageLocation

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HERE = TopicPartition("orders", 2)


class Collector:
    """What was sent to it, and what it answers."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.status = 200
        self.endpoint = ""

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body)
            collected.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collected.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        collected.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield collected
        server.shutdown()
        thread.join()


@contextmanager
def exporting(endpoint: str) -> Iterator[OtlpExporter]:
    exporter = OtlpExporter(endpoint, node_id=4)
    try:
        yield exporter
    finally:
        exporter.close()


def published(count: int = 1) -> Export:
    row = EventRow(
        1, PUBLISH, 1_000, HERE, 5, 5 + count, None, count, written_ns=1_200, persisted_ns=1_500, timestamp_ns=1_000
    )
    ids = {5 + number: f"{int(TRACE, 16) + number:032x}" for number in range(count)}
    return Export(row, {5: TraceContext(TRACE, PARENT, is_sampled=True)}, ids)


def attributes(span: Span) -> dict[str, object]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_each_moment_of_each_message_is_a_span(collector: Collector) -> None:
    with exporting(collector.endpoint) as exporter:
        exporter.export([published(2)])

    received, partitioned, persisted = collector.spans[:3]
    assert len(collector.spans) == 6
    assert {span.trace_id.hex() for span in collector.spans[:3]} == {TRACE}
    assert (received.name, received.span_id.hex()) == (
        "publish.received",
        span_id_of(TRACE, MessageLocation("orders", 2, 5)),
    )
    assert (received.parent_span_id.hex(), received.start_time_unix_nano) == (PARENT, 1_000)
    assert received.kind == Span.SPAN_KIND_PRODUCER
    assert partitioned.parent_span_id == persisted.parent_span_id == received.span_id
    assert (persisted.start_time_unix_nano, persisted.end_time_unix_nano) == (1_000, 1_500)
    assert attributes(received) == {
        "messaging.system": "goqueue",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "2",
        "messaging.goqueue.offset": 5,
    }
    assert collector.spans[3].parent_span_id == b""
    resource = collector.requests[0].resource_spans[0].resource
    facts = {one.key: one.value.string_value for one in resource.attributes}
    assert (facts["service.name"], facts["service.instance.id"]) == ("goqueue", "4")


def test_an_error_is_one_and_says_why(collector: Collector) -> None:
    row = EventRow(2, EventType.NACKED, 9_000, HERE, 5, 6, None, 1, "billing", "worker-1", "no", duration_ns=4_000)
    with exporting(collector.endpoint) as exporter:
        exporter.export([Export(row, {}, {5: TRACE})])

    (span,) = collector.spans
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "no")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (5_000, 9_000)
    assert span.kind == Span.SPAN_KIND_CONSUMER
    assert attributes(span)["messaging.consumer.group.name"] == "billing"
    assert attributes(span)["messaging.client.id"] == "worker-1"


def test_many_spans_go_in_several_requests(collector: Collector) -> None:
    with exporting(collector.endpoint) as exporter:
        exporter.export([published(400)])

    assert len(collector.spans) == 1_200
    assert len(collector.requests) == -(-1_200 // SPANS_MAX)
    assert len({span.span_id for span in collector.spans}) == 1_200


def test_what_the_collector_refuses_is_told(collector: Collector) -> None:
    collector.status = 400

    with exporting(collector.endpoint) as exporter, pytest.raises(ExportRefused):
        exporter.export([published()])


def test_a_collector_that_is_not_there_is_told(collector: Collector) -> None:
    with exporting("http://127.0.0.1:9/v1/traces") as exporter, pytest.raises(ExportRefused):
        exporter.export([published()])


def test_rows_without_messages_are_no_spans(collector: Collector) -> None:
    with exporting(collector.endpoint) as exporter:
        exporter.export([Export(EventRow(1, EventType.ASSIGNED, 5, HERE, group="g"), {}, {})])

    assert collector.requests == []
