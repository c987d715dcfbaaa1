"""When a request that failed is sent again. All waits of a client follow one policy.

The waits double from 20 ms to 2 s, with jitter: clients that lost the same broker do not return to it all at once. A
request has a deadline, and a wait is never more than half of the time that is left to it. So the last attempts come
close to the deadline however long the waits have become: a request is given up when its time is over, not when the
next wait happens to be too long for it.

A partition may have no leader for a moment. What it is asked then is refused with `NotLeader`, which has changed
nothing: every request is repeated after that, also one that must not be carried out twice. The client forgets which
broker it took for the leader.

A batch of a producer, the connection to a leader and a subscription have no deadline here: their owners give up by
rules of their own, and take only the waits from the policy.
"""

from goqueue.backoff import backoff_ns
from goqueue.client.reach import Reach
from goqueue.clock import MS, SECOND
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import Entropy

RETRY_INITIAL_NS = 20 * MS
RETRY_MAX_NS = 2 * SECOND


class ClientRetryPolicy:
    """How long to wait before an attempt. All parts of a client share one."""

    __slots__ = ("_entropy",)

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def wait_ns(self, attempt: int) -> int:
        """The wait before the attempt; the first repetition is attempt 1."""
        jitter = self._entropy.fraction()
        return backoff_ns(attempt, initial_ns=RETRY_INITIAL_NS, max_ns=RETRY_MAX_NS, jitter=jitter)

    def wait_s(self, attempt: int) -> float:
        """The same in seconds."""
        return self.wait_ns(attempt) / SECOND


class Retries:
    """The attempts of one request, which has until `deadline_s` of the clock by which `began_s` was read."""

    __slots__ = ("_began_s", "_deadline_s", "_policy", "_reach", "_tries")

    def __init__(self, policy: ClientRetryPolicy, reach: Reach, *, began_s: float, deadline_s: float) -> None:
        self._policy = policy
        self._reach = reach
        self._began_s = began_s
        self._deadline_s = deadline_s
        self._tries = 0

    def wait_s(self, error: GoQueueError, *, now_s: float, may_repeat: bool = True) -> float:
        """How long to wait before the next attempt. Raises the error, with what to do about it, if there is none."""
        self._tries += 1
        left_s = self._reach.time_left_s(self._deadline_s - now_s, now_s - self._began_s)
        if error.retryable and may_repeat and left_s > RETRY_INITIAL_NS / SECOND:
            return min(self._policy.wait_s(self._tries), left_s / 2)
        explained = self._reach.explained(error)
        if explained is not error:
            raise explained from error
        raise error
