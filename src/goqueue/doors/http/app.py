"""The Litestar application: the routes, and how they answer."""

from typing import Any

from litestar import Litestar, Request, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from goqueue.doors.http import (
    routes_health,
    routes_info,
    routes_publish,
    routes_read,
    routes_stream,
    routes_topics,
)
from goqueue.doors.http.answers import JsonRequest, JsonResponse
from goqueue.doors.http.context import Context
from goqueue.doors.http.docs_page import DOCS_PAGE
from goqueue.doors.http.openapi import describe
from goqueue.doors.http.refusals import ErrorBody, body_of, headers_of, understood

ROUTES: tuple[HTTPRouteHandler, ...] = (
    routes_health.health,
    routes_health.alive,
    routes_health.ready,
    routes_info.version,
    routes_info.stats,
    routes_info.metrics,
    routes_topics.create_topic,
    routes_topics.list_topics,
    routes_topics.show_topic,
    routes_topics.delete_topic,
    routes_topics.show_config,
    routes_topics.change_config,
    routes_topics.list_partitions,
    routes_topics.find_offsets,
    routes_publish.publish,
    routes_read.read_partition,
    routes_read.read_topic,
    routes_stream.follow,
)


def build_app(context: Context) -> Litestar:
    """All routes on one open door."""

    def provide_context() -> Context:
        return context

    return Litestar(
        [*ROUTES, openapi, docs],
        dependencies={"context": Provide(provide_context, sync_to_thread=False)},
        exception_handlers={Exception: refuse},
        request_class=JsonRequest,
        response_class=JsonResponse,
        state=State({"context": context}),
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


@get("/openapi.json")
async def openapi(context: Context) -> dict[str, Any]:
    """All routes, as OpenAPI describes them."""
    return describe(ROUTES, version=context.build.version)


@get("/docs")
async def docs() -> JsonResponse[bytes]:
    """A page to read about the routes and to try them."""
    return JsonResponse(DOCS_PAGE, media_type="text/html")


def refuse(request: Request[Any, Any, Any], error: Exception) -> JsonResponse[ErrorBody]:
    """What a client is told when a route raised something."""
    told = understood(error, request.scope)
    body = body_of(told)
    return JsonResponse(body, status_code=body.status, headers=headers_of(told), media_type="application/json")
