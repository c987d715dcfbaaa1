"""The schemas of a broker: the verbs of the registry, its journal, and the validation of messages.

The registry is in memory and in the internal topic `__schemas`, which is created with the first schema. A change is
written before it is applied, and answered when it is durable. A request that repeats a change under way is answered
when that change is durable.

Only the leader of `__schemas` answers requests about schemas. Messages are validated wherever they are published, so a
node that no longer leads validates with the schemas that it knew last: a schema never changes once it has an id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast

from goqueue import events
from goqueue.broker.coordination import Journals
from goqueue.broker.partition.journal import Journal
from goqueue.clock import Clock
from goqueue.errors import CorruptRecord, GoQueueError, InvalidBatch, InvalidMessage, SchemaRejected
from goqueue.names import TopicPartition
from goqueue.record import compression, kernel
from goqueue.record.header import Flags
from goqueue.record.headers import split_headers
from goqueue.record.message import StoredMessage
from goqueue.schemas.formats import PROTOBUF_NAME
from goqueue.schemas.registry import Change, Registry, RegistryConfig
from goqueue.schemas.validation import SCHEMA_ID_HEADER, Validation, ValidationRule
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending, after, chained
from goqueue.topics.config import SchemaValidation
from goqueue.wire.schema_reports import Compatibility, NewSchema, SchemaInfo, SchemaStats, SubjectVersion

if TYPE_CHECKING:
    from goqueue.schemas.protobuf.schema import ProtobufSchema

PARTITION: Final = 0
"""The only partition of `__schemas`: ids of schemas are unique, and subjects refer to each other."""
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most decompressed bytes of one batch: a small batch can decompress to gigabytes."""
_NOT_HELD: Final = Flags.TOMBSTONE | Flags.CONTROL
_HEADER_BYTES: Final = SCHEMA_ID_HEADER.encode()

T = TypeVar("T")


class Schemas:
    """The verbs about schemas, and the validation of published messages."""

    def __init__(
        self,
        journals: Journals,
        *,
        validation_of: Callable[[str], str | None],
        clock: Clock,
        observe: events.Observer,
        config: RegistryConfig | None = None,
    ) -> None:
        self._journals = journals
        self._validation_of = validation_of  # the setting of a topic, None if there is no such topic
        self._clock = clock
        self._observe = observe
        self._config = config
        self._known = Registry(config)
        self._validation = Validation(self._known)
        self._last_put: Pending[None] = Pending.of(None)

    def attach(self, journal: Journal) -> None:
        """Restore the schemas from the journal."""
        self._known = Registry(self._config)
        self._validation = Validation(self._known)
        self._last_put = Pending.of(None)
        for key, error in self._known.apply(journal.load()).items():
            journal.pass_over(key, error)

    def detach(self, partition: int, error: GoQueueError) -> None:
        """Requests are refused from now on. What waits has failed with its write."""

    @property
    def _registry(self) -> Registry:
        """The registry, for a request. Raises `NotLeader` if this node does not lead it."""
        self._journals.at(PARTITION)
        return self._known

    # --- verbs ---------------------------------------------------------------------------------

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """The names, sorted; with `deleted` also subjects without a live version, or only these."""
        return self._registry.subjects(prefix=prefix, deleted=deleted, deleted_only=deleted_only)

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """The numbers of a subject's versions."""
        return self._registry.versions(subject, deleted=deleted, deleted_only=deleted_only)

    def register(self, subject: str, new: NewSchema, *, normalize: bool = False) -> Pending[SchemaInfo]:
        """A new version; a schema that the subject has returns its version."""
        wall_ns = self._clock.wall_ns()
        return self._change(lambda: self._registry.register(subject, new, normalize=normalize, wall_ns=wall_ns))

    def lookup(self, subject: str, new: NewSchema, *, deleted: bool = False, normalize: bool = False) -> SchemaInfo:
        """The version of the subject that has this schema."""
        return self._registry.lookup(subject, new, deleted=deleted, normalize=normalize)

    def get(self, subject: str, version: str = "latest", *, deleted: bool = False) -> SchemaInfo:
        """A version of the subject, by its number or as `latest`."""
        return self._registry.get(subject, version, deleted=deleted)

    def by_id(self, schema_id: int, *, subject: str | None = None) -> SchemaInfo:
        """A schema and the versions that use it."""
        return self._registry.by_id(schema_id, subject=subject)

    def by_guid(self, guid: str) -> SchemaInfo:
        return self._registry.by_guid(guid)

    def uses(self, schema_id: int, *, subject: str | None = None, deleted: bool = False) -> list[SubjectVersion]:
        """The versions with that schema."""
        return self._registry.uses(schema_id, subject=subject, deleted=deleted)

    def referenced_by(self, subject: str, version: str) -> list[int]:
        """The ids of the schemas that refer to the version."""
        return self._registry.referenced_by(subject, version)

    def find(self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False) -> list[SchemaInfo]:
        """The versions of all subjects."""
        return self._registry.find(prefix=prefix, deleted=deleted, latest_only=latest_only)

    def with_metadata(self, subject: str, wanted: dict[str, str], *, deleted: bool = False) -> SchemaInfo:
        """The latest version whose metadata has these properties."""
        return self._registry.with_metadata(subject, wanted, deleted=deleted)

    def delete_version(self, subject: str, version: str, *, permanent: bool = False) -> Pending[int]:
        """Delete a version; permanently only if it is deleted already."""
        return self._change(lambda: self._registry.delete_version(subject, version, permanent=permanent))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> Pending[list[int]]:
        """Delete all versions; permanently only if they are deleted already."""
        return self._change(lambda: self._registry.delete_subject(subject, permanent=permanent))

    def compatibility(
        self, subject: str, new: NewSchema, *, version: str | None = None, normalize: bool = False
    ) -> Compatibility:
        """Whether the schema is compatible: with one version, or by the level of the subject."""
        return self._registry.compatibility(subject, new, version=version, normalize=normalize)

    def level(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility level of the subject, or the global one."""
        return self._registry.level(subject, default_to_global=default_to_global)

    def set_level(self, subject: str | None, level: str, *, policy: str | None = None) -> Pending[str]:
        """Set the compatibility level, and the policy if it is given."""
        return self._change(lambda: self._registry.set_level(subject, level, policy=policy))

    def delete_level(self, subject: str | None) -> Pending[str]:
        """Reset level and policy to the default; returns the old level."""
        return self._change(lambda: self._registry.delete_level(subject))

    def policy(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility policy that is set; empty if none is, which means STRICT."""
        return self._registry.policy(subject, default_to_global=default_to_global)

    def set_policy(self, subject: str | None, policy: str | None) -> Pending[str]:
        """Set the compatibility policy; None resets it."""
        return self._change(lambda: self._registry.set_policy(subject, policy))

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """Whether schemas can be registered in the subject, or in all: READWRITE, READONLY or IMPORT."""
        return self._registry.mode(subject, default_to_global=default_to_global)

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> Pending[str]:
        """Set the mode of a subject, or the global one."""
        return self._change(lambda: self._registry.set_mode(subject, mode, force=force))

    def delete_mode(self, subject: str | None) -> Pending[str]:
        """Reset the mode to the default; returns the old one."""
        return self._change(lambda: self._registry.delete_mode(subject))

    def stats(self) -> SchemaStats:
        """Statistics of the registry."""
        return self._registry.stats(validated={name: self._is_validated(name) for name in self._registry.subjects()})

    def check(self, topic: str, values: Sequence[bytes]) -> list[str | None]:
        """For each value the reason why a publish to the topic would refuse it; None if it would not."""
        validation = self._validation_of(topic) or SchemaValidation.AUTO
        rule = self._rule(topic, validation)
        refused = self._refused(rule, validation, [NewMessage(one) for one in values]) if rule else {}
        reasons = {
            index: f"{error.path}: {error.reason}" if error.path else error.reason for index, error in refused.items()
        }
        return [reasons.get(index) for index in range(len(values))]

    def rendered(self, schema_id: int, format: str) -> str:
        """The text in another form, where its type has one: `serialized` is a Protobuf descriptor in base64."""
        info = self._registry.by_id(schema_id)
        if format != "serialized" or info.schema_type != PROTOBUF_NAME:
            return info.schema
        return cast("ProtobufSchema", self._registry.parsed(schema_id)).serialized()

    def _is_validated(self, subject: str) -> bool:
        """Whether there is a topic whose messages are validated against the subject."""
        owners = {subject, subject.removesuffix("-value"), subject.removesuffix("-key")}
        return any(self._validation_of(one) not in (None, SchemaValidation.OFF) for one in owners)

    # --- publishing ----------------------------------------------------------------------------

    def check_records(self, origin: TopicPartition, validation: str, records: bytearray | memoryview) -> None:
        """Raise `SchemaRejected` for the first record that violates its schema."""
        rule = self._rule(origin.topic, validation)
        if rule is None:
            return
        started_ns = self._clock.monotonic_ns()
        try:
            messages = kernel.decode(records, origin, StoredMessage, verify=False)
        except CorruptRecord as error:
            raise InvalidBatch(error.reason, error.position) from None
        named = {
            index: _schema_id(message.encoded_headers)
            for index, message in enumerate(messages)
            if message.encoded_headers is not None and _HEADER_BYTES in message.encoded_headers
        }
        refused = self._validation.refused(
            rule,
            _values(messages),
            [message.key for message in messages] if rule.keys else (),
            {index: text for index, text in named.items() if text is not None},
            is_required=validation == SchemaValidation.REQUIRED,
            first_only=True,
        )
        self._tell(origin.topic, len(messages), len(messages) if refused else 0, started_ns)
        for refusal in refused.values():
            raise refusal

    def refused_messages(
        self, topic: str, validation: str, messages: Sequence[NewMessage]
    ) -> Mapping[int, SchemaRejected]:
        """The messages that violate their schema."""
        rule = self._rule(topic, validation)
        if rule is None:
            return {}
        started_ns = self._clock.monotonic_ns()
        refused = self._refused(rule, validation, messages)
        self._tell(topic, len(messages), len(refused), started_ns)
        return refused

    def _refused(
        self, rule: ValidationRule, validation: str, messages: Sequence[NewMessage]
    ) -> Mapping[int, SchemaRejected]:
        return self._validation.refused(
            rule,
            [message.value for message in messages],
            [message.key for message in messages] if rule.keys else (),
            {
                index: schema_id
                for index, message in enumerate(messages)
                if message.headers and (schema_id := message.headers.get(SCHEMA_ID_HEADER)) is not None
            },
            is_required=validation == SchemaValidation.REQUIRED,
            first_only=False,
        )

    def _rule(self, topic: str, validation: str) -> ValidationRule | None:
        if validation == SchemaValidation.OFF:
            return None
        return self._validation.rule(topic, is_required=validation == SchemaValidation.REQUIRED)

    def _tell(self, topic: str, count: int, refused: int, started_ns: int) -> None:
        duration_ns = self._clock.monotonic_ns() - started_ns
        self._observe(events.SchemaChecked(topic, count - refused, refused, duration_ns))

    # --- inside --------------------------------------------------------------------------------

    def _change(self, plan: Callable[[], Change[T]]) -> Pending[T]:
        """Carry out a planned change; raises at once if it is refused."""
        planned = plan()
        journal = self._journals.at(PARTITION)
        if journal is not None:
            return self._put(journal, planned)
        if not planned.facts:
            return Pending.of(planned.result)
        return chained(self._journals.open_at(PARTITION), lambda opened: self._put(opened, plan()))

    def _put(self, journal: Journal, change: Change[T]) -> Pending[T]:
        """Write the facts, then apply them; done when they are durable, which is later than applied."""
        if change.facts:
            self._last_put = journal.put(change.facts)
            self._known.apply(change.facts)
        return after(self._last_put, lambda _: change.result)


def _values(messages: Sequence[StoredMessage]) -> list[bytes | None]:
    """The values to validate, decompressed."""
    if not any(message.flags & (_NOT_HELD | Flags.COMPRESSED) for message in messages):
        return [message.value for message in messages]
    values: list[bytes | None] = []
    decompressed_bytes = 0
    for index, message in enumerate(messages):
        value: bytes | None = message.value
        if message.flags & _NOT_HELD:
            value = None
        elif message.flags & Flags.COMPRESSED:
            value = _decompressed(message.value, index)
            decompressed_bytes += len(value)
            if decompressed_bytes > DECOMPRESSED_BYTES_MAX:
                raise InvalidMessage(
                    f"the batch has more than {DECOMPRESSED_BYTES_MAX} bytes when it is decompressed", index=index
                )
        values.append(value)
    return values


def _decompressed(value: bytes, index: int) -> bytes:
    try:
        return compression.decompress(value)
    except CorruptRecord as error:
        raise InvalidMessage(f"message {index}: {error.reason}", index=index) from None


def _schema_id(encoded_headers: bytes) -> str | None:
    value = dict(split_headers(encoded_headers)).get(_HEADER_BYTES)
    return None if value is None else value.decode("utf-8", "surrogateescape")
