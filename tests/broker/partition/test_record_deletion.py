"""`topics.truncate`: records below an offset are gone for readers, groups and delays, now and after a restart."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import (
    Conflict,
    Forbidden,
    GoQueueError,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotFound,
    StorageFull,
    TopicNotFound,
)
from goqueue.record.identity import BatchIdentity
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, offsets, outcomes, restarted
from tests.broker.transactional import Owner, now_and_later


def truncate(node: Node, before_offset: int, *, topic: str = "orders", partition: int = 0) -> int:
    return node.done(node.broker.topics.truncate(topic, partition, before_offset))


def filled(node: Node, count: int = 10, **settings: object) -> None:
    node.create(**settings)
    for number in range(count):
        node.publish(b"%d" % number)


def publish_until_full(node: Node) -> None:
    while True:
        node.publish(b"x" * 1_000)


def test_readers_continue_at_the_new_start_now_and_after_a_crash(node: Node) -> None:
    filled(node)

    assert truncate(node, 7) == 7

    for one in now_and_later(node):
        assert one.values() == [b"7", b"8", b"9"]
        info = one.broker.topics.describe("orders")
        assert (info.partitions[0].start_offset, info.total_messages) == (7, 3)
        assert list(one.broker.topics.offsets("orders", at="earliest")) == [7]


def test_minus_one_deletes_all_and_offsets_continue(node: Node) -> None:
    filled(node)

    assert truncate(node, -1) == 10

    assert node.values() == []
    assert node.publish(b"next").first_offset == 10
    assert node.values() == [b"next"]


def test_segments_leave_the_disk(node: Node, disk: MemoryDisk) -> None:
    node.create(segment_bytes=4_096)
    for _ in range(20):
        node.publish(b"x" * 1_000)
    before = node.leader().log.size

    truncate(node, 15)

    assert node.leader().log.size < before / 2


def test_a_repeated_or_lower_request_changes_nothing(node: Node) -> None:
    filled(node)
    truncate(node, 7)

    assert [truncate(node, 7), truncate(node, 0)] == [7, 7]
    assert node.values() == [b"7", b"8", b"9"]


def test_a_group_continues_at_the_new_start_and_its_leases_below_it_end(node: Node) -> None:
    filled(node)
    consumer = Consumer(node)
    leased = consumer.poll(4)

    truncate(node, 7)

    assert offsets(consumer.poll()) == [7, 8, 9]
    assert all(outcome != "acked" for outcome in outcomes(consumer.ack(leased)))
    later = restarted(node)
    assert later.broker.topics.describe("orders").partitions[0].start_offset == 7


def test_a_delayed_message_below_the_offset_never_comes(node: Node) -> None:
    node.create()
    consumer = Consumer(node)
    due_ns = node.clock.wall_ns() + 5 * SECOND
    node.messages(NewMessage(b"deleted", deliver_at_ns=due_ns))
    node.messages(NewMessage(b"kept", deliver_at_ns=due_ns))

    truncate(node, 1)

    later = restarted(node)
    assert [entry.offset for entry in later.broker.delays.list("orders")] == [1]
    later.pass_time(6)
    assert [message.value for message in consumer.moved_to(later).poll()] == [b"kept"]


def test_a_producer_continues_its_sequence_after_its_batches_were_deleted(node: Node) -> None:
    node.create()
    for sequence in range(5):
        node.done(node.send_as(BatchIdentity(7, 0, sequence, 1)))

    truncate(node, -1)

    later = restarted(node, keep="nothing")
    repeated = later.done(later.send_as(BatchIdentity(7, 0, 4, 1)))
    assert repeated.first_offset == 4
    assert later.done(later.send_as(BatchIdentity(7, 0, 5, 1))).first_offset == 5


def test_records_of_an_open_transaction_cannot_be_deleted(node: Node) -> None:
    filled(node, 3)
    owner = Owner(node)
    owner.begin()
    owner.publish(b"open")

    with pytest.raises(OffsetOutOfRange):
        truncate(node, 4)
    assert truncate(node, -1) == 3

    owner.commit()
    for one in now_and_later(node):
        assert one.values() == [b"open"]


def test_committed_and_aborted_transactions_are_counted_right_afterwards(node: Node) -> None:
    node.create()
    for number in range(6):
        owner = Owner(node)
        owner.begin()
        owner.publish(b"%d" % number)
        if number % 2:
            owner.abort()
        else:
            owner.commit()
        node.tick()
        node.workers.run_all()

    truncate(node, 6)

    for one in now_and_later(node):
        assert one.values() == [b"4"]


@pytest.mark.parametrize(
    ("before_offset", "error"), [(11, OffsetOutOfRange), (2**62, OffsetOutOfRange), (-2, InvalidRequest)]
)
def test_an_offset_that_cannot_be_is_refused(node: Node, before_offset: int, error: type[GoQueueError]) -> None:
    filled(node)

    with pytest.raises(error):
        truncate(node, before_offset)
    assert len(node.values()) == 10


def test_a_compacted_topic_is_refused_with_the_alternative(node: Node) -> None:
    node.create(cleanup="compact")

    with pytest.raises(Conflict, match="publish tombstones"):
        truncate(node, -1)


def test_topics_and_partitions_that_are_not_there_are_refused(node: Node) -> None:
    node.create()

    with pytest.raises(TopicNotFound):
        truncate(node, 0, topic="nothing")
    with pytest.raises(PartitionNotFound):
        truncate(node, 0, partition=1)
    with pytest.raises(Forbidden):
        truncate(node, 0, topic="__groups")


def test_a_topic_that_is_deleted_meanwhile_ends_the_request(node: Node) -> None:
    filled(node)
    pending = node.broker.topics.truncate("orders", 0, 5)
    node.broker.topics.delete("orders")

    with pytest.raises(TopicNotFound):
        node.done(pending)


def test_a_full_disk_makes_room_first(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=200_000)
    node = Node(disk, clock)
    node.create(segment_bytes=16_384)
    with pytest.raises(StorageFull):
        publish_until_full(node)

    assert truncate(node, -1) == node.leader().log.next_offset

    assert node.publish(b"room again").first_offset == node.leader().log.start_offset
