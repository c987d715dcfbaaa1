"""The publish engine: what a producer sends, when it sends it, and what the answers mean. No socket, thread or clock.

    driver                              engine
    ------                              ------
    learned(topic, metadata)            the partitions of the topic, and what they accept
    add(topic, handle)                  into the open batch of a partition; a full batch is sealed
    take_sealed()                       the partitions that have batches to send
    next_request(queue, now)            what to send now, under its sequence numbers
    stored(...) or failed(...)          the batches that are settled by the answer; the rest is sent again
    queue.wait_ns(now)                  when to ask for the next request, though no answer comes
    expire(queue, now)                  the batches whose delivery timeout is over

A driver carries requests to the broker and answers back, tells the time, and announces the batches that each call
returns as settled. There are two. `goqueue.client.loop_publisher` pumps the engine from an event loop, for any number
of senders; `goqueue.client.blocking_publisher` pumps it in the thread that publishes one message and waits for it.
Producers, transactions and staging differ only in their `ProducerConfig` and in how they end.

The engine has two sides. Topics, open batches and `sealed` at its right end belong to the senders; a driver that has
several of them serializes these calls by a lock. `sealed` at its left end, and everything after it, belongs to the
thread that sends. `deque` is what makes that safe without a lock between the two: the sending thread never waits for
a sender that was preempted while it held the lock.

Ctrl-C may raise in a sender between any two calls. A batch therefore stays the open one of its partition until it is
in `sealed`, and a sender that finds a sealed batch still open completes the step. A batch may get into `sealed` twice
by that; `is_taken` makes sure that it is sent once.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from goqueue.client.accumulator import (
    BULK_BYTES,
    SMALL_RECORD_BYTES,
    SMALL_VALUE_BYTES,
    AnyHandle,
    BulkBatch,
    MessageBatch,
    MessageColumns,
    OutgoingMessage,
    OutgoingRequest,
    PartitionQueue,
    ProducerConfig,
    TopicQueues,
)
from goqueue.client.retries import ClientRetryPolicy
from goqueue.errors import (
    Conflict,
    GoQueueError,
    MessageTooLarge,
    PartitionNotFound,
    TopicNotFound,
)
from goqueue.record.header import Priority
from goqueue.runtime.entropy import Entropy
from goqueue.wire import verbs

FAILURES_KEPT: Final = 100
TOPIC_GONE: Final = (TopicNotFound, PartitionNotFound)
"""Errors after which the topic is dropped: it was deleted, or deleted and created anew with fewer partitions."""


class BulkPiece(NamedTuple):
    """Messages of one bulk that become one batch; `queue` is None where any partition will do."""

    queue: PartitionQueue | None
    columns: MessageColumns
    size: int


class PublishEngine:
    """The state of one producer: its batches, sequence numbers, retries and failures."""

    def __init__(self, config: ProducerConfig, entropy: Entropy) -> None:
        self.config = config
        self.lingers = config.linger_ns > 0  # else each message is a batch of its own
        self._batch_count = config.batch_count if self.lingers else 1
        self._small_count = min(self._batch_count, -(-config.batch_bytes // SMALL_RECORD_BYTES))
        self.unusable = ""  # why no message can be added
        self.is_closed = False
        self.turns: dict[str, PartitionQueue] = {}  # by topic, where messages without a key go now
        self.open: dict[str, MessageBatch] = {}  # by topic, the batch that small values go into now, if one is open
        self.sealed: deque[MessageBatch] = deque()
        self.sent_count = 0  # records of the open transaction that were sent, each once
        self.last_error: GoQueueError | None = None  # why nothing is stored at the moment
        self._entropy = entropy
        self._retry_policy = ClientRetryPolicy(entropy)
        self._topics: dict[str, TopicQueues] = {}
        self._epoch = 0  # with which the queues of a new topic start
        self._identity: tuple[int, int] | None = None
        self._is_transactional = False
        self._transaction = 0  # the number of the open one
        self._sealed_bytes = 0  # ever; written by senders
        self._settled_bytes = 0  # ever; written by the sending thread
        self._failed: list[AnyHandle] = []
        self._more_failed: Counter[str] = Counter()  # by topic, failed messages that have no room in `_failed`

    # --- topics --------------------------------------------------------------------------------

    @property
    def topics(self) -> Iterable[str]:
        """The topics that messages can be added to, the one that was learned first at the front."""
        return self._topics

    def is_ready_for(self, topic: str, item: bytes | OutgoingMessage | int) -> bool:
        """Whether the topic is known, and known to accept a message of that size."""
        queues = self._topics.get(topic)
        if queues is None:
            return False
        value = item.value if isinstance(item, OutgoingMessage) else item
        return not isinstance(value, bytes) or len(value) <= queues.value_bytes_max

    @property
    def needs_identity(self) -> bool:
        """Whether the broker has to be asked for a producer id before the first message."""
        return self.config.idempotent and self._identity is None

    def identified(self, identity: verbs.ProducerIdentity) -> None:
        """The broker has given the producer an id. The first answer counts, if the id was asked for twice."""
        if self._identity is None:
            self._identity = (identity.producer_id, identity.epoch)

    def learned(self, topic: str, metadata: verbs.TopicMetadata) -> None:
        """The broker has described the topic, for the first time or again."""
        compression = self.config.compression or metadata.compression
        acks = self.config.acks or metadata.acks
        known = self._topics.get(topic)
        if known is not None:
            known.compression, known.acks, known.value_bytes_max = compression, acks, metadata.max_message_bytes
            return
        queues = TopicQueues(
            topic,
            len(metadata.leaders),
            compression=compression,
            acks=acks,
            value_bytes_max=metadata.max_message_bytes,
            partitioner=metadata.partitioner,
            epoch=self._epoch,
            is_transactional=self._is_transactional,
            all_or_none=self.config.all_or_none,
        )
        # Producers that each send a few messages would fill partition 0, if all of them began there.
        queues.turn = self._entropy.bits(32) % len(queues.partitions)
        self.turns[topic] = queues.next_turn()
        self._topics = {**self._topics, topic: queues}  # replaced, not changed: another thread may be iterating

    def drop_topic(self, topic: str) -> TopicQueues | None:
        """The topic was deleted or replaced: seal its batches and forget it. None if it is not known.

        The batches are the caller's to give up. The next message learns the topic anew, and starts it with an epoch
        that the broker has not seen: sequence numbers of the old topic mean nothing to the new one.
        """
        queues = self._topics.get(topic)
        if queues is None:
            return None
        for queue in queues:
            self.seal(queue)
        self._topics = {name: known for name, known in self._topics.items() if name != topic}
        if not self._is_transactional:
            self._epoch = max(self._epoch, queues.next_epoch)
        self.turns.pop(topic, None)
        self.open.pop(topic, None)
        return queues

    def is_current(self, queue: PartitionQueue) -> bool:
        """Whether the queue belongs to a topic that was not dropped since."""
        queues = self._topics.get(queue.topic)
        return queues is not None and queue in queues.partitions

    @property
    def queues(self) -> Iterator[PartitionQueue]:
        """The queues of all partitions of all topics."""
        return (queue for queues in self._topics.values() for queue in queues)

    # --- senders -------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise `Conflict` if no message can be added."""
        if self.unusable:
            raise Conflict(self.unusable)

    def add(self, topic: str, handle: AnyHandle, partition: int | None, *, now_ns: int | None) -> bool:
        """Add a message that is more than a small value, or for which no batch is open.

        False, and nothing was added, if a batch has to be opened and the time was not given: so the clock is read once
        per batch, and not for each message.
        """
        item = handle.item
        message = (
            item
            if isinstance(item, OutgoingMessage)
            else OutgoingMessage(cast("bytes", item), None, None, Priority.NORMAL)
        )
        queues = self._topics.get(topic)
        if queues is None:
            raise TopicNotFound(topic)
        value = message.value
        if value is not None and len(value) > queues.value_bytes_max:
            raise MessageTooLarge("value", len(value), queues.value_bytes_max)
        queue = queues.choose(message.key, partition) or self.turns[topic]
        batch = queue.open
        if batch is None or batch.is_sealed:
            if now_ns is None:
                return False
            self.seal(queue)  # if a Ctrl-C came before the sealed batch was out of the way
            batch = queue.open = MessageBatch(queue, now_ns, self._small_count)
        handle.batch = batch
        if message is item or len(value or b"") > SMALL_VALUE_BYTES:
            handle.item = message
            batch.add(handle, message)
            # It is full with so many messages, or with as many small values as there is room for.
            room = self.config.batch_bytes - batch.size
            count_max = batch.message_count + -(-room // SMALL_RECORD_BYTES)
            batch.count_max = count_max if count_max < self._batch_count else self._batch_count
        else:
            batch.handles.append(handle)
        if len(batch.handles) >= batch.count_max:
            self.seal(queue)
        elif self.turns.get(topic) is queue:
            self.open[topic] = batch
        return True

    def cut(self, topic: str, columns: MessageColumns, partitions: Sequence[int | None] | None) -> list[BulkPiece]:
        """Messages that come together, in pieces that each become a batch; for `add_bulk`."""
        queues = self._topics.get(topic)
        if queues is None:
            raise TopicNotFound(topic)
        largest = max(columns.values, key=_size, default=None)
        if _size(largest) > queues.value_bytes_max:
            index = columns.values.index(largest)
            raise MessageTooLarge("value", _size(largest), queues.value_bytes_max, index=index)
        return [
            BulkPiece(queue, piece, size)
            for queue, part in queues.spread(columns, partitions)
            for piece, size in part.cut(BULK_BYTES)
        ]

    def add_bulk(self, topic: str, pieces: Iterable[BulkPiece], *, now_ns: int) -> None:
        """Add what was cut. Its messages have no handles."""
        for chosen, columns, size in pieces:
            self._hand_over(BulkBatch(chosen or self.turns[topic], now_ns, columns, size))
            if chosen is None:
                self.turns[topic] = self._topics[topic].next_turn()

    def seal(self, queue: PartitionQueue) -> None:
        """The open batch is to be sent."""
        batch = queue.open
        if batch is None:
            return
        if self.turns.get(queue.topic) is queue:
            self.turns[queue.topic] = self._topics[queue.topic].next_turn()
            self.open.pop(queue.topic, None)
        batch.seal()
        if batch.held:  # a Ctrl-C may have come before the first message was added
            self._hand_over(batch)
        queue.open = None

    def seal_all(self) -> None:
        """Everything that was added is to be sent."""
        for queue in self.queues:
            self.seal(queue)

    def seal_lingered(self, now_ns: int) -> int | None:
        """Seal the batches that have lingered; when the next one has, if another one is open."""
        linger_ns = self.config.linger_ns
        next_ns: int | None = None
        for queue in self.queues:
            if queue.open is None:
                continue
            due_ns = queue.open.opened_ns + linger_ns
            if due_ns <= now_ns:
                self.seal(queue)
            elif next_ns is None or due_ns < next_ns:
                next_ns = due_ns
        return next_ns

    @property
    def is_full(self) -> bool:
        """Whether a sender has to wait before it adds more."""
        return self._sealed_bytes - self._settled_bytes > self.config.buffer_bytes

    def _hand_over(self, batch: MessageBatch) -> None:
        self.sealed.append(batch)
        self._sealed_bytes += batch.size

    # --- the sending thread --------------------------------------------------------------------

    def take_sealed(self) -> Iterable[PartitionQueue]:
        """Line up what was sealed; the queues that have something new to send."""
        sealed = self.sealed
        queues: dict[PartitionQueue, None] = {}
        while sealed:
            batch = sealed.popleft()
            if not batch.is_taken:
                batch.is_taken = True
                batch.queue.ready.append(batch)
                queues[batch.queue] = None
        return queues

    def next_request(self, queue: PartitionQueue, now_ns: int) -> OutgoingRequest | None:
        """What to send to the partition now, if anything."""
        request = queue.take(now_ns=now_ns)
        if request is not None and not request.was_sent:
            request.was_sent = True
            self.sent_count += request.record_count
        return request

    def encode(self, queue: PartitionQueue, request: OutgoingRequest) -> tuple[verbs.PublishRequest, bytearray]:
        """The request as it goes over the wire."""
        queues = self._topics[queue.topic]
        identity = (self._identity[0], self._identity[1] + queue.epoch) if self._identity else None
        records = request.encode(identity, queues.compression, self._transaction)
        return verbs.PublishRequest(queue.topic, queue.partition, queues.acks), records

    def stored(
        self, queue: PartitionQueue, request: OutgoingRequest, answer: verbs.PublishAnswer
    ) -> Sequence[MessageBatch]:
        """The broker has stored the request: the batches that are settled."""
        return self._settled(queue.stored(request, first_offset=answer.first_offset, timestamp_ns=answer.timestamp_ns))

    def failed(
        self, queue: PartitionQueue, request: OutgoingRequest, error: GoQueueError, now_ns: int
    ) -> Sequence[MessageBatch]:
        """The request was refused or lost: the batches that are not sent again."""
        self.last_error = error
        wait_ns = self._retry_policy.wait_ns(queue.attempt + 1)
        return self._settled(queue.failed(request, error, now_ns=now_ns, wait_ns=wait_ns))

    def expire(self, queue: PartitionQueue, now_ns: int) -> Sequence[MessageBatch]:
        """Give up the batches whose delivery timeout is over, unless they are in flight."""
        timeout_ns = self.config.delivery_timeout_ns
        return self._settled(queue.expire(now_ns - timeout_ns, timeout_ns))

    def give_up(self, queues: Iterable[PartitionQueue], error: GoQueueError) -> Sequence[MessageBatch]:
        """Fail everything that was sealed for these partitions."""
        return self._settled([batch for queue in queues for batch in queue.give_up(error)])

    def unsettled(self) -> list[MessageBatch]:
        """The batches that are sealed, and neither stored nor given up."""
        return [batch for queue in self.queues for batch in queue.unsettled()]

    def _settled(self, batches: Sequence[MessageBatch]) -> Sequence[MessageBatch]:
        for batch in batches:
            self._settled_bytes += batch.size
            if batch.error is not None:
                self._note_failure(batch)
        return batches

    # --- failures ------------------------------------------------------------------------------

    @property
    def failure(self) -> GoQueueError | None:
        """Why the first message that failed was not stored."""
        return next((handle.batch.error for handle in self._failed), None)

    def forget_failures(self) -> None:
        """The application was told of them."""
        self._failed = []
        self._more_failed.clear()

    def unreported(self) -> AnyHandle | None:
        """A message that was not stored, and whose handle the application has not asked."""
        return next((handle for handle in self._failed if not handle.batch.is_seen), None)

    def unstored(self) -> tuple[Counter[str], GoQueueError | None]:
        """By topic, how many messages are not stored and were not reported; and why the first one is not."""
        failed = [handle.batch for handle in self._failed if not handle.batch.is_seen]
        counts = Counter(self._more_failed)
        for batch in failed:
            counts[batch.queue.topic] += batch.failed_count
        for queue in self.queues:
            for batch in queue.unsettled():
                counts[queue.topic] += len(batch.held)
            if queue.open is not None:
                counts[queue.topic] += len(queue.open.handles)
        for batch in list(self.sealed):
            counts[batch.queue.topic] += len(batch.held)
        error = next((batch.error for batch in failed), None) or self.last_error
        return counts, error if counts else None

    def _note_failure(self, batch: MessageBatch) -> None:
        if len(self._failed) >= FAILURES_KEPT:
            self._failed = [handle for handle in self._failed if not handle.batch.is_seen]
        if len(self._failed) < FAILURES_KEPT:
            self._failed += batch.held
        else:
            self._more_failed[batch.queue.topic] += batch.failed_count
        batch.held = []

    # --- transactions --------------------------------------------------------------------------

    def identify(self, producer_id: int, epoch: int) -> None:
        """Become a transactional producer under that epoch; sequence numbers start again."""
        self._is_transactional = True
        self._identity = (producer_id, epoch)
        for queue in self.queues:
            queue.begin_anew()

    def begin_transaction(self, number: int) -> None:
        """What is sent from now on belongs to the transaction."""
        self._transaction = number
        self.sent_count = 0
        self._failed = []
        if not self.is_closed:
            self.unusable = ""

    def seal_transaction(self) -> None:
        """Accept no more messages; those that were added are still sent."""
        if not self.is_closed:
            self.unusable = "the transaction is over"
        self.seal_all()

    def end_transaction(self) -> tuple[Sequence[MessageBatch], GoQueueError | None]:
        """Send no more of it: the batches that were not stored yet, and why a message before them was not."""
        error = self.failure
        given_up = self.give_up(self.queues, Conflict("the transaction was aborted before the message was stored"))
        self._transaction = 0
        self._failed = []
        return given_up, error

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more messages and send no more."""
        self.is_closed = True
        self.unusable = "the producer is closed"
        self.open.clear()


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)
