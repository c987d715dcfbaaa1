"""What is told of lanes is what happened: rates, waits, who was served and who was put first."""

import pytest

from goqueue.clock import SECOND
from goqueue.service.new_message import NewMessage
from goqueue.wire.reports import LaneReport, PositionCommit
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, restarted

CRITICAL, NORMAL, LOW = 0, 2, 3


@pytest.fixture
def orders(node: Node) -> Node:
    node.create()
    return node


def lanes(node: Node, group: str | None = None) -> LaneReport:
    (report,) = node.broker.groups.lanes("orders", group)
    return report


def put(node: Node, count: int, priority: int = NORMAL, **more: int) -> None:
    node.messages(*(NewMessage(b"v", priority=priority, **more) for _ in range(count)))  # type: ignore[arg-type]


@pytest.mark.parametrize("asks_before", [False, True])
def test_what_comes_in_has_a_rate_without_any_group(orders: Node, asks_before: bool) -> None:
    if asks_before:
        assert lanes(orders).enqueue_rate == [0] * 5
    put(orders, 30)
    put(orders, 60, LOW)
    orders.clock.advance(30)

    assert lanes(orders).enqueue_rate == [0, 0, 1, 2, 0]
    orders.clock.advance(20)
    put(orders, 30)
    orders.clock.advance(15)
    assert lanes(orders).enqueue_rate == [0, 0, 0.5, 0, 0]
    again = restarted(orders)
    assert lanes(again).enqueue_rate == [0, 0, 0.5, 0, 0]
    again.clock.advance(60)
    assert lanes(again).enqueue_rate == [0] * 5


def test_each_message_has_waited_since_it_was_stored(orders: Node) -> None:
    put(orders, 1)
    put(orders, 1, LOW)
    orders.clock.advance(10)
    put(orders, 3)
    orders.clock.advance(2)
    Consumer(orders).poll()

    report = lanes(orders)

    assert report.average_wait_ns == [0, 0, (12 + 3 * 2) * SECOND // 4, 12 * SECOND, 0]
    assert report.delivered == [0, 0, 4, 1, 0]


def test_a_delayed_message_waits_from_its_time_on(orders: Node) -> None:
    put(orders, 1, deliver_at_ns=orders.clock.wall_ns() + 60 * SECOND)
    orders.tick(63)
    Consumer(orders).poll()

    assert lanes(orders).average_wait_ns[NORMAL] == 3 * SECOND


def test_a_redelivery_is_no_wait_but_it_is_served(orders: Node) -> None:
    put(orders, 2)
    consumer = Consumer(orders, session_timeout_ms=3_600_000)
    orders.clock.advance(4)
    first = orders.clock.wall_ns()
    got = consumer.poll()
    assert lanes(orders).last_served_ns == [None, None, first, None, None]
    consumer.settle("nack", got[:1])
    orders.tick(20)
    assert [one.count for one in consumer.poll()] == [2]

    report = lanes(orders)
    assert (report.average_wait_ns[NORMAL], report.delivered[NORMAL]) == (4 * SECOND, 2)
    assert report.last_served_ns[NORMAL] == orders.clock.wall_ns()


def test_a_group_has_its_own_waits_and_rates_and_without_one_they_are_summed(orders: Node) -> None:
    put(orders, 10)
    slow, quick = Consumer(orders, "slow"), Consumer(orders, "quick")
    orders.clock.advance(2)
    quick.ack(quick.poll())
    orders.clock.advance(4)
    slow.ack(slow.poll(5))

    assert lanes(orders, "quick").average_wait_ns[NORMAL] == 2 * SECOND
    assert lanes(orders, "slow").average_wait_ns[NORMAL] == 6 * SECOND
    assert lanes(orders).average_wait_ns[NORMAL] == (10 * 2 + 5 * 6) * SECOND // 15
    assert (lanes(orders, "quick").dequeue_rate[NORMAL], lanes(orders, "slow").dequeue_rate[NORMAL]) == (2, 5)
    assert lanes(orders).dequeue_rate[NORMAL] == 7


def test_whatever_is_done_goes_out(orders: Node) -> None:
    put(orders, 6)
    consumer = Consumer(orders)
    got = consumer.poll()
    consumer.ack(got[:1])
    consumer.settle("reject", got[1:2])
    orders.workers.run_all()
    orders.done(orders.broker.groups.commit("workers", [PositionCommit("orders", 0, 5)], member_id=consumer.id))

    assert lanes(orders, "workers").dequeue_rate[NORMAL] == 5


def test_a_lane_that_is_put_first_is_counted(node: Node) -> None:
    node.create(priority_mode="strict")
    put(node, 20, CRITICAL)
    put(node, 1, LOW)
    consumer = Consumer(node)
    consumer.poll(1)
    node.clock.advance(5)
    consumer.poll(1)
    assert lanes(node).boosts == [0] * 5
    node.clock.advance(26)
    consumer.poll(2)

    assert lanes(node).boosts == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("group", [None, "workers"])
def test_what_compaction_has_removed_is_counted_no_more(node: Node, group: str | None) -> None:
    node.create(cleanup="compact", segment_bytes=1_024, dirty_ratio=0.01)
    for round_ in range(8):
        node.messages(*(NewMessage(b"%d" % round_ * 30, key=b"%d" % number) for number in range(10)))
    if group is not None:
        Consumer(node, group)
    assert lanes(node, group).total[NORMAL] == 80

    node.pass_time(120, step=10)

    left = len(node.values())
    assert left < 80
    now, later = lanes(node, group), lanes(restarted(node), group)
    assert now.total[NORMAL] == later.total[NORMAL] == left
    assert now.pending[NORMAL] == now.ready[NORMAL] == left
