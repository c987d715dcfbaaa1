"""One member of a group: its settings, its partitions, and which generations it may use.

A member *has* partitions (`assigned`) and *will have* others (`target`); between the two lies a rebalance. A member
that confirms revocations keeps partitions that are being revoked until it confirms, or until the deadline in `revoking`
passes.

`generation` is the oldest one that it may still use. For a member that does not confirm revocations, that is the one of
the last rebalance, or of its own last join.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from goqueue.clock import MS
from goqueue.errors import InvalidRequest
from goqueue.groups.assignors.choice import ASSIGNORS
from goqueue.groups.config import GroupConfig
from goqueue.names import TopicPartition
from goqueue.service.groups import Join

NAME_CHARACTERS_MAX = 255
INTERNAL_PREFIX = "__"
VISIBILITY_TIMEOUT_MS_MAX = 12 * 3_600_000
AUTO_COMMIT_INTERVAL_MS_MIN = 100
AUTO_COMMIT_INTERVAL_MS_MAX = 3_600_000

MODES = ("partitioned", "shared", "key-shared")
PROTOCOLS = ("cooperative", "eager")
STARTS = ("earliest", "latest")
ACKS = ("messages", "offsets")


def validate_name(name: str, field: str) -> None:
    """Raise `InvalidRequest` unless a group, client or member may be called that."""
    if not name:
        raise InvalidRequest(f"{field} is required", path=field)
    if name.startswith(INTERNAL_PREFIX) and field == "group":
        raise InvalidRequest(f"{INTERNAL_PREFIX} opens the names of internal groups", path=field)
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or "/" in name:
        rule = f"must be 1 to {NAME_CHARACTERS_MAX} printable characters without /"
        raise InvalidRequest(f"{field} {rule}", path=field)


def validate_join(wanted: Join, config: GroupConfig) -> None:
    """Raise `InvalidRequest` unless every field is valid."""
    validate_name(wanted.client_id, "client_id")
    if wanted.member_id is not None:
        validate_name(wanted.member_id, "member_id")
    if not wanted.topics:
        raise InvalidRequest("at least one topic is required", path="topics")
    if len(wanted.topics) > config.topics_max:
        raise InvalidRequest(f"topics: {len(wanted.topics)} are over the limit of {config.topics_max}", path="topics")
    low, high = config.session_timeout_ms_min, config.session_timeout_ms_max
    if not low <= wanted.session_timeout_ms <= high:
        raise InvalidRequest(f"session_timeout must be {low} to {high} ms", path="session_timeout")
    _validate_choice("mode", wanted.mode, MODES)
    _validate_choice("protocol", wanted.protocol, PROTOCOLS)
    _validate_choice("assignor", wanted.assignor, ASSIGNORS.keys())
    _validate_choice("start", wanted.start, STARTS)
    _validate_choice("ack", wanted.ack, ACKS)
    visibility_timeout_ms = wanted.visibility_timeout_ms
    if visibility_timeout_ms is not None and not 1 <= visibility_timeout_ms <= VISIBILITY_TIMEOUT_MS_MAX:
        raise InvalidRequest("visibility_timeout must be positive and at most 12h", path="visibility_timeout")
    if wanted.max_in_flight is not None and wanted.max_in_flight < 1:
        raise InvalidRequest("max_in_flight must be positive", path="max_in_flight")
    if not AUTO_COMMIT_INTERVAL_MS_MIN <= wanted.auto_commit_interval_ms <= AUTO_COMMIT_INTERVAL_MS_MAX:
        raise InvalidRequest("auto_commit_interval must be 100ms to 1h", path="auto_commit_interval")


def _validate_choice(field: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise InvalidRequest(f"invalid {field} {value!r}: must be one of {', '.join(choices)}", path=field)


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member. Only its group changes it."""

    id: str
    ack: str
    joined_at_ns: int  # wall clock
    client_id: str = ""
    topics: tuple[str, ...] = ()  # sorted
    session_timeout_ms: int = 0
    start: str = ""
    auto_commit: bool = False
    visibility_timeout_ms: int | None = None
    max_in_flight: int | None = None
    auto_commit_interval_ms: int = 5_000
    commit_at_ns: int = 0  # when its positions are committed automatically next
    poll_count: int = 0  # a poll says that the messages of all earlier polls are processed
    confirms_revocations: bool = False
    unused_join: Join | None = None  # its last join, until it does anything else
    last_heartbeat_ns: int = 0  # wall clock
    heard_ns: int = 0  # the same, monotonic
    is_late: bool = False  # its missing heartbeat was emitted already
    generation: int = 0
    fenced_below: int = 0  # older generations are refused at every verb: partitions were taken from it
    assigned: tuple[TopicPartition, ...] = ()  # sorted
    held: frozenset[TopicPartition] = frozenset()  # the same as a set
    target: frozenset[TopicPartition] = frozenset()
    revoking: dict[TopicPartition, int] = field(
        default_factory=dict
    )  # partitions that it has to confirm, and until when

    @property
    def to_revoke(self) -> tuple[TopicPartition, ...]:
        """The partitions that are being revoked from it, sorted."""
        return tuple(sorted(self.revoking))

    @property
    def session_deadline_ns(self) -> int:
        """When its session times out without another heartbeat."""
        return self.heard_ns + self.session_timeout_ms * MS

    @property
    def is_settled(self) -> bool:
        """Whether it has its target, and nothing else."""
        return not self.revoking and (self.held is self.target or self.held == self.target)

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these."""
        held = frozenset(partitions)
        self.held = self.target if held == self.target else held
        self.assigned = tuple(sorted(self.held))

    def revoke(self, partitions: Iterable[TopicPartition], *, now_ns: int) -> None:
        """Revoke exactly these. Earlier revocations keep their deadline: further changes do not extend it."""
        deadline_ns = now_ns + self.session_timeout_ms * MS
        self.revoking = {partition: self.revoking.get(partition, deadline_ns) for partition in partitions}

    def heard(self, *, now_ns: int, wall_ns: int) -> None:
        """Its session starts again."""
        self.heard_ns = now_ns
        self.last_heartbeat_ns = wall_ns
        self.is_late = False
