"""What a node has missed that goes on from a snapshot: the difference of two states, as records.

Both states are of one log, so a topic of the earlier one that the later one does not have was removed: topics have ids
that never come back. Records in between are lost, and whoever compares what is with what should be does not need them.
"""

from collections.abc import Iterator

from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import BrokerChanged, BrokerRemoved, Record, TopicAdded, TopicAltered, TopicRemoved


def records_between(before: Metadata, after: Metadata) -> Iterator[Record]:
    """Records that tell the difference; their times are those of the later state."""
    for node, gone in before.brokers.items():
        if node not in after.brokers:
            yield BrokerRemoved(node, gone.broker_epoch)
    for node, broker in after.brokers.items():
        known = before.broker(node)
        if known is None or known.broker_epoch != broker.broker_epoch:
            yield broker.registration
        if known != broker:
            yield BrokerChanged(node, broker.broker_epoch, broker.status, broker.is_leaving)
    for topic_id in before.topics:
        if topic_id not in after.topics:
            yield TopicRemoved(topic_id, after.created_at_ns)
    for topic in after.topics.values():
        yield from _of_topic(before, after, topic)


def _of_topic(before: Metadata, after: Metadata, topic: TopicAdded) -> Iterator[Record]:
    known = before.topic(topic.id)
    if known is None:
        yield topic
    elif known.settings != topic.settings:
        yield TopicAltered(topic.id, topic.settings)
    for partition in after.partitions_of(topic.id):
        if before.partition(*partition.key) != partition:
            yield partition
