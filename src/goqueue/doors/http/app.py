"""The Litestar application: the table of routes, the guards and the error handler."""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from litestar import HttpMethod, Litestar, Request, Response, get, route
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from goqueue.doors.http.answers import JsonRequest, JsonResponse
from goqueue.doors.http.context import SHOWS_INTERNAL, Shared, request_context
from goqueue.doors.http.docs_page import DOCS_PAGE, FIRST_PAGE
from goqueue.doors.http.openapi import describe
from goqueue.doors.http.refusals import ErrorBody, allowed_methods, body_of, encode, headers_of, understood
from goqueue.doors.http.routes import (
    cluster,
    dead_letters,
    delayed,
    groups,
    health,
    info,
    poll,
    positions,
    priorities,
    producers,
    publish,
    read,
    schedules,
    schemas,
    schemas_by_id,
    schemas_rules,
    settle,
    stream,
    topics,
    traces,
    transactions,
)
from goqueue.doors.http.schema_answers import SchemaResponse, is_below, refusal
from goqueue.doors.http.strictness import LENIENT, refuse_unknown
from goqueue.topics.config import refuse_internal

MODULES: tuple[ModuleType, ...] = (
    health,
    info,
    topics,
    publish,
    read,
    stream,
    delayed,
    schedules,
    groups,
    positions,
    poll,
    settle,
    dead_letters,
    priorities,
    schemas,
    schemas_by_id,
    schemas_rules,
    producers,
    transactions,
    traces,
    cluster,
)
"""In the order of the reference page."""
ROUTES: tuple[HTTPRouteHandler, ...] = tuple(
    handler for module in MODULES for handler in vars(module).values() if isinstance(handler, HTTPRouteHandler)
)


@cache
def routes() -> Litestar:
    """The application. Building it is slow, so all doors of a process share it; each request carries its door."""
    return Litestar(
        [*_options(), *ROUTES, openapi, docs, first_page],
        dependencies={"context": Provide(request_context, sync_to_thread=False)},
        exception_handlers={Exception: refuse},
        guards=[refuse_internal_topic, refuse_unknown],
        request_class=JsonRequest,
        response_class=JsonResponse,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


async def refuse_internal_topic(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard of all routes: refuse internal topics, except where the route allows them."""
    topic = connection.path_params.get("topic")
    if topic is not None and not handler.opt.get(SHOWS_INTERNAL):
        refuse_internal(topic)


@get("/openapi.json", sync_to_thread=True)
def openapi(context: Shared) -> JsonResponse[bytes]:
    """The OpenAPI document. Built in a thread at the first request, because that is slow."""
    return JsonResponse(_document(context.door.build.version), media_type="application/json")


def _options() -> Iterator[HTTPRouteHandler]:
    """OPTIONS handlers. Litestar's own name only the methods of the first handler of a path."""
    methods: dict[str, set[str]] = defaultdict(lambda: {"OPTIONS"})
    for handler in ROUTES:
        for path in handler.paths:
            methods[path] |= handler.http_methods
    for path, allowed in methods.items():
        yield _options_of(path, allowed_methods(allowed, path))


def _options_of(path: str, allowed: str) -> HTTPRouteHandler:
    @route(path, http_method=HttpMethod.OPTIONS, status_code=204, opt={**LENIENT, SHOWS_INTERNAL: True})
    async def options() -> Response[None]:
        return Response(None, headers={"allow": allowed})

    return options


@cache
def _document(version: str) -> bytes:
    return encode(describe(ROUTES, version=version))


@get("/docs")
async def docs() -> JsonResponse[bytes]:
    """The API explorer."""
    return _page(DOCS_PAGE)


@get("/")
async def first_page() -> JsonResponse[bytes]:
    """A page of links."""
    return _page(FIRST_PAGE)


def _page(content: bytes) -> JsonResponse[bytes]:
    headers = {"content-security-policy": "default-src 'self' 'unsafe-inline'"}
    return JsonResponse(content, media_type="text/html", headers=headers)


def refuse(request: Request[Any, Any, Any], error: Exception) -> JsonResponse[ErrorBody]:
    """The answer to a request whose handler raised an exception."""
    told = understood(error, request.scope)
    headers = headers_of(told)
    if is_below(request.scope["path"]):
        refused = refusal(told)
        return SchemaResponse(refused, status_code=refused.status, headers=headers)
    body = body_of(told)
    return JsonResponse(body, status_code=body.status, headers=headers, media_type="application/json")
