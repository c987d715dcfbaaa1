"""The bounds of transactions; each says why."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """The bounds of one coordinator."""

    timeout_ms_max: int = (
        900_000  # an abandoned transaction blocks read_committed readers of its partitions for so long
    )
    open_max: int = 100_000  # each costs memory here and in its partitions
    producers_max: int = 1_000_000  # with a transactional id; more are refused
    plain_producers_max: int = 10_000  # without one; the least recently used are forgotten: only their heartbeats fail
    partitions_max: int = 10_000  # per transaction; also the limit of positions and of sets of acks
    together_max: int = 10_000  # transactions that are committed in one step
    decision_bytes_max: int = 8 * 1024 * 1024  # a decision is one record, and records are bounded
    marker_characters_max: int = 1_024  # markers are keys, and a hundred thousand of them are kept
    markers_max: int = 100_000  # the least recently used are forgotten
    marker_ns_max: int = 7 * _DAY_NS  # since its last use; a commit that lost its answer is repeated sooner
    idle_ns_max: int = 7 * _DAY_NS  # an unused producer is forgotten after this time
    refresh_ns: int = _DAY_NS  # how old the stored time of the last use may be; less means more writing

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
