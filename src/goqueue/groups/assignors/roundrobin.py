"""Partitions are dealt like cards, one to each member in turn.

All partitions of all topics lie in one row, and the members sit in the order of their ids; one that does not want the
topic is passed over. Even where all members want the same topics; present owners do not matter.
"""

from collections.abc import Collection, Mapping

from goqueue.names import TopicPartition


def assign(
    topics: Mapping[str, Collection[str]], partition_counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """The partitions of each member; present owners do not matter."""
    dealt: dict[str, list[TopicPartition]] = {member_id: [] for member_id in topics}
    row = sorted(topics)
    wanted = set[str]().union(*topics.values())
    turn = 0
    for topic, partition_count in sorted(partition_counts.items()):
        if topic not in wanted:
            continue
        for partition in range(partition_count):
            while topic not in topics[row[turn % len(row)]]:
                turn += 1
            dealt[row[turn % len(row)]].append(TopicPartition(topic, partition))
            turn += 1
    return dealt
