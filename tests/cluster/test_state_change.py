"""What a node has missed that goes on from a snapshot."""

from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import (
    BrokerChanged,
    BrokerRemoved,
    BrokerStatus,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
)
from goqueue.cluster.state_change import records_between
from tests.cluster.history import partition, registration, with_topic


def test_equal_states_have_no_difference() -> None:
    history = with_topic()

    assert list(records_between(history.metadata, history.replayed())) == []


def test_the_difference_to_nothing_is_everything() -> None:
    history = with_topic()

    records = list(records_between(Metadata(), history.metadata))

    assert [record for record in records if isinstance(record, TopicAdded)] == list(history.metadata.topics.values())
    assert partition() in records
    assert registration(2) in records


def test_what_was_removed_added_and_changed_is_told() -> None:
    history = with_topic()
    history.append(TopicAdded("t2", "gone", 0, 1), partition(topic_id="t2"))
    history.register(4)
    before = history.metadata.copy()
    history.append(TopicRemoved("t2", 5))
    history.append(BrokerChanged(4, before.brokers[4].broker_epoch, BrokerStatus.FENCED))
    history.append(BrokerRemoved(4, before.brokers[4].broker_epoch))
    history.append(TopicAltered("t1", {"retention": "1h"}))
    history.append(partition(partition_epoch=1, leader_epoch=2, leader=2))
    history.append(TopicAdded("t3", "gone", 0, 1), partition(topic_id="t3"))

    records = list(records_between(before, history.metadata))

    assert records == [
        BrokerRemoved(4, before.brokers[4].broker_epoch),
        TopicRemoved("t2", 0),
        TopicAltered("t1", {"retention": "1h"}),
        partition(partition_epoch=1, leader_epoch=2, leader=2),
        TopicAdded("t3", "gone", 0, 1),
        partition(topic_id="t3"),
    ]


def test_another_process_of_a_node_is_told() -> None:
    history = with_topic(replicas=(1, 2), isr=(1, 2))
    before = history.metadata.copy()
    history.append(BrokerChanged(3, before.brokers[3].broker_epoch, BrokerStatus.FENCED))
    index = history.register(3, "b")

    assert list(records_between(before, history.metadata)) == [
        registration(3, "b"),
        BrokerChanged(3, index, BrokerStatus.ONLINE),
    ]
