"""Topics are created, altered and deleted once, with the settings that were asked for, also on a full disk."""

from errno import ENOSPC

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.errors import Conflict, InvalidTopic, MessageTooLarge, StorageFull, TopicExists, TopicNotFound
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node


def test_a_smaller_limit_of_values_takes_effect(node: Node) -> None:
    node.create()
    node.publish(b"x" * 100)

    info = node.done(node.broker.topics.alter("orders", {"max_message_bytes": 50}))

    assert info.settings["max_message_bytes"] == 50
    assert "max_message_bytes" not in info.defaults
    with pytest.raises(MessageTooLarge):
        node.send([b"x" * 51])
    assert "max_message_bytes" in node.done(node.broker.topics.alter("orders", {"max_message_bytes": None})).defaults
    node.publish(b"x" * 51)


@pytest.mark.parametrize("changes", [{"flush": "sometimes"}, {"colour": "red"}, {"retention": -1}])
def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(node: Node, changes: dict[str, object]) -> None:
    node.create()

    with pytest.raises(InvalidTopic):
        node.broker.topics.alter("orders", changes)
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("others", settings=changes)

    assert node.broker.topics.list() == ["orders"]
    node.publish(b"v")


def test_topics_come_and_go_only_once(node: Node) -> None:
    creating = node.broker.topics.create("orders")
    with pytest.raises(TopicExists):
        node.broker.topics.create("orders")
    with pytest.raises(TopicNotFound):
        node.send([b"too early"])
    info = node.done(creating)
    assert (info.name, len(info.partitions), info.replication_factor) == ("orders", 3, 1)
    with pytest.raises(TopicExists):
        node.broker.topics.create("orders")
    node.broker.topics.alter("orders", {"acks": "none"})
    with pytest.raises(Conflict):
        node.broker.topics.alter("orders", {"acks": "all"})
    with pytest.raises(TopicNotFound):
        node.broker.topics.delete("missing")
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("a/b")
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("others", replication_factor=3)


def test_a_topic_that_is_deleted_while_it_is_changed_is_gone(node: Node) -> None:
    node.create()
    altering = node.broker.topics.alter("orders", {"acks": "none"})
    deleting = node.broker.topics.delete("orders")
    node.create()

    with pytest.raises(TopicNotFound):
        node.done(altering)
    node.done(deleting)
    assert node.broker.topics.describe("orders").settings["acks"] == "all"
    node.publish(b"v")


def test_defaults_of_the_broker_hold_for_topics_that_do_not_say_otherwise(disk: MemoryDisk, clock: ManualClock) -> None:
    config = BrokerConfig(default_partitions=5, topic_defaults={"acks": "none", "compression": "lz4"}, node_id=9)
    node = Node(disk, clock, config=config)

    info = node.done(node.broker.topics.create("orders", settings={"acks": "leader"}))

    assert len(info.partitions) == 5
    assert (info.settings["acks"], info.settings["compression"]) == ("leader", "lz4")
    assert info.partitions[0].leader == 9
    assert node.broker.node.stats()[:1] == (9,)


def fill(node: Node) -> None:
    """Publish until the disk is full."""
    for _ in range(100):
        try:
            node.publish(b"x" * 1_000)
        except StorageFull:
            return
    raise AssertionError("there is room still")


def test_less_room_is_made_use_of_at_once_also_on_a_full_disk(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=60_000)
    node = Node(disk, clock)
    node.create()
    fill(node)

    node.done(node.broker.topics.alter("orders", {"retention_bytes": 10_000}))
    node.workers.run_all()

    assert node.leader().log.size == 0  # all of it stood in one segment
    assert node.publish(b"next").first_offset > 10


def test_a_shorter_retention_makes_room_at_once_also_on_a_full_disk(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=60_000)
    node = Node(disk, clock)
    node.create()
    fill(node)
    node.pass_time(20, step=5)

    node.done(node.broker.topics.alter("orders", {"retention": "10s"}))
    node.workers.run_all()

    assert node.leader().log.size == 0
    assert node.publish(b"next").first_offset > 10


@pytest.mark.parametrize("changes", [{"retention": "10s"}, {"retention_bytes": 10_000}])
def test_a_shorter_retention_makes_the_room_that_writing_it_down_needs(
    clock: ManualClock, changes: dict[str, object]
) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(*[b"x" * 1_000] * 20)
    node.pass_time(20, step=5)
    for _ in range(3):  # there is room again when the segments are gone
        disk.fail_next("append", ENOSPC, path_suffix="topic.json.new")

    altering = node.broker.topics.alter("orders", changes)
    node.pass_time(2, step=0.1)

    assert node.done(altering).settings.items() >= changes.items()
    assert node.values() == []


def test_a_change_that_keeps_no_less_is_refused_on_a_full_disk(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(b"kept")
    disk.fail_next("append", ENOSPC, path_suffix="topic.json.new")

    with pytest.raises(StorageFull):
        node.done(node.broker.topics.alter("orders", {"retention": "200h"}))

    assert node.values() == [b"kept"]
