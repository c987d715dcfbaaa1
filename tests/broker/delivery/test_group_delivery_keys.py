"""A key-shared group: the messages of a key go to one member at a time, in order."""

from random import Random

import pytest

from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, floor, got, offsets, outcomes, restarted


def commit(member: Consumer, offset: int, partition: int = 0, metadata: str = "") -> int:
    wanted = [reports.PositionCommit("orders", partition, offset, metadata)]
    (stored,) = member.node.done(member.node.broker.groups.commit(member.group, wanted, member_id=member.id))
    return stored.offset


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
