"""Fakes for tests, ours and yours: time that stands still, and disks that fail on purpose.

`ManualClock` moves only when told. `MemoryDisk` keeps files in memory and can lose its power after any
single step; what it holds after `crash` is what a real disk was allowed to keep. `FaultyDisk` wraps any
disk and lets reads, writes and syncs fail, by chance from a seed or on request. Nothing here is random
without a seed, and nothing waits.
"""

from goqueue.testing.clock import ManualClock
from goqueue.testing.faulty_disk import FaultyDisk
from goqueue.testing.memory_disk import MemoryDisk, PowerLoss

__all__ = ["FaultyDisk", "ManualClock", "MemoryDisk", "PowerLoss"]
