"""What the registry remembers, and how it is written down: keyed facts, of which the last one of each key counts.

    schema/<id>               a schema: its text and all that belongs to it
    version/<number>/<subject>  which schema that is, and whether it is soft-deleted; gone with a hard delete
    highest/<subject>         the highest number that was ever given there, once it could be forgotten
    last-id                   the highest id that was ever given, likewise
    level, level/<subject>    the compatibility level that was set
    policy, policy/<subject>  the compatibility policy that was set
    mode, mode/<subject>      the mode that was set

A version counts when its fact is there, so it is written after its schema; a schema without a version is one that
a crash left, and it is never shown. Numbers and ids are never given twice: a client may have stored one.
"""

from enum import StrEnum
from typing import Final

import msgspec

from goqueue.errors import InvalidSchemaRequest
from goqueue.wire.schema_reports import SchemaReference

SUBJECT_BYTES_MAX: Final = 1024
VERSION_MAX: Final = 2**31 - 1
LATEST: Final = ("latest", "-1")


class Level(StrEnum):
    """How a new version has to fit the ones before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all versions count, not only the latest."""
        return self.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.startswith(("FORWARD", "FULL"))


class Policy(StrEnum):
    """How much JSON Schemas must have in common to be compatible: see `json/compatibility.py`."""

    STRICT = "STRICT"
    LENIENT = "LENIENT"


class SubjectMode(StrEnum):
    """What may be done to subjects. IMPORT takes what was good elsewhere, without holding it against anything."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    IMPORT = "IMPORT"


DEFAULT_LEVEL: Final = Level.BACKWARD
DEFAULT_POLICY: Final = Policy.STRICT
DEFAULT_MODE: Final = SubjectMode.READWRITE


class StoredSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schema. The fingerprint is that of the text, its type and its references; the guid is that of all of it."""

    id: int
    guid: str
    fingerprint: str
    schema_type: str
    text: str
    references: list[SchemaReference] = []
    metadata: dict[str, object] | None = None
    rule_set: dict[str, object] | None = None
    record_name: str | None = None


class StoredVersion(msgspec.Struct, frozen=True):
    """A version of a subject."""

    id: int
    deleted: bool = False
    registered_at_ns: int = 0  # as the calendar shows it; 0 of versions from before that was noted


class Subject:
    """A subject: its versions by number, in their order, and what is set for it."""

    __slots__ = ("highest", "level", "mode", "name", "policy", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, StoredVersion] = {}
        self.highest = 0
        self.level: Level | None = None
        self.policy: Policy | None = None
        self.mode: SubjectMode | None = None

    def numbers(self, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """The versions that are live; with `deleted`, or only, those that are soft-deleted."""
        if deleted_only:
            return [number for number, version in self.versions.items() if version.deleted]
        return [number for number, version in self.versions.items() if deleted or not version.deleted]

    @property
    def latest(self) -> int | None:
        """The newest live version."""
        return next((number for number in reversed(self.versions) if not self.versions[number].deleted), None)

    def put(self, number: int, version: StoredVersion) -> None:
        """A version is there, or has changed."""
        is_last = number >= self.highest or number in self.versions
        self.versions[number] = version
        if not is_last:
            self.versions = dict(sorted(self.versions.items()))
        self.highest = max(self.highest, number)


def parse_level(text: str) -> Level:
    """The level of that name, in any letter case."""
    try:
        return Level(text.upper())
    except ValueError:
        raise InvalidSchemaRequest("compatibility level", text[:100], f"must be one of {', '.join(Level)}") from None


def parse_policy(text: str) -> Policy:
    """The compatibility policy of that name, in any letter case."""
    try:
        return Policy(text.upper())
    except ValueError:
        raise InvalidSchemaRequest("compatibility policy", text[:100], f"must be one of {', '.join(Policy)}") from None


def parse_mode(text: str) -> SubjectMode:
    """The mode of that name, in any letter case."""
    try:
        return SubjectMode(text.upper())
    except ValueError:
        raise InvalidSchemaRequest("mode", text[:100], f"must be one of {', '.join(SubjectMode)}") from None


def parse_version(text: str) -> int | None:
    """The number of a version; None means the latest."""
    if text in LATEST:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= VERSION_MAX:
        return int(text)
    raise InvalidSchemaRequest("version", text[:100], f"must be 1 to {VERSION_MAX}, or latest")


def check_subject(subject: str) -> None:
    """Raise `InvalidSchemaRequest` unless a subject may be called that."""
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:
        raise InvalidSchemaRequest("subject", ascii(subject)[:100], "must be Unicode") from None
    if not 1 <= size <= SUBJECT_BYTES_MAX:
        raise InvalidSchemaRequest("subject", subject[:100], f"must have 1 to {SUBJECT_BYTES_MAX} bytes")
    if not subject.isprintable():
        raise InvalidSchemaRequest("subject", subject[:100], "must be printable")


def schema_key(schema_id: int) -> bytes:
    return b"schema/%d" % schema_id


def version_key(subject: str, number: int) -> bytes:
    return b"version/%d/%b" % (number, subject.encode())


def highest_key(subject: str) -> bytes:
    return b"highest/" + subject.encode()


def level_key(subject: str | None) -> bytes:
    return b"level" if subject is None else b"level/" + subject.encode()


def policy_key(subject: str | None) -> bytes:
    return b"policy" if subject is None else b"policy/" + subject.encode()


def mode_key(subject: str | None) -> bytes:
    return b"mode" if subject is None else b"mode/" + subject.encode()


LAST_ID_KEY: Final = b"last-id"
