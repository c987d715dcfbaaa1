"""Internal topics, and the coordinators whose state they hold.

A coordinator keeps what is about a name and not about a message: groups, transactions, schedules, schemas. Its state is
spread over the partitions of an internal topic, by the hash of the name. The leader of such a partition is the
coordinator of its names, so on a cluster each node coordinates a share of them.

    leader begins ──> all its records are committed ──> attach(journal)    state is rebuilt from snapshot and journal
    leader ends   ──> detach(partition, error)                             state is forgotten, what waits fails

Between the two a verb about a name of that partition raises `NotLeader`, which clients retry. The number of partitions
is fixed when the topic is created, on first use: with another number a name would belong to another partition.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import SECOND
from goqueue.errors import DirectoryUnusable, GoQueueError, NotLeader, StorageError
from goqueue.service.pending import Pending, after
from goqueue.wire.partitioning import partition_of_key

GROUPS_TOPIC: Final = "__groups"
TRANSACTIONS_TOPIC: Final = "__transactions"
SCHEDULES_TOPIC: Final = "__schedules"
SCHEMAS_TOPIC: Final = "__schemas"
PARTITION_COUNTS: Final[Mapping[str, int]] = {
    GROUPS_TOPIC: 16,
    SCHEDULES_TOPIC: 4,
    SCHEMAS_TOPIC: 1,
    TRANSACTIONS_TOPIC: 16,
}
"""The internal topics with journals, in the order in which they are attached at the start (transactions apply what they
decided to groups), and the number of their partitions: after a release, a change is a migration.
"""

TRANSACTIONAL_IDS_PARTITION: Final = 0

JOURNAL_SETTINGS: Final[Mapping[str, object]] = {"cleanup": "compact", "flush": "group"}
CHECK_NS: Final = SECOND
"""How often to look whether a snapshot is due, and whether a journal can be read that could not be."""


def partition_of(name: str, topic: str) -> int:
    """The partition of an internal topic to which the name belongs: the same in every process and every version.

    The name of a schedule is `schedule_key`. All transactional ids have one coordinator: any of them may be committed
    in one step, and a marker counts for all of them, so one record has to decide. Producers without a transactional id
    have no names; they are spread over all coordinators.
    """
    if topic == TRANSACTIONS_TOPIC:
        return TRANSACTIONAL_IDS_PARTITION
    return partition_of_key(name.encode(), PARTITION_COUNTS[topic])


def schedule_key(topic: str, name: str) -> str:
    """What a schedule is called among all schedules; a topic has no "/" in its name."""
    return f"{topic}/{name}"


class Coordinator(Protocol):
    """The state of an internal topic, of the partitions that this node leads."""

    def attach(self, journal: Journal) -> None:
        """The node coordinates the names of a partition from now on: restore their state."""

    def detach(self, partition: int, error: GoQueueError) -> None:
        """The node no longer does: forget that state, and fail with the error what waits. The journal is closed."""


class Journals:
    """The journals of one internal topic, by partition: of those whose coordinator is on this node."""

    coordinator: Coordinator
    """Set by the broker before the first leader begins: a coordinator needs its journals."""

    def __init__(self, topic: str, partitions: LocalPartitions) -> None:
        self.topic = topic
        self._partitions = partitions
        self._attached: dict[int, Journal] = {}
        self._read: dict[int, Journal] = {}  # read at the start, not attached yet
        self._unread: set[PartitionLeader] = set()  # the disk could not read them

    def __iter__(self) -> Iterator[Journal]:
        return iter(list(self._attached.values()))

    def find(self, name: str) -> Journal | None:
        """The journal with the facts about the name; None if nothing was ever stored in the topic.

        Raises `NotLeader` if this node does not coordinate the name.
        """
        return self.at(partition_of(name, self.topic))

    def at(self, partition: int) -> Journal | None:
        """The journal of a partition. None or raises as `find`."""
        journal = self._attached.get(partition)
        if journal is None and self._partitions.find(self.topic) is not None:
            raise NotLeader(self.topic, partition)
        return journal

    def open(self, name: str) -> Pending[Journal]:
        """The journal with the facts about the name; the topic is created on first use. Fails with `NotLeader`."""
        return self.open_at(partition_of(name, self.topic))

    def open_at(self, partition: int) -> Pending[Journal]:
        """The journal of a partition; the topic is created on first use. Fails with `NotLeader`."""
        journal = self._attached.get(partition)
        if journal is not None:
            return Pending.of(journal)
        opened = self._partitions.ensure(self.topic, partitions=PARTITION_COUNTS[self.topic], settings=JOURNAL_SETTINGS)
        return after(opened, lambda _: self._opened(partition))

    def _opened(self, partition: int) -> Journal:
        journal = self.at(partition)
        assert journal is not None  # there is a topic now
        return journal

    def read(self, leaders: list[PartitionLeader]) -> None:
        """Read the journals at the start of the node, before anything is served. Raises `StorageError`."""
        for leader in leaders:
            journal = self._read[leader.origin.partition] = Journal(leader)
            journal.load()

    def leader_began(self, leader: PartitionLeader) -> None:
        """Attach once all records that the log has by now are committed: then none of them can be taken back."""
        leader.when_stored(leader.log.next_offset, leader).then(self._attach)

    def leader_ended(self, leader: PartitionLeader, error: GoQueueError) -> None:
        """Detach the partition from its coordinator; requests that wait for it get the error."""
        self._unread.discard(leader)
        if self._attached.pop(leader.origin.partition, None) is not None:
            self.coordinator.detach(leader.origin.partition, error)

    def retry(self) -> None:
        """Attach what could not be read before."""
        for leader in list(self._unread):
            self._unread.discard(leader)
            self.leader_began(leader)

    def _attach(self, committed: Pending[PartitionLeader]) -> None:
        if committed.error is not None:  # the leader has ended, or its disk has failed
            return
        leader = committed.result()
        partition = leader.origin.partition
        journal = self._read.pop(partition, None) or Journal(leader)
        try:
            journal.load()
        except StorageError:
            self._unread.add(leader)
            return
        self._attached[partition] = journal
        self.coordinator.attach(journal)


class Coordinators:
    """All coordinators of a node."""

    def __init__(self, partitions: LocalPartitions) -> None:
        self._partitions = partitions
        self._journals = {topic: Journals(topic, partitions) for topic in PARTITION_COUNTS}
        self._checked_ns = 0

    def journals(self, topic: str) -> Journals:
        """The journals of an internal topic."""
        return self._journals[topic]

    def read(self, topic: str) -> None:
        """Read the journals of a topic at the start of the node. Raises `StorageError`."""
        found = self._partitions.find(topic)
        if topic in self._journals and found is not None:
            if found.partition_count != PARTITION_COUNTS[topic]:
                raise DirectoryUnusable(
                    self._partitions.catalog.directory(topic),
                    f"{topic} could not be spread over {PARTITION_COUNTS[topic]} partitions",
                )
            self._journals[topic].read(found.leaders)

    def begin(self) -> None:
        """Attach all coordinators at the start of the node, topic by topic."""
        for topic in self._journals:
            found = self._partitions.find(topic)
            for leader in found.leaders if found is not None else ():
                self.leader_began(leader)

    def leader_began(self, leader: PartitionLeader) -> None:
        """A partition has a leader on this node."""
        journals = self._journals.get(leader.origin.topic)
        if journals is not None:
            journals.leader_began(leader)

    def leader_ended(self, leader: PartitionLeader) -> None:
        """A leader of this node has ended."""
        journals = self._journals.get(leader.origin.topic)
        if journals is not None:
            journals.leader_ended(leader, leader.ended or NotLeader(*leader.origin))

    def tick(self, now_ns: int) -> None:
        """Write the snapshots that are due. `now_ns` is monotonic."""
        if now_ns - self._checked_ns < CHECK_NS:
            return
        self._checked_ns = now_ns
        for journals in self._journals.values():
            journals.retry()
            for journal in journals:
                journal.snapshot_if_due(now_ns)
