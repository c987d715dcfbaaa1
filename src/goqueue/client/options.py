"""Keyword arguments that several public methods share, and the words that they take: written down here, once.

A method takes `**options: Unpack[MessageOptions]`: type checkers and editors know the keywords and their types from
that. `shows` lets `help()` and `inspect.signature` list them as well.
"""

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints

from goqueue.record.header import Priority
from goqueue.record.headers import Headers

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

Duration = str | int | float | timedelta
"""`"90s"`, a number of seconds, or a `timedelta`."""
Time = datetime | str | int | float
"""A `datetime`, text as in `"2026-11-15T09:00:00Z"` or `"in 2h"`, or seconds since 1970."""

Acks = Literal["none", "leader", "all"]
AckMode = Literal["each", "offsets", "auto"]
Assignor = Literal["sticky", "range", "roundrobin"]
CatchUp = Literal["skip", "once", "all"]
CompatibilityLevel = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]
Compression = Literal["none", "zstd", "lz4"]
DelayedReads = Literal["due", "include"]
DelayState = Literal["pending", "delivered", "cancelled", "expired"]
Field = Literal["key", "value", "headers"]
"""What of a record a scan can leave out."""
Flush = Literal["group", "interval", "none"]
GroupMode = Literal["partitioned", "shared", "key-shared"]
GroupProtocol = Literal["cooperative", "eager"]
Isolation = Literal["read_committed", "read_uncommitted"]
SchemaMode = Literal["READWRITE", "READONLY", "IMPORT"]
SchemaPolicy = Literal["STRICT", "LENIENT"]
SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
StartPosition = Literal["earliest", "latest"]


class MessageContent(TypedDict, total=False):
    """What a message can have besides its value."""

    key: bytes | str | None
    priority: Priority | int | str | None
    headers: Headers | None
    delay: Duration | None
    deliver_at: Time | None
    ttl: Duration | None
    tombstone: bool
    created_at: Time | None


class MessageOptions(MessageContent, total=False):
    """What can be said when a message is published: what it has, and the partition to store it in."""

    partition: int | None


class TopicSettings(TypedDict, total=False):
    """The settings of a topic. None is the default of the broker."""

    cleanup: Literal["delete", "compact", "compact,delete"] | None
    retention: Duration | None
    retention_bytes: int | None
    segment_bytes: int | None
    segment_age: Duration | None
    flush: Flush | None
    flush_interval: Duration | None
    min_insync_replicas: int | None
    acks: Acks | None
    compression: Compression | None
    verify_compression: Literal["off", "on"] | None
    max_message_bytes: int | None
    partitioner: Literal["murmur3", "murmur2"] | None
    visibility_timeout: Duration | None
    max_deliveries: int | None
    backoff_initial: Duration | None
    backoff_max: Duration | None
    max_in_flight: int | None
    dead_letter_topic: str | None
    ttl: Duration | None
    on_expire: Literal["drop", "dead_letter"] | None
    priority_mode: Literal["weighted", "strict"] | None
    priority_weights: Sequence[int] | None
    priority_boost: Duration | None
    schema_validation: Literal["auto", "off", "required"] | None
    trace_sample_rate: float | None
    tombstone_retention: Duration | None
    dirty_ratio: float | None


def shows(options: type) -> Callable[[F], F]:
    """Let the signature of a method that takes `**options` list the keywords, as if they were written out."""

    def decorate(method: F) -> F:
        written = inspect.signature(method)
        shown = [one for one in written.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, annotation in get_type_hints(options).items():
            default = False if annotation is bool else None
            shown.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        method.__signature__ = written.replace(parameters=shown)  # type: ignore[attr-defined]
        return method

    return decorate


def same_parameters_as(
    original: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """A method that passes all its arguments on to another one takes the same, for type checkers and `help()`."""

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return method

    return decorate
