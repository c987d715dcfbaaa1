"""The verbs that publish and read without a group: what they refuse, and how a read waits."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import InvalidPartition, InvalidRequest, PartitionNotFound, TopicNotFound
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from tests.broker.brokers import Node, delayed, offsets_of, values_of, wait

OFFSET_MAX = 2**63 - 1


@pytest.mark.parametrize("offset", [-1, -(2**63), OFFSET_MAX + 1])
def test_an_offset_that_cannot_be_is_refused(node: Node, offset: int) -> None:
    node.create()

    with pytest.raises(InvalidRequest) as refused:
        node.read(offset=offset)
    assert str(refused.value).startswith("invalid offset")
    with pytest.raises(InvalidRequest):
        node.broker.messages.subscribe("orders", 0, offset=offset)
    with pytest.raises(InvalidRequest):
        node.broker.messages.wait("orders", {0: offset}, wait_ms=10)


def test_what_cannot_be_read_is_named(node: Node) -> None:
    node.create()

    with pytest.raises(TopicNotFound):
        node.read("missing")
    with pytest.raises(PartitionNotFound):
        node.read(partition=1)
    with pytest.raises(InvalidPartition):
        node.read(partition=-1)
    with pytest.raises(InvalidRequest):
        node.read(max_records=0)
    with pytest.raises(InvalidRequest):
        node.broker.messages.read("orders", 0, isolation="dirty")
    with pytest.raises(InvalidRequest):
        node.broker.topics.offsets("orders", at="noon")
    with pytest.raises(TopicNotFound):
        node.broker.topics.offsets("missing")


def test_a_read_that_waits_is_woken_by_the_first_record(node: Node) -> None:
    node.create()
    pending = wait(node)
    write = node.send([b"a"])
    assert not pending.is_done

    node.workers.run_all()

    assert write.is_done
    assert values_of(pending.result()) == [b"a"]


def test_a_read_that_waits_in_vain_is_answered_by_the_first_tick_after_its_time(node: Node) -> None:
    node.create()
    pending = wait(node, wait_ms=1_000)

    node.tick(0.999)
    assert not pending.is_done
    node.tick(0.001)

    assert (pending.result().record_count, pending.result().next_offset) == (0, 0)
    assert len(node.broker._waits) == 0


def test_a_read_waits_through_hidden_records_and_tells_of_what_it_passed(node: Node, clock: ManualClock) -> None:
    node.create()
    node.messages(delayed(b"later", clock.wall_ns() + 100 * SECOND))
    pending = wait(node)

    node.messages(delayed(b"later", clock.wall_ns() + 100 * SECOND))
    node.control()
    node.workers.run_all()
    assert not pending.is_done
    node.publish(b"now")

    result = pending.result()
    assert (offsets_of(result), result.next_offset, result.first_pending_offset) == ([3], 4, 0)


def test_a_wait_that_ends_in_vain_tells_how_far_it_came(node: Node, clock: ManualClock) -> None:
    node.create()
    pending = wait(node)
    node.messages(*[delayed(b"later", clock.wall_ns() + 100 * SECOND)] * 3)

    node.tick(1)

    result = pending.result()
    assert (result.record_count, result.next_offset, result.first_pending_offset) == (0, 3, 0)


def test_too_much_that_is_hidden_is_answered_with_where_to_go_on(node: Node, clock: ManualClock) -> None:
    node.create()
    due_ns = clock.wall_ns() + 100 * SECOND
    for _ in range(5):
        node.messages(*[delayed(bytes(1024 * 1024), due_ns)] * 4)
    node.publish(b"visible")

    result = wait(node, max_bytes=1 << 20).result()

    assert result.record_count == 0
    assert 0 < result.next_offset < 20
    assert values_of(node.read(offset=result.next_offset)) == [b"visible"]


def test_a_read_that_waits_past_the_end_is_woken_by_its_own_offset_only(node: Node) -> None:
    node.create()
    pending = wait(node, offset=2)

    node.publish(b"0", b"1")
    assert not pending.is_done
    node.publish(b"2")

    assert values_of(pending.result()) == [b"2"]


def test_a_wait_for_any_partition_ends_with_the_first_that_has_more(node: Node) -> None:
    node.create(partitions=3)
    node.publish(b"a", partition=1)

    assert node.broker.messages.wait("orders", {0: 0, 1: 0}, wait_ms=1_000).is_done
    pending = node.broker.messages.wait("orders", {0: 0, 1: 1}, wait_ms=1_000)
    node.publish(b"b", partition=2)
    assert not pending.is_done
    node.publish(b"b", partition=0)
    assert pending.is_done
    timed = node.broker.messages.wait("orders", {0: 1, 1: 1}, wait_ms=1_000)
    node.tick(1)
    assert timed.is_done
    assert node.broker.messages.wait("orders", {0: 1}, wait_ms=0).is_done
    assert not node.leader(partition=0)._watchers


def test_what_cannot_be_published_to_is_named(node: Node) -> None:
    node.create()

    with pytest.raises(TopicNotFound):
        node.send([b"a"], "missing")
    with pytest.raises(PartitionNotFound):
        node.send([b"a"], partition=1)
    with pytest.raises(InvalidPartition):
        node.send([b"a"], partition=-1)
    with pytest.raises(TopicNotFound):
        node.broker.messages.publish("missing", [NewMessage(b"a")])


def test_every_producer_has_an_id_of_its_own(node: Node) -> None:
    producers = [node.broker.messages.init_producer() for _ in range(100)]

    assert len({producer.producer_id for producer in producers}) == 100
    assert all(0 < producer.producer_id < 2**53 and producer.epoch == 0 for producer in producers)
