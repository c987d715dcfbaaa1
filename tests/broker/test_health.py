"""What a broker says of itself: every aspect of its disk, by the names of the topics that it concerns."""

from errno import EIO, ENOSPC

import pytest

from goqueue.errors import StorageError, StorageFull
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, outcomes

GIB = 1024**3


def storage(node: Node) -> tuple[str, str]:
    check = node.broker.node.checks()["storage"]
    return check.status, check.message


def test_a_disk_that_takes_everything_passes(node: Node) -> None:
    node.create()
    node.publish(b"a")

    assert storage(node) == ("pass", "")
    health = node.broker.node.health()
    assert (health.status, health.checks["storage"].status) == ("ok", "pass")
    assert health.disk_free_bytes == health.disk_total_bytes == 2**40


def test_a_full_disk_is_a_warning_that_names_the_topic_for_as_long_as_it_refuses(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.create("payments")
    disk.fail_next("pwrite", ENOSPC, path_suffix="orders/0/log/00000000000000000000.log")

    with pytest.raises(StorageFull):
        node.publish(b"a")

    status, message = storage(node)
    assert status == "warn"
    assert "writes to orders-0 are refused (No space left on device)" in message
    assert "payments" not in message
    assert node.broker.node.health().status == "degraded"
    node.publish(b"a")
    assert storage(node) == ("pass", "")


def test_a_failed_log_fails_and_names_the_topic(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(b"a")
    disk.fail_next("sync", EIO)
    with pytest.raises(StorageError):
        node.publish(b"b")

    status, message = storage(node)

    assert status == "fail"
    assert "a disk error stopped orders-0 (sync: Input/output error)" in message
    assert node.broker.node.health().status == "fail"


def test_a_failed_ledger_fails_too(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(b"a")
    consumer = Consumer(node)
    messages = consumer.poll()
    disk.fail_next("pwrite", EIO, path_suffix="ledger/00000000000000000000.log")
    assert outcomes(consumer.ack(messages)) == ["STORAGE_FAILED"]

    status, message = storage(node)

    assert status == "fail"
    assert "orders-0" in message


def test_a_disk_that_is_nearly_full_warns_before_it_refuses(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=GIB)
    node = Node(disk, clock)
    node.create()
    assert storage(node)[0] == "pass"

    disk.capacity_bytes = disk.used_bytes + disk.used_bytes // 20

    status, message = storage(node)
    assert status == "warn"
    assert "the disk is nearly full: 0 MiB of 0 MiB are free" in message


def test_a_quiet_topic_is_well_again_once_there_is_room(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=GIB)
    node = Node(disk, clock)
    node.create()
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFull):
        node.publish(b"a")
    node.pass_time(60, step=10)
    assert "writes to orders-0 are refused" in storage(node)[1]

    disk.capacity_bytes = GIB
    node.pass_time(60, step=10)

    assert storage(node) == ("pass", "")
