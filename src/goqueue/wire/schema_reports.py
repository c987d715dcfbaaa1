"""What a broker tells of schemas. Arrays on the wire, as in `reports.py`: fields are only added, at the end."""

from msgspec import field

from goqueue.wire.wire_struct import WireStruct


class SchemaReference(WireStruct, array_like=True):
    """A schema that another one refers to, under a name of its own.

    An array, because schemas are stored with their references. Fields are added at the end.
    """

    name: str
    subject: str
    version: int


class NewSchema(WireStruct):
    """A schema as somebody sends it; without a type, a text that parses as Avro is AVRO and all else JSON."""

    schema: str
    schema_type: str | None = None
    references: list[SchemaReference] = field(default_factory=list)
    metadata: dict[str, object] | None = None
    rule_set: dict[str, object] | None = None


class SchemaInfo(WireStruct):
    """A version of a subject. `subject` is empty and `version` 0 where only the schema itself was asked for."""

    subject: str
    version: int
    id: int
    guid: str
    schema: str
    schema_type: str
    references: list[SchemaReference] = field(default_factory=list)
    metadata: dict[str, object] | None = None
    rule_set: dict[str, object] | None = None
    deleted: bool = False
    registered_at_ns: int = 0  # when the version came to be; 0 if that is not known


class SubjectVersion(WireStruct):
    """Where a schema is in use."""

    subject: str
    version: int


class Compatibility(WireStruct):
    """Whether a schema fits the ones before it, and each reason why not."""

    is_compatible: bool
    messages: list[str]


class SubjectStats(WireStruct):
    """One subject in numbers."""

    subject: str
    version_count: int
    latest_version: int
    latest_schema_id: int
    compatibility: str
    validation_enabled: bool


class SchemaStats(WireStruct):
    """The registry in numbers; soft-deleted versions are not counted."""

    subjects: int
    schemas: int
    versions: int
    global_compatibility: str
    validation_enabled: bool
    cached_validators: int
    details: list[SubjectStats]
