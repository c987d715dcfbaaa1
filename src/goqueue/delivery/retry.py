"""When a message that was not processed is delivered again, and when it is dead-lettered."""

from dataclasses import dataclass

from goqueue.backoff import backoff_ns
from goqueue.clock import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry settings of a topic."""

    max_deliveries: int = 3  # then the dead letters: a poisoned message must not loop
    backoff_initial_ns: int = SECOND
    backoff_max_ns: int = 60 * SECOND

    def backoff_ns(self, deliveries: int) -> int:
        """The wait after that many deliveries: it doubles each time. Without jitter, since answers name the time."""
        return backoff_ns(deliveries, initial_ns=self.backoff_initial_ns, max_ns=self.backoff_max_ns, jitter=0)
