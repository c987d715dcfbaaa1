"""What is noted in an open transaction says which leader has it."""

from pyroaring import BitMap64

from goqueue.transactions.decisions import DecidedAcks, DecidedPartition
from goqueue.transactions.transaction import StoredRecords
from tests.broker.brokers import Node
from tests.broker.flapping import flap
from tests.broker.transactional import Owner


def test_records_and_acks_are_noted_with_the_epoch_of_their_first_leader(node: Node) -> None:
    node.create()
    flap(node, "orders", 0)
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    enlisted = node.broker.transactions.open(owner.id)
    enlisted.add_acks("workers", node.leader(), BitMap64([0]))
    topic_id = node.broker.partitions.topic_id("orders", 0)

    flap(node, "orders", 0)
    owner.publish(b"c")
    enlisted.add_acks("workers", node.leader(), BitMap64([1]))

    transaction = enlisted.transaction
    assert node.leader().epoch == 2
    assert transaction.written_to(DecidedPartition("orders", topic_id, 0)) == StoredRecords(1, 3)
    assert transaction.record_count == 3
    (acks,) = transaction.acks.values()
    assert acks == DecidedAcks("workers", "orders", topic_id, 0, BitMap64([0, 1]))
    assert transaction.held_in(acks) == 1
