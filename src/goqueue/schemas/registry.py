"""The registry: schemas, the versions of subjects, and what may become of them.

A change is planned first. The plan has the facts to be written and what the answer will be, and changes nothing;
`apply` takes facts in, whether they were planned a moment ago or read at a start. So what the registry knows is
what its facts say (`state.py`), and nothing else.

The same schema has the same id and guid everywhere. It is the same if its type, its references and its canonical text
are, and its metadata and rules, where there are any; a schema that is registered or looked up without those matches
any. With `normalize`, what differs only in what has no meaning is the same version of its subject, too; texts stay as
they came.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID, uuid5

import msgspec

from goqueue.errors import (
    InvalidSchema,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaOperationRefused,
    SchemaVersionNotFound,
    SubjectNotFound,
)
from goqueue.schemas.format import SCHEMA_BYTES_MAX, ParsedSchema, Validator
from goqueue.schemas.formats import AVRO_NAME, JSON_NAME, PROTOBUF_NAME, format_of
from goqueue.schemas.parsed_schemas import ParsedSchemas, RegistryConfig
from goqueue.schemas.state import RegistryState, version_info
from goqueue.schemas.subjects import (
    DEFAULT_POLICY,
    LAST_ID_KEY,
    Level,
    StoredSchema,
    StoredVersion,
    Subject,
    SubjectMode,
    check_subject,
    highest_key,
    level_key,
    mode_key,
    parse_level,
    parse_mode,
    parse_policy,
    parse_version,
    policy_key,
    schema_key,
    version_key,
)
from goqueue.wire.schema_reports import (
    Compatibility,
    NewSchema,
    SchemaInfo,
    SchemaReference,
    SchemaStats,
    SubjectStats,
    SubjectVersion,
)

__all__ = ["Change", "Facts", "Registry", "RegistryConfig", "T"]

T = TypeVar("T")
Facts: TypeAlias = dict[bytes, bytes | None]

SERIALIZED: Final = "serialized"
"""The form of a Protobuf schema that is its descriptor in base64."""

_NAMESPACE: Final = UUID("6f7bd0a4-5c0e-5d55-8f0a-3a1c7a0d9e11")
_encode: Final = msgspec.json.encode


class Change(NamedTuple, Generic[T]):
    """What is to be written, and what is true once it is."""

    facts: Facts
    result: T


class _Candidate(NamedTuple):
    """A schema that a caller sent, parsed."""

    schema_type: str
    parsed: ParsedSchema
    references: list[SchemaReference]
    metadata: dict[str, object] | None
    rule_set: dict[str, object] | None
    fingerprint: str
    guid: str
    is_normalized: bool


class Registry:
    """All schemas of a broker."""

    def __init__(self, config: RegistryConfig | None = None) -> None:
        self._config = config or RegistryConfig()
        self._state = RegistryState()
        self._parsed = ParsedSchemas(self._state, self._config)
        self.generation = 0
        """Rises with every change."""

    def apply(self, facts: Mapping[bytes, bytes | None]) -> dict[bytes, Exception]:
        """Take in what was written; returns, by key, the facts that cannot be understood, and why."""
        unreadable = self._state.apply(facts)
        self._parsed.drop_stale()
        self.generation += 1
        return unreadable

    # --- looking -------------------------------------------------------------------------------

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """The names, sorted; with `deleted`, or only, those that have no live version left."""
        return [
            name
            for name in self._state.names_from(prefix)
            if (self._state.subjects[name].latest is None) in _wanted(deleted, deleted_only)
        ]

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """The numbers of a subject's versions."""
        numbers = self._state.existing(subject).numbers(deleted=deleted, deleted_only=deleted_only)
        if not numbers:
            raise SubjectNotFound(subject, "it has no such versions")
        return numbers

    def get(self, subject: str, version: str = "latest", *, deleted: bool = False) -> SchemaInfo:
        """A version of the subject, by its number or as `latest`."""
        number = parse_version(version)
        found = self._state.existing(subject)
        if number is None:
            numbers = found.numbers(deleted=deleted)
            if not numbers:
                raise SubjectNotFound(subject, "all of it is deleted")
            number = numbers[-1]
        stored = found.versions.get(number)
        if stored is None or (stored.deleted and not deleted):
            if found.latest is None and not deleted:
                raise SubjectNotFound(subject, "all of it is deleted")
            raise SchemaVersionNotFound(subject, number)
        return self._state.info(found, number)

    def by_id(self, schema_id: int, *, subject: str | None = None) -> SchemaInfo:
        """A schema and one of the versions that are that: of the given subject if there is one, else a live one."""
        uses = self._state.uses.get(schema_id)
        if not uses or schema_id not in self._state.schemas:
            raise SchemaNotFound(f"id {schema_id}")
        name, number = min(uses, key=lambda use: (use[0] != subject, self._state.is_deleted(*use), use))
        return self._state.info(self._state.subjects[name], number)

    def by_guid(self, guid: str) -> SchemaInfo:
        schema_id = self._state.ids.get(guid.lower())
        if schema_id is None or not self._state.uses.get(schema_id):
            raise SchemaNotFound(f"guid {guid[:100]}")
        return self.by_id(schema_id)

    def uses(self, schema_id: int, *, subject: str | None = None, deleted: bool = False) -> list[SubjectVersion]:
        """Which versions are that schema."""
        self.by_id(schema_id)
        return [
            SubjectVersion(name, number)
            for name, number in sorted(self._state.uses[schema_id])
            if subject in (None, name) and (deleted or not self._state.is_deleted(name, number))
        ]

    def referenced_by(self, subject: str, version: str) -> list[int]:
        """The ids of the schemas that refer to the version, as far as a live version has them."""
        info = self.get(subject, version, deleted=True)
        return sorted(self._state.referring(subject, info.version, deleted=False))

    def find(self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False) -> list[SchemaInfo]:
        """The versions of all subjects."""
        return [
            self._state.info(self._state.subjects[name], number)
            for name in self._state.names_from(prefix)
            for number in self._state.subjects[name].numbers(deleted=deleted)[-1 if latest_only else 0 :]
        ]

    def with_metadata(self, subject: str, wanted: Mapping[str, str], *, deleted: bool = False) -> SchemaInfo:
        """The latest version whose metadata has these properties."""
        found = self._state.existing(subject)
        numbers = found.numbers(deleted=deleted)
        if not numbers:
            raise SubjectNotFound(subject, "all of it is deleted")
        for number in reversed(numbers):
            info = self._state.info(found, number)
            properties = (info.metadata or {}).get("properties")
            if isinstance(properties, dict) and wanted.items() <= properties.items():
                return info
        raise SchemaVersionNotFound(subject, "latest", "no version has that metadata")

    def lookup(self, subject: str, new: NewSchema, *, deleted: bool = False, normalize: bool = False) -> SchemaInfo:
        """The version of the subject that is this schema."""
        found = self._state.existing(subject)
        if not deleted and found.latest is None:
            raise SubjectNotFound(subject, "all of it is deleted")
        same = self._same(found, self._candidate(new, normalize), deleted=deleted)
        if same is None:
            raise SchemaNotFound(f"{subject} has none like that")
        return self._state.info(found, same)

    def live_use(self, schema_id: int, subjects: Iterable[str]) -> tuple[str, int] | None:
        """The newest live version of the first of these subjects that has the schema."""
        uses = self._state.uses.get(schema_id, ())
        for name in subjects:
            numbers = [number for use, number in uses if use == name and not self._state.is_deleted(name, number)]
            if numbers:
                return name, max(numbers)
        return None

    def latest(self, subject: str) -> tuple[int, int] | None:
        """The newest live version of the subject and its schema's id."""
        found = self._state.subjects.get(subject)
        number = found.latest if found else None
        return (number, found.versions[number].id) if found and number is not None else None

    def record_subjects(self, topic: str) -> list[str]:
        """The live subjects called `<topic>-<record name>`."""
        prefix = f"{topic}-"
        return [
            name
            for name in self._state.names_from(prefix)
            if self._state.has_record(self._state.subjects[name], name.removeprefix(prefix))
        ]

    def schema(self, schema_id: int) -> StoredSchema | None:
        return self._state.schemas.get(schema_id)

    def parsed(self, schema_id: int) -> ParsedSchema:
        """The schema, parsed. Raises `InvalidSchema` if what it refers to is gone."""
        return self._parsed.parsed(schema_id)

    def validator(self, schema_id: int) -> Validator:
        """What validates payloads against the schema."""
        return self._parsed.validator(schema_id)

    def rendered(self, schema_id: int, format: str) -> str:
        """The text in another form: `serialized`, which Protobuf has; else as it is."""
        schema = self._state.schemas.get(schema_id)
        if schema is None:
            raise SchemaNotFound(f"id {schema_id}")
        if schema.schema_type == PROTOBUF_NAME and format == SERIALIZED:
            from goqueue.schemas.protobuf.schema import ProtobufSchema

            parsed = self.parsed(schema_id)
            assert isinstance(parsed, ProtobufSchema)
            return parsed.serialized()
        return schema.text

    def stats(self, *, validated: Mapping[str, bool]) -> SchemaStats:
        """The registry in numbers; `validated` says of each subject whether messages are held against it."""
        live = [self._state.subjects[name] for name in self.subjects()]
        details = []
        for subject in live:
            number = subject.latest
            assert number is not None
            level = str(subject.level or self._state.level)
            count, schema_id = len(subject.numbers()), subject.versions[number].id
            is_validated = validated.get(subject.name, False)
            details.append(SubjectStats(subject.name, count, number, schema_id, level, is_validated))
        return SchemaStats(
            subjects=len(live),
            schemas=len({subject.versions[number].id for subject in live for number in subject.numbers()}),
            versions=sum(one.version_count for one in details),
            global_compatibility=str(self._state.level),
            validation_enabled=any(one.validation_enabled for one in details),
            cached_validators=self._parsed.validator_count,
            details=details,
        )

    # --- registering ---------------------------------------------------------------------------

    def register(
        self, subject: str, new: NewSchema, *, normalize: bool = False, wall_ns: int = 0
    ) -> Change[SchemaInfo]:
        """Plan a new version; the same schema again is the version that it has."""
        check_subject(subject)
        candidate = self._candidate(new, normalize)
        state = self._state.subjects.get(subject) or Subject(subject)
        same = self._same(state, candidate, deleted=False)
        if same is not None:
            return Change({}, self._state.info(state, same))
        mode = self._check_writable(subject)
        level = state.level or self._state.level
        against = [] if mode is SubjectMode.IMPORT else _compared(state, level)
        reasons = self._incompatibilities(candidate, level, state, against)
        if reasons:
            raise SchemaIncompatible(subject, level, reasons)
        facts: Facts = {}
        schema = self._stored(candidate)
        if schema.id not in self._state.schemas:
            facts[schema_key(schema.id)] = _encode(schema)
        number = state.highest + 1
        version = StoredVersion(schema.id, registered_at_ns=wall_ns)
        facts[version_key(subject, number)] = _encode(version)
        return Change(facts, version_info(subject, number, schema, version))

    def compatibility(
        self, subject: str, new: NewSchema, *, version: str | None = None, normalize: bool = False
    ) -> Compatibility:
        """Whether the schema could be registered: against one version, or as the subject's level says."""
        number = parse_version(version) if version is not None else None
        candidate = self._candidate(new, normalize)
        state = self._state.subjects.get(subject) or Subject(subject)
        level = state.level or self._state.level
        if version is None:
            against = _compared(state, level)
        elif number is None:
            against = [] if state.latest is None else [state.latest]
        elif number in state.numbers():
            against = [number]
        else:
            raise SchemaVersionNotFound(subject, number)
        reasons = self._incompatibilities(candidate, level, state, against)
        return Compatibility(not reasons, reasons)

    def _incompatibilities(
        self, candidate: _Candidate, level: Level, state: Subject, against: Sequence[int]
    ) -> list[str]:
        """Each reason why the schema does not fit one of these versions."""
        form = format_of(candidate.schema_type, state.policy or self._state.policy or DEFAULT_POLICY)
        reasons = []
        for number in against if level is not Level.NONE else ():
            schema_id = state.versions[number].id
            schema = self._state.schemas[schema_id]
            if schema.schema_type != candidate.schema_type:
                reasons.append(f"/: version {number} is {schema.schema_type}, not {candidate.schema_type}")
                continue
            old = self.parsed(schema_id)
            if level.new_reads_old:
                found = form.incompatibilities(candidate.parsed, old)
                reasons += [f"{reason} (the new schema reads what version {number} wrote)" for reason in found]
            if level.old_reads_new:
                found = form.incompatibilities(old, candidate.parsed)
                reasons += [f"{reason} (version {number} reads what the new schema wrote)" for reason in found]
        return reasons

    def _candidate(self, new: NewSchema, normalize: bool) -> _Candidate:
        """Parse a schema that a caller sent."""
        if not new.schema.strip():
            raise InvalidSchema("schema is required")
        if len(new.schema) > SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"{len(new.schema)} characters are over the limit of {SCHEMA_BYTES_MAX} bytes")
        metadata, rule_set = new.metadata or None, new.rule_set or None
        size = len(_encode([metadata, rule_set]))
        if size > self._config.metadata_bytes_max:
            reason = f"metadata and rules of {size} bytes are over the limit of {self._config.metadata_bytes_max}"
            raise InvalidSchema(reason)
        references = [self._live_reference(reference) for reference in new.references]
        schema_type = format_of(new.schema_type).name if new.schema_type else self._guessed_type(new.schema, references)
        given = self._parsed.references(schema_type, references)
        parsed = format_of(schema_type).parse(new.schema, given)
        content = [schema_type, parsed.canonical, [[one.name, one.subject, one.version] for one in references]]
        fingerprint = sha256(_encode(content)).hexdigest()
        attached = [metadata, rule_set] if metadata or rule_set else []
        guid = str(uuid5(_NAMESPACE, fingerprint + _encode(attached, order="sorted").decode()))
        return _Candidate(schema_type, parsed, references, metadata, rule_set, fingerprint, guid, normalize)

    def _live_reference(self, reference: SchemaReference) -> SchemaReference:
        """The reference with the number of a version that is there."""
        subject = self._state.subjects.get(reference.subject)
        number = subject.latest if subject and reference.version == -1 else reference.version
        if not reference.name:
            raise InvalidSchema(f"the reference to {reference.subject} has no name")
        if subject is None or number not in subject.numbers():
            what = f"version {reference.version} of {reference.subject}"
            raise InvalidSchema(f"the reference {reference.name} leads to {what}, which is not there")
        return SchemaReference(reference.name, reference.subject, number)

    def _guessed_type(self, text: str, references: Sequence[SchemaReference]) -> str:
        """AVRO if it can be read as that, else JSON; what a schema refers to is of its own kind."""
        if references:
            return self._state.referred(references[0]).schema_type
        try:
            format_of(AVRO_NAME).parse(text, {})
        except InvalidSchema:
            return JSON_NAME
        return AVRO_NAME

    def _same(self, state: Subject, candidate: _Candidate, *, deleted: bool) -> int | None:
        """The newest version that is this schema."""
        normalized = candidate.parsed.normalized() if candidate.is_normalized else None
        for number in reversed(state.numbers(deleted=deleted)):
            schema = self._state.schemas[state.versions[number].id]
            if candidate.metadata not in (None, schema.metadata) or candidate.rule_set not in (None, schema.rule_set):
                continue
            if schema.fingerprint == candidate.fingerprint:
                return number
            is_comparable = schema.schema_type == candidate.schema_type and schema.references == candidate.references
            if normalized is not None and is_comparable and self.parsed(schema.id).normalized() == normalized:
                return number
        return None

    def _stored(self, candidate: _Candidate) -> StoredSchema:
        """The schema under the id that it has, or the next one."""
        known = self._state.ids.get(candidate.guid)
        if known is not None:
            return self._state.schemas[known]
        return StoredSchema(
            id=self._state.last_id + 1,
            guid=candidate.guid,
            fingerprint=candidate.fingerprint,
            schema_type=candidate.schema_type,
            text=candidate.parsed.text,
            references=candidate.references,
            metadata=candidate.metadata,
            rule_set=candidate.rule_set,
            record_name=candidate.parsed.record_name,
        )

    # --- deleting ------------------------------------------------------------------------------

    def delete_version(self, subject: str, version: str, *, permanent: bool = False) -> Change[int]:
        """Plan to take a version out of use; for good only after that."""
        number = parse_version(version)
        found = self._state.existing(subject)
        if number is None:
            number = found.latest
            if number is None:
                raise SubjectNotFound(subject, "all of it is deleted")
        stored = found.versions.get(number)
        if stored is None:
            raise SchemaVersionNotFound(subject, number)
        if permanent and not stored.deleted:
            reason = "it is not soft-deleted, which comes first"
            raise SchemaVersionNotFound(subject, number, reason, error_code=40407)
        if stored.deleted and not permanent:
            raise SchemaVersionNotFound(subject, number, "it is soft-deleted already", error_code=40406)
        self._check_writable(subject)
        return Change(self._deletion(found, [number], permanent=permanent), number)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> Change[list[int]]:
        """Plan to take all versions out of use, and what is set for the subject; for good only after that."""
        found = self._state.existing(subject)
        if permanent and found.latest is not None:
            raise SubjectNotFound(subject, "it is not soft-deleted, which comes first", error_code=40405)
        if found.latest is None and not permanent:
            raise SubjectNotFound(subject, "it is soft-deleted already", error_code=40404)
        self._check_writable(subject)
        numbers = found.numbers(deleted=permanent)
        facts = self._deletion(found, numbers, permanent=permanent)
        if found.level is not None:
            facts[level_key(subject)] = None
        if found.policy is not None:
            facts[policy_key(subject)] = None
        if found.mode is not None:
            facts[mode_key(subject)] = None
        return Change(facts, numbers)

    def _deletion(self, found: Subject, numbers: Sequence[int], *, permanent: bool) -> Facts:
        """The facts of a deletion, unless others refer to one of these versions."""
        gone = {(found.name, number) for number in numbers}
        for number in numbers:
            referring = [
                schema_id
                for schema_id in self._state.referring(found.name, number, deleted=permanent)
                if not self._state.live_uses(schema_id, deleted=permanent) <= gone
            ]
            if referring:
                reason = f"version {number} of {found.name} is referred to by schema {min(referring)}"
                raise SchemaOperationRefused(reason, error_code=42206)
        if not permanent:
            return {
                version_key(found.name, number): _encode(msgspec.structs.replace(found.versions[number], deleted=True))
                for number in numbers
            }
        facts: Facts = {LAST_ID_KEY: _encode(self._state.last_id), highest_key(found.name): _encode(found.highest)}
        facts.update({version_key(found.name, number): None for number in numbers})
        unused = {found.versions[number].id for number in numbers}
        facts.update({schema_key(one): None for one in sorted(unused) if self._state.uses[one] <= gone})
        return facts

    # --- levels, policies and modes ------------------------------------------------------------

    def level(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility level of a subject, or of all that have none."""
        if subject is None:
            return str(self._state.level)
        own = self._state.subjects.get(subject) or Subject(subject)
        if own.level is None and own.policy is None and not default_to_global:
            raise SubjectNotFound(subject, "no compatibility level is set for it", error_code=40408)
        return str(own.level or self._state.level)

    def set_level(self, subject: str | None, level: str, *, policy: str | None = None) -> Change[str]:
        """Plan another compatibility level, and another policy if one is given."""
        wanted, wanted_policy = parse_level(level), None if policy is None else parse_policy(policy)
        if subject is not None:
            check_subject(subject)
        self._check_writable(subject)
        facts: Facts = {level_key(subject): wanted.encode()}
        if wanted_policy is not None:
            facts[policy_key(subject)] = wanted_policy.encode()
        return Change(facts, str(wanted))

    def delete_level(self, subject: str | None) -> Change[str]:
        """Plan to go back to the default level and policy; the result is the level that it was."""
        was = self.level(subject)
        self._check_writable(subject)
        facts: Facts = {level_key(subject): None}
        if (self._state.policy if subject is None else self._state.subjects[subject].policy) is not None:
            facts[policy_key(subject)] = None
        return Change(facts, was)

    def policy(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility policy that is set for a subject, or for all that have none; empty if none is set."""
        own = self._state.subjects[subject].policy if subject is not None and subject in self._state.subjects else None
        found = own or (self._state.policy if subject is None or default_to_global else None)
        return found or ""

    def set_policy(self, subject: str | None, policy: str | None) -> Change[str]:
        """Plan another compatibility policy; None resets it."""
        wanted = None if policy is None else parse_policy(policy)
        if subject is not None:
            check_subject(subject)
        self._check_writable(subject)
        return Change({policy_key(subject): wanted.encode() if wanted else None}, wanted or "")

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The mode of a subject, or of all that have none."""
        if subject is None:
            return str(self._state.mode)
        own = self._state.subjects[subject].mode if subject in self._state.subjects else None
        if own is None and not default_to_global:
            raise SubjectNotFound(subject, "no mode is set for it", error_code=40409)
        return str(own or self._state.mode)

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> Change[str]:
        """Plan another mode; IMPORT only where nothing is registered, or by force."""
        wanted = parse_mode(mode)
        if subject is not None:
            check_subject(subject)
        if wanted is SubjectMode.IMPORT and not force and self._state.mode_of(subject) is not SubjectMode.IMPORT:
            taken = [name for name in self._state.names if subject in (None, name)]
            if taken:
                raise SchemaOperationRefused(f"{taken[0]} has versions; only force makes it a place of import")
        return Change({mode_key(subject): wanted.encode()}, str(wanted))

    def delete_mode(self, subject: str | None) -> Change[str]:
        """Plan to go back to the default; the result is the mode that it was."""
        return Change({mode_key(subject): None}, self.mode(subject))

    def _check_writable(self, subject: str | None) -> SubjectMode:
        mode = self._state.mode_of(subject)
        if mode is SubjectMode.READONLY:
            raise SchemaOperationRefused(f"{'the registry' if subject is None else subject} is read-only")
        return mode


def _compared(state: Subject, level: Level) -> list[int]:
    """The versions that a new one is held against."""
    numbers = state.numbers()
    return numbers if level.is_transitive else numbers[-1:]


def _wanted(deleted: bool, deleted_only: bool) -> tuple[bool, ...]:
    return (True,) if deleted_only else (True, False) if deleted else (False,)
