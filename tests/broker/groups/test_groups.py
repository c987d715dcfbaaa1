"""Groups: members without leases, and topics and groups that come and go."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import InvalidRequest
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, got, offsets, outcomes, restarted


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def commit(member: Consumer, offset: int, partition: int = 0, metadata: str = "") -> int:
    wanted = [reports.PositionCommit("orders", partition, offset, metadata)]
    (stored,) = member.node.done(member.node.broker.groups.commit(member.group, wanted, member_id=member.id))
    return stored.offset


# --- without leases ----------------------------------------------------------------------------


def test_with_offsets_nothing_is_leased_and_positions_are_committed_by_and_by(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node, ack="offsets", session_timeout_ms=300_000)

    first = member.poll(2)
    second = member.poll(2)
    node.pass_time(5.1)
    after_two = floor(node)
    node.pass_time(600, step=100)

    assert offsets(first + second) == [0, 1, 2, 3]
    assert all(message.deadline_ns == 0 for message in first + second)
    assert after_two == 2  # the last poll may still be worked on


def test_a_poll_that_brings_nothing_from_a_partition_says_that_its_messages_are_done(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(3))
    member = Consumer(node, ack="offsets", session_timeout_ms=300_000)

    assert len(member.poll()) == 3
    node.pass_time(5.1)
    assert floor(node) == 0  # the last poll may still be worked on
    waiting = member.wait(wait_ms=60_000)
    node.pass_time(5.1)
    assert floor(node) == 3

    node.publish(b"other", partition=1)
    assert [message.value for message in got(waiting.result())] == [b"other"]
    node.pass_time(11)
    assert floor(node, partition=1) == 0


def test_the_interval_of_auto_commit_is_that_of_the_member(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(3))
    node.publish(*numbered(3), partition=1)
    asked = {"ack": "offsets", "session_timeout_ms": 300_000}
    quick = Consumer(node, "quick", auto_commit_interval_ms=200, **asked)
    slow = Consumer(node, "slow", auto_commit_interval_ms=60_000, **asked)

    for member in (quick, slow):
        member.poll()
        member.poll()
    node.pass_time(0.3)
    assert (floor(node, "quick"), floor(node, "slow")) == (3, 0)
    node.pass_time(58, step=1)
    assert floor(node, "slow") == 0
    node.pass_time(3, step=1)
    assert floor(node, "slow") == 3


@pytest.mark.parametrize("wrong_ms", [0, 99, 3_600_001])
def test_an_interval_of_auto_commit_that_cannot_be_is_refused(node: Node, wrong_ms: int) -> None:
    node.create()

    with pytest.raises(InvalidRequest, match="auto_commit_interval"):
        Consumer(node, ack="offsets", auto_commit_interval_ms=wrong_ms)


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_ms"), [(30_000, 3_000), (9_000, 3_000), (3_000, 1_000), (1_000, 333)]
)
def test_a_member_is_told_to_be_heard_of_three_times_per_session(
    node: Node, session_ms: int, heartbeat_ms: int
) -> None:
    node.create()

    assert Consumer(node, session_timeout_ms=session_ms).joined.heartbeat_interval_ms == heartbeat_ms


def test_a_member_without_leases_that_leaves_has_committed_and_one_that_is_lost_has_not(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    leaves = Consumer(node, ack="offsets")
    leaves.poll(2)
    leaves.leave()
    assert floor(node) == 2

    lost = Consumer(node, ack="offsets", session_timeout_ms=6_000)
    lost.poll(2)
    node.pass_time(7)

    assert offsets(Consumer(node, ack="offsets").poll()) == [2, 3, 4, 5]


def test_by_hand_means_only_by_hand(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node, ack="offsets", auto_commit=False, session_timeout_ms=300_000)
    polled = member.polled(3)
    member.poll(1)
    node.pass_time(11)
    assert floor(node) == 0

    assert commit(member, polled.polled.batches[0].next_offset) == 3
    again = restarted(node)

    assert offsets(member.moved_to(again).poll()) == [3, 4, 5]


def test_the_next_offset_never_steps_over_what_was_not_handed_out(node: Node, clock: ManualClock) -> None:
    node.create()
    later_ns = clock.wall_ns() + 60 * SECOND
    node.messages(NewMessage(b"a"), NewMessage(b"late", deliver_at_ns=later_ns), NewMessage(b"c"))
    member = Consumer(node, ack="offsets", auto_commit=False, session_timeout_ms=300_000)

    polled = member.polled()

    assert offsets(got(polled)) == [0, 2]
    assert polled.polled.batches[0].next_offset == 1
    assert commit(member, 3) == 1
    node.pass_time(61, step=1)
    assert offsets(member.poll()) == [1]


def test_leases_that_expire_are_counted_by_group_and_member(node: Node) -> None:
    node.create(visibility_timeout="5s", backoff_initial="1s", max_deliveries=100)
    node.publish(*numbered(3))
    idle = Consumer(node, mode="shared", session_timeout_ms=300_000)
    other = Consumer(node, mode="shared", session_timeout_ms=300_000)
    idle.poll(2)
    other.ack(other.poll(1))
    node.pass_time(5.1)

    info = node.broker.groups.describe("workers")
    assert info.expired_leases == 2
    assert {member.member_id: member.expired_leases for member in info.members} == {idle.id: 2, other.id: 0}

    idle.leave()
    info = node.broker.groups.describe("workers")
    assert (info.expired_leases, [member.expired_leases for member in info.members]) == (2, [0])


# --- topics that come and go -------------------------------------------------------------------


def test_a_topic_that_is_made_anew_begins_anew_for_its_groups(node: Node) -> None:
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node)
    messages = member.poll(3)
    member.ack(messages[:2])
    waiting = member.wait(10, wait_ms=1)

    node.done(node.broker.topics.delete("orders"))
    node.tick(1)
    gone = member.polled()
    node.create()
    node.publish(b"fresh")
    node.tick(1)

    assert waiting.is_done
    assert got(gone) == []
    assert outcomes(member.ack(messages[2:])) == ["RECEIPT_HANDLE_UNKNOWN"]
    assert [(message.offset, message.value) for message in member.poll()] == [(0, b"fresh")]


def test_after_a_kill_a_topic_that_was_deleted_does_not_trouble_its_groups(node: Node) -> None:
    node.create()
    node.create("others")
    node.publish(b"a", topic="others")
    member = Consumer(node, topics=("orders", "others"))
    node.done(node.broker.topics.delete("orders"))

    again = restarted(node)

    assert [message.value for message in member.moved_to(again).poll()] == [b"a"]


def ledger_keys(node: Node) -> set[bytes]:
    """The keys whose last fact is no tombstone."""
    last = dict(node.leader().ledger.facts())
    return {key for key, value in last.items() if value is not None}


def test_a_group_that_is_deleted_leaves_nothing_in_the_ledger(node: Node) -> None:
    node.create()
    node.publish(*numbered(20))
    before = ledger_keys(node)
    for restarts in (False, True):
        member = Consumer(node, session_timeout_ms=3_600_000)
        for message in member.poll(8):
            member.ack([message])
        node.broker.partitions.delivery(node.leader()).groups["workers"].stored.write_whole()  # its changes begin again
        member.ack(member.poll(1))
        if restarts:
            node = restarted(node)
        node.done(node.broker.groups.delete("workers"))

        assert ledger_keys(node) == before
