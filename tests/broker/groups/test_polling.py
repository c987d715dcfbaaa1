"""Polls: who gets which messages, and what ends a poll that waits."""

import pytest

from goqueue.broker.delivery.group_delivery import GroupDelivery
from goqueue.broker.groups.group_deliveries import GroupDeliveries
from goqueue.broker.groups.polling import Polling
from goqueue.broker.timers import Timers
from goqueue.broker.waits import Waits
from goqueue.errors import GoQueueError, GroupNotFound, NotLeader, ReadFailed
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.names import TopicPartition
from goqueue.service.groups import Join, PollResult
from goqueue.service.pending import Pending
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, got, offsets, restarted


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_no_more_than_max_in_flight_is_out_and_the_poll_says_why(node: Node) -> None:
    node.create(max_in_flight=5)
    node.publish(*numbered(9))
    member = Consumer(node)
    messages = member.poll()

    full = member.polled()
    member.ack(messages[:2])

    assert len(messages) == 5
    assert (got(full), full.polled.reason, full.polled.in_flight) == ([], "max_in_flight", 5)
    assert offsets(member.poll()) == [5, 6]


def test_after_a_kill_a_member_has_no_more_than_max_in_flight(node: Node) -> None:
    node.create(max_in_flight=5)
    node.publish(*numbered(9))
    member = Consumer(node)
    member.poll()

    again = restarted(node)

    assert member.moved_to(again).polled().polled.reason == "max_in_flight"


def test_a_poll_that_waits_gets_what_is_nacked_acked_or_published_meanwhile(node: Node) -> None:
    node.create(max_in_flight=1)
    node.publish(b"a", b"b")
    member = Consumer(node)
    (first,) = member.poll()

    waiting = member.wait(wait_ms=30_000)
    assert not waiting.is_done
    member.ack([first])
    node.workers.run_all()

    assert offsets(got(waiting.result())) == [1]


# --- shared ------------------------------------------------------------------------------------


def test_many_members_share_few_partitions_and_nothing_goes_twice(node: Node) -> None:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(*numbered(200), partition=partition)
    members = [Consumer(node, mode="shared") for _ in range(7)]

    seen: list[tuple[int, int]] = []
    while True:
        polled = [(member, member.poll(5)) for member in members]
        if not any(messages for _, messages in polled):
            break
        for member, messages in polled:
            seen += [(message.partition, message.offset) for message in messages]
            member.ack(messages)

    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(200)]
    assert [floor(node, partition=partition) for partition in (0, 1)] == [200, 200]


def test_a_poll_that_waits_while_its_topic_is_deleted_is_answered(node: Node) -> None:
    node.create()
    node.create("others")
    member = Consumer(node, topics=("orders", "others"))
    waiting = member.wait(wait_ms=30_000)

    node.done(node.broker.topics.delete("orders"))
    node.publish(b"still here", topic="others")
    node.tick(1)
    found = got(waiting.result()) if waiting.is_done else []

    assert [message.value for message in found or member.poll()] == [b"still here"]


def test_a_poll_that_waits_while_its_group_is_deleted_is_told(node: Node) -> None:
    node.create()
    member = Consumer(node)
    waiting = member.wait(wait_ms=30_000)

    node.done(node.broker.groups.delete("workers"))

    assert waiting.is_done
    with pytest.raises(GroupNotFound):
        waiting.result()


# --- partitions that refuse --------------------------------------------------------------------

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
BROKEN = ReadFailed("orders-0", "input/output error")


class Refusing(GroupDeliveries):
    """Deliveries of partitions, some of which refuse."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.broker.partitions)
        self.errors: dict[TopicPartition, GoQueueError] = {}

    def at(self, group: str, partition: TopicPartition, *, start: str = "earliest") -> GroupDelivery:
        if partition in self.errors:
            raise self.errors[partition]
        return super().at(group, partition, start=start)


class OneMember:
    """A group of one member that polls partitions which may refuse."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.timers = Timers()
        self.deliveries = Refusing(node)
        coordinator, partitions, clock = GroupCoordinator(), node.broker.partitions, node.clock
        waits = Waits(self.timers, clock=clock, waiting_max=10)
        self.polling = Polling(coordinator, partitions, self.deliveries, waits, clock=clock, observe=lambda _: None)
        counts, now_ns, wall_ns = partitions.partition_counts(), clock.monotonic_ns(), clock.wall_ns()
        wanted = Join("c", ("orders",), "me", session_timeout_ms=300_000)
        coordinator.join("g", wanted, suffix="", partition_counts=counts, now_ns=now_ns, wall_ns=wall_ns)

    def refuse(self, partition: TopicPartition, error: GoQueueError | None = None) -> None:
        self.deliveries.errors[partition] = error or NotLeader(*partition)

    def serve(self, partition: TopicPartition) -> None:
        del self.deliveries.errors[partition]
        self.polling.leader_began(partition)

    def poll(self, wait_ms: int = 30_000, **asked: int) -> Pending[PollResult]:
        return self.polling.poll("g", "me", wait_ms=wait_ms, **asked)


@pytest.fixture
def member(node: Node) -> OneMember:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(b"a", b"b", partition=partition)
    return OneMember(node)


@pytest.mark.parametrize("error", [NotLeader("orders", 0), BROKEN])
def test_a_partition_that_refuses_is_left_out_and_the_others_are_served(member: OneMember, error: GoQueueError) -> None:
    member.refuse(FIRST, error)

    found = got(member.poll().result())
    waiting = member.poll()

    assert [(one.partition, one.offset) for one in found] == [(1, 0), (1, 1)]
    assert not waiting.is_done
    member.node.publish(b"c", partition=1)
    assert offsets(got(waiting.result())) == [2]


def test_a_poll_waits_for_a_leader(member: OneMember) -> None:
    member.refuse(FIRST)
    member.refuse(SECOND)
    waiting = member.poll()
    assert not waiting.is_done

    member.polling.leader_began(TopicPartition("others", 0))
    assert not waiting.is_done
    member.serve(SECOND)

    assert [(one.partition, one.offset) for one in got(waiting.result())] == [(1, 0), (1, 1)]
    member.serve(FIRST)
    assert [one.partition for one in got(member.poll().result())] == [0, 0]


def test_a_poll_that_no_leader_serves_in_time_is_empty(member: OneMember) -> None:
    member.refuse(FIRST)
    member.refuse(SECOND)
    waiting = member.poll(wait_ms=1_000)

    member.node.clock.advance(2)
    member.timers.tick(member.node.clock.monotonic_ns())

    result = waiting.result()
    assert (got(result), result.polled.reason) == ([], "")
    assert got(member.poll(wait_ms=0).result()) == []


def test_a_disk_that_fails_under_all_partitions_is_told(member: OneMember) -> None:
    member.refuse(FIRST, BROKEN)
    member.refuse(SECOND, BROKEN)

    with pytest.raises(ReadFailed):
        member.poll()
    member.refuse(SECOND)
    assert not member.poll().is_done
