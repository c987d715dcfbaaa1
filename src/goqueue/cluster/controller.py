"""The controller: decides who is in the cluster and who leads what, for one epoch that its node has won.

    requests, lost connections, ticks ──> decisions ──> drafts ──> next_entry ──> the metadata log
                                                                                     │
                   answers <── applied <────────── the node has applied it <─────────┘

It is pure: the node calls it, tells it the time, writes what `next_entry` returns, and comes back with `applied`. An
answer that rests on a decision is given only then: so nobody is told what the log may still lose. When the entry of
another node is at that index, the node calls `deposed`, and drops the controller.

Heartbeats and connections say only *when* to decide (R6). All decisions are compared with the state by the code that
every node applies records with, so a wrong belief about a broker costs an election, nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from goqueue.cluster.drafts import Drafts
from goqueue.cluster.messages import (
    AlterPartitions,
    AnyNodeMessage,
    ControlledShutdown,
    Decide,
    Heartbeat,
    Refused,
    Register,
    RefusalReason,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.timing import ClusterTiming, Now
from goqueue.errors import InvalidConfig
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending

ControllerRequest = Register | Heartbeat | AlterPartitions | ControlledShutdown | Decide


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDefaults:
    """What a new topic has if its creator does not say."""

    partitions: int = 3
    replication_factor: int = 1

    def __post_init__(self) -> None:
        for name in ("partitions", "replication_factor"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be 1 or more")


class Controller:
    """The controller of one epoch. `metadata` is the state right after its node applied its own `ControllerElected`;
    the controller decides on a copy of it.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        node: int,
        timing: ClusterTiming,
        defaults: ClusterDefaults,
        entropy: Entropy,
        now: Now,
    ) -> None:
        self._drafts = Drafts(metadata)

    @property
    def state(self) -> Metadata:
        """The state with all decisions, applied or not. Not to be changed."""
        return self._drafts.state

    # Requests

    def handle(self, message: ControllerRequest, now: Now) -> Pending[AnyNodeMessage]:
        """Answer a request: at once if it changes nothing, else when the entry with the decision is applied."""
        return Pending.of(Refused(RefusalReason.OVERLOADED, "not yet", self.state.epoch))

    # What the node observes

    def connection_lost(self, node: int, was_refused: bool, now: Now) -> None:
        """The connection to a broker broke; `was_refused` if its host also refuses a new one: its process is dead."""

    def tick(self, now: Now) -> None:
        """Fence brokers that are silent, move leaders to preferred replicas and away from leaving nodes."""

    def should_resign(self, now: Now) -> bool:
        """Whether the node should give up the epoch: it hears fewer than half of the live brokers, or was deposed."""
        return False

    def last_heard_ns(self, node: int) -> int | None:
        """When the broker was last heard in this epoch."""
        return None

    # Writing

    def next_entry(self, entry_id: bytes) -> MetadataEntry | None:
        """The next entry to append: None if nothing is decided, or if one is in flight.

        The entry is in flight until `applied` or `deposed`.
        """
        return self._drafts.next_entry(entry_id)

    def applied(self, entry: MetadataEntry) -> None:
        """The node has applied the entry in flight: the requests that it answers are answered now."""
        self._drafts.applied(entry)

    def deposed(self) -> None:
        """The epoch is over. Whatever waits is refused, although its decision may have been written: it is to be sent
        again, with the same request id, to the next controller.
        """
