"""A metadata log in memory, whose entries are applied as they are appended."""

from typing import Any

from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.records import (
    BrokerAddresses,
    BrokerChanged,
    BrokerRegistered,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    PartitionChanged,
    Record,
    TopicAdded,
    encode_batch,
)
from tests.cluster.mutations import ORIGINAL, Modules

CLUSTER_ID = "c" * 32


def registration(node: int, incarnation: str = "a", **changes: Any) -> BrokerRegistered:
    fields: dict[str, Any] = {
        "node": node,
        "incarnation": f"{node}{incarnation}",
        "directories": (f"disk-{node}",),
        "addresses": BrokerAddresses(client=f"host-{node}:7000", peer=f"host-{node}:7001"),
        "version": "1",
        "feature_level_max": 1,
        "registered_at_ns": 0,
    }
    return BrokerRegistered(**fields | changes)


def partition(number: int = 0, **changes: Any) -> PartitionChanged:
    """A new partition of the topic `t1` on nodes 1, 2 and 3, all in sync."""
    fields: dict[str, Any] = {
        "topic_id": "t1",
        "partition": number,
        "replicas": (1, 2, 3),
        "leader": 1,
        "leader_epoch": 1,
        "partition_epoch": 0,
        "isr": (1, 2, 3),
    }
    return PartitionChanged(**fields | changes)


class History:
    """The log; `metadata` has applied all of it."""

    def __init__(self, modules: Modules = ORIGINAL) -> None:
        self.modules = modules
        self.metadata = modules.metadata.Metadata()
        self.entries: list[MetadataEntry] = []

    def entry(
        self, *records: Record, epoch: int | None = None, node: int | None = None, previous_id: bytes | None = None
    ) -> MetadataEntry:
        """The next entry, by the controller if nothing else is said."""
        index = len(self.entries) + 1
        last = self.entries[-1].id if self.entries else bytes(16)
        return MetadataEntry(
            index=index,
            id=index.to_bytes(16, "big"),
            previous_id=last if previous_id is None else previous_id,
            epoch=self.metadata.epoch if epoch is None else epoch,
            node=(self.metadata.controller or 0) if node is None else node,
            batch=encode_batch(records),
        )

    def append(self, *records: Record, **author: Any) -> list[Record]:
        """Append an entry and apply it; returns what took effect."""
        return self.take(self.entry(*records, **author))

    def take(self, entry: MetadataEntry) -> list[Record]:
        effect: list[Record] = self.metadata.apply(entry)
        self.entries.append(entry)
        return effect

    def elect(self, node: int) -> None:
        epoch = self.metadata.epoch + 1
        assert self.append(ControllerElected(epoch, node, f"{node}a"), epoch=epoch, node=node)

    def register(self, node: int, incarnation: str = "a", *, online: bool = True, **changes: Any) -> int:
        """Returns the broker epoch."""
        self.append(registration(node, incarnation, **changes))
        broker_epoch = len(self.entries)
        if online:
            self.append(BrokerChanged(node, broker_epoch, BrokerStatus.ONLINE))
        return broker_epoch

    def replayed(self) -> Any:
        """The state of a node that reads the whole log."""
        state = self.modules.metadata.Metadata()
        for entry in self.entries:
            state.apply(entry)
        return state


def formed(modules: Modules = ORIGINAL) -> History:
    """A cluster whose controller is node 1, without brokers."""
    history = History(modules)
    history.append(ClusterCreated(CLUSTER_ID, 1, 0), epoch=0, node=1)
    history.elect(1)
    return history


def with_topic(modules: Modules = ORIGINAL, **changes: Any) -> History:
    """A cluster of nodes 1, 2 and 3 with the topic `t1` of one partition."""
    history = formed(modules)
    for node in (1, 2, 3):
        history.register(node)
    history.append(TopicAdded("t1", "orders", 0, 1), partition(**changes))
    return history
