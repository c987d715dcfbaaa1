"""A broker as a whole: it opens with settings that make sense, drains and closes without losing a write."""

from errno import EIO

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.errors import BrokerUnavailable, DirectoryLocked, InvalidTopic
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node

LOG = "orders/0/log/00000000000000000000.log"


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


def test_a_data_directory_has_one_broker_until_that_is_closed(disk: MemoryDisk, clock: ManualClock) -> None:
    first = Node(disk, clock)
    first.create()
    first.publish(b"a")

    with pytest.raises(DirectoryLocked):
        Node(disk, clock)

    assert first.values() == [b"a"]
    first.broker.close()
    assert Node(disk, clock).values() == [b"a"]


def test_a_bad_default_is_refused_before_anything_is_opened(disk: MemoryDisk, clock: ManualClock) -> None:
    with pytest.raises(InvalidTopic):
        Node(disk, clock, config=BrokerConfig(topic_defaults={"flush": "maybe"}))

    Node(disk, clock)


def test_draining_takes_no_more_writes_and_is_done_when_all_are_acknowledged(node: Node) -> None:
    node.create()
    write = node.send([b"a"])

    drained = node.broker.drain()

    assert not drained.is_done
    assert not node.broker.is_ready
    assert node.broker.node.checks()["broker"].status == "fail"
    for refused in (
        lambda: node.send([b"b"]),
        lambda: node.broker.messages.publish("orders", [NewMessage(b"b")]),
        lambda: node.broker.topics.create("late"),
        lambda: node.broker.topics.delete("orders"),
        lambda: node.broker.topics.alter("orders", {}),
    ):
        with pytest.raises(BrokerUnavailable) as error:
            refused()
        assert error.value.retryable
    node.tick(0.01)
    assert not drained.is_done
    for _ in range(3):  # the flush that runs, then the log sealed, then the ledger
        node.workers.run_all()
        node.tick(0.01)
    assert write.is_done
    assert drained.is_done
    assert node.leader().log.is_sealed
    assert node.values() == [b"a"]


def test_draining_ends_every_wait(node: Node) -> None:
    node.create()
    read = node.broker.messages.read("orders", 0, wait_ms=60_000)
    any_partition = node.broker.messages.wait("orders", {0: 0}, wait_ms=60_000)

    assert node.broker.drain().is_done

    assert read.result().record_count == 0
    assert any_partition.is_done
    assert node.broker.messages.read("orders", 0, wait_ms=60_000).is_done


def test_draining_does_not_wait_for_a_log_that_has_failed(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    node.create()
    faulty.fail_next("sync", EIO, path_suffix=LOG)
    node.send([b"a"])
    node.workers.run_all()

    assert node.broker.drain().is_done


@pytest.mark.parametrize("flush", ["group", "interval", "none"])
def test_closing_makes_everything_durable_in_every_mode(disk: MemoryDisk, clock: ManualClock, flush: str) -> None:
    node = Node(disk, clock)
    node.create(flush=flush)
    node.send([b"a"])

    node.broker.close()

    assert Node(disk.crash(keep="nothing"), clock).values() == [b"a"]
