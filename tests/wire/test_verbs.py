"""Metas may grow at their end, and the largest of them fit their frame."""

import inspect

import msgspec
import pytest

from goqueue.topics.config import PARTITIONS_MAX, TopicConfig
from goqueue.wire import reports, verbs
from goqueue.wire.frames import META_BYTES_MAX
from goqueue.wire.verbs import Verb

METAS = [
    found
    for module in (verbs, reports)
    for _, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, msgspec.Struct) and found.__module__ == module.__name__ and not found.__name__.startswith("_")
]
EXAMPLES: dict[object, object] = {
    int: 7,
    str: "x",
    bool: True,
    float: 0.5,
    bytes: b"x",
    reports.Settlement: reports.Settlement("ack"),
}


def example(meta: type[msgspec.Struct]) -> msgspec.Struct:
    """One with all that has no default."""
    required = [field.type for field in msgspec.structs.fields(meta) if field.required]
    return meta(*[_example_of(kind) for kind in required])


def _example_of(kind: object) -> object:
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    if "list" not in str(kind) and "None" in str(kind):
        return None
    return {} if "dict" in str(kind) else []


@pytest.mark.parametrize("meta", METAS, ids=lambda meta: meta.__name__)
def test_a_field_that_is_not_known_is_passed_over(meta: type[msgspec.Struct]) -> None:
    told = example(meta)
    raw: list[object] = msgspec.msgpack.decode(verbs.encode(told))
    longer = msgspec.msgpack.encode([*raw, "new", {"newer": [1]}])

    assert verbs.encode(msgspec.msgpack.decode(longer, type=meta)) == verbs.encode(told)


@pytest.mark.parametrize("meta", METAS, ids=lambda meta: meta.__name__)
def test_what_an_older_end_leaves_out_has_a_default(meta: type[msgspec.Struct]) -> None:
    required = sum(field.required for field in msgspec.structs.fields(meta))
    raw: list[object] = msgspec.msgpack.decode(verbs.encode(example(meta)))

    older = msgspec.msgpack.decode(msgspec.msgpack.encode(raw[:required]), type=meta)

    assert verbs.encode(older) == verbs.encode(example(meta))


def test_the_state_of_the_largest_topic_fits_a_frame() -> None:
    most = 2**63 - 1
    partitions = [verbs.PartitionState(n, most, most, most, most, most, 2**31, most) for n in range(PARTITIONS_MAX)]
    settings = TopicConfig().settings()
    state = verbs.TopicState("t" * 249, "f" * 32, 3, most, settings, list(settings), partitions)

    assert len(verbs.encode(state)) <= META_BYTES_MAX
    assert len(verbs.encode(verbs.OffsetsAnswer([most] * PARTITIONS_MAX))) <= META_BYTES_MAX
    assert len(verbs.encode(verbs.TopicMetadata("t" * 249, "f" * 32, [2**31] * PARTITIONS_MAX))) <= META_BYTES_MAX


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
