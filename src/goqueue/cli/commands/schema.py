"""`goqueue schema`: register schemas, check them, and set how they may evolve."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text

from goqueue.cli import confirmation
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.commands.produce import STANDARD_INPUT
from goqueue.cli.confirmation import YesOption
from goqueue.cli.output import FormatOption, OutputFormat, complain, facts, number, one_line, plain, show, table

if TYPE_CHECKING:
    from goqueue.client.options import CompatibilityLevel, SchemaMode, SchemaPolicy
    from goqueue.wire.schema_reports import SchemaInfo

app = typer.Typer(help="Register, inspect and check schemas.", no_args_is_help=True)
config_app = typer.Typer(help="Compatibility levels of subjects.", no_args_is_help=True)
policy_app = typer.Typer(help="Compatibility policies of JSON Schemas.", no_args_is_help=True)
mode_app = typer.Typer(help="Modes of subjects: whether schemas can be registered.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(policy_app, name="policy")
app.add_typer(mode_app, name="mode")

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
POLICIES = ("STRICT", "LENIENT")
MODES = ("READWRITE", "READONLY", "IMPORT")
BAD_DATA = 1


class SchemaType(StrEnum):
    """The language of a schema."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


SubjectArgument = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="The subject, such as orders-value for the topic orders.")
]
MaybeSubjectArgument = Annotated[
    str | None, typer.Argument(metavar="[SUBJECT]", help="The subject; default: all without a value of their own.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A file with the schema; - is standard input.")]
TypeOption = Annotated[
    SchemaType | None,
    typer.Option("--type", "-t", case_sensitive=False, help="The language of the schema; default: detected."),
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option("--ref", metavar="NAME:SUBJECT:VERSION", help="A schema that this one refers to; repeatable."),
]
NormalizeOption = Annotated[bool, typer.Option("--normalize", help="Treat schemas that differ only in form as equal.")]
DeletedOption = Annotated[bool, typer.Option("--deleted", help="Include deleted ones.")]


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only subjects whose names start with this.")] = "",
    deleted: DeletedOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the subjects."""
    with connected(server) as client:
        names = client.subjects(prefix, deleted=deleted)
    show(names, output, *(map(plain, names) if names else [plain("there are no subjects")]))


@app.command()
def versions(
    subject: SubjectArgument,
    deleted: DeletedOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the versions of a subject."""
    with connected(server) as client:
        found = [
            client.schema(subject=subject, version=one, deleted=deleted)
            for one in client.schema_versions(subject, deleted=deleted)
        ]
    columns = ("version", "id", "type", "guid", "")
    rows = ((one.version, one.id, one.schema_type, one.guid, "deleted" if one.deleted else "") for one in found)
    data = [
        {"subject": one.subject, "version": one.version, "id": one.id, "guid": one.guid, "schemaType": one.schema_type}
        | ({"deleted": True} if one.deleted else {})
        for one in found
    ]
    show(data, output, table(columns, rows, numbers=("version", "id"), whole=("guid",)))


@app.command()
def get(
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]", help="The subject.")] = None,
    version: Annotated[str, typer.Option("--version", "-v", help="The version.")] = "latest",
    id: Annotated[int | None, typer.Option("--id", min=1, help="The id of the schema, instead of a subject.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print only the text of the schema.")] = False,
    deleted: DeletedOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show a schema.

    goqueue schema get orders-value
    goqueue schema get orders-value --version 2 --text > order.json
    goqueue schema get --id 7
    """
    if (subject is None) == (id is None):
        raise typer.BadParameter("give either a subject or --id", param_hint="SUBJECT")
    with connected(server) as client:
        found = (
            client.schema(id) if id is not None else client.schema(subject=subject, version=version, deleted=deleted)
        )
    if text:
        sys.stdout.write(found.schema)
        return
    known: dict[str, object] = {"id": found.id, "guid": found.guid, "type": found.schema_type}
    for reference in found.references:
        known |= {"refers to": f"{reference.name}, which is {reference.subject} version {reference.version}"}
    if found.deleted:
        known |= {"state": "deleted"}
    lines = "\n".join(one_line(line.encode()) for line in found.schema.splitlines())
    show(_data(found), output, _title(found), facts(known), plain(lines))


@app.command()
def register(
    subject: SubjectArgument,
    file: FileArgument,
    type: TypeOption = None,
    ref: ReferenceOption = None,
    normalize: NormalizeOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Register a schema as the newest version of a subject.

    goqueue schema register orders-value order.json
    goqueue schema register orders-value order.proto --type protobuf --ref money.proto:money:1
    """
    wanted = _wanted(type, ref)
    with connected(server) as client:
        made = client.register_schema(subject, _content(file), normalize=normalize, **wanted)
    data = {"subject": subject, "version": made.version, "id": made.id, "guid": made.guid}
    show(data, output, plain(f"{subject} version {made.version} is schema {made.id}"))


@app.command()
def lookup(
    subject: SubjectArgument,
    file: FileArgument,
    type: TypeOption = None,
    ref: ReferenceOption = None,
    normalize: NormalizeOption = False,
    deleted: DeletedOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show which version of a subject a schema is."""
    wanted = _wanted(type, ref)
    with connected(server) as client:
        found = client.lookup_schema(subject, _content(file), normalize=normalize, deleted=deleted, **wanted)
    show(_data(found), output, plain(f"{subject} version {found.version} is schema {found.id}"))


@app.command()
def check(
    subject: SubjectArgument,
    file: FileArgument,
    type: TypeOption = None,
    ref: ReferenceOption = None,
    version: Annotated[
        str | None, typer.Option("--version", "-v", help="Compare with this version only, or latest.")
    ] = None,
    normalize: NormalizeOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check whether a schema is compatible. Exit code 1 and the reasons if not."""
    wanted = _wanted(type, ref)
    with connected(server) as client:
        found = client.check_schema(subject, _content(file), version=version, normalize=normalize, **wanted)
        level = client.schema_config(subject)
    data = {"is_compatible": found.is_compatible, "messages": list(found.messages), "compatibility": level}
    verdict = "fits" if found.is_compatible else "does not fit"
    show(data, output, plain(f"it {verdict} {subject}, which is {level}"), *map(plain, found.messages))
    if not found.is_compatible:
        raise typer.Exit(BAD_DATA)


@app.command()
def delete(
    subject: SubjectArgument,
    version: Annotated[str | None, typer.Option("--version", "-v", help="Only this version.")] = None,
    permanent: Annotated[bool, typer.Option("--permanent", help="Delete permanently what is already deleted.")] = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Delete a subject or a version. Messages written with it stay readable, unless --permanent is given."""
    what = subject if version is None else f"version {version} of {subject}"
    if permanent:
        confirmation.check(yes, "deletes schemas permanently")
    with connected(server) as client:
        if permanent and not yes:
            confirmation.ask(f"Delete {what} permanently? Messages written with it can no longer be decoded.")
        gone = client.delete_schema(subject, version, permanent=permanent)
    listed = ", ".join(map(str, gone))
    how = " permanently" if permanent else ""
    data = {"subject": subject, "versions": gone, "permanent": permanent}
    show(data, output, plain(f"{number(len(gone), 'version')} of {subject} deleted{how}: {listed}"))


@config_app.command("get")
def get_level(
    subject: MaybeSubjectArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the compatibility level."""
    with connected(server) as client:
        level, policy = client.schema_config(subject), client.schema_policy(subject)
    data = {"compatibility": level, "compatibilityLevel": level, "compatibilityPolicy": policy}
    show(data, output, plain(level))


@config_app.command("set")
def set_level(
    level: Annotated[
        str,
        typer.Argument(
            metavar="LEVEL", help=f"One of {', '.join(LEVELS)}; default resets it.", autocompletion=lambda: list(LEVELS)
        ),
    ],
    subject: MaybeSubjectArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Set the compatibility level.

    goqueue schema config set FULL orders-value
    goqueue schema config set BACKWARD_TRANSITIVE
    goqueue schema config set default orders-value
    """
    with connected(server) as client:
        client.set_schema_config(subject, None if level.lower() == "default" else cast("CompatibilityLevel", level))
        now = client.schema_config(subject)
    whose = "subjects without their own" if subject is None else subject
    show({"compatibility": now, "compatibilityLevel": now}, output, plain(f"{whose}: {now}"))


@policy_app.command("get")
def get_policy(
    subject: MaybeSubjectArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the compatibility policy of JSON Schemas."""
    with connected(server) as client:
        policy = client.schema_policy(subject)
    show({"compatibilityPolicy": policy}, output, plain(policy))


@policy_app.command("set")
def set_policy(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help=f"One of {', '.join(POLICIES)}; default resets it.",
            autocompletion=lambda: list(POLICIES),
        ),
    ],
    subject: MaybeSubjectArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Set the compatibility policy of JSON Schemas. LENIENT allows adding and removing optional properties.

    goqueue schema policy set LENIENT orders-value
    goqueue schema policy set LENIENT
    goqueue schema policy set default orders-value
    """
    with connected(server) as client:
        client.set_schema_policy(subject, None if policy.lower() == "default" else cast("SchemaPolicy", policy))
        now = client.schema_policy(subject)
    whose = "subjects without their own" if subject is None else subject
    show({"compatibilityPolicy": now}, output, plain(f"{whose}: {now}"))


@mode_app.command("get")
def get_mode(
    subject: MaybeSubjectArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the mode."""
    with connected(server) as client:
        mode = client.schema_mode(subject)
    show({"mode": mode}, output, plain(mode))


@mode_app.command("set")
def set_mode(
    mode: Annotated[
        str,
        typer.Argument(
            metavar="MODE", help=f"One of {', '.join(MODES)}; default resets it.", autocompletion=lambda: list(MODES)
        ),
    ],
    subject: MaybeSubjectArgument = None,
    force: Annotated[bool, typer.Option("--force", help="Set IMPORT even if there are schemas.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Set the mode."""
    with connected(server) as client:
        client.set_schema_mode(subject, None if mode.lower() == "default" else cast("SchemaMode", mode), force=force)
        now = client.schema_mode(subject)
    whose = "subjects without their own" if subject is None else subject
    show({"mode": now}, output, plain(f"{whose}: {now}"))


@app.command()
def validate(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file with the message; - is standard input.")],
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of the file is a message.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check messages against the schemas of a topic without publishing. Exit code 1 if one is refused."""
    content = _content_bytes(file)
    values = content.splitlines() if lines else [content]
    with connected(server) as client:
        client.describe_topic(topic)
        faults = client.validate(topic, values)
    bad = [(place, fault) for place, fault in enumerate(faults, 1) if fault is not None]
    data = {"topic": topic, "valid": len(faults) - len(bad), "refused": [{"line": at, "error": why} for at, why in bad]}
    show(data, output, plain(f"{len(faults) - len(bad):,} of {number(len(faults), 'message')} would be accepted"))
    if bad:
        for place, fault in bad:
            complain(f"line {place}: {fault}" if lines else fault)
        raise typer.Exit(BAD_DATA)


@app.command()
def stats(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show statistics of the registry."""
    with connected(server) as client:
        found = client.schema_stats()
    known = {
        "subjects": f"{found.subjects:,}",
        "versions": f"{found.versions:,}",
        "schemas": f"{found.schemas:,}",
        "compatibility": found.global_compatibility,
        "validation": "on" if found.validation_enabled else "off",
        "validators ready": f"{found.cached_validators:,}",
    }
    columns = ("subject", "versions", "latest", "id", "compatibility", "validation")
    rows = (
        (
            one.subject,
            one.version_count,
            one.latest_version,
            one.latest_schema_id,
            one.compatibility,
            "on" if one.validation_enabled else "off",
        )
        for one in found.details
    )
    data = {
        "subjects": found.subjects,
        "schemas": found.schemas,
        "versions": found.versions,
        "globalCompatibility": found.global_compatibility,
        "validationEnabled": found.validation_enabled,
        "cachedValidators": found.cached_validators,
        "details": [
            {
                "subject": one.subject,
                "versionCount": one.version_count,
                "latestVersion": one.latest_version,
                "latestSchemaId": one.latest_schema_id,
                "compatibility": one.compatibility,
                "validationEnabled": one.validation_enabled,
            }
            for one in found.details
        ],
    }
    subjects = [table(columns, rows, numbers=("versions", "latest", "id"))] if found.details else []
    show(data, output, facts(known), *subjects)


def _content(path: Path) -> str:
    """The text of a schema."""
    try:
        return _content_bytes(path).decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text", param_hint="FILE") from None


def _content_bytes(path: Path) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="FILE") from None


def _wanted(type: SchemaType | None, references: list[str] | None) -> dict[str, Any]:
    """The type and the references of a schema, as the client takes them."""
    return {
        "type": None if type is None else type.value.upper(),
        "references": [_reference(text) for text in references or ()],
    }


def _reference(text: str) -> tuple[str, str, int]:
    """`name:subject:version`; the name may contain colons, as URLs do."""
    head, _, version = text.rpartition(":")
    name, _, subject = head.rpartition(":")
    if not (name and subject and version.isascii() and version.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not NAME:SUBJECT:VERSION", param_hint="--ref")
    return name, subject, int(version)


def _title(found: "SchemaInfo") -> Text:
    if not found.subject:
        return Text(f"schema {found.id}", style="bold")
    return Text.assemble((found.subject, "bold"), f" version {found.version}")


def _data(found: "SchemaInfo") -> dict[str, object]:
    """With the field names of the HTTP API."""
    data: dict[str, object] = {
        "subject": found.subject,
        "version": found.version,
        "id": found.id,
        "guid": found.guid,
        "schema": found.schema,
        "schemaType": found.schema_type,
    }
    if found.references:
        data["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in found.references
        ]
    return data
