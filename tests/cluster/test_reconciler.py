"""Metadata becomes topics, replicas and roles on one node."""

import logging
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from goqueue.cluster.reconciler import RETRY_NS, Reconciler
from goqueue.cluster.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    PartitionChanged,
    Record,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
)
from goqueue.errors import NotLeader, StorageFull, TopicNotFound
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import ROOT, Node
from tests.broker.test_authority import PretendCluster
from tests.cluster.history import History, registration

ME = 2


class Reconciled:
    """A broker of node 2, and the metadata that it follows."""

    def __init__(self, disk: MemoryDisk | FaultyDisk, clock: ManualClock, history: History | None = None) -> None:
        self.disk = disk
        self.clock = clock
        self.starts = 0  # of the process
        self.history = history or History()
        if history is None:
            self.history.append(ClusterCreated("c", 1, 0), epoch=0, node=1)
            self.history.append(ControllerElected(1, 1, "1a"), epoch=1, node=1)
            self.history.append(registration(1))
            self._online(3, registration(3))
        self.open()

    def open(self) -> None:
        self.starts += 1
        self.node = Node(self.disk, self.clock, authority=PretendCluster())
        self.incarnation = f"{ME}{self.starts}"
        self.reconciler = Reconciler(
            self.node.broker.partitions, self.history.metadata, node=ME, incarnation=self.incarnation
        )
        self.reconciler.start()

    def restart(self) -> None:
        self.node.broker.close()
        self.open()

    def register(self) -> None:
        """Do what the controller does for a process that begins, and give it back what it can lead."""
        metadata = self.history.metadata
        for key in list(metadata.replicas_on(ME)):
            found = metadata.partitions[key]
            if ME in found.isr:
                leader = None if found.leader == ME else found.leader
                self.append(changed(found, leader=leader, isr=without(found.isr), elr=(ME,)))
        if metadata.broker(ME) is not None and not metadata.broker(ME).is_fenced:
            self.append(BrokerChanged(ME, metadata.broker(ME).broker_epoch, BrokerStatus.FENCED))
        self._online(ME, registration(ME, str(self.starts)))
        for key in list(metadata.replicas_on(ME)):
            found = metadata.partitions[key]
            if ME in found.elr:
                leader = ME if found.leader is None else found.leader
                self.append(changed(found, leader=leader, isr=(*found.isr, ME), elr=()))

    def _online(self, node: int, record: BrokerRegistered) -> None:
        self.append(record)
        epoch = self.history.metadata.broker(node).broker_epoch
        self.append(BrokerChanged(node, epoch, BrokerStatus.ONLINE))

    def append(self, *records: Record) -> None:
        effect = self.history.append(*records)
        if self.starts:
            self.reconciler.applied(effect)

    def settle(self) -> None:
        """Let everything happen that can."""
        self.node.workers.run_all()
        for _ in range(5):
            self.clock.advance(RETRY_NS / 1e9)
            self.reconciler.tick(self.clock.monotonic_ns())
            self.node.broker.tick()
            self.node.workers.run_all()

    def create(self, name: str = "orders", id: str = "t1", *partitions: PartitionChanged, **settings: Any) -> None:
        made = partitions or (partition(id, 0, leader=ME), partition(id, 1, leader=3, replicas=(3,)))
        self.append(TopicAdded(id, name, 5, len(made), settings), *made)

    def roles(self, name: str = "orders") -> dict[int, str]:
        found = self.node.broker.partitions.any_topic(name)
        return {
            number: f"leads {replica.epoch}"
            if replica.leader
            else f"follows {replica.epoch}"
            if replica.follower
            else "none"
            for number, replica in found.replicas.items()
        }


def partition(topic_id: str, number: int, *, leader: int | None, replicas: tuple[int, ...] = (ME,)) -> PartitionChanged:
    return PartitionChanged(topic_id, number, replicas, leader, 1, 0, isr=replicas)


def without(nodes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(node for node in nodes if node != ME)


def changed(before: PartitionChanged, **fields: Any) -> PartitionChanged:
    """The next record of the partition."""
    after = replace(before, partition_epoch=before.partition_epoch + 1, **fields)
    return after if after.leader == before.leader else replace(after, leader_epoch=before.leader_epoch + 1)


@pytest.fixture
def reconciled(disk: MemoryDisk, clock: ManualClock) -> Reconciled:
    found = Reconciled(disk, clock)
    found.register()
    return found


def test_a_topic_is_placed_and_led_as_the_metadata_says(reconciled: Reconciled) -> None:
    reconciled.create(retention="1h")
    reconciled.settle()

    info = reconciled.node.broker.topics.describe("orders")
    assert (info.topic_id, info.created_at_ns, info.settings["retention"]) == ("t1", 5, "1h")
    assert reconciled.roles() == {0: "leads 1"}
    reconciled.node.publish(b"a", partition=0)
    with pytest.raises(NotLeader):
        reconciled.node.publish(b"a", partition=1)


def test_leaders_change_with_the_records(reconciled: Reconciled) -> None:
    both = (ME, 3)
    reconciled.create("orders", "t1", partition("t1", 0, leader=ME, replicas=both))
    reconciled.settle()
    assert reconciled.roles() == {0: "leads 1"}

    it = reconciled
    it.append(changed(it.history.metadata.partitions["t1", 0], leader=3))
    assert reconciled.roles() == {0: "follows 2"}
    assert list(reconciled.reconciler.follows) == [("t1", 0)]

    it.append(changed(it.history.metadata.partitions["t1", 0], leader=None))
    assert reconciled.roles() == {0: "none"}
    assert not reconciled.reconciler.follows

    it.append(changed(it.history.metadata.partitions["t1", 0], leader=ME))
    assert reconciled.roles() == {0: "leads 4"}


def test_after_a_restart_no_role_is_taken_before_the_process_is_registered(reconciled: Reconciled) -> None:
    reconciled.create()
    reconciled.settle()
    reconciled.restart()
    reconciled.settle()
    assert reconciled.roles() == {0: "none"}

    reconciled.register()
    reconciled.settle()

    assert reconciled.roles() == {0: "leads 3"}


def test_whoever_waits_for_a_topic_is_told_when_it_is_what_it_should_be(
    reconciled: Reconciled, disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    assert reconciled.reconciler.when_done("unknown").is_done
    reconciled.create()
    created = reconciled.reconciler.when_done("t1")
    assert not created.is_done
    reconciled.settle()
    assert created.is_done

    disk.capacity_bytes = disk.used_bytes
    reconciled.append(TopicAltered("t1", {"compression": "zstd"}))
    altered = reconciled.reconciler.when_done("t1")
    with caplog.at_level(logging.ERROR):
        reconciled.settle()
    assert isinstance(altered.error, StorageFull), "it is tried again, but the caller does not wait for that"
    disk.capacity_bytes = None
    altered = reconciled.reconciler.when_done("t1")
    reconciled.settle()
    assert altered.is_done
    assert altered.error is None

    reconciled.append(TopicRemoved("t1", 9))
    removed = reconciled.reconciler.when_done("t1")
    reconciled.settle()
    assert removed.is_done
    assert reconciled.node.broker.topics.list() == []


def test_settings_follow_the_metadata(reconciled: Reconciled) -> None:
    reconciled.create(retention="1h")
    reconciled.append(TopicAltered("t1", {"compression": "zstd"}))
    reconciled.settle()

    settings = reconciled.node.broker.topics.describe("orders").settings
    assert (settings["compression"], settings["retention"]) == ("zstd", "168h")


def test_a_topic_that_is_removed_while_it_is_placed_leaves_nothing(reconciled: Reconciled, disk: MemoryDisk) -> None:
    reconciled.create()
    reconciled.append(TopicRemoved("t1", 9))
    reconciled.settle()

    assert reconciled.node.broker.topics.list() == []
    assert [entry.name for entry in disk.entries(f"{ROOT}/topics")] == []


def test_a_topic_that_was_removed_while_the_node_was_down_is_dropped_when_the_log_is_read(
    reconciled: Reconciled,
) -> None:
    reconciled.create()
    reconciled.settle()
    reconciled.node.broker.close()
    reconciled.history.append(TopicRemoved("t1", 9))

    reconciled.open()

    assert reconciled.node.broker.topics.list() == []


def test_a_topic_of_the_same_name_is_another_topic(reconciled: Reconciled) -> None:
    reconciled.create()
    reconciled.settle()
    reconciled.node.publish(b"old", partition=0)
    reconciled.append(TopicRemoved("t1", 9))
    reconciled.create("orders", "t2", partition("t2", 0, leader=ME))
    reconciled.settle()

    assert reconciled.node.broker.topics.describe("orders").topic_id == "t2"
    assert reconciled.node.values(partition=0) == []


def test_a_topic_that_the_cluster_never_knew_is_moved_away_and_kept(
    disk: MemoryDisk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    alone = Node(disk, clock)
    alone.create("mine")
    alone.publish(b"precious", topic="mine")
    alone.broker.close()

    with caplog.at_level(logging.ERROR):
        reconciled = Reconciled(disk, clock)

    assert reconciled.node.broker.topics.list() == []
    (stray,) = disk.entries(f"{ROOT}/stray")
    assert stray.name.startswith("mine~")
    assert "the cluster does not know a topic of this data directory" in caplog.text
    reconciled.restart()  # a directory with stray topics is a data directory like any other


def test_replicas_that_are_added_are_hosted(reconciled: Reconciled) -> None:
    reconciled.create()
    reconciled.settle()
    before = reconciled.history.metadata.partitions["t1", 1]
    reconciled.append(changed(before, replicas=(3, ME), adding=(ME,)))
    reconciled.settle()

    assert reconciled.roles() == {0: "leads 1", 1: "follows 1"}


def test_a_step_that_the_disk_refuses_is_tried_again(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    reconciled = Reconciled(disk, clock)
    reconciled.register()
    disk.rates["name_error"] = 1.0
    reconciled.create()
    reconciled.node.workers.run_all()
    disk.heal()
    with pytest.raises(TopicNotFound):
        reconciled.roles()

    reconciled.settle()

    assert reconciled.roles() == {0: "leads 1"}


REPLICAS = st.sampled_from([(ME,), (3,), (ME, 3)])


class AnyHistory(RuleBasedStateMachine):
    """Whatever is recorded, in whatever pace the node follows: in the end it has what the metadata says."""

    @initialize()
    def begin(self) -> None:
        self.it = Reconciled(MemoryDisk(), ManualClock())
        self.it.register()
        self.made = 0

    @property
    def metadata(self) -> Any:
        return self.it.history.metadata

    @rule(
        name=st.sampled_from(["a", "b"]),
        counts=st.lists(st.sampled_from([(ME,), (3,), (ME, 3)]), min_size=1, max_size=3),
    )
    def create(self, name: str, counts: list[tuple[int, ...]]) -> None:
        if self.metadata.topic_named(name) is None:
            self.made += 1
            id = f"t{self.made}"
            parts = [partition(id, number, leader=nodes[0], replicas=nodes) for number, nodes in enumerate(counts)]
            self.it.create(name, id, *parts)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.metadata.topics:
            self.it.append(TopicRemoved(data.draw(st.sampled_from(sorted(self.metadata.topics))), 0))

    @rule(data=st.data(), retention=st.sampled_from(["1h", "2h"]))
    def alter(self, data: st.DataObject, retention: str) -> None:
        if self.metadata.topics:
            id = data.draw(st.sampled_from(sorted(self.metadata.topics)))
            self.it.append(TopicAltered(id, {"retention": retention}))

    @rule(data=st.data())
    def move_leader(self, data: st.DataObject) -> None:
        if self.metadata.partitions:
            found = self.metadata.partitions[data.draw(st.sampled_from(sorted(self.metadata.partitions)))]
            leader = data.draw(st.sampled_from([one for one in (*found.replicas, None) if one != found.leader]))
            self.it.append(changed(found, leader=leader))

    @rule()
    def run_one(self) -> None:
        if self.it.node.workers.jobs:
            self.it.node.workers.run_one()

    @rule()
    def settle(self) -> None:
        self.it.settle()

    @rule()
    def restart(self) -> None:
        self.it.node.workers.run_all()
        self.it.restart()
        self.it.register()

    @invariant()
    @precondition(lambda self: hasattr(self, "it"))
    def nothing_is_led_that_is_not_ours(self) -> None:
        for leader in self.it.node.broker.partitions.all_leaders():
            name, number = leader.origin
            id = self.it.node.broker.partitions.any_topic(name).topic.id
            found = self.metadata.partition(id, number)
            assert found is not None
            assert (found.leader, found.leader_epoch) == (ME, leader.epoch)

    def teardown(self) -> None:
        if not hasattr(self, "it"):
            return
        self.it.settle()
        broker = self.it.node.broker
        assert broker.topics.list() == sorted(topic.name for topic in self.metadata.topics.values())
        for topic in self.metadata.topics.values():
            found = broker.partitions.any_topic(topic.name)
            assert found.topic.id == topic.id
            assert found.topic.settings == topic.settings
            wanted = {
                one.partition: "none"
                if one.leader is None
                else f"{'leads' if one.leader == ME else 'follows'} {one.leader_epoch}"
                for one in self.metadata.partitions_of(topic.id)
                if ME in one.replicas
            }
            assert self.it.roles(topic.name) == wanted
        broker.close()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(deadline=None, stateful_step_count=30)
