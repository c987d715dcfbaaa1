"""What the ledger remembers of a cursor, on disks that refuse writes, lose them, or are compacted."""

from dataclasses import replace
from errno import EIO, ENOSPC

import pytest

from goqueue.errors import StorageError, StorageFailed, StorageFull
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, offsets, outcomes, restarted

LEDGER = "orders/0/ledger/00000000000000000000.log"
UNKNOWN, EXPIRED, MALFORMED = "RECEIPT_HANDLE_UNKNOWN", "RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_MALFORMED"


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- disks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["ack", "nack", "extend", "release"])
def test_what_a_full_disk_refuses_has_changed_nothing(faulty: FaultyDisk, clock: ManualClock, action: str) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    messages = member.poll()
    faulty.fail_next("pwrite", ENOSPC, path_suffix=LEDGER)

    (refused,) = member.settle(action, messages[:1], delay=5)

    assert isinstance(refused, StorageFull)
    assert outcomes(member.settle(action, messages[:1], delay=5)) != [refused.code]
    assert outcomes(member.ack(messages[1:])) == ["ack"]
    state = _state(node)
    assert _state(Node(_memory(faulty).crash(keep="everything"), clock)) == state


def test_a_poll_that_a_full_disk_refuses_takes_nothing(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix=LEDGER)

    with pytest.raises(StorageFull):
        member.poll()

    assert offsets(member.poll()) == [0, 1]


def test_a_full_disk_for_one_partition_does_not_keep_back_another(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create(partitions=2)
    node.publish(b"a")
    node.publish(b"b", partition=1)
    member = Consumer(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix="orders/1/ledger/00000000000000000000.log")

    first = member.poll()
    second = member.poll()

    assert sorted(message.value for message in first + second) == [b"a", b"b"]


@pytest.mark.parametrize("skip", range(4))
def test_a_disk_that_cannot_be_read_for_a_moment_loses_nothing(
    faulty: FaultyDisk, clock: ManualClock, skip: int
) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node)
    faulty.fail_next("pread", EIO, path_suffix="orders/0/log/00000000000000000000.log", skip=skip)

    seen: list[int] = []
    for _ in range(3):
        try:
            seen += offsets(member.poll())
        except StorageError:
            continue

    assert seen == [0, 1, 2, 3, 4]


def test_leases_end_and_members_leave_on_a_full_disk(faulty: FaultyDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(faulty.inner, seed=1, only=lambda path: path.endswith(LEDGER))
    node = Node(faulty, clock)
    node.create(visibility_timeout="5s")
    node.publish(*numbered(4))
    first, second = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    first.poll(2)
    second.poll(2)
    faulty.rates["no_space"] = 1.0

    node.pass_time(7)
    faulty.heal()

    again = second.poll()
    assert [(message.offset, message.count) for message in again] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert outcomes(second.ack(again)) == ["ack"] * 4
    state = _state(node)
    assert _state(Node(_memory(faulty).crash(keep="everything"), clock)) == state


def test_an_ack_whose_flush_fails_is_refused_and_nothing_more_is_taken(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()
    faulty.fail_next("sync", EIO, path_suffix=LEDGER)

    (failed,) = member.ack([first])
    (refused,) = member.ack([second])

    assert isinstance(failed, StorageFailed)
    assert isinstance(refused, StorageFailed)
    node.pass_time(60, step=5)
    again = Node(_memory(faulty).crash(keep="nothing"), clock)
    assert offsets(Consumer(again).poll()) in ([0, 1], [1])


def test_what_is_delivered_with_a_flush_by_interval_may_be_lost_with_the_log_and_harms_nobody(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    node = Node(disk, clock)
    node.create(flush="interval", flush_interval="1h")
    member = Consumer(node)
    node.publish(*numbered(6))
    messages = member.poll()
    member.ack(messages[:5])
    member.settle("nack", messages[5:], delay=3_600)
    node.leader().ledger.log.flush()

    again = restarted(node, keep="nothing")
    same = member.moved_to(again)
    again.publish(b"new", b"newer")

    assert [message.value for message in same.poll()] == [b"new", b"newer"]


def _memory(faulty: FaultyDisk) -> MemoryDisk:
    assert isinstance(faulty.inner, MemoryDisk)
    return faulty.inner


def _state(node: Node) -> list[object]:
    """What the group has done with the partition."""
    node.broker.groups.positions("workers")
    group_delivery = node.broker.partitions.delivery(node.leader()).groups["workers"]
    group_delivery.pass_time()
    group_delivery.feed(1_000)
    state = group_delivery.cursor.state()
    return [
        state.floor,
        state.acked,
        state.counts,
        [(delivery.id, delivery.member, delivery.parts) for delivery in state.deliveries],
        sorted((at_ns, sorted(part)) for at_ns, part in state.waiting),
        [sorted(lane) for lane in group_delivery.cursor.lanes.ready],
    ]


# --- the ledger --------------------------------------------------------------------------------


def test_a_ledger_that_is_compacted_all_the_time_forgets_nothing(node: Node, clock: ManualClock) -> None:
    node.create(max_deliveries=5, visibility_timeout="60s")
    node.publish(*numbered(300))
    ledger = node.leader().ledger.log
    ledger.config = replace(ledger.config, segment_bytes=1_024, dirty_ratio=0.01)
    member = Consumer(node, session_timeout_ms=300_000)
    for round_ in range(30):
        messages = member.poll(10)
        member.ack(messages[round_ % 3 :: 2])
        member.settle("nack", messages[1 + round_ % 3 :: 2][:2], delay=round_)
        if round_ % 4 == 0:
            delivery = node.broker.partitions.delivery(node.leader())
            delivery.groups["workers"].stored.write_whole()
        node.pass_time(11, step=1)

    assert ledger.segment_count < 60
    assert ledger.start_offset or node.leader().ledger.log.size < 200_000
    state = _state(node)
    assert _state(restarted(node)) == state


def test_a_deleted_group_begins_anew(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    messages = member.poll()
    member.ack(messages[:2])

    node.done(node.broker.groups.delete("workers"))
    again = restarted(node)

    assert again.broker.groups.names() == []
    assert outcomes(node.done(member.begin("ack", [messages[2].receipt]))) == [UNKNOWN]
    assert offsets(Consumer(again).poll()) == [0, 1, 2]
