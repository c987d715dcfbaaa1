"""The verbs of the native protocol: what stands in the meta of each request and answer.

Metas are msgpack arrays, so fields may only be added, at the end, with a default; an end that does not know a field
passes it over. Records never stand in a meta: they are the payload.

A connection begins with HELLO. From then on requests are pipelined and answered by correlation id, each as
soon as its answer is there. SUBSCRIBE is answered by frames with the flag PUSH under its correlation id, for as long as
its credit of payload bytes lasts; CREDIT adds to it, UNSUBSCRIBE ends it, and neither is answered.
"""

from enum import IntEnum
from typing import Final

import msgspec

from goqueue.errors import GoQueueError
from goqueue.wire.reports import Gap, Settlement

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


class _Meta(msgspec.Struct, array_like=True):
    pass


class Hello(_Meta):
    """The first request of a connection."""

    version: int = PROTOCOL_VERSION
    features: tuple[str, ...] = FEATURES
    client_id: str = ""
    api_key: str = ""


class Welcome(_Meta):
    """The answer to HELLO: what both ends will speak."""

    version: int
    features: tuple[str, ...]
    node_id: int
    server: str  # name and version, for people
    frame_bytes_max: int


class Empty(_Meta):
    """Nothing to say."""


class ErrorMeta(_Meta):
    """An error, in a frame with the flag ERROR; correlation 0 when it concerns the connection."""

    code: str
    text: str
    retryable: bool
    facts: dict[str, object] = {}


def error_meta(error: GoQueueError) -> ErrorMeta:
    """What is told of an error; what a peer put into it is cut to what fits a frame."""
    facts = {name: _cut(value) for name, value in error.facts().items()}
    return ErrorMeta(error.code, str(error)[:TEXT_MAX], error.retryable, facts)


def _cut(value: object) -> object:
    if isinstance(value, list):
        return value[:ITEMS_MAX]
    return value[:TEXT_MAX] if isinstance(value, str) else value


class Metadata(_Meta):
    """Ask for the topics named."""

    topics: list[str]


class TopicMetadata(_Meta):
    """What a client needs to know to publish and read: the leader of each partition, and settings that bind it."""

    name: str
    topic_id: str
    leaders: list[int]  # node ids
    compression: str = "none"
    max_message_bytes: int = 16 * 1024 * 1024
    acks: str = "all"
    error: ErrorMeta | None = None


class MetadataAnswer(_Meta):
    """The nodes by id, as host:port; an empty address is that of the connection itself."""

    nodes: dict[int, str]
    topics: list[TopicMetadata]


class CreateTopic(_Meta):
    """Create a topic; None leaves a choice to the broker."""

    name: str
    partitions: int | None = None
    settings: dict[str, object] = {}
    replication_factor: int | None = None


class TopicName(_Meta):
    """DELETE_TOPIC, DESCRIBE_TOPIC."""

    name: str


class ListTopics(_Meta):
    """The names of the topics; they are the payload of the answer, a msgpack list."""

    internal: bool = False


class AlterTopic(_Meta):
    """Change settings; None resets one."""

    name: str
    changes: dict[str, object]


class PartitionState(_Meta):
    """Where a partition begins and ends."""

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    leader: int = 0
    message_count: int = 0


class TopicState(_Meta):
    """The answer to CREATE_TOPIC, DESCRIBE_TOPIC and ALTER_TOPIC."""

    name: str
    topic_id: str
    replication_factor: int
    created_at_ns: int
    settings: dict[str, object]
    defaults: list[str]
    partitions: list[PartitionState]


class Offsets(_Meta):
    """The first offset of each partition at a time; without one, `at` is `earliest` or `latest`."""

    topic: str
    time_ns: int | None = None
    at: str = "latest"


class OffsetsAnswer(_Meta):
    """Partition by partition."""

    offsets: list[int]


class ProducerIdentity(_Meta):
    """The answer to INIT_PRODUCER."""

    producer_id: int
    epoch: int


class Publish(_Meta):
    """A batch for one partition; the payload is its records, offset and crc zero."""

    topic: str
    partition: int
    acks: str | None = None  # none, leader, all; the topic's by default


class PublishAnswer(_Meta):
    """Where the batch is. `first_offset` is -1 for a duplicate that is older than the broker remembers."""

    first_offset: int
    record_count: int
    timestamp_ns: int
    duplicate: bool = False


class Read(_Meta):
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


class ReadAnswer(_Meta):
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


class Subscribe(_Meta):
    """Push records of one partition from an offset on, up to `credit` bytes of payload."""

    topic: str
    partition: int
    offset: int
    credit: int
    max_bytes: int = 1024 * 1024
    to_time_ns: int | None = None
    isolation: str = "read_committed"


class Credit(_Meta):
    """More bytes for a subscription."""

    subscription: int
    bytes: int


class Unsubscribe(_Meta):
    """Push no more. Frames that were under way may still arrive."""

    subscription: int


class Join(_Meta):
    """Become a member of a group; None leaves a choice to the topic. The answer's payload is a `reports.Joined`."""

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


class MemberHeartbeat(_Meta):
    """A member lives. The payload, if there is one, is a list of the partitions that it has given back.

    That of the answer is a `reports.Heartbeat`.
    """

    group: str
    member_id: str
    generation: int | None = None


class Poll(_Meta):
    """Messages for a member; the answer is `reports.Polled`, its payload the records of the batches in order.

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


class SettlePart(_Meta):
    """Messages of one delivery; `count` offsets in the payload belong to it, none at all means all that are left."""

    topic: str
    partition: int
    nonce: str
    count: int


class Settle(_Meta):
    """Settle messages; the payload is their offsets, uint64 in little-endian, part by part.

    The payload of the answer is a list with a pair for each part: a `reports.SettledBatch`, or else an `ErrorMeta`.
    More than `PARTS_MAX` parts may not fit a frame.
    """

    settlement: Settlement
    parts: list[SettlePart]


class Call(_Meta):
    """Any other verb, by name; the payload is a map of its arguments, that of the answer what it returns."""

    name: str


class Stats(_Meta):
    """The answer to STATS: what it costs to run this broker, for benchmarks and the curious."""

    node_id: int
    uptime_ns: int
    cpu_ns: int
    rss_bytes: int
    topic_count: int
    size_bytes: int


encode: Final = msgspec.msgpack.Encoder().encode
