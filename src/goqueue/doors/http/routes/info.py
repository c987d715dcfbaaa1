"""The version, statistics and metrics of the node."""

import platform
from typing import Any

import msgspec
from litestar import Request, get

from goqueue.doors.http.answers import JsonResponse
from goqueue.doors.http.context import Shared
from goqueue.times import format_duration

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


class Version(msgspec.Struct, kw_only=True):
    """The build of the broker, and the version of Python."""

    version: str
    git_commit: str
    build_time: str
    python_version: str


class TopicStats(msgspec.Struct, kw_only=True):
    """Statistics of one topic."""

    name: str
    partitions: int
    total_messages: int
    total_size_bytes: int


class ShownStats(msgspec.Struct, kw_only=True):
    """Statistics of the node."""

    node_id: int
    uptime: str
    topics: int
    topic_list: list[str]
    total_size_bytes: int
    topic_stats: dict[str, TopicStats]


@get("/version", tags=["information"], summary="Get the version")
async def version(context: Shared) -> Version:
    """The build of the broker, and the version of Python."""
    return Version(**context.door.build._asdict(), python_version=platform.python_version())


@get("/stats", tags=["information"], summary="Get the statistics of the node")
async def stats(context: Shared) -> ShownStats:
    """Internal topics are not listed, but `total_size_bytes` includes them."""
    node = context.service.node.stats()
    topics = [
        (await context.answered(context.service.topics.describe(name)))
        for name in (await context.answered(context.service.topics.list()))
    ]
    return ShownStats(
        node_id=node.node_id,
        uptime=format_duration(node.uptime_ns),
        topics=len(topics),
        topic_list=[topic.name for topic in topics],
        total_size_bytes=node.size_bytes,
        topic_stats={
            topic.name: TopicStats(
                name=topic.name,
                partitions=len(topic.partitions),
                total_messages=topic.total_messages,
                total_size_bytes=topic.total_size_bytes,
            )
            for topic in topics
        },
    )


@get("/metrics", tags=["information"], summary="Get metrics", media_type="text/plain")
async def metrics(context: Shared, request: Request[Any, Any, Any]) -> JsonResponse[bytes]:
    """Metrics as Prometheus text, or as OpenMetrics if the client accepts that."""
    body, content_type = b"", PROMETHEUS_TEXT
    if context.door.metrics:
        body, content_type = context.door.metrics(OPENMETRICS in request.headers.get("accept", ""))
    return JsonResponse(body, headers={"content-type": content_type})
