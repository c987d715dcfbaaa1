"""The interfaces of trace export.

A few times a second the broker hands over the rows that were recorded, as a list that does not change any more. A
`Sink` accepts or refuses it at once. Everything that blocks is an `Exporter`, which runs in its own thread. An exporter
that is slow, fails or hangs loses rows, which are counted, and affects nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from goqueue.tracing.explicit import Contexts
from goqueue.tracing.rows import EventRow
from goqueue.tracing.table import TraceRow, lines


class Export(NamedTuple):
    """A row to export, with the traces of its messages."""

    row: EventRow
    contexts: Contexts  # of the messages that name their trace
    trace_ids: Mapping[int, str]  # of all messages, if any exporter needs them

    def lines(self) -> Iterator[TraceRow]:
        """The lines of the table."""
        return lines(self.row, self.contexts)


class Exporter(Protocol):
    """Writes rows to a file or a service. Called in one thread."""

    @property
    def name(self) -> str: ...
    @property
    def needs_trace_ids(self) -> bool: ...
    def export(self, exports: Sequence[Export]) -> None:
        """Return once the rows are written; raise if they are not."""

    def close(self) -> None:
        """Release all resources."""


class Sink(Protocol):
    """Takes rows from the broker."""

    @property
    def name(self) -> str: ...
    @property
    def needs_trace_ids(self) -> bool: ...
    def put(self, exports: Sequence[Export]) -> bool:
        """Accept the rows or refuse all of them; never blocks."""
