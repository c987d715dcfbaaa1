"""What the facts of a registry say: its schemas, the versions of its subjects, and what is set for them.

`apply` is the only way in, whether facts were planned a moment ago or are read at a start. Facts are bytes of a disk:
one that cannot be understood is reported and changes nothing. A schema is written before the versions that are it, so a
version whose schema is missing counts as lost with it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from goqueue.errors import InvalidSchema, SubjectNotFound
from goqueue.schemas.formats import NAMES
from goqueue.schemas.subjects import (
    DEFAULT_LEVEL,
    DEFAULT_MODE,
    Level,
    Policy,
    StoredSchema,
    StoredVersion,
    Subject,
    SubjectMode,
)
from goqueue.wire.schema_reports import SchemaInfo, SchemaReference

NUMBER_MAX: Final = 2**62
"""The largest number that a fact may hold; one more is still a number of 64 bits."""

_schema_of: Final = msgspec.json.Decoder(StoredSchema).decode
_version_of: Final = msgspec.json.Decoder(StoredVersion).decode
_number_of: Final = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]).decode


class RegistryState:
    """Schemas and subjects, with the indexes that find them. Decides nothing."""

    def __init__(self) -> None:
        self.schemas: dict[int, StoredSchema] = {}
        self.ids: dict[str, int] = {}  # by guid
        self.subjects: dict[str, Subject] = {}
        self.names: list[str] = []  # of the subjects that have versions, sorted
        self.uses: dict[int, set[tuple[str, int]]] = {}  # the versions that are a schema
        self.last_id = 0
        self.level = DEFAULT_LEVEL
        self.policy: Policy | None = None
        self.mode = DEFAULT_MODE
        self._referrers: dict[tuple[str, int], set[int]] = {}

    def apply(self, facts: Mapping[bytes, bytes | None]) -> dict[bytes, Exception]:
        """Take in what was written; returns, by key, the facts that cannot be understood, and why."""
        unreadable: dict[bytes, Exception] = {}
        for key, value in facts.items():
            kind, _, rest = key.partition(b"/")
            try:
                self._apply(kind, rest.decode(), value)
            except Exception as error:  # bytes of any kind may be there; no fact changes a thing before it is checked
                unreadable[key] = error
        return unreadable

    def _apply(self, kind: bytes, rest: str, value: bytes | None) -> None:
        match kind:
            case b"schema":
                schema = _schema_of(value) if value is not None else None
                if schema is not None and (schema.schema_type not in NAMES or schema.id != _number(rest)):
                    raise ValueError(f"a schema of type {schema.schema_type!r} and id {schema.id}")
                self._apply_schema(_number(rest), schema)
            case b"version":
                number, _, subject = rest.partition("/")
                self._apply_version(subject, _number(number), _version_of(value) if value is not None else None)
            case b"highest":
                subject_state = self._subject(rest)
                subject_state.highest = max(subject_state.highest, _number_of(value or b"0"))
            case b"last-id":
                self.last_id = max(self.last_id, _number_of(value or b"0"))
            case b"level":
                level = None if value is None else Level(value.decode())
                if rest:
                    self._subject(rest).level = level
                else:
                    self.level = level or DEFAULT_LEVEL
            case b"policy":
                policy = None if value is None else Policy(value.decode())
                if rest:
                    self._subject(rest).policy = policy
                else:
                    self.policy = policy
            case b"mode":
                mode = None if value is None else SubjectMode(value.decode())
                if rest:
                    self._subject(rest).mode = mode
                else:
                    self.mode = mode or DEFAULT_MODE
            case _:
                raise ValueError("no such kind of fact")

    def _apply_schema(self, schema_id: int, schema: StoredSchema | None) -> None:
        before = self.schemas.pop(schema_id, None)
        if before is not None:
            self.ids.pop(before.guid, None)
            for reference in before.references:
                self._referrers.get((reference.subject, reference.version), set()).discard(schema_id)
        if schema is None:
            for name, number in list(self.uses.pop(schema_id, ())):
                self._apply_version(name, number, None)
        else:
            self.schemas[schema_id] = schema
            self.ids[schema.guid] = schema_id
            for reference in schema.references:
                self._referrers.setdefault((reference.subject, reference.version), set()).add(schema_id)
        self.last_id = max(self.last_id, schema_id)

    def _apply_version(self, name: str, number: int, version: StoredVersion | None) -> None:
        subject = self._subject(name)
        before = subject.versions.get(number)
        if before is not None:
            self.uses.get(before.id, set()).discard((name, number))
        if version is not None and version.id in self.schemas:
            if not subject.versions:
                insort(self.names, name)
            subject.put(number, version)
            self.uses.setdefault(version.id, set()).add((name, number))
        elif before is not None:
            del subject.versions[number]
            if not subject.versions:
                del self.names[bisect_left(self.names, name)]
        # Also where the version is gone: its number is never given to another one.
        subject.highest = max(subject.highest, number)

    def _subject(self, name: str) -> Subject:
        found = self.subjects.get(name)
        if found is None:
            found = self.subjects[name] = Subject(name)
        return found

    # --- looking -------------------------------------------------------------------------------

    def names_from(self, prefix: str) -> Iterator[str]:
        """The subjects that have versions and begin so, sorted."""
        for index in range(bisect_left(self.names, prefix), len(self.names)):
            if not self.names[index].startswith(prefix):
                return
            yield self.names[index]

    def existing(self, subject: str) -> Subject:
        """The subject, which has versions."""
        if not self.has_versions(subject):
            raise SubjectNotFound(subject)
        return self.subjects[subject]

    def has_versions(self, subject: str) -> bool:
        """Whether the subject has any, soft-deleted ones included."""
        return subject in self.subjects and bool(self.subjects[subject].versions)

    def has_record(self, subject: Subject, record_name: str) -> bool:
        """Whether a live version of the subject describes the record of that name."""
        ids = (subject.versions[number].id for number in subject.numbers())
        return any(self.schemas[schema_id].record_name == record_name for schema_id in ids)

    def is_deleted(self, subject: str, number: int) -> bool:
        """Whether the version is soft-deleted."""
        return self.subjects[subject].versions[number].deleted

    def mode_of(self, subject: str | None) -> SubjectMode:
        """The mode that holds for a subject, or for all that have none."""
        own = self.subjects[subject].mode if subject is not None and subject in self.subjects else None
        return own or self.mode

    def live_uses(self, schema_id: int, *, deleted: bool) -> set[tuple[str, int]]:
        """The versions that are the schema; soft-deleted ones count only with `deleted`."""
        return {use for use in self.uses.get(schema_id, ()) if deleted or not self.is_deleted(*use)}

    def referring(self, subject: str, number: int, *, deleted: bool) -> set[int]:
        """The schemas that refer to the version and are in use."""
        referrers = self._referrers.get((subject, number), set())
        return {schema_id for schema_id in referrers if self.live_uses(schema_id, deleted=deleted)}

    def referred(self, reference: SchemaReference) -> StoredSchema:
        """The schema that a reference leads to. While it is referred to, its version cannot be hard-deleted."""
        subject = self.subjects.get(reference.subject)
        version = subject.versions.get(reference.version) if subject else None
        schema = self.schemas.get(version.id) if version else None
        if schema is None:
            what = f"version {reference.version} of {reference.subject}"
            raise InvalidSchema(f"the reference {reference.name} leads to {what}, which is gone")
        return schema

    def info(self, subject: Subject, number: int) -> SchemaInfo:
        """A version as it is reported."""
        version = subject.versions[number]
        return version_info(subject.name, number, self.schemas[version.id], version)


def version_info(subject: str, number: int, schema: StoredSchema, version: StoredVersion) -> SchemaInfo:
    """A version as it is reported, also one that is not written yet."""
    return SchemaInfo(
        subject=subject,
        version=number,
        id=schema.id,
        guid=schema.guid,
        schema=schema.text,
        schema_type=schema.schema_type,
        references=schema.references,
        metadata=schema.metadata,
        rule_set=schema.rule_set,
        deleted=version.deleted,
        registered_at_ns=version.registered_at_ns,
    )


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"{text} is no number of a schema or a version")
    return number
