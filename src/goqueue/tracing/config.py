"""The settings of tracing; each has a bound and says what it is for."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig

RING_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is recorded, and how much of it is kept."""

    enabled: bool = True
    ring: int = 10_000  # rows; one is what happened to a batch
    ids_max: int = 100_000  # of messages that name their trace, and so cannot be found by their id alone
    topic: bool = False  # also write to `__traces`, which survives a restart
    export_interval_ms: int = 100  # rows go out together, at most so often
    outbox_max: int = 10_000  # rows that may wait to go out; more are dropped, and counted

    def __post_init__(self) -> None:
        for name in ("ring", "ids_max", "export_interval_ms", "outbox_max"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.ring > RING_MAX:
            raise InvalidConfig("ring", self.ring, f"must be at most {RING_MAX}")
