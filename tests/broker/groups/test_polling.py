"""Polls: who gets which messages, and what ends a poll that waits."""

import pytest

from goqueue.errors import (
    GroupNotFound,
)
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
