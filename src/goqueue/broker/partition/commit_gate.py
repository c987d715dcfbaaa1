"""What is committed: up to where a log may be acknowledged, read, and spoken of in the ledger.

Every log of a partition has one gate. Acks are released up to it, readers and groups see nothing after it, a fact in
the ledger names no offset at or after it, a snapshot that covers more waits for it, and neither compaction nor
retention touches what it has not reached. What is after the gate may still be taken back: by a crash, or by a
truncation after a change of leader.

On one node records are committed when they may be acknowledged by the flush mode of the topic. With followers they are
committed when enough replicas have them on their disks: the high watermark. Its rules:

    the minimum     of the durable offsets of all in-sync replicas, and of those that are about to join them: whichever
                    of them leads next has every committed record
    at least so many in-sync replicas as the topic demands; with fewer of them nothing more is committed
    never falls     a new leader starts from what it knew as a follower
    begins late     until the gate has reached the end of the log that the leader found, an earlier leader may have
                    shown more than is known here; so nothing is served before

The high watermark is not stored. After a restart it begins at 0 and is found again from the durable offsets: as nothing
is served before the gate has reached the end of the log, no reader can see it fall.
"""

from typing import NamedTuple, Protocol

from goqueue.record.header import OFFSET_MAX
from goqueue.storage.log import Log


class CommitGate(Protocol):
    """Up to where a log is committed: acks wait for it, and readers see no further."""

    @property
    def offset(self) -> int:
        """All records below it are committed; it never decreases."""

    @property
    def shortage(self) -> "Shortage | None":
        """Why nothing more is committed, if there are too few in-sync replicas."""


class Shortage(NamedTuple):
    """How many replicas are in sync, and how many have to be."""

    in_sync: int
    required: int


class LocalGate:
    """The gate of a log that has no other replica."""

    __slots__ = ("_log", "_reached")

    shortage = None

    def __init__(self, log: Log) -> None:
        self._log = log
        self._reached = 0

    @property
    def offset(self) -> int:
        """What may be acknowledged by the flush mode; a stricter mode takes nothing back that was committed."""
        self._reached = max(self._reached, self._log.ackable_offset)
        return self._reached


class InSync(NamedTuple):
    """The in-sync replicas of a partition, as the controller has decided; the leader is one of them."""

    replicas: frozenset[int]
    joining: frozenset[int] = frozenset()  # the leader has asked for these; the controller may have decided already
    at_least: int = 1  # with fewer in-sync replicas nothing more is committed

    def others(self, replica: int) -> frozenset[int]:
        """All that may lead next, without this one."""
        return (self.replicas | self.joining) - {replica}


class ReplicatedGate:
    """The high watermark of one log, on its leader."""

    __slots__ = ("_durable", "_followers_end", "_log", "_reached", "_replica", "in_sync", "start")

    def __init__(self, log: Log, *, replica: int, in_sync: InSync, known: int) -> None:
        self._log = log
        self._replica = replica
        self.start = log.next_offset  # earlier leaders may have shown all records below it
        self._reached = known
        self._durable: dict[int, int] = {}  # what the followers have reported to this leader
        self._followers_end = 0
        self.change(in_sync)

    @property
    def offset(self) -> int:
        """The high watermark."""
        self._reached = max(self._reached, min(self._log.ackable_offset, self._followers_end))
        return self._reached

    @property
    def shortage(self) -> Shortage | None:
        """Why nothing more is committed, if there are too few in-sync replicas."""
        in_sync, required = len(self.in_sync.replicas), self.in_sync.at_least
        return Shortage(in_sync, required) if in_sync < required else None

    def change(self, in_sync: InSync) -> None:
        """The in-sync replicas have changed."""
        self.in_sync = in_sync
        self._count()
        self._reached = self.offset  # a later report may be lower

    def report(self, replica: int, durable_offset: int) -> None:
        """The follower has all records below the offset on its disk; its log does not diverge before there."""
        self._durable[replica] = durable_offset
        self._count()
        self._reached = self.offset  # a later report may be lower

    def has_caught_up(self, replica: int) -> bool:
        """Whether the follower may become an in-sync replica: it has all that is committed, and all that this leader
        found.
        """
        return self._durable.get(replica, -1) >= max(self.offset, self.start)

    def _count(self) -> None:
        if len(self.in_sync.replicas) < self.in_sync.at_least:
            self._followers_end = 0
            return
        ends = (self._durable.get(replica, 0) for replica in self.in_sync.others(self._replica))
        self._followers_end = min(ends, default=OFFSET_MAX)


class FollowedGate:
    """The high watermark of one log as its leader has told it; on a node without a role, the last one it knew."""

    __slots__ = ("offset",)

    shortage = None

    def __init__(self, known: int) -> None:
        self.offset = known

    def told(self, high_watermark: int, log_end: int) -> None:
        """The leader has committed so much; what this replica does not have yet is not committed here."""
        self.offset = max(self.offset, min(high_watermark, log_end))
