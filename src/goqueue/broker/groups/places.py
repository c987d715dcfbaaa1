"""Where groups stand: the cursors of each, partition by partition.

A place is made when somebody first needs it, and forgotten with its topic. Nothing here moves a cursor, but for looking
at what the log has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from goqueue.broker.delivery.group_cursors import GroupCursor
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.groups.group import Group
from goqueue.names import TopicPartition
from goqueue.service.pending import Pending

STRETCHES_MAX = 4
"""How many unseen stretches of a log, of 4 MiB each, are read for one question about lag."""


class Topics(Protocol):
    """What groups need to know of the topics of their broker."""

    def partition_counts(self) -> Mapping[str, int]:
        """Of all topics but the internal ones."""

    def has_topic(self, topic: str) -> bool:
        """Raises `Forbidden` for an internal topic."""

    def leader(self, topic: str, partition: int) -> PartitionLeader:
        """Raises `TopicNotFound`, `PartitionNotFound` or `Forbidden`."""

    def delivery(self, leader: PartitionLeader) -> PartitionDelivery: ...
    def journal(self, topic: str) -> Pending[Journal]:
        """The internal topic, which is made on first use."""


class Place(NamedTuple):
    """A group's cursor, and the partition it is on."""

    delivery: PartitionDelivery
    cursor: GroupCursor

    @property
    def lag(self) -> int:
        """Readable messages that are not done: without what waits for its time, and what no group ever gets.

        What the index has not seen yet counts as messages, control records and gaps of compaction included.
        """
        cursor, delivery = self.cursor.cursor, self.delivery
        start, end = max(cursor.floor, delivery.leader.log.start_offset), delivery.leader.last_stable_offset
        if start >= end:
            return 0
        hidden = delivery.delays.table.waiting.range_cardinality(start, end)
        if cursor.frontier < end:  # below it the cursor counts as done what is never delivered
            hidden += (delivery.never - cursor.acked).range_cardinality(max(start, cursor.frontier), end)
        return max(0, end - start - len(cursor.acked) - hidden)


class Places:
    """The places of all groups, as far as somebody has needed them since the start."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._of: dict[str, dict[TopicPartition, Place]] = {}

    def __iter__(self) -> Iterator[tuple[str, TopicPartition, Place]]:
        for group, places in self._of.items():
            for partition, place in places.items():
                yield group, partition, place

    def of(self, group: str) -> Mapping[TopicPartition, Place]:
        """Those of the group, as far as they are known."""
        return self._of.get(group, _NOWHERE)

    def at(self, group: str, partition: TopicPartition, *, start: str = "earliest") -> Place:
        """The group's place on that partition; a new one begins at the start or the end of the log."""
        place = self.of(group).get(partition)
        if place is None:
            delivery = self._topics.delivery(self._topics.leader(*partition))
            place = Place(delivery, delivery.cursor_of(group, start=start))
            self._of.setdefault(group, {})[partition] = place
        return place

    def all_of(self, group: Group) -> dict[TopicPartition, Place]:
        """Everywhere the group has a position, also on topics that none of its members has now."""
        found = dict(self.of(group.name))
        for topic, count in self._topics.partition_counts().items():
            for number in range(count):
                partition = TopicPartition(topic, number)
                if partition not in found:
                    leader = self._topics.leader(topic, number)
                    if topic in group.topics or leader.delivery is not None or leader.partition.has_ledger:
                        delivery = self._topics.delivery(leader)
                        if group.name in delivery.cursors:
                            found[partition] = self.at(group.name, partition)
        return found

    def find_all(self, groups: Iterable[str]) -> None:
        """Know the places of these groups everywhere; partitions that no group ever had are not looked at."""
        wanted = set(groups)
        for topic, count in self._topics.partition_counts().items():
            for number in range(count):
                leader = self._topics.leader(topic, number)
                if leader.delivery is not None or leader.partition.has_ledger:
                    for group in wanted.intersection(self._topics.delivery(leader).cursors):
                        self.at(group, leader.origin)

    def in_flight(self, group: str, member_id: str) -> int:
        """How many messages the member has leased."""
        in_flight = 0
        for _, one in self.of(group).values():
            in_flight += one.cursor.in_flight.get(member_id, 0)
        return in_flight

    def partitions_of(self, topics: Sequence[str]) -> Iterator[TopicPartition]:
        """All partitions of the topics."""
        counts = self._topics.partition_counts()
        return (TopicPartition(topic, number) for topic in topics for number in range(counts[topic]))

    def forget(self, group: str) -> None:
        """The group is gone."""
        self._of.pop(group, None)

    def drop(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Forget the places on partitions that are gone."""
        for places in self._of.values():
            for partition in [one for one in places if is_gone(one)]:
                del places[partition]


_NOWHERE: Mapping[TopicPartition, Place] = {}


def up_to_date(places: Mapping[TopicPartition, Place]) -> Mapping[TopicPartition, Place]:
    """The same places; after a restart what is no message is passed over only when the log is looked at."""
    for place in places.values():
        look_ahead(place, STRETCHES_MAX)
    return places


def look_ahead(place: Place, stretches: int) -> None:
    """Let the index see more of what the group has before it, up to so many stretches that were not looked at."""
    delivery, one = place
    delivery.feed(one, 1)
    for _ in range(stretches):
        if not delivery.cover_next(one.cursor.frontier, delivery.leader.last_stable_offset):
            return
