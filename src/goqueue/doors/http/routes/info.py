"""What is running here, and how much of it."""

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
    """Which build runs here, and on what."""

    version: str
    git_commit: str
    build_time: str
    python_version: str


class TopicStats(msgspec.Struct, kw_only=True):
    """One topic in numbers."""

    name: str
    partitions: int
    total_messages: int
    total_size_bytes: int


class Stats(msgspec.Struct, kw_only=True):
    """One node in numbers."""

    node_id: int
    uptime: str
    topics: int
    topic_list: list[str]
    total_size_bytes: int
    topic_stats: dict[str, TopicStats]


@get("/version", tags=["information"], summary="Which version runs")
async def version(context: Shared) -> Version:
    """Which build runs here, and on what."""
    return Version(**context.door.build._asdict(), python_version=platform.python_version())


@get("/stats", tags=["information"], summary="The node in numbers")
async def stats(context: Shared) -> Stats:
    """Internal topics are not listed; their bytes count."""
    node = context.service.node.stats()
    topics = [
        (await context.answered(context.service.topics.describe(name)))
        for name in (await context.answered(context.service.topics.list()))
    ]
    return Stats(
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


@get("/metrics", tags=["information"], summary="Metrics", media_type="text/plain")
async def metrics(context: Shared, request: Request[Any, Any, Any]) -> JsonResponse[bytes]:
    """Prometheus text, or OpenMetrics if asked for."""
    body, content_type = b"", PROMETHEUS_TEXT
    if context.door.metrics:
        body, content_type = context.door.metrics(OPENMETRICS in request.headers.get("accept", ""))
    return JsonResponse(body, headers={"content-type": content_type})
