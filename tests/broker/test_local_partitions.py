"""The one place where a name becomes a partition: who may have it, when it is made, and when it is gone."""

import pytest

from goqueue.broker.coordination import GROUPS_TOPIC, PARTITION_COUNTS
from goqueue.errors import Forbidden, InvalidPartition, PartitionNotFound, TopicNotFound
from goqueue.testing import MemoryDisk
from tests.broker.brokers import Node, wait

# --- looking up ----------------------------------------------------------------------------------


def test_a_name_and_a_number_are_a_partition_or_an_error_that_says_which_is_wrong(node: Node) -> None:
    node.create(partitions=2)
    partitions = node.broker.partitions

    assert partitions.leader("orders", 1) is node.leader(partition=1)
    assert partitions.leaders("orders") == [node.leader(partition=0), node.leader(partition=1)]
    with pytest.raises(TopicNotFound):
        partitions.leader("missing", 0)
    with pytest.raises(PartitionNotFound):
        partitions.leader("orders", 2)
    with pytest.raises(InvalidPartition):
        partitions.leader("orders", -1)
    assert (partitions.find("missing"), partitions.has_topic("missing")) == (None, False)


def test_an_internal_topic_is_found_by_the_broker_and_by_nobody_else(node: Node) -> None:
    node.create()
    node.journal(GROUPS_TOPIC)
    partitions = node.broker.partitions

    for look_up in (partitions.topic, partitions.readable, partitions.leaders, partitions.has_topic):
        with pytest.raises(Forbidden):
            look_up(GROUPS_TOPIC)

    assert partitions.any_topic(GROUPS_TOPIC) is partitions.find(GROUPS_TOPIC)
    assert partitions.partition_counts() == {"orders": 1}
    assert len(list(partitions.all_leaders())) == 1 + PARTITION_COUNTS[GROUPS_TOPIC]


def test_a_partition_of_an_earlier_topic_of_the_name_is_not_found(node: Node) -> None:
    node.create()
    partitions = node.broker.partitions
    old = partitions.topic_id("orders", 0)
    assert partitions.local_leader("orders", old, 0) is node.leader()
    assert partitions.local_leader("orders", old, 1) is None

    node.done(node.broker.topics.delete("orders"))
    node.create()

    assert partitions.local_leader("orders", old, 0) is None
    assert partitions.local_leader("orders", partitions.topic_id("orders", 0), 0) is node.leader()


# --- what is made on first use -------------------------------------------------------------------


def test_a_dead_letter_topic_is_created_with_as_many_partitions_as_its_topic(node: Node) -> None:
    node.create(partitions=5)

    found = node.done(node.broker.partitions.target("graveyard", like="orders"))

    assert found is node.broker.partitions.find("graveyard")
    assert len(found.replicas) == 5
    assert node.done(node.broker.partitions.target("orders", like="missing")).leaders == [
        node.leader(partition=number) for number in range(5)
    ]


def test_a_topic_that_is_missing_is_not_created_by_a_copy_that_is_like_no_other(node: Node) -> None:
    node.create()

    for name in ("missing", "orders.dlq"):
        with pytest.raises(TopicNotFound):
            node.done(node.broker.partitions.target(name, like=None))

    assert node.broker.topics.list() == ["orders"]


def test_delivery_begins_on_first_use_and_ends_with_the_topic(node: Node) -> None:
    node.create()
    partitions = node.broker.partitions
    assert partitions.deliveries == []

    delivery = partitions.delivery(node.leader())

    assert partitions.delivery(node.leader()) is delivery
    assert partitions.deliveries == [delivery]
    node.done(node.broker.topics.delete("orders"))
    assert partitions.deliveries == []


# --- topics go away ------------------------------------------------------------------------------


def test_whoever_reads_or_waits_on_a_topic_that_is_deleted_is_told_at_once(node: Node, disk: MemoryDisk) -> None:
    node.create(partitions=2)
    node.publish(b"a")
    subscription = node.broker.messages.subscribe("orders", 0, offset=0)
    idle = node.broker.messages.subscribe("orders", 1, offset=0)
    read, any_partition = wait(node, offset=1), node.broker.messages.wait("orders", {1: 0}, wait_ms=1_000)
    called: list[str] = []
    idle.when_ready(lambda: called.append("idle"))
    write = node.send([b"b"])

    deleted = node.broker.topics.delete("orders")

    for pending in (read, write):
        assert pending.is_done
        with pytest.raises(TopicNotFound):
            pending.result()
    assert any_partition.is_done
    assert called == ["idle"]
    for gone in (subscription, idle):
        with pytest.raises(TopicNotFound):
            gone.read(max_bytes=1_000)
    with pytest.raises(TopicNotFound):
        node.read()
    node.done(deleted)
    assert not [path for path in disk.paths() if "orders" in path]
    assert node.broker.topics.list() == []


def test_a_topic_of_the_same_name_is_another_topic(node: Node) -> None:
    node.create()
    node.publish(b"old")
    old = node.broker.messages.subscribe("orders", 0, offset=0)
    node.broker.topics.delete("orders")
    node.create()
    node.publish(b"new")

    assert node.values() == [b"new"]
    with pytest.raises(TopicNotFound):
        old.read(max_bytes=1_000)
    node.pass_time(1)
