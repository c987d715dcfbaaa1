"""The path that requests are routed by.

It is the decoded path, except where a path parameter may contain a slash, written `%2F`: the subject of a schema, the
id of a transaction. Such requests are routed by the path as it was sent, and each parameter is decoded afterwards.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from litestar import Request

from goqueue.doors.http.refusals import SHOWN_MAX
from goqueue.errors import InvalidRequest

_AS_SENT = re.compile(r"(?:/v1)?/(?:schemas|transactions)(?=/|$)")


def path_of(scope: Mapping[str, Any]) -> str:
    """The path to route the request by."""
    sent: str = scope["raw_path"].decode("ascii")
    if _AS_SENT.match(sent):
        return sent
    path: str = scope["path"]
    return path


async def decode_path(request: Request[Any, Any, Any]) -> None:
    """Decode the parameters of a path that was not decoded. Runs before the handler of such a route."""
    given = request.scope["path_params"]
    # A new dict: Litestar caches the old one and hands it to other requests with the same path.
    request.scope["path_params"] = {name: _decoded(text) for name, text in given.items()}


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(f"invalid path: {text[:SHOWN_MAX]!r} is not UTF-8", path="path") from None
