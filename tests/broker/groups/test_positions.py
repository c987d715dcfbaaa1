"""Positions: committed, read and reset."""

import pytest

from goqueue.errors import GroupNotFound, InvalidRequest, OffsetOutOfRange, PartitionNotAssigned, TopicNotFound
from goqueue.testing import ManualClock
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, got, offsets, outcomes, restarted


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def commit(
    member: Consumer, offset: int, partition: int = 0, metadata: str = "", *, allow_backwards: bool = False
) -> int:
    wanted = [reports.PositionCommit("orders", partition, offset, metadata)]
    groups = member.node.broker.groups
    pending = groups.commit(member.group, wanted, member_id=member.id, allow_backwards=allow_backwards)
    (stored,) = member.node.done(pending)
    return stored.offset


# --- positions ---------------------------------------------------------------------------------


def test_two_groups_do_not_disturb_each_other(node: Node) -> None:
    node.create()
    node.publish(*numbered(4))
    one, other = Consumer(node, "one"), Consumer(node, "other")

    one.ack(one.poll())
    messages = other.poll(2)
    other.settle("nack", messages)

    assert (floor(node, "one"), floor(node, "other")) == (4, 0)
    assert offsets(other.poll()) == [2, 3]


def test_a_group_that_starts_at_the_latest_sees_only_what_comes(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(3))
    member = Consumer(node, start="latest")

    node.publish(b"new")
    node.publish(b"other", partition=1)

    assert sorted(message.value for message in member.poll()) == [b"new", b"other"]


def test_a_commit_ends_leases_below_it_and_survives(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    messages = member.poll(4)

    assert commit(member, 3, metadata="half") == 3

    assert outcomes(member.ack(messages)) == ["RECEIPT_HANDLE_UNKNOWN"] * 3 + ["ack"]
    again = restarted(node, keep="nothing")
    (position,) = again.broker.groups.positions("workers")
    assert (position.offset, position.lag, position.metadata) == (4, 2, "half")
    assert offsets(member.moved_to(again).poll()) == [4, 5]


def test_a_commit_backwards_changes_nothing_and_one_past_the_end_is_the_end(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    commit(member, 4)

    assert commit(member, 2) == 4
    assert commit(member, 0) == 4
    assert commit(member, 1_000_000) == 6
    assert member.poll() == []
    node.publish(b"later")
    assert offsets(member.poll()) == [6]


@pytest.mark.parametrize("ack", ["messages", "offsets"])
def test_a_commit_that_may_go_back_delivers_again_from_there(node: Node, ack: str) -> None:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(*numbered(6), partition=partition)
    member = Consumer(node, ack=ack, auto_commit=False)
    assert len(member.poll()) == 12
    commit(member, 6, 1)
    commit(member, 5)

    assert commit(member, 2, allow_backwards=True) == 2

    assert [(message.partition, message.offset) for message in member.poll()] == [
        (0, number) for number in (2, 3, 4, 5)
    ]
    assert floor(node, partition=1) == 6
    assert node.broker.groups.describe("workers").generation == 1


def test_going_back_ends_leases_of_that_partition_and_is_durable_when_it_is_answered(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    commit(member, 3)
    messages = member.poll()
    wanted = [reports.PositionCommit("orders", 0, 1, "again")]

    pending = node.broker.groups.commit("workers", wanted, member_id=member.id, allow_backwards=True)

    assert not pending.is_done
    node.done(pending)
    assert set(outcomes(member.ack(messages))) == {"RECEIPT_HANDLE_EXPIRED"}
    again = restarted(node, keep="nothing")
    (position,) = again.broker.groups.positions("workers")
    assert (position.offset, position.metadata) == (1, "again")
    assert offsets(member.moved_to(again).poll()) == [1, 2, 3, 4, 5]


def test_a_commit_that_may_go_back_may_go_on_as_well(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    messages = member.poll(2)

    assert commit(member, 1, allow_backwards=True) == 1
    assert outcomes(member.ack(messages)) == ["RECEIPT_HANDLE_UNKNOWN", "ack"]
    assert commit(member, 2, allow_backwards=True) == 2
    assert commit(member, 99, allow_backwards=True) == 6


def test_a_commit_goes_back_no_further_than_the_log(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    commit(member, 5)
    node.done(node.broker.topics.truncate("orders", 0, 3))

    assert commit(member, 0, allow_backwards=True) == 3
    assert offsets(member.poll()) == [3, 4, 5]


def test_going_back_wakes_a_poll_that_waits(node: Node) -> None:
    node.create()
    node.publish(*numbered(2))
    member = Consumer(node)
    commit(member, 2)
    waiting = member.wait(wait_ms=30_000)

    commit(member, 1, allow_backwards=True)

    assert offsets(got(waiting.result())) == [1]


def test_what_is_pending_cannot_be_told_with_a_commit_that_may_go_back(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    wanted = [reports.PositionCommit("orders", 0, 4, pending=[(1, 2)])]

    with pytest.raises(InvalidRequest):
        node.broker.groups.commit("workers", wanted, allow_backwards=True)


def test_a_commit_that_is_not_the_members_to_make_is_refused(node: Node) -> None:
    node.create(partitions=2)
    member = Consumer(node)
    Consumer(node)
    mine = {one.partition for one in node.broker.groups.describe("workers").members[0].partitions}
    (other,) = {0, 1} - mine if member.id == node.broker.groups.describe("workers").members[0].member_id else mine

    with pytest.raises(PartitionNotAssigned):
        commit(member, 1, other)
    with pytest.raises(GroupNotFound):
        node.broker.groups.commit("nobody", [reports.PositionCommit("orders", 0, 1)], member_id="x")
    with pytest.raises(InvalidRequest):
        commit(member, -1, 1 - other)


def test_a_reset_goes_anywhere_and_ends_leases(node: Node, clock: ManualClock) -> None:
    node.create()
    node.publish(*numbered(4))
    clock.advance(10)
    at_ns = clock.wall_ns()
    node.publish(*numbered(4))
    member = Consumer(node)
    messages = member.poll()
    member.ack(messages[:6])
    groups = node.broker.groups

    planned = node.done(groups.reset("workers", "earliest", dry_run=True))
    assert [(one.offset, one.old_offset) for one in planned] == [(0, 6)]
    assert floor(node) == 6
    assert outcomes(member.ack(messages[6:7])) == ["ack"]

    for strategy, given, expected in (
        ("timestamp", {"time_ns": at_ns}, 4),
        ("offset", {"offset": 2}, 2),
        ("offset", {"offset": 8}, 8),
        ("latest", {}, 8),
        ("earliest", {}, 0),
    ):
        (reset,) = node.done(groups.reset("workers", strategy, **given))  # type: ignore[arg-type]
        assert reset.offset == expected
        assert offsets(member.poll()) == list(range(expected, 8))
    assert outcomes(member.ack(messages[7:])) != ["ack"]
    assert floor(restarted(node)) == 0


def test_a_reset_to_an_offset_that_no_partition_has_is_refused(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(4), partition=0)
    node.publish(*numbered(9), partition=1)
    Consumer(node)
    groups = node.broker.groups

    with pytest.raises(OffsetOutOfRange) as caught:
        groups.reset("workers", "offset", topic="orders", partition=0, offset=5)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (5, 0, 4)
    with pytest.raises(OffsetOutOfRange, match=r"offset 10 is outside \[0, 9\] of orders-0, orders-1"):
        groups.reset("workers", "offset", offset=10, dry_run=True)
    resets = node.done(groups.reset("workers", "offset", offset=5))

    assert [one.offset for one in resets] == [4, 5]


def test_a_dry_run_of_a_reset_begins_nothing(node: Node) -> None:
    node.create()
    node.create("others", partitions=2)
    Consumer(node)

    planned = node.done(node.broker.groups.reset("workers", "latest", topic="others", partition=1, dry_run=True))

    assert [(one.topic, one.partition) for one in planned] == [("others", 1)]
    assert [one.topic for one in node.broker.groups.positions("workers")] == ["orders"]
    with pytest.raises(TopicNotFound):
        node.broker.groups.reset("workers", "latest", topic="nowhere")
