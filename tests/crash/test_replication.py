"""Real nodes that replicate: leaders are killed under load, followers stand still or are away, and nothing is lost.

The tests print how long it took until messages flowed again; what is promised is promised for a quiet machine.
"""

from contextlib import suppress
from itertools import count
from pathlib import Path
from time import monotonic

from goqueue import Consumer, Message
from goqueue.broker.coordination import GROUPS_TOPIC, partition_of
from goqueue.errors import NotLeader
from tests.crash.cluster_processes import ClusterProcesses, wait_until
from tests.crash.replicated_load import ReplicatedTopic, publishers, stop_all

KILLS = 3
PATIENCE_OF_A_PUBLISHER_S = 30.0
VISIBILITY = "2s"
"""For what the killed leader had delivered."""


def test_what_was_acknowledged_survives_the_leader(tmp_path: Path) -> None:
    with ClusterProcesses.over_files(tmp_path) as cluster:
        topic = ReplicatedTopic.create(cluster, partitions=3)
        with publishers(topic) as started:
            for _ in range(KILLS):
                for one in started:
                    one.wait_for_more()
                leader = topic.leading(0)
                killed_s = monotonic()
                leader.kill()
                topic.wait_led_by_another(leader)
                print(
                    f"all partitions have a leader {monotonic() - killed_s:.2f} s after node {leader.node} was killed"
                )
                for one in started:
                    one.wait_for_more()
                print(f"messages flow {monotonic() - killed_s:.2f} s after it was killed")
                started_s = monotonic()
                leader.start()
                topic.wait_in_sync()
                print(f"all replicas are in sync {monotonic() - started_s:.2f} s after it was started")

        for one in started:
            one.check()
            print(f"{len(one.acknowledged)} messages were acknowledged, {len(one.in_doubt)} published again")
        topic.wait_replicated()
        stop_all(cluster)
        assert topic.differences() == []


def test_a_follower_that_stands_still_leaves_and_comes_back(tmp_path: Path) -> None:
    with ClusterProcesses.over_files(tmp_path) as cluster:
        topic = ReplicatedTopic.create(cluster)
        follower = next(process for process in topic.followers() if process.node != cluster.witness.controller)
        with topic.leading().client(PATIENCE_OF_A_PUBLISHER_S) as client:
            client.publish("orders", b"before")
            follower.pause()
            paused_s = monotonic()
            client.publish("orders", b"meanwhile")
            print(f"acknowledged {monotonic() - paused_s:.2f} s after the follower stood still")
            topic.wait_without(follower.node)
            client.publish_many("orders", [b"meanwhile"] * 1_000)
            follower.resume()
            resumed_s = monotonic()
            topic.wait_in_sync()
            print(f"in sync {monotonic() - resumed_s:.2f} s after it went on")
            client.publish("orders", b"after")

        assert list(topic.read().values()) == [b"before", *[b"meanwhile"] * 1_001, b"after"]
        topic.wait_replicated()
        stop_all(cluster)
        assert topic.differences() == []


def test_a_node_that_was_away_catches_up(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(5_000)]
    with ClusterProcesses.over_files(tmp_path) as cluster:
        topic = ReplicatedTopic.create(cluster)
        follower = topic.followers()[0]
        with topic.leading().client() as client:
            client.publish_many("orders", values[:1_000])
            follower.kill()
            for first in range(1_000, len(values), 1_000):
                client.publish_many("orders", values[first : first + 1_000])
        topic.wait_without(follower.node)
        started_s = monotonic()
        follower.start()
        topic.wait_in_sync()
        print(f"in sync {monotonic() - started_s:.2f} s after it was started")

        assert list(topic.read().values()) == values
        topic.wait_replicated()
        stop_all(cluster)
        assert topic.differences() == []


def test_a_node_that_has_just_come_back_can_lead(tmp_path: Path) -> None:
    """It does not know yet what is committed, so it serves only when its followers have all that it has."""
    with ClusterProcesses.over_files(tmp_path) as cluster:
        topic = ReplicatedTopic.create(cluster)
        for number in range(KILLS):
            leader = topic.leading()
            with leader.client() as client:
                client.publish("orders", b"%d" % number)
            if number:
                for follower in topic.followers():
                    follower.kill()
                    follower.start()
                    topic.wait_in_sync()
            leader.kill()
            topic.wait_led_by_another(leader)
            with topic.leading().client() as client:
                client.publish("orders", b"%d, by another leader" % number)
            leader.start()
            topic.wait_in_sync()

        stored = [value for number in range(KILLS) for value in (b"%d" % number, b"%d, by another leader" % number)]
        assert list(topic.read().values()) == stored
        topic.wait_replicated()
        stop_all(cluster)
        assert topic.differences() == []


# --- groups --------------------------------------------------------------------------------------


def test_acks_of_a_group_survive_the_leader(tmp_path: Path) -> None:
    with ClusterProcesses.over_files(tmp_path, env={"GOQUEUE_CLUSTER_REPLICATION_FACTOR": "3"}) as cluster:
        topic = ReplicatedTopic.create(cluster)
        groups = create_groups_topic(topic)
        group = group_that_moves_with(topic, groups)
        leader = topic.leading()
        with leader.client() as client:
            client.publish_many("orders", [b"%d" % number for number in range(100)])
            consumer = client.consumer("orders", group=group, mode="shared", visibility=VISIBILITY, auto_extend=False)
            polled = poll_until(consumer, 100)
            consumer.ack([message for message in polled if int(message.value) % 2])
            consumer.flush()
            leader.kill()
        topic.wait_led_by_another(leader)
        groups.wait_led_by_another(leader)

        with topic.leading().client() as client:
            consumer = client.consumer("orders", group=group, mode="shared", visibility="60s")
            killed_s = monotonic()
            again = poll_until(consumer, 50)
            print(f"all delivered again in {monotonic() - killed_s:.2f} s")
            assert sorted(int(message.value) for message in again) == list(range(0, 100, 2))
            assert consumer.poll(timeout="100ms") == []
            consumer.ack(again)
            consumer.close()
        leader.start()
        for replicated in (topic, groups):
            replicated.wait_in_sync()
            replicated.wait_replicated()
        assert topic.stored_bytes("ledger") > 0
        stop_all(cluster)
        assert topic.differences() == []
        assert groups.divergences() == []  # coordinators may write while the first of the nodes have stopped


def create_groups_topic(topic: ReplicatedTopic) -> ReplicatedTopic:
    """The topic of the coordinators, which is created when the first member joins."""
    with topic.leading().client(1.0) as client, suppress(NotLeader):
        hasty = client.consumer(topic.name, group="first", mode="shared")
        hasty.poll(1, timeout="10ms")
        hasty.close()
    return ReplicatedTopic(topic.cluster, GROUPS_TOPIC)


def group_that_moves_with(topic: ReplicatedTopic, groups: ReplicatedTopic) -> str:
    """The name of a group whose coordinator leads partition 0, also after the next failover: so far a consumer talks to
    one node.
    """
    return next(
        group
        for group in (f"workers-{number}" for number in count())
        if groups.partition(partition_of(group, GROUPS_TOPIC)).replicas == topic.partition().replicas
    )


def poll_until(consumer: Consumer, messages: int) -> list[Message]:
    """Poll until there are so many messages."""
    polled: list[Message] = []

    def are_there() -> bool:
        polled.extend(consumer.poll(timeout="100ms"))
        return len(polled) >= messages

    wait_until(are_there, f"{messages} messages are delivered")
    return polled
