"""What time brings: flushes by interval, retention, settings that take effect; and next to nothing when idle."""

from collections.abc import Callable

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import SECOND
from goqueue.record import kernel
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.testing.memory_disk import PowerLoss
from tests.broker.brokers import Node
from tests.broker.consumers import restarted


def durable(node: Node) -> int:
    return node.leader().log.durable_offset


# --- flushing ------------------------------------------------------------------------------------


def test_in_interval_mode_a_tick_flushes_what_is_a_second_old(node: Node) -> None:
    node.create(flush="interval", flush_interval="1s")
    node.pass_time(5)
    node.publish(b"first")
    node.pass_time(2)
    assert durable(node) == 1
    node.send([b"second"])
    node.workers.run_all()
    began = durable(node)

    node.pass_time(1.1)

    assert (began, durable(node)) in [(1, 2), (2, 2)]
    assert not node.broker._housekeeping._unflushed


def test_without_flushes_nothing_is_flushed_and_nobody_looks_for_it(node: Node) -> None:
    node.create(flush="none")
    for _ in range(5):
        node.publish(b"v")

    node.pass_time(5)

    assert durable(node) == 0
    assert not node.broker._housekeeping._unflushed


def test_a_partition_without_writes_is_not_looked_at_for_flushing(node: Node) -> None:
    node.create()
    node.publish(b"v")
    node.pass_time(0.2)

    assert not node.broker._housekeeping._unflushed
    assert not node.workers.jobs


# --- visits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 7, 40])
@pytest.mark.parametrize("step", [0.01, 0.7, 2.5, 9.0, 60.0])
def test_every_partition_is_visited_once_per_interval(
    disk: MemoryDisk, clock: ManualClock, count: int, step: float
) -> None:
    node = Node(disk, clock, config=BrokerConfig(maintenance_interval_ms=10_000))
    node.create(partitions=count)
    visited = [Visited(node.leader(partition=number)) for number in range(count)]
    node.broker._housekeeping._partitions[:] = visited  # type: ignore[assignment]

    node.tick()
    seconds = 60.0 if step < 60 else 240.0
    for _ in range(round(seconds / step)):
        node.tick(step)

    rounds = seconds / max(step, 10.0)
    assert min(one.visits for one in visited) >= int(rounds) - 1
    assert max(one.visits for one in visited) <= rounds + 1


class Visited:
    """A partition that counts how often it is maintained."""

    def __init__(self, leader: PartitionLeader) -> None:
        self._live = leader
        self.visits = 0

    def maintain(self, *, may_compact: bool, compacted: Callable[[], None]) -> bool:
        self.visits += 1
        return self._live.maintain(may_compact=may_compact, compacted=compacted)


def test_retention_takes_effect_by_itself(node: Node) -> None:
    node.create(segment_bytes=1024, retention="60s")
    for _ in range(40):
        node.publish(b"v" * 50)

    node.pass_time(30, step=1)
    assert node.leader().log.start_offset == 0
    node.pass_time(60, step=1)

    assert node.leader().log.start_offset >= 30
    assert node.broker.topics.describe("orders").partitions[0].start_offset == node.leader().log.start_offset


def test_compaction_takes_effect_by_itself_and_readers_never_skip(node: Node) -> None:
    node.create(cleanup="compact", segment_bytes=1024)
    for number in range(60):
        records = kernel.encode([str(number).encode() * 20], keys=[b"k%d" % (number % 3)])
        node.done(node.broker.messages.publish_records("orders", 0, records))
    before = node.broker.node.stats().size_bytes

    node.pass_time(30, step=1)

    assert node.broker.node.stats().size_bytes < before / 2
    assert node.values()[-3:] == [str(number).encode() * 20 for number in (57, 58, 59)]
    assert node.broker._housekeeping._compactions == 0


def test_a_topic_that_is_deleted_is_visited_no_more(node: Node) -> None:
    node.create(partitions=3)
    node.create("others", partitions=2)
    node.publish(b"v")

    node.done(node.broker.topics.delete("orders"))
    node.pass_time(30, step=1)

    assert node.publish(b"v", topic="others").first_offset == 0
    assert len(node.broker._housekeeping._partitions) == 2


# --- settings ------------------------------------------------------------------------------------


def test_a_shorter_retention_takes_effect(node: Node) -> None:
    node.create(segment_bytes=1024)
    for _ in range(40):
        node.publish(b"v" * 50)
    node.pass_time(100, step=1)
    assert node.leader().log.start_offset == 0

    node.done(node.broker.topics.alter("orders", {"retention": "10s"}))
    node.pass_time(30, step=1)

    assert node.leader().log.start_offset > 0


# --- retention of topics without publishes -------------------------------------------------------


@pytest.mark.parametrize("flush", ["group", "interval", "none"])
def test_a_quiet_topic_keeps_its_messages_for_its_retention_and_not_longer(node: Node, flush: str) -> None:
    node.create(retention="60s", flush=flush)
    node.publish(*[b"v"] * 10)

    node.pass_time(55)
    kept = node.values()
    node.pass_time(25, step=5)

    assert len(kept) == 10
    assert node.values() == []
    assert node.leader().log.size == 0
    assert not [path for path in node.disk.paths() if path.endswith("/log/00000000000000000000.log")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", ["nothing", "everything", "prefix"])
def test_offsets_of_a_topic_that_became_empty_are_not_given_out_again(node: Node, keep: Keep) -> None:
    node.create(retention="60s")
    node.publish(*[b"v"] * 10)
    node.pass_time(80, step=5)
    assert node.values() == []

    again = restarted(node, keep=keep, seed=1 if keep == "prefix" else None)

    assert again.publish(b"next").first_offset == 10
    assert again.values() == [b"next"]


def test_a_crash_at_any_step_of_it_gives_no_offset_out_twice_and_brings_nothing_back_to_life(
    clock: ManualClock,
) -> None:
    for steps in range(1, 500):
        disk = MemoryDisk()
        node = Node(disk, clock)
        node.create(retention="60s")
        node.publish(*[b"v"] * 10)
        disk.power_off_after = disk.steps + steps
        try:
            node.pass_time(80, step=5)
        except PowerLoss:
            pass
        else:
            if disk.steps < disk.power_off_after:
                assert node.values() == []
                return
        again = Node(disk.crash(seed=steps), clock)
        assert again.values() in ([], [b"v"] * 10)
        assert again.publish(b"next").first_offset == 10
    raise AssertionError("it never came to an end")


def test_a_topic_larger_than_its_room_shrinks_without_a_publish(node: Node) -> None:
    node.create(retention_bytes=10_000)
    for _ in range(40):
        node.publish(b"x" * 1_000)

    node.pass_time(25, step=5)

    assert 10_000 <= node.leader().log.size <= 16_000
    assert len(node.values()) >= 9


def test_the_newest_messages_outlive_a_limit_that_one_batch_or_a_new_limit_exceeds(node: Node) -> None:
    node.create(retention_bytes=10_000)
    node.publish(*[b"x" * 1_000] * 40)
    node.create("later")
    node.publish(*[b"x" * 1_000] * 40, topic="later")
    node.done(node.broker.topics.alter("later", {"retention_bytes": 10_000}))

    node.pass_time(60, step=5)

    assert len(node.values()) == 40
    assert len(node.values("later")) == 40
    for _ in range(12):
        node.publish(b"y" * 1_000)
    node.pass_time(25, step=5)
    assert node.values() == [b"y" * 1_000] * 12


def test_what_waits_outlives_the_retention_of_a_quiet_topic(node: Node, clock: ManualClock) -> None:
    node.create(retention="60s")
    node.messages(NewMessage(b"later", deliver_at_ns=clock.wall_ns() + 150 * SECOND))

    node.pass_time(145, step=5)
    early = node.values()
    node.pass_time(10, step=5)

    assert early == []
    assert node.values() == [b"later"]


def test_a_segment_is_rolled_when_it_has_the_age_that_the_topic_says(node: Node) -> None:
    node.create(segment_age="60s")
    node.publish(b"v")
    node.pass_time(40, step=5)
    before = node.leader().log.segment_count
    node.pass_time(40, step=5)

    assert (before, node.leader().log.segment_count) == (1, 2)
    assert node.broker.topics.describe("orders").settings["segment_age"] == "1m"
    node.done(node.broker.topics.alter("orders", {"segment_age": "1h"}))
    assert node.leader().log.config.segment_age_ms == 3_600_000
