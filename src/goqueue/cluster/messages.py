"""Requests and answers between the nodes of a cluster, but for the fetches of followers.

    sender                    request               answer
    a broker                  Register              Registered
      to the controller       Heartbeat             HeartbeatReply
                              AlterPartitions       PartitionsAltered
                              ControlledShutdown    ShutdownProgress
    any node                  Decide                Done, or DecisionFailed with the error of the verb
      to the controller
    a node without controller PreVote               PreVoteReply
      to its peers

Any request may be answered by `Refused`, which says why, and whether to try again later. A message is a msgpack map by
field name: an end ignores fields that it does not know, and missing ones have their default. `cluster_id` is in the
greeting of a connection and not in each message.

Requests to the controller say the highest controller epoch that the sender knows. So a controller that was deposed, and
has not heard of it from the log yet, hears of it from any broker (rule E1).

Collections have a bound, beyond the bound that frames have: a message of a broken node is refused, not carried out.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from goqueue.cluster.records import BrokerAddresses, BrokerStatus, DocumentKind
from goqueue.errors import InvalidRequest

NODE_MAX: Final = 65_535
"""An entry of the metadata log has two bytes for its author."""
CHANGES_MAX: Final = 10_000
DOCUMENT_BYTES_MAX: Final = 256 * 1024

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
NodeId = Annotated[int, Meta(ge=0, le=NODE_MAX)]
ShortText = Annotated[str, Meta(max_length=256)]
RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
Nodes = Annotated[tuple[NodeId, ...], Meta(max_length=64)]


class NodeMessage(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """The base of all messages."""


class Register(NodeMessage, frozen=True):
    """A process wants to be this node.

    `last_clean_epoch` is the broker epoch under which this data directory was shut down cleanly, if it was. After
    anything else, `unproven` are the replicas (topic id -> partitions) whose logs may have lost records that they had
    told to be durable; None says all of them.
    """

    controller_epoch: Number
    node: NodeId
    incarnation: ShortText
    directories: Annotated[tuple[ShortText, ...], Meta(min_length=1, max_length=64)]
    addresses: BrokerAddresses
    version: ShortText
    feature_level_min: Number
    feature_level_max: Number
    last_clean_epoch: Number | None
    unproven: dict[ShortText, Annotated[tuple[Number, ...], Meta(max_length=CHANGES_MAX)]] | None = None
    rack: ShortText = ""
    is_disk_replaced: bool = False  # an operator says so: the replicas that the node had are gone for good


class Registered(NodeMessage, frozen=True):
    """The process is the node from the entry `broker_epoch` on; it is fenced until it has applied that."""

    controller_epoch: Number
    broker_epoch: Number


class Heartbeat(NodeMessage, frozen=True):
    """A broker lives, and has applied the metadata log up to an index."""

    controller_epoch: Number
    node: NodeId
    broker_epoch: Number
    applied_index: Number
    wants_shutdown: bool = False


class HeartbeatReply(NodeMessage, frozen=True):
    """The controller has heard it. `committed_index` is how far the log goes, as far as the controller knows."""

    controller_epoch: Number
    committed_index: Number
    status: BrokerStatus


class PreVote(NodeMessage, frozen=True):
    """The sender thinks of becoming the controller after this epoch, because it does not hear the one there is."""

    node: NodeId
    epoch: Number


class PreVoteReply(NodeMessage, frozen=True):
    """Whether the peer hears a controller of that epoch or a later one; `epoch` is the one it knows."""

    node: NodeId
    epoch: Number
    hears_controller: bool


class IsrMember(msgspec.Struct, frozen=True, array_like=True):
    """A replica that is in sync as this process, with this disk."""

    node: NodeId
    broker_epoch: Number
    directory: ShortText


class IsrChange(msgspec.Struct, frozen=True):
    """The leader of a partition wants this ISR; the epochs are those of the partition as it knows it."""

    topic_id: ShortText
    partition: Number
    leader_epoch: Number
    partition_epoch: Number
    isr: Annotated[tuple[IsrMember, ...], Meta(min_length=1, max_length=64)]


class AlterPartitions(NodeMessage, frozen=True):
    """A leader changes the ISR of partitions; each change is made, or refused, for itself."""

    controller_epoch: Number
    node: NodeId
    broker_epoch: Number
    changes: Annotated[tuple[IsrChange, ...], Meta(max_length=CHANGES_MAX)]


class IsrRefusal(StrEnum):
    """Why a change of an ISR was not made."""

    NOT_LEADER = "not_leader"  # or no such partition: the sender has not applied something yet
    STALE_LEADER_EPOCH = "stale_leader_epoch"
    STALE_PARTITION_EPOCH = "stale_partition_epoch"
    INELIGIBLE_REPLICA = "ineligible_replica"  # fenced, stopping, of another epoch or disk, or no replica


class IsrResult(msgspec.Struct, frozen=True):
    """What became of one change: the `partition_epoch` it has made, or the current one and why there is none."""

    partition_epoch: Number
    refusal: IsrRefusal | None = None


class PartitionsAltered(NodeMessage, frozen=True):
    """The results, in the order of the changes."""

    controller_epoch: Number
    results: tuple[IsrResult, ...]


class ControlledShutdown(NodeMessage, frozen=True):
    """A broker wants to stop: others shall lead what it leads. To be repeated until it may stop."""

    controller_epoch: Number
    node: NodeId
    broker_epoch: Number


class ShutdownProgress(NodeMessage, frozen=True):
    """How many partitions the broker still leads that others can lead. Once it may stop, it is fenced."""

    controller_epoch: Number
    leaders_left: Number
    may_stop: bool


class AdminRequest(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """What an administrator, or a node, asks the controller to decide.

    The same `request_id` with a retry makes sure that it is carried out once.
    """


class CreateTopic(AdminRequest, frozen=True):
    """A new topic; counts that are None have the default of the cluster. Only nodes ask for internal topics."""

    request_id: RequestId
    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    settings: dict[str, Any] = {}
    is_internal: bool = False


class AlterTopic(AdminRequest, frozen=True):
    """Change settings of a topic; None resets one to its default."""

    request_id: RequestId
    name: str
    changes: dict[str, Any]


class DeleteTopic(AdminRequest, frozen=True):
    """Delete a topic."""

    request_id: RequestId
    name: str
    is_internal: bool = False


class TakeProducerIds(AdminRequest, frozen=True):
    """A block of numbers for producer ids. A block whose answer is lost is never used."""

    node: NodeId


class RemoveNode(AdminRequest, frozen=True):
    """Move all replicas away from a node, then remove it. To be repeated, each time with a new id, until it is gone."""

    request_id: RequestId
    node: NodeId


class ElectLeaders(AdminRequest, frozen=True):
    """Let preferred replicas lead.

    With `is_unclean` let `replica`, or any that is online, lead a partition that has no leader: records that only the
    others have are lost.
    """

    request_id: RequestId
    topic: str | None = None  # None: all topics
    partitions: Annotated[tuple[Number, ...], Meta(max_length=CHANGES_MAX)] | None = None  # None: all of the topic
    is_unclean: bool = False
    replica: NodeId | None = None  # only with `is_unclean`: a partition that has no replica there stays as it is


class PutDocument(AdminRequest, frozen=True):
    """Store a document; None removes it."""

    request_id: RequestId
    kind: DocumentKind
    name: ShortText
    value: Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)] | None


class SetFeatureLevel(AdminRequest, frozen=True):
    """Let the cluster use what this level brings. There is no way back."""

    request_id: RequestId
    level: Number


AnyAdminRequest = (
    CreateTopic | AlterTopic | DeleteTopic | TakeProducerIds | RemoveNode | ElectLeaders | PutDocument | SetFeatureLevel
)


class AdminAnswer(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """The answer to an `AdminRequest` that was carried out."""


class TopicDecided(AdminAnswer, frozen=True):
    """The topic was created, altered or deleted."""

    topic_id: str


class ProducerIdBlock(AdminAnswer, frozen=True):
    """The numbers [first, first + count)."""

    first: Number
    count: Number


class NodeRemoval(AdminAnswer, frozen=True):
    """How many partitions still have a replica on the node; at 0 it is removed."""

    partitions_left: Number


class LeadersElected(AdminAnswer, frozen=True):
    """How many partitions have another leader now."""

    count: Number


class Carried(AdminAnswer, frozen=True):
    """It was carried out; there is nothing to say about it."""


AnyAdminAnswer = TopicDecided | ProducerIdBlock | NodeRemoval | LeadersElected | Carried


class Decide(NodeMessage, frozen=True):
    """A request for the controller."""

    controller_epoch: Number
    request: AnyAdminRequest


class Done(NodeMessage, frozen=True):
    """The request was carried out. Its effect is in the log at or before `index`: wait until that is applied."""

    index: Number
    answer: AnyAdminAnswer


class DecisionFailed(NodeMessage, frozen=True):
    """The request was not carried out; the error of the verb, for `wire.codes.restore`."""

    code: str
    text: str
    facts: dict[str, Any]


class RefusalReason(StrEnum):
    """Why a request was refused."""

    NOT_CONTROLLER = "not_controller"  # ask the controller
    NOT_REGISTERED = "not_registered"  # register first
    STALE_BROKER_EPOCH = "stale_broker_epoch"  # another process is this node now: stop
    NODE_ID_TAKEN = "node_id_taken"  # the process that is this node may still be alive
    DIRECTORY_TAKEN = "directory_taken"  # the data directory was cloned, or moved from another node: stop
    DISK_MISSING = "disk_missing"  # this data directory is not the one that the replicas of the node are on
    TOO_OLD = "too_old"  # update this node
    TOO_NEW = "too_new"  # update the cluster first
    OVERLOADED = "overloaded"  # the metadata log does not keep up

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later without anybody's help."""
        return self in (RefusalReason.NOT_CONTROLLER, RefusalReason.NODE_ID_TAKEN, RefusalReason.OVERLOADED)


class Refused(NodeMessage, frozen=True):
    """The request was not carried out, and why not: a sentence that names the cure."""

    reason: RefusalReason
    text: str
    controller_epoch: Number = 0


AnyNodeMessage = (
    Register
    | Registered
    | Heartbeat
    | HeartbeatReply
    | PreVote
    | PreVoteReply
    | AlterPartitions
    | PartitionsAltered
    | ControlledShutdown
    | ShutdownProgress
    | Decide
    | Done
    | DecisionFailed
    | Refused
)

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes | memoryview], AnyNodeMessage] = msgspec.msgpack.Decoder(AnyNodeMessage).decode
_decode_answer: Callable[[bytes], AnyAdminAnswer] = msgspec.msgpack.Decoder(AnyAdminAnswer).decode


def encode_message(message: AnyNodeMessage) -> bytes:
    """The bytes of a message."""
    return _encode(message)


def decode_message(raw: bytes | memoryview) -> AnyNodeMessage:
    """The message. Raises `InvalidRequest` for anything else, also for one that is beyond a bound."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a message between nodes: {error}") from error


def encode_answer(answer: AnyAdminAnswer) -> bytes:
    """The bytes of an answer, as `RequestDone` keeps them."""
    return _encode(answer)


def decode_answer(raw: bytes) -> AnyAdminAnswer:
    """The answer that `encode_answer` has encoded."""
    return _decode_answer(raw)
