"""Traces as JSON lines to a stream, such as the standard output of a server."""

from collections.abc import Callable, Sequence

from goqueue.tracing.export import Export
from goqueue.tracing.table import encode_line


class StreamExporter:
    """Writes the table of rows to a stream."""

    needs_trace_ids = False

    def __init__(self, name: str, write: Callable[[bytes], object]) -> None:
        self.name = name
        self._write = write

    def export(self, exports: Sequence[Export]) -> None:
        """Write them in one call."""
        self._write(b"".join(encode_line(line) + b"\n" for export in exports for line in export.lines()))

    def close(self) -> None:
        """Nothing: the stream belongs to the caller."""
