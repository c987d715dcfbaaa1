"""Fakes for tests, ours and yours: time that stands still, disks that fail on purpose, and a broker in the process.

`ManualClock` moves only when told. `MemoryDisk` keeps files in memory and can lose its power after any
single step; what it holds after `crash` is what a real disk was allowed to keep. `FaultyDisk` wraps any
disk and lets reads, writes and syncs fail, by chance from a seed or on request. Nothing of this is random
without a seed, and nothing waits. `SimulatedEngine` is a metadata log in memory, `SimulatedMetadataLog` the handle of
a node on it: slow, out of reach or in doubt on request. `SimulatedCluster` is a whole cluster in one thread: real nodes
on simulated machines, whose faults come by chance from a seed, or on request. `EmbeddedBroker` is no fake: it is the
whole server, in a thread.
"""

from typing import TYPE_CHECKING

from goqueue.testing.clock import ManualClock
from goqueue.testing.faulty_disk import FaultyDisk
from goqueue.testing.memory_disk import MemoryDisk, PowerLoss

if TYPE_CHECKING:
    from goqueue.testing.embedded_broker import EmbeddedBroker
    from goqueue.testing.simulated_cluster import SimulatedCluster, SimulationFailed
    from goqueue.testing.simulated_metadata_log import SimulatedEngine, SimulatedMetadataLog

__all__ = [
    "EmbeddedBroker",
    "FaultyDisk",
    "ManualClock",
    "MemoryDisk",
    "PowerLoss",
    "SimulatedCluster",
    "SimulatedEngine",
    "SimulatedMetadataLog",
    "SimulationFailed",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """What brings the server or the cluster with it is imported when it is first asked for."""
        if name == "EmbeddedBroker":
            from goqueue.testing.embedded_broker import EmbeddedBroker

            return EmbeddedBroker
        if name in ("SimulatedEngine", "SimulatedMetadataLog"):
            from goqueue.testing import simulated_metadata_log

            return getattr(simulated_metadata_log, name)
        if name in ("SimulatedCluster", "SimulationFailed"):
            from goqueue.testing import simulated_cluster

            return getattr(simulated_cluster, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
