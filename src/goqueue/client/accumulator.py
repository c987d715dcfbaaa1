"""The accumulator: messages in, batches out, in order, each exactly once. No socket, clock or thread in here.

    add ──> open batch ──(full, or lingered)──> ready ──> request ──> in flight ──> stored, or failed for good
                                                             ^            │
                                                             └── again ───┘

A batch becomes ready when it is full or has lingered. All batches that are ready for a partition when a request can be
sent share that request. Up to five requests per partition are in flight, and more batches gather meanwhile: requests
grow with the load by themselves, and a quiet producer sends at once.

Order and exactly-once hold per partition. Each request carries the sequence number of its first record. When a request
fails with a retryable error, no new one is sent until everything in flight was answered. Then all of it is sent again,
in order, under the same numbers, and the broker recognizes what it has stored.

A request that fails for good, or is given up, leaves a gap in the numbers: it may have been stored, or not. The
requests after it keep their numbers. If the broker then misses one, it has stored none of those after it; they all get
new numbers, in a new epoch, and a late arrival from the old epoch is refused. The same holds for a broker that knows
less than it should: the topic was deleted and created again, or a power cut took what was not synced.

A message that violates its schema is taken out of its request, and the others are sent again without it.

An application that has many messages at once adds them as columns. They are spread over the partitions by the same
rules, and become batches that are full from the start and have no handles.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, itemgetter
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from goqueue.clock import MS, SECOND
from goqueue.errors import (
    AvailabilityError,
    GoQueueError,
    InvalidConfig,
    InvalidPartition,
    OutOfOrderSequence,
    PartitionNotFound,
    RequestTimeout,
    SchemaRejected,
)
from goqueue.record import compression, kernel
from goqueue.record.header import HEADER_BYTES, Flags, Priority
from goqueue.record.headers import PRODUCER, Headers, encoded_size
from goqueue.record.identity import BatchIdentity
from goqueue.wire.partitioning import MURMUR3, key_hash

IN_FLIGHT_MAX: Final = 5
"""As many batches as the broker remembers per producer and partition."""
REQUEST_BYTES: Final = 2 * 1024 * 1024
SMALL_VALUE_BYTES: Final = 256
"""Values up to it are not measured: each counts as the largest of them."""
SMALL_RECORD_BYTES: Final = HEADER_BYTES + SMALL_VALUE_BYTES
REQUEST_RECORDS_MAX: Final = 100_000
BULK_BYTES: Final = 512 * 1024
"""Messages that are added together become batches of this size; those without a key take turns by it."""
REFUSALS_MAX: Final = 32
"""How many messages are taken out of a request before the rest is given up: each costs a round trip."""
FIRST_SEQUENCE: Final = 1
"""The broker accepts 0 or 1 as a start. After a start at 1, no later request can be mistaken for a first one."""
NORMAL: Final = Priority.NORMAL
TRANSACTIONAL: Final = int(Flags.TRANSACTIONAL)
NO_CALLBACKS: Final[deque[Callable[[], None]]] = deque(maxlen=0)

T = TypeVar("T")


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
    all_or_none: bool = False  # a refused message fails all others of the same partition

    def __post_init__(self) -> None:
        for name, least in (("linger_ns", 0), ("batch_count", 1), ("batch_bytes", 1), ("buffer_bytes", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise InvalidConfig(name, getattr(self, name), f"must be at least {least}")
        if self.delivery_timeout_ns < 1:
            raise InvalidConfig("delivery_timeout_ns", self.delivery_timeout_ns, "must be positive")
        if self.batch_count > REQUEST_RECORDS_MAX:
            raise InvalidConfig("batch_count", self.batch_count, f"must be at most {REQUEST_RECORDS_MAX}")
        if self.acks not in (None, "none", "leader", "all"):
            raise InvalidConfig("acks", self.acks, "must be none, leader or all")
        if self.compression not in (None, *compression.NAMES):
            raise InvalidConfig("compression", self.compression, f"must be one of {', '.join(compression.NAMES)}")


class OutgoingMessage(NamedTuple):
    """A message that has more than a small value."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    priority: int

    @property
    def size(self) -> int:
        """About what its record takes."""
        size = HEADER_BYTES + len(self.value or b"") + len(self.key or b"")
        if self.headers:
            size += encoded_size(self.headers)
        return size


class MessageColumns(NamedTuple):
    """Messages as columns: an operation on all of them costs little for each."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None
    priorities: int | Sequence[int] = NORMAL

    @property
    def sizes(self) -> list[int]:
        """About what the record of each takes."""
        sizes = [HEADER_BYTES + len(value or b"") for value in self.values]
        if self.keys is not None:
            sizes = list(map(add, sizes, [len(key or b"") for key in self.keys]))
        if self.headers is not None:
            sizes = list(map(add, sizes, map(_headers_size, self.headers)))
        return sizes

    def take(self, indexes: Sequence[int]) -> "MessageColumns":
        """Those of the messages, in that order."""
        if len(indexes) == 1:
            return self.slice(indexes[0], indexes[0] + 1)
        pick = itemgetter(*indexes)
        return MessageColumns(
            pick(self.values),
            None if self.keys is None else pick(self.keys),
            None if self.headers is None else pick(self.headers),
            self.priorities if isinstance(self.priorities, int) else pick(self.priorities),
        )

    def slice(self, start: int, end: int) -> "MessageColumns":
        """Those of the messages that stand in [start, end)."""
        return MessageColumns(
            self.values[start:end],
            None if self.keys is None else self.keys[start:end],
            None if self.headers is None else self.headers[start:end],
            self.priorities if isinstance(self.priorities, int) else self.priorities[start:end],
        )

    def cut(self, size_max: int) -> "Iterator[tuple[MessageColumns, int]]":
        """The same in pieces that are not larger, but for single messages that are; and how large each is."""
        ends = list(accumulate(self.sizes))
        start = before = 0
        while start < len(ends):
            end = min(bisect_right(ends, before + size_max), start + REQUEST_RECORDS_MAX)
            end = max(end, start + 1)
            yield self.slice(start, end), ends[end - 1] - before
            start, before = end, ends[end - 1]


def _headers_size(headers: Headers | None) -> int:
    return encoded_size(headers) if headers else 0


def _joined(parts: Sequence[MessageColumns]) -> MessageColumns:
    """The messages of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    keys = [part.keys or [None] * len(part.values) for part in parts]
    headers = [part.headers or [None] * len(part.values) for part in parts]
    priorities = [
        [part.priorities] * len(part.values) if isinstance(part.priorities, int) else part.priorities for part in parts
    ]
    first = parts[0].priorities
    return MessageColumns(
        _chained([part.values for part in parts]),
        _chained(keys) if any(part.keys for part in parts) else None,
        _chained(headers) if any(part.headers for part in parts) else None,
        first if isinstance(first, int) and all(part.priorities == first for part in parts) else _chained(priorities),
    )


def _chained(parts: Sequence[Sequence[T]]) -> list[T]:
    return [one for part in parts for one in part]


class AnyHandle(msgspec.Struct, gc=False, eq=False):
    """A message on its way: `item` is what is sent, until the batch is settled; then it is its place in the batch."""

    batch: "MessageBatch"
    item: bytes | OutgoingMessage | int


class MessageBatch:
    """Messages for one partition that are sent together; later, where they are stored or why they are not.

    Senders append to `handles` without a lock. Sealing first sets `is_sealed` and then copies `handles` to `held`,
    which is what is sent. A sender reads `is_sealed` after its append. If it is unset, the copy comes later and has the
    handle. If it is set, the sender looks for its handle in the copy, and adds it to another batch if it is missing.
    """

    __slots__ = (
        "callbacks",
        "count_max",
        "error",
        "failed_count",
        "first_offset",
        "handles",
        "has_messages",
        "held",
        "is_done",
        "is_sealed",
        "is_seen",
        "is_taken",
        "message_count",
        "opened_ns",
        "queue",
        "size",
        "timestamp_ns",
    )

    def __init__(self, queue: "PartitionQueue", now_ns: int, count_max: int = 1) -> None:
        self.queue = queue
        self.handles: list[AnyHandle] = []
        self.held: list[AnyHandle] = []
        self.count_max = count_max  # when it is full, if only small values follow
        self.size = 0  # of messages that are more than a small value, until it is sealed; then of all
        self.message_count = 0  # of these
        self.has_messages = False  # whether there are others that are more than a value, but not larger
        self.is_sealed = False
        self.is_taken = False  # by the thread that sends it
        self.opened_ns = now_ns
        self.first_offset = -1
        self.timestamp_ns = 0
        self.error: GoQueueError | None = None
        self.failed_count = 0  # how many messages have the error
        self.is_done = False
        self.is_seen = False  # whether the application was told the error
        self.callbacks: deque[Callable[[], None]] = NO_CALLBACKS

    def add(self, handle: AnyHandle, message: OutgoingMessage) -> None:
        """A message with all it can have."""
        self.message_count += 1
        self.size += message.size
        self.handles.append(handle)

    def seal(self) -> None:
        """Accept no more messages. A Ctrl-C may end this between any two steps; it is then called again."""
        self.is_sealed = True
        if not self.held:
            self.held = self.handles.copy()
            self.size += (len(self.held) - self.message_count) * SMALL_RECORD_BYTES
        self.handles = []

    def holds(self, handle: AnyHandle) -> bool:
        """Whether the handle was in time."""
        held = self.held  # read before `item`: settling sets all items, and then empties it
        return type(handle.item) is int or any(one is handle for one in held)

    def take_out(self, index: int, error: GoQueueError) -> "MessageBatch":
        """Fail the message at that index, in a batch of its own; the others are sent without it."""
        handle = self.held.pop(index)
        alone = MessageBatch(self.queue, self.opened_ns)
        alone.held = [handle]
        alone.size = handle.item.size if isinstance(handle.item, OutgoingMessage) else SMALL_RECORD_BYTES
        self.size -= alone.size
        handle.batch = alone
        alone.settle(error)
        return alone

    def settle(self, error: GoQueueError | None = None) -> None:
        """The batch is stored, or has failed for good. After a failure one handle is kept, for the report."""
        self.error = error
        for index, handle in enumerate(self.held):
            handle.item = index
        if error:
            self.failed_count = len(self.held)
        self.is_done = True
        self.held = self.held[:1] if error else []


class BulkBatch(MessageBatch):
    """Messages that were added together. They share one handle, which serves the report if they are not stored."""

    __slots__ = ("columns",)

    def __init__(self, queue: "PartitionQueue", now_ns: int, columns: MessageColumns, size: int) -> None:
        super().__init__(queue, now_ns)
        self.columns = columns
        self.size = size
        self.is_sealed = True
        self.held = [AnyHandle(self, 0)] * len(columns.values)

    def settle(self, error: GoQueueError | None = None) -> None:
        """The messages are stored, or have failed for good."""
        self.error = error
        if error:
            self.failed_count = len(self.held)
        self.is_done = True
        self.held = self.held[:1] if error else []
        self.columns = MessageColumns(())


class OutgoingRequest:
    """Batches that are sent to one partition together, under consecutive sequence numbers."""

    __slots__ = ("batches", "first_sequence", "record_count", "refusal_count", "size", "was_sent")

    def __init__(self, batches: list[MessageBatch], first_sequence: int) -> None:
        self.batches = batches
        self.first_sequence = first_sequence
        self.was_sent = False
        self.refusal_count = 0  # how many messages were taken out of it
        self.record_count = sum(len(batch.held) for batch in batches)
        self.size = sum(batch.size for batch in batches)

    @property
    def opened_ns(self) -> int:
        return self.batches[0].opened_ns

    def take_out(self, index: int, error: GoQueueError) -> list[MessageBatch]:
        """Fail the message at that index and keep the others; the batches that are settled by that."""
        self.record_count -= 1
        self.refusal_count += 1
        for batch in self.batches:
            if index < len(batch.held):
                break
            index -= len(batch.held)
        settled = [batch.take_out(index, error)]
        if not batch.held:
            self.batches.remove(batch)
            batch.settle()
            settled.append(batch)
        self.size = sum(batch.size for batch in self.batches)
        return settled

    def encode(self, producer: tuple[int, int] | None, algorithm: str, transaction: int = 0) -> bytearray:
        """The records, with the id and epoch of their producer, and the number of its transaction, on the first one."""
        values, keys, headers, priorities = self._columns()
        flags: int | list[int] = 0
        if algorithm != "none":
            values, flags = compression.compress_all(values, algorithm)
        if transaction:
            flags = flags | TRANSACTIONAL if isinstance(flags, int) else [one | TRANSACTIONAL for one in flags]
        if producer:
            identity = BatchIdentity(*producer, self.first_sequence, self.record_count, transaction).encode()
            headers = [None] * len(values) if headers is None else list(headers)
            headers[0] = {PRODUCER: identity, **(headers[0] or {})}
        return kernel.encode(values, keys=keys, headers=headers, priorities=priorities, flags=flags)

    def _columns(self) -> MessageColumns:
        bulks = [batch.columns for batch in self.batches if isinstance(batch, BulkBatch)]
        if bulks:
            assert len(bulks) == len(self.batches)
            return _joined(bulks)
        items = [handle.item for batch in self.batches for handle in batch.held]
        if not any(batch.message_count or batch.has_messages for batch in self.batches):
            return MessageColumns(cast("list[bytes | None]", items))
        messages = [
            item if isinstance(item, OutgoingMessage) else OutgoingMessage(cast("bytes", item), None, None, NORMAL)
            for item in items
        ]
        return MessageColumns(
            [message.value for message in messages],
            [message.key for message in messages],
            [message.headers for message in messages],
            [message.priority for message in messages],
        )


class PartitionQueue:
    """What waits to be sent to one partition, and what is in flight to it."""

    __slots__ = (
        "_again",
        "_attempt",
        "_has_gap",
        "_is_draining",
        "_needs_epoch",
        "_refusal",
        "_retry_at_ns",
        "_sequence",
        "all_or_none",
        "epoch",
        "in_flight",
        "is_transactional",
        "open",
        "partition",
        "ready",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        epoch: int = 0,
        is_transactional: bool = False,
        all_or_none: bool = False,
    ) -> None:
        self.topic = topic
        self.all_or_none = all_or_none
        self.is_transactional = is_transactional  # the coordinator owns its epoch: a gap ends the transaction
        self.partition = partition
        self.open: MessageBatch | None = None
        self.ready: deque[MessageBatch] = deque()
        self.in_flight: deque[OutgoingRequest] = deque()
        self.epoch = epoch
        self._again: deque[OutgoingRequest] = deque()
        self._is_draining = False
        self._needs_epoch = False  # the broker misses a request that came before all of `_again`
        self._has_gap = False  # there are fewer messages in `_again` than sequence numbers
        self._attempt = 0
        self._retry_at_ns = 0
        self._refusal: GoQueueError | None = None  # why the broker does not store what it is sent, if it says so
        self._sequence = FIRST_SEQUENCE  # of the next new request

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent or answered."""
        return not (self.ready or self._again or self.in_flight)

    @property
    def has_more(self) -> bool:
        """Whether there is something that was not sent, or has to be sent again."""
        return bool(self.ready or self._again)

    def take(self, *, now_ns: int) -> OutgoingRequest | None:
        """What is to be sent now."""
        if self._is_draining:
            if self.in_flight or now_ns < self._retry_at_ns:
                return None
            self._is_draining = False
            if self._needs_epoch:
                self._begin_epoch()
            elif self._has_gap:
                self._close_gap()
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
        """How long until `take` may return a request though no answer comes; None if it never does."""
        if self._is_draining and not self.in_flight:
            return max(0, self._retry_at_ns - now_ns)
        return None

    def stored(self, request: OutgoingRequest, *, first_offset: int, timestamp_ns: int) -> list[MessageBatch]:
        """The broker has stored the request: the batches, each with its offset."""
        self.in_flight.remove(request)
        self._attempt = 0
        self._refusal = None
        offset = first_offset
        for batch in request.batches:
            batch.first_offset = offset
            batch.timestamp_ns = timestamp_ns
            if offset >= 0:
                offset += len(batch.held)
            batch.settle()
        return request.batches

    def failed(self, request: OutgoingRequest, error: GoQueueError, *, now_ns: int, wait_ns: int) -> list[MessageBatch]:
        """The request was refused or lost: the batches that are not sent again."""
        self.in_flight.remove(request)
        if self._is_worth_another_try(request, error):
            self._send_again(request, error, now_ns + wait_ns)
            return []
        if isinstance(error, SchemaRejected) and 0 <= error.index < request.record_count and not self.all_or_none:
            settled = request.take_out(error.index, error)
            if request.batches and request.refusal_count < REFUSALS_MAX:
                self._send_again(request, error, now_ns)
                self._has_gap = True
                return settled
            for batch in request.batches:
                batch.settle(error)
            self._is_draining = self._has_gap = True
            return [*settled, *request.batches]
        self._is_draining = True
        for batch in request.batches:
            batch.settle(error)
        return request.batches

    def expire(self, before_ns: int, timeout_ns: int) -> list[MessageBatch]:
        """Give up what was added before that time and is not in flight, for the reason that the broker gave last."""
        expired: list[MessageBatch] = []
        while self._again and self._again[0].opened_ns < before_ns and not self.in_flight:
            expired += self._again.popleft().batches
        while self.ready and self.ready[0].opened_ns < before_ns and not self._again and not self.in_flight:
            expired.append(self.ready.popleft())
        for batch in expired:
            batch.settle(
                self._refusal or RequestTimeout(f"publish to {self.topic}-{self.partition}", timeout_ns / SECOND)
            )
        if expired and self.is_empty:
            self._rest()
        return expired

    @property
    def attempt(self) -> int:
        """How often in a row requests have failed."""
        return self._attempt

    def unsettled(self) -> list[MessageBatch]:
        """The batches that are neither stored nor failed, except the open one."""
        sent = [batch for request in (*self.in_flight, *self._again) for batch in request.batches]
        return [*sent, *self.ready]

    def give_up(self, error: GoQueueError) -> list[MessageBatch]:
        """Fail everything except the open batch."""
        batches = self.unsettled()
        self.in_flight.clear()
        self._again.clear()
        self.ready.clear()
        for batch in batches:
            batch.settle(error)
        self._rest()
        return batches

    def begin_anew(self) -> None:
        """The producer has a new epoch: sequence numbers start again. Nothing is in flight."""
        self._sequence = FIRST_SEQUENCE
        self._is_draining = self._has_gap = False

    def _rest(self) -> None:
        """Nothing is left to send: the next request does not wait for an earlier failure."""
        self._attempt = 0
        self._retry_at_ns = 0
        self._refusal = None

    def _new_request(self) -> OutgoingRequest:
        batches = [self.ready.popleft()]
        size, count = batches[0].size, len(batches[0].held)
        while self.ready:
            size += self.ready[0].size
            count += len(self.ready[0].held)
            if size > REQUEST_BYTES or count > REQUEST_RECORDS_MAX:
                break
            batches.append(self.ready.popleft())
        request = OutgoingRequest(batches, self._sequence)
        self._sequence += request.record_count
        return request

    def _is_worth_another_try(self, request: OutgoingRequest, error: GoQueueError) -> bool:
        if not isinstance(error, OutOfOrderSequence):
            return error.retryable
        if any(other.first_sequence < request.first_sequence for other in (*self.in_flight, *self._again)):
            return True  # an earlier request is missing; it is sent again first
        self._needs_epoch = not self.is_transactional
        return self._needs_epoch and error.expected < request.first_sequence

    def _send_again(self, request: OutgoingRequest, error: GoQueueError, retry_at_ns: int) -> None:
        if not self._is_draining:
            self._attempt += 1
        self._is_draining = True
        self._retry_at_ns = max(self._retry_at_ns, retry_at_ns)
        if not isinstance(error, OutOfOrderSequence):  # which only says that an earlier one failed
            self._refusal = None if isinstance(error, AvailabilityError) else error
        position = sum(1 for other in self._again if other.first_sequence < request.first_sequence)
        self._again.insert(position, request)

    def _close_gap(self) -> None:
        """Renumber everything that is sent again, from the number that the broker expects: it has stored none of it."""
        self._has_gap = False
        if self._again:
            self._sequence = self._again[0].first_sequence
            for request in self._again:
                request.first_sequence = self._sequence
                self._sequence += request.record_count

    def _begin_epoch(self) -> None:
        """Renumber everything that is sent again, in a new epoch."""
        self._needs_epoch = self._has_gap = False
        self.epoch += 1
        self._sequence = FIRST_SEQUENCE
        for request in self._again:
            request.first_sequence = self._sequence
            self._sequence += request.record_count


class TopicQueues:
    """The partitions of one topic, and which of them is next for messages without a key."""

    __slots__ = ("_key_hash", "acks", "compression", "partitions", "topic", "turn", "value_bytes_max")

    def __init__(
        self,
        topic: str,
        partition_count: int,
        *,
        compression: str,
        acks: str,
        value_bytes_max: int,
        partitioner: str = MURMUR3,
        epoch: int = 0,
        is_transactional: bool = False,
        all_or_none: bool = False,
    ) -> None:
        self.topic = topic
        self.partitions = [
            PartitionQueue(topic, number, epoch=epoch, is_transactional=is_transactional, all_or_none=all_or_none)
            for number in range(partition_count)
        ]
        self._key_hash = key_hash(partitioner)
        self.turn = 0
        self.compression = compression
        self.acks = acks
        self.value_bytes_max = value_bytes_max

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self.partitions)

    @property
    def next_epoch(self) -> int:
        """The first epoch that no partition has used."""
        return 1 + max(queue.epoch for queue in self.partitions)

    def choose(self, key: bytes | None, partition: int | None) -> PartitionQueue | None:
        """The partition asked for, or that of the key; None if any will do."""
        if partition is not None:
            asked: object = partition
            if not isinstance(asked, int) or asked < 0:
                raise InvalidPartition(partition)
            if partition >= len(self.partitions):
                raise PartitionNotFound(self.topic, partition)
            return self.partitions[partition]
        return self.partitions[self._key_hash(key) % len(self.partitions)] if key is not None else None

    def spread(
        self, columns: MessageColumns, partitions: Sequence[int | None] | None
    ) -> Iterator[tuple[PartitionQueue | None, MessageColumns]]:
        """The messages by partition, in their order; None stands for any partition."""
        if columns.keys is None and partitions is None:
            yield None, columns
            return
        count = len(self.partitions)
        numbers: Sequence[int | None]
        if columns.keys is None:
            numbers = partitions or ()
        else:
            hashed = self._key_hash
            numbers = [None if key is None else hashed(key) % count for key in columns.keys]
            if partitions is not None:
                pairs = zip(partitions, numbers, strict=True)
                numbers = [by_key if asked is None else asked for asked, by_key in pairs]
        chosen: defaultdict[int | None, list[int]] = defaultdict(list)
        for index, number in enumerate(numbers):
            chosen[number].append(index)
        for number, indexes in chosen.items():
            queue = None if number is None else self.choose(None, number)
            yield queue, columns if len(chosen) == 1 else columns.take(indexes)

    def next_turn(self) -> PartitionQueue:
        """The partition for the next batch of messages without a key."""
        queue = self.partitions[self.turn]
        self.turn = (self.turn + 1) % len(self.partitions)
        return queue


NO_BATCH: Final = MessageBatch(PartitionQueue("", -1), 0)
"""Where a handle stands before it is added."""
