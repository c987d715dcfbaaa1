"""Schemas in requests and answers, with the field names of Confluent's Schema Registry, and its query parameters."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar.params import QueryParameter

from goqueue.doors.http.context import RequestContext
from goqueue.doors.http.shapes import SKIP_MAX
from goqueue.errors import InvalidSchema
from goqueue.wire import schema_reports as reports

UNSET: Final = msgspec.UNSET
T = TypeVar("T")

Flag = Annotated[str | None, QueryParameter(description="true or false (default)")]
ListOffset = Annotated[int, QueryParameter(ge=0, le=SKIP_MAX, description="number of entries to skip")]
ListLimit = Annotated[int, QueryParameter(description="maximum number of entries; negative: all")]
InSubject = Annotated[str | None, QueryParameter(description="only versions of this subject")]
Rendering = Annotated[str | None, QueryParameter(description="serialized: a Protobuf schema as a base64 descriptor")]
Prefix = Annotated[str, QueryParameter(name="subjectPrefix", description="only subjects whose names begin with this")]


class ReferenceBody(msgspec.Struct, kw_only=True):
    """A schema that another schema imports, and the name it is imported by."""

    name: str
    subject: str
    version: int


class SchemaBody(msgspec.Struct, kw_only=True, rename="camel"):
    """A schema. Without a type, text that parses as Avro is AVRO and any other text is JSON."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[ReferenceBody] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


class RegisteredSchema(msgspec.Struct, kw_only=True):
    """The id, version and guid of a registered schema."""

    id: int
    version: int
    guid: str


class ShownReference(msgspec.Struct, kw_only=True):
    """A schema that another schema imports, and the name it is imported by."""

    name: str
    subject: str
    version: int


class ShownSchema(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A schema and the subject and version that it is registered as."""

    subject: str | msgspec.UnsetType = UNSET
    version: int | msgspec.UnsetType = UNSET
    id: int
    guid: str
    schema: str
    schema_type: str
    references: list[ShownReference] | msgspec.UnsetType = UNSET
    metadata: dict[str, Any] | msgspec.UnsetType = UNSET
    rule_set: dict[str, Any] | msgspec.UnsetType = UNSET


class ShownUse(msgspec.Struct, kw_only=True):
    """A version of a subject."""

    subject: str
    version: int


def new_schema(body: SchemaBody) -> reports.NewSchema:
    """The schema as the service takes it."""
    if body.schema is None:
        raise InvalidSchema.restored("schema is required", vars(InvalidSchema("it is required", path="schema")))
    references = [reports.SchemaReference(one.name, one.subject, one.version) for one in body.references or ()]
    return reports.NewSchema(body.schema, body.schema_type, references, body.metadata, body.rule_set)


async def shown(context: RequestContext, info: reports.SchemaInfo, format: str | None = None) -> ShownSchema:
    """The schema as an answer shows it, with its text in the requested format."""
    references = [ShownReference(name=one.name, subject=one.subject, version=one.version) for one in info.references]
    return ShownSchema(
        subject=info.subject or UNSET,
        version=info.version or UNSET,
        id=info.id,
        guid=info.guid,
        schema=await context.answered(context.service.schemas.rendered(info.id, format)) if format else info.schema,
        schema_type=info.schema_type,
        references=references or UNSET,
        metadata=UNSET if info.metadata is None else info.metadata,
        rule_set=UNSET if info.rule_set is None else info.rule_set,
    )


def page(items: Sequence[T], offset: int, limit: int) -> list[T]:
    """The requested page of a list."""
    return list(items[offset:] if limit < 0 else items[offset : offset + limit])
