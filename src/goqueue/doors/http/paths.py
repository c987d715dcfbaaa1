"""The path by which a route is found.

It is the decoded one, except where a part of it may hold a slash, written `%2F`: the subject of a schema, the id of a
transaction. There a route is found by the path as it was sent, and its parts are decoded one by one afterwards.
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
    """The path by which the route of a request is found."""
    sent: str = scope["raw_path"].decode("ascii")
    if _AS_SENT.match(sent):
        return sent
    path: str = scope["path"]
    return path


async def decode_path(request: Request[Any, Any, Any]) -> None:
    """Decode what a path that was not decoded says; to be done before such a route is called."""
    given = request.scope["path_params"]
    request.scope["path_params"] = {name: _decoded(text) for name, text in given.items()}  # others share the old one


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(f"invalid path: {text[:SHOWN_MAX]!r} is no UTF-8", path="path") from None
