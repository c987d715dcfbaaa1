"""When a request that failed is sent again. One policy for every way in which a client waits.

The waits double from 20 ms to 2 s, with jitter. A wait is never more than half of the time that is left, so the last
attempts come close to the deadline however long the waits have become: a request is given up when its time is over,
not when the next wait happens to be too long for it.
"""

import random

from goqueue.backoff import backoff_ns
from goqueue.client.reach import Reach
from goqueue.clock import MS, SECOND
from goqueue.errors import GoQueueError

RETRY_INITIAL_NS = 20 * MS
RETRY_MAX_NS = 2 * SECOND


def retry_wait_ns(attempt: int) -> int:
    """How long to wait before the attempt."""
    return backoff_ns(attempt, initial_ns=RETRY_INITIAL_NS, max_ns=RETRY_MAX_NS, jitter=random.random())


class Retries:
    """The attempts of one request, which has until `deadline_s` of the clock by which `began_s` was read."""

    __slots__ = ("_began_s", "_deadline_s", "_reach", "_tries")

    def __init__(self, reach: Reach, *, began_s: float, deadline_s: float) -> None:
        self._reach = reach
        self._began_s = began_s
        self._deadline_s = deadline_s
        self._tries = 0

    def wait_s(self, error: GoQueueError, *, now_s: float, may_repeat: bool = True) -> float:
        """How long to wait before the next attempt. Raises the error, with what to do about it, if there is none."""
        self._tries += 1
        left_s = self._reach.time_left_s(self._deadline_s - now_s, now_s - self._began_s)
        if error.retryable and may_repeat and left_s > RETRY_INITIAL_NS / SECOND:
            return min(retry_wait_ns(self._tries) / SECOND, left_s / 2)
        explained = self._reach.explained(error)
        if explained is not error:
            raise explained from error
        raise error
