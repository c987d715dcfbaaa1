"""When a message that was not processed is tried again, and when no more."""

from dataclasses import dataclass

from goqueue.backoff import backoff_ns
from goqueue.clock import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What a topic says about retries."""

    max_deliveries: int = 3  # then the dead letters: a poisoned message must not loop
    backoff_initial_ns: int = SECOND
    backoff_max_ns: int = 60 * SECOND

    def backoff_ns(self, deliveries: int) -> int:
        """The wait after so many deliveries: twice as long each time. Without jitter, for the time is told."""
        return backoff_ns(deliveries, initial_ns=self.backoff_initial_ns, max_ns=self.backoff_max_ns, jitter=0)
