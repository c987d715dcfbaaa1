"""What time brings: flushes by interval, retention, settings that take effect; and next to nothing when idle."""

from collections.abc import Callable
from errno import ENOSPC

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.clock import SECOND
from goqueue.errors import (
    Conflict,
    InvalidConfig,
    InvalidTopic,
    MessageTooLarge,
    StorageFull,
    TopicExists,
    TopicNotFound,
)
from goqueue.record import kernel
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.testing.memory_disk import PowerLoss
from tests.broker.brokers import Node, values_of
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


def test_a_smaller_limit_of_values_takes_effect(node: Node) -> None:
    node.create()
    node.publish(b"x" * 100)

    info = node.done(node.broker.topics.alter("orders", {"max_message_bytes": 50}))

    assert info.settings["max_message_bytes"] == 50
    assert "max_message_bytes" not in info.defaults
    with pytest.raises(MessageTooLarge):
        node.send([b"x" * 51])
    assert "max_message_bytes" in node.done(node.broker.topics.alter("orders", {"max_message_bytes": None})).defaults
    node.publish(b"x" * 51)


def test_a_change_to_interval_releases_who_waits_for_the_disk(node: Node) -> None:
    node.create(flush="group")
    altering = node.broker.topics.alter("orders", {"flush": "interval"})
    write = node.send([b"a"])
    reader = node.broker.messages.read("orders", 0, wait_ms=1_000)
    assert not write.is_done

    node.workers.run_one()  # the change; the flush is still under way

    assert altering.is_done
    assert write.is_done
    assert values_of(reader.result()) == [b"a"]


def test_a_change_to_group_takes_back_nothing_that_was_shown(node: Node) -> None:
    node.create(flush="none")
    node.publish(b"shown")
    assert durable(node) == 0

    altering = node.broker.topics.alter("orders", {"flush": "group"})
    node.workers.run_one()
    assert altering.is_done

    assert node.values() == [b"shown"]
    assert node.read().high_watermark == 1
    write = node.send([b"next"])
    assert node.values() == [b"shown"]
    node.workers.run_all()
    assert write.is_done
    assert node.values() == [b"shown", b"next"]
    assert durable(node) == 2


def test_a_shorter_retention_takes_effect(node: Node) -> None:
    node.create(segment_bytes=1024)
    for _ in range(40):
        node.publish(b"v" * 50)
    node.pass_time(100, step=1)
    assert node.leader().log.start_offset == 0

    node.done(node.broker.topics.alter("orders", {"retention": "10s"}))
    node.pass_time(30, step=1)

    assert node.leader().log.start_offset > 0


@pytest.mark.parametrize("changes", [{"flush": "sometimes"}, {"colour": "red"}, {"retention": -1}])
def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(node: Node, changes: dict[str, object]) -> None:
    node.create()

    with pytest.raises(InvalidTopic):
        node.broker.topics.alter("orders", changes)
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("others", settings=changes)

    assert node.broker.topics.list() == ["orders"]
    node.publish(b"v")


def test_topics_come_and_go_only_once(node: Node) -> None:
    creating = node.broker.topics.create("orders")
    with pytest.raises(TopicExists):
        node.broker.topics.create("orders")
    with pytest.raises(TopicNotFound):
        node.send([b"too early"])
    info = node.done(creating)
    assert (info.name, len(info.partitions), info.replication_factor) == ("orders", 3, 1)
    with pytest.raises(TopicExists):
        node.broker.topics.create("orders")
    node.broker.topics.alter("orders", {"acks": "none"})
    with pytest.raises(Conflict):
        node.broker.topics.alter("orders", {"acks": "all"})
    with pytest.raises(TopicNotFound):
        node.broker.topics.delete("missing")
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("a/b")
    with pytest.raises(InvalidTopic):
        node.broker.topics.create("others", replication_factor=3)


def test_a_topic_that_is_deleted_while_it_is_changed_is_gone(node: Node) -> None:
    node.create()
    altering = node.broker.topics.alter("orders", {"acks": "none"})
    deleting = node.broker.topics.delete("orders")
    node.create()

    with pytest.raises(TopicNotFound):
        node.done(altering)
    node.done(deleting)
    assert node.broker.topics.describe("orders").settings["acks"] == "all"
    node.publish(b"v")


def test_defaults_of_the_broker_hold_for_topics_that_do_not_say_otherwise(disk: MemoryDisk, clock: ManualClock) -> None:
    config = BrokerConfig(default_partitions=5, topic_defaults={"acks": "none", "compression": "lz4"}, node_id=9)
    node = Node(disk, clock, config=config)

    info = node.done(node.broker.topics.create("orders", settings={"acks": "leader"}))

    assert len(info.partitions) == 5
    assert (info.settings["acks"], info.settings["compression"]) == ("leader", "lz4")
    assert info.partitions[0].leader == 9
    assert node.broker.node.stats()[:1] == (9,)


@pytest.mark.parametrize("setting", ["default_partitions", "maintenance_interval_ms", "compactions_max", "waiting_max"])
def test_a_configuration_that_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(InvalidConfig):
        BrokerConfig(**{setting: 0})  # type: ignore[arg-type]


def test_a_bad_default_is_refused_before_anything_is_opened(disk: MemoryDisk, clock: ManualClock) -> None:
    with pytest.raises(InvalidTopic):
        Node(disk, clock, config=BrokerConfig(topic_defaults={"flush": "maybe"}))

    Node(disk, clock)


# --- timers --------------------------------------------------------------------------------------


def test_timers_call_in_the_order_of_their_times_and_once() -> None:
    timers, called = Timers(), list[int]()
    for number in (3, 1, 2, 1):
        timers.at(number * SECOND, lambda number=number: called.append(number))  # type: ignore[misc]

    timers.tick(SECOND - 1)
    assert called == []
    timers.tick(2 * SECOND)
    assert called == [1, 1, 2]
    timers.tick(10 * SECOND)
    timers.tick(20 * SECOND)
    assert called == [1, 1, 2, 3]


def test_a_timer_that_was_called_off_is_not_called_and_does_not_pile_up() -> None:
    timers, called = Timers(), list[int]()
    kept = [timers.at(SECOND, lambda: called.append(1)) for _ in range(100)]

    for _ in range(20_000):
        timers.at(10**15, lambda: called.append(2)).cancel()
        assert len(timers) <= 1_200
    kept[0].cancel()
    timers.tick(2 * SECOND)

    assert called == [1] * 99


def test_a_timer_may_set_another() -> None:
    timers, called = Timers(), list[int]()
    timers.at(1, lambda: called.extend([1] if timers.at(5, lambda: called.append(5)) is None else []))

    timers.tick(4)
    assert called == []
    timers.tick(5)
    assert called == [5]


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


def fill(node: Node) -> None:
    """Publish until the disk is full."""
    for _ in range(100):
        try:
            node.publish(b"x" * 1_000)
        except StorageFull:
            return
    raise AssertionError("there is room still")


def test_less_room_is_made_use_of_at_once_also_on_a_full_disk(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=60_000)
    node = Node(disk, clock)
    node.create()
    fill(node)

    node.done(node.broker.topics.alter("orders", {"retention_bytes": 10_000}))
    node.workers.run_all()

    assert node.leader().log.size == 0  # all of it stood in one segment
    assert node.publish(b"next").first_offset > 10


def test_a_shorter_retention_makes_room_at_once_also_on_a_full_disk(clock: ManualClock) -> None:
    disk = MemoryDisk(capacity_bytes=60_000)
    node = Node(disk, clock)
    node.create()
    fill(node)
    node.pass_time(20, step=5)

    node.done(node.broker.topics.alter("orders", {"retention": "10s"}))
    node.workers.run_all()

    assert node.leader().log.size == 0
    assert node.publish(b"next").first_offset > 10


@pytest.mark.parametrize("changes", [{"retention": "10s"}, {"retention_bytes": 10_000}])
def test_a_shorter_retention_makes_the_room_that_writing_it_down_needs(
    clock: ManualClock, changes: dict[str, object]
) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(*[b"x" * 1_000] * 20)
    node.pass_time(20, step=5)
    for _ in range(3):  # there is room again when the segments are gone
        disk.fail_next("append", ENOSPC, path_suffix="topic.json.new")

    altering = node.broker.topics.alter("orders", changes)
    node.pass_time(2, step=0.1)

    assert node.done(altering).settings.items() >= changes.items()
    assert node.values() == []


def test_a_change_that_keeps_no_less_is_refused_on_a_full_disk(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    node.create()
    node.publish(b"kept")
    disk.fail_next("append", ENOSPC, path_suffix="topic.json.new")

    with pytest.raises(StorageFull):
        node.done(node.broker.topics.alter("orders", {"retention": "200h"}))

    assert node.values() == [b"kept"]


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
