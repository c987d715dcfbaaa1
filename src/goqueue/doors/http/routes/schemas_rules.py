"""The rules for new schemas of a subject: compatibility tests, compatibility level and policy, and mode."""

from typing import Annotated

import msgspec
from litestar.params import FromPath, JSONBody, QueryParameter

from goqueue.doors.http.context import Shared
from goqueue.doors.http.schema_answers import delete, get, post, put
from goqueue.doors.http.schema_shapes import UNSET, Flag, SchemaBody, new_schema
from goqueue.doors.http.shapes import is_true
from goqueue.errors import InvalidSchemaRequest
from goqueue.wire.schema_reports import Compatibility

DefaultToGlobal = Annotated[
    str | None, QueryParameter(name="defaultToGlobal", description="the global setting if the subject has none")
]


class LevelBody(msgspec.Struct, kw_only=True, rename="camel"):
    """A compatibility level, in either of its two fields, a policy, or both."""

    compatibility: str | None = None
    compatibility_level: str | None = None
    compatibility_policy: str | None = None


class ShownLevel(msgspec.Struct, kw_only=True, rename="camel"):
    """A compatibility level, in both of its fields, and the policy if one was set."""

    compatibility: str
    compatibility_level: str
    compatibility_policy: str | msgspec.UnsetType = UNSET


class ModeBody(msgspec.Struct, kw_only=True):
    """A mode: READWRITE, READONLY or IMPORT."""

    mode: str | None = None


class ShownMode(msgspec.Struct, kw_only=True):
    """A mode: READWRITE, READONLY or IMPORT."""

    mode: str


class ShownCompatibility(msgspec.Struct, kw_only=True):
    """Whether a schema is compatible; with `verbose`, the incompatibilities."""

    is_compatible: bool
    messages: list[str] | msgspec.UnsetType = UNSET


@post("/schemas/compatibility/subjects/{subject:str}/versions", summary="Test a schema against a subject")
async def check_compatibility(
    context: Shared,
    subject: FromPath[str],
    data: JSONBody[SchemaBody],
    verbose: Flag = None,
    normalize: Flag = None,
) -> ShownCompatibility:
    """Whether the compatibility level of the subject permits the schema as its next version."""
    found = await context.answered(
        context.service.schemas.compatibility(subject, new_schema(data), normalize=is_true(normalize))
    )
    return _compatibility(found, verbose)


@post("/schemas/compatibility/subjects/{subject:str}/versions/{version:str}", summary="Test a schema against a version")
async def check_compatibility_with(
    context: Shared,
    subject: FromPath[str],
    version: FromPath[str],
    data: JSONBody[SchemaBody],
    verbose: Flag = None,
    normalize: Flag = None,
) -> ShownCompatibility:
    """Whether the schema is compatible with that version, in the direction of the subject's compatibility level."""
    found = await context.answered(
        context.service.schemas.compatibility(subject, new_schema(data), version=version, normalize=is_true(normalize))
    )
    return _compatibility(found, verbose)


@get("/schemas/config", summary="Get the global compatibility level")
async def show_level(context: Shared) -> ShownLevel:
    """The level applies to subjects without a level of their own."""
    return _level(
        await context.answered(context.service.schemas.level()),
        await context.answered(context.service.schemas.policy()),
    )


@put("/schemas/config", summary="Set the global compatibility level or policy")
async def set_level(context: Shared, data: JSONBody[LevelBody]) -> ShownLevel:
    """Levels: NONE, BACKWARD, FORWARD, FULL, and the last three with _TRANSITIVE. Policies: STRICT, LENIENT."""
    return await _configured(context, None, data)


@delete("/schemas/config", summary="Reset the global compatibility level and policy")
async def reset_level(context: Shared) -> ShownLevel:
    """Reset them to BACKWARD and STRICT; returns the previous ones."""
    policy = await context.answered(context.service.schemas.policy())
    return _level(await context.answered(context.service.schemas.delete_level(None), "reset level"), policy)


@get("/schemas/config/{subject:str}", summary="Get the compatibility level of a subject")
async def show_level_of(
    context: Shared, subject: FromPath[str], default_to_global: DefaultToGlobal = None
) -> ShownLevel:
    """The subject's own level, or with `defaultToGlobal` the one that applies to it."""
    schemas, is_global = context.service.schemas, is_true(default_to_global)
    level = await context.answered(schemas.level(subject, default_to_global=is_global))
    return _level(level, await context.answered(schemas.policy(subject, default_to_global=is_global)))


@put("/schemas/config/{subject:str}", summary="Set the compatibility level or policy of a subject")
async def set_level_of(context: Shared, subject: FromPath[str], data: JSONBody[LevelBody]) -> ShownLevel:
    """The subject need not exist yet."""
    return await _configured(context, subject, data)


@delete("/schemas/config/{subject:str}", summary="Reset the compatibility level and policy of a subject")
async def reset_level_of(context: Shared, subject: FromPath[str]) -> ShownLevel:
    """The global ones apply from then on; returns the previous ones."""
    policy = await context.answered(context.service.schemas.policy(subject))
    return _level(await context.answered(context.service.schemas.delete_level(subject), "reset level"), policy)


@get("/schemas/mode", summary="Get the global mode")
async def show_mode(context: Shared) -> ShownMode:
    """The mode applies to subjects without a mode of their own."""
    return ShownMode(mode=await context.answered(context.service.schemas.mode()))


@put("/schemas/mode", summary="Set the global mode")
async def set_mode(context: Shared, data: JSONBody[ModeBody], force: Flag = None) -> ShownMode:
    """Set READWRITE, READONLY or IMPORT."""
    pending = context.service.schemas.set_mode(None, _asked_mode(data), force=is_true(force))
    return ShownMode(mode=await context.answered(pending, "set mode"))


@delete("/schemas/mode", summary="Reset the global mode")
async def reset_mode(context: Shared) -> ShownMode:
    """Reset it to READWRITE; returns the previous one."""
    return ShownMode(mode=await context.answered(context.service.schemas.delete_mode(None), "reset mode"))


@get("/schemas/mode/{subject:str}", summary="Get the mode of a subject")
async def show_mode_of(context: Shared, subject: FromPath[str], default_to_global: DefaultToGlobal = None) -> ShownMode:
    """The subject's own mode, or with `defaultToGlobal` the one that applies to it."""
    return ShownMode(
        mode=await context.answered(context.service.schemas.mode(subject, default_to_global=is_true(default_to_global)))
    )


@put("/schemas/mode/{subject:str}", summary="Set the mode of a subject")
async def set_mode_of(
    context: Shared, subject: FromPath[str], data: JSONBody[ModeBody], force: Flag = None
) -> ShownMode:
    """Set READWRITE, READONLY or IMPORT."""
    pending = context.service.schemas.set_mode(subject, _asked_mode(data), force=is_true(force))
    return ShownMode(mode=await context.answered(pending, "set mode"))


@delete("/schemas/mode/{subject:str}", summary="Reset the mode of a subject")
async def reset_mode_of(context: Shared, subject: FromPath[str]) -> ShownMode:
    """The global mode applies from then on; returns the previous one."""
    return ShownMode(mode=await context.answered(context.service.schemas.delete_mode(subject), "reset mode"))


async def _configured(context: Shared, subject: str | None, body: LevelBody) -> ShownLevel:
    """Set the level, the policy or both, as the body has them."""
    schemas, level, policy = context.service.schemas, _asked_level(body), body.compatibility_policy
    if level is not None:
        await context.answered(schemas.set_level(subject, level, policy=policy), "set level")
    else:
        await context.answered(schemas.set_policy(subject, policy), "set policy")
    return _level(
        await context.answered(schemas.level(subject, default_to_global=True)),
        await context.answered(schemas.policy(subject)),
    )


def _asked_level(body: LevelBody) -> str | None:
    first, second = body.compatibility, body.compatibility_level
    level = second if first is None else first
    if level is None:
        if body.compatibility_policy is None:
            raise InvalidSchemaRequest("compatibility level", None, "compatibility is required")
        return None
    if second is not None and second.upper() != level.upper():
        raise InvalidSchemaRequest("compatibility level", second, f"compatibility says {level!r}")
    return level


def _asked_mode(body: ModeBody) -> str:
    if body.mode is None:
        raise InvalidSchemaRequest("mode", None, "mode is required")
    return body.mode


def _level(level: str, policy: str) -> ShownLevel:
    return ShownLevel(compatibility=level, compatibility_level=level, compatibility_policy=policy or UNSET)


def _compatibility(found: Compatibility, verbose: str | None) -> ShownCompatibility:
    return ShownCompatibility(
        is_compatible=found.is_compatible, messages=list(found.messages) if is_true(verbose) else UNSET
    )
