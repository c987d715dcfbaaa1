"""Acks that wait until their records are committed, in the order of offsets."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from goqueue.broker.partition.commit_gate import CommitGate, LocalGate
from goqueue.service.pending import Pending
from goqueue.storage.log import Log

T = TypeVar("T")


class _Ack(NamedTuple):
    end_offset: int
    release: Callable[[], None]
    fail: Callable[[Exception], None]


class AckQueue:
    """The acks of one log that may not be given yet; those of one leader, which ends at some time."""

    __slots__ = ("_ended", "_gate", "_log", "_waiting")

    def __init__(self, log: Log, gate: CommitGate | None = None) -> None:
        self._log = log
        self._gate = LocalGate(log) if gate is None else gate
        self._ended: Exception | None = None
        self._waiting: deque[_Ack] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def when_stored(self, end_offset: int, value: T) -> Pending[T]:
        """The value, once all records below the offset are committed."""
        pending: Pending[T] = Pending()
        if self._ended is not None:
            pending.fail(self._ended)
        elif end_offset <= self._gate.offset:
            pending.resolve(value)
        elif self._log.failure:
            pending.fail(self._log.failure)
        else:
            self._waiting.append(_Ack(end_offset, lambda: pending.resolve(value), pending.fail))
        return pending

    def release(self) -> None:
        """Give the acks that may be given; if the log has failed, fail the others."""
        committed = self._gate.offset
        while self._waiting and self._waiting[0].end_offset <= committed:
            self._waiting.popleft().release()
        if self._log.failure:
            self.fail(self._log.failure)

    def end(self, error: Exception) -> None:
        """Fail all acks that wait, and all later ones."""
        self._ended = error
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Fail all acks that wait."""
        waiting, self._waiting = self._waiting, deque()
        for ack in waiting:
            ack.fail(error)
