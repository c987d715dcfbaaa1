"""Traces to a stream: whole lines in one write."""

from goqueue.names import TopicPartition
from goqueue.tracing.export import Export
from goqueue.tracing.rows import EventRow, EventType
from goqueue.tracing.stream import StreamExporter
from goqueue.tracing.table import read_lines


def test_all_rows_of_an_export_are_written_at_once_as_lines() -> None:
    written: list[bytes] = []
    rows = [EventRow(n, EventType.ACKED, n, TopicPartition("orders", 0), n, n + 1, None, 1) for n in (1, 2)]
    exporter = StreamExporter("stdout", written.append)

    exporter.export([Export(row, {}, {}) for row in rows])
    exporter.close()

    (text,) = written
    assert text.endswith(b"\n")
    assert [stored.row.first for stored in read_lines(text.splitlines())] == [1, 2]
