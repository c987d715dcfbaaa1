"""The deliveries of all groups, by group and partition.

A `GroupDelivery` is looked up or made when a group first needs it, and forgotten with its topic. Nothing here changes a
cursor, except that it may admit messages from the log.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from goqueue.broker.delivery.group_delivery import GroupDelivery
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.groups.group import Group
from goqueue.names import TopicPartition

STRETCHES_MAX = 4
"""How many unseen stretches of a log, of 4 MiB each, are read for one question about lag."""


class GroupDeliveries:
    """The deliveries of all groups that were needed since the start."""

    def __init__(self, topics: LocalPartitions) -> None:
        self._topics = topics
        self._of: dict[str, dict[TopicPartition, GroupDelivery]] = {}

    def __iter__(self) -> Iterator[tuple[TopicPartition, GroupDelivery]]:
        for found in self._of.values():
            yield from found.items()

    def of(self, group: str) -> Mapping[TopicPartition, GroupDelivery]:
        """Those of the group, as far as they are known."""
        return self._of.get(group, _NONE)

    def at(self, group: str, partition: TopicPartition, *, start: str = "earliest") -> GroupDelivery:
        """That of the group on the partition; a new one starts at the beginning or the end of the log."""
        found = self._of.get(group, _NONE).get(partition)
        if found is None:
            delivery = self._topics.delivery(self._topics.leader(*partition))
            found = delivery.group(group, start=start)
            self._of.setdefault(group, {})[partition] = found
        return found

    def all_of(self, group: Group) -> dict[TopicPartition, GroupDelivery]:
        """Those of the group everywhere, also on topics that none of its members subscribes to now."""
        found = dict(self.of(group.name))
        for topic, count in self._topics.partition_counts().items():
            for number in range(count):
                partition = TopicPartition(topic, number)
                if partition not in found:
                    leader = self._topics.leader(topic, number)
                    if topic in group.topics or leader.delivery is not None or leader.partition.has_ledger:
                        delivery = self._topics.delivery(leader)
                        if group.name in delivery.groups:
                            found[partition] = self.at(group.name, partition)
        return found

    def find_all(self, groups: Iterable[str]) -> None:
        """Find those of these groups everywhere; partitions that no group ever had are not opened."""
        wanted = set(groups)
        for topic, count in self._topics.partition_counts().items():
            for number in range(count):
                leader = self._topics.leader(topic, number)
                if leader.delivery is not None or leader.partition.has_ledger:
                    for group in wanted.intersection(self._topics.delivery(leader).groups):
                        self.at(group, leader.origin)

    def in_flight(self, group: str, member_id: str) -> int:
        """How many messages the member has leased."""
        in_flight = 0
        for group_delivery in self._of.get(group, _NONE).values():
            in_flight += group_delivery.cursor.in_flight.get(member_id, 0)
        return in_flight

    def partitions_of(self, topics: Sequence[str]) -> Iterator[TopicPartition]:
        """All partitions of the topics."""
        counts = self._topics.partition_counts()
        return (TopicPartition(topic, number) for topic in topics for number in range(counts[topic]))

    def forget(self, group: str) -> None:
        """The group is deleted."""
        self._of.pop(group, None)

    def drop(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Forget those on partitions that no longer exist."""
        for found in self._of.values():
            for partition in [partition for partition in found if is_gone(partition)]:
                del found[partition]


_NONE: Mapping[TopicPartition, GroupDelivery] = {}


def up_to_date(
    deliveries: Mapping[TopicPartition, GroupDelivery],
) -> Mapping[TopicPartition, GroupDelivery]:
    """The same deliveries, after a look at their logs: only that tells messages from control records and gaps."""
    for group_delivery in deliveries.values():
        look_ahead(group_delivery, STRETCHES_MAX)
    return deliveries


def look_ahead(group_delivery: GroupDelivery, stretches: int) -> None:
    """Index more of what the group has not reached, up to so many stretches that are not in the index."""
    group_delivery.feed(1)
    for _ in range(stretches):
        partition, cursor = group_delivery.partition, group_delivery.cursor
        if not partition.cover_next(cursor.frontier, group_delivery.leader.last_stable_offset):
            return
