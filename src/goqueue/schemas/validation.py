"""Whether messages keep to the schemas of their topic.

A value belongs to the subject `<topic>-value` or, if there is none, to `<topic>`; a key to `<topic>-key`. It is held
against the schema that it names, in the header `schema-id` or in the registry's prefix (a zero byte and the id in
four), else against the latest one of its subject. A payload may also name a schema that is registered under
its record name, or `<topic>-<record name>`: those are the other strategies of Confluent's serializers.

What a topic's messages are held against is looked up once and kept until the registry changes, so it costs next to
nothing to find that there is nothing to be done. Otherwise all payloads of one schema are handed to its
validator together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

from goqueue.errors import InvalidSchema, SchemaRejected
from goqueue.schemas.format import PayloadFault, Validator
from goqueue.schemas.formats import PROTOBUF_NAME
from goqueue.schemas.registry import Registry

SCHEMA_ID_HEADER: Final = "schema-id"
PREFIX_BYTES: Final = 5
ID_MAX: Final = 2**32 - 1
_MAGIC: Final = b"\x00"
_FIRST_MESSAGE: Final = b"\x00"
"""The index that stands before a Protobuf message: the first one of the schema, where a payload does not say."""
_RULES_MAX: Final = 10_000


class Use(NamedTuple):
    """A schema, where it is registered, and what a payload lacks that came without the registry's prefix."""

    subject: str
    version: int
    schema_id: int
    lacking: bytes


class Subjects:
    """The subjects of one side of a topic's messages: what may be named there, and what is meant without a name."""

    __slots__ = ("default", "field", "known", "name", "topic")

    def __init__(self, topic: str, field: str, default: Use | None) -> None:
        self.topic = topic
        self.field = field
        self.default = default
        self.name = default.subject if default else f"{topic}-{field}"
        self.known: dict[int, Use] = {}

    def candidates(self, record_name: str | None) -> list[str]:
        """Under which subjects a schema may be registered to be named here, the likeliest first."""
        own = [f"{self.topic}-{self.field}", *([self.topic] if self.field == "value" else [])]
        return own if record_name is None else [*own, f"{self.topic}-{record_name}", record_name]


class ValidationRule(NamedTuple):
    """What the messages of a topic are held against; a side that is None is not looked at."""

    values: Subjects | None
    keys: Subjects | None


class Validation:
    """Holds messages against the schemas of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._rules: dict[tuple[str, bool], ValidationRule | None] = {}
        self._generation = registry.generation

    def rule(self, topic: str, *, is_required: bool) -> ValidationRule | None:
        """The rule for a topic; None if there is nothing to be done."""
        if self._generation != self._registry.generation or len(self._rules) > _RULES_MAX:
            self._rules.clear()
            self._generation = self._registry.generation
        try:
            return self._rules[topic, is_required]
        except KeyError:
            made = self._rules[topic, is_required] = self._made(topic, is_required)
            return made

    def _made(self, topic: str, is_required: bool) -> ValidationRule | None:
        value = self._latest(f"{topic}-value") or self._latest(topic)
        key = self._latest(f"{topic}-key")
        is_looked_at = is_required or value is not None or bool(self._registry.record_subjects(topic))
        if not is_looked_at and key is None:
            return None
        return ValidationRule(
            Subjects(topic, "value", value) if is_looked_at else None, Subjects(topic, "key", key) if key else None
        )

    def _latest(self, subject: str) -> Use | None:
        latest = self._registry.latest(subject)
        return self._use(subject, *latest) if latest else None

    def _use(self, subject: str, version: int, schema_id: int) -> Use:
        schema = self._registry.schema(schema_id)
        is_protobuf = schema is not None and schema.schema_type == PROTOBUF_NAME
        return Use(subject, version, schema_id, _FIRST_MESSAGE if is_protobuf else b"")

    def refused(
        self,
        rule: ValidationRule,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        named: Mapping[int, str | bytes],
        *,
        is_required: bool,
        first_only: bool,
    ) -> dict[int, SchemaRejected]:
        """Which messages are refused, and why; with `first_only`, none but the first of them.

        A value of None is not looked at, and neither is its key. `named` has the schema ids of headers, by message.
        """
        refused: dict[int, SchemaRejected] = {}
        if rule.values:
            self._hold(rule.values, values, named, refused, is_required=is_required, first_only=first_only)
        if rule.keys:
            shown = [None if value is None else key for key, value in zip(keys, values, strict=True)]
            self._hold(rule.keys, shown, {}, refused, is_required=False, first_only=first_only)
        if first_only and len(refused) > 1:
            first = min(refused)
            return {first: refused[first]}
        return refused

    def _hold(
        self,
        subjects: Subjects,
        payloads: Sequence[bytes | None],
        named: Mapping[int, str | bytes],
        refused: dict[int, SchemaRejected],
        *,
        is_required: bool,
        first_only: bool,
    ) -> None:
        default = subjects.default
        if default and not named and not default.lacking and not any(map(_is_special, payloads)):
            plain = cast(Sequence[bytes], payloads)
            self._check(subjects, default, range(len(plain)), plain, refused, first_only=first_only)
            return
        groups: dict[Use, tuple[list[int], list[bytes]]] = {}
        for index, payload in enumerate(payloads):
            if payload is None:
                continue
            found = self._schema_of(subjects, payload, named.get(index), is_required)
            if isinstance(found, PayloadFault):
                refused.setdefault(index, _refusal(subjects, None, index, found))
                if first_only:
                    break
            elif found is not None:
                indexes, members = groups.setdefault(found[0], ([], []))
                indexes.append(index)
                members.append(found[1])
        for use, (indexes, members) in groups.items():
            self._check(subjects, use, indexes, members, refused, first_only=first_only)

    def _check(
        self,
        subjects: Subjects,
        use: Use,
        indexes: Sequence[int],
        payloads: Sequence[bytes],
        refused: dict[int, SchemaRejected],
        *,
        first_only: bool,
    ) -> None:
        """Hold the payloads against one schema."""
        try:
            validator = self._registry.validator(use.schema_id)
        except InvalidSchema as error:  # it was good once
            fault = PayloadFault("", f"schema {use.schema_id} cannot be used: {error.reason}")
            for index in indexes[:1] if first_only else indexes:
                refused.setdefault(index, _refusal(subjects, use, index, fault))
            return
        for place, fault in _faults(validator, payloads, first_only=first_only):
            refused.setdefault(indexes[place], _refusal(subjects, use, indexes[place], fault))

    def _schema_of(
        self, subjects: Subjects, payload: bytes, header: str | bytes | None, is_required: bool
    ) -> tuple[Use, bytes] | PayloadFault | None:
        """The schema that a payload is meant for and what is to be held against it; None if nothing is known of it."""
        prefixed = int.from_bytes(payload[1:PREFIX_BYTES], "big") if _is_framed(payload) else None
        if header is not None:
            text = header.decode("ascii", "replace") if isinstance(header, bytes) else header
            if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= ID_MAX):
                return PayloadFault("", f"the header {SCHEMA_ID_HEADER} is no id: {text[:20]!r}")
            schema_id = int(text)
        elif prefixed is not None:
            schema_id = prefixed
        elif subjects.default is not None:
            return subjects.default, subjects.default.lacking + payload
        elif is_required:
            return PayloadFault(
                "", f"nothing is registered for the {subjects.field}s of this topic, which requires a schema"
            )
        else:
            return None
        use = subjects.known.get(schema_id) or self._named(subjects, schema_id)
        if use is None:
            return PayloadFault("", f"schema {schema_id} is not registered for the {subjects.field}s of this topic")
        return use, payload[PREFIX_BYTES:] if prefixed == schema_id else use.lacking + payload

    def _named(self, subjects: Subjects, schema_id: int) -> Use | None:
        """Where a schema is registered so that it may be named."""
        schema = self._registry.schema(schema_id)
        found = schema and self._registry.live_use(schema_id, subjects.candidates(schema.record_name))
        if not found:
            return None
        use = subjects.known[schema_id] = self._use(*found, schema_id)
        return use


def _is_special(payload: bytes | None) -> bool:
    """Whether there is more to it than to hold it against the default."""
    return payload is None or payload[:1] == _MAGIC


def _is_framed(payload: bytes) -> bool:
    return payload[:1] == _MAGIC and len(payload) >= PREFIX_BYTES


def _faults(validator: Validator, payloads: Sequence[bytes], *, first_only: bool) -> Iterator[tuple[int, PayloadFault]]:
    first = validator.check_many(payloads)
    if first is None:
        return
    yield first
    for place in () if first_only else range(first[0] + 1, len(payloads)):
        fault = validator.check(payloads[place])
        if fault:
            yield place, fault


def _refusal(subjects: Subjects, use: Use | None, index: int, fault: PayloadFault) -> SchemaRejected:
    subject, version, schema_id = use[:3] if use else (subjects.name, 0, 0)
    return SchemaRejected(subject, version, schema_id, fault.path, fault.reason, index=index, field=subjects.field)
