"""Subjects and their versions: register, look up, get and delete."""

from typing import Annotated, Any

from litestar.params import FromPath, JSONBody, QueryParameter

from goqueue.doors.http.context import Shared
from goqueue.doors.http.schema_answers import JSON, SchemaResponse, delete, get, post
from goqueue.doors.http.schema_shapes import (
    Flag,
    ListLimit,
    ListOffset,
    Prefix,
    RegisteredSchema,
    Rendering,
    SchemaBody,
    ShownSchema,
    new_schema,
    page,
    shown,
)
from goqueue.doors.http.shapes import is_true
from goqueue.errors import InvalidRequest
from goqueue.wire.schema_reports import SchemaInfo

PLAIN = "text/plain"

Names = Annotated[list[str] | None, QueryParameter(name="key", description="names of properties to match")]
Values = Annotated[
    list[str] | None, QueryParameter(name="value", description="the value of each property, in the same order")
]


@get("/schemas/subjects", summary="List subjects")
async def list_subjects(
    context: Shared,
    prefix: Prefix = "",
    deleted: Flag = None,
    deleted_only: Flag = None,
    offset: ListOffset = 0,
    limit: ListLimit = -1,
) -> list[str]:
    """The names of subjects, sorted; with `deleted`, soft-deleted ones too."""
    names = await context.answered(
        context.service.schemas.subjects(prefix=prefix, deleted=is_true(deleted), deleted_only=is_true(deleted_only))
    )
    return page(names, offset, limit)


@get("/schemas/subjects/{subject:str}/versions", summary="List the versions of a subject")
async def list_versions(
    context: Shared,
    subject: FromPath[str],
    deleted: Flag = None,
    deleted_only: Flag = None,
    offset: ListOffset = 0,
    limit: ListLimit = -1,
) -> list[int]:
    """The numbers of the versions; with `deleted`, soft-deleted ones too."""
    numbers = await context.answered(
        context.service.schemas.versions(subject, deleted=is_true(deleted), deleted_only=is_true(deleted_only))
    )
    return page(numbers, offset, limit)


@post("/schemas/subjects/{subject:str}/versions", summary="Register a schema")
async def register_schema(
    context: Shared, subject: FromPath[str], data: JSONBody[SchemaBody], normalize: Flag = None
) -> RegisteredSchema:
    """Register a schema; the answer is sent once it is durable. Registering the same schema again is idempotent."""
    pending = context.service.schemas.register(subject, new_schema(data), normalize=is_true(normalize))
    info = await context.answered(pending, "register schema")
    return RegisteredSchema(id=info.id, version=info.version, guid=info.guid)


@post("/schemas/subjects/{subject:str}", summary="Look up a schema")
async def look_up_schema(
    context: Shared,
    subject: FromPath[str],
    data: JSONBody[SchemaBody],
    deleted: Flag = None,
    normalize: Flag = None,
    format: Rendering = None,
) -> ShownSchema:
    """Find the version of the subject that has this schema."""
    schemas = context.service.schemas
    info = await context.answered(
        schemas.lookup(subject, new_schema(data), deleted=is_true(deleted), normalize=is_true(normalize))
    )
    return await shown(context, info, format)


@get("/schemas/subjects/{subject:str}/versions/{version:str}", summary="Get a version")
async def show_version(
    context: Shared, subject: FromPath[str], version: FromPath[str], deleted: Flag = None, format: Rendering = None
) -> ShownSchema:
    """Get a version by its number; `latest` and `-1` are the newest."""
    schemas = context.service.schemas
    return await shown(context, await context.answered(schemas.get(subject, version, deleted=is_true(deleted))), format)


@get("/schemas/subjects/{subject:str}/versions/{version:str}/schema", summary="Get the schema text of a version")
async def show_text_of_version(
    context: Shared, subject: FromPath[str], version: FromPath[str], deleted: Flag = None
) -> SchemaResponse[Any]:
    """The text of the schema only."""
    return bare(await context.answered(context.service.schemas.get(subject, version, deleted=is_true(deleted))))


@get(
    "/schemas/subjects/{subject:str}/versions/{version:str}/referencedby",
    summary="List the schemas that reference a version",
)
async def list_referrers(
    context: Shared, subject: FromPath[str], version: FromPath[str], offset: ListOffset = 0, limit: ListLimit = -1
) -> list[int]:
    """The ids of the schemas that reference the version."""
    ids = await context.answered(context.service.schemas.referenced_by(subject, version))
    return page(ids, offset, limit)


@get("/schemas/subjects/{subject:str}/metadata", summary="Find a version by its metadata")
async def find_version(
    context: Shared,
    subject: FromPath[str],
    names: Names = None,
    values: Values = None,
    deleted: Flag = None,
    format: Rendering = None,
) -> ShownSchema:
    """The newest version with these properties."""
    if len(names or ()) != len(values or ()):
        raise InvalidRequest("key and value must be given in pairs", path="value")
    schemas = context.service.schemas
    wanted = dict(zip(names or (), values or (), strict=True))
    return await shown(
        context, await context.answered(schemas.with_metadata(subject, wanted, deleted=is_true(deleted))), format
    )


@delete("/schemas/subjects/{subject:str}/versions/{version:str}", summary="Delete a version")
async def delete_version(
    context: Shared, subject: FromPath[str], version: FromPath[str], permanent: Flag = None
) -> int:
    """Soft-delete the version; with `permanent`, delete one that is soft-deleted. Returns its number."""
    pending = context.service.schemas.delete_version(subject, version, permanent=is_true(permanent))
    return await context.answered(pending, "delete version")


@delete("/schemas/subjects/{subject:str}", summary="Delete a subject")
async def delete_subject(context: Shared, subject: FromPath[str], permanent: Flag = None) -> list[int]:
    """Soft-delete the subject; with `permanent`, delete one that is soft-deleted. Returns its versions."""
    pending = context.service.schemas.delete_subject(subject, permanent=is_true(permanent))
    return await context.answered(pending, "delete subject")


def bare(info: SchemaInfo) -> SchemaResponse[Any]:
    """The text of a schema as an answer. JSON ends with one newline, as in all answers."""
    if info.schema_type == "PROTOBUF":
        return SchemaResponse(info.schema.encode(), media_type=PLAIN)
    return SchemaResponse(info.schema.rstrip("\n").encode() + b"\n", media_type=JSON)
