"""Who waits for a log to vouch for what was written, in the order of their offsets."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from goqueue.service.pending import Pending
from goqueue.storage.log import Log

T = TypeVar("T")


class _Ack(NamedTuple):
    end_offset: int
    release: Callable[[], None]
    fail: Callable[[Exception], None]


class AckQueue:
    """The acks of one log that may not be given yet."""

    __slots__ = ("_log", "_waiting")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: deque[_Ack] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def when_stored(self, end_offset: int, value: T) -> Pending[T]:
        """The value, once all records below the offset may be acknowledged."""
        pending: Pending[T] = Pending()
        if end_offset <= self._log.ackable_offset:
            pending.resolve(value)
        elif self._log.failure:
            pending.fail(self._log.failure)
        else:
            self._waiting.append(_Ack(end_offset, lambda: pending.resolve(value), pending.fail))
        return pending

    def release(self) -> None:
        """Give the acks that may be given; none that is left will be, once the log has failed."""
        ackable = self._log.ackable_offset
        while self._waiting and self._waiting[0].end_offset <= ackable:
            self._waiting.popleft().release()
        if self._log.failure:
            self.fail(self._log.failure)

    def fail(self, error: Exception) -> None:
        """There will be none."""
        waiting, self._waiting = self._waiting, deque()
        for ack in waiting:
            ack.fail(error)
