"""Where rows go beside the ring.

The broker hands over what was recorded a few times a second, as a list that nobody changes any more. A `Sink` takes it
at once or refuses it; whatever blocks is an `Exporter`, which runs in a thread of its own. An exporter that is slow,
fails or hangs costs rows, which are counted, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from goqueue.tracing.explicit import Contexts
from goqueue.tracing.rows import EventRow
from goqueue.tracing.table import TraceRow, lines


class Export(NamedTuple):
    """A row on its way out, and what it does not say itself."""

    row: EventRow
    contexts: Contexts  # of the messages that name their trace
    trace_ids: Mapping[int, str]  # of all messages, if any exporter needs them

    def lines(self) -> Iterator[TraceRow]:
        """As it stands in the table."""
        return lines(self.row, self.contexts)


class Exporter(Protocol):
    """Brings rows somewhere. Called in one thread."""

    @property
    def name(self) -> str: ...
    @property
    def needs_trace_ids(self) -> bool: ...
    def export(self, exports: Sequence[Export]) -> None:
        """Return once they are there; raise if they are not."""

    def close(self) -> None:
        """There is no more to come."""


class Sink(Protocol):
    """Takes rows from the broker."""

    @property
    def name(self) -> str: ...
    @property
    def needs_trace_ids(self) -> bool: ...
    def put(self, exports: Sequence[Export]) -> bool:
        """Take them, or refuse all; never blocks."""
