"""What things are called."""

from typing import NamedTuple

VERSION = "0.1.0"


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int
