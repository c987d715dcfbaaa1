"""Verbs of the schema registry that answer with a report; see `goqueue.client.admin`."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from goqueue.client import messages
from goqueue.client.admin import AdminCalls
from goqueue.client.options import CompatibilityLevel, SchemaMode, SchemaPolicy, SchemaType
from goqueue.errors import InvalidRequest
from goqueue.wire.schema_reports import Compatibility, NewSchema, SchemaInfo, SchemaReference, SchemaStats


class AsyncSchemaAdmin(AdminCalls):
    """The schema registry."""

    async def register_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
    ) -> SchemaInfo:
        """Register the schema as the newest version of the subject; a schema that the subject has keeps its version.

        Without a `type`, a schema that parses as Avro is Avro, and any other is JSON Schema. A reference is
        (name, subject, version).
        """
        new = _new_schema(schema, type, references)
        return await self._call("schemas.register", SchemaInfo, subject=subject, new=new, normalize=normalize)

    async def schema(
        self, id: int | None = None, *, subject: str | None = None, version: int | str = "latest", deleted: bool = False
    ) -> SchemaInfo:
        """A schema by its id, or a version of a subject; with `deleted`, also one that was deleted."""
        if id is not None:
            return await self._call("schemas.by_id", SchemaInfo, schema_id=id, subject=subject)
        if subject is None:
            raise InvalidRequest("either id or subject is required", path="subject")
        return await self._call("schemas.get", SchemaInfo, subject=subject, version=str(version), deleted=deleted)

    async def lookup_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
        deleted: bool = False,
    ) -> SchemaInfo:
        """The version of the subject that has this schema."""
        new = _new_schema(schema, type, references)
        return await self._call(
            "schemas.lookup", SchemaInfo, subject=subject, new=new, normalize=normalize, deleted=deleted
        )

    async def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """The names of the subjects, sorted; with `deleted`, also of those that were deleted."""
        return await self._call("schemas.subjects", list[str], prefix=prefix, deleted=deleted)

    async def schema_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject; with `deleted`, also those that were deleted."""
        return await self._call("schemas.versions", list[int], subject=subject, deleted=deleted)

    async def check_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        version: int | str | None = None,
        normalize: bool = False,
    ) -> Compatibility:
        """Whether the schema is compatible, and each reason why not; with `version`, compared to that one alone."""
        return await self._call(
            "schemas.compatibility",
            Compatibility,
            subject=subject,
            new=_new_schema(schema, type, references),
            version=None if version is None else str(version),
            normalize=normalize,
        )

    async def delete_schema(
        self, subject: str, version: int | str | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete a version, or all of them; with `permanent`, erase what was deleted before. Returns the versions."""
        if version is None:
            return await self._call("schemas.delete_subject", list[int], subject=subject, permanent=permanent)
        deleted = await self._call(
            "schemas.delete_version", int, subject=subject, version=str(version), permanent=permanent
        )
        return [deleted]

    async def schema_config(self, subject: str | None = None) -> str:
        """The compatibility level of a subject: its own, or else the global one."""
        return await self._call("schemas.level", str, subject=subject, default_to_global=True)

    async def set_schema_config(self, subject: str | None, level: CompatibilityLevel | None) -> str:
        """Set the compatibility level of a subject, or the global one; None resets it and returns the old one."""
        if level is None:
            return await self._call("schemas.delete_level", str, subject=subject)
        return await self._call("schemas.set_level", str, subject=subject, level=level)

    async def schema_policy(self, subject: str | None = None) -> str:
        """How strictly JSON Schemas of a subject are compared, STRICT or LENIENT: its own policy, or the global one."""
        return await self._call("schemas.policy", str, subject=subject, default_to_global=True) or "STRICT"

    async def set_schema_policy(self, subject: str | None, policy: SchemaPolicy | None) -> None:
        """Set the compatibility policy of a subject, or the global one; None resets it."""
        await self._call("schemas.set_policy", str, subject=subject, policy=policy)

    async def schema_mode(self, subject: str | None = None) -> str:
        """READWRITE, READONLY or IMPORT: the subject's own mode, or else the global one."""
        return await self._call("schemas.mode", str, subject=subject, default_to_global=True)

    async def set_schema_mode(self, subject: str | None, mode: SchemaMode | None, *, force: bool = False) -> str:
        """Set the mode of a subject, or the global one; None resets it and returns the old one."""
        if mode is None:
            return await self._call("schemas.delete_mode", str, subject=subject)
        return await self._call("schemas.set_mode", str, subject=subject, mode=mode, force=force)

    async def validate(self, topic: str, values: Iterable[Any]) -> list[str | None]:
        """Why each value would be refused if it were published to the topic; None for a valid one."""
        encoded = [messages.value_bytes(value) for value in values]
        return await self._call("schemas.check", list[str | None], topic=topic, values=encoded)

    async def schema_stats(self) -> SchemaStats:
        """The registry in numbers."""
        return await self._call("schemas.stats", SchemaStats)


def _new_schema(
    schema: str | Mapping[str, Any], type: str | None, references: Iterable[SchemaReference | tuple[str, str, int]]
) -> NewSchema:
    """The schema in the form of the wire."""
    given = [
        one if isinstance(one, SchemaReference) else SchemaReference(name=one[0], subject=one[1], version=one[2])
        for one in references
    ]
    return NewSchema(schema if isinstance(schema, str) else _json_text(schema), type, given)


def _json_text(document: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(document).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"invalid schema: {error}", path="schema") from None
