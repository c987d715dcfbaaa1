"""Polls that are repeated because their answer was lost: the same messages again, at once, as if for the first time."""

from errno import EIO, ENOSPC

import pytest

from goqueue.errors import BrokerUnavailable, InvalidRequest, ReadFailed, StorageFull
from goqueue.groups.config import GroupConfig
from goqueue.record.header import Priority
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, floor, got, offsets, outcomes, restarted

EXPIRED = "RECEIPT_HANDLE_EXPIRED"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def places(messages: list[Got]) -> set[tuple[int, int]]:
    return {(message.partition, message.offset) for message in messages}


def damaged(node: Node, value: bytes) -> None:
    assert isinstance(node.disk, MemoryDisk)
    for path in node.disk.paths():
        if path.endswith(".log") and value in node.disk.read(path):
            node.disk.flip_bit(path, node.disk.read(path).index(value))


# --- leases ------------------------------------------------------------------------------------


def test_a_repeated_poll_brings_the_same_messages_and_only_its_own_receipts_settle_them(node: Node) -> None:
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node)
    before = member.poll(1, number=1)
    lost = member.poll(2, number=2)

    again = member.poll(2, number=2)

    assert offsets(lost) == offsets(again) == [1, 2]
    assert [message.count for message in again] == [1, 1]
    assert outcomes(member.ack(lost)) == [EXPIRED, EXPIRED]
    assert outcomes(member.ack(again + before)) == ["ack"] * 3
    assert floor(node) == 3
    assert offsets(member.poll(number=3)) == [3, 4]


def test_a_poll_may_be_repeated_as_often_as_it_takes(node: Node, clock: ManualClock) -> None:
    node.create(visibility_timeout="5s")
    node.publish(*numbered(3))
    member = Consumer(node)
    first = member.poll(number=1)

    for _ in range(4):
        node.pass_time(3)
        again = member.poll(number=1)

    assert offsets(again) == offsets(first)
    assert {message.count for message in again} == {1}
    assert again[0].deadline_ns - clock.wall_ns() == 5_000_000_000
    assert outcomes(member.ack(again)) == ["ack"] * 3


def test_nobody_else_gets_the_messages_of_a_lost_answer_before_the_poll_is_repeated(node: Node) -> None:
    node.create()
    node.publish(*numbered(4))
    member, other = Consumer(node, mode="shared"), Consumer(node, mode="shared")
    lost = member.poll(number=1)
    waiting = other.wait(wait_ms=30_000)

    again = member.poll(number=1)

    assert len(lost) == 4
    assert places(again) == places(lost)
    assert not waiting.is_done


def test_a_poll_that_brought_nothing_brings_what_there_is_when_it_is_repeated(node: Node) -> None:
    node.create()
    member = Consumer(node)
    assert member.poll(number=1) == []
    node.publish(b"a")

    assert offsets(member.poll(number=1)) == [0]


@pytest.mark.parametrize("ack", ["messages", "offsets"])
def test_a_repeated_poll_with_more_room_brings_more_and_all_of_it_again(node: Node, ack: str) -> None:
    node.create()
    node.publish(*numbered(9))
    member = Consumer(node, ack=ack)

    sizes = [offsets(member.poll(count, number=1)) for count in (2, 5, 5, 7, 3)]

    assert sizes == [list(range(count)) for count in (2, 5, 5, 7, 3)]
    assert offsets(member.poll(number=2)) == list(range(3, 9))


def test_what_was_settled_since_does_not_come_again(node: Node) -> None:
    node.create()
    node.publish(*numbered(4))
    member = Consumer(node)
    messages = member.poll(3, number=1)
    member.ack(messages[:1])
    member.settle("nack", messages[1:2], delay=60)

    assert offsets(member.poll(1, number=1)) == [2]
    assert offsets(member.poll(number=2)) == [3]


def test_a_lease_that_has_run_out_counts_though_its_answer_was_lost(node: Node) -> None:
    node.create(visibility_timeout="5s", backoff_initial="1ms")
    node.publish(b"a")
    member = Consumer(node)
    member.poll(number=1)
    node.pass_time(6)

    (again,) = member.poll(number=1)

    assert again.count == 2


def test_what_is_over_the_limits_of_the_repeated_poll_is_released_uncounted(node: Node) -> None:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(*numbered(3), partition=partition)
    member = Consumer(node)
    lost = member.poll(number=1)

    again = member.poll(2, number=1)
    rest = member.poll(number=2)

    assert len(lost) == 6
    assert len(again) == 2
    assert places(again) | places(rest) == places(lost)
    assert {message.count for message in rest} == {1}
    assert member.polled(number=3).polled.in_flight == 6


def test_a_repeated_poll_keeps_to_its_room(node: Node) -> None:
    node.create()
    node.publish(*[b"x" * 1_000] * 5)
    member = Consumer(node)
    member.poll(number=1)

    assert offsets(member.poll(number=1, max_bytes=2_500)) == [0, 1]
    assert offsets(member.poll(number=1, max_bytes=1)) == [0]
    assert offsets(member.poll(number=2)) == [1, 2, 3, 4]


def test_messages_come_again_in_the_order_of_their_lanes(node: Node) -> None:
    node.create()
    node.messages(*(NewMessage(b"v", priority=lane) for lane in (Priority.NORMAL, Priority.LOW, Priority.CRITICAL)))
    member = Consumer(node)
    member.poll(number=1)

    assert offsets(member.poll(2, number=1)) == [2, 0]
    assert offsets(member.poll(1, number=1)) == [2]


def test_max_in_flight_does_not_stop_a_repeated_poll(node: Node) -> None:
    node.create(max_in_flight=2)
    node.publish(*numbered(3))
    member = Consumer(node)
    member.poll(number=1)

    polled = member.polled(number=1)

    assert offsets(got(polled)) == [0, 1]
    assert polled.polled.in_flight == 2
    assert member.polled(number=2).polled.reason == "max_in_flight"


def test_the_messages_of_a_partition_that_moved_are_released(node: Node) -> None:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(b"v", partition=partition)
    member = Consumer(node)
    assert len(member.poll(number=1)) == 2
    other = Consumer(node)
    (moved,) = other.joined.partitions

    again = member.poll(number=1)

    assert [message.partition for message in again] == [1 - moved.partition]
    (released,) = other.poll()
    assert (released.partition, released.count) == (moved.partition, 1)


def test_a_key_keeps_its_order_when_its_poll_is_repeated(node: Node) -> None:
    node.create()
    node.messages(*(NewMessage(b"%d" % number, key=b"k%d" % (number % 2)) for number in range(6)))
    member, other = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared")
    lost = member.poll(4, number=1)

    again = member.poll(number=1)

    assert offsets(again) == offsets(lost) == [0, 1, 2, 3]
    assert other.poll() == []
    member.ack(again)
    assert offsets(other.poll()) == [4, 5]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_poll_may_be_repeated_after_a_restart(node: Node, snapshot: bool) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    lost = member.poll(2, number=1)
    if snapshot:
        node.broker.partitions.delivery(node.leader()).groups["workers"].stored.write_whole()
        node.workers.run_all()

    member = member.moved_to(restarted(node))
    again = member.poll(2, number=1)

    assert offsets(again) == offsets(lost) == [0, 1]
    assert outcomes(member.ack(lost)) == [EXPIRED, EXPIRED]
    assert outcomes(member.ack(again)) == ["ack", "ack"]
    assert offsets(member.poll(number=2)) == [2]


def test_a_restart_after_a_repeated_poll_knows_which_receipts_are_good(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    lost = member.poll(number=1)
    again = member.poll(2, number=1)

    member = member.moved_to(restarted(node))

    assert outcomes(member.ack(lost)) == [EXPIRED] * 3
    assert outcomes(member.ack(again)) == ["ack", "ack"]
    (rest,) = member.poll(number=2)
    assert (rest.offset, rest.count) == (2, 1)


def test_a_process_that_joins_under_the_same_id_repeats_no_poll(node: Node) -> None:
    node.create()
    node.publish(*numbered(2))
    member = Consumer(node, member_id="me")
    assert offsets(member.poll(1, number=1)) == [0]

    assert offsets(Consumer(node, member_id="me").poll(number=1)) == [1]


def test_a_member_without_numbers_repeats_nothing(node: Node) -> None:
    node.create()
    node.publish(*numbered(2))
    member = Consumer(node)

    assert [offsets(member.poll(1)) for _ in range(3)] == [[0], [1], []]


@pytest.mark.parametrize("number", [0, -1, 2**63])
def test_a_number_that_no_poll_can_have_is_refused(node: Node, number: int) -> None:
    node.create()
    member = Consumer(node)

    with pytest.raises(InvalidRequest):
        member.poll(number=number)


# --- polls that wait ---------------------------------------------------------------------------


def test_a_poll_that_waits_gives_way_to_the_same_one(node: Node) -> None:
    node.create()
    member = Consumer(node)
    first = member.wait(number=1, wait_ms=30_000)
    second = member.wait(number=1, wait_ms=30_000)

    assert first.is_done
    with pytest.raises(BrokerUnavailable):
        first.result()
    node.publish(b"a")
    assert offsets(got(second.result())) == [0]


def test_a_poll_that_waits_is_left_alone_by_other_numbers_and_members(node: Node) -> None:
    node.create()
    member, other = Consumer(node, mode="shared"), Consumer(node, mode="shared")
    waiting = member.wait(number=1, wait_ms=30_000)

    other.poll(number=1)
    member.poll(number=2)

    assert not waiting.is_done


def test_what_a_waiting_poll_brought_comes_again(node: Node) -> None:
    node.create()
    member = Consumer(node)
    waiting = member.wait(number=1, wait_ms=30_000)
    node.publish(b"a")
    lost = got(waiting.result())

    assert offsets(member.poll(number=1)) == offsets(lost) == [0]


# --- without leases ----------------------------------------------------------------------------


def test_without_leases_a_repeated_poll_brings_the_same_messages(node: Node) -> None:
    node.create(partitions=2)
    for partition in (0, 1):
        node.publish(*numbered(4), partition=partition)
    member = Consumer(node, ack="offsets", auto_commit=False)
    before = member.poll(3, number=1)
    lost = member.poll(3, number=2)

    again = member.poll(3, number=2)
    rest = member.poll(number=3)

    assert places(lost) == places(again)
    assert len(before + again + rest) == len(places(before + again + rest)) == 8


def test_without_leases_what_is_over_the_limits_comes_with_the_next_poll(node: Node) -> None:
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node, ack="offsets", auto_commit=False)
    member.poll(number=1)

    again = member.polled(2, number=1)

    assert offsets(got(again)) == [0, 1]
    assert again.polled.batches[0].next_offset == 2
    assert offsets(member.poll(number=2)) == [2, 3, 4]


def test_a_repeated_poll_does_not_say_that_its_messages_are_processed(node: Node) -> None:
    node.create()
    node.publish(*numbered(4))
    member = Consumer(node, ack="offsets", session_timeout_ms=GroupConfig().session_timeout_ms_max)
    member.poll(2, number=1)
    member.poll(2, number=2)

    member.poll(2, number=2)
    node.pass_time(11)
    after_two = floor(node)
    member.poll(number=3)
    node.pass_time(11)

    assert after_two == 2
    assert floor(node) == 4


def test_a_member_that_leaves_after_a_repeated_poll_has_processed_it(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node, ack="offsets")
    member.poll(2, number=1)
    member.poll(2, number=1)

    member.leave()

    assert floor(node) == 2


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["messages", "offsets"])
def test_a_repeated_poll_reports_the_same_damage(node: Node, ack: str) -> None:
    node.create()
    node.publish(b"first-value", b"second-value", b"third-value")
    damaged(node, b"second-value")
    member = Consumer(node, ack=ack)

    lost, again, after = (member.polled(number=number).polled for number in (1, 1, 2))

    assert [[(gap.first_offset, gap.next_offset) for gap in one.gaps] for one in (lost, again, after)] == [
        [(1, 2)],
        [(1, 2)],
        [],
    ]


def test_damage_that_came_alone_is_reported_again_with_what_is_there_now(node: Node) -> None:
    node.create()
    node.publish(b"only-value")
    damaged(node, b"only-value")
    member = Consumer(node)
    lost = member.polled(number=1)
    assert (got(lost), len(lost.polled.gaps)) == ([], 1)
    node.publish(b"next")

    again = member.polled(number=1)

    assert offsets(got(again)) == [1]
    assert [gap.first_offset for gap in again.polled.gaps] == [0]


# --- the disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["messages", "offsets"])
def test_what_cannot_be_read_again_is_released_and_comes_later(disk: MemoryDisk, clock: ManualClock, ack: str) -> None:
    node = Node(disk, clock)
    node.create()
    node.publish(*[b"x" * 6_000] * 3)
    faulty = FaultyDisk(disk.crash(keep="everything"), seed=1)  # nothing of the log is in memory after a restart
    node = Node(faulty, clock)
    member = Consumer(node, ack=ack)
    lost = member.poll(number=1)

    for _ in range(3):
        faulty.fail_next("pread", EIO, path_suffix="log/00000000000000000000.log")
    failed = 0
    for _ in range(3):
        try:
            again = member.poll(number=1)
        except ReadFailed:
            failed += 1
    again = again if failed < 3 else member.poll(number=1)

    assert offsets(again) == offsets(lost)
    assert {message.count for message in again} == {1}


def test_a_full_disk_refuses_a_repeated_poll_and_no_message_is_stuck(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    lost = member.poll(number=1)
    faulty.fail_next("pwrite", ENOSPC, path_suffix="ledger/00000000000000000000.log")

    with pytest.raises(StorageFull):
        member.poll(number=1)
    again = member.poll(number=1)

    assert offsets(again) == offsets(lost)
    assert {message.count for message in again} == {1}
    assert outcomes(member.ack(lost)) == [EXPIRED] * 3
    assert outcomes(member.ack(again)) == ["ack"] * 3
