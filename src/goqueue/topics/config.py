"""The settings of a topic, in two forms.

Users read and write the public form: names without units, durations as text (`"168h"`), choices in lower case, JSON
types throughout. The code uses `TopicConfig`: it has every setting, and durations are whole milliseconds.
`TopicConfig.parse` converts from the first to the second and `settings` back, by one table, `_SETTINGS`, with a row for
each setting.

A topic stores only settings that were set explicitly. So a default that changes in a later version applies to every
topic that did not set it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from goqueue.clock import MS
from goqueue.errors import Forbidden, InvalidTopic
from goqueue.names import nearest, suggestion
from goqueue.record.header import VALUE_BYTES_MAX, Priority
from goqueue.storage.config import NUMBER_MAX, Cleanup, Flush, LogConfig
from goqueue.storage.directory import TOPIC_NAME_RULE, is_topic_name
from goqueue.times import format_duration, parse_duration

INTERNAL_PREFIX = "__"
DLQ_SUFFIX = ".dlq"
DEFAULT_DEAD_LETTER_TOPIC = f"<topic>{DLQ_SUFFIX}"
"""The public form of the default; no topic can have that name."""
TRACES_TOPIC = "__traces"  # internal, but users may read it
PARTITIONS_MAX = 1_000
LEDGER_SEGMENT_BYTES = 2 * 1024 * 1024  # a compaction holds all keys of the new segments in memory
_WEIGHT_MAX = 1_000_000
_SEGMENT_BYTES_MIN = 1024
_SHOWN_MAX = 249  # characters of a name in an error: it may be of any length
_SEGMENT_AGE_MS_MIN = 1_000
_SEGMENT_AGE_MS_MAX = LogConfig().segment_age_ms


class Acks(StrEnum):
    """What the answer to a publish waits for."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class Compression(StrEnum):
    """How values are stored."""

    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"


class Partitioner(StrEnum):
    """How a key chooses its partition; see `wire/partitioning.py`."""

    MURMUR3 = "murmur3"
    MURMUR2 = "murmur2"


class VerifyCompression(StrEnum):
    """Whether values that claim to be compressed are decompressed once, as a check, before they are stored."""

    OFF = "off"
    ON = "on"


class OnExpire(StrEnum):
    """What happens to a message that was not acked within its time to live."""

    DROP = "drop"
    DEAD_LETTER = "dead_letter"


class PriorityMode(StrEnum):
    """How lanes are served: by weight, or each only while all higher ones are empty."""

    WEIGHTED = "weighted"
    STRICT = "strict"


class SchemaValidation(StrEnum):
    """Whether messages are checked against a schema: if there is one, never, or always."""

    AUTO = "auto"
    OFF = "off"
    REQUIRED = "required"


def validate_topic_name(name: str, *, internal_ok: bool = False) -> None:
    """Raise `InvalidTopic` if no topic may have this name, and `Forbidden` if only an internal one may."""
    if not is_topic_name(name):
        raise InvalidTopic(name, TOPIC_NAME_RULE)
    if not internal_ok:
        refuse_internal(name)


def refuse_internal(name: str) -> None:
    """Raise `Forbidden` if only the broker itself may use a topic of that name."""
    if name.startswith(INTERNAL_PREFIX):
        shown = name[:_SHOWN_MAX]
        raise Forbidden(
            f"{shown} is an internal topic: names that begin with {INTERNAL_PREFIX} are reserved for the broker",
            topic=shown,
        )


def is_internal(name: str) -> bool:
    """Whether the name is that of an internal topic."""
    return name.startswith(INTERNAL_PREFIX)


def validate_partition_count(name: str, partitions: object) -> None:
    """Raise `InvalidTopic` if no topic may have so many partitions."""
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        reason = f"must be a whole number from 1 to {PARTITIONS_MAX}, not {partitions!r}"
        raise InvalidTopic(name, reason, setting="num_partitions")


def default_dead_letter_topic(topic: str) -> str:
    """The dead-letter topic of a topic that sets none; a topic of such a name is its own."""
    return topic if topic.endswith(DLQ_SUFFIX) else topic + DLQ_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """All settings of one topic."""

    cleanup: Cleanup = Cleanup.DELETE
    retention_ms: int = 168 * 3_600_000  # 0 = forever
    retention_bytes: int = 0  # 0 = unlimited
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_ms: int = _SEGMENT_AGE_MS_MAX
    flush: Flush = Flush.GROUP
    flush_interval_ms: int = 1_000
    min_insync_replicas: int = 1
    acks: Acks = Acks.ALL
    compression: Compression = Compression.NONE
    verify_compression: VerifyCompression = VerifyCompression.OFF  # on costs CPU; see benchmarks/README.md
    max_message_bytes: int = VALUE_BYTES_MAX
    partitioner: Partitioner = Partitioner.MURMUR3  # fixed at creation: a key must not change its partition
    visibility_timeout_ms: int = 30_000
    max_deliveries: int = 3  # then the dead-letter topic: a poison message must not loop
    backoff_initial_ms: int = 1_000
    backoff_max_ms: int = 60_000
    max_in_flight: int = 1_000  # per consumer
    dead_letter_topic: str | None = None  # None: `default_dead_letter_topic`
    ttl_ms: int | None = None
    on_expire: OnExpire = OnExpire.DROP
    priority_mode: PriorityMode = PriorityMode.WEIGHTED
    priority_weights: tuple[int, ...] = (50, 25, 15, 7, 3)  # critical first
    priority_boost_ms: int = 30_000  # a lane that waits for longer is served once; 0 = never
    schema_validation: SchemaValidation = SchemaValidation.AUTO
    trace_sample_rate: float = 1.0
    tombstone_retention_ms: int = 24 * 3_600_000
    dirty_ratio: float = 0.5

    @classmethod
    def parse(cls, settings: Mapping[str, object], *, topic: str = "") -> "TopicConfig":
        """Parse settings in their public form; missing ones have their default."""
        fields: dict[str, object] = {}
        for name, value in settings.items():
            setting = _known(name, topic)
            try:
                fields[setting.field(name)] = setting.parse(value)
            except ValueError as error:
                raise InvalidTopic(topic, f"{error}, not {_shown(value)}", setting=name) from None
        return cls(**fields)  # type: ignore[arg-type]

    def settings(self) -> dict[str, object]:
        """All settings in their public form."""
        return {name: setting.show(getattr(self, setting.field(name))) for name, setting in _SETTINGS.items()}

    def dead_letter_topic_of(self, topic: str) -> str:
        """Where dead letters of a topic with these settings go."""
        return self.dead_letter_topic or default_dead_letter_topic(topic)

    def log_config(self) -> LogConfig:
        """The settings of the log of a partition.

        A segment is not written for longer than its records are kept: otherwise a quiet log would keep them for longer.
        Nor is it larger than half of `retention_bytes`: otherwise the log would lose all of its records at once.
        """
        oldest, largest = self.segment_age_ms, self.segment_bytes
        if self.retention_ms and self.cleanup is not Cleanup.COMPACT:
            oldest = max(_SEGMENT_AGE_MS_MIN, min(oldest, self.retention_ms))
        if self.retention_bytes and self.cleanup is not Cleanup.COMPACT:
            largest = max(_SEGMENT_BYTES_MIN, min(largest, self.retention_bytes // 2))
        return LogConfig(
            segment_bytes=largest,
            segment_age_ms=oldest,
            value_bytes_max=self.max_message_bytes,
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            cleanup=self.cleanup,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            dirty_ratio=self.dirty_ratio,
            tombstone_retention_ms=self.tombstone_retention_ms,
        )

    def ledger_config(self) -> LogConfig:
        """The settings of its ledger, which is compacted, kept forever, and flushed as the log is."""
        return LogConfig(
            segment_bytes=LEDGER_SEGMENT_BYTES,
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            cleanup=Cleanup.COMPACT,
            retention_ms=0,
        )


@lru_cache(maxsize=256)
def log_configs(config: TopicConfig) -> tuple[LogConfig, LogConfig]:
    """The settings of log and ledger of a partition.

    Cached: validating them takes as long as reading a small file, and most of thousands of topics have equal settings.
    """
    return config.log_config(), config.ledger_config()


def merge(
    explicit: Mapping[str, object], changes: Mapping[str, object | None], *, topic: str = ""
) -> dict[str, object]:
    """The explicit settings after the changes; None resets one to its default."""
    for name in changes:
        _known(name, topic)
    return {name: value for name, value in {**explicit, **changes}.items() if value is not None}


def validate_dead_letter_topic(name: str, config: TopicConfig, config_of: Callable[[str], TopicConfig | None]) -> None:
    """Raise `InvalidTopic` if dead letters of the topic, when they fail again and again, would come back to it.

    `config_of` returns the settings of another topic, None if it does not exist.
    """
    if config.dead_letter_topic == name:
        raise InvalidTopic(name, "must be another topic, not the topic itself", setting="dead_letter_topic")
    topic, target = name, config.dead_letter_topic_of(name)
    path = [name]
    while target != topic:  # a topic that ends with .dlq and sets none is its own
        path.append(target)
        if target in path[:-1]:
            reason = f"its dead letters would come back to it: {' -> '.join(path)}"
            raise InvalidTopic(name, reason, setting="dead_letter_topic")
        topic, target = target, (config_of(target) or TopicConfig()).dead_letter_topic_of(target)


def validate_alteration(name: str, before: TopicConfig, after: TopicConfig) -> None:
    """Raise `InvalidTopic` if a setting changes that is fixed when the topic is created."""
    if after.partitioner != before.partitioner:
        reason = "cannot be changed: messages of a key would be in two partitions, without an order between them"
        raise InvalidTopic(name, reason, setting="partitioner")


class _Setting(Protocol):
    """One row of the table: how a setting is parsed and shown, and the name of its field."""

    def field(self, name: str) -> str: ...
    def parse(self, value: object) -> object:
        """The value of the field. Raises `ValueError` that says what the value must be."""
        ...

    def show(self, value: object) -> object: ...


@dataclass(frozen=True, slots=True)
class _Duration:
    least_ms: int
    may_be_none: bool = False

    def field(self, name: str) -> str:
        return f"{name}_ms"

    def parse(self, value: object) -> int | None:
        if self.may_be_none and value in (None, "none"):
            return None
        if isinstance(value, str):
            try:
                ms, rest = divmod(parse_duration(value), MS)
            except ValueError:
                pass
            else:
                if not rest and self.least_ms <= ms <= NUMBER_MAX:
                    return ms
        limits = f"from {format_duration(self.least_ms * MS)} to {format_duration(NUMBER_MAX * MS)}"
        none = ", or none" if self.may_be_none else ""
        raise ValueError(f"must be text like 250ms, 30s or 168h, {limits} in whole milliseconds{none}")

    def show(self, value: object) -> object:
        return format_duration(value * MS) if isinstance(value, int) else "none"


@dataclass(frozen=True, slots=True)
class _Whole:
    least: int
    most: int

    def field(self, name: str) -> str:
        return name

    def parse(self, value: object) -> int:
        if type(value) is int and self.least <= value <= self.most:
            return value
        raise ValueError(f"must be a whole number from {self.least} to {self.most}")

    def show(self, value: object) -> object:
        return value


@dataclass(frozen=True, slots=True)
class _Share:
    may_be_zero: bool

    def field(self, name: str) -> str:
        return name

    def parse(self, value: object) -> float:
        if type(value) in (int, float) and 0 <= value <= 1 and (value or self.may_be_zero):  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        raise ValueError(f"must be a number {'from 0' if self.may_be_zero else 'above 0'} to 1")

    def show(self, value: object) -> object:
        return value


class _Weights:
    def field(self, name: str) -> str:
        return name

    def parse(self, value: object) -> tuple[int, ...]:
        if (
            isinstance(value, list | tuple)
            and len(value) == len(Priority)
            and all(type(weight) is int and 1 <= weight <= _WEIGHT_MAX for weight in value)
        ):
            return tuple(value)
        raise ValueError(f"must be a list of {len(Priority)} whole numbers from 1 to {_WEIGHT_MAX}, critical first")

    def show(self, value: object) -> object:
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class _Choice:
    choices: type[StrEnum]

    def field(self, name: str) -> str:
        return name

    def parse(self, value: object) -> StrEnum:
        if isinstance(value, str) and value in list(self.choices):
            return self.choices(value)
        raise ValueError(f"must be one of {' '.join(self.choices)}")

    def show(self, value: object) -> object:
        return str(value)


class _TopicName:
    def field(self, name: str) -> str:
        return name

    def parse(self, value: object) -> str | None:
        if value == DEFAULT_DEAD_LETTER_TOPIC:
            return None
        if isinstance(value, str) and is_topic_name(value) and not is_internal(value):
            return value
        raise ValueError(f"must be the name of a topic that is not internal, or {DEFAULT_DEAD_LETTER_TOPIC}")

    def show(self, value: object) -> object:
        return value or DEFAULT_DEAD_LETTER_TOPIC


_SETTINGS: dict[str, _Setting] = {
    "cleanup": _Choice(Cleanup),
    "retention": _Duration(0),
    "retention_bytes": _Whole(0, NUMBER_MAX),
    "segment_bytes": _Whole(_SEGMENT_BYTES_MIN, 1024**3),
    "segment_age": _Duration(_SEGMENT_AGE_MS_MIN),
    "flush": _Choice(Flush),
    "flush_interval": _Duration(1),
    "min_insync_replicas": _Whole(1, 1_000),
    "acks": _Choice(Acks),
    "compression": _Choice(Compression),
    "verify_compression": _Choice(VerifyCompression),
    "max_message_bytes": _Whole(1, 2**31 - 1),
    "partitioner": _Choice(Partitioner),
    "visibility_timeout": _Duration(1),
    "max_deliveries": _Whole(1, 1_000_000),
    "backoff_initial": _Duration(0),
    "backoff_max": _Duration(0),
    "max_in_flight": _Whole(1, 1_000_000),
    "dead_letter_topic": _TopicName(),
    "ttl": _Duration(1, may_be_none=True),
    "on_expire": _Choice(OnExpire),
    "priority_mode": _Choice(PriorityMode),
    "priority_weights": _Weights(),
    "priority_boost": _Duration(0),
    "schema_validation": _Choice(SchemaValidation),
    "trace_sample_rate": _Share(may_be_zero=True),
    "tombstone_retention": _Duration(0),
    "dirty_ratio": _Share(may_be_zero=False),
}


def is_setting(name: str) -> bool:
    """Whether topics have a setting of that name."""
    return name in _SETTINGS


def _known(name: str, topic: str) -> _Setting:
    if name not in _SETTINGS:
        reason = f"there is no such setting; {suggestion(str(name), _SETTINGS)}"
        raise InvalidTopic(topic, reason, setting=str(name), nearest=nearest(str(name), _SETTINGS))
    return _SETTINGS[name]


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > NUMBER_MAX:
        return "such a large number"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
