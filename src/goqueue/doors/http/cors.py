"""CORS: pages of the configured origins may call the API, without credentials.

A browser sends a preflight request first, and shows an answer to the page only if its headers allow the origin.
Requests without an Origin header are passed on unchanged.
"""

from collections.abc import Iterable
from typing import Any, Final

from litestar.types import Receive, Send

METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
HEADERS: Final = (
    b"Accept, Authorization, Content-Type, Last-Event-ID, Prefer, X-API-Key, X-Request-ID, X-Tenant-ID, "
    b"traceparent, tracestate"
)
EXPOSED: Final = b"Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-Request-ID"
MAX_AGE_S: Final = b"300"


class CrossOrigin:
    """ASGI middleware that answers preflights and adds the CORS headers."""

    def __init__(self, app: Any, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        allowed = [(b"vary", b"Origin")]
        if b"*" in self._origins:
            allowed = [(b"access-control-allow-origin", b"*")]
        elif origin in self._origins:
            allowed.append((b"access-control-allow-origin", origin))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _preflight(send, allowed)
            return

        async def send_allowed(event: Any) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event["headers"], *allowed, (b"access-control-expose-headers", EXPOSED)]
            await send(event)

        await self._app(scope, receive, send_allowed)


async def _preflight(send: Send, allowed: list[tuple[bytes, bytes]]) -> None:
    headers = [
        *allowed,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", HEADERS),
        (b"access-control-max-age", MAX_AGE_S),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
