"""Error answers: one body for all errors.

    {"error": text, "code": code, "status": int, "retryable": bool, "details"?: object}

The status of a GoQueue error comes from the table in `wire/codes.py`. Exceptions of Litestar and msgspec are translated
to GoQueue errors here. Any other exception is a bug: it is logged with the id of the request, and the answer contains
that id only.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from goqueue.errors import (
    GoQueueError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
)
from goqueue.wire import codes

INT_MAX: Final = 2**63 - 1
SHOWN_MAX: Final = 200
REQUEST_ID: Final = "goqueue_request_id"
"""The key of the request id in the state of a request."""
RETRY_AFTER_STATUS: Final = frozenset({429, 503, 507})

_log = logging.getLogger("goqueue.http")
_encode = msgspec.json.Encoder().encode
_MISSING = re.compile(r"Object missing required field `(.+?)`")
_WITHOUT_HEAD = re.compile(r"/topics/[^/]+/stream/*|/groups/[^/]+/poll/*")
_NULL = re.compile(r"Expected `.+`, got `null`")
_LOCATED = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)


class ErrorBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An error: what is wrong, its code, and whether the same request may succeed later."""

    error: str
    code: str
    status: int
    retryable: bool
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def body_of(error: GoQueueError) -> ErrorBody:
    facts = {name: _plain(value) for name, value in error.facts().items()}
    return ErrorBody(
        error=str(error),
        code=error.code if error.code in codes.TABLE else InternalError.code,
        status=codes.row(error).http,
        retryable=error.retryable,
        details=facts or msgspec.UNSET,
    )


def headers_of(error: GoQueueError) -> dict[str, str]:
    """The headers for the error: `Retry-After` and `Allow` where they apply."""
    headers = {}
    if error.retryable and codes.row(error).http in RETRY_AFTER_STATUS:
        wait_ms = getattr(error, "retry_after_ms", 1_000)
        headers["retry-after"] = str(max(1, -(-wait_ms // 1_000)))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    return headers


def encode(body: object) -> bytes:
    """The body as JSON, with one newline at its end."""
    return _encode(body) + b"\n"


def understood(error: Exception, scope: Mapping[str, Any]) -> GoQueueError:
    """Translate any exception to a `GoQueueError`. Logs those that are bugs."""
    method, path = scope["method"], scope["path"]
    match error:
        case GoQueueError():
            return error
        case MethodNotAllowedException():
            allowed = (error.headers or {}).get("allow", "")
            return MethodNotAllowed(method, allowed_methods(allowed.split(", "), path))
        case NotFoundException():
            return NotFound(f"{method} {path[:SHOWN_MAX]}")
        case ValidationException():
            return _invalid(error, scope)
        case HTTPException() if error.status_code < 500:
            return InvalidRequest(error.detail)
    request_id = request_id_of(scope)
    _log.error("request failed: method=%s path=%s request_id=%s", method, path[:SHOWN_MAX], request_id, exc_info=error)
    return InternalError(request_id)


def request_id_of(scope: Mapping[str, Any]) -> str:
    """The id of the request, as in the header `X-Request-ID`."""
    identity: str = scope["state"].get(REQUEST_ID, "")
    return identity


def malformed(error: msgspec.ValidationError) -> InvalidRequest:
    """The error for JSON of the wrong type, with the path of the fault."""
    match = _LOCATED.fullmatch(str(error))
    assert match
    return _unfit(match["what"], (match["path"] or "$").removeprefix("$."))


def too_many(count: int, what: str, limit: int) -> RequestTooLarge:
    """The error for a request with too many messages, receipts or objects."""
    text = f"request too large: {count} {what} are over the limit of {limit}"
    return RequestTooLarge.restored(text, {"size": count, "limit": limit})


def allowed_methods(methods: Iterable[str], path: str) -> str:
    """The value of the `Allow` header."""
    allowed = set(methods)
    if "GET" in allowed and has_head(path):
        allowed.add("HEAD")
    return ", ".join(sorted(allowed))


def has_head(path: str) -> bool:
    """Whether the route answers HEAD. Streams do not end, and a poll would lease messages that it does not return."""
    return not _WITHOUT_HEAD.fullmatch(path)


def _invalid(error: ValidationException, scope: Mapping[str, Any]) -> InvalidRequest:
    """The first fault that Litestar found in a parameter or a body."""
    first: Any = next(iter(error.extra or ()), {})
    if not isinstance(first, dict) or "key" not in first:
        return InvalidRequest(error.detail)
    if first.get("source") == "body":
        return _unfit(first["message"], "$" if first["key"] == "data" else first["key"])
    name = _public_name(first["key"], scope)
    return InvalidRequest(f"invalid {name}: {first['message']}", path=name)


def _public_name(name: str, scope: Mapping[str, Any]) -> str:
    """The name of the parameter in the URL, which may differ from its name in Python."""
    handler = scope.get("route_handler")
    field = handler.parsed_fn_signature.parameters.get(name) if handler else None
    return getattr(field.kwarg_definition, "name", None) or name if field else name


def _unfit(what: str, path: str) -> InvalidRequest:
    missing = _MISSING.fullmatch(what)
    if missing:
        name = missing[1] if path == "$" else f"{path}.{missing[1]}"
        return InvalidRequest(f"{name} is required", path=name)
    if _NULL.fullmatch(what) and path != "$":  # null means absent
        return InvalidRequest(f"{path} is required", path=path)
    return InvalidRequest(f"invalid {'body' if path == '$' else path}: {what}", path=path)


def _plain(value: object) -> object:
    """Integers that exceed 64 bits become text: many JSON parsers cannot read them."""
    return str(value)[:SHOWN_MAX] if isinstance(value, int) and abs(value) > INT_MAX else value
