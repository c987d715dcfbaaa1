"""Which deliveries a group has, and when they are found or forgotten."""

from goqueue.broker.groups.group_deliveries import GroupDeliveries
from goqueue.names import TopicPartition
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, restarted

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_group_has_one_delivery_on_a_partition(node: Node) -> None:
    node.create(partitions=2)
    deliveries = GroupDeliveries(node.broker.partitions)

    found = deliveries.at("workers", FIRST)

    assert deliveries.at("workers", FIRST) is found
    assert dict(deliveries.of("workers")) == {FIRST: found}
    assert deliveries.of("others") == {}


def test_a_delivery_starts_where_its_member_wants_to(node: Node) -> None:
    node.create(partitions=1)
    node.publish(b"a", b"b")
    deliveries = GroupDeliveries(node.broker.partitions)

    assert deliveries.at("early", FIRST).cursor.floor == 0
    assert deliveries.at("late", FIRST, start="latest").cursor.floor == 2


def test_after_a_restart_only_groups_that_have_a_cursor_are_found(node: Node) -> None:
    node.create(partitions=2)
    GroupDeliveries(node.broker.partitions).at("workers", SECOND)
    deliveries = GroupDeliveries(restarted(node).broker.partitions)

    deliveries.find_all(["workers", "others"])

    assert [(partition, found.group) for partition, found in deliveries] == [(SECOND, "workers")]


def test_messages_in_flight_are_summed_over_partitions(node: Node) -> None:
    node.create(partitions=2)
    node.publish(b"a", b"b", partition=0)
    node.publish(b"c", partition=1)
    member = Consumer(node)
    member.poll()
    deliveries = GroupDeliveries(node.broker.partitions)
    for partition in (FIRST, SECOND):
        deliveries.at("workers", partition)

    assert deliveries.in_flight("workers", member.id) == 3
    assert deliveries.in_flight("workers", "another") == 0


def test_deliveries_are_forgotten_with_their_partition_or_their_group(node: Node) -> None:
    node.create(partitions=2)
    deliveries = GroupDeliveries(node.broker.partitions)
    for partition in (FIRST, SECOND):
        deliveries.at("workers", partition)

    deliveries.drop(lambda partition: partition == FIRST)
    assert list(deliveries.of("workers")) == [SECOND]

    deliveries.forget("workers")
    assert not deliveries.of("workers")
