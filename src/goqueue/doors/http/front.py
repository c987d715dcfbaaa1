"""The outermost ASGI application: every request passes through it.

It assigns the request id, maps `/v1/x` to `/x` and HEAD to GET without a body, calls the handler of the publish route
directly, which saves the cost of Litestar's routing, and passes all other requests to Litestar. Any exception of either
becomes an error answer in the common shape.
"""

import os
import re
from asyncio import CancelledError
from collections.abc import Iterable
from http import HTTPStatus
from itertools import count
from typing import Any, cast

from litestar import Litestar
from litestar.types import Receive, Send

from goqueue.doors.http.bodies import ClientGone
from goqueue.doors.http.context import CONTEXT, WAITED, Context, Observer, RequestAnswered
from goqueue.doors.http.paths import path_of
from goqueue.doors.http.refusals import REQUEST_ID, body_of, encode, has_head, headers_of, understood
from goqueue.doors.http.routes.publish import ROUTE as PUBLISH_ROUTE
from goqueue.doors.http.routes.publish import Publishing
from goqueue.errors import InvalidRequest

_PUBLISH = re.compile(r"(?:/v1)?/topics/([^/]+)/messages(?:/batch)?/*")
_VERSIONED = re.compile(r"^/v1(?=/|$)")
_REQUEST_ID = re.compile(rb"[\x20-\x7e]{1,128}")
_PARAMETER_TYPE = re.compile(r":\w+(?=})")
Scope = dict[str, Any]


class Front:
    """The ASGI application that uvicorn calls."""

    def __init__(self, context: Context, app: Litestar, *, observe: Observer | None = None) -> None:
        self._context = context
        self._app: Any = app
        self._publishing = Publishing(context)
        self._observe = observe
        self._own_ids = count(1)
        self._own_prefix = os.urandom(6).hex()
        self.requests_in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_ns = self._context.clock.monotonic_ns() if self._observe else 0
        request_id, hosts, expects = self._head(scope["headers"])
        if expects:
            send = _closing_refused(send)
        scope["state"] |= {REQUEST_ID: request_id, CONTEXT: self._context}
        match = _PUBLISH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        route = PUBLISH_ROUTE if match else ""
        self.requests_in_flight += 1
        try:
            if hosts != 1 and scope["http_version"] == "1.1":
                raise InvalidRequest("one Host header is required", path="Host")
            if match:
                status = await self._publishing(match[1], cast("Any", scope), receive, send, request_id.encode())
            else:
                route, status = await self._route(scope, receive, send, request_id)
        except ClientGone:
            return
        except CancelledError:
            if not self._context.closing.done():
                raise
            return  # the grace period is over, and the connection is aborted
        except Exception as error:
            status = await _refuse(error, scope, send, request_id)
        finally:
            self.requests_in_flight -= 1
        if self._observe:
            taken_ns = self._context.clock.monotonic_ns() - began_ns - scope["state"].get(WAITED, 0)
            self._observe(RequestAnswered(scope["method"], route, status, taken_ns))

    async def _route(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> tuple[str, int]:
        """Let Litestar answer; returns the template of the route and the status."""
        inner = {**scope, "path": _VERSIONED.sub("", path_of(scope)) or "/"}
        if scope["method"] == "HEAD" and has_head(inner["path"]):
            inner["method"] = "GET"
        status = 0

        async def send_identified(event: Any) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                event["headers"] = [*event["headers"], (b"x-request-id", request_id.encode())]
            await send(event)

        try:
            await self._app(inner, receive, send_identified)
        except Exception as error:
            if not status:
                raise
            understood(error, scope)  # logs it; the answer has begun, so it can only be cut off
        return _PARAMETER_TYPE.sub("", inner.get("path_template", "")), status

    def _head(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, int, bool]:
        """The id of the request, given or new; the number of Host headers; whether it has an Expect header."""
        request_id, hosts, expects = "", 0, False
        for name, value in headers:
            if name == b"host":
                hosts += 1
            elif name == b"expect":
                expects = True
            elif name == b"x-request-id" and not request_id and _REQUEST_ID.fullmatch(value):
                request_id = value.decode()
        return request_id or f"{self._own_prefix}-{next(self._own_ids):x}", hosts, expects


def _closing_refused(send: Send) -> Send:
    """Close the connection after an error.

    A client that waits for `100 Continue` does not send the body after an error. Its next request on the connection
    would be parsed as that body.
    """

    async def send_closing(event: Any) -> None:
        if event["type"] == "http.response.start" and event["status"] >= HTTPStatus.BAD_REQUEST:
            event["headers"] = [*event["headers"], (b"connection", b"close")]
        await send(event)

    return send_closing


async def _refuse(error: Exception, scope: Scope, send: Send, request_id: str) -> int:
    told = understood(error, scope)
    content = encode(body_of(told))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        "x-request-id": request_id,
        **headers_of(told),
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    status = body_of(told).status
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": content, "more_body": False})
    return status
