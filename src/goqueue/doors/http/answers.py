"""Requests and answers as all routes know them: JSON in, whatever it calls itself, and JSON out, with a newline at its end."""

from typing import Any, TypeVar

import msgspec
from litestar import Request, Response

from goqueue.doors.http.bodies import decode
from goqueue.doors.http.context import Context
from goqueue.doors.http.refusals import encode

T = TypeVar("T")
_anything = msgspec.json.Decoder()


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is JSON, and never over the limit."""

    async def body(self) -> bytes:
        context: Context = self.app.state["context"]
        return await context.bodies.read(self.scope, self.receive, limit=context.config.body_bytes_max)

    async def json(self) -> Any:
        return decode(_anything, await self.body())


class JsonResponse(Response[T]):
    """An answer; bytes are sent as they are."""

    def render(self, content: Any, media_type: str, enc_hook: Any = None) -> bytes:
        return content if isinstance(content, bytes) else encode(content)
