"""The ring: the latest rows, in memory."""

from collections import deque
from collections.abc import Iterator

from goqueue.tracing.rows import EventRow


class Ring:
    """A bounded number of rows; a new one pushes out the oldest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.event_count = 0
        self._rows: deque[EventRow] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[EventRow]:
        """Oldest first."""
        return iter(self._rows)

    def __reversed__(self) -> Iterator[EventRow]:
        return reversed(self._rows)

    @property
    def first_sequence(self) -> int | None:
        """The sequence of the oldest row."""
        return self._rows[0].sequence if self._rows else None

    def add(self, row: EventRow) -> int:
        """Add the row; returns how many events were dropped for it."""
        rows = self._rows
        dropped = rows.popleft().event_count if len(rows) == self.capacity else 0
        rows.append(row)
        self.event_count += row.event_count - dropped
        return dropped

    def forget(self, topic: str) -> None:
        """The topic was deleted, and another one may get its name."""
        self._rows = deque(row for row in self._rows if row.source.topic != topic)
        self.event_count = sum(row.event_count for row in self._rows)
