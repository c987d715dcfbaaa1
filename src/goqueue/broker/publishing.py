"""Publishing: encoded batches as they come, or single messages that are made into batches here.

A batch of records is stored whole or not at all. Messages are checked one by one, so one that is refused leaves the
others; what remains for one partition is one batch. A batch that its producer sent before is recognised and
answered with the offset it has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from goqueue.broker.live_partition import LivePartition
from goqueue.broker.pending import Pending
from goqueue.broker.service import NewMessage, Producer, Stored, StoredBatch
from goqueue.errors import (
    GoQueueError,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    PartitionNotFound,
)
from goqueue.record import compression, kernel
from goqueue.record.header import Priority
from goqueue.record.headers import DELIVER_AT, EXPIRES_AT, PRODUCER
from goqueue.record.identity import BatchIdentity, identity_of
from goqueue.topics.config import Acks
from goqueue.wire.partitioning import partition_of_key


def chosen_acks(acks: str | None, default: str) -> Acks:
    """The acks asked for, or the topic's."""
    try:
        return Acks(default if acks is None else acks)
    except ValueError:
        raise InvalidRequest(f"invalid acks {acks!r}: must be none, leader or all", path="acks") from None


def publish_batch(
    live: LivePartition, records: bytearray | memoryview, *, acks: Acks, identity: BatchIdentity | None
) -> Pending[StoredBatch]:
    """Store one batch, unless it is there already."""
    if identity:
        known = live.sequences.check(identity)
        if known:
            stored = StoredBatch(known.first_offset, known.record_count, known.timestamp_ns, duplicate=True)
            end_offset = known.first_offset + known.record_count if known.first_offset >= 0 else 0
            return live.when_stored(end_offset, stored)
    appended = live.append(records)
    if identity:
        live.sequences.note(identity, first_offset=appended.first_offset, timestamp_ns=appended.timestamp)
        live.producers_changed()
    stored = StoredBatch(appended.first_offset, appended.record_count, appended.timestamp)
    return Pending.of(stored) if acks is Acks.NONE else live.when_stored(appended.last_offset + 1, stored)


def publish_records(live: LivePartition, records: bytearray | memoryview, *, acks: Acks) -> Pending[StoredBatch]:
    """Store a batch that a producer encoded."""
    return publish_batch(live, records, acks=acks, identity=identity_of(records))


class MessagePublisher:
    """Publishes messages to the partitions of one topic."""

    def __init__(self, lives: Sequence[LivePartition], *, topic: str, compression: str, value_bytes_max: int) -> None:
        self._lives = lives
        self._topic = topic
        self._compression = compression
        self._value_bytes_max = value_bytes_max

    def publish(
        self,
        messages: Sequence[NewMessage],
        *,
        acks: Acks,
        turn: int,
        producer: Producer | None,
        sequence: int | None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store them; `turn` is the partition of the first message that has none of its own."""
        results: list[Stored | GoQueueError | None] = [None] * len(messages)
        batches = self._batches(messages, results, turn)
        if producer:
            numbered = self._numbered(messages, batches, producer, sequence)
        else:
            numbered = [(number, indexes, None) for number, indexes in batches.items()]
        gathered: Pending[list[Stored | GoQueueError]] = Pending()
        waiting = len(numbered)

        def settle() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting <= 0:
                gathered.resolve([result for result in results if result is not None])

        for number, indexes, identity in numbered:
            self._publish_some(number, indexes, identity, messages, results, acks, settle)
        if not numbered:
            settle()
        return gathered

    def _batches(
        self, messages: Sequence[NewMessage], results: list[Stored | GoQueueError | None], turn: int
    ) -> dict[int, list[int]]:
        """By partition, the indexes of the messages that go there; what is wrong with the others is in `results`."""
        count, limit = len(self._lives), self._value_bytes_max
        batches: dict[int, list[int]] = {}
        for index, message in enumerate(messages):
            value, key, _, number = message[:4]
            if value is not None and len(value) > limit:
                results[index] = MessageTooLarge("value", len(value), limit, index=index)
                continue
            if number is None:
                if key:
                    number = partition_of_key(key, count)
                else:
                    number, turn = turn % count, turn + 1
            elif not 0 <= number < count:
                invalid = InvalidPartition(number) if number < 0 else PartitionNotFound(self._topic, number)
                results[index] = invalid
                continue
            batch = batches.get(number)
            if batch is None:
                batches[number] = [index]
            else:
                batch.append(index)
        return batches

    def _numbered(
        self,
        messages: Sequence[NewMessage],
        batches: Mapping[int, list[int]],
        producer: Producer,
        sequence: int | None,
    ) -> list[tuple[int, list[int], BatchIdentity | None]]:
        """The batches as their producer numbers them: a run of sequences without a gap is one batch."""
        if sequence is not None:
            if len(batches) > 1:
                raise InvalidRequest("a sequence for all messages needs one partition for all of them", path="sequence")
            return [
                (number, indexes, BatchIdentity(*producer, sequence, len(indexes)))
                for number, indexes in batches.items()
            ]
        numbered: list[tuple[int, list[int], BatchIdentity | None]] = []
        for number, indexes in batches.items():
            for run in _runs([(index, messages[index].sequence) for index in indexes]):
                first = messages[run[0]].sequence
                identity = None if first is None else BatchIdentity(*producer, first, len(run))
                numbered.append((number, run, identity))
        return numbered

    def _publish_some(
        self,
        number: int,
        indexes: list[int],
        identity: BatchIdentity | None,
        messages: Sequence[NewMessage],
        results: list[Stored | GoQueueError | None],
        acks: Acks,
        settle: Callable[[], None],
    ) -> None:
        records, indexes = self._encode(indexes, identity, messages, results)
        if not indexes:
            settle()
            return

        def stored(pending: Pending[StoredBatch]) -> None:
            try:
                batch = pending.result()
            except GoQueueError as error:
                _fill(results, indexes, [error] * len(indexes))
            else:
                first, _, timestamp_ns, duplicate = batch
                offsets = range(first, first + len(indexes)) if first >= 0 else [-1] * len(indexes)
                _fill(results, indexes, [Stored(number, offset, timestamp_ns, duplicate) for offset in offsets])
            settle()

        try:
            pending = publish_batch(self._lives[number], records, acks=acks, identity=identity)
        except GoQueueError as error:
            pending = Pending.failed(error)
        pending.then(stored)

    def _encode(
        self,
        indexes: list[int],
        identity: BatchIdentity | None,
        messages: Sequence[NewMessage],
        results: list[Stored | GoQueueError | None],
    ) -> tuple[bytearray, list[int]]:
        """The records of the messages that can be encoded, and which these are."""
        while indexes:
            batch = [messages[index] for index in indexes]
            headers: list[Mapping[str, str | bytes] | None] | None = None
            if any(message[2] or message[5] is not None or message[6] is not None for message in batch):
                headers = [_headers(message) for message in batch]
            if identity:
                headers = headers or [None] * len(batch)
                headers[0] = {PRODUCER: identity._replace(record_count=len(batch)).encode(), **(headers[0] or {})}
            priorities = [message[4] for message in batch]
            values: list[bytes | None] = [message[0] for message in batch]
            flags: int | list[int] = 0
            if self._compression != "none":
                values, flags = compression.compress_all(values, self._compression)
            try:
                return (
                    kernel.encode(
                        values,
                        keys=[message[1] for message in batch],
                        headers=headers,
                        priorities=priorities,
                        flags=flags,
                    ),
                    indexes,
                )
            except MessageError as error:
                at = getattr(error, "index", 0)
                results[indexes[at]] = _at_index(error, indexes[at])
                indexes = indexes[:at] + indexes[at + 1 :]
        return bytearray(), []


def check_priority(priority: int) -> None:
    """Refuse what is no lane."""
    if not 0 <= priority <= Priority.BACKGROUND:
        raise InvalidMessage(f"invalid priority {priority}: must be 0 to 4")


def _headers(message: NewMessage) -> Mapping[str, str | bytes] | None:
    if message.deliver_at_ns is None and message.expires_at_ns is None:
        return message.headers
    own: dict[str, str | bytes] = {}
    if message.deliver_at_ns is not None:
        own[DELIVER_AT] = str(message.deliver_at_ns)
    if message.expires_at_ns is not None:
        own[EXPIRES_AT] = str(message.expires_at_ns)
    return {**own, **(message.headers or {})}


def _runs(numbered: list[tuple[int, int | None]]) -> Iterator[list[int]]:
    """Indexes whose sequences follow one another; those without one are one run as well."""
    for _, run in groupby(enumerate(numbered), key=lambda item: None if item[1][1] is None else item[1][1] - item[0]):
        yield [index for _, (index, _) in run]


def _fill(
    results: list[Stored | GoQueueError | None], indexes: list[int], found: Sequence[Stored | GoQueueError]
) -> None:
    for index, result in zip(indexes, found, strict=True):
        results[index] = result


def _at_index(error: MessageError, index: int) -> GoQueueError:
    """The same error, about the message as the caller counts."""
    if isinstance(error, MessageTooLarge):
        return MessageTooLarge(error.field, error.size, error.limit, index=index)
    if isinstance(error, InvalidMessage):
        return InvalidMessage(error.reason.replace(f"message {error.index}: ", "", 1), index=index)
    return error
