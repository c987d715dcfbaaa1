"""When a node believes that another one is dead, and what it does meanwhile.

None of these is an argument of safety (rule M8): a wrong belief costs an election, nothing else. They trade the time of
a failover against false alarms. A process that stalls for less than `silence_ns`, for its garbage or a slow disk, is
not replaced. `silence_ns` is less than `session_ns`, so a controller that is cut off from its brokers is replaced by
one of them before it fences them.
"""

from dataclasses import dataclass
from typing import NamedTuple

from goqueue.clock import MS
from goqueue.errors import InvalidConfig


class Now(NamedTuple):
    """What the clocks of a node say: durations are measured with the first, records carry the second."""

    monotonic_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTiming:
    """The times of heartbeats and elections."""

    heartbeat_ns: int = 300 * MS
    session_ns: int = 1_500 * MS  # a broker that was not heard for so long is fenced
    silence_ns: int = 1_200 * MS  # a broker that has not heard the controller for so long looks for another one
    rank_step_ns: int = 40 * MS  # so much later for each broker that comes first: most elections have one candidate
    jitter_ns: int = 40 * MS
    pre_vote_ns: int = 150 * MS  # how long to wait for the answers of peers
    futile_wait_ns_max: int = 30_000 * MS  # the longest pause between elections that lead to nothing

    def __post_init__(self) -> None:
        for name in ("heartbeat_ns", "rank_step_ns", "jitter_ns", "pre_vote_ns"):
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.silence_ns < 2 * self.heartbeat_ns:
            raise InvalidConfig("silence_ns", self.silence_ns, "must be two heartbeats or more")
        if self.session_ns <= self.silence_ns:
            raise InvalidConfig("session_ns", self.session_ns, f"must be more than silence_ns = {self.silence_ns}")
        if self.futile_wait_ns_max < self.silence_ns:
            raise InvalidConfig("futile_wait_ns_max", self.futile_wait_ns_max, "must be silence_ns or more")

    @property
    def reset_ns(self) -> int:
        """How long a broker whose connection was reset may stay away: two heartbeats."""
        return 2 * self.heartbeat_ns
