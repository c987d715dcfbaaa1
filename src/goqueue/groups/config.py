"""The bounds of groups; each says why."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """What holds for all groups of a coordinator."""

    groups_max: int = 10_000  # each costs memory for as long as it is not deleted
    members_max: int = 1_000  # per group; each change is work for every one of them
    topics_max: int = 1_000  # per member
    session_timeout_ms_min: int = 1_000  # less, and a pause of the network is a death
    session_timeout_ms_max: int = 3_600_000  # more, and a dead member blocks its partitions for a shift
    heartbeat_interval_ms: int = 3_000  # at most; a third of a session that is shorter. Two of them late is an event
    expired_max: int = 1_000  # members of a group that are told, when they come back, that they were too late

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.session_timeout_ms_min > self.session_timeout_ms_max:
            raise InvalidConfig("session_timeout_ms_min", self.session_timeout_ms_min, "is above the maximum")
