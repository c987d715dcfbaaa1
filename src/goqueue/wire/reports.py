"""Results about groups, deliveries, delays, schedules and dead letters.

The service returns these structs, the native protocol carries them, and the Python client hands them out; HTTP has
JSON shapes of its own. `wire_struct.py` says how they travel. Times are nanoseconds since 1970. An offset that stands
for a position is the one of the next record.
"""

from msgspec import field

from goqueue.wire.wire_struct import WireStruct


class PartitionName(WireStruct):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# --- membership --------------------------------------------------------------------------------


class JoinAnswer(WireStruct):
    """What a member has to know after JOIN: its id, generation and partitions, and how often to send heartbeats."""

    member_id: str
    generation: int
    leader_id: str
    members: list[str]
    partitions: list[PartitionName]
    rebalance_required: bool
    mode: str
    protocol: str
    session_timeout_ms: int
    heartbeat_interval_ms: int


class HeartbeatAnswer(WireStruct):
    """The answer to HEARTBEAT. `state` is that of the group; `rebalance_state`, that of the member, is none,
    pending_revoke, pending_assign or complete.
    """

    generation: int
    rebalance_required: bool
    state: str
    protocol: str
    rebalance_state: str
    partitions_to_revoke: list[PartitionName]
    partitions_assigned: list[PartitionName]
    revocation_deadline_ns: int | None = None


class RevocationAcknowledged(WireStruct):
    """How many partitions the member has yet to revoke."""

    pending_count: int
    rebalance_state: str


class MemberInfo(WireStruct):
    """One member of a group."""

    member_id: str
    client_id: str
    topics: list[str]
    partitions: list[PartitionName]
    in_flight: int
    joined_at_ns: int
    last_heartbeat_ns: int
    expired_leases: int = 0  # since the broker started


class GroupInfo(WireStruct):
    """A group as it is now."""

    group: str
    state: str
    generation: int
    mode: str
    protocol: str
    assignor: str
    ack: str
    leader_id: str
    topics: list[str]
    created_at_ns: int
    lag: int
    members: list[MemberInfo]
    rebalance_state: str
    expired_leases: int = 0  # since the broker started, former members included


class RebalanceReport(WireStruct):
    """The rebalances of a group, or of all groups."""

    total_rebalances: int
    successful_rebalances: int
    failed_rebalances: int
    total_partitions_revoked: int
    total_partitions_assigned: int
    total_revocation_timeouts: int
    last_rebalance_duration_ms: float
    average_rebalance_duration_ms: float
    last_rebalance_at_ns: int | None
    rebalances_by_reason: dict[str, int]


class BlockedKey(WireStruct):
    """A message that holds back its key in a key-shared group. `member_id` is empty while it waits for a retry."""

    topic: str
    partition: int
    key: bytes
    offset: int
    member_id: str
    since_ns: int
    delivery_count: int
    waiting: int


# --- positions ---------------------------------------------------------------------------------


class Position(WireStruct):
    """The position of a group in a partition. `lag_seconds` is the age of the oldest message that is not done."""

    topic: str
    partition: int
    offset: int
    end_offset: int
    lag: int
    lag_seconds: float
    metadata: str = ""


class PositionCommit(WireStruct):
    """A position that a member commits: everything below the offset is done, except messages that are not due.

    With `pending`, everything below is done except these ranges [first, end). Readers of the log that include delayed
    messages, or that know which of them they have not read, commit in this form.
    """

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    pending: list[tuple[int, int]] | None = None


class DoneAbove(WireStruct):
    """What a group has done in a partition above its position, in rising ranges [first, end)."""

    topic: str
    partition: int
    ranges: list[tuple[int, int]]


class PositionReset(WireStruct):
    """A position that was, or would be, set."""

    topic: str
    partition: int
    offset: int
    old_offset: int


# --- deliveries --------------------------------------------------------------------------------


class Gap(WireStruct):
    """Offsets [first_offset, next_offset) whose records are damaged on the disk: readers skip them.

    Records that retention or compaction removed are no gap.
    """

    first_offset: int
    next_offset: int
    reason: str


class PartitionGap(WireStruct):
    """Offsets of a partition that were skipped, because their records are damaged."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    reason: str


class DeliveredBatch(WireStruct):
    """Messages of one partition that are delivered to a member. `bytes` of the payload are their records.

    The nonce names the delivery in settlements and receipts. `counts` has the delivery count of each offset that was
    delivered before; all others are delivered for the first time. `lease_ns` is the length of the lease, 0 without
    one: clocks of client and broker may differ, so a client measures it with its own and ignores `deadline_ns`.
    """

    topic: str
    partition: int
    nonce: str
    count: int
    bytes: int
    flags: int
    deadline_ns: int
    next_offset: int
    counts: dict[int, int] = field(default_factory=dict)
    lease_ns: int = 0


class PollAnswer(WireStruct):
    """The answer to POLL. `reason` says why there are no messages: max_in_flight, rebalancing, no_partitions."""

    batches: list[DeliveredBatch]
    generation: int
    rebalance_required: bool
    in_flight: int
    reason: str = ""
    gaps: list[PartitionGap] = field(default_factory=list)  # damage that the group has reached since the last answer


class Settlement(WireStruct):
    """What to do with messages: ack, nack, reject, extend, or release (as if never delivered)."""

    action: str
    delay_ns: int | None = None  # of a nack; of an extension, from now on
    reason: str = ""
    transaction_id: str = ""  # an ack takes effect when the transaction is committed


class SettledMessage(WireStruct):
    """The outcome of settling one message by its receipt; the action decides which fields are set."""

    topic: str
    partition: int
    offset: int
    action: str  # ack, requeued, dlq, rejected, extended, released
    committed_offset: int = 0  # everything below it is done
    in_flight_count: int = 0  # of the member
    delivery_count: int = 0  # requeued: of the next delivery
    at_ns: int = 0  # requeued: when it is visible again; extended: the new deadline
    dlq_topic: str = ""
    dlq_partition: int = -1
    dlq_offset: int = -1
    reason: str = ""

    @property
    def offset_advanced(self) -> bool:
        """Whether the floor is above this message."""
        return self.committed_offset > self.offset


class Refusal(WireStruct):
    """Why a message was not settled."""

    offset: int
    code: str
    text: str
    facts: dict[str, object] = field(default_factory=dict)


class SettledBatch(WireStruct):
    """The outcome of settling messages of one delivery."""

    settled: int
    refused: list[Refusal]
    committed_offset: int  # everything below it is done
    in_flight_count: int
    dead: int = 0  # settled messages that became dead letters
    at_ns: int = 0  # nack: when the first is visible again; extend: the new deadline


class ReliabilityReport(WireStruct):
    """Deliveries and settlements since the broker started."""

    acks: int
    nacks: int
    rejects: int
    expired: int
    retries: int
    extensions: int
    dead_lettered: int
    leased: int
    in_flight: int
    waiting: int
    dead_by_reason: dict[str, int]
    dead_by_topic: dict[str, int]
    dlq_create_errors: int
    dlq_publish_errors: int


class LaneReport(WireStruct):
    """One partition, lane by lane: lists of five, critical first."""

    topic: str
    partition: int
    total: list[int]
    pending: list[int]
    ready: list[int]
    in_flight: list[int]
    consumed: list[int]
    enqueue_rate: list[float]
    dequeue_rate: list[float]
    oldest_pending_ns: list[int | None]
    average_wait_ns: list[int]
    delivered: list[int] = field(
        default_factory=list
    )  # since the broker started, each message once per group; the wait is an average over them
    boosts: list[int] = field(default_factory=list)
    last_served_ns: list[int | None] = field(default_factory=list)


# --- delays ------------------------------------------------------------------------------------


class DelayedMessage(WireStruct):
    """A message with a delay. `state` is pending, delivered, cancelled or expired."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    deliver_at_ns: int
    state: str
    priority: int


class DelayReport(WireStruct):
    """Statistics of delayed messages."""

    scheduled: int
    delivered: int
    cancelled: int
    expired: int
    pending: int
    average_delay_ns: int
    by_topic: dict[str, int]
    wheel_active: int
    wheel_tick: int


class RecurringMessage(WireStruct):
    """The message that a schedule publishes."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes | None] = field(default_factory=dict)
    partition: int | None = None
    priority: int = 2


class ScheduleRun(WireStruct):
    """When a run was due, when and where it was published, or why not."""

    due_at_ns: int
    published_at_ns: int
    partition: int
    offset: int
    error: str = ""


class ScheduleInfo(WireStruct):
    """A recurring message."""

    name: str
    topic: str
    cron: str | None
    every_ns: int | None
    timezone: str
    catch_up: str
    paused: bool
    next_at_ns: int | None
    last_at_ns: int | None
    runs: int
    missed: int
    created_at_ns: int
    history: list[ScheduleRun] = field(default_factory=list)


# --- dead letters ------------------------------------------------------------------------------


class DeadLetterFilter(WireStruct, array_like=True):
    """Which dead letters are meant: all conditions that are given must match.

    An array, because redrives are stored with their filter in the ledger. Fields are added at the end.
    """

    reason: str | None = None
    group: str | None = None
    key: bytes | None = None
    key_prefix: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    error_contains: str | None = None
    from_time_ns: int | None = None
    to_time_ns: int | None = None
    partition: int | None = None
    offsets: list[int] | None = None
    min_attempts: int | None = None


class DeadLetter(WireStruct):
    """A dead letter: where it is, why it is there, and the record itself (encoded)."""

    partition: int
    offset: int
    reason: str
    error: str
    group: str
    member: str
    attempts: int
    origin_topic: str
    origin_partition: int
    origin_offset: int
    dead_at_ns: int
    redrives: int
    record: bytes
    dlq_topic: str = ""  # the topic that it is in


class RedriveInfo(WireStruct):
    """A redrive: `state` is running, done, stopped or failed."""

    id: str
    topic: str
    state: str
    matched: int
    redriven: int
    skipped_loop: int
    failed: int
    rate: float
    started_at_ns: int
    finished_at_ns: int | None = None
    error: str = ""
    to: str = "all"  # "group": only the group that gave the message up gets it again


class RedrivePlan(WireStruct):
    """What a redrive would do."""

    matched: int
    skipped_loop: int
    sample: list[DeadLetter]


class DeadLetterQueue(WireStruct):
    """Statistics of the dead letters of a topic."""

    topic: str
    dlq_topic: str
    messages: int
    oldest_ns: int | None
    newest_ns: int | None
    by_reason: dict[str, int]
    by_group: dict[str, int]
    by_error: dict[str, int]
    redrives: list[RedriveInfo] = field(default_factory=list)


class HealthCheck(WireStruct):
    """One aspect of a node: `pass`, `warn` or `fail`, and why."""

    status: str
    message: str = ""


class NodeHealth(WireStruct):
    """The health of a node: `ok`, `degraded` or `fail`. The bytes are those of the disk of its data, None if unknown.

    `quarantined` has the topics whose files cannot be used, and why.
    """

    status: str
    node_id: int
    version: str
    uptime_ns: int
    checks: dict[str, HealthCheck]
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    quarantined: dict[str, str] = field(default_factory=dict)
