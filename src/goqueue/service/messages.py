"""The verbs that publish and read messages, and what they return."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from goqueue.errors import GoQueueError
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.scans import DelayedView
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import reports

READ_RECORDS_MAX = 2**31 - 1
READ_BYTES = 1024 * 1024
READ_BYTES_MAX = 16 * 1024 * 1024
WAIT_MS_MAX = 60_000


class Isolation(StrEnum):
    """Whether records of open transactions are read."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class ProducerEpoch(NamedTuple):
    """The identity of an idempotent producer."""

    producer_id: int
    epoch: int


class Stored(NamedTuple):
    """Where one message is stored. `offset` is -1 for a duplicate that is older than the broker remembers."""

    partition: int
    offset: int
    timestamp_ns: int
    duplicate: bool = False


class StoredBatch(NamedTuple):
    """Where a batch of records is stored."""

    first_offset: int
    record_count: int
    timestamp_ns: int
    duplicate: bool = False


class ReadResult(NamedTuple):
    """Encoded records, and the offset to go on from."""

    records: bytes | bytearray | memoryview
    record_count: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    first_pending_offset: int | None = None
    end_of_range: bool = False
    flags: int = 0  # of the records, or-ed; may include those of hidden records
    gaps: tuple[reports.Gap, ...] = ()  # damage that was skipped; all of it lies before the first record


class Subscription(Protocol):
    """A reader with a position in one partition. The door that opened it closes it."""

    @property
    def next_offset(self) -> int:
        """Its position."""

    def read(self, *, max_bytes: int, max_records: int = READ_RECORDS_MAX) -> ReadResult:
        """The records that are there now, possibly none. Raises what `MessageVerbs.read` raises."""

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call once, when `read` may return something new or raise; replaces an earlier callback."""

    def close(self) -> None:
        """Call no callback any more."""


class MessageVerbs(Protocol):
    """Publishing to partitions and reading from them, without a group."""

    @verb(
        Resource.CLUSTER,
        Action.WRITE,
        Route.ANY_NODE,
        frame="INIT_PRODUCER",
        not_http="POST /producers/init is transactions.init",
    )
    def init_producer(self) -> Pending[ProducerEpoch]:
        """An identity that no other producer has."""

    @verb(
        Resource.TOPIC,
        Action.WRITE,
        Route.LEADER,
        frame="PUBLISH",
        not_http="HTTP publishes messages, which the broker encodes: messages.publish",
    )
    def publish_records(
        self, topic: str, partition: int, records: bytearray | memoryview, *, acks: str | None = None
    ) -> Pending[StoredBatch]:
        """Store encoded records (offset and crc zero), all or none; the buffer is stamped in place."""

    @verb(
        Resource.TOPIC,
        Action.WRITE,
        Route.LEADER,
        not_native="native clients encode records: messages.publish_records",
        not_python="the client encodes records: messages.publish_records",
    )
    def publish(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: ProducerEpoch | None = None,
        sequence: int | None = None,
        transaction_id: str | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store messages; each has its result, in order. Those of one partition are stored together or not at all."""

    @verb(Resource.TOPIC, Action.READ, Route.LEADER, frame="READ")
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
        delayed: str = DelayedView.DUE,
        without: Sequence[str] = (),
    ) -> Pending[ReadResult]:
        """Visible records from `offset` on, in order; waits for the first one if there is none.

        `without` leaves out the key, value or headers of records: they are empty then.
        """

    @verb(
        Resource.TOPIC,
        Action.READ,
        Route.LEADER,
        not_native="native clients subscribe, or wait in a read",
        not_python="the client subscribes, or waits in a read",
    )
    def wait(
        self, topic: str, offsets: Mapping[int, int], *, wait_ms: int, isolation: str = Isolation.READ_COMMITTED
    ) -> Pending[None]:
        """Done once any of the partitions may have a visible record at or after its offset, or the time is over."""

    @verb(Resource.TOPIC, Action.READ, Route.LEADER, frame="SUBSCRIBE")
    def subscribe(
        self,
        topic: str,
        partition: int,
        *,
        offset: int,
        to_time_ns: int | None = None,
        isolation: str = Isolation.READ_COMMITTED,
    ) -> Pending[Subscription]: ...
