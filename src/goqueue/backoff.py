"""Exponential backoff with jitter: twice as long each time, up to a limit, and shortened at random.

The jitter keeps clients that failed together from retrying together.
"""


def backoff_ns(attempt: int, *, initial_ns: int, max_ns: int, jitter: float) -> int:
    """The wait before retry `attempt` (from 1 on); `jitter` in [0, 1) takes off up to half of it."""
    full = min(max_ns, initial_ns << min(attempt - 1, 40))
    return int(full * (1 - jitter / 2))
