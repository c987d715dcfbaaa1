"""Answers of the schema registry, compatible with Confluent's Schema Registry, so that its clients work unchanged.

The routes of the registry differ from all others in three ways. Answers, errors included, have the content type of the
registry if the client accepts it. Errors have `error_code` and `message` in addition to the fields that every error
has. And a subject may contain a slash, written `%2F`, which `paths.py` decodes.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import litestar
import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler

from goqueue.doors.http.answers import JsonResponse
from goqueue.doors.http.paths import decode_path
from goqueue.doors.http.refusals import ErrorBody, body_of
from goqueue.doors.http.strictness import LENIENT
from goqueue.errors import GoQueueError

JSON: Final = "application/json"
VENDOR_TYPES: Final = ("application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json")
ERROR_CODES: Final[Mapping[str, int]] = {
    "STORAGE_FULL": 50001,
    "STORAGE_FAILED": 50001,
    "REQUEST_TIMEOUT": 50002,
    "NOT_LEADER": 50003,
    "LEADER_NOT_AVAILABLE": 50003,
}
"""The registry's number for errors that do not carry one; codes that are not listed use their HTTP status."""

T = TypeVar("T")
_BELOW = re.compile(r"(?:/v1)?/schemas(?=/|$)")
_UNWANTED = re.compile(r";\s*q\s*=\s*0(?:\.0*)?\s*(?:;|$)", re.IGNORECASE)


class SchemaErrorBody(ErrorBody, kw_only=True):
    """Why the registry refused a request."""

    error_code: int
    message: str


class SchemaResponse(JsonResponse[T]):
    """An answer of the registry, with its content type if the client accepts that."""

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **options: Any) -> Any:
        if self.media_type in (None, JSON):
            self.media_type = media_type(",".join(request.headers.getall("accept", [])))
        return super().to_asgi_response(app, request, **options)


def media_type(accept: str) -> str:
    """The content type of the answer to a request with this `Accept` header."""
    named = {name.partition(";")[0].strip().lower() for name in accept.split(",") if not _UNWANTED.search(name)}
    return next((vendor for vendor in VENDOR_TYPES if vendor in named), JSON)


def is_below(path: str) -> bool:
    """Whether the path belongs to the registry."""
    return _BELOW.match(path) is not None


def refusal(error: GoQueueError) -> SchemaErrorBody:
    """The error in the shape that clients of Confluent's registry expect."""
    body = body_of(error)
    details = {} if body.details is msgspec.UNSET else body.details
    return SchemaErrorBody(
        error_code=details.pop("error_code", None) or ERROR_CODES.get(body.code, body.status),
        message=body.error,
        error=body.error,
        code=body.code,
        status=body.status,
        retryable=body.retryable,
        details=details or msgspec.UNSET,
    )


def _operation_id(handler: HTTPRouteHandler, _method: object, components: list[Any]) -> str:
    """The name of the handler, with a suffix for the longer of its two paths."""
    name = handler.handler_name
    return f"{name}_in_full" if components[:2] == ["schemas", "schemas"] else name


_SHARED: Final[dict[str, Any]] = {
    "tags": ["schemas"],
    "status_code": 200,
    "response_class": SchemaResponse,
    "before_request": decode_path,
    "operation_id": _operation_id,
    "opt": LENIENT,
}


def get(path: str | list[str], *, summary: str) -> HTTPRouteHandler:
    """A route of the registry that changes nothing."""
    return litestar.get(path, summary=summary, **_SHARED)


def post(path: str | list[str], *, summary: str) -> HTTPRouteHandler:
    """A route of the registry that takes a schema."""
    return litestar.post(path, summary=summary, **_SHARED)


def put(path: str | list[str], *, summary: str) -> HTTPRouteHandler:
    """A route of the registry that sets something."""
    return litestar.put(path, summary=summary, **_SHARED)


def delete(path: str | list[str], *, summary: str) -> HTTPRouteHandler:
    """A route of the registry that deletes something."""
    return litestar.delete(path, summary=summary, **_SHARED)
