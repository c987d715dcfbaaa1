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
        """The known deliveries of the group."""
        return self._of.get(group, _NONE)

    def at(self, group: str, partition: TopicPartition, *, start: str = "earliest") -> GroupDelivery:
        """The delivery of the group on the partition; a new one starts at the beginning or the end of the log."""
        found = self._of.get(group, _NONE).get(partition)
        if found is None:
            delivery = self._topics.delivery(self._topics.leader(*partition))
            found = delivery.group(group, start=start)
            self._of.setdefault(group, {})[partition] = found
        return found

    def all_of(self, group: Group) -> dict[TopicPartition, GroupDelivery]:
        """All deliveries of the group, also on topics to which no member subscribes now."""
        found = dict(self.of(group.name))
        for leader in self._topics.user_leaders():
            may_have = leader.origin.topic in group.topics or leader.delivery is not None or leader.partition.has_ledger
            if leader.origin not in found and may_have and group.name in self._topics.delivery(leader).groups:
                found[leader.origin] = self.at(group.name, leader.origin)
        return found

    def find_all(self, groups: Iterable[str]) -> None:
        """Find all deliveries of these groups; partitions without a ledger are not opened."""
        wanted = set(groups)
        for leader in self._topics.user_leaders():
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
        counts = self._topics.partition_counts()
        return (TopicPartition(topic, number) for topic in topics for number in range(counts[topic]))

    def forget(self, group: str) -> None:
        """The group is deleted."""
        self._of.pop(group, None)

    def drop(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Forget deliveries on partitions that no longer exist."""
        for found in self._of.values():
            for partition in [partition for partition in found if is_gone(partition)]:
                del found[partition]


_NONE: Mapping[TopicPartition, GroupDelivery] = {}


def up_to_date(
    deliveries: Mapping[TopicPartition, GroupDelivery],
) -> Mapping[TopicPartition, GroupDelivery]:
    """The same deliveries with their logs indexed: only the index separates messages from control records and gaps."""
    for group_delivery in deliveries.values():
        look_ahead(group_delivery, STRETCHES_MAX)
    return deliveries


def look_ahead(group_delivery: GroupDelivery, stretches: int) -> None:
    """Index more of the log after the frontier of the group, up to so many stretches."""
    group_delivery.feed(1)
    for _ in range(stretches):
        partition, cursor = group_delivery.partition, group_delivery.cursor
        if not partition.cover_next(cursor.frontier, group_delivery.leader.last_stable_offset):
            return
