"""Delayed messages: delivered when they are due, listed, cancelled and rescheduled."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import InvalidRequest, MessageNotFound
from goqueue.record.header import Priority
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from goqueue.testing.inode import Keep
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, got, offsets, outcomes, restarted

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "prefix")


def later(node: Node, *seconds: float, key: bytes | None = None, topic: str = "orders") -> None:
    """Publish a message for each of the times."""
    now_ns = node.clock.wall_ns()
    messages = [
        NewMessage(b"in %g" % after, key=key, deliver_at_ns=now_ns + round(after * SECOND)) for after in seconds
    ]
    node.messages(*messages, topic=topic)


def patient(node: Node, group: str = "workers") -> Consumer:
    return Consumer(node, group, session_timeout_ms=300_000)


def test_a_delayed_message_is_delivered_once_it_is_due_and_no_earlier(node: Node) -> None:
    node.create()
    later(node, 10)
    node.publish(b"now")
    member = patient(node)

    first = member.poll()
    member.ack(first)
    node.pass_time(9.9)
    early = member.poll()
    node.pass_time(0.2)
    due = member.poll()
    member.ack(due)

    assert [message.value for message in first] == [b"now"]
    assert early == []
    assert [message.value for message in due] == [b"in 10"]
    assert floor(node) == 2


def test_a_poll_that_waits_gets_it_when_it_is_due(node: Node) -> None:
    node.create()
    later(node, 5)
    member = patient(node)
    waiting = member.wait(wait_ms=20_000)

    node.pass_time(4.9)
    assert not waiting.is_done
    node.pass_time(0.2)

    assert [message.value for message in got(waiting.result())] == [b"in 5"]


def test_plain_reads_do_not_see_it_before_and_do_after(node: Node) -> None:
    node.create()
    later(node, 10)
    node.publish(b"now")

    assert node.values() == [b"now"]
    assert node.read().first_pending_offset == 0
    node.pass_time(10.1)
    assert node.values() == [b"in 10", b"now"]


def test_a_time_that_is_past_is_now(node: Node, clock: ManualClock) -> None:
    node.create()
    node.messages(NewMessage(b"a", deliver_at_ns=clock.wall_ns() - SECOND), NewMessage(b"b", deliver_at_ns=0))

    assert [message.value for message in patient(node).poll()] == [b"a", b"b"]


def test_delayed_messages_keep_their_priority(node: Node, clock: ManualClock) -> None:
    node.create()
    due_ns = clock.wall_ns() + 5 * SECOND
    node.messages(NewMessage(b"plain"), NewMessage(b"urgent", priority=Priority.CRITICAL, deliver_at_ns=due_ns))

    node.pass_time(5.1)

    assert [message.value for message in patient(node).poll()] == [b"urgent", b"plain"]


# --- cancel and reschedule ---------------------------------------------------------------------


def test_a_cancelled_message_is_never_delivered_nor_read(node: Node) -> None:
    node.create()
    later(node, 5)
    node.publish(b"now")
    member, other = patient(node), patient(node, "others")
    member.poll()

    (cancelled,) = node.done(node.broker.delays.cancel("orders", partition=0, offset=0))
    node.pass_time(6)

    assert cancelled.state == "cancelled"
    assert offsets(other.poll()) == [1]
    assert node.values() == [b"now"]
    for keep in KEEPS[:2]:
        again = restarted(node, keep=keep)
        again.pass_time(6)
        assert again.values() == [b"now"]
    with pytest.raises(MessageNotFound):
        again.broker.delays.cancel("orders", partition=0, offset=0)


def test_a_cancelled_message_does_not_hold_up_the_floor(node: Node) -> None:
    node.create()
    later(node, 500)
    node.publish(b"now")
    member = patient(node)
    member.ack(member.poll())
    assert floor(node) == 0

    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))

    assert floor(node) == 2
    assert [one.offset for one in restarted(node).broker.groups.positions("workers")] == [2]


def test_a_message_can_be_moved_to_an_earlier_or_later_time(node: Node, clock: ManualClock) -> None:
    node.create()
    later(node, 100, 10)
    now_ns = clock.wall_ns()
    delays = node.broker.delays

    (earlier,) = node.done(delays.reschedule("orders", now_ns + 5 * SECOND, partition=0, offset=0))
    (much_later,) = node.done(delays.reschedule("orders", now_ns + 200 * SECOND, partition=0, offset=1))
    assert (earlier.deliver_at_ns, much_later.deliver_at_ns) == (now_ns + 5 * SECOND, now_ns + 200 * SECOND)
    again = restarted(node, keep="nothing")
    again.pass_time(4.9)
    assert again.values() == []
    again.pass_time(0.2)
    assert again.values() == [b"in 100"]
    again.pass_time(190, step=5)
    assert again.values() == [b"in 100"]
    again.pass_time(10, step=5)

    assert again.values() == [b"in 100", b"in 10"]


def test_by_key_all_that_wait_are_meant(node: Node) -> None:
    node.create(partitions=3)
    later(node, 10, 20, key=b"k")
    later(node, 30, key=b"l")
    delays = node.broker.delays

    cancelled = node.done(delays.cancel("orders", key=b"k"))

    assert sorted(one.key or b"" for one in cancelled) == [b"k", b"k"]
    assert [one.key for one in delays.list("orders")] == [b"l"]
    assert node.done(delays.cancel("orders", key=b"nobody")) == []


def test_what_was_delivered_cannot_be_cancelled_or_moved(node: Node, clock: ManualClock) -> None:
    node.create()
    later(node, 5)
    node.pass_time(5.1)
    delays = node.broker.delays

    for change in (
        lambda: delays.cancel("orders", partition=0, offset=0),
        lambda: delays.reschedule("orders", clock.wall_ns(), partition=0, offset=0),
        lambda: delays.cancel("orders", partition=0, offset=77),
    ):
        with pytest.raises(MessageNotFound):
            change()
    with pytest.raises(InvalidRequest):
        delays.cancel("orders", offset=0)
    assert node.values() == [b"in 5"]


def test_the_list_is_ordered_by_time_and_paged(node: Node) -> None:
    node.create(partitions=2)
    later(node, 50, 10, 40)
    later(node, 30, 20)
    delays = node.broker.delays

    times = [one.deliver_at_ns for one in delays.list("orders")]
    pages = [one.deliver_at_ns for skip in (0, 2, 4) for one in delays.list("orders", skip=skip, limit=2)]

    assert times == sorted(times) == pages
    assert len(times) == 5
    assert delays.list("nowhere") == []


# --- with the rest -----------------------------------------------------------------------------


def test_retention_leaves_what_is_not_due(node: Node, clock: ManualClock) -> None:
    node.create(segment_bytes=1_024, retention="60s")
    later(node, 1_000)
    for _ in range(6):
        node.publish(*[b"x" * 100] * 10)
    node.pass_time(200, step=10)
    assert node.leader().log.start_offset == 0

    node.pass_time(810, step=10)

    assert b"in 1000" in node.values()


def test_a_time_to_live_begins_when_the_message_is_due(node: Node) -> None:
    node.create(ttl="10s")
    later(node, 30)
    node.publish(b"now")
    node.pass_time(35, step=1)

    assert [message.value for message in patient(node).poll()] == [b"in 30"]

    later(node, 30)
    node.pass_time(41, step=1)
    assert patient(node, "others").poll() == []


def test_a_commit_past_a_message_that_is_not_due_leaves_it_to_come(node: Node) -> None:
    node.create()
    later(node, 10)
    node.publish(b"now")
    member = patient(node)
    member.poll()
    node.done(node.broker.groups.reset("workers", "earliest"))
    messages = member.poll()
    member.ack(messages)

    node.pass_time(10.1)

    due = member.poll()
    assert [message.value for message in due] == [b"in 10"]
    assert outcomes(member.ack(due)) == ["ack"]
    assert floor(node) == 2


def test_each_group_gets_it_also_one_that_comes_after_it_was_due(node: Node) -> None:
    node.create()
    later(node, 10)
    before = patient(node, "before")
    before.poll()
    node.pass_time(10.1)

    assert len(before.poll()) == 1
    assert len(patient(node, "after").poll()) == 1


def test_a_clock_that_is_set_back_or_forth_loses_nothing(node: Node, clock: ManualClock) -> None:
    node.create()
    later(node, 100)
    member = patient(node)

    clock.set_wall_ns(clock.wall_ns() - 50 * SECOND)
    node.pass_time(50, step=5)
    clock.set_wall_ns(clock.wall_ns() + 100 * SECOND)
    node.pass_time(45, step=5)
    assert member.poll() == []
    node.pass_time(5.1)

    assert len(member.poll()) == 1
