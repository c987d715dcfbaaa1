"""The settings of tracing."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig

RING_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is recorded, and how much of it is kept."""

    enabled: bool = True
    ring: int = 10_000  # rows; one row describes a batch
    ids_max: int = 100_000  # messages that name their trace, and so need an index
    topic: bool = False  # also write to `__traces`, which survives a restart
    export_interval_ms: int = 100  # rows are exported together, at most this often
    outbox_max: int = 10_000  # rows that wait for export; more are dropped and counted

    def __post_init__(self) -> None:
        for name in ("ring", "ids_max", "export_interval_ms", "outbox_max"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.ring > RING_MAX:
            raise InvalidConfig("ring", self.ring, f"must be at most {RING_MAX}")
