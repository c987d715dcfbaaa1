"""Messages between nodes: they come back as they were, may grow, and have bounds."""

from typing import Any

import msgspec
import pytest

from goqueue.cluster import messages
from goqueue.cluster.messages import (
    AdminAnswer,
    AdminRequest,
    AlterPartitions,
    AlterTopic,
    Carried,
    ControlledShutdown,
    CreateTopic,
    Decide,
    DecisionFailed,
    DeleteTopic,
    Done,
    ElectLeaders,
    Heartbeat,
    HeartbeatReply,
    IsrChange,
    IsrMember,
    IsrRefusal,
    IsrResult,
    LeadersElected,
    NodeMessage,
    NodeRemoval,
    PartitionsAltered,
    PreVote,
    PreVoteReply,
    ProducerIdBlock,
    PutDocument,
    RefusalReason,
    Refused,
    Register,
    Registered,
    RemoveNode,
    SetFeatureLevel,
    ShutdownProgress,
    TakeProducerIds,
    TopicDecided,
    decode_answer,
    decode_message,
    encode_answer,
    encode_message,
)
from goqueue.cluster.records import BrokerAddresses, BrokerStatus, DocumentKind
from goqueue.errors import InvalidRequest

REQUESTS: list[Any] = [
    CreateTopic("r1", "orders", 3, 2, {"retention": "1h"}),
    AlterTopic("r2", "orders", {"retention": None}),
    DeleteTopic("r3", "orders"),
    TakeProducerIds(1),
    RemoveNode("r4", 3),
    ElectLeaders("r5", "orders", (0, 1), is_unclean=True),
    PutDocument("r6", DocumentKind.QUOTA, "q", b"x"),
    SetFeatureLevel("r7", 1),
]
ANSWERS: list[Any] = [TopicDecided("t1"), ProducerIdBlock(0, 1000), NodeRemoval(4), LeadersElected(2), Carried()]
ADDRESSES = BrokerAddresses("h:1", "h:2")
SAMPLES: list[Any] = [
    Register(4, 1, "boot-1", ("d1",), ADDRESSES, "0.1.0", 1, 1, 7, {"t1": (0, 1)}, "r1"),
    Registered(4, 9),
    Heartbeat(4, 1, 9, 12, wants_shutdown=True),
    HeartbeatReply(4, 12, BrokerStatus.ONLINE),
    PreVote(2, 4),
    PreVoteReply(3, 4, hears_controller=True),
    AlterPartitions(4, 1, 9, (IsrChange("t1", 0, 2, 5, (IsrMember(1, 9, "d1"),)),)),
    PartitionsAltered(4, (IsrResult(6), IsrResult(5, IsrRefusal.STALE_LEADER_EPOCH))),
    ControlledShutdown(4, 1, 9),
    ShutdownProgress(4, 3, may_stop=False),
    *(Decide(4, request) for request in REQUESTS),
    *(Done(12, answer) for answer in ANSWERS),
    DecisionFailed("TOPIC_NOT_FOUND", "topic not found: orders", {"topic": "orders"}),
    Refused(RefusalReason.NOT_CONTROLLER, "node 2 is the controller", 4),
]


def test_there_is_a_sample_of_each_message() -> None:
    assert {type(sample) for sample in SAMPLES} == set(NodeMessage.__subclasses__())
    assert {type(request) for request in REQUESTS} == set(AdminRequest.__subclasses__())
    assert {type(answer) for answer in ANSWERS} == set(AdminAnswer.__subclasses__())


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    assert decode_message(memoryview(encode_message(message))) == message


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_comes_back_as_it_was(answer: Any) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def changed(message: Any, **changes: object) -> bytes:
    """The bytes of the message with other fields, as another version or a broken node would send it."""
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_message(message)), **changes})


def test_a_field_that_only_a_newer_node_knows_is_ignored() -> None:
    assert decode_message(changed(Registered(4, 9), zone="z")) == Registered(4, 9)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        encode_message(Registered(4, 9))[:-1],
        changed(Registered(4, 9), type="Unregistered"),
        changed(Registered(4, 9), broker_epoch=-1),
        changed(Registered(4, 9), broker_epoch=1 << 63),
        changed(Heartbeat(4, 1, 9, 12), node=messages.NODE_MAX + 1),
        changed(SAMPLES[0], directories=[]),
        changed(SAMPLES[0], incarnation="x" * 257),
        changed(SAMPLES[0], unproven={"t1": [-1]}),
        encode_message(AlterPartitions(4, 1, 9, (IsrChange("t1", 0, 2, 5, ()),))),
        encode_message(Decide(4, RemoveNode("", 3))),
        encode_message(Decide(4, PutDocument("r", DocumentKind.KEY, "k", bytes(messages.DOCUMENT_BYTES_MAX + 1)))),
    ],
)
def test_what_is_no_message_or_beyond_a_bound_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a message between nodes"):
        decode_message(raw)


def test_a_refusal_says_whether_to_try_again() -> None:
    retryable = {reason for reason in RefusalReason if reason.is_retryable}

    assert retryable == {RefusalReason.NOT_CONTROLLER, RefusalReason.NODE_ID_TAKEN, RefusalReason.OVERLOADED}
