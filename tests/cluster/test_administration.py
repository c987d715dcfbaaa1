"""What administrators ask for is decided once, or refused with an error that says what to do."""

from typing import Any

import pytest

from goqueue.cluster.administration import PRODUCER_IDS
from goqueue.cluster.messages import (
    AlterTopic,
    Carried,
    CreateTopic,
    Decide,
    DecisionFailed,
    DeleteTopic,
    Done,
    ElectLeaders,
    ProducerIdBlock,
    PutDocument,
    RefusalReason,
    SetFeatureLevel,
    TakeProducerIds,
    TopicDecided,
)
from goqueue.cluster.records import DocumentKind
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    Forbidden,
    InvalidConfig,
    InvalidTopic,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from tests.cluster.controlled import ControlledCluster
from tests.cluster.mutations import Modules

# Topics


def test_a_topic_has_the_counts_that_were_asked_for() -> None:
    cluster = ControlledCluster(nodes=3)

    topic_id = cluster.create("orders", partitions=4, replicas=2, retention="1h")

    topic = cluster.metadata.topic(topic_id)
    assert (topic.name, topic.partition_count, topic.settings) == ("orders", 4, {"retention": "1h"})
    assert topic.created_at_ns == cluster.now.wall_ns
    for partition in cluster.metadata.partitions_of(topic_id):
        assert len(partition.replicas) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (1, 0)


def test_a_topic_has_the_counts_of_the_cluster_if_its_creator_does_not_say() -> None:
    cluster = ControlledCluster(nodes=3, partitions=5, replication_factor=2)

    answer = cluster.decide(CreateTopic, name="orders")

    partitions = list(cluster.metadata.partitions_of(answer.topic_id))
    assert [len(partition.replicas) for partition in partitions] == [2] * 5


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"name": "a/b"}, InvalidTopic, "must be 1 to 249"),
        ({"name": "__x"}, Forbidden, "reserved"),
        ({"partitions": 0}, InvalidTopic, "num_partitions"),
        ({"partitions": 1_001}, InvalidTopic, "1 to 1000"),
        ({"replication_factor": 0}, InvalidTopic, "replication_factor"),
        ({"replication_factor": 3}, InvalidTopic, "2 brokers are online: start more nodes, or ask for 2"),
        ({"settings": {"retentoin": "1h"}}, InvalidTopic, "did you mean retention"),
        ({"settings": {"retention": 5}}, InvalidTopic, "retention"),
        ({"settings": {"dead_letter_topic": "new"}}, InvalidTopic, "the topic itself"),
        ({"name": "orders"}, TopicExists, "orders"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    cluster = ControlledCluster(nodes=2)
    cluster.create("orders", replicas=1)
    entries = len(cluster.history.entries)

    with pytest.raises(error, match=text):
        cluster.decide(CreateTopic, **{"name": "new"} | fields)

    assert len(cluster.history.entries) == entries


def test_an_internal_topic_is_for_nodes_to_ask_for() -> None:
    cluster = ControlledCluster(nodes=1)

    cluster.decide(CreateTopic, name="__groups", partitions=16, is_internal=True)

    with pytest.raises(Forbidden):
        cluster.decide(AlterTopic, name="__groups", changes={"retention": "1h"})
    with pytest.raises(Forbidden):
        cluster.decide(DeleteTopic, name="__groups")
    cluster.decide(DeleteTopic, name="__groups", is_internal=True)
    assert not cluster.metadata.topics


def test_no_topic_is_created_while_no_broker_is_online() -> None:
    cluster = ControlledCluster()

    with pytest.raises(BrokerUnavailable, match="no broker") as raised:
        cluster.decide(CreateTopic, name="orders")
    assert raised.value.retryable


def test_replicas_are_placed_on_brokers_that_stay(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=4)
    cluster.create("first", partitions=4, replicas=2)
    cluster.lose(2)
    cluster.stop(3)

    topic = cluster.create("orders", partitions=6, replicas=2)

    hosts = {node for partition in cluster.metadata.partitions_of(topic) for node in partition.replicas}
    assert hosts == {1, 4}


def test_racks_of_brokers_are_respected() -> None:
    cluster = ControlledCluster()
    for node in range(1, 5):
        cluster.join(node, rack="ab"[node % 2])

    topic = cluster.create(partitions=8, replicas=2)

    for partition in cluster.metadata.partitions_of(topic):
        assert {node % 2 for node in partition.replicas} == {0, 1}


def test_many_small_topics_are_balanced(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    for number in range(30):
        cluster.create(f"t{number}", partitions=1, replicas=2)

    assert [cluster.metadata.leader_count(node) for node in (1, 2, 3)] == [10, 10, 10]
    assert [cluster.metadata.replica_count(node) for node in (1, 2, 3)] == [20, 20, 20]


def test_settings_of_a_topic_change() -> None:
    cluster = ControlledCluster(nodes=1)
    topic = cluster.create(replicas=1, retention="1h", acks="leader")

    assert cluster.decide(AlterTopic, name="orders", changes={"retention": "2h", "acks": None}) == TopicDecided(topic)

    assert cluster.metadata.topic(topic).settings == {"retention": "2h"}


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("missing", {}, TopicNotFound),
        ("orders", {"retention": "x"}, InvalidTopic),
        ("orders", {"x": 1}, InvalidTopic),
        ("orders", {"partitioner": "murmur2"}, InvalidTopic),
        ("orders", {"dead_letter_topic": "other"}, InvalidTopic),
    ],
)
def test_a_change_that_cannot_be_is_refused(name: str, changes: dict[str, Any], error: type[Exception]) -> None:
    cluster = ControlledCluster(nodes=1)
    cluster.create("orders", replicas=1)
    cluster.create("other", replicas=1, dead_letter_topic="orders")

    with pytest.raises(error):
        cluster.decide(AlterTopic, name=name, changes=changes)


def test_nobody_is_eligible_once_fewer_in_sync_are_enough(modules: Modules) -> None:
    """From the change on, the leader commits alone what an eligible replica lacks."""
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    leader, second, third = cluster.partition(topic).replicas
    cluster.decide(AlterTopic, name="orders", changes={"min_insync_replicas": 3})
    cluster.set_isr(topic, leader, second)
    cluster.set_isr(topic, leader)
    cluster.decide(AlterTopic, name="orders", changes={"min_insync_replicas": 2})
    assert set(cluster.partition(topic).elr) == {second, third}

    cluster.decide(AlterTopic, name="orders", changes={"min_insync_replicas": 1})

    assert cluster.partition(topic).elr == ()


def test_a_deleted_topic_is_gone() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create()

    assert cluster.decide(DeleteTopic, name="orders") == TopicDecided(topic)

    assert cluster.metadata.topic(topic) is None
    with pytest.raises(TopicNotFound):
        cluster.decide(DeleteTopic, name="orders")
    assert cluster.create() != topic


# Once


def test_a_request_that_comes_again_has_the_same_answer(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=1)
    create = Decide(0, CreateTopic("r1", "orders", 1, 1))
    first, second = cluster.ask(create), cluster.ask(create)

    assert isinstance(second, Done)
    assert second.answer == first.answer
    cluster.elect(1)
    cluster.beat(1)
    again = cluster.ask(create)

    assert again.answer == first.answer
    assert again.index >= first.index
    assert len(cluster.metadata.topics) == 1


def test_a_request_that_is_under_way_is_answered_when_it_is_done() -> None:
    cluster = ControlledCluster(nodes=1)
    create = Decide(0, CreateTopic("r1", "orders", 1, 1))

    first, again = (cluster.controller.handle(create, cluster.now) for _ in range(2))

    assert not first.is_done
    assert not again.is_done
    cluster.write()
    assert first.result() == again.result()


def test_a_request_that_failed_may_succeed_later() -> None:
    cluster = ControlledCluster()
    create = Decide(0, CreateTopic("r1", "orders", 1, 1))
    failed = cluster.ask(create)
    assert isinstance(failed, DecisionFailed)
    assert failed.code == "BROKER_NOT_AVAILABLE"

    cluster.join(1)

    assert isinstance(cluster.ask(create), Done)


# The rest


def test_blocks_of_producer_ids_do_not_overlap(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=1)

    asked = [cluster.controller.handle(Decide(0, TakeProducerIds(1)), cluster.now) for _ in range(2)]
    cluster.write()
    cluster.elect(1)
    asked.append(cluster.controller.handle(Decide(0, TakeProducerIds(1)), cluster.now))
    cluster.write()

    blocks = [pending.result().answer for pending in asked]
    assert blocks == [ProducerIdBlock(number * PRODUCER_IDS, PRODUCER_IDS) for number in range(3)]


def test_documents_are_stored_and_removed() -> None:
    cluster = ControlledCluster(nodes=1)

    assert cluster.decide(PutDocument, kind=DocumentKind.ACL, name="a", value=b"1") == Carried()
    assert cluster.metadata.document(DocumentKind.ACL, "a") == b"1"
    cluster.decide(PutDocument, kind=DocumentKind.ACL, name="a", value=None)
    assert cluster.metadata.documents(DocumentKind.ACL) == {}


def test_the_feature_level_rises_when_every_node_knows_it() -> None:
    cluster = ControlledCluster(nodes=1)
    cluster.join(2, feature_level_max=9)

    assert cluster.decide(SetFeatureLevel, level=1) == Carried()
    with pytest.raises(Conflict, match="nodes 1: update"):
        cluster.decide(SetFeatureLevel, level=2)
    with pytest.raises(Conflict, match="cannot go back"):
        cluster.decide(SetFeatureLevel, level=0)
    assert cluster.metadata.feature_level == 1


def test_a_level_that_this_version_does_not_know_is_refused() -> None:
    cluster = ControlledCluster()
    cluster.join(2, feature_level_max=9)

    with pytest.raises(Conflict, match="this version"):
        cluster.decide(SetFeatureLevel, level=9)


def test_leaders_are_elected_for_topics_that_exist() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create(partitions=3)
    cluster.lose(2)
    cluster.beat(2)
    for number in range(3):
        cluster.set_isr(topic, 1, 2, 3, number=number)
    moved = next(n for n in range(3) if cluster.partition(topic, n).replicas[0] == 2)

    with pytest.raises(TopicNotFound):
        cluster.decide(ElectLeaders, topic="missing")
    with pytest.raises(PartitionNotFound):
        cluster.decide(ElectLeaders, topic="orders", partitions=(0, 3))
    assert cluster.decide(ElectLeaders, topic="orders", partitions=(moved, moved)).count == 1
    assert cluster.decide(ElectLeaders).count == 0
    assert cluster.partition(topic, moved).leader == 2


def test_defaults_of_topics_are_positive() -> None:
    with pytest.raises(InvalidConfig, match="partitions"):
        ControlledCluster(partitions=0)


def test_who_must_ask_again_can_tell() -> None:
    retryable = {reason for reason in RefusalReason if reason.is_retryable}

    assert retryable == {RefusalReason.NOT_CONTROLLER, RefusalReason.NODE_ID_TAKEN, RefusalReason.OVERLOADED}
