"""A partition on this node that takes copies."""

import pytest
from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.dead_letter_target import DeadLetterTarget, LocalTargets
from goqueue.errors import TopicNotFound
from goqueue.record.identity import BatchIdentity
from goqueue.transactions.sequences import LastBatch
from tests.broker.brokers import Node, batch_of

FROM = events.CopyOrigin("orders", 0, BitMap64([0, 1]))


def found(node: Node, number: int = 0, topic: str = "orders.dlq") -> DeadLetterTarget:
    return node.done(LocalTargets(node.broker.partitions).find(topic, number, like="orders"))


def test_a_target_knows_the_last_batch_when_it_is_durable(node: Node) -> None:
    node.create()
    target = found(node)
    assert target.last_batch(7).result() is None

    stored = target.publish(batch_of(BatchIdentity(7, 0, 0, 2)), BatchIdentity(7, 0, 0, 2), FROM)
    asked = target.last_batch(7)
    assert not stored.is_done
    assert not asked.is_done

    assert node.done(stored)[:2] == (0, 2)
    assert asked.result() == LastBatch(0, 0, 2, 0)


def test_a_batch_that_comes_twice_is_stored_once(node: Node) -> None:
    node.create()
    target = found(node)
    for is_again in (False, True):
        stored = node.done(target.publish(batch_of(BatchIdentity(7, 0, 0, 2)), BatchIdentity(7, 0, 0, 2), FROM))
        assert (stored.first_offset, stored.duplicate) == (0, is_again)
    assert node.leader("orders.dlq").log.next_offset == 2


def test_a_partition_is_chosen_by_its_number(node: Node) -> None:
    node.create(partitions=3)

    assert [found(node, number).partition for number in (0, 2, 3, 7)] == [0, 2, 0, 1]


def test_a_topic_of_the_same_name_is_another_target(node: Node) -> None:
    node.create()
    target = found(node)
    node.done(node.broker.topics.delete("orders.dlq"))
    other = found(node)
    assert (target.topic, target.partition) == (other.topic, other.partition)
    assert target.topic_id != other.topic_id

    with pytest.raises(TopicNotFound):
        target.last_batch(7)
    with pytest.raises(TopicNotFound):
        target.publish(batch_of(BatchIdentity(7, 0, 0, 2)), BatchIdentity(7, 0, 0, 2), FROM)
    assert node.leader("orders.dlq").log.next_offset == 0


def test_a_target_of_a_redrive_is_not_created(node: Node) -> None:
    with pytest.raises(TopicNotFound):
        node.done(LocalTargets(node.broker.partitions).find("orders.dlq", 0, like=None))
