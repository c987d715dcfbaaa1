"""The bounds of transactions; each says why."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """What holds for all producers and transactions of a coordinator."""

    timeout_ms_max: int = 900_000  # an abandoned transaction holds up all readers of its partitions for that long
    open_max: int = 100_000  # at once; each costs memory here and in its partitions
    producers_max: int = 1_000_000  # with a transactional id; more are refused
    plain_producers_max: int = (
        10_000  # without one; the least recently used are forgotten, and only heartbeats miss them
    )
    partitions_max: int = 10_000  # per transaction; as many positions, and sets of acks
    together_max: int = 10_000  # transactions that are committed in one step
    decision_bytes_max: int = 8 * 1024 * 1024  # it is one record, and a record has a limit
    marker_characters_max: int = 1_024  # markers are keys, and a hundred thousand of them are kept
    markers_max: int = 100_000  # beyond it the one that was used least recently is forgotten
    marker_ns_max: int = 7 * _DAY_NS  # since its last use; whoever repeats a commit does so sooner
    idle_ns_max: int = 7 * _DAY_NS  # a producer that was not used for that long is forgotten
    refresh_ns: int = _DAY_NS  # how far the last use that is on the disk may lie behind; less is more writing

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
