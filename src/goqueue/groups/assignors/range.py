"""Neighbouring partitions of a topic go to one member.

Topic by topic, the members that want it, in the order of their ids, get runs of equal length; the first ones get one
more where it does not come out even. Equal numbers of two topics meet at the same member, which is what joins of
topics need; the price is that the first members carry the remainders of all topics.
"""

from collections.abc import Collection, Mapping

from goqueue.names import TopicPartition


def assign(
    topics: Mapping[str, Collection[str]], partition_counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """The partitions of each member; present owners do not matter."""
    dealt: dict[str, list[TopicPartition]] = {member_id: [] for member_id in topics}
    for topic, partition_count in sorted(partition_counts.items()):
        takers = sorted(member_id for member_id, wanted in topics.items() if topic in wanted)
        start = 0
        for index, member_id in enumerate(takers):
            end = start + partition_count // len(takers) + (index < partition_count % len(takers))
            dealt[member_id] += (TopicPartition(topic, partition) for partition in range(start, end))
            start = end
    return dealt
