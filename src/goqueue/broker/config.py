"""The settings of a broker; each has a bound or says why it has none."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from goqueue.errors import InvalidConfig
from goqueue.topics.config import DLQ_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one node, besides those in its data directory."""

    node_id: int = 0
    default_partitions: int = 3
    topic_defaults: Mapping[str, object] = field(default_factory=dict)  # default settings of topics
    maintenance_interval_ms: int = 30_000  # how often each partition is checked for retention and compaction
    compactions_max: int = 1  # at once; each reads and writes whole segments
    waiting_max: int = 100_000  # requests that wait for a record; more are answered at once

    def settings_for(self, topic: str) -> Mapping[str, object]:
        """The default settings of a topic of that name. A default dead-letter topic is not for dead-letter topics."""
        if self.topic_defaults.get("dead_letter_topic") != topic and not topic.endswith(DLQ_SUFFIX):
            return self.topic_defaults
        return {name: value for name, value in self.topic_defaults.items() if name != "dead_letter_topic"}

    def __post_init__(self) -> None:
        for name in ("default_partitions", "maintenance_interval_ms", "compactions_max", "waiting_max"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.node_id < 0:
            raise InvalidConfig("node_id", self.node_id, "must not be negative")
