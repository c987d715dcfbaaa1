"""Results about schemas, as `reports.py` has them about groups."""

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
    """A schema to register or compare. Without a type, text that parses as Avro is AVRO, and any other is JSON."""

    schema: str
    schema_type: str | None = None
    references: list[SchemaReference] = field(default_factory=list)
    metadata: dict[str, object] | None = None
    rule_set: dict[str, object] | None = None


class SchemaInfo(WireStruct):
    """A version of a subject. `subject` is empty and `version` is 0 where the request was for the schema alone."""

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
    registered_at_ns: int = 0  # 0 if unknown


class SubjectVersion(WireStruct):
    """A version that has a schema."""

    subject: str
    version: int


class Compatibility(WireStruct):
    """Whether a schema is compatible with earlier ones, and each reason why not."""

    is_compatible: bool
    messages: list[str]


class SubjectStats(WireStruct):
    """Statistics of one subject."""

    subject: str
    version_count: int
    latest_version: int
    latest_schema_id: int
    compatibility: str
    validation_enabled: bool


class SchemaStats(WireStruct):
    """Statistics of the registry; soft-deleted versions are not counted."""

    subjects: int
    schemas: int
    versions: int
    global_compatibility: str
    validation_enabled: bool
    cached_validators: int
    details: list[SubjectStats]
