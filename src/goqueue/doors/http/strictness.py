"""Requests say only what their route knows.

A field or query parameter that is not known would be ignored elsewhere, and a message with a misspelt `dealy` would be
delivered at once. Here it is refused, with the known name that is most like it. A client that wants the old way sends
`Prefer: handling=lenient`; the registry below `/schemas` is always lenient, as that of Confluent.

Fields are checked by msgspec while it decodes a body (`forbid_unknown_fields`), query parameters by a guard.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from goqueue.doors.unknown import unknown

LENIENT: Final = {"lenient": True}
"""The option of a route that ignores what it does not know."""

_HANDLING = re.compile(rb"(?:^|[,;\s])handling\s*=\s*\"?lenient(?![\w-])", re.IGNORECASE)


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all bodies are: objects without unknown fields."""


def is_lenient(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the client asked to ignore what is not known."""
    return any(name == b"prefer" and _HANDLING.search(value) for name, value in headers)


async def refuse_unknown(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard of all routes: refuse query parameters that the route does not know, and fields if it knows none."""
    if "lenient" in handler.opt:
        return
    scope = connection.scope
    if scope["query_string"]:
        check_query(scope["query_string"], tuple(public_names(handler).values()), scope["headers"])
    if "data" not in handler.parsed_fn_signature.parameters and _has_body(scope["headers"]):
        assert isinstance(connection, Request)
        _check_no_fields(await connection.body(), scope["headers"])


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def _check_no_fields(body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse an object with fields where no body is expected; what is no object says nothing."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    if given and not is_lenient(headers):
        raise unknown(next(iter(given)), ())


def check_query(query: bytes, known: Sequence[str], headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a parameter that is not among those that are known."""
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known and not is_lenient(headers):
            raise unknown(name, known, what="query parameter")


@cache
def public_names(handler: BaseRouteHandler) -> dict[str, str]:
    """What the query parameters of the route are called in Python, and what clients call them."""
    names = {}
    for name, field in handler.parsed_fn_signature.parameters.items():
        if isinstance(field.kwarg_definition, QueryParameter):
            names[name] = field.kwarg_definition.name or name
    return names
