"""What partitions do in a transaction can be asked for again, of whichever leader they have."""

import pytest

from goqueue.broker.transactions.participants import LocalParticipants, RecordsLost
from goqueue.errors import NotLeader, TransactionAborted
from goqueue.transactions.decisions import DecidedPartition
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, offsets, outcomes, restarted
from tests.broker.flapping import flap
from tests.broker.transactional import Owner, uncommitted


def participants(node: Node) -> LocalParticipants:
    return LocalParticipants(node.broker.partitions, node.broker.groups)


def place_of(node: Node, partition: int = 0) -> DecidedPartition:
    topic_id = node.broker.partitions.topic_id("orders", partition)
    return DecidedPartition("orders", topic_id, partition)


def test_a_late_marker_cannot_touch_a_later_transaction(node: Node) -> None:
    """Q5 of the invariants of replication."""
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"first")
    first = owner.key
    owner.commit()
    owner.begin()
    owner.publish(b"second")

    for late in (False, True):
        for _ in range(2):
            assert node.done(participants(node).write_marker(place_of(node), first, commit=late)) is None
        flap(node, "orders", 0)

    assert node.values() == [b"first"]
    owner.abort()
    assert node.values() == [b"first"]
    assert uncommitted(node) == [b"first", b"second"]


def test_a_marker_that_is_asked_for_again_is_written_once(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    for _ in range(3):
        writing = participants(node).write_marker(place_of(node), owner.key, commit=True)
        node.pass_time(0.1)
        assert writing.is_done
        flap(node, "orders", 0)

    assert node.values() == [b"a"]
    assert node.broker.topics.describe("orders").partitions[0].end_offset == 2


def test_a_partition_without_a_leader_is_to_be_asked_again_and_a_deleted_one_is_not(node: Node) -> None:
    node.create()
    place = place_of(node)
    asked = participants(node)
    node.broker.partitions.resign("orders", 0)
    for ask in (asked.prepare, lambda place: asked.write_marker(place, (1, 1), commit=True)):
        with pytest.raises(NotLeader):
            ask(place)
    node.broker.partitions.become_leader("orders", 0)

    node.done(node.broker.topics.delete("orders"))
    node.create()

    assert asked.prepare(place).is_done
    assert asked.write_marker(place, (1, 1), commit=True).is_done


def test_a_partition_is_prepared_when_all_records_of_the_transaction_are_committed(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.send(b"a")
    transaction = node.broker.transactions.open(owner.id).transaction
    place = participants(node).end_of(transaction, place_of(node))
    assert (place.end_offset, place.epoch) == (1, 0)

    prepared = participants(node).prepare(place)
    assert not prepared.is_done

    node.done(prepared)


def test_a_log_that_has_lost_records_below_the_end_is_not_prepared(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.send(b"a", b"b")
    transaction = node.broker.transactions.open(owner.id).transaction
    place = participants(node).end_of(transaction, place_of(node))
    lose_all(node)
    node.publish(b"x", b"y", b"z")

    assert isinstance(participants(node).prepare(place).error, RecordsLost)
    with pytest.raises(RecordsLost):
        participants(node).end_of(transaction, place_of(node))


def lose_all(node: Node) -> None:
    """Another leader did not have the records, and this node has cut them off."""
    partitions = node.broker.partitions
    partitions.resign("orders", 0)
    node.workers.jobs.clear()
    replica = partitions.any_topic("orders").replicas[0]
    replica.log.truncate(0)
    replica.producers.truncated(0)
    partitions.become_leader("orders", 0)


def test_a_transaction_that_has_lost_records_to_a_change_of_leader_is_aborted(node: Node) -> None:

    node.create(partitions=2)
    owner = Owner(node)
    owner.begin()
    owner.publish(b"kept", partition=1)
    owner.send(b"lost")
    lose_all(node)

    with pytest.raises(TransactionAborted) as raised:
        owner.commit()

    assert raised.value.reason == "lost"
    assert node.values() == node.values(partition=1) == []
    node.pass_time(0.1)
    assert node.leader(partition=1).last_stable_offset == node.leader(partition=1).log.next_offset
    owner.begin()
    owner.publish(b"next", partition=1)
    owner.commit()
    assert node.values(partition=1) == [b"next"]


@pytest.mark.parametrize("ends", ["commit", "abort", "timeout"])
def test_acks_of_an_open_transaction_outlive_the_leader_of_their_partition(node: Node, ends: str) -> None:
    node.create(visibility_timeout="5s")
    node.publish(b"a", b"b", b"c")
    consumer = Consumer(node, mode="shared", session_timeout_ms=300_000)
    owner = Owner(node, timeout_ms=60_000)
    owner.begin()
    got = consumer.poll(2)
    assert outcomes(owner.ack(got)) == ["held", "held"]

    flap(node, "orders", 0)
    node.pass_time(30, step=1)
    assert offsets(consumer.poll()) == [2]  # the lease of the others is over, and they are held
    flap(node, "orders", 0)
    if ends == "timeout":
        node.pass_time(31, step=1)
    elif ends == "commit":
        owner.commit()
    else:
        owner.abort()

    is_done = ends == "commit"
    assert floor(node) == (2 if is_done else 0)
    for _ in range(2):
        flap(node, "orders", 0)
        node.pass_time(10, step=1)
    assert offsets(consumer.poll()) == ([2] if is_done else [0, 1, 2])
    again = restarted(node)
    assert floor(again) == (2 if is_done else 0)


def test_an_ack_is_applied_once_however_often_it_is_asked_for(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    consumer = Consumer(node)
    owner = Owner(node)
    owner.begin()
    owner.ack(consumer.poll(1))
    (acks,) = node.broker.transactions.open(owner.id).transaction.acks.values()
    for _ in range(3):
        node.done(participants(node).apply_acks(acks, owner.key, commit=True))
        flap(node, "orders", 0)
    assert floor(node) == 1

    node.done(participants(node).apply_acks(acks, owner.key, commit=False))
    assert floor(node) == 1
