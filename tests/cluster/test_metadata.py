"""The state of the cluster is a fold of the log: who may write, what fits, and that all nodes get the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.cluster.metadata import REQUEST_KEPT_NS, REQUESTS_KEPT_MAX, REQUESTS_KEPT_MIN, Metadata, min_insync
from goqueue.cluster.metadata_log import MetadataEntry
from goqueue.cluster.records import (
    BrokerChanged,
    BrokerRemoved,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    DocumentKind,
    DocumentPut,
    FeatureLevelSet,
    LogSealed,
    PartitionChanged,
    ProducerIdsTaken,
    Record,
    Recovered,
    RequestDone,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
)
from goqueue.errors import MetadataContradiction, MetadataDamaged, MetadataTooNew
from tests.cluster.history import CLUSTER_ID, History, formed, partition, registration, with_topic
from tests.cluster.mutations import Modules

LEVEL = FeatureLevelSet(1)


def indices(state: Any) -> object:
    """What is derived, without its order."""
    names = ("_replicas_on", "_led_by")
    by_node = [{node: set(keys) for node, keys in getattr(state, name).items() if keys} for name in names]
    preferred = {node: count for node, count in state._preferred_on.items() if count}
    return [*by_node, preferred, set(state._misplaced), dict(sorted(state._topic_ids.items()))]


# Who may write


def test_a_cluster_begins_with_its_first_entry() -> None:
    history = History()

    assert history.append(ClusterCreated(CLUSTER_ID, 1, 5), epoch=0, node=1)

    assert history.metadata.is_formed
    assert (history.metadata.cluster_id, history.metadata.created_at_ns) == (CLUSTER_ID, 5)
    assert history.metadata.controller is None


def test_a_second_cluster_in_the_log_is_ignored(modules: Modules) -> None:
    history = formed(modules)

    assert history.append(ClusterCreated("other", 1, 5), epoch=0, node=2) == []

    assert history.metadata.cluster_id == CLUSTER_ID


def test_nothing_is_decided_before_there_is_a_cluster() -> None:
    history = History()

    assert history.append(ControllerElected(1, 1, "1a"), epoch=1, node=1) == []
    assert history.append(LEVEL, epoch=0, node=1) == []
    assert history.append() == []


def test_an_entry_of_a_deposed_controller_is_ignored(modules: Modules) -> None:
    history = formed(modules)
    history.elect(2)

    assert history.append(LEVEL, epoch=1, node=1) == []
    assert history.append(LEVEL, epoch=2, node=2) == [LEVEL]


def test_an_entry_of_a_deposed_controller_is_ignored_even_if_it_cannot_be_read() -> None:
    history = formed()
    history.elect(2)

    entry = history.entry(LEVEL, epoch=1, node=1)
    unreadable = MetadataEntry(entry.index, entry.id, entry.previous_id, 1, 1, b"\x09new things")

    assert history.take(unreadable) == []


def test_an_entry_of_an_epoch_that_did_not_begin_is_ignored(modules: Modules) -> None:
    history = formed(modules)

    assert history.append(LEVEL, epoch=2, node=1) == []
    assert history.append(LEVEL, epoch=2, node=2) == []


def test_an_entry_of_a_node_that_is_not_the_controller_is_ignored(modules: Modules) -> None:
    history = formed(modules)

    assert history.append(LEVEL, node=2) == []


def test_an_entry_that_was_computed_after_another_one_is_ignored(modules: Modules) -> None:
    history = formed(modules)

    assert history.append(LEVEL, previous_id=b"another" + bytes(9)) == []

    assert history.append(LEVEL) == [LEVEL]  # the log goes on after it


def test_an_epoch_is_one_above_the_last(modules: Modules) -> None:
    history = formed(modules)

    for epoch in (0, 1, 3):
        assert history.append(ControllerElected(epoch, 2, "2a"), epoch=epoch, node=2) == []

    assert (history.metadata.epoch, history.metadata.controller) == (1, 1)


def test_a_node_elects_itself_only(modules: Modules) -> None:
    history = formed(modules)

    assert history.append(ControllerElected(2, 3, "3a"), epoch=2, node=2) == []
    assert history.append(ControllerElected(2, 3, "3a"), epoch=1, node=3) == []


def test_an_ignored_entry_still_counts_in_position_and_chain() -> None:
    history = formed()
    before = history.metadata.chain

    history.append(LEVEL, node=2)

    assert history.metadata.position.index == 3
    assert history.metadata.chain != before


def test_after_a_gap_the_node_halts() -> None:
    history = formed()
    later = history.entry(LEVEL)

    with pytest.raises(MetadataContradiction, match="the last one applied is 2"):
        history.metadata.apply(MetadataEntry(4, later.id, later.previous_id, 1, 1, later.batch))


def test_after_the_seal_nothing_takes_effect(modules: Modules) -> None:
    history = formed(modules)
    history.append(LogSealed("etcd://h:2379"))

    assert history.append(LEVEL) == []
    assert history.append(ControllerElected(2, 2, "2a"), epoch=2, node=2) == []
    assert history.metadata.sealed_to == "etcd://h:2379"


# Brokers


def test_the_broker_epoch_is_the_index_of_the_registration(modules: Modules) -> None:
    history = formed(modules)

    history.append(LEVEL)
    broker_epoch = history.register(3, online=False)

    state = history.metadata.broker(3)
    assert broker_epoch == state.broker_epoch == 4
    assert state.is_fenced
    assert state.node == 3
    assert not state.is_online


def test_a_node_is_registered_anew_only_once_it_is_fenced(modules: Modules) -> None:
    history = formed(modules)
    first = history.register(1)

    with pytest.raises(MetadataContradiction, match="online as incarnation 1a"):
        history.metadata.copy().apply(history.entry(registration(1, "b")))

    history.append(BrokerChanged(1, first, BrokerStatus.FENCED))
    assert history.register(1, "b") > first


def test_a_change_of_an_earlier_incarnation_is_a_contradiction(modules: Modules) -> None:
    history = formed(modules)
    first = history.register(1)
    history.append(BrokerChanged(1, first, BrokerStatus.FENCED))
    second = history.register(1, "b")

    with pytest.raises(MetadataContradiction, match=f"broker epoch is {second}"):
        history.append(BrokerChanged(1, first, BrokerStatus.ONLINE))


def test_a_leaving_broker_that_restarts_is_still_leaving() -> None:
    history = formed()
    first = history.register(1)
    history.append(BrokerChanged(1, first, BrokerStatus.FENCED, is_leaving=True))

    history.register(1, "b", online=False)

    assert history.metadata.broker(1).is_leaving


def test_a_broker_that_leads_cannot_be_fenced(modules: Modules) -> None:
    history = with_topic(modules)

    with pytest.raises(MetadataContradiction, match="it leads"):
        history.append(BrokerChanged(1, history.metadata.broker(1).broker_epoch, BrokerStatus.FENCED))


def test_a_broker_that_is_in_sync_cannot_be_fenced(modules: Modules) -> None:
    history = with_topic(modules)

    with pytest.raises(MetadataContradiction, match="it is in sync"):
        history.append(BrokerChanged(2, history.metadata.broker(2).broker_epoch, BrokerStatus.FENCED))


def test_a_broker_with_replicas_cannot_be_removed(modules: Modules) -> None:
    history = with_topic(modules)
    epoch = history.metadata.broker(2).broker_epoch

    with pytest.raises(MetadataContradiction, match="it has replicas"):
        history.metadata.copy().apply(history.entry(BrokerRemoved(2, epoch)))

    history.append(TopicRemoved("t1", 0))
    history.append(BrokerRemoved(2, epoch))
    assert history.metadata.broker(2) is None
    assert history.metadata.online() == [1, 3]


def test_only_the_known_broker_can_be_removed() -> None:
    history = formed()
    epoch = history.register(1)

    with pytest.raises(MetadataContradiction, match="broker epoch"):
        history.append(BrokerRemoved(1, epoch + 1))


# Topics and partitions


def test_a_topic_has_its_partitions_from_the_first_moment(modules: Modules) -> None:
    history = with_topic(modules)

    with pytest.raises(MetadataContradiction, match="has no partition 1"):
        history.append(TopicAdded("t2", "half", 0, 2), partition(topic_id="t2"))


@pytest.mark.parametrize(
    "record",
    [
        TopicAdded("t1", "other", 0, 1),
        TopicAdded("t2", "orders", 0, 1),
        TopicAdded("t2", "empty", 0, 0),
        TopicAltered("t2", {}),
        TopicRemoved("t2", 0),
        ClusterCreated("other", 1, 0),
        ControllerElected(3, 1, "1a"),
        ProducerIdsTaken(1, 1, 1000),
        ProducerIdsTaken(1, 0, 0),
        FeatureLevelSet(0),
        Recovered(2, 9),
    ],
)
def test_a_record_that_does_not_fit_halts_the_node(record: Record) -> None:
    history = with_topic()

    with pytest.raises(MetadataContradiction, match="contradicts the state"):
        history.append(LEVEL, record)


def change(before: PartitionChanged, **changes: Any) -> PartitionChanged:
    return msgspec.structs.replace(before, **{"partition_epoch": before.partition_epoch + 1} | changes)


P = partition()


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (change(P, topic_id="t9"), "no such topic"),
        (change(P, partition=1), "has 1 partitions"),
        (change(P, partition=-1), "has 1 partitions"),
        (change(P, partition_epoch=0), "partition_epoch is 0"),
        (change(P, partition_epoch=2), "partition_epoch is 0"),
        (change(P, leader_epoch=0), "leader_epoch is 1"),
        (change(P, leader_epoch=3), "leader_epoch is 1"),
        (change(P, leader=2), "leader_epoch is 1, and the leader 1"),
        (change(P, leader=None), "leader_epoch is 1, and the leader 1"),
        (change(P, leader=4, leader_epoch=2), "leader is not in sync"),
        (change(P, isr=(2, 3)), "leader is not in sync"),
        (change(P, isr=(1, 4)), "node 4 is not one of its replicas"),
        (change(P, isr=(1, 1)), "or twice"),
        (change(P, elr=(9,)), "node 9 is not"),
        (change(P, adding=(9,)), "node 9 is not"),
        (change(P, removing=(9,)), "node 9 is not"),
        (change(P, elr=(2,)), "at once"),
        (change(P, replicas=()), "not a set"),
        (change(P, replicas=(1, 2, 3, 3)), "not a set"),
        (change(P, replicas=(1, 2, 3, 7)), "node 7 is not registered"),
        (change(P, is_unclean=True), "begins a leader_epoch"),
        (change(P, is_unclean=True, leader=None, leader_epoch=2), "nobody was chosen"),
    ],
)
def test_a_partition_that_does_not_follow_from_the_last_is_a_contradiction(
    record: PartitionChanged, says: str, modules: Modules
) -> None:
    history = with_topic(modules)

    with pytest.raises(MetadataContradiction, match=says):
        history.append(record)


@pytest.mark.parametrize("wrong", [{"partition_epoch": 1}, {"leader_epoch": 0}])
def test_epochs_of_a_partition_begin_where_they_begin(wrong: dict[str, int]) -> None:
    with pytest.raises(MetadataContradiction, match="a new partition has"):
        with_topic(**wrong)


def shrunk(history: History, **changes: Any) -> PartitionChanged:
    """The partition with 1 in sync and 2 eligible; 3 is neither."""
    first = change(P, isr=(1, 2))
    second = change(first, isr=(1,), elr=(2,))
    history.append(first)
    history.append(second)
    return change(second, **changes)


def test_a_leader_comes_from_the_isr_or_is_eligible(modules: Modules) -> None:
    history = with_topic(modules)
    from_elr = shrunk(history, leader=2, leader_epoch=2, isr=(2,), elr=(1,))
    from_outside = msgspec.structs.replace(from_elr, leader=3, isr=(3,))

    assert history.metadata.copy().apply(history.entry(from_elr))
    with pytest.raises(MetadataContradiction, match="neither in sync nor eligible"):
        history.append(from_outside)


def test_an_operator_may_choose_another_leader() -> None:
    history = with_topic()
    unclean = shrunk(history, leader=3, leader_epoch=2, isr=(3,), elr=(), is_unclean=True)

    assert history.append(unclean) == [unclean]


def test_no_replica_becomes_eligible_that_was_not_in_sync(modules: Modules) -> None:
    history = with_topic(modules)

    with pytest.raises(MetadataContradiction, match="became eligible"):
        history.append(shrunk(history, elr=(2, 3)))


def test_a_fenced_broker_is_in_no_isr(modules: Modules) -> None:
    history = with_topic(modules)
    without = change(P, isr=(1, 2))
    history.append(without)
    history.append(BrokerChanged(3, history.metadata.broker(3).broker_epoch, BrokerStatus.FENCED))

    with pytest.raises(MetadataContradiction, match="node 3 is fenced"):
        history.append(change(without, isr=(1, 2, 3)))


def test_a_deleted_topic_leaves_nothing() -> None:
    history = with_topic()

    history.append(TopicRemoved("t1", 0))

    state = history.metadata
    assert not state.partitions
    assert not state.topics
    assert state.topic_named("orders") is None
    assert [*state.replicas_on(1), *state.led_by(1), *state.misplaced()] == []
    assert list(state.partitions_of("t1")) == []
    history.append(TopicAdded("t2", "orders", 0, 1), partition(topic_id="t2"))
    assert state.topic_named("orders") == state.topic("t2")


def test_lookups_agree_with_the_partitions() -> None:
    history = with_topic()
    moved = change(P, leader=2, leader_epoch=2)

    history.append(moved)

    state = history.metadata
    assert state.partition("t1", 0) == moved
    assert list(state.partitions_of("t1")) == [moved]
    assert list(state.led_by(2)) == list(state.misplaced()) == list(state.replicas_on(3)) == [("t1", 0)]
    assert (state.leader_count(1), state.leader_count(2), state.replica_count(1), state.replica_count(9)) == (
        0,
        1,
        1,
        0,
    )


@pytest.mark.parametrize(
    ("settings", "replicas", "needed"),
    [
        ({}, 1, 1),
        ({}, 2, 1),
        ({}, 3, 2),
        ({}, 5, 2),
        ({"min_insync_replicas": 1}, 3, 1),
        ({"min_insync_replicas": 3}, 3, 3),
        ({"min_insync_replicas": 3}, 2, 2),
    ],
)
def test_how_many_replicas_have_to_be_in_sync(settings: dict[str, int], replicas: int, needed: int) -> None:
    assert min_insync(settings, replicas) == needed


def test_replicas_that_are_being_added_do_not_count() -> None:
    history = with_topic()
    history.register(4)
    history.append(change(P, replicas=(1, 2, 3, 4), adding=(4,)))
    history.append(TopicAltered("t1", {"min_insync_replicas": 4}))

    assert history.metadata.min_insync(history.metadata.partition("t1", 0)) == 3


# Requests, documents, producer ids


def test_a_request_is_remembered_for_an_hour(modules: Modules) -> None:
    history = formed(modules)
    history.append(RequestDone("r0", b"done", 0))
    history.append(*(RequestDone(f"a{n}", b"", REQUEST_KEPT_NS) for n in range(REQUESTS_KEPT_MIN)))
    assert history.metadata.request("r0").answer == b"done"

    history.append(RequestDone("late", b"", REQUEST_KEPT_NS + 1))

    assert history.metadata.request("r0") is None
    assert history.metadata.request("a0") is not None


def test_a_clock_that_jumps_forgets_no_recent_request() -> None:
    history = formed()
    history.append(RequestDone("r0", b"done", 0))

    history.append(RequestDone("jump", b"", 100 * REQUEST_KEPT_NS))

    assert history.metadata.request("r0") is not None


def test_there_is_a_bound_on_remembered_requests() -> None:
    state = formed().metadata

    for number in range(REQUESTS_KEPT_MAX + 10):
        state.change(RequestDone(f"r{number}", b"", 7), 3)

    assert state.request("r9") is None
    assert state.request("r10") is not None


def test_a_request_is_done_once(modules: Modules) -> None:
    history = formed(modules)
    history.append(RequestDone("r1", b"one", 0))

    with pytest.raises(MetadataContradiction, match="done before"):
        history.append(RequestDone("r1", b"two", 0))


def test_documents_are_replaced_and_removed() -> None:
    history = formed()
    history.append(DocumentPut(DocumentKind.KEY, "a", b"1"), DocumentPut(DocumentKind.KEY, "b", b""))
    history.append(DocumentPut(DocumentKind.ACL, "a", b"2"), DocumentPut(DocumentKind.KEY, "a", b"3"))

    assert history.metadata.documents(DocumentKind.KEY) == {"a": b"3", "b": b""}
    assert history.metadata.document(DocumentKind.ACL, "a") == b"2"

    history.append(DocumentPut(DocumentKind.KEY, "a", None), DocumentPut(DocumentKind.KEY, "zzz", None))

    assert history.metadata.document(DocumentKind.KEY, "a") is None
    assert history.metadata.documents(DocumentKind.KEY) == {"b": b""}


def test_producer_numbers_are_given_once(modules: Modules) -> None:
    history = formed(modules)
    history.append(ProducerIdsTaken(1, 0, 1000), ProducerIdsTaken(2, 1000, 1000))

    with pytest.raises(MetadataContradiction, match="next number is 2000"):
        history.append(ProducerIdsTaken(3, 1000, 1000))


# Newer versions


@pytest.mark.parametrize("first", [ClusterCreated(CLUSTER_ID, 9, 0)])
def test_a_cluster_of_a_higher_level_halts_an_older_node(first: Record) -> None:
    with pytest.raises(MetadataTooNew, match="feature level 9"):
        History().append(first, epoch=0, node=1)


def test_a_level_that_this_version_does_not_know_halts_it() -> None:
    history = formed()
    history.register(1, feature_level_max=9)

    with pytest.raises(MetadataTooNew, match="feature level 9"):
        history.append(FeatureLevelSet(9))


def test_a_level_that_a_broker_does_not_know_is_a_contradiction() -> None:
    history = formed()
    history.register(1)

    with pytest.raises(MetadataContradiction, match="a broker does not know it"):
        history.append(FeatureLevelSet(2))


def test_a_broker_that_does_not_know_the_level_cannot_register() -> None:
    history = formed()

    with pytest.raises(MetadataContradiction, match="the level is 1"):
        history.register(1, feature_level_max=0)


# Recovery


def test_after_a_recovery_every_epoch_is_above_all_that_were_seen() -> None:
    history = with_topic()
    shrunk(history)

    assert history.append(Recovered(1, 40), epoch=1, node=2)

    state = history.metadata
    found = state.partition("t1", 0)
    assert (state.generation, state.epoch, state.controller) == (1, 40, None)
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (None, 41, 3)
    assert (found.isr, found.elr) == ((), (1, 2))
    assert all(broker.is_fenced for broker in state.brokers.values())
    history.elect(2)
    assert state.epoch == 41


def test_a_recovery_is_one_generation_above_the_last() -> None:
    history = formed()

    assert history.append(Recovered(2, 40), node=2) == []
    assert history.append(Recovered(1, 0), node=2)
    assert history.metadata.epoch == 1


# Copies


def test_a_snapshot_has_everything() -> None:
    history = with_topic()
    shrunk(history)
    history.append(RequestDone("b", b"1", 5), RequestDone("a", b"2", 3))
    history.append(DocumentPut(DocumentKind.KEY, "a", b"1"), ProducerIdsTaken(1, 0, 10))
    history.append(TopicAltered("t1", {"ttl": "1m", "retention": "1h"}))

    loaded = Metadata.decode(history.metadata.encode())

    assert loaded.encode() == history.metadata.encode()
    assert list(loaded.dump()) == list(history.metadata.dump())
    assert indices(loaded) == indices(history.metadata)
    assert loaded.position == history.entries[-1].position


def test_a_sealed_log_is_sealed_in_the_snapshot() -> None:
    history = formed()
    history.append(LogSealed("etcd://h"))

    assert Metadata.decode(history.metadata.encode()).sealed_to == "etcd://h"
    assert "sealed; it goes on at etcd://h" in list(history.metadata.dump())


def test_a_copy_goes_its_own_way() -> None:
    history = with_topic()
    before = history.metadata.encode()

    twin = history.metadata.copy()
    twin.change(TopicRemoved("t1", 0), 99)
    twin.change(DocumentPut(DocumentKind.KEY, "a", b"1"), 99)

    assert history.metadata.encode() == before
    assert indices(history.metadata) == indices(Metadata.decode(before))


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x01", b"\x01\xc1"])
def test_a_damaged_snapshot_is_named(raw: bytes) -> None:
    with pytest.raises(MetadataDamaged):
        Metadata.decode(raw)


def test_a_newer_snapshot_is_named() -> None:
    raw = formed().metadata.encode()

    with pytest.raises(MetadataTooNew, match="snapshot format 2"):
        Metadata.decode(b"\x02" + raw[1:])
    with pytest.raises(MetadataTooNew):
        Metadata.decode(b"\x01\x91\x01")


def test_the_state_can_be_printed() -> None:
    history = with_topic()
    shrunk(history)
    history.append(DocumentPut(DocumentKind.KEY, "a", b"12"), RequestDone("r", b"", 0))

    text = "\n".join(history.metadata.dump())

    assert "broker 2 online epoch 5 incarnation 2a at host-2:7001 rack - version 1" in text
    assert "topic orders t1 settings {}" in text
    assert "  0: leader 1 epoch 1.2 replicas [1, 2, 3] isr [1] elr [2]" in text
    assert "document key a: 2 bytes" in text


# Any history

NODES = (1, 2, 3)
TOPICS = ("t1", "t2")


def attempts(draw: Any, state: Metadata) -> list[Record]:
    """Records that a correct or a broken author may write."""
    node = draw(st.sampled_from(NODES))
    topic = draw(st.sampled_from(TOPICS))
    broker = state.broker(node)
    current = state.partition(topic, 0)
    nodes = st.lists(st.sampled_from(NODES), unique=True, max_size=3).map(tuple)
    choices: list[list[Record]] = [
        [registration(node, draw(st.sampled_from("abc")))],
        [TopicAdded(topic, draw(st.sampled_from("xy")), 0, 1), partition(topic_id=topic)],
        [TopicRemoved(topic, 0)],
        [TopicAltered(topic, {"min_insync_replicas": draw(st.integers(1, 3))})],
        [ProducerIdsTaken(node, state.next_producer_number, 10)],
        [DocumentPut(draw(st.sampled_from(DocumentKind)), "d", draw(st.sampled_from([None, b"v"])))],
        [RequestDone(draw(st.sampled_from("rs")), b"", draw(st.integers(0, 3 * REQUEST_KEPT_NS)))],
        [LEVEL],
        [LogSealed("there")] if draw(st.integers(0, 20)) == 20 else [],
    ]
    if broker:
        status = draw(st.sampled_from(BrokerStatus))
        choices += [[BrokerChanged(node, broker.broker_epoch, status, draw(st.booleans()))]] * 3
        choices.append([BrokerRemoved(node, broker.broker_epoch)])
    if current:
        isr = draw(nodes)
        leader = draw(st.sampled_from([None, *isr]))
        bump = 1 if leader != current.leader else draw(st.integers(0, 1))
        elr = tuple(one for one in draw(nodes) if one not in isr)
        changed = change(current, isr=isr, leader=leader, leader_epoch=current.leader_epoch + bump, elr=elr)
        choices += [[changed]] * 4
    return draw(st.sampled_from(choices))


@st.composite
def histories(draw: Any) -> History:
    """A log with what takes effect and what is ignored; a contradiction is left out, as no controller appends one."""
    history = formed()
    for node in NODES:
        history.register(node)
    for _ in range(draw(st.integers(0, 30))):
        kind = draw(st.integers(0, 9))
        epoch = history.metadata.epoch
        author: dict[str, Any] = {}
        if kind == 0:
            node, begun = draw(st.sampled_from(NODES)), epoch + draw(st.integers(0, 2))
            records: list[Record] = [ControllerElected(begun, node, "x")]
            author = {"epoch": begun, "node": node}
        elif kind == 1 and draw(st.integers(0, 3)) == 0:
            records = [Recovered(history.metadata.generation + 1, draw(st.integers(0, 50)))]
        else:
            records = attempts(draw, history.metadata)
            if kind == 2:
                author = {"epoch": max(0, epoch - 1)}
            elif kind == 3:
                author = {"previous_id": bytes(16)}
        entry = history.entry(*records, **author)
        try:
            history.metadata.copy().apply(entry)
        except MetadataContradiction:
            continue
        history.take(entry)
    return history


@given(histories(), st.data())
def test_a_snapshot_and_the_rest_make_the_same_state_as_the_whole_log(history: History, data: Any) -> None:
    whole = history.replayed()
    split = data.draw(st.integers(0, len(history.entries)))
    first = Metadata()
    for entry in history.entries[:split]:
        first.apply(entry)

    loaded = Metadata.decode(first.encode())
    for entry in history.entries[split:]:
        assert loaded.apply(entry) == first.apply(entry)

    assert loaded.encode() == first.encode() == whole.encode() == history.metadata.encode()
    assert indices(loaded) == indices(whole) == indices(history.metadata)


@given(histories())
def test_what_holds_for_partitions_holds_after_any_history(history: History) -> None:
    state = history.metadata
    for found in state.partitions.values():
        assert set(found.isr) <= set(found.replicas)
        assert found.leader is None or found.leader in found.isr
        assert set(found.isr).isdisjoint(found.elr)
        assert not any(state.broker(node).is_fenced for node in found.isr)
    assert {topic.name: id for id, topic in state.topics.items()} == state._topic_ids
