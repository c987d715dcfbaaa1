"""The verbs of the native protocol, and the structs in the meta of each request and answer.

`wire_struct.py` says how structs travel. Records are never in a meta: they are the payload. Large answers (JOIN,
HEARTBEAT, SETTLE, CALL, LIST_TOPICS) are msgpack in the payload, because a meta is at most 65,535 bytes long.

A connection begins with HELLO. After that, requests are pipelined; each answer has the correlation id of its request
and is sent as soon as it is known. The answers to SUBSCRIBE are frames with the flag PUSH, as long as its credit of
payload bytes lasts; CREDIT adds to it, UNSUBSCRIBE ends it, and neither is answered.

docs/reference/protocol.md describes every field for authors of clients; tests/wire holds the page against this file.
"""

from enum import IntEnum
from typing import Final

from msgspec import field
from msgspec.msgpack import Encoder

from goqueue.errors import GoQueueError
from goqueue.wire.reports import Gap, Settlement
from goqueue.wire.wire_struct import WireStruct

PROTOCOL_VERSION: Final = 1
PARTS_MAX: Final = 128
"""Parts of a SETTLE: so many fit into its meta, with the longest topic names."""
FEATURES: Final = ("publish", "read", "subscribe", "idempotence", "groups")
TEXT_MAX: Final = 2_000  # characters of the text of an error, and of each of its facts
ITEMS_MAX: Final = 100  # of a fact that is a list


class Verb(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    PING = 2
    METADATA = 3
    CREATE_TOPIC = 10
    DELETE_TOPIC = 11
    LIST_TOPICS = 12
    DESCRIBE_TOPIC = 13
    ALTER_TOPIC = 14
    OFFSETS = 15
    INIT_PRODUCER = 20
    PUBLISH = 21
    READ = 30
    SUBSCRIBE = 31
    CREDIT = 32
    UNSUBSCRIBE = 33
    STATS = 40
    JOIN = 50
    HEARTBEAT = 51
    POLL = 52
    SETTLE = 53
    CALL = 60


class HelloRequest(WireStruct):
    """The first request of a connection."""

    version: int = PROTOCOL_VERSION
    features: tuple[str, ...] = FEATURES
    client_id: str = ""
    api_key: str = ""


class HelloAnswer(WireStruct):
    """The answer to HELLO: the version and the features that both ends have."""

    version: int
    features: tuple[str, ...]
    node_id: int
    server: str  # name and version, for people
    frame_bytes_max: int


class Empty(WireStruct):
    """The meta of requests and answers without fields."""


class ErrorMeta(WireStruct):
    """An error, in a frame with the flag ERROR; correlation 0 when it concerns the connection."""

    code: str
    text: str
    retryable: bool
    facts: dict[str, object] = field(default_factory=dict)


def error_meta(error: GoQueueError) -> ErrorMeta:
    """The error as it travels. A peer chooses what its requests contain, so texts and lists are cut to fit a meta."""
    facts = {name: _cut(value) for name, value in error.facts().items()}
    return ErrorMeta(error.code, str(error)[:TEXT_MAX], error.retryable, facts)


def _cut(value: object) -> object:
    if isinstance(value, list):
        return value[:ITEMS_MAX]
    return value[:TEXT_MAX] if isinstance(value, str) else value


class MetadataRequest(WireStruct):
    """Ask where these topics are."""

    topics: list[str]


class TopicMetadata(WireStruct):
    """What a client needs to publish and read: the leader of each partition, and the settings that bind a producer."""

    name: str
    topic_id: str
    leaders: list[int]  # node ids
    compression: str = "none"
    max_message_bytes: int = 16 * 1024 * 1024
    acks: str = "all"
    partitioner: str = "murmur3"
    error: ErrorMeta | None = None


class MetadataAnswer(WireStruct):
    """The nodes by id, as host:port. An empty address is that of the node that answers."""

    nodes: dict[int, str]
    topics: list[TopicMetadata]


class CreateTopicRequest(WireStruct):
    """Create a topic. The broker chooses what is None."""

    name: str
    partitions: int | None = None
    settings: dict[str, object] = field(default_factory=dict)
    replication_factor: int | None = None


class TopicRequest(WireStruct):
    """DELETE_TOPIC, DESCRIBE_TOPIC."""

    name: str


class ListTopicsRequest(WireStruct):
    """List the topics. The payload of the answer is a msgpack array of their names."""

    internal: bool = False


class AlterTopicRequest(WireStruct):
    """Change settings. None resets a setting to its default."""

    name: str
    changes: dict[str, object]


class PartitionState(WireStruct, array_like=True):
    """Where a partition begins and ends.

    An array, because with the names of 8 fields the states of 1,000 partitions would not fit into the meta of a frame.
    Fields are added at the end.
    """

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    leader: int = 0
    message_count: int = 0


class TopicState(WireStruct):
    """The answer to CREATE_TOPIC, DESCRIBE_TOPIC and ALTER_TOPIC."""

    name: str
    topic_id: str
    replication_factor: int
    created_at_ns: int
    settings: dict[str, object]
    defaults: list[str]
    partitions: list[PartitionState]


class OffsetsRequest(WireStruct):
    """Ask for the first offset of each partition at or after a time; without a time, for the earliest or latest."""

    topic: str
    time_ns: int | None = None
    at: str = "latest"


class OffsetsAnswer(WireStruct):
    """The offsets, by partition."""

    offsets: list[int]


class ProducerIdentity(WireStruct):
    """The answer to INIT_PRODUCER."""

    producer_id: int
    epoch: int


class PublishRequest(WireStruct):
    """Publish a batch to one partition. The payload is its records, with offset, timestamp and crc zero."""

    topic: str
    partition: int
    acks: str | None = None  # none, leader or all; None is the setting of the topic


class PublishAnswer(WireStruct):
    """Where the batch is stored. `first_offset` is -1 for a duplicate that is older than the broker remembers."""

    first_offset: int
    record_count: int
    timestamp_ns: int
    duplicate: bool = False


class ReadRequest(WireStruct):
    """Read records of one partition from an offset, or from a time if that is later."""

    topic: str
    partition: int
    offset: int = 0
    max_bytes: int = 1024 * 1024
    max_records: int = 2**31 - 1
    wait_ms: int = 0
    from_time_ns: int | None = None
    to_time_ns: int | None = None
    isolation: str = "read_committed"
    end_offset: int | None = None
    delayed: str = "due"  # or "include": messages that are not due yet, too
    without: tuple[str, ...] = ()  # of "key", "value", "headers": parts that are left out of the records


class ReadAnswer(WireStruct):
    """The answer to READ, and each push of a subscription; the payload is the records.

    Go on at `next_offset`, not after the last record: hidden records may follow it.
    """

    record_count: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    first_pending_offset: int | None = None
    end_of_range: bool = False
    flags: int = 0  # of the records, or-ed
    gaps: tuple[Gap, ...] = ()  # damage between the requested offset and the first record


class SubscribeRequest(WireStruct):
    """Push records of one partition, starting at an offset, up to `credit` bytes of payload."""

    topic: str
    partition: int
    offset: int
    credit: int
    max_bytes: int = 1024 * 1024
    to_time_ns: int | None = None
    isolation: str = "read_committed"


class CreditRequest(WireStruct):
    """Grant a subscription more bytes."""

    subscription: int
    bytes: int


class UnsubscribeRequest(WireStruct):
    """End a subscription. Frames that are in flight may still arrive."""

    subscription: int


class JoinRequest(WireStruct):
    """Become a member of a group. None is the setting of the topic. The payload of the answer is a `JoinAnswer`."""

    group: str
    client_id: str
    topics: tuple[str, ...]
    member_id: str | None = None
    session_timeout_ms: int = 30_000
    mode: str = "partitioned"
    protocol: str = "cooperative"
    assignor: str = "sticky"
    start: str = "earliest"
    ack: str = "messages"
    auto_commit: bool = True
    visibility_timeout_ms: int | None = None
    max_in_flight: int | None = None
    auto_commit_interval_ms: int = 5_000


class HeartbeatRequest(WireStruct):
    """The member is alive. The payload, if any, is an array of the partitions (`PartitionName`) that it has revoked.

    The payload of the answer is a `HeartbeatAnswer`.
    """

    group: str
    member_id: str
    generation: int | None = None


class PollRequest(WireStruct):
    """Deliver messages to a member. The payload of the answer, a `PollAnswer`, is the records of its batches in order.

    A poll that repeats the `number` of the one before says that the answer to that never arrived: the broker delivers
    again what that answer held. 0 is no number.
    """

    group: str
    member_id: str
    generation: int | None = None
    max_messages: int = 100
    max_bytes: int = 1024 * 1024
    wait_ms: int = 0
    visibility_timeout_ms: int | None = None
    number: int = 0


class SettlePart(WireStruct):
    """Messages of one delivery: `count` offsets of the payload. A count of 0 means all that are not settled yet."""

    topic: str
    partition: int
    nonce: str
    count: int


class SettleRequest(WireStruct):
    """Settle messages. The payload is their offsets, uint64 in little-endian, part by part.

    The payload of the answer is an array of pairs, one for each part: a `SettledBatch` and nil, or nil and an
    `ErrorMeta`.
    """

    settlement: Settlement
    parts: list[SettlePart]


class CallRequest(WireStruct):
    """Call a verb by its name. The payload is a map of its arguments, that of the answer the result."""

    name: str


class Stats(WireStruct):
    """The answer to STATS: the resources that this broker uses."""

    node_id: int
    uptime_ns: int
    cpu_ns: int
    rss_bytes: int
    topic_count: int
    size_bytes: int


encode: Final = Encoder().encode
