"""How transactions ended: the totals since the start, and the events that observers are told of."""

from goqueue.events import AbortCompleted, CommitCompleted, TransactionEvent, TransactionStarted
from goqueue.transactions.states import AbortReason


class OutcomeCounters:
    """`open_count` is the number of open transactions after the change."""

    def __init__(self) -> None:
        self.committed_count = 0
        self.aborted_count = 0
        self._committed_ns = 0
        self._events: list[TransactionEvent] = []

    @property
    def mean_commit_ns(self) -> int:
        """The mean time from begin to the end of the commit."""
        return self._committed_ns // self.committed_count if self.committed_count else 0

    def started(self, open_count: int) -> None:
        self._events.append(TransactionStarted(open_count))

    def committed(self, open_count: int, duration_ns: int) -> None:
        self.committed_count += 1
        self._committed_ns += duration_ns
        self._events.append(CommitCompleted(open_count, duration_ns))

    def aborted(self, open_count: int, reason: AbortReason) -> None:
        self.aborted_count += 1
        self._events.append(AbortCompleted(open_count, reason.value))

    def take_events(self) -> list[TransactionEvent]:
        events, self._events = self._events, []
        return events
