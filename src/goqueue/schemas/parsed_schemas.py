"""Parsed schemas and their validators, kept as long as there is room: they can be made again from their texts.

A schema is parsed together with all that it refers to, directly or through others. What is used least recently goes
first. The limits of `RegistryConfig` guarantee that a schema and its references fit at the same time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from goqueue.errors import InvalidConfig, InvalidSchema
from goqueue.schemas.format import SCHEMA_BYTES_MAX, ParsedSchema, Validator
from goqueue.schemas.formats import format_of
from goqueue.schemas.state import RegistryState
from goqueue.schemas.subjects import StoredSchema
from goqueue.wire.schema_reports import SchemaReference


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """What bounds the registry."""

    references_max: int = 100  # all that a schema refers to, through others too: they are read one inside another
    reference_bytes_max: int = 4 * SCHEMA_BYTES_MAX  # of their texts together
    metadata_bytes_max: int = 256 * 1024  # of metadata and rules
    cached_schemas_max: int = 1_000  # parsed and compiled
    cached_bytes_max: int = 16 * 1024 * 1024  # of their texts; what is made of one is a few times larger

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
        if self.cached_schemas_max <= self.references_max:
            raise InvalidConfig("cached_schemas_max", self.cached_schemas_max, "must hold a schema and its references")
        if self.cached_bytes_max < self.reference_bytes_max + SCHEMA_BYTES_MAX:
            raise InvalidConfig("cached_bytes_max", self.cached_bytes_max, "must hold a schema and its references")


class _CachedSchema:
    """A parsed schema, and its validator once it was needed."""

    __slots__ = ("parsed", "schema", "validator")

    def __init__(self, schema: StoredSchema, parsed: ParsedSchema) -> None:
        self.schema = schema
        self.parsed = parsed
        self.validator: Validator | None = None


class ParsedSchemas:
    """The schemas of a registry in the form that validates and compares."""

    def __init__(self, state: RegistryState, config: RegistryConfig) -> None:
        self._state = state
        self._config = config
        self._cached: dict[int, _CachedSchema] = {}  # the last ones used are at the end
        self._cached_bytes = 0

    def parsed(self, schema_id: int) -> ParsedSchema:
        """The schema, parsed. Raises `InvalidSchema` if what it refers to is gone."""
        return self._entry(schema_id).parsed

    def validator(self, schema_id: int) -> Validator:
        """What validates payloads against the schema."""
        entry = self._entry(schema_id)
        if entry.validator is None:
            entry.validator = entry.parsed.compile()
        return entry.validator

    @property
    def validator_count(self) -> int:
        """How many validators are kept."""
        return sum(entry.validator is not None for entry in self._cached.values())

    def drop_stale(self) -> None:
        """Forget the schemas that the state holds no longer, or holds anew."""
        schemas = self._state.schemas
        for schema_id in [one for one, entry in self._cached.items() if schemas.get(one) is not entry.schema]:
            self._forget(schema_id)

    def references(self, schema_type: str, references: Sequence[SchemaReference]) -> dict[str, ParsedSchema]:
        """All that these references lead to, by name, each after what it refers to itself."""
        if len({reference.name for reference in references}) < len(references):
            raise InvalidSchema("two references have the same name")
        found: dict[int, StoredSchema] = {}
        names: dict[int, dict[str, None]] = {}
        self._walk(references, found, names)
        for schema_id, schema in found.items():
            if schema.schema_type != schema_type:
                name = next(iter(names[schema_id]))
                raise InvalidSchema(f"the reference {name} leads to {schema.schema_type}, not {schema_type}")
        read = {name: self.parsed(schema_id) for schema_id in found for name in names[schema_id]}
        for reference in references:  # a name of its own wins over one that a reference has for something else
            read[reference.name] = self.parsed(self._state.referred(reference).id)
        return read

    def _walk(
        self,
        references: Iterable[SchemaReference],
        found: dict[int, StoredSchema],
        names: dict[int, dict[str, None]],
    ) -> None:
        """Note all schemas that are referred to, those without references first. Each is entered once."""
        for reference in references:
            schema = self._state.referred(reference)
            if schema.id in names:
                names[schema.id][reference.name] = None
                continue
            names[schema.id] = {reference.name: None}
            if len(names) > self._config.references_max:
                raise InvalidSchema(f"it refers to more than {self._config.references_max} schemas, others included")
            self._walk(schema.references, found, names)
            found[schema.id] = schema
            if sum(len(one.text) for one in found.values()) > self._config.reference_bytes_max:
                limit = self._config.reference_bytes_max
                raise InvalidSchema(f"what it refers to has more than {limit} bytes, others included")

    def _entry(self, schema_id: int) -> _CachedSchema:
        entry = self._cached.pop(schema_id, None)
        if entry is None:
            schema = self._state.schemas[schema_id]
            given = self.references(schema.schema_type, schema.references)
            entry = _CachedSchema(schema, format_of(schema.schema_type).parse(schema.text, given))
            self._cached_bytes += len(schema.text)
        self._cached[schema_id] = entry
        while len(self._cached) > self._config.cached_schemas_max or (
            self._cached_bytes > self._config.cached_bytes_max and len(self._cached) > 1
        ):
            self._forget(next(iter(self._cached)))
        return entry

    def _forget(self, schema_id: int) -> None:
        self._cached_bytes -= len(self._cached.pop(schema_id).schema.text)
