"""A broker that is told by a cluster what it has and leads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from goqueue.broker.authority import PartitionRoles
from goqueue.broker.coordination import GROUPS_TOPIC
from goqueue.errors import InvalidTopic, NotLeader, PartitionNotFound, TopicExists, TopicNotFound
from goqueue.service.messages import Stored
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.topics import NO_LEADER
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node


@dataclass
class PretendCluster:
    """A cluster of nodes 0 and 1: partitions with an even number are on node 0, which is the node under test."""

    asked: list[tuple[str, str, object]] = field(default_factory=list)
    waiting: list[Pending[None]] = field(default_factory=list)
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    numbers: int = 100

    def create_topic(
        self, name: str, *, partitions: int, replication_factor: int | None, settings: Mapping[str, object]
    ) -> Pending[None]:
        return self._ask("create", name, (partitions, replication_factor, dict(settings)))

    def alter_topic(self, name: str, changes: Mapping[str, object | None]) -> Pending[None]:
        return self._ask("alter", name, dict(changes))

    def delete_topic(self, name: str) -> Pending[None]:
        return self._ask("delete", name, None)

    def roles(self, topic_id: str, partition: int) -> PartitionRoles | None:
        leader = self.leaders.get((topic_id, partition))
        return None if leader is None else PartitionRoles(leader, 7, 9, (leader, 5), (leader,), (5,))

    def address(self, node: int) -> str:
        return f"127.0.0.1:700{node}"

    def take_producer_numbers(self) -> range:
        self.numbers += 10
        return range(self.numbers - 10, self.numbers)

    def _ask(self, what: str, name: str, more: object) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.asked.append((what, name, more))
        self.waiting.append(pending)
        return pending


@pytest.fixture
def authority() -> PretendCluster:
    return PretendCluster()


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock, authority: PretendCluster) -> Node:
    return Node(disk, clock, authority=authority)


def place(
    node: Node,
    name: str = "orders",
    replicas: Sequence[int] = (0, 2),
    partitions: int = 4,
    epochs: Mapping[int, int] | None = None,
) -> None:
    """Do what the reconciler does for a topic that the cluster has created."""
    placed = node.broker.partitions.place(
        name, topic_id="t-1", created_at_ns=5, partitions=partitions, replicas=replicas, settings={}, epochs=epochs
    )
    node.done(placed)


def test_a_topic_is_created_when_the_cluster_says_so(node: Node, authority: PretendCluster) -> None:
    created = node.broker.topics.create("orders", partitions=4, replication_factor=2, settings={"retention": "1h"})

    assert authority.asked == [("create", "orders", (4, 2, {"retention": "1h"}))]
    assert node.broker.topics.list() == []

    place(node)
    authority.waiting[0].resolve(None)

    assert node.done(created).topic_id == "t-1"
    assert node.broker.topics.list() == ["orders"]


def test_what_is_wrong_with_a_request_is_said_before_that(node: Node, authority: PretendCluster) -> None:
    place(node)

    with pytest.raises(InvalidTopic):
        node.broker.topics.create("bad name")
    with pytest.raises(TopicExists):
        node.broker.topics.create("orders")
    with pytest.raises(InvalidTopic, match="partitioner"):
        node.broker.topics.alter("orders", {"partitioner": "murmur2"})
    with pytest.raises(TopicNotFound):
        node.broker.topics.delete("missing")

    assert authority.asked == []


def test_a_refusal_of_the_cluster_reaches_the_caller(node: Node, authority: PretendCluster) -> None:
    created = node.broker.topics.create("orders")
    authority.waiting[0].fail(TopicExists("orders"))

    with pytest.raises(TopicExists):
        node.done(created)


def test_settings_and_deletions_are_decided_by_the_cluster(node: Node, authority: PretendCluster) -> None:
    place(node)
    partitions = node.broker.partitions
    altered = node.broker.topics.alter("orders", {"retention": "1h"})
    deleted = node.broker.topics.delete("orders")
    assert authority.asked == [("alter", "orders", {"retention": "1h"}), ("delete", "orders", None)]

    node.done(partitions.alter(partitions.catalog.begin_replace_settings("orders", {"retention": "1h"})))
    authority.waiting[0].resolve(None)
    assert node.done(altered).settings["retention"] == "1h"

    node.done(partitions.drop("orders"))
    authority.waiting[1].resolve(None)
    node.done(deleted)
    assert node.broker.topics.list() == []


def test_a_broker_leads_nothing_until_it_is_told_to(node: Node) -> None:
    place(node)

    with pytest.raises(NotLeader):
        node.publish(b"a", partition=0)
    node.broker.partitions.become_leader("orders", 0, 3)
    node.publish(b"a", partition=0)

    assert node.values(partition=0) == [b"a"]
    assert node.leader(partition=0).epoch == 3


def test_a_partition_that_is_elsewhere_has_another_leader_and_one_that_is_nowhere_is_not_found(node: Node) -> None:
    place(node)

    with pytest.raises(NotLeader):
        node.broker.partitions.leader("orders", 1)
    with pytest.raises(NotLeader):
        node.broker.partitions.become_leader("orders", 1, 3)
    with pytest.raises(PartitionNotFound):
        node.broker.partitions.leader("orders", 4)


def test_messages_are_spread_over_all_partitions_wherever_they_are(node: Node) -> None:
    place(node)
    for number in (0, 2):
        node.broker.partitions.become_leader("orders", number, 1)

    results = node.messages(*[NewMessage(b"v", None, None, partition) for partition in range(4)])

    assert [isinstance(result, Stored) for result in results] == [True, False, True, False]
    assert isinstance(results[1], NotLeader)


def test_a_description_says_who_has_each_partition(node: Node, authority: PretendCluster) -> None:
    place(node)
    authority.leaders = {("t-1", 0): 0, ("t-1", 1): 1}
    node.broker.partitions.become_leader("orders", 0, 7)
    node.publish(b"a", b"b", partition=0)

    info = node.broker.topics.describe("orders")

    assert [one.leader for one in info.partitions] == [0, 1, NO_LEADER, NO_LEADER]
    assert info.replication_factor == 2
    first = info.partitions[0]
    assert (first.replicas, first.isr, first.elr, first.version) == ((0, 5), (0,), (5,), 9)
    assert (first.end_offset, info.partitions[1].end_offset) == (2, 0)


def test_after_a_restart_replicas_are_there_and_have_no_role(
    node: Node, disk: MemoryDisk, clock: ManualClock, authority: PretendCluster
) -> None:
    place(node)
    node.broker.partitions.become_leader("orders", 2, 1)
    node.publish(b"a", partition=2)
    node.broker.close()

    again = Node(disk, clock, authority=authority)

    assert sorted(again.broker.partitions.any_topic("orders").replicas) == [0, 2]
    with pytest.raises(NotLeader):
        again.values(partition=2)
    again.broker.partitions.become_leader("orders", 2, 2)
    assert again.values(partition=2) == [b"a"]


def test_a_node_gets_more_replicas_of_a_topic_that_it_has(
    node: Node, disk: MemoryDisk, clock: ManualClock, authority: PretendCluster
) -> None:
    place(node)
    node.done(node.broker.partitions.host("orders", [3], epochs={3: 7}))
    node.broker.partitions.become_leader("orders", 3, 7)
    node.publish(b"a", partition=3)
    assert node.values(partition=3) == [b"a"]
    node.broker.close()

    again = Node(disk, clock, authority=authority)

    assert sorted(again.broker.partitions.any_topic("orders").replicas) == [0, 2, 3]


def test_a_new_replica_has_heard_of_the_epoch_of_its_leader_from_the_beginning_and_keeps_it_for_ever(
    node: Node, disk: MemoryDisk, clock: ManualClock, authority: PretendCluster
) -> None:
    place(node, epochs={0: 5, 2: 6})
    node.done(node.broker.partitions.host("orders", [3], epochs={3: 7}))
    node.done(node.broker.partitions.alter(node.broker.partitions.catalog.begin_alter("orders", {"retention": "1h"})))
    steps = disk.steps
    node.broker.partitions.become_follower("orders", 0, 5)
    assert disk.steps == steps  # it was on the disk already

    again = Node(disk.crash(), clock, authority=authority)

    replicas = again.broker.partitions.any_topic("orders").replicas
    assert {number: replica.epoch for number, replica in replicas.items()} == {0: 5, 2: 6, 3: 7}


def test_a_topic_without_a_replica_here_is_known(node: Node) -> None:
    place(node, replicas=())

    assert node.broker.topics.list() == ["orders"]
    assert node.broker.partitions.partition_counts() == {"orders": 4}


def test_internal_topics_are_created_by_the_cluster_and_only_once(node: Node, authority: PretendCluster) -> None:
    journals = node.broker.coordinators.journals(GROUPS_TOPIC)
    first, second = journals.open("a"), journals.open("b")
    assert [(what, name) for what, name, _ in authority.asked] == [("create", GROUPS_TOPIC)]

    authority.waiting[0].fail(TopicExists(GROUPS_TOPIC))  # another node was first
    assert not first.is_done
    place(node, GROUPS_TOPIC, replicas=range(16), partitions=16)

    assert first.is_done
    assert second.is_done
    assert isinstance(first.error, NotLeader)  # until the metadata says who leads


def test_producers_get_numbers_that_the_cluster_has_given_to_this_node(node: Node, authority: PretendCluster) -> None:
    node.broker.messages.init_producer()

    assert authority.numbers > 100
