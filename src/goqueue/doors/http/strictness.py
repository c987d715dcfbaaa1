"""Unknown fields and query parameters are refused.

If they were ignored, a message with a misspelt `dealy` would be delivered at once. The error names the most similar
known name. A client can send `Prefer: handling=lenient` to have them ignored. The registry below `/schemas` is always
lenient, as Confluent's is.

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
"""The option of a route that ignores unknown fields and query parameters."""

_HANDLING = re.compile(rb"(?:^|[,;\s])handling\s*=\s*\"?lenient(?![\w-])", re.IGNORECASE)


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of all request bodies: JSON objects that refuse unknown fields."""


def is_lenient(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the client asked to ignore unknown fields and query parameters."""
    return any(name == b"prefer" and _HANDLING.search(value) for name, value in headers)


async def refuse_unknown(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard of all routes: refuse unknown query parameters, and any field if the route takes no body."""
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
    """Refuse a JSON object with fields where no body is expected. Any other content is ignored."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    if given and not is_lenient(headers):
        raise unknown(next(iter(given)), ())


def check_query(query: bytes, known: Sequence[str], headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse query parameters other than the known ones."""
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known and not is_lenient(headers):
            raise unknown(name, known, what="query parameter")


@cache
def public_names(handler: BaseRouteHandler) -> dict[str, str]:
    """The query parameters of the route: the name in Python to the name in the URL."""
    names = {}
    for name, field in handler.parsed_fn_signature.parameters.items():
        if isinstance(field.kwarg_definition, QueryParameter):
            names[name] = field.kwarg_definition.name or name
    return names
