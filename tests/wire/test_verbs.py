"""Structs may grow, and the largest of them fit the meta of a frame."""

from typing import Any

import msgspec
import pytest

from goqueue.broker.groups.polling import BATCHES_MAX
from goqueue.topics.config import PARTITIONS_MAX, TopicConfig
from goqueue.wire import reports, verbs
from goqueue.wire.frames import META_BYTES_MAX
from goqueue.wire.verbs import Verb
from tests.wire.notation import wire_structs

STRUCTS = list(wire_structs().values())
EXAMPLES: dict[object, object] = {
    int: 7,
    str: "x",
    bool: True,
    float: 0.5,
    bytes: b"x",
    reports.Settlement: reports.Settlement("ack"),
}


def example(struct: type[msgspec.Struct]) -> msgspec.Struct:
    """One with all that has no default."""
    return struct(**{field.name: _example_of(field.type) for field in msgspec.structs.fields(struct) if field.required})


def _example_of(kind: object) -> object:
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example(kind)
    if "list" not in str(kind) and "None" in str(kind):
        return None
    return {} if "dict" in str(kind) else []


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_a_field_that_is_not_known_is_ignored(struct: type[msgspec.Struct]) -> None:
    told = verbs.encode(example(struct))
    raw: Any = msgspec.msgpack.decode(told)
    more = {"another": {"newer": [1]}, **raw} if isinstance(raw, dict) else [*raw, "new", {"newer": [1]}]

    read = msgspec.msgpack.decode(msgspec.msgpack.encode(more), type=struct)

    assert verbs.encode(read) == told


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_what_an_older_end_leaves_out_has_its_default(struct: type[msgspec.Struct]) -> None:
    required = [field.name for field in msgspec.structs.fields(struct) if field.required]
    raw: Any = msgspec.msgpack.decode(verbs.encode(example(struct)))
    less = {name: raw[name] for name in required} if isinstance(raw, dict) else raw[: len(required)]

    older = msgspec.msgpack.decode(msgspec.msgpack.encode(less), type=struct)

    assert verbs.encode(older) == verbs.encode(example(struct))


def test_structs_travel_by_the_names_of_their_fields() -> None:
    """But for those that are stored as they travel, and the one of which 1,000 have to fit into a meta."""
    arrays = {name for name, struct in wire_structs().items() if struct.__struct_config__.array_like}

    assert arrays == {"PartitionState", "DeadLetterFilter", "SchemaReference"}


def test_the_state_of_the_largest_topic_fits_a_frame() -> None:
    most = 2**63 - 1
    partitions = [verbs.PartitionState(n, most, most, most, most, most, 2**31, most) for n in range(PARTITIONS_MAX)]
    settings = TopicConfig().settings()
    state = verbs.TopicState("t" * 249, "f" * 32, 3, most, settings, list(settings), partitions)

    assert len(verbs.encode(state)) <= META_BYTES_MAX
    assert len(verbs.encode(verbs.OffsetsAnswer([most] * PARTITIONS_MAX))) <= META_BYTES_MAX
    assert len(verbs.encode(verbs.TopicMetadata("t" * 249, "f" * 32, [2**31] * PARTITIONS_MAX))) <= META_BYTES_MAX


def test_the_largest_poll_and_settle_fit_a_frame() -> None:
    most, topic, nonce = 2**63 - 1, "t" * 249, "f" * 44
    redelivered = {most - number: 2 for number in range(TopicConfig().max_in_flight)}
    batch = reports.DeliveredBatch(topic, 999, nonce, 10_000, 2**31, 63, most, most, {}, most)
    first = msgspec.structs.replace(batch, counts=redelivered)
    gap = reports.PartitionGap(topic, 999, most, most, "flags not allowed or contradicting the lengths")
    batches = [first, *[batch] * (BATCHES_MAX - 1)]
    polled = reports.PollAnswer(batches, 2**31, True, 10_000, "max_in_flight", [gap])
    part = verbs.SettlePart(topic, 999, nonce, 10_000)
    settlement = reports.Settlement("nack", most, "r" * 2_000, f"{'t' * 255}:{most}")

    assert len(verbs.encode(polled)) <= META_BYTES_MAX
    assert len(verbs.encode(verbs.SettleRequest(settlement, [part] * verbs.PARTS_MAX))) <= META_BYTES_MAX


def test_verbs_are_what_they_were() -> None:
    """Numbers on the wire are for ever."""
    assert {verb.name: int(verb) for verb in Verb} == {
        "HELLO": 1,
        "PING": 2,
        "METADATA": 3,
        "CREATE_TOPIC": 10,
        "DELETE_TOPIC": 11,
        "LIST_TOPICS": 12,
        "DESCRIBE_TOPIC": 13,
        "ALTER_TOPIC": 14,
        "OFFSETS": 15,
        "INIT_PRODUCER": 20,
        "PUBLISH": 21,
        "READ": 30,
        "SUBSCRIBE": 31,
        "CREDIT": 32,
        "UNSUBSCRIBE": 33,
        "STATS": 40,
        "JOIN": 50,
        "HEARTBEAT": 51,
        "POLL": 52,
        "SETTLE": 53,
        "CALL": 60,
    }
