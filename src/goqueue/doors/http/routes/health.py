"""Health, liveness and readiness, for probes and load balancers.

`/health` summarizes all checks. `/healthz` and `/livez` fail if only a restart helps: the event loop was blocked, or a
log has failed. `/readyz` fails while the broker cannot serve requests.
"""

from collections.abc import Mapping

import msgspec
from litestar import get
from litestar.openapi import ResponseSpec
from litestar.params import FromQuery

from goqueue.doors.http.answers import JsonResponse
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.shapes import is_true, time_text
from goqueue.service.node import Check
from goqueue.times import format_duration

UNSET = msgspec.UNSET


class ShownHealth(msgspec.Struct, kw_only=True):
    """The status: `ok`, `degraded` or `fail`."""

    status: str
    timestamp: str


class CheckResult(msgspec.Struct, kw_only=True):
    """The result of one check: `pass`, `warn` or `fail`."""

    status: str
    message: str | msgspec.UnsetType = UNSET


class BrokerFacts(msgspec.Struct, kw_only=True):
    """Facts about the broker."""

    node_id: int
    topic_count: int
    total_size: int


class Liveness(msgspec.Struct, kw_only=True):
    """The status, `pass` or `fail`, and with `verbose` the checks."""

    status: str
    timestamp: str
    uptime: str | msgspec.UnsetType = UNSET
    message: str | msgspec.UnsetType = UNSET
    checks: dict[str, CheckResult] | msgspec.UnsetType = UNSET
    broker: BrokerFacts | msgspec.UnsetType = UNSET


def _failing(shape: type[msgspec.Struct]) -> dict[int, ResponseSpec]:
    return {503: ResponseSpec(shape, description="The check failed", generate_examples=False)}


@get("/health", tags=["health"], summary="Get the health of the broker", responses=_failing(ShownHealth))
async def health(context: Shared) -> JsonResponse[ShownHealth]:
    """Summarize all checks; 503 if any check fails."""
    found = {check.status for check in context.service.node.checks().values()}
    status = "fail" if "fail" in found or context.door.is_stalled() else "degraded" if "warn" in found else "ok"
    body = ShownHealth(status=status, timestamp=time_text(context.clock.wall_ns()))
    return JsonResponse(body, status_code=503 if status == "fail" else 200)


@get(["/healthz", "/livez"], tags=["health"], summary="Check liveness", responses=_failing(Liveness))
async def alive(context: Shared) -> JsonResponse[Liveness]:
    """503 if only a restart helps."""
    checks = context.service.node.checks()
    if context.door.is_stalled():
        return _liveness(context, "the event loop was blocked")
    return _liveness(context, _failure({"storage": checks["storage"]} if "storage" in checks else {}))


@get("/readyz", tags=["health"], summary="Check readiness", responses=_failing(Liveness))
async def ready(context: Shared, verbose: FromQuery[str | None] = None) -> JsonResponse[Liveness]:
    """503 while the broker cannot serve requests."""
    checks = context.service.node.checks()
    if context.door.closing.done():
        failure = "stopping"
    elif not context.service.is_ready:
        failure = "not ready"
    else:
        failure = _failure(checks)
    response = _liveness(context, failure)
    if is_true(verbose):
        stats = context.service.node.stats()
        response.content.checks = {
            name: CheckResult(status=check.status, message=check.message or UNSET) for name, check in checks.items()
        }
        response.content.broker = BrokerFacts(
            node_id=context.door.node_id, topic_count=stats.topic_count, total_size=stats.size_bytes
        )
    return response


def _failure(checks: Mapping[str, Check]) -> str:
    return "; ".join(check.message or name for name, check in checks.items() if check.status == "fail")


def _liveness(context: RequestContext, failure: str) -> JsonResponse[Liveness]:
    timestamp = time_text(context.clock.wall_ns())
    if failure:
        return JsonResponse(Liveness(status="fail", timestamp=timestamp, message=failure), status_code=503)
    uptime = format_duration(context.service.node.stats().uptime_ns)
    return JsonResponse(Liveness(status="pass", timestamp=timestamp, uptime=uptime), status_code=200)
