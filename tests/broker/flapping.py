"""Partitions that lose their leader and get another one, as tests of roles need them."""

from tests.broker.brokers import Node


def flap(node: Node, topic: str, partition: int | None = None) -> None:
    """The partition, or all of the topic, resigns and leads again; nothing if there is no such topic yet."""
    partitions = node.broker.partitions
    found = partitions.find(topic)
    numbers = range(len(found.replicas)) if found is not None else ()
    for number in numbers if partition is None else (partition,):
        partitions.resign(topic, number)
        partitions.become_leader(topic, number)
