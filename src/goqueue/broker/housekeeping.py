"""Periodic work: end waits, flush by interval, delete old segments, compact logs.

Partitions with unflushed records are flushed at every tick at which a flush is due. All partitions are visited in turn
for retention and compaction, a few at each tick, so that thousands of quiet ones cost little and are never handled in
one tick.
"""

from collections.abc import Sequence

from goqueue.broker.config import BrokerConfig
from goqueue.broker.partition.log_jobs import Flushable
from goqueue.broker.partition.replica import Replica
from goqueue.broker.timers import Timers
from goqueue.clock import MS

FLUSH_CHECK_NS = 50 * MS


class Housekeeping:
    """Visits the partitions of one broker."""

    def __init__(self, config: BrokerConfig, timers: Timers, unflushed: set[Flushable]) -> None:
        self._interval_ns = config.maintenance_interval_ms * MS
        self._compactions_max = config.compactions_max
        self._timers = timers
        self._unflushed = unflushed
        self._partitions: list[Replica] = []
        self._next = 0
        self._visited_until_ns: int | None = None
        self._flush_checked_ns = 0
        self._compactions = 0

    def watch(self, partitions: Sequence[Replica]) -> None:
        """Visit these partitions, too."""
        self._partitions += partitions

    def forget(self, partitions: Sequence[Replica]) -> None:
        """No longer visit these partitions: they are deleted."""
        gone = set(partitions)
        self._partitions = [replica for replica in self._partitions if replica not in gone]

    def tick(self, *, now_ns: int) -> None:
        """Do what is due at that monotonic time."""
        self._timers.tick(now_ns)
        if now_ns - self._flush_checked_ns >= FLUSH_CHECK_NS:
            self._flush_checked_ns = now_ns
            for role in list(self._unflushed):
                role.flush(lazily=True)
                if not role.may_be_due:
                    self._unflushed.discard(role)
        self._visit(now_ns)

    def _visit(self, now_ns: int) -> None:
        """Visit enough partitions to visit each one once per interval."""
        if self._visited_until_ns is None:
            self._visited_until_ns = now_ns
        if not self._partitions:
            self._visited_until_ns = now_ns
            return
        due = (now_ns - self._visited_until_ns) * len(self._partitions) // self._interval_ns
        if not due:
            return
        if due > len(self._partitions):
            due, self._visited_until_ns = len(self._partitions), now_ns
        else:
            self._visited_until_ns += due * self._interval_ns // len(self._partitions)
        for _ in range(due):
            self._next = (self._next + 1) % len(self._partitions)
            may_compact = self._compactions < self._compactions_max
            if self._partitions[self._next].maintain(may_compact=may_compact, compacted=self._compacted):
                self._compactions += 1

    def _compacted(self) -> None:
        self._compactions -= 1
