"""The request and response classes: JSON in, whatever the Content-Type is, and JSON out, with a newline at the end."""

import asyncio
from functools import cache
from typing import Any, Final, TypeVar

from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Empty, Receive, Scope, Send

from goqueue.doors.http.bodies import BodyDecoder, check_braces
from goqueue.doors.http.context import context_of
from goqueue.doors.http.large_values import Encoded
from goqueue.errors import InvalidRequest

T = TypeVar("T")
PUBLISHES: Final = {"publishes": True}
"""The option of a route whose bodies contain messages: it has the larger size limit."""


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is JSON of limited size."""

    async def body(self) -> bytes:
        if self._body is Empty:
            context = context_of(self.scope)
            config = context.config
            limit = config.publish_bytes_max if "publishes" in self.route_handler.opt else config.body_bytes_max
            self._body = await context.bodies.read(self.scope, self.receive, limit=limit)
            check_braces(self._body, limit=config.braces_max)
        return self._body

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        body = await self.body()
        if not body:
            if field and field.is_optional:
                return None
            raise InvalidRequest("invalid JSON: the body is empty")
        return _decoder(field.annotation if field else Any).decode(body, self.scope["headers"])


@cache
def _decoder(shape: Any) -> BodyDecoder[Any]:
    """A strict decoder: Litestar's own accepts "3" for 3."""
    return BodyDecoder(shape)


class JsonResponse(Response[T]):
    """An answer as JSON. Bytes are sent unchanged, large values in slices."""

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **options: Any) -> ASGIResponse:
        if isinstance(self.content, bytes):
            return super().to_asgi_response(app, request, **options)
        encoded = Encoded(self.content)
        self._body = b"" if encoded.has_large_values else encoded.whole + b"\n"
        response = super().to_asgi_response(app, request, **options)
        return SlicedResponse(response, encoded) if encoded.has_large_values else response

    def render(self, content: Any, media_type: str, enc_hook: Any = None) -> bytes:
        return content if isinstance(content, bytes) else self._body


class SlicedResponse(ASGIResponse):
    """An answer that is encoded and sent in pieces, so that the event loop can serve other requests in between."""

    def __init__(self, response: ASGIResponse, encoded: Encoded) -> None:
        super().__init__(status_code=response.status_code)
        self.headers = response.headers
        self._encoded = encoded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = [*await self._encoded.pieces(), b"\n"]
        self.headers["content-length"] = str(sum(map(len, pieces)))
        await self.start_response(send)
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
