"""Counting the dead letters of a partition, and finding them."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import (
    InvalidRequest,
    TopicNotFound,
)
from goqueue.record.header import Priority
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.reports import DeadLetterFilter
from tests.broker.brokers import Node
from tests.broker.dead_lettered import (
    ALL,
    answered,
    create,
    dead_letter,
    listed,
    message_of,
    numbered,
    numbers,
    patient,
    redriven,
)

START_NS = ManualClock().wall_ns()


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    create(node)
    return node


# --- counting --------------------------------------------------------------------------------------


def test_letters_are_counted_by_reason_group_error_and_time(node: Node) -> None:
    dead_letter(node, b"a", b"b", reason="TIMEOUT", error="slow")
    node.tick(5)
    dead_letter(node, b"c", partition=1, group="audit")

    queue = node.broker.dead_letters.describe("orders")

    assert (queue.topic, queue.dlq_topic, queue.messages) == ("orders", "orders.dlq", 3)
    assert queue.by_reason == {"TIMEOUT": 2, "REJECTED": 1}
    assert queue.by_group == {"billing": 2, "audit": 1}
    assert queue.by_error == {"slow": 2, "bad": 1}
    assert queue.oldest_ns == START_NS
    assert queue.newest_ns == START_NS + 5 * SECOND
    assert queue.redrives == []


def test_counts_follow_what_dies_and_what_is_put_back(node: Node) -> None:
    dead_letter(node, *numbered(4))
    assert node.broker.dead_letters.describe("orders").by_reason == {"REJECTED": 4}
    node.tick(1)
    dead_letter(node, b"late", reason="EXPIRED")
    assert node.broker.dead_letters.describe("orders").by_reason == {"REJECTED": 4, "EXPIRED": 1}

    redriven(node, DeadLetterFilter(reason="REJECTED"))

    queue = node.broker.dead_letters.describe("orders")
    assert (queue.messages, queue.by_reason) == (1, {"EXPIRED": 1})
    assert queue.oldest_ns == queue.newest_ns == START_NS + SECOND


def test_counts_follow_retention(node: Node) -> None:
    dead_letter(node, *[b"x" * 400] * 3, reason="TIMEOUT")
    node.done(node.broker.topics.alter("orders.dlq", {"segment_bytes": 65_536, "retention": "60s"}))
    assert node.broker.dead_letters.describe("orders").messages == 3
    dead_letter(node, *[b"x" * 60_000] * 3, reason="EXPIRED")
    node.pass_time(120, step=10)
    dead_letter(node, b"new")
    node.pass_time(30, step=10)

    queue = node.broker.dead_letters.describe("orders")

    assert node.leader("orders.dlq").log.start_offset > 3
    assert queue.messages == len(listed(node)) < 7
    assert "TIMEOUT" not in queue.by_reason
    assert queue.by_reason["REJECTED"] == 1


def test_all_queues_are_listed_by_the_name_of_their_topic(node: Node) -> None:
    node.create("a.dlq")
    node.create("plain")
    dead_letter(node, b"a")

    assert [(queue.topic, queue.messages) for queue in node.broker.dead_letters.queues()] == [("a", 0), ("orders", 1)]


def test_a_topic_without_dead_letters_has_none_and_one_that_is_not_there_is_not_found(node: Node) -> None:
    node.create("plain")

    queue = node.broker.dead_letters.describe("plain")
    assert (queue.dlq_topic, queue.messages, queue.oldest_ns, queue.by_reason) == ("plain.dlq", 0, None, {})
    assert node.broker.dead_letters.list("plain", ALL) == []
    assert node.broker.dead_letters.plan("plain", ALL).matched == 0
    assert node.broker.dead_letters.redrive("plain", ALL).result().state == "done"
    for ask in (
        lambda: node.broker.dead_letters.describe("nowhere"),
        lambda: node.broker.dead_letters.list("nowhere", ALL),
        lambda: node.broker.dead_letters.plan("nowhere", ALL),
        lambda: node.broker.dead_letters.redrive("nowhere", ALL),
    ):
        with pytest.raises(TopicNotFound):
            ask()


def test_the_name_of_the_queue_stands_for_its_topic(node: Node) -> None:
    dead_letter(node, b"a")

    assert node.broker.dead_letters.describe("orders.dlq").topic == "orders"
    assert answered(node, node.broker.dead_letters.redrive("orders.dlq", ALL)).topic == "orders"


def test_more_letters_than_one_question_may_count_are_counted_by_and_by(node: Node) -> None:
    dead_letters = patient(node, counted_max=5, counted_step=5, stretch_bytes=600)
    dead_letter(node, *numbered(40))

    first = dead_letters.describe("orders")
    assert first.messages == 40
    assert 5 <= first.by_reason["REJECTED"] < 15

    node.pass_time(1)
    assert dead_letters.describe("orders").by_reason == {"REJECTED": 40}


def test_a_queue_that_is_deleted_and_made_again_is_another_one(node: Node) -> None:
    dead_letter(node, *numbered(3))
    assert node.broker.dead_letters.describe("orders").messages == 3
    node.done(node.broker.topics.delete("orders.dlq"))
    assert node.broker.dead_letters.describe("orders").messages == 0
    node.create("orders.dlq", partitions=2)
    dead_letter(node, b"new", reason="TIMEOUT")

    assert node.broker.dead_letters.describe("orders").by_reason == {"TIMEOUT": 1}
    assert listed(node) == [b"new"]


def test_a_queue_that_was_made_again_unseen_is_another_one_too(node: Node) -> None:
    dead_letter(node, *numbered(3))
    assert node.broker.dead_letters.describe("orders").messages == 3
    node.done(node.broker.topics.delete("orders.dlq"))
    node.create("orders.dlq", partitions=2)
    dead_letter(node, b"new", reason="TIMEOUT")

    assert node.broker.dead_letters.describe("orders").by_reason == {"TIMEOUT": 1}
    assert listed(node) == [b"new"]


# --- looking at them -------------------------------------------------------------------------------


def test_a_list_has_the_newest_last_over_all_partitions(node: Node) -> None:
    for turn, partition in enumerate((1, 0, 0, 1)):
        dead_letter(node, b"%d" % turn, partition=partition)
        node.tick(1)

    assert listed(node) == [b"0", b"1", b"2", b"3"]
    assert listed(node, skip=1, limit=2) == [b"1", b"2"]
    assert listed(node, skip=4) == []


def test_a_letter_is_told_whole(node: Node) -> None:
    dead_letter(node, b"v", key=b"k", headers={"color": "red"}, attempts=2, origin="orders:1:7", priority=Priority.HIGH)

    (letter,) = node.broker.dead_letters.list("orders", ALL)

    assert (letter.partition, letter.offset) == (0, 0)
    assert (letter.reason, letter.error, letter.group, letter.member) == ("REJECTED", "bad", "billing", "m")
    assert (letter.attempts, letter.redrives, letter.dead_at_ns) == (2, 0, START_NS)
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("orders", 1, 7)
    message = message_of(letter)
    assert (message.key, message.value, message.headers["color"], message.priority) == (
        b"k",
        b"v",
        "red",
        Priority.HIGH,
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (DeadLetterFilter(reason="TIMEOUT"), [b"0"]),
        (DeadLetterFilter(group="audit"), [b"1"]),
        (DeadLetterFilter(key=b"c-2"), [b"2"]),
        (DeadLetterFilter(key_prefix=b"c-"), [b"2", b"3"]),
        (DeadLetterFilter(headers={"color": "red"}), [b"3"]),
        (DeadLetterFilter(error_contains="such"), [b"4"]),
        (DeadLetterFilter(from_time_ns=START_NS + 5 * SECOND), [b"5", b"6"]),
        (DeadLetterFilter(from_time_ns=START_NS + 1, to_time_ns=START_NS + 2 * SECOND), [b"1"]),
        (DeadLetterFilter(partition=1), [b"6"]),
        (DeadLetterFilter(partition=7), []),
        (DeadLetterFilter(offsets=[0, 3, 99]), [b"0", b"3", b"6"]),
        (DeadLetterFilter(partition=0, offsets=[0]), [b"0"]),
        (DeadLetterFilter(min_attempts=4), [b"5"]),
        (DeadLetterFilter(reason="REJECTED", group="audit", key=b"c-2"), []),
    ],
)
def test_a_filter_finds_counts_and_puts_back_the_same(node: Node, wanted: DeadLetterFilter, found: list[bytes]) -> None:
    letters: list[dict[str, object]] = [
        {"reason": "TIMEOUT"},
        {"group": "audit"},
        {"key": b"c-2"},
        {"key": b"c-3", "headers": {"color": "red"}},
        {"error": "no such order"},
        {"attempts": 4},
        {"partition": 1},
    ]
    for number, letter in enumerate(letters):
        dead_letter(node, b"%d" % number, **letter)  # type: ignore[arg-type]
        node.tick(1)

    assert listed(node, wanted) == found
    plan = node.broker.dead_letters.plan("orders", wanted)
    assert (plan.matched, len(plan.sample)) == (len(found), len(found))
    assert redriven(node, wanted).redriven == len(found)
    assert sorted(node.values() + node.values(partition=1)) == found
    assert listed(node, wanted) == []
    assert len(listed(node)) == 7 - len(found)


@pytest.mark.parametrize("page", [{"limit": 0}, {"limit": 10_001}, {"skip": -1}])
def test_a_page_that_cannot_be_is_refused(node: Node, page: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        node.broker.dead_letters.list("orders", ALL, **page)


def test_a_page_of_large_letters_ends_early(node: Node) -> None:
    node.done(node.broker.topics.alter("orders.dlq", {"max_message_bytes": 8_000_000}))
    for _ in range(4):
        dead_letter(node, b"x" * 5_000_000)

    assert len(listed(node)) == 3
    assert len(listed(node, skip=3)) == 1


def test_dead_letters_that_no_broker_wrote_are_dead_letters_all_the_same(node: Node) -> None:
    node.publish(b"by hand", topic="orders.dlq")

    (letter,) = node.broker.dead_letters.list("orders", ALL)
    assert (letter.reason, letter.origin_topic, letter.origin_partition, letter.attempts) == ("", "", -1, 0)
    assert node.broker.dead_letters.describe("orders").by_reason == {}
    assert numbers(redriven(node)) == ("done", 1, 0, 0, 1)
    assert numbers(redriven(node, target_topic="orders")) == ("done", 1, 1, 0, 0)


# --- for whom --------------------------------------------------------------------------------------
