"""Schemas by id, and the registry as a whole. `/schemas/x` is a shorter path for `/schemas/schemas/x`."""

from typing import Annotated, Any

import msgspec
from litestar.params import FromPath, QueryParameter

from goqueue.doors.http.context import Shared
from goqueue.doors.http.refusals import SHOWN_MAX
from goqueue.doors.http.routes.schemas import bare
from goqueue.doors.http.schema_answers import SchemaResponse, get
from goqueue.doors.http.schema_shapes import (
    Flag,
    InSubject,
    ListLimit,
    ListOffset,
    Prefix,
    Rendering,
    ShownSchema,
    ShownUse,
    page,
    shown,
)
from goqueue.doors.http.shapes import is_true
from goqueue.errors import SchemaNotFound

TYPES = ("JSON", "PROTOBUF", "AVRO")
CONTEXTS = (".",)
ID_DIGITS_MAX = 18

LatestOnly = Annotated[
    str | None, QueryParameter(name="latestOnly", description="only the latest version of each subject")
]


class ShownSubjectStats(msgspec.Struct, kw_only=True, rename="camel"):
    """Statistics of one subject."""

    subject: str
    version_count: int
    latest_version: int
    latest_schema_id: int
    compatibility: str
    validation_enabled: bool


class ShownSchemaStats(msgspec.Struct, kw_only=True, rename="camel"):
    """Statistics of the registry."""

    subjects: int
    schemas: int
    versions: int
    subject_count: int
    total_schemas: int
    global_compatibility: str
    validation_enabled: bool
    cached_validators: int
    details: list[ShownSubjectStats]


@get(["/schemas/schemas/ids/{schema_id:str}", "/schemas/ids/{schema_id:str}"], summary="Get a schema")
async def show_schema(
    context: Shared, schema_id: FromPath[str], subject: InSubject = None, format: Rendering = None
) -> ShownSchema:
    """Get a schema by its id, also if all of its versions are deleted."""
    schemas = context.service.schemas
    return await shown(context, await context.answered(schemas.by_id(_number(schema_id), subject=subject)), format)


@get(
    ["/schemas/schemas/ids/{schema_id:str}/schema", "/schemas/ids/{schema_id:str}/schema"],
    summary="Get the text of a schema",
)
async def show_text(context: Shared, schema_id: FromPath[str], subject: InSubject = None) -> SchemaResponse[Any]:
    """The text of the schema only."""
    return bare(await context.answered(context.service.schemas.by_id(_number(schema_id), subject=subject)))


@get(
    ["/schemas/schemas/ids/{schema_id:str}/subjects", "/schemas/ids/{schema_id:str}/subjects"],
    summary="List the subjects of a schema",
)
async def list_subjects_of_schema(
    context: Shared,
    schema_id: FromPath[str],
    subject: InSubject = None,
    deleted: Flag = None,
    offset: ListOffset = 0,
    limit: ListLimit = -1,
) -> list[str]:
    """The subjects that have a version with the schema."""
    uses = await context.answered(
        context.service.schemas.uses(_number(schema_id), subject=subject, deleted=is_true(deleted))
    )
    return page(sorted({use.subject for use in uses}), offset, limit)


@get(
    ["/schemas/schemas/ids/{schema_id:str}/versions", "/schemas/ids/{schema_id:str}/versions"],
    summary="List the versions that have a schema",
)
async def list_uses(
    context: Shared,
    schema_id: FromPath[str],
    subject: InSubject = None,
    deleted: Flag = None,
    offset: ListOffset = 0,
    limit: ListLimit = -1,
) -> list[ShownUse]:
    """The versions of all subjects."""
    uses = await context.answered(
        context.service.schemas.uses(_number(schema_id), subject=subject, deleted=is_true(deleted))
    )
    return [ShownUse(subject=use.subject, version=use.version) for use in page(uses, offset, limit)]


@get(["/schemas/schemas/guids/{guid:str}", "/schemas/guids/{guid:str}"], summary="Get a schema by its guid")
async def show_schema_by_guid(context: Shared, guid: FromPath[str], format: Rendering = None) -> ShownSchema:
    """The guid is derived from the schema only, so it is the same in every registry."""
    schemas = context.service.schemas
    return await shown(context, await context.answered(schemas.by_guid(guid)), format)


@get(["/schemas/schemas/types", "/schemas/types"], summary="List the types of schemas")
async def list_types() -> list[str]:
    """The schema languages."""
    return list(TYPES)


@get(["/schemas/schemas", "/schemas"], summary="List versions of all subjects")
async def list_schemas(
    context: Shared,
    prefix: Prefix = "",
    deleted: Flag = None,
    latest_only: LatestOnly = None,
    offset: ListOffset = 0,
    limit: ListLimit = -1,
) -> list[ShownSchema]:
    """Versions, ordered by subject and number."""
    schemas = context.service.schemas
    found = await context.answered(
        schemas.find(prefix=prefix, deleted=is_true(deleted), latest_only=is_true(latest_only))
    )
    return [await shown(context, info) for info in page(found, offset, limit)]


@get("/schemas/contexts", summary="List contexts")
async def list_contexts(offset: ListOffset = 0, limit: ListLimit = -1) -> list[str]:
    """There is one context, which contains all subjects."""
    return page(CONTEXTS, offset, limit)


@get("/schemas/stats", summary="Get the statistics of the registry")
async def schema_stats(context: Shared) -> ShownSchemaStats:
    """The number of subjects, versions and schemas, and the settings of each subject."""
    stats = await context.answered(context.service.schemas.stats())
    return ShownSchemaStats(
        subjects=stats.subjects,
        schemas=stats.schemas,
        versions=stats.versions,
        subject_count=stats.subjects,
        total_schemas=stats.schemas,
        global_compatibility=stats.global_compatibility,
        validation_enabled=stats.validation_enabled,
        cached_validators=stats.cached_validators,
        details=[ShownSubjectStats(**msgspec.structs.asdict(one)) for one in stats.details],
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX):
        raise SchemaNotFound(text[:SHOWN_MAX])
    return int(text)
