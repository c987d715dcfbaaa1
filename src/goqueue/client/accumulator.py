"""The accumulator: messages in, batches out, in order, each exactly once. No socket, clock or thread in here.

    add ──> open batch ──(full, or lingered)──> ready ──> request ──> in flight ──> stored, or failed for good
                                                             ^            │
                                                             └── again ───┘

A batch becomes ready when it is full or has lingered. What is ready for a partition when a request can go out goes
together: up to five requests per partition are under way, and while they are, more gathers; so requests grow with the
load by themselves, and a quiet producer sends at once.

Order and exactly-once hold per partition. Each request bears the sequence of its first record. When one fails and may
be sent again, nothing new is sent until all that is under way was answered; then all of it goes again, in
order, and the broker recognises what it has. A request that fails for good leaves a hole in the numbers: what follows
was refused because of it, and is numbered anew. A broker that knows less than it should (its topic was made anew,
or a power cut took what it had not synced) says which number it expects, and is followed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import msgspec

from goqueue.clock import MS, SECOND
from goqueue.errors import GoQueueError, InvalidConfig, OutOfOrderSequence, RequestTimeout
from goqueue.record import compression, kernel
from goqueue.record.header import HEADER_BYTES, Priority
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity

IN_FLIGHT_MAX: Final = 5
"""As many batches as the broker remembers per producer and partition."""
REQUEST_BYTES: Final = 2 * 1024 * 1024
SMALL_VALUE_BYTES: Final = 256
"""Values up to it are not measured: each counts as the largest of them."""
SMALL_RECORD_BYTES: Final = HEADER_BYTES + SMALL_VALUE_BYTES
REQUEST_RECORDS_MAX: Final = 100_000
NORMAL: Final = Priority.NORMAL
NO_CALLBACKS: Final[deque[Callable[[], None]]] = deque(maxlen=0)

Headers = Mapping[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches and retries."""

    acks: str | None = None  # none, leader, all; None is the topic's
    linger_ns: int = 5 * MS
    batch_count: int = 100
    batch_bytes: int = 64 * 1024
    compression: str | None = None  # None is the topic's
    idempotent: bool = True
    buffer_bytes: int = 64 * 1024 * 1024  # of messages that are not stored yet; beyond it `send` waits
    delivery_timeout_ns: int = 120 * SECOND  # from `send` to the answer, retries included

    def __post_init__(self) -> None:
        for name, least in (("linger_ns", 0), ("batch_count", 1), ("batch_bytes", 1), ("buffer_bytes", 1)):
            if getattr(self, name) < least:
                raise InvalidConfig(name, getattr(self, name), f"must be at least {least}")
        if self.batch_count > REQUEST_RECORDS_MAX:
            raise InvalidConfig("batch_count", self.batch_count, f"must be at most {REQUEST_RECORDS_MAX}")
        if self.acks not in (None, "none", "leader", "all"):
            raise InvalidConfig("acks", self.acks, "must be none, leader or all")
        if self.compression not in (None, *compression.NAMES):
            raise InvalidConfig("compression", self.compression, f"must be one of {', '.join(compression.NAMES)}")


class Message(NamedTuple):
    """A message that has more than a small value."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    priority: int

    @property
    def size(self) -> int:
        """About what its record takes."""
        size = HEADER_BYTES + len(self.value or b"") + len(self.key or b"")
        return size + sum(len(name) + len(text) + 4 for name, text in (self.headers or {}).items())


class AnyHandle(msgspec.Struct, gc=False, eq=False):
    """A message on its way: `item` is what is sent, until the batch is settled; then it is its place in the batch."""

    batch: "Batch"
    item: bytes | Message | int


class Batch:
    """Messages for one partition that were gathered together; then, where they are or why they are not.

    Handles are added to `handles` without a lock. Whoever seals the batch sets `is_sealed`, and after that copies them
    to `held`, which is what counts. Whoever adds one looks at `is_sealed` after that; if it is set, it
    finds out whether its handle made it into the copy, and if not, adds it to another batch.
    """

    __slots__ = (
        "callbacks",
        "error",
        "first_offset",
        "handles",
        "held",
        "is_done",
        "is_plain",
        "is_sealed",
        "is_seen",
        "opened_ns",
        "queue",
        "size",
        "timestamp_ns",
    )

    def __init__(self, queue: "PartitionQueue", now_ns: int) -> None:
        self.queue = queue
        self.handles: list[AnyHandle] = []
        self.held: list[AnyHandle] = []
        self.size = 0  # of messages that are more than a small value, until it is sealed; then of all
        self.is_plain = True  # no message in it is more than a small value
        self.is_sealed = False
        self.opened_ns = now_ns
        self.first_offset = -1
        self.timestamp_ns = 0
        self.error: GoQueueError | None = None
        self.is_done = False
        self.is_seen = False  # whether somebody was told the error
        self.callbacks: deque[Callable[[], None]] = NO_CALLBACKS

    def add(self, handle: AnyHandle, message: Message) -> None:
        """A message with all it can have."""
        self.is_plain = False
        self.size += message.size
        self.handles.append(handle)

    def seal(self) -> None:
        """Nothing more comes in."""
        self.is_sealed = True
        self.held = self.handles.copy()
        self.handles = []
        small = len(self.held)
        if not self.is_plain:
            small = sum(1 for handle in self.held if type(handle.item) is bytes)
        self.size += small * SMALL_RECORD_BYTES

    def holds(self, handle: AnyHandle) -> bool:
        """Whether the handle was in time."""
        return type(handle.item) is int or any(held is handle for held in self.held)

    def settle(self, error: GoQueueError | None = None) -> None:
        """The batch is stored, or never will be."""
        self.error = error
        for index, handle in enumerate(self.held):
            handle.item = index
        self.is_done = True
        self.held = []


class Request:
    """What goes to one partition at once."""

    __slots__ = ("batches", "first_sequence", "record_count", "size")

    def __init__(self, batches: list[Batch], first_sequence: int) -> None:
        self.batches = batches
        self.first_sequence = first_sequence
        self.record_count = sum(len(batch.held) for batch in batches)
        self.size = sum(batch.size for batch in batches)

    @property
    def opened_ns(self) -> int:
        return self.batches[0].opened_ns

    def encode(self, producer: tuple[int, int] | None, algorithm: str) -> bytearray:
        """The records, with the id and epoch of their producer on the first one."""
        items = [handle.item for batch in self.batches for handle in batch.held]
        keys: list[bytes | None] | None = None
        headers: list[Headers | None] | None = None
        priorities: int | list[int] = NORMAL
        if all(batch.is_plain for batch in self.batches):
            values = cast("list[bytes | None]", items)
        else:
            messages = [
                item if isinstance(item, Message) else Message(cast("bytes", item), None, None, NORMAL)
                for item in items
            ]
            values = [message.value for message in messages]
            keys = [message.key for message in messages]
            headers = [message.headers for message in messages]
            priorities = [message.priority for message in messages]
        flags: int | list[int] = 0
        if algorithm != "none":
            values, flags = compression.compress_all(values, algorithm)
        if producer:
            identity = BatchIdentity(*producer, self.first_sequence, self.record_count).encode()
            headers = headers or [None] * len(values)
            headers[0] = {PRODUCER: identity, **(headers[0] or {})}
        return kernel.encode(values, keys=keys, headers=headers, priorities=priorities, flags=flags)


class PartitionQueue:
    """What waits for one partition, and what is under way to it."""

    __slots__ = (
        "_again",
        "_attempt",
        "_is_draining",
        "_retry_at_ns",
        "_sequence",
        "_settled_sequence",
        "epoch",
        "in_flight",
        "open",
        "partition",
        "ready",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: deque[Request] = deque()
        self.epoch = 0
        self._again: deque[Request] = deque()
        self._is_draining = False
        self._attempt = 0
        self._retry_at_ns = 0
        self._sequence = 0  # of the next new request
        self._settled_sequence = 0  # of what follows the last record that was settled

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent or answered."""
        return not (self.ready or self._again or self.in_flight)

    def take(self, *, now_ns: int) -> Request | None:
        """What is to be sent now."""
        if self._is_draining:
            if self.in_flight or now_ns < self._retry_at_ns:
                return None
            self._is_draining = False
            self._number()
        if len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        if self._again:
            request = self._again.popleft()
        elif self.ready:
            request = self._new_request()
        else:
            return None
        self.in_flight.append(request)
        return request

    def wait_ns(self, now_ns: int) -> int | None:
        """How long until `take` is worth a try again though nothing happens; None if it is not."""
        if self._is_draining and not self.in_flight:
            return max(0, self._retry_at_ns - now_ns)
        return None

    def stored(self, request: Request, *, first_offset: int, timestamp_ns: int) -> list[Batch]:
        """The request was answered: its batches have their places."""
        self.in_flight.remove(request)
        self._attempt = 0
        self._settled_sequence = request.first_sequence + request.record_count
        offset = first_offset
        for batch in request.batches:
            batch.first_offset = offset
            batch.timestamp_ns = timestamp_ns
            if offset >= 0:
                offset += len(batch.held)
            batch.settle()
        return request.batches

    def failed(self, request: Request, error: GoQueueError, *, now_ns: int, wait_ns: int) -> list[Batch]:
        """The request was refused or lost; the batches that will not be tried again."""
        self.in_flight.remove(request)
        if self._is_worth_another_try(request, error):
            self._send_again(request, now_ns + wait_ns)
            return []
        self._is_draining = True
        for batch in request.batches:
            batch.settle(error)
        return request.batches

    def expire(self, before_ns: int, timeout_ns: int) -> list[Batch]:
        """Give up on what was added before that time and is not under way."""
        expired: list[Batch] = []
        while self._again and self._again[0].opened_ns < before_ns and not self.in_flight:
            expired += self._again.popleft().batches
            self._begin_epoch()
        while self.ready and self.ready[0].opened_ns < before_ns and not self._again and not self.in_flight:
            expired.append(self.ready.popleft())
        for batch in expired:
            batch.settle(RequestTimeout(f"publish to {self.topic}-{self.partition}", timeout_ns / SECOND))
        return expired

    def _begin_epoch(self) -> None:
        """Number anew: nobody knows whether what is given up was stored, so its numbers must not be used again."""
        self.epoch += 1
        self._settled_sequence = 0
        self._is_draining = True

    @property
    def attempt(self) -> int:
        """How often in a row requests have failed."""
        return self._attempt

    def unsettled(self) -> list[Batch]:
        """All batches of which it is not known what becomes of them, but for the open one."""
        sent = [batch for request in (*self.in_flight, *self._again) for batch in request.batches]
        return [*sent, *self.ready]

    def give_up(self, error: GoQueueError) -> list[Batch]:
        """Fail everything but the open batch."""
        batches = self.unsettled()
        self.in_flight.clear()
        self._again.clear()
        self.ready.clear()
        for batch in batches:
            batch.settle(error)
        return batches

    def _new_request(self) -> Request:
        batches = [self.ready.popleft()]
        size, count = batches[0].size, len(batches[0].held)
        while self.ready:
            size += self.ready[0].size
            count += len(self.ready[0].held)
            if size > REQUEST_BYTES or count > REQUEST_RECORDS_MAX:
                break
            batches.append(self.ready.popleft())
        request = Request(batches, self._sequence)
        self._sequence += request.record_count
        return request

    def _is_worth_another_try(self, request: Request, error: GoQueueError) -> bool:
        if not isinstance(error, OutOfOrderSequence):
            return error.retryable
        if request.first_sequence != self._settled_sequence:
            return True  # what stands before it is missing, and comes first
        if error.expected < request.first_sequence:
            self._settled_sequence = error.expected
            return True
        return False

    def _send_again(self, request: Request, retry_at_ns: int) -> None:
        if not self._is_draining:
            self._attempt += 1
        self._is_draining = True
        self._retry_at_ns = max(self._retry_at_ns, retry_at_ns)
        position = sum(1 for other in self._again if other.first_sequence < request.first_sequence)
        self._again.insert(position, request)

    def _number(self) -> None:
        """Number what goes again, without a hole, behind what was settled."""
        sequence = self._settled_sequence
        for request in self._again:
            request.first_sequence = sequence
            sequence += request.record_count
        self._sequence = sequence


class TopicQueues:
    """The partitions of one topic, and whose turn it is."""

    __slots__ = ("acks", "compression", "partitions", "topic", "turn", "value_bytes_max")

    def __init__(self, topic: str, partition_count: int, *, compression: str, acks: str, value_bytes_max: int) -> None:
        self.topic = topic
        self.partitions = [PartitionQueue(topic, number) for number in range(partition_count)]
        self.turn = 0
        self.compression = compression
        self.acks = acks
        self.value_bytes_max = value_bytes_max

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self.partitions)

    def next_turn(self) -> PartitionQueue:
        """The partition for the next batch of messages without a key."""
        queue = self.partitions[self.turn]
        self.turn = (self.turn + 1) % len(self.partitions)
        return queue
