"""Topics: create, list, describe, change and delete them; offsets by time."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, FromQuery, JSONBody

from goqueue.doors.http.context import SHOWS_INTERNAL, Shared
from goqueue.doors.http.shapes import Client, is_true, one_of, parse_partition, parse_time_query, time_text
from goqueue.doors.http.strictness import Body, is_lenient
from goqueue.errors import InvalidTopic
from goqueue.service.topics import NO_LEADER, PartitionInfo, TopicInfo
from goqueue.times import format_duration, parse_duration
from goqueue.topics.config import is_setting


class CreateTopicBody(Body, kw_only=True):
    """A topic to create. Settings that are left out have the default of the broker."""

    name: str
    num_partitions: int | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    replication_factor_camel: int | None = msgspec.field(default=None, name="replicationFactor")
    retention_hours: float | None = None
    config: dict[str, Any] | None = None


class CreatedTopic(msgspec.Struct, kw_only=True):
    """A topic that was created."""

    name: str
    id: str
    partitions: int
    num_partitions: int
    replication_factor: int
    created: bool
    config: dict[str, Any]


class TopicList(msgspec.Struct, kw_only=True):
    """The names of topics, sorted."""

    topics: list[str]
    count: int


class PartitionOffsets(msgspec.Struct, kw_only=True):
    """The offsets of a partition. `latest` is the last offset written, -1 if the partition is empty."""

    earliest: int
    latest: int
    high_watermark: int
    last_stable_offset: int


class ShownTopic(msgspec.Struct, kw_only=True):
    """The state of a topic. The id changes if the topic is deleted and created again."""

    name: str
    id: str
    partitions: int
    num_partitions: int
    replication_factor: int
    total_messages: int
    total_size_bytes: int
    partition_offsets: dict[str, PartitionOffsets]
    config: dict[str, Any]
    created_at: str


class DeletedTopic(msgspec.Struct, kw_only=True):
    """The answer to the deletion of a topic."""

    deleted: bool
    name: str


class ShownTopicSettings(msgspec.Struct, kw_only=True):
    """The settings of a topic, and the names of those that have their default."""

    name: str
    config: dict[str, Any]
    defaults: list[str]


class ShownPartition(msgspec.Struct, kw_only=True):
    """The state of a partition."""

    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    version: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    state: str


class PartitionList(msgspec.Struct, kw_only=True):
    """The partitions of a topic."""

    topic: str
    partitions: list[ShownPartition]


class OffsetsByPartition(msgspec.Struct, kw_only=True):
    """An offset per partition."""

    topic: str
    offsets: dict[str, int]


class TruncateBody(Body, kw_only=True):
    """Which records of a partition to delete."""

    before_offset: int


class TruncatedPartition(msgspec.Struct, kw_only=True):
    """Where the log of a partition starts after records were deleted."""

    topic: str
    partition: int
    log_start_offset: int


@post("/topics", tags=["topics"], summary="Create a topic")
async def create_topic(context: Shared, request: Client, data: JSONBody[CreateTopicBody]) -> CreatedTopic:
    """Create a topic; the answer is sent once the topic is durable."""
    settings = {name: value for name, value in _settings_given(data.config or {}, request) if value is not None}
    names = {
        "num_partitions": "num_partitions" if data.partitions is None else "partitions",
        "replication_factor": "replication_factor" if data.replication_factor_camel is None else "replicationFactor",
    }
    if data.retention_hours is not None:
        one_of(data.retention_hours, settings.get("retention"), "retention_hours and config.retention")
        settings["retention"] = _hours(data.retention_hours, data.name)
        names["retention"] = "retention_hours"
    with _named("config.", names):
        pending = context.service.topics.create(
            data.name,
            partitions=one_of(data.num_partitions, data.partitions, "num_partitions and partitions"),
            replication_factor=one_of(
                data.replication_factor, data.replication_factor_camel, "replication_factor and replicationFactor"
            ),
            settings=settings,
        )
        topic = await context.answered(pending, "create topic")
    return CreatedTopic(
        name=topic.name,
        id=_uuid(topic.topic_id),
        partitions=len(topic.partitions),
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        created=True,
        config=dict(topic.settings),
    )


@get("/topics", tags=["topics"], summary="List topics")
async def list_topics(context: Shared, internal: FromQuery[str | None] = None) -> TopicList:
    """The names of all topics; with `internal=true`, internal topics too."""
    names = await context.answered(context.service.topics.list(internal=is_true(internal)))
    return TopicList(topics=names, count=len(names))


@get("/topics/{topic:str}", tags=["topics"], summary="Get a topic", opt={SHOWS_INTERNAL: True})
async def show_topic(context: Shared, topic: FromPath[str]) -> ShownTopic:
    """The size of the topic, the offsets of its partitions and its settings."""
    info = await context.answered(context.service.topics.describe(topic))
    return ShownTopic(
        name=info.name,
        id=_uuid(info.topic_id),
        partitions=len(info.partitions),
        num_partitions=len(info.partitions),
        replication_factor=info.replication_factor,
        total_messages=info.total_messages,
        total_size_bytes=info.total_size_bytes,
        partition_offsets={str(partition.partition): _offsets(partition) for partition in info.partitions},
        config=dict(info.settings),
        created_at=time_text(info.created_at_ns),
    )


@delete("/topics/{topic:str}", tags=["topics"], summary="Delete a topic", status_code=200)
async def delete_topic(context: Shared, topic: FromPath[str]) -> DeletedTopic:
    """Delete the topic with all of its messages."""
    await context.answered(context.service.topics.delete(topic), "delete topic")
    return DeletedTopic(deleted=True, name=topic)


@get("/topics/{topic:str}/config", tags=["topics"], summary="Get the settings of a topic")
async def show_config(context: Shared, topic: FromPath[str]) -> ShownTopicSettings:
    """All settings, and the names of those that have their default."""
    return _settings(await context.answered(context.service.topics.describe(topic)))


@patch("/topics/{topic:str}/config", tags=["topics"], summary="Change settings of a topic")
async def change_config(
    context: Shared, request: Client, topic: FromPath[str], data: JSONBody[dict[str, Any]]
) -> ShownTopicSettings:
    """Change the given settings; null resets a setting to its default."""
    with _named():
        pending = context.service.topics.alter(topic, dict(_settings_given(data, request)))
        altered = await context.answered(pending, "change topic")
    return _settings(altered)


@get("/topics/{topic:str}/partitions", tags=["topics"], summary="List the partitions of a topic")
async def list_partitions(context: Shared, topic: FromPath[str]) -> PartitionList:
    """The leader, the replicas and the offsets of each partition."""
    info = await context.answered(context.service.topics.describe(topic))
    return PartitionList(topic=info.name, partitions=[_partition(partition) for partition in info.partitions])


@post(
    "/topics/{topic:str}/partitions/{partition:str}/truncate",
    tags=["topics"],
    summary="Delete the records of a partition before an offset",
    status_code=200,
)
async def truncate_partition(
    context: Shared, topic: FromPath[str], partition: FromPath[str], data: JSONBody[TruncateBody]
) -> TruncatedPartition:
    """Deletes the records below `before_offset`; -1 deletes all. Consumers continue at the new start of the log."""
    number = parse_partition(partition)
    pending = context.service.topics.truncate(topic, number, data.before_offset)
    start = await context.answered(pending, "truncate")
    return TruncatedPartition(topic=topic, partition=number, log_start_offset=start)


@get("/topics/{topic:str}/offsets", tags=["topics"], summary="Find offsets by time")
async def find_offsets(context: Shared, topic: FromPath[str], time: FromQuery[str] = "latest") -> OffsetsByPartition:
    """For each partition the first offset at or after a time, or the end offset. `earliest` and `latest` work too."""
    if time in ("earliest", "latest"):
        offsets = await context.answered(context.service.topics.offsets(topic, at=time))
    else:
        time_ns = parse_time_query(time, "time", now_ns=context.clock.wall_ns())
        offsets = await context.answered(context.service.topics.offsets(topic, time_ns=time_ns))
    return OffsetsByPartition(topic=topic, offsets={str(partition): offset for partition, offset in enumerate(offsets)})


def _settings_given(given: dict[str, Any], request: Client) -> Iterable[tuple[str, Any]]:
    """The settings of a request; a lenient request is stripped of unknown settings."""
    if is_lenient(request.scope["headers"]):
        return [(name, value) for name, value in given.items() if is_setting(name)]
    return given.items()


@contextmanager
def _named(prefix: str = "", names: Mapping[str, str] = {}) -> Iterator[None]:
    """Give errors about a setting its path in the request and the name that the request used."""
    try:
        yield
    except InvalidTopic as error:
        if "setting" not in vars(error):
            raise
        path = names.get(error.setting, f"{prefix}{error.setting}")
        if error.setting in names:
            error = InvalidTopic(error.name, error.reason, setting=path)
        error.path = path
        raise error from None


def _hours(hours: float, topic: str) -> str:
    try:
        return format_duration(parse_duration(hours * 3_600))
    except ValueError as error:
        raise InvalidTopic(topic, str(error), setting="retention_hours") from None


def _uuid(topic_id: str) -> str:
    """The id as RFC 4122 writes it: topics of earlier versions have one without hyphens."""
    return str(UUID(topic_id))


def _offsets(partition: PartitionInfo) -> PartitionOffsets:
    return PartitionOffsets(
        earliest=partition.start_offset,
        latest=partition.end_offset - 1,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
    )


def _settings(topic: TopicInfo) -> ShownTopicSettings:
    return ShownTopicSettings(name=topic.name, config=dict(topic.settings), defaults=sorted(topic.defaults))


def _partition(partition: PartitionInfo) -> ShownPartition:
    return ShownPartition(
        partition=partition.partition,
        leader=partition.leader,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        elr=list(partition.elr),
        version=partition.version,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.start_offset,
        log_end_offset=partition.end_offset,
        size_bytes=partition.size_bytes,
        state="offline" if partition.leader == NO_LEADER else "online",
    )
