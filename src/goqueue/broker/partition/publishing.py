"""Publishing: encoded batches, or single messages that are encoded into batches here.

A batch of records is stored as a whole or not at all. Messages are checked one by one: a refused message does not
affect the others, and the accepted ones of one partition are one batch. A batch that its producer sent before is
recognized, and answered with its offset.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from goqueue import events
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.replica import Replicas
from goqueue.errors import (
    CorruptRecord,
    GoQueueError,
    InvalidBatch,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    PartitionNotFound,
)
from goqueue.record import compression, kernel
from goqueue.record.header import Flags
from goqueue.record.headers import CREATED, DELIVER_AT, EXPIRES_AT, PRODUCER, Headers
from goqueue.record.identity import BatchIdentity
from goqueue.record.message import StoredMessage
from goqueue.service.messages import ProducerEpoch, Stored, StoredBatch
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.topics.config import Acks, TopicConfig
from goqueue.wire.partitioning import key_hash

TRANSACTIONAL = int(Flags.TRANSACTIONAL)
COMPRESSED = int(Flags.COMPRESSED)
_ACKS = {str(acks): acks for acks in Acks}


def chosen_acks(acks: str | None, default: str) -> Acks:
    """The requested acks, by default those of the topic."""
    try:
        return _ACKS[default if acks is None else acks]
    except KeyError:
        raise InvalidRequest(f"invalid acks {acks!r}: must be none, leader or all", path="acks") from None


def publish_batch(
    leader: PartitionLeader,
    records: bytearray | memoryview,
    *,
    acks: Acks,
    identity: BatchIdentity | None,
    transaction: "OpenTransaction | None" = None,
    check: Callable[[bytearray | memoryview], None] | None = None,
    copied_from: events.CopyOrigin | None = None,
) -> Pending[StoredBatch]:
    """Store one batch, unless it is stored already; `check` raises if a new one may not be stored."""
    if identity:
        known = leader.producers.sequences.check(identity)
        if known:
            leader.observe(events.DuplicateFound(*leader.origin))
            stored = StoredBatch(known.first_offset, known.record_count, known.timestamp_ns, duplicate=True)
            end_offset = known.first_offset + known.record_count if known.first_offset >= 0 else 0
            return leader.when_stored(end_offset, stored)
    if acks is Acks.ALL:
        leader.check_replicas()
    if check:
        check(records)
    appended = leader.append(records, identity, copied_from=copied_from)
    if transaction is not None:
        transaction.stored(leader, appended.record_count)
    stored = StoredBatch(appended.first_offset, appended.record_count, appended.timestamp)
    if acks is Acks.NONE:
        return Pending.of(stored)
    wait = leader.when_stored if acks is Acks.ALL else leader.when_written
    return wait(appended.last_offset + 1, stored)


def verify_compression(records: bytearray | memoryview, *, value_bytes_max: int) -> None:
    """Raise `InvalidMessage` for the first record with the flag COMPRESSED that cannot be decompressed.

    A decompressed value may not exceed `value_bytes_max`, and a batch not what a reader accepts: a few bytes can
    decompress to gigabytes.
    """
    try:
        messages = kernel.decode(records, None, StoredMessage, verify=False)
    except CorruptRecord as error:
        raise InvalidBatch(error.reason, error.position) from None
    left = compression.DECOMPRESSED_BYTES_MAX
    decompressor = compression.Decompressor()
    for index, message in enumerate(messages):
        if message.flags & COMPRESSED:
            try:
                left -= len(decompressor.decompress(message.value, max_bytes=min(left, value_bytes_max)))
            except CorruptRecord as error:
                reason = f"message {index}: the value cannot be decompressed: {error.reason}"
                raise InvalidMessage(reason, index=index) from None


class OpenTransaction(Protocol):
    """A transaction that messages can be a part of."""

    @property
    def producer_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    def add_partition(self, topic: str, partition: int) -> None: ...
    def stored(self, leader: PartitionLeader, record_count: int) -> None: ...


class Batch(NamedTuple):
    """Messages that are stored together: their indexes in the request, and their records."""

    partition: int
    indexes: list[int]
    identity: BatchIdentity | None
    records: bytearray


class MessagePublisher:
    """Publishes messages to the partitions of one topic."""

    def __init__(self, replicas: Replicas, *, topic: str, partition_count: int, config: TopicConfig) -> None:
        self._replicas = replicas
        self._partition_count = partition_count
        self._topic = topic
        self._turn = 0  # which partition the next message without a key goes to
        self.config = config

    def publish(
        self,
        messages: Sequence[NewMessage],
        *,
        acks: Acks,
        producer: ProducerEpoch | None,
        sequence: int | None,
        transaction: OpenTransaction | None = None,
        refused: Mapping[int, GoQueueError] | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store messages; returns a result for each. Those of a transaction are readable when it is committed."""
        results: list[Stored | GoQueueError | None] = [None] * len(messages)
        for index, refusal in (refused or {}).items():
            results[index] = refusal
        chosen = self._by_partition(messages, results)
        if producer and sequence is not None:
            if len(chosen) > 1:
                raise InvalidRequest("a sequence for all messages needs one partition for all of them", path="sequence")
            messages = [message._replace(sequence=sequence + index) for index, message in enumerate(messages)]
        batches = [
            batch
            for number, indexes in chosen.items()
            for batch in self._batches(number, indexes, messages, results, producer, transaction)
        ]
        gathered: Pending[list[Stored | GoQueueError]] = Pending()
        waiting = len(batches)

        def settle() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting <= 0:
                gathered.resolve([result for result in results if result is not None])

        def publish_one(batch: Batch) -> None:
            def stored(pending: Pending[StoredBatch]) -> None:
                _fill(results, batch, pending)
                settle()

            self._publish(batch, acks, transaction).then(stored)

        for batch in batches:
            publish_one(batch)
        if not batches:
            settle()
        return gathered

    def _by_partition(
        self, messages: Sequence[NewMessage], results: list[Stored | GoQueueError | None]
    ) -> dict[int, list[int]]:
        """The indexes of the messages by partition; errors of the others are in `results`."""
        count, limit, turn = self._partition_count, self.config.max_message_bytes, self._turn
        hashed = key_hash(self.config.partitioner)
        chosen: dict[int, list[int]] = {}
        for index, message in enumerate(messages):
            if results[index] is not None:
                continue
            value, key, _, number = message[:4]
            if value is not None and len(value) > limit:
                results[index] = MessageTooLarge("value", len(value), limit, index=index)
                continue
            if number is None:
                if key is not None:
                    number = hashed(key) % count
                else:
                    number, turn = turn % count, turn + 1
            elif not 0 <= number < count:
                invalid = InvalidPartition(number) if number < 0 else PartitionNotFound(self._topic, number)
                results[index] = invalid
                continue
            indexes = chosen.get(number)
            if indexes is None:
                chosen[number] = [index]
            else:
                indexes.append(index)
        self._turn = turn % count
        return chosen

    def _batches(
        self,
        number: int,
        indexes: list[int],
        messages: Sequence[NewMessage],
        results: list[Stored | GoQueueError | None],
        producer: ProducerEpoch | None,
        transaction: OpenTransaction | None,
    ) -> Iterator[Batch]:
        """The batches of one partition: one without sequences, else one for each run of sequences without a gap.

        A message that cannot be encoded does not affect the others, but leaves a gap in the sequences.
        """
        for run in _runs([(index, messages[index].sequence if producer else None) for index in indexes]):
            try:
                yield self._batch(number, run, messages, producer, transaction)
            except MessageError as error:
                good = [
                    index for index in run if self._is_good(number, index, messages, results, producer, transaction)
                ]
                if len(good) < len(run):
                    yield from self._batches(number, good, messages, results, producer, transaction)
                else:  # each alone can be encoded, but not all together
                    for index in run:
                        results[index] = _at_index(error, index)

    def _is_good(
        self,
        number: int,
        index: int,
        messages: Sequence[NewMessage],
        results: list[Stored | GoQueueError | None],
        producer: ProducerEpoch | None,
        transaction: OpenTransaction | None,
    ) -> bool:
        """Whether the message can be encoded; if not, its result says why."""
        try:
            self._batch(number, [index], messages, producer, transaction)
        except MessageError as error:
            results[index] = _at_index(error, index)
            return False
        return True

    def _batch(
        self,
        number: int,
        indexes: list[int],
        messages: Sequence[NewMessage],
        producer: ProducerEpoch | None,
        transaction: OpenTransaction | None,
    ) -> Batch:
        """The records of these messages. Raises `MessageError` for the first that cannot be encoded."""
        batch = [messages[index] for index in indexes]
        first = batch[0].sequence
        identity = None if producer is None or first is None else BatchIdentity(*producer, first, len(batch))
        if transaction is not None:
            transaction.add_partition(self._topic, number)
            identity = self._in_transaction(transaction, number, first if producer else None, len(batch))
        headers: list[Headers | None] | None = None
        if any(
            message[2] or message[5] is not None or message[6] is not None or message[8] is not None
            for message in batch
        ):
            headers = [_headers(message) for message in batch]
        if identity:
            headers = headers or [None] * len(batch)
            headers[0] = {PRODUCER: identity.encode(), **_without(PRODUCER, headers[0])}
        values: list[bytes | None] = [message[0] for message in batch]
        flags: int | list[int] = 0
        if self.config.compression != "none":
            values, flags = compression.compress_all(values, self.config.compression)
        if transaction is not None:
            flags = flags | TRANSACTIONAL if isinstance(flags, int) else [one | TRANSACTIONAL for one in flags]
        records = kernel.encode(
            values,
            keys=[message[1] for message in batch],
            headers=headers,
            priorities=[message[4] for message in batch],
            flags=flags,
        )
        return Batch(number, indexes, identity, records)

    def _in_transaction(
        self, transaction: OpenTransaction, number: int, sequence: int | None, count: int
    ) -> BatchIdentity:
        """The identity of the batch; without sequences of its producer, it continues after the last batch."""
        producer_id, epoch = transaction.producer_id, transaction.epoch
        if sequence is None:
            sequence = self._replicas[number].producers.sequences.next_of(producer_id, epoch)
        return BatchIdentity(producer_id, epoch, sequence, count, transaction.number)

    def _publish(self, batch: Batch, acks: Acks, transaction: OpenTransaction | None) -> Pending[StoredBatch]:
        try:
            leader = self._replicas[batch.partition].leading
            return publish_batch(leader, batch.records, acks=acks, identity=batch.identity, transaction=transaction)
        except GoQueueError as error:
            return Pending.failed(error)


def _headers(message: NewMessage) -> Headers | None:
    times = {DELIVER_AT: message.deliver_at_ns, EXPIRES_AT: message.expires_at_ns, CREATED: message.created_at_ns}
    given = {name: str(time_ns) for name, time_ns in times.items() if time_ns is not None}
    return {**(message.headers or {}), **given} if given else message.headers


def _without(name: str, headers: Headers | None) -> Headers:
    return {one: value for one, value in headers.items() if one != name} if headers else {}


def _runs(numbered: list[tuple[int, int | None]]) -> Iterator[list[int]]:
    """Runs of indexes with consecutive sequences; indexes without a sequence are one run, too."""
    for _, run in groupby(enumerate(numbered), key=lambda item: None if item[1][1] is None else item[1][1] - item[0]):
        yield [index for _, (index, _) in run]


def _fill(results: list[Stored | GoQueueError | None], batch: Batch, pending: Pending[StoredBatch]) -> None:
    """Give each message of the batch its result."""
    try:
        first, _, timestamp_ns, duplicate = pending.result()
    except GoQueueError as error:
        for index in batch.indexes:
            results[index] = error
        return
    for place, index in enumerate(batch.indexes):
        offset = first + place if first >= 0 else -1
        results[index] = Stored(batch.partition, offset, timestamp_ns, duplicate)


def _at_index(error: MessageError, index: int) -> GoQueueError:
    """The same error, with the index of the message in the request."""
    if isinstance(error, MessageTooLarge):
        return MessageTooLarge(error.field, error.size, error.limit, index=index)
    if isinstance(error, InvalidMessage):
        return InvalidMessage(error.reason.replace(f"message {error.index}: ", "", 1), index=index)
    return error
