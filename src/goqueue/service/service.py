"""Everything that can be asked of a broker. The one seam between the doors and what lies behind them.

A door translates its protocol into these calls and their results back; it decides nothing. One `Broker` and a node of
a cluster look the same from here. Calls return at once; what has to wait is a `Pending`. Whatever is wrong with a
request is raised, or comes out of the `Pending`, as a `GoQueueError`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from goqueue.errors import GoQueueError
from goqueue.service.groups import DeadLetterVerbs, DelayVerbs, GroupVerbs, ScheduleVerbs
from goqueue.service.new_message import NewMessage
from goqueue.service.node import NodeVerbs
from goqueue.service.pending import Pending
from goqueue.service.scans import Delayed, ScanVerbs
from goqueue.service.schemas import SchemaVerbs
from goqueue.service.traces import TraceVerbs
from goqueue.service.transactions import TransactionVerbs
from goqueue.wire import reports

READ_RECORDS_MAX = 2**31 - 1
READ_BYTES = 1024 * 1024
READ_BYTES_MAX = 16 * 1024 * 1024
WAIT_MS_MAX = 60_000


class Isolation(StrEnum):
    """Whether records of open transactions are read."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class PartitionInfo(NamedTuple):
    """Where a partition begins and ends. `end_offset` is what the next record gets."""

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    leader: int
    leader_epoch: int
    message_count: int = 0  # without control records, and without what compaction has taken out


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as it is now."""

    name: str
    topic_id: str
    replication_factor: int
    created_at_ns: int
    settings: Mapping[str, object]  # all of them, in their public form
    defaults: Sequence[str]  # the names of those that nobody set
    partitions: Sequence[PartitionInfo]

    @property
    def total_messages(self) -> int:
        return sum(one.message_count for one in self.partitions)

    @property
    def total_size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)


class Stored(NamedTuple):
    """Where one message went. `offset` is -1 for a duplicate that is older than the broker remembers."""

    partition: int
    offset: int
    timestamp_ns: int
    duplicate: bool = False


class StoredBatch(NamedTuple):
    """Where a batch of records went."""

    first_offset: int
    record_count: int
    timestamp_ns: int
    duplicate: bool = False


class ReadResult(NamedTuple):
    """Encoded records, and where to go on."""

    records: bytes | bytearray | memoryview
    record_count: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    first_pending_offset: int | None = None
    end_of_range: bool = False
    flags: int = 0  # of the records, or-ed; may hold some of records that were hidden
    gaps: tuple[reports.Gap, ...] = ()  # damage that was passed over; all of it lies before the first record


class Producer(NamedTuple):
    """The identity of an idempotent producer."""

    producer_id: int
    epoch: int


class NodeStats(NamedTuple):
    """One node in numbers."""

    node_id: int
    uptime_ns: int
    topic_count: int
    size_bytes: int


class Check(NamedTuple):
    """One aspect of health: `pass`, `warn` or `fail`, and why."""

    status: str
    message: str = ""


class Subscription(Protocol):
    """A reader that stands in one partition. It belongs to whoever opened it, who closes it."""

    @property
    def next_offset(self) -> int:
        """Where it stands."""

    def read(self, *, max_bytes: int, max_records: int = READ_RECORDS_MAX) -> ReadResult:
        """What is there now, possibly nothing. Raises what `Service.read` raises."""

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call once, when `read` may return something new or raise; replaces an earlier callback."""

    def close(self) -> None:
        """Be called no more."""


class Service(Protocol):
    """The verbs."""

    # --- topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Pending[TopicInfo]: ...

    def delete_topic(self, name: str) -> Pending[None]: ...
    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Pending[TopicInfo]: ...
    def list_topics(self, *, internal: bool = False) -> list[str]: ...
    def describe_topic(self, name: str) -> TopicInfo: ...

    def offsets(self, topic: str, *, time_ns: int | None = None, at: str = "latest") -> list[int]:
        """By partition: the first offset at or after a time, or `earliest`, or `latest` (the end)."""

    # --- publishing

    def init_producer(self) -> Producer: ...

    def publish_records(
        self, topic: str, partition: int, records: bytearray | memoryview, *, acks: str | None = None
    ) -> Pending[StoredBatch]:
        """Store encoded records (offset and crc zero), all or none; the buffer is stamped in place."""

    def publish_messages(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: Producer | None = None,
        sequence: int | None = None,
        transaction_id: str | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store messages; each has its result, in order. Those of one partition are stored together or not at all."""

    # --- reading

    def read(
        self,
        topic: str,
        partition: int,
        *,
        offset: int = 0,
        max_records: int = READ_RECORDS_MAX,
        max_bytes: int = READ_BYTES,
        wait_ms: int = 0,
        from_time_ns: int | None = None,
        to_time_ns: int | None = None,
        end_offset: int | None = None,
        isolation: str = Isolation.READ_COMMITTED,
        delayed: str = Delayed.DUE,
        without: Sequence[str] = (),
    ) -> Pending[ReadResult]:
        """Visible records from `offset` on, in order; waits for the first one if there is none.

        Those who do not need all of them can have them `without` key, value or headers: these are empty, then.
        """

    def wait_for_records(
        self, topic: str, offsets: Mapping[int, int], *, wait_ms: int, isolation: str = Isolation.READ_COMMITTED
    ) -> Pending[None]:
        """Done once any of the partitions may have a visible record at or behind its offset, or the time is over."""

    def subscribe(
        self,
        topic: str,
        partition: int,
        *,
        offset: int,
        to_time_ns: int | None = None,
        isolation: str = Isolation.READ_COMMITTED,
    ) -> Subscription: ...

    # --- groups, delays, schedules, dead letters

    @property
    def groups(self) -> GroupVerbs: ...
    @property
    def delays(self) -> DelayVerbs: ...
    @property
    def schedules(self) -> ScheduleVerbs: ...
    @property
    def dead_letters(self) -> DeadLetterVerbs: ...
    @property
    def schemas(self) -> SchemaVerbs: ...
    @property
    def transactions(self) -> TransactionVerbs: ...
    @property
    def traces(self) -> TraceVerbs: ...
    @property
    def scans(self) -> ScanVerbs: ...
    @property
    def node(self) -> NodeVerbs: ...

    # --- about the node

    def stats(self) -> NodeStats: ...
    def health(self) -> Mapping[str, Check]: ...

    @property
    def is_ready(self) -> bool: ...
