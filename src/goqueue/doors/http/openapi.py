"""The OpenAPI document of the routes.

Litestar describes parameters, bodies and answers from the types of the handlers. This module adds what Litestar does
not derive: the shape of errors, the shapes of results in lists, and the strictness of bodies. The second server of the
document is `/v1`, because each route also exists with that prefix.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Server

from goqueue.doors.http.context import RequestContext
from goqueue.doors.http.refusals import ErrorBody
from goqueue.doors.http.routes.publish import RESULT_SHAPES, ShownPublish
from goqueue.doors.http.routes.settle import RECEIPT_SHAPES, RefusedReceipt, SettledMany, ShownAck
from goqueue.doors.http.routes.transactions import AcksAdded, PublishedInTransaction
from goqueue.doors.http.schema_answers import SchemaErrorBody

REF: Final = "#/components/schemas/{name}"
ERROR: Final = {"$ref": "#/components/responses/Error"}
SCHEMA_ERROR: Final = {"$ref": "#/components/responses/SchemaError"}
SCHEMAS: Final = "/schemas"
DESCRIPTION: Final = (
    "A durable log that serves as both a Kafka-like log and an SQS-like queue. All errors have the same shape. "
    "Durations are text such as 250ms, 30s or 7d; times are RFC 3339, epoch seconds or 2h ago. "
    "Unknown fields and query parameters are refused, except below /schemas; "
    "with Prefer: handling=lenient they are ignored."
)


def describe(routes: Sequence[HTTPRouteHandler], *, version: str) -> dict[str, Any]:
    """The document of the routes."""
    app = Litestar(
        list(routes),
        dependencies={"context": Provide(_no_context, sync_to_thread=False)},
        openapi_config=OpenAPIConfig(
            title="GoQueue",
            version=version,
            description=DESCRIPTION,
            servers=[Server("/"), Server("/v1")],
            operation_id_creator=_operation_id,
            use_handler_docstrings=True,
        ),
        logging_config=None,
    )
    document: dict[str, Any] = _plain(app.openapi_schema.to_schema())
    document["paths"] = dict(sorted(document["paths"].items()))
    _declare_errors(document)
    _declare_results(document["components"]["schemas"])
    _declare_bodies(routes, document["components"]["schemas"])
    return document


def _declare_errors(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("400", None)  # in Litestar's own shape, which no route answers with
            error = SCHEMA_ERROR if path.startswith(SCHEMAS) else ERROR
            responses.update({"4XX": error, "5XX": error})
    document["components"]["responses"] = {"Error": _error(ErrorBody), "SchemaError": _error(SchemaErrorBody)}


def _error(body: type[ErrorBody]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REF.format(name=body.__name__)}}}
    return {"description": "An error", "content": content}


def _declare_results(schemas: dict[str, Any]) -> None:
    """Declare the shapes of results. msgspec has no untagged unions of structs, so the handlers use `list[Any]`."""
    _, shapes = msgspec.json.schema_components(
        (ErrorBody, SchemaErrorBody, *RESULT_SHAPES, *RECEIPT_SHAPES), ref_template=REF
    )
    schemas.update(shapes)
    for answer, results in (
        (ShownPublish, RESULT_SHAPES),
        (PublishedInTransaction, RESULT_SHAPES),
        (SettledMany, RECEIPT_SHAPES),
        (AcksAdded, (ShownAck, RefusedReceipt)),
    ):
        refs = [{"$ref": REF.format(name=shape.__name__)} for shape in results]
        schemas[answer.__name__]["properties"]["results"]["items"] = {"anyOf": refs}


def _declare_bodies(routes: Sequence[HTTPRouteHandler], schemas: dict[str, Any]) -> None:
    """Replace Litestar's schemas of bodies by msgspec's, which have `additionalProperties` and numeric bounds."""
    parameters = [route.parsed_fn_signature.parameters for route in routes]
    bodies = [one["data"].annotation for one in parameters if "data" in one]
    _, shapes = msgspec.json.schema_components(bodies, ref_template=REF)
    schemas.update(shapes)


def _plain(node: Any) -> Any:
    """Simplify the document: `anyOf` for `oneOf`, since several may match; no null in queries and headers."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("in") in ("query", "header"):
        node = {**node, "schema": _not_null(node["schema"])}
    plain = {key: _plain(value) for key, value in node.items() if key != "oneOf"}
    choices = _plain(node.get("oneOf", []))
    if len(choices) > 1:
        return {"anyOf": choices, **plain}
    return {**choices[0], **plain} if choices else plain


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in schema.get("oneOf", []) if choice != {"type": "null"}]
    return {**schema, "oneOf": choices} if choices else schema


def _operation_id(handler: HTTPRouteHandler, _method: object, components: list[Any]) -> str:
    """The name of the handler, with a suffix if it has several paths."""
    name = handler.handler_name
    return f"{name}_{components[-1]}" if len(handler.paths) > 1 else name


def _no_context() -> RequestContext:
    raise AssertionError("this application only describes the routes")
