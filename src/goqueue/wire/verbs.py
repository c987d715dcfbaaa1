"""The verbs of the native protocol: what stands in the meta of each request and answer.

Metas are msgpack arrays, so fields may only be added, at the end, with a default; an end that does not know a field
passes it over. Records never stand in a meta: they are the payload.

A connection begins with HELLO. From then on requests are pipelined and answered by correlation id, each as
soon as its answer is there. SUBSCRIBE is answered by frames with the flag PUSH under its correlation id, for as long as
its credit of payload bytes lasts; CREDIT adds to it, UNSUBSCRIBE ends it, and neither is answered.
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
FEATURES: Final = ("publish", "read", "subscribe", "idempotence", "groups")
TEXT_MAX: Final = 2_000
ITEMS_MAX: Final = 100


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
    """The answer to HELLO: what both ends will speak."""

    version: int
    features: tuple[str, ...]
    node_id: int
    server: str  # name and version, for people
    frame_bytes_max: int


class Empty(WireStruct):
    """Nothing to say."""


class ErrorMeta(WireStruct):
    """An error, in a frame with the flag ERROR; correlation 0 when it concerns the connection."""

    code: str
    text: str
    retryable: bool
    facts: dict[str, object] = field(default_factory=dict)


def error_meta(error: GoQueueError) -> ErrorMeta:
    """What is told of an error; what a peer put into it is cut to what fits a frame."""
    facts = {name: _cut(value) for name, value in error.facts().items()}
    return ErrorMeta(error.code, str(error)[:TEXT_MAX], error.retryable, facts)


def _cut(value: object) -> object:
    if isinstance(value, list):
        return value[:ITEMS_MAX]
    return value[:TEXT_MAX] if isinstance(value, str) else value


class MetadataRequest(WireStruct):
    """Ask for the topics named."""

    topics: list[str]


class TopicMetadata(WireStruct):
    """What a client needs to know to publish and read: the leader of each partition, and settings that bind it."""

    name: str
    topic_id: str
    leaders: list[int]  # node ids
    compression: str = "none"
    max_message_bytes: int = 16 * 1024 * 1024
    acks: str = "all"
    error: ErrorMeta | None = None


class MetadataAnswer(WireStruct):
    """The nodes by id, as host:port; an empty address is that of the connection itself."""

    nodes: dict[int, str]
    topics: list[TopicMetadata]


class CreateTopicRequest(WireStruct):
    """Create a topic; None leaves a choice to the broker."""

    name: str
    partitions: int | None = None
    settings: dict[str, object] = field(default_factory=dict)
    replication_factor: int | None = None


class TopicRequest(WireStruct):
    """DELETE_TOPIC, DESCRIBE_TOPIC."""

    name: str


class ListTopicsRequest(WireStruct):
    """The names of the topics; they are the payload of the answer, a msgpack list."""

    internal: bool = False


class AlterTopicRequest(WireStruct):
    """Change settings; None resets one."""

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
    """The first offset of each partition at a time; without one, `at` is `earliest` or `latest`."""

    topic: str
    time_ns: int | None = None
    at: str = "latest"


class OffsetsAnswer(WireStruct):
    """Partition by partition."""

    offsets: list[int]


class ProducerIdentity(WireStruct):
    """The answer to INIT_PRODUCER."""

    producer_id: int
    epoch: int


class PublishRequest(WireStruct):
    """A batch for one partition; the payload is its records, offset and crc zero."""

    topic: str
    partition: int
    acks: str | None = None  # none, leader, all; the topic's by default


class PublishAnswer(WireStruct):
    """Where the batch is. `first_offset` is -1 for a duplicate that is older than the broker remembers."""

    first_offset: int
    record_count: int
    timestamp_ns: int
    duplicate: bool = False


class ReadRequest(WireStruct):
    """Records of one partition from an offset, or from a time if that is later; the answer's payload."""

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
    delayed: str = "due"  # or "include": those that are not due yet, too
    without: tuple[str, ...] = ()  # of "key", "value", "headers": what is left out of the records


class ReadAnswer(WireStruct):
    """What stands beside the records. `next_offset` is where to go on."""

    record_count: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    first_pending_offset: int | None = None
    end_of_range: bool = False
    flags: int = 0  # of the records, or-ed
    gaps: tuple[Gap, ...] = ()  # damage between the offset that was asked for and the first record


class SubscribeRequest(WireStruct):
    """Push records of one partition from an offset on, up to `credit` bytes of payload."""

    topic: str
    partition: int
    offset: int
    credit: int
    max_bytes: int = 1024 * 1024
    to_time_ns: int | None = None
    isolation: str = "read_committed"


class CreditRequest(WireStruct):
    """More bytes for a subscription."""

    subscription: int
    bytes: int


class UnsubscribeRequest(WireStruct):
    """Push no more. Frames that were under way may still arrive."""

    subscription: int


class JoinRequest(WireStruct):
    """Become a member of a group; None leaves a choice to the topic. The answer's payload is a `reports.JoinAnswer`."""

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
    """A member lives. The payload, if there is one, is a list of the partitions that it has given back.

    That of the answer is a `reports.HeartbeatAnswer`.
    """

    group: str
    member_id: str
    generation: int | None = None


class PollRequest(WireStruct):
    """Messages for a member; the answer is `reports.PollAnswer`, its payload the records of the batches in order.

    A poll with the number of the one before it says that the answer to that never came; 0 says nothing.
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
    """Messages of one delivery; `count` offsets in the payload belong to it, none at all means all that are left."""

    topic: str
    partition: int
    nonce: str
    count: int


class SettleRequest(WireStruct):
    """Settle messages; the payload is their offsets, uint64 in little-endian, part by part.

    The payload of the answer is a list with a pair for each part: a `reports.SettledBatch`, or else an `ErrorMeta`.
    More than `PARTS_MAX` parts may not fit a frame.
    """

    settlement: Settlement
    parts: list[SettlePart]


class CallRequest(WireStruct):
    """Any other verb, by name; the payload is a map of its arguments, that of the answer what it returns."""

    name: str


class Stats(WireStruct):
    """The answer to STATS: what it costs to run this broker, for benchmarks and the curious."""

    node_id: int
    uptime_ns: int
    cpu_ns: int
    rss_bytes: int
    topic_count: int
    size_bytes: int


encode: Final = Encoder().encode
