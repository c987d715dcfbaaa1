"""Records: equal ones make equal bytes, and a node stops at what only a newer version knows."""

import msgspec
import pytest

from goqueue.cluster import records
from goqueue.cluster.records import (
    BrokerAddresses,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    DocumentKind,
    DocumentPut,
    FeatureLevelSet,
    LogSealed,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsTaken,
    Record,
    Recovered,
    RequestDone,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
    decode_batch,
    encode_batch,
    encode_record,
    join_batch,
)
from goqueue.errors import MetadataDamaged, MetadataTooNew

SAMPLES: list[Record] = [
    ClusterCreated("c1", 1, 5),
    ControllerElected(3, 2, "boot-7"),
    FeatureLevelSet(1),
    BrokerRegistered(1, "boot-1", ("d1", "d2"), BrokerAddresses("h:1", "h:2", grpc="h:3"), "0.1.0", 1, 7, rack="r1"),
    BrokerChanged(1, 4, BrokerStatus.ONLINE),
    BrokerChanged(1, 4, BrokerStatus.STOPPING, is_leaving=True),
    BrokerRemoved(1, 4),
    TopicAdded("t1", "orders", 7, 3, {"retention": "1h", "priority_weights": [5, 4, 3, 2, 1]}),
    TopicAltered("t1", {}),
    TopicRemoved("t1", 9),
    PartitionChanged("t1", 0, (1, 2, 3), 1, 1, 0, (1, 2, 3)),
    PartitionChanged("t1", 0, (1, 2, 3, 4), None, 2, 1, (), (1,), (4,), (2,), is_unclean=True),
    ProducerIdsTaken(1, 0, 1000),
    RequestDone("r1", b"\x80", 9),
    DocumentPut(DocumentKind.ACL, "a", b"x"),
    DocumentPut(DocumentKind.KEY, "k", None),
    Recovered(1, 40),
    LogSealed("etcd://h:2379"),
]


def test_there_is_a_sample_of_each_record() -> None:
    assert {type(sample) for sample in SAMPLES} == set(MetadataRecord.__subclasses__())


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_batch(encode_batch([record])) == [record]


def test_a_batch_keeps_the_order() -> None:
    assert decode_batch(encode_batch(SAMPLES)) == SAMPLES


def test_records_that_were_encoded_one_by_one_make_the_same_batch() -> None:
    assert join_batch([encode_record(record) for record in SAMPLES]) == encode_batch(SAMPLES)


def test_the_order_in_which_settings_were_set_makes_no_other_bytes() -> None:
    one, other = {"retention": "1h", "ttl": "1m"}, {"ttl": "1m", "retention": "1h"}

    assert encode_record(TopicAltered("t1", one)) == encode_record(TopicAltered("t1", other))


def test_a_default_takes_no_room() -> None:
    fields = msgspec.msgpack.decode(encode_record(PartitionChanged("t1", 0, (1,), 1, 1, 0, (1,))))

    assert {"elr", "adding", "removing", "is_unclean"}.isdisjoint(fields)


def batch_of(*values: object) -> bytes:
    return join_batch([msgspec.msgpack.encode(value) for value in values])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x02" + encode_batch(SAMPLES)[1:], "format 2"),
        (batch_of({"type": "ShardSplit", "topic_id": "t1"}), "ShardSplit"),
        (batch_of({"type": "FeatureLevelSet", "level": 1, "since": 4}), "since"),
        (batch_of({"type": "BrokerRemoved", "node": 1}), "broker_epoch"),
        (batch_of({"type": "BrokerChanged", "node": 1, "broker_epoch": 1, "status": "resting"}), "resting"),
    ],
)
def test_what_only_a_newer_version_knows_is_named(raw: bytes, says: str) -> None:
    with pytest.raises(MetadataTooNew, match=says) as raised:
        decode_batch(raw)

    assert "update this node" in str(raised.value)


@pytest.mark.parametrize("raw", [b"", b"\x01\xdd\x00", b"\x00" + encode_batch(SAMPLES)[1:]])
def test_what_is_no_batch_is_damage(raw: bytes) -> None:
    with pytest.raises(MetadataDamaged):
        decode_batch(raw)


def test_a_batch_that_was_cut_is_damage() -> None:
    whole = encode_batch(SAMPLES)

    for size in range(6, len(whole)):
        with pytest.raises(MetadataDamaged):
            decode_batch(whole[:size])


def test_the_levels_are_in_order() -> None:
    assert records.FEATURE_LEVEL_MIN <= records.FEATURE_LEVEL
