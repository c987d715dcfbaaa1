"""Groups on a broker: positions, modes, keys, and topics that come and go under them."""

from random import Random

import pytest

from goqueue.clock import SECOND
from goqueue.errors import GroupNotFound, InvalidRequest, OffsetOutOfRange, PartitionNotAssigned, TopicNotFound
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, floor, got, offsets, outcomes, restarted


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def commit(member: Consumer, offset: int, partition: int = 0, metadata: str = "") -> int:
    wanted = [reports.PositionCommit("orders", partition, offset, metadata)]
    (stored,) = member.node.done(member.node.broker.groups.commit(member.group, wanted, member_id=member.id))
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


# --- key-shared --------------------------------------------------------------------------------


def keyed(node: Node, count: int, keys: int) -> None:
    node.messages(*(NewMessage(b"%d" % number, key=b"k%d" % (number % keys)) for number in range(count)))


def test_a_key_is_with_one_member_at_a_time(node: Node) -> None:
    node.create()
    keyed(node, 6, 2)
    one, other = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared")

    first = one.poll(1)
    second = other.poll()
    third = one.poll()
    one.ack(first)
    fourth = other.poll()

    assert offsets(first) == [0]
    assert offsets(second) == [1, 3, 5]
    assert third == []
    assert offsets(fourth) == [2, 4]


def test_a_poisoned_key_holds_back_itself_alone_and_can_be_seen(node: Node, clock: ManualClock) -> None:
    node.create(max_deliveries=2, backoff_initial="5s")
    keyed(node, 8, 2)
    member = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    (bad,) = member.poll(1)
    member.settle("nack", [bad])

    others = member.poll()
    (blocked,) = node.broker.groups.blocked("workers")
    member.ack(others)

    assert {message.key for message in others} == {b"k1"}
    assert (blocked.key, blocked.offset, blocked.member_id, blocked.waiting) == (b"k0", 0, "", 3)
    node.pass_time(5.1)
    (again,) = member.poll(1)
    assert (again.offset, again.count) == (0, 2)
    member.settle("nack", [again])
    assert offsets(member.poll()) == [2, 4, 6]
    assert node.values("orders.dlq") == [b"0"]


def test_what_is_given_back_goes_before_later_messages_of_its_key(node: Node) -> None:
    node.create()
    keyed(node, 2, 1)
    one, other = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared")
    first, second = one.poll()
    one.settle("release", [first])
    assert other.poll() == []
    one.leave()

    assert offsets(other.poll(1)) == [first.offset]
    assert other.poll() == []
    assert second.offset == 1


def test_a_commit_below_a_key_that_is_held_leaves_nothing_behind(node: Node) -> None:
    node.create()
    keyed(node, 6, 1)
    one, other = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared")
    messages = one.poll(2)
    assert other.poll() == []
    commit(other, 4)

    assert outcomes(one.ack(messages)) == ["RECEIPT_HANDLE_UNKNOWN"] * 2
    assert offsets(other.poll()) == [4, 5]


def test_a_key_whose_message_is_gone_from_the_log_is_free(node: Node, clock: ManualClock) -> None:
    node.create(segment_bytes=1_024, retention="60s", visibility_timeout="12h", backoff_initial="1h", backoff_max="1h")
    for _ in range(4):
        node.messages(*(NewMessage(b"x" * 80, key=b"k") for _ in range(10)))
    member = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    member.settle("nack", member.poll(1))
    assert member.poll() == []
    clock.advance(61)
    node.messages(*(NewMessage(b"y" * 80, key=b"k") for _ in range(15)))
    node.pass_time(60, step=10)
    assert node.leader().log.start_offset > 30

    messages = member.poll()

    assert offsets(messages) == list(range(node.leader().log.start_offset, 55))


def test_keys_are_held_over_a_kill(node: Node) -> None:
    node.create(backoff_initial="20s")
    keyed(node, 6, 3)
    one = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    other = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    leased, failed = one.poll(2)
    one.settle("nack", [failed])

    again = restarted(node)
    one, other = one.moved_to(again), other.moved_to(again)

    assert offsets(other.poll()) == [2, 5]
    one.ack([leased])
    assert offsets(other.poll()) == [3]
    again.pass_time(20.1)
    assert offsets(one.poll(1)) == [1]


def test_a_group_that_was_key_shared_and_is_not_any_more_holds_nothing_back(node: Node) -> None:
    node.create()
    keyed(node, 6, 1)
    member = Consumer(node, mode="key-shared")
    member.poll(1)
    assert member.poll() == []
    member.leave()

    other = Consumer(node, mode="shared")

    assert offsets(other.poll()) == [0, 1, 2, 3, 4, 5]


def test_a_poll_finds_what_lies_behind_thousands_of_messages_of_a_held_key(node: Node) -> None:
    node.create()
    node.messages(NewMessage(b"first", key=b"hot"))
    one, other = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared")
    one.poll()
    for _ in range(25):
        node.messages(*(NewMessage(b"v", key=b"hot") for _ in range(1_000)))
    node.messages(NewMessage(b"cold", key=b"cold"))

    waiting = other.wait(wait_ms=1_000)

    assert [message.value for message in got(node.done(waiting))] == [b"cold"]


@pytest.mark.parametrize("seed", range(4))
def test_members_that_fail_and_leave_by_chance_get_every_key_in_order(node: Node, seed: int) -> None:
    rng = Random(seed)
    node.create(max_deliveries=1_000, visibility_timeout="10s", backoff_initial="1s", backoff_max="2s")
    keyed(node, 150, 7)
    members = [Consumer(node, mode="key-shared", session_timeout_ms=300_000) for _ in range(3)]
    held: dict[str, list[Got]] = {member.id: [] for member in members}
    done: dict[bytes | None, list[int]] = {}

    for step in range(3_000):
        member = rng.choice(members)
        mine = held[member.id]
        action = rng.choice(("poll", "ack", "ack", "nack", "time", "silence", "leave")) if step < 500 else "work"
        if action in ("poll", "work"):
            mine += member.poll(rng.randrange(1, 9))
        if action in ("ack", "work"):
            for message in mine[:4] if action == "ack" else mine:  # in the order in which they came
                if outcomes(member.ack([message])) == ["ack"]:
                    done.setdefault(message.key, []).append(message.offset)
            del mine[: 4 if action == "ack" else len(mine)]
        elif action == "nack" and mine:
            first = mine[0]
            failed = [message for message in mine if message.key == first.key]  # and what comes after it
            member.settle("nack", failed)
            held[member.id] = [message for message in mine if message.key != first.key]
        elif action == "leave" and rng.random() < 0.2:
            member.leave()
            members.remove(member)
            members.append(Consumer(node, mode="key-shared", session_timeout_ms=300_000))
            held[members[-1].id] = []
        elif action == "silence":
            node.pass_time(11, step=1)
            for messages in held.values():
                messages.clear()
        node.pass_time(0.5, step=0.5)
        for one in members:
            node.broker.groups.heartbeat("workers", one.id)
        with_keys = {
            (message.key, owner)
            for owner, messages in held.items()
            for message in messages
            if owner in {member.id for member in members} and message.deadline_ns > node.clock.wall_ns()
        }
        assert len(with_keys) == len({key for key, _ in with_keys}), "two members have one key"
        if floor(node) == 150:
            break

    assert floor(node) == 150
    assert sum(map(len, done.values())) == 150
    for key, found in done.items():
        assert found == sorted(found), f"{key!r} out of order"


# --- topics that come and go -------------------------------------------------------------------


def test_a_topic_that_is_made_anew_begins_anew_for_its_groups(node: Node) -> None:
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node)
    messages = member.poll(3)
    member.ack(messages[:2])
    waiting = member.wait(10, wait_ms=1)

    node.done(node.broker.delete_topic("orders"))
    node.tick(1)
    gone = member.polled()
    node.create()
    node.publish(b"fresh")
    node.tick(1)

    assert waiting.is_done
    assert got(gone) == []
    assert outcomes(member.ack(messages[2:])) == ["RECEIPT_HANDLE_UNKNOWN"]
    assert [(message.offset, message.value) for message in member.poll()] == [(0, b"fresh")]


def test_a_poll_that_waits_while_its_topic_is_deleted_is_answered(node: Node) -> None:
    node.create()
    node.create("others")
    member = Consumer(node, topics=("orders", "others"))
    waiting = member.wait(wait_ms=30_000)

    node.done(node.broker.delete_topic("orders"))
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


def test_after_a_kill_a_topic_that_was_deleted_does_not_trouble_its_groups(node: Node) -> None:
    node.create()
    node.create("others")
    node.publish(b"a", topic="others")
    member = Consumer(node, topics=("orders", "others"))
    node.done(node.broker.delete_topic("orders"))

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
        node.broker.delivery(node.leader()).groups["workers"].stored.write_whole()  # its changes begin again
        member.ack(member.poll(1))
        if restarts:
            node = restarted(node)
        node.done(node.broker.groups.delete("workers"))

        assert ledger_keys(node) == before
