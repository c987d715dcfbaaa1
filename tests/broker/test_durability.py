"""What was acknowledged is there after a crash; what a disk does not take is said, and harms nobody else."""

from errno import EIO, ENOSPC

import pytest

from goqueue.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    StorageFailed,
    StorageFull,
)
from goqueue.record import kernel
from goqueue.record.identity import BatchIdentity
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node

LOG = "orders/0/log/00000000000000000000.log"


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


# --- crashes -------------------------------------------------------------------------------------


def test_after_a_crash_all_that_was_acknowledged_is_there(node: Node, disk: MemoryDisk, clock: ManualClock) -> None:
    node.create()
    node.publish(b"acknowledged")
    unacknowledged = node.send([b"in the air"])

    restarted = Node(disk.crash(keep="nothing"), clock)

    assert not unacknowledged.is_done
    assert restarted.values() == [b"acknowledged"]
    assert restarted.publish(b"after").first_offset == 1


def test_a_crash_at_any_step_keeps_what_was_acknowledged(clock: ManualClock) -> None:
    def run(disk: MemoryDisk, acknowledged: list[int]) -> None:
        node = Node(disk, ManualClock())
        node.create()
        for sequence in range(0, 12, 2):
            node.clock.advance(4)
            node.done(node.send_as(BatchIdentity(7, 0, sequence, 2)))
            acknowledged.append(sequence)

    whole = MemoryDisk()
    run(whole, [])

    for steps in range(0, whole.steps, max(1, whole.steps // 60)):
        disk = MemoryDisk(power_off_after=steps)
        acknowledged: list[int] = []
        with pytest.raises(BaseException) as raised:  # noqa: PT011
            run(disk, acknowledged)
        assert type(raised.value).__name__ == "PowerLoss"

        node = Node(disk.crash(seed=steps), clock)
        if not acknowledged:
            continue
        values = node.values()
        assert values == [f"0:{number}".encode() for number in range(len(values))]
        assert len(values) >= acknowledged[-1] + 2
        for sequence in range(0, 12, 2):  # the producer sends all of it again
            node.done(node.send_as(BatchIdentity(7, 0, sequence, 2)))
        assert node.values() == [f"0:{number}".encode() for number in range(12)]


# --- producers through restarts ------------------------------------------------------------------


def fill(node: Node, first: int, count: int) -> None:
    for sequence in range(first, first + count):
        node.done(node.send_as(BatchIdentity(7, 0, sequence, 1)))


def check_recognised(node: Node, count: int) -> None:
    """All that was stored is recognised when it is sent again, and the next batch is taken."""
    for sequence in range(count):
        again = node.done(node.send_as(BatchIdentity(7, 0, sequence, 1)))
        assert again.duplicate
        assert again.first_offset == (sequence if sequence >= count - 5 else -1)
    assert len(node.values()) == count
    with pytest.raises(OutOfOrderSequence):
        node.send_as(BatchIdentity(7, 0, count + 1, 1))
    assert not node.done(node.send_as(BatchIdentity(7, 0, count, 1))).duplicate


def test_a_batch_that_is_sent_again_after_a_crash_is_recognised_from_the_log_alone(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create(segment_bytes=1024)
    fill(node, 0, 30)

    restarted = Node(disk.crash(keep="nothing"), clock)

    assert len(restarted.leader().producers.sequences) == 1
    check_recognised(restarted, 30)


def test_a_batch_that_is_sent_again_is_recognised_from_a_snapshot_and_the_log(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    fill(node, 0, 10)
    clock.advance(10)
    fill(node, 10, 2)  # a flush after ten seconds takes a snapshot
    assert node.leader().partition.ledger.next_offset == 1
    fill(node, 12, 3)

    check_recognised(Node(disk.crash(keep="nothing"), clock), 15)


@pytest.mark.parametrize("behind", [0, 1, 5])
def test_a_snapshot_holds_the_very_batch_that_brought_it_about(
    node: Node, disk: MemoryDisk, clock: ManualClock, behind: int
) -> None:
    node.create()
    fill(node, 0, 1)
    clock.advance(10)
    fill(node, 1, 1)
    fill(node, 2, behind)

    check_recognised(Node(disk.crash(keep="nothing"), clock), 2 + behind)


def test_a_snapshot_of_records_that_a_crash_took_is_not_believed(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    fill(node, 0, 3)
    sequences = node.leader().producers.sequences
    sequences.note(BatchIdentity(7, 0, 3, 5), first_offset=3, timestamp_ns=0)
    ledger = node.leader().partition.ledger
    ledger.append(kernel.encode([sequences.snapshot(8)], keys=[b"producers"]), now_ns=clock.wall_ns())
    ledger.flush()

    check_recognised(Node(disk.crash(keep="nothing"), clock), 3)


@pytest.mark.parametrize("snapshot", [b"", b"\xc1", b"\x92\x01\xa1x", b"\x93" * 100])
def test_a_snapshot_that_nobody_understands_is_as_good_as_none(
    node: Node, disk: MemoryDisk, clock: ManualClock, snapshot: bytes
) -> None:
    node.create()
    fill(node, 0, 3)
    ledger = node.leader().partition.ledger
    ledger.append(kernel.encode([snapshot], keys=[b"producers"]), now_ns=clock.wall_ns())
    ledger.flush()

    check_recognised(Node(disk.crash(keep="nothing"), clock), 3)


def test_a_broker_that_was_closed_writes_down_what_only_memory_knew(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    fill(node, 0, 7)
    node.broker.close()
    restarted = Node(disk.crash(keep="nothing"), clock)

    assert restarted.leader().partition.ledger.next_offset == 1
    check_recognised(restarted, 7)


def test_a_snapshot_that_cannot_be_written_fails_no_publish(
    disk: MemoryDisk, clock: ManualClock, faulty: FaultyDisk
) -> None:
    node = Node(faulty, clock)
    node.create()
    fill(node, 0, 2)
    clock.advance(10)
    faulty.fail_next("pwrite", EIO, path_suffix="ledger/00000000000000000000.log")
    fill(node, 2, 2)
    clock.advance(10)
    fill(node, 4, 2)

    assert faulty.injected
    check_recognised(Node(disk.crash(keep="nothing"), clock), 6)


def test_a_higher_epoch_fences_the_lower_one_through_a_restart(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    fill(node, 0, 2)
    node.done(node.send_as(BatchIdentity(7, 1, 0, 2)))

    for one in (node, Node(disk.crash(keep="nothing"), clock)):
        with pytest.raises(ProducerFenced):
            one.send_as(BatchIdentity(7, 0, 2, 1))
        assert one.done(one.send_as(BatchIdentity(7, 1, 0, 2))).first_offset == 2


# --- full disks ----------------------------------------------------------------------------------


def test_a_full_disk_refuses_writes_lets_reads_go_on_and_takes_writes_again_by_itself(clock: ManualClock) -> None:
    disk = MemoryDisk()
    node = Node(disk, clock)
    node.create()
    node.create("others")
    node.publish(b"before")
    disk.capacity_bytes = disk.used_bytes + 100

    for _ in range(3):
        with pytest.raises(StorageFull) as refused:
            node.send([b"x" * 1_000])
        assert refused.value.retryable
        assert refused.value.code == "STORAGE_FULL"
        (result,) = node.messages(NewMessage(b"x" * 1_000))
        assert isinstance(result, StorageFull)
        node.pass_time(11)
    assert node.values() == [b"before"]
    check = node.broker.node.checks()["storage"]
    assert check.status == "warn"
    assert "writes to orders-0 are refused" in check.message

    disk.capacity_bytes = None
    assert node.publish(b"after").first_offset == 1
    assert node.broker.node.checks()["storage"].status == "pass"
    assert node.values() == [b"before", b"after"]


def test_a_producer_whose_batch_met_a_full_disk_sends_it_again(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    fill(node, 0, 2)
    disk.capacity_bytes = disk.used_bytes + 40

    with pytest.raises(StorageFull):
        node.send_as(BatchIdentity(7, 0, 2, 3))
    disk.capacity_bytes = None

    assert node.done(node.send_as(BatchIdentity(7, 0, 2, 3)))[:2] == (2, 3)


def test_a_full_disk_does_not_keep_retention_from_making_room(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    node.create(segment_bytes=1024, retention="60s")
    for _ in range(40):
        node.publish(b"v" * 50)
    assert node.leader().log.segment_count > 2
    for _ in range(100):
        faulty.fail_next("open", ENOSPC, path_suffix=".log")

    node.pass_time(120, step=1)

    assert node.leader().log.start_offset > 0
    assert node.leader().log.failure is None


# --- disks that fail -----------------------------------------------------------------------------


def test_a_failed_sync_fails_every_waiting_ack_and_the_health_but_no_other_topic(
    clock: ManualClock, faulty: FaultyDisk
) -> None:
    node = Node(faulty, clock)
    node.create()
    node.create("others")
    node.publish(b"safe")
    faulty.fail_next("sync", EIO, path_suffix=LOG)

    writes = [node.send([b"lost"]) for _ in range(3)]
    other = node.send([b"fine"], "others")
    node.workers.run_all()

    for write in writes:
        assert write.is_done
        with pytest.raises(StorageFailed):
            write.result()
    assert other.result().first_offset == 0
    with pytest.raises(StorageFailed):
        node.send([b"more"])
    (refused,) = node.messages(NewMessage(b"more"))
    assert isinstance(refused, StorageFailed)
    assert node.broker.node.checks()["storage"].status == "fail"
    assert "orders-0" in node.broker.node.checks()["storage"].message
    assert node.values() == [b"safe"]
    assert node.publish(b"fine", topic="others").first_offset == 1
    node.pass_time(20)
    assert node.values() == [b"safe"]


def test_a_failed_write_fails_itself_but_not_what_the_disk_has_taken_before(
    clock: ManualClock, faulty: FaultyDisk
) -> None:
    node = Node(faulty, clock)
    node.create()
    first = node.send([b"first"])
    faulty.fail_next("pwrite", EIO, path_suffix=LOG)

    with pytest.raises(StorageFailed):
        node.send([b"second"])
    node.workers.run_all()

    assert first.result().first_offset == 0
    assert node.values() == [b"first"]


def test_housekeeping_goes_on_for_others_when_one_log_has_failed(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    for topic in ("a", "b", "c"):
        node.create(topic, segment_bytes=1024, retention="60s")
        for _ in range(40):
            node.publish(b"v" * 50, topic=topic)
    faulty.fail_next("rename", EIO, path_suffix=".log")

    node.pass_time(150, step=1)

    started = [node.leader(topic).log.start_offset > 0 for topic in ("a", "b", "c")]
    assert sum(started) >= 2
    failed = [node.leader(topic).log.failure is not None for topic in ("a", "b", "c")]
    assert sum(failed) == 1
