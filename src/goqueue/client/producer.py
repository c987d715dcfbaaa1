"""Producers: `send` hands a message over and returns; a handle says later where it went.

Any number of threads add messages; one event loop sends them. A small value costs its `send` a handle and an append to
a list, without a lock (`Batch` says why that is safe); all else is done once per batch.

What was sent is flushed however the block of a producer is left, also by an exception, Ctrl-C and `sys.exit`; and at
the end of the process or the loop (`goqueue.client.exits`).
"""

import asyncio
import warnings
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Self, cast

from goqueue.client import exits, forks, messages, telemetry
from goqueue.client.accumulator import (
    BULK_BYTES,
    SMALL_RECORD_BYTES,
    SMALL_VALUE_BYTES,
    AnyHandle,
    Batch,
    Bulk,
    Columns,
    Message,
    PartitionQueue,
    ProducerConfig,
    Request,
    TopicQueues,
)
from goqueue.client.connections import Connections, any_turn
from goqueue.client.exits import Unstored
from goqueue.client.handles import AsyncHandle, Handle, call_all, wait_for, when_done
from goqueue.client.messages import Duration, Time
from goqueue.client.retries import retry_wait_ns
from goqueue.client.session import Session, decode
from goqueue.clock import SECOND, Clock
from goqueue.errors import (
    Conflict,
    GoQueueError,
    MessageTooLarge,
    NotLeader,
    PartitionNotFound,
    TopicNotFound,
)
from goqueue.record.header import Priority
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.verbs import Verb

FAILURES_KEPT = 100
LOCKED_WAIT_S = 0.001

_finishing: set[asyncio.Task[None]] = set()
"""Producers that are flushed because the application dropped them."""


class ProducerCore:
    """What both producers are made of.

    Two sides meet here. Open batches belong to whoever sends messages, under the lock; everything from the sealed batch
    on belongs to the loop. Between them stand a few things that are safe without a lock: a deque of sealed
    batches one way, settled batches and their callbacks the other. So the loop never waits for a thread that lost its
    turn while it held the lock.

    Ctrl-C may raise in the thread of the application between any two calls, also while it holds the lock. What is done
    there leaves nothing behind that cannot be completed: a batch stays the open one until the loop has it, and the next
    sender that finds a sealed one open completes it.
    """

    def __init__(
        self,
        connections: Connections,
        config: ProducerConfig,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        telemetry: bool = True,
    ) -> None:
        self.config = config
        self._has_telemetry = telemetry
        self.batch_count = 1 if config.linger_ns == 0 else config.batch_count
        self.lock = Lock()
        self.turns: dict[str, PartitionQueue] = {}  # by topic, where messages without a key go now
        self.open: dict[str, Batch] = {}  # by topic, the batch that small values go into now, if one is open
        self.fork = forks.generation
        forks.tell(self.forked)
        self._connections = connections
        self._clock = clock
        self._loop = loop
        self._wake: Callable[[Callable[[], None]], object] = loop.call_soon
        self._topics: dict[str, TopicQueues] = {}
        self._epoch = 0  # where the queues of a topic begin
        self._identity: tuple[int, int] | None = None
        self._is_transactional = False
        self._transaction = 0  # the number of the one that is open
        self._sent_count = 0  # of its records, each once
        self._is_over = False  # there was a transaction, and it takes no more messages
        self._sealed: deque[Batch] = deque()
        self._sealed_bytes = 0  # so far; written under the lock
        self._settled_bytes = 0  # so far; written by the loop
        self._is_woken = False
        self._is_lingering = False
        self._connecting: set[PartitionQueue] = set()
        self._waiting: set[PartitionQueue] = set()  # to be pumped at a time that was set
        self._tasks: set[asyncio.Task[None]] = set()
        self._room: deque[Callable[[], None]] = deque()  # whom to tell when there is room again
        self._failed: list[AnyHandle] = []
        self._more_failed: Counter[str] = Counter()  # by topic, messages that failed and have no place in `_failed`
        self._last_error: GoQueueError | None = None  # why nothing is stored at the moment
        self._is_closed = False

    # --- any thread ----------------------------------------------------------------------------

    def wall_ns(self) -> int:
        """The time of day."""
        return self._clock.wall_ns()

    @property
    def inject(self) -> telemetry.Injector | None:
        """What puts contexts of OpenTelemetry into headers, if there can be any."""
        return telemetry.injector() if self._has_telemetry else None

    @property
    def context(self) -> Callable[[], object] | None:
        """What tells the context that is current."""
        return None if self.inject is None else self.inject.current

    def share(self) -> None:
        """From now on, messages are added by other threads than that of the loop."""
        self._wake = self._loop.call_soon_threadsafe

    def forked(self) -> None:
        """This is a child now: nothing goes out from here, and whoever tries is told."""
        self.open.clear()

    def is_ready_for(self, topic: str, item: bytes | Message | int) -> bool:
        """Whether enough is known of the topic to add the message."""
        queues = self._topics.get(topic)
        if queues is None:
            return False
        value = item.value if isinstance(item, Message) else item
        return not isinstance(value, bytes) or len(value) <= queues.value_bytes_max

    def add(self, topic: str, handle: AnyHandle, partition: int | None) -> None:
        """Add a message that is more than a small value, or for which no batch is open."""
        item = handle.item
        message = item if isinstance(item, Message) else Message(cast("bytes", item), None, None, Priority.NORMAL)
        with self.lock:
            self.check_usable()
            queues = self._topics.get(topic)
            if queues is None:
                raise TopicNotFound(topic)
            if message.value is not None and len(message.value) > queues.value_bytes_max:
                raise MessageTooLarge("value", len(message.value), queues.value_bytes_max)
            queue = queues.choose(message.key, partition) or self.turns[topic]
            if queue.open is not None and queue.open.is_sealed:
                self._seal(queue)
            batch = queue.open or self._open_batch(queue)
            handle.batch = batch
            if message is item or len(message.value or b"") > SMALL_VALUE_BYTES:
                handle.item = message
                batch.add(handle, message)
                batch.count_max = self._count_max(batch)
            else:
                batch.handles.append(handle)
            if len(batch.handles) >= batch.count_max:
                self._seal(queue)
            elif self.turns.get(topic) is queue:
                self.open[topic] = batch

    def add_all(self, topic: str, columns: Columns, partitions: Sequence[int | None] | None) -> None:
        """Add messages that come together; nobody gets a handle."""
        queues = self._topics.get(topic)
        if queues is None:
            raise TopicNotFound(topic)
        largest = max(columns.values, key=_size, default=None)
        if _size(largest) > queues.value_bytes_max:
            index = columns.values.index(largest)
            raise MessageTooLarge("value", _size(largest), queues.value_bytes_max, index=index)
        now_ns = self._clock.monotonic_ns()
        pieces = [
            (queue, *piece) for queue, part in queues.spread(columns, partitions) for piece in part.cut(BULK_BYTES)
        ]
        with self.lock:
            self.check_usable()
            for chosen, piece, size in pieces:
                self._hand_over(Bulk(chosen or self.turns[topic], now_ns, piece, size))
                if chosen is None:
                    self.turns[topic] = queues.next_turn()

    def seal(self, batch: Batch) -> None:
        """The batch is full."""
        self.check_usable()
        with self.lock:
            if not batch.is_sealed:
                self._seal(batch.queue)

    def made_it(self, handle: AnyHandle) -> bool:
        """Whether a handle that was added while its batch was being sealed is in it."""
        with self.lock:
            return handle.batch.holds(handle)

    def _seal(self, queue: PartitionQueue) -> None:
        """The open batch is to be sent. The lock is held."""
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

    def _hand_over(self, batch: Batch) -> None:
        """Let the loop have it, which takes it once. The lock is held."""
        self._sealed.append(batch)
        self._sealed_bytes += batch.size
        if not self._is_woken:
            self._is_woken = True
            try:
                self._wake(self._pump)
            except BaseException:
                self._is_woken = False
                raise

    def seal_all(self) -> None:
        """Everything that was added is to be sent."""
        with self.lock:
            for queue in self._queues():
                self._seal(queue)

    @property
    def is_full(self) -> bool:
        """Whether whoever adds more has to wait first."""
        return self._sealed_bytes - self._settled_bytes > self.config.buffer_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call once there is room."""
        self._room.append(callback)
        self._tell_room()

    def check_usable(self) -> None:
        """Raise if no more can be added."""
        if self.fork != forks.generation:
            raise Conflict("a producer cannot be used after a fork: its connection belongs to the parent process")
        if self._is_closed:
            raise Conflict("the producer is closed")
        if self._is_over:
            raise Conflict("the transaction is over")

    def _open_batch(self, queue: PartitionQueue) -> Batch:
        batch = queue.open = Batch(queue, self._clock.monotonic_ns())
        batch.count_max = self._count_max(batch)
        if not self._is_lingering and self.batch_count > 1:
            self._is_lingering = True
            try:
                self._wake(self._linger)
            except BaseException:
                self._is_lingering = False
                raise
        return batch

    def _count_max(self, batch: Batch) -> int:
        """How many messages fill the batch: as many as may be, or as many small values as there is room for."""
        room = self.config.batch_bytes - batch.size
        return min(self.batch_count, batch.message_count + -(-room // SMALL_RECORD_BYTES))

    def _tell_room(self) -> None:
        if self._room and (not self.is_full or self._is_closed):
            call_all(self._room)

    # --- the loop ------------------------------------------------------------------------------

    def pump_now(self) -> None:
        """Send what is ready now, if nothing is under way that it could travel behind."""
        if len(self._sealed) == 1 and not self._sealed[0].queue.in_flight:
            self._pump()

    async def learn(self, topic: str) -> None:
        """Find out what has to be known to add messages for the topic, or whether that has changed."""
        if topic in self._topics:
            self._connections.forget_topic(topic)
        metadata = await self._connections.retrying(lambda: self._connections.topic(topic))
        known = self._topics.get(topic)
        if known:
            known.compression = self.config.compression or metadata.compression
            known.acks = self.config.acks or metadata.acks
            known.value_bytes_max = metadata.max_message_bytes
            return
        if self.config.idempotent and self._identity is None:
            identity = await self._connections.retrying(self._identify)
            if self._identity is None:
                self._identity = (identity.producer_id, identity.epoch)
        if topic not in self._topics:
            queues = TopicQueues(
                topic,
                len(metadata.leaders),
                compression=self.config.compression or metadata.compression,
                acks=self.config.acks or metadata.acks,
                value_bytes_max=metadata.max_message_bytes,
                epoch=self._epoch,
                is_transactional=self._is_transactional,
                all_or_none=self.config.all_or_none,
            )
            queues.turn = any_turn(len(queues.partitions))
            self.turns[topic] = queues.next_turn()
            self._topics = {**self._topics, topic: queues}

    def identify(self, producer_id: int, epoch: int) -> None:
        """Be a transactional producer under that epoch; its numbers begin again."""
        self._is_transactional = True
        self._identity = (producer_id, epoch)
        for queue in self._queues():
            queue.begin_anew()

    def begin_transaction(self, number: int) -> None:
        """What is sent from now on belongs to the transaction."""
        self._transaction = number
        self._sent_count = 0
        self._failed = []
        self._is_over = False

    def seal_transaction(self) -> None:
        """Take no more messages; those that were added are still sent."""
        with self.lock:
            self._is_over = True
            for queue in self._queues():
                self._seal(queue)

    def end_transaction(self) -> tuple[GoQueueError | None, bool]:
        """Send no more of it. Why a message of it was not stored, and whether the numbers have no hole."""
        self.seal_transaction()
        self._pump()
        aborted = Conflict("the transaction was aborted before the message was stored")
        given_up = [batch for queue in self._queues() for batch in queue.give_up(aborted)]
        error = self.failure
        self._settled(given_up)
        self._transaction = 0
        self._failed = []
        return error, error is None and not given_up

    @property
    def sent_count(self) -> int:
        """How many records of the transaction were sent."""
        return self._sent_count

    @property
    def failure(self) -> GoQueueError | None:
        """Why a message was not stored, as far as that is known."""
        return next((handle.batch.error for handle in self._failed), None)

    def send_rest(self) -> int | None:
        """Send all that is left of the transaction: how many records it has sent; None if some have to wait."""
        self.send_now()
        if self._connecting or self._waiting or any(queue.has_more for queue in self._queues()):
            return None
        return self._sent_count

    def send_now(self) -> None:
        """Send everything that was added, without lingering."""
        self.seal_all()
        self._pump()

    async def flush(self) -> None:
        """Send everything that was added, and return when it is settled."""
        self.send_now()
        for queue in self._queues():
            if queue.has_more:  # the task that was to connect for it may have been cancelled, at the end of the loop
                self._pump_one(queue)
        open_batches = [batch for queue in self._queues() for batch in queue.unsettled()]
        done = asyncio.Event()
        remaining = 1

        def settled() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                done.set()

        for batch in open_batches:
            remaining += 1
            when_done(batch, settled)
        settled()
        await done.wait()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self, *, flush: bool = True, raises: bool = True) -> None:
        """Flush, then raise what could not be stored if nobody was told."""
        if not flush:
            self._shut()
            return
        unstored = await self.finish(None)
        if raises and unstored.error is not None:
            raise unstored.error

    async def leave(self, error: BaseException | None) -> None:
        """The block of the producer is left: flush. What could not be stored never covers an error on its way."""
        if error is None:
            await self.close()
        elif not self._is_closed:
            (await self.finish(exits.FLUSH_TIMEOUT_S)).note_on(error)

    async def finish(self, timeout_s: float | None) -> Unstored:
        """Flush for so long, and close; what is not stored, as far as the sender was not told.

        If that is cut short, by a second Ctrl-C or a cancelled task, a warning says it.
        """
        try:
            if not self._is_closed:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
        except TimeoutError:
            pass
        except BaseException:
            self._shut().warn()
            raise
        return self._shut()

    def unstored(self) -> Unstored:
        """What is not stored now, as far as the sender was not told."""
        failed = [handle.batch for handle in self._failed if not handle.batch.is_seen]
        counts = Counter(self._more_failed)
        for batch in failed:
            counts[batch.queue.topic] += batch.failed_count
        for queue in self._queues():
            for batch in queue.unsettled():
                counts[queue.topic] += len(batch.held)
            if queue.open is not None:
                counts[queue.topic] += len(queue.open.handles)
        for batch in list(self._sealed):
            counts[batch.queue.topic] += len(batch.held)
        error = next((batch.error for batch in failed), None) or self._last_error
        return Unstored(counts, error if counts else None)

    def let_go(self) -> None:
        """The application has dropped the producer without closing it: flush in the background, and close."""
        with suppress(RuntimeError):  # its loop is closed; the code that closed it knows what was not stored
            self._loop.call_soon_threadsafe(self._finish_alone)

    def _finish_alone(self) -> None:
        async def finish() -> None:
            await self.flush()  # the end of the loop cancels this, and then closes the client
            self._shut().warn()

        task = self._loop.create_task(finish())
        _finishing.add(task)
        task.add_done_callback(_finishing.discard)

    def _shut(self) -> Unstored:
        """Take no more messages and send no more; what is not stored fails. What the sender was not told."""
        if self._is_closed:
            return Unstored()
        self._is_closed = True
        self.open.clear()
        self.seal_all()
        self._pump()
        reason = f": {self._last_error}" if self._last_error else ""
        closed = Conflict(f"the producer was closed before the message was stored{reason}")
        self._settled([batch for queue in self._queues() for batch in queue.give_up(closed)])
        self._tell_room()
        for task in list(self._tasks):
            task.cancel()
        unstored = self.unstored()
        failed = next((handle for handle in self._failed if not handle.batch.is_seen), None)
        self._failed = []
        self._more_failed.clear()
        if failed is not None and failed.batch.error is not None:
            failed.batch.is_seen = True
            unstored.error = failed.batch.error
            unstored.error.handle = failed  # type: ignore[attr-defined]
        return unstored

    def _queues(self) -> Iterable[PartitionQueue]:
        return (queue for queues in self._topics.values() for queue in queues)

    async def _identify(self) -> verbs.ProducerIdentity:
        session = await self._connections.any()
        return await session.ask(Verb.INIT_PRODUCER, verbs.Empty(), verbs.ProducerIdentity)

    def _linger(self) -> None:
        """Seal what has lingered; come back when the next one has."""
        if not self.lock.acquire(blocking=False):  # somebody is adding, or lost its turn at it
            self._loop.call_later(LOCKED_WAIT_S, self._linger)
            return
        now_ns = self._clock.monotonic_ns()
        linger_ns = self.config.linger_ns
        next_ns: int | None = None
        try:
            for queue in self._queues():
                if queue.open is None:
                    continue
                due_ns = queue.open.opened_ns + linger_ns
                if due_ns <= now_ns:
                    self._seal(queue)
                elif next_ns is None or due_ns < next_ns:
                    next_ns = due_ns
            self._is_lingering = next_ns is not None
        finally:
            self.lock.release()
        if next_ns is not None:
            self._loop.call_later((next_ns - now_ns) / SECOND, self._linger)

    def _pump(self) -> None:
        """Send what was sealed."""
        self._is_woken = False
        sealed = self._sealed
        queues: dict[PartitionQueue, None] = {}
        while sealed:
            batch = sealed.popleft()
            if not batch.is_taken:
                batch.is_taken = True
                batch.queue.ready.append(batch)
                queues[batch.queue] = None
        for queue in queues:
            self._pump_one(queue)

    def _pump_one(self, queue: PartitionQueue) -> None:
        if queue in self._connecting or queue in self._waiting or self._is_closed:
            return
        now_ns = self._clock.monotonic_ns()
        timeout_ns = self.config.delivery_timeout_ns
        self._settled(queue.expire(now_ns - timeout_ns, timeout_ns))
        if queue.is_empty:
            return
        session = self._connections.leader_now(queue.topic, queue.partition)
        if session is None:
            self._connecting.add(queue)
            self._spawn(self._connect(queue))
            return
        while request := queue.take(now_ns=now_ns):
            if not request.was_sent:
                request.was_sent = True
                self._sent_count += request.record_count
            self._send(session, queue, request)
        wait_ns = queue.wait_ns(now_ns)
        if wait_ns is not None:
            self._waiting.add(queue)
            self._loop.call_later(wait_ns / SECOND, self._pump_again, queue)

    def _pump_again(self, queue: PartitionQueue) -> None:
        self._waiting.discard(queue)
        self._pump_one(queue)

    def _send(self, session: Session, queue: PartitionQueue, request: Request) -> None:
        queues = self._topics[queue.topic]
        identity = (self._identity[0], self._identity[1] + queue.epoch) if self._identity else None
        meta = verbs.PublishRequest(queue.topic, queue.partition, queues.acks)

        def answered(frame: Frame | None, error: GoQueueError | None) -> None:
            self._answered(queue, request, frame, error)

        try:
            records = request.encode(identity, queues.compression, self._transaction)
            session.send(Verb.PUBLISH, meta, records, answered, in_time=True)
        except GoQueueError as error:
            self._loop.call_soon(self._answered, queue, request, None, error)

    def _answered(
        self, queue: PartitionQueue, request: Request, frame: Frame | None, error: GoQueueError | None
    ) -> None:
        if request not in queue.in_flight:  # given up
            return
        if frame is not None:
            answer = decode(frame.meta, verbs.PublishAnswer)
            settled = queue.stored(request, first_offset=answer.first_offset, timestamp_ns=answer.timestamp_ns)
        else:
            assert error is not None
            self._last_error = error
            wait_ns = retry_wait_ns(queue.attempt + 1)
            settled = queue.failed(request, error, now_ns=self._clock.monotonic_ns(), wait_ns=wait_ns)
        if isinstance(error, NotLeader):
            self._connections.forget_topic(queue.topic)
        self._settled(settled)
        if isinstance(error, TopicNotFound | PartitionNotFound):
            self._forget(queue)
        else:
            self._pump_one(queue)

    def _forget(self, queue: PartitionQueue) -> None:
        """The topic is gone, or another one by now: what is left for it fails, and the next message asks anew."""
        topic = queue.topic
        with self.lock:
            queues = self._topics.get(topic)
            if queues is None or queue not in queues.partitions:  # it is known already
                return
            for one in queues:
                self._seal(one)
            self._topics = {name: known for name, known in self._topics.items() if name != topic}
            if not self._is_transactional:
                self._epoch = max(self._epoch, queues.next_epoch)
            self.turns.pop(topic, None)
            self.open.pop(topic, None)
        self._connections.forget_topic(topic)
        self._pump()
        for one in queues:
            self._settled(one.give_up(TopicNotFound(topic)))

    def _settled(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._settled_bytes += batch.size
            if batch.error is not None:
                self._note_failure(batch)
            if batch.callbacks:
                call_all(batch.callbacks)
        self._tell_room()

    def _note_failure(self, batch: Batch) -> None:
        if len(self._failed) >= FAILURES_KEPT:
            self._failed = [handle for handle in self._failed if not handle.batch.is_seen]
        if len(self._failed) < FAILURES_KEPT:
            self._failed += batch.held
        else:
            self._more_failed[batch.queue.topic] += batch.failed_count
        batch.held = []

    async def _connect(self, queue: PartitionQueue) -> None:
        """Reach the leader of the partition, however long it takes; what waited for too long is given up."""
        attempt = 0
        try:
            while not self._is_closed:
                try:
                    await self._connections.leader(queue.topic, queue.partition)
                    self._last_error = None
                    break
                except GoQueueError as error:
                    self._last_error = error
                    attempt += 1
                    self._give_up(queue, error)
                    if queue.is_empty:
                        break
                    await asyncio.sleep(retry_wait_ns(attempt) / SECOND)
        finally:
            self._connecting.discard(queue)
        self._pump_one(queue)

    def _give_up(self, queue: PartitionQueue, error: GoQueueError) -> None:
        timeout_ns = self.config.delivery_timeout_ns
        if error.retryable:
            self._settled(queue.expire(self._clock.monotonic_ns() - timeout_ns, timeout_ns))
        else:
            self._settled(queue.give_up(error))
            if isinstance(error, TopicNotFound | PartitionNotFound):
                self._forget(queue)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class AsyncProducer:
    """Publishes messages in batches. Made by `AsyncClient.producer`; leaving its block flushes.

    One that `is_own` belongs to the application: if it is dropped and was not closed, that is a `ResourceWarning`.
    """

    def __init__(self, core: ProducerCore, *, is_own: bool = False) -> None:
        self._core = core
        self._is_own = is_own

    def blocking(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> "Producer":
        """The same for threads without an event loop."""
        self._is_own = False
        return Producer(self._core, run, is_own=True)

    @property
    def core(self) -> ProducerCore:
        """What it is made of; the other producer is made of the same."""
        return self._core

    async def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
    ) -> AsyncHandle:
        """Hand a message over; the handle tells where it went. Waits only while too much is on its way."""
        core = self._core
        core.check_usable()
        if (inject := core.inject) is not None:
            headers = inject(headers)
        message = messages.message(
            value, key, priority, headers, delay, deliver_at, ttl, tombstone, now_ns=core.wall_ns()
        )
        if not core.is_ready_for(topic, message):
            await core.learn(topic)
        if core.is_full:
            room = asyncio.Event()
            core.when_room(room.set)
            await room.wait()
        handle = AsyncHandle(NO_BATCH, message)
        core.add(topic, handle, partition)
        core.pump_now()
        return handle

    async def flush(self) -> None:
        """Return when everything sent so far is stored, or has failed."""
        await self._core.flush()

    async def close(self) -> None:
        """Flush; raises if a message could not be stored and nobody asked its handle."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._core.leave(error)

    def __del__(self) -> None:
        if getattr(self, "_is_own", False):
            _dropped(self, self._core)


class Producer:
    """Publishes messages in batches, from any thread. Made by `Client.producer`; leaving its block flushes."""

    __slots__ = ("_bare", "_context", "_core", "_is_own", "_open", "_run")

    def __init__(
        self, core: ProducerCore, run: Callable[[Coroutine[Any, Any, None]], None], *, is_own: bool = False
    ) -> None:
        core.share()
        self._is_own = is_own
        self._core = core
        self._run = run
        self._open = core.open
        self._context = core.context
        self._bare: object = None  # a context that had no span in it

    def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
    ) -> Handle:
        """Hand a message over; the handle tells where it went. Waits only while too much is on its way."""
        if (context := self._context) is not None and context() is not self._bare:
            headers = self._with_context(headers)
        if (
            type(value) is not bytes
            or key is not None
            or partition is not None
            or priority is not None
            or headers is not None
            or delay is not None
            or deliver_at is not None
            or ttl is not None
            or tombstone
            or len(value) > SMALL_VALUE_BYTES
        ):
            message = messages.message(
                value, key, priority, headers, delay, deliver_at, ttl, tombstone, now_ns=self._core.wall_ns()
            )
            batch = self._open.get(topic)
            is_large = message.value is None or len(message.value) > SMALL_VALUE_BYTES
            if batch is None or is_large or message.key is not None or partition is not None or headers is not None:
                return self._add(topic, Handle(NO_BATCH, message), partition)
            batch.has_messages = True  # before it can be sealed: whoever encodes it has to know
            handle = Handle(batch, message)
        else:
            batch = self._open.get(topic)
            if batch is None:
                return self._add(topic, Handle(NO_BATCH, value), None)
            handle = Handle(batch, value)
        handles = batch.handles
        handles.append(handle)
        if batch.is_sealed:
            if not self._core.made_it(handle):
                return self._add(topic, handle, None)
        elif len(handles) >= batch.count_max:
            self._core.seal(batch)
        return handle

    def _add(self, topic: str, handle: Handle, partition: int | None) -> Handle:
        """What is done once per batch, or for a message that is more than a small value."""
        core = self._core
        core.check_usable()
        if self._context is None:
            self._context = core.context
        if not core.is_ready_for(topic, handle.item):
            self._run(core.learn(topic))
        if core.is_full:
            room = Lock()
            room.acquire()
            core.when_room(room.release)
            wait_for(room)
        core.add(topic, handle, partition)
        return handle

    def _with_context(self, headers: Mapping[str, str | bytes] | None) -> Mapping[str, str | bytes] | None:
        """The headers with the context that is current; one without a span is remembered, so as not to ask again."""
        inject = self._core.inject
        assert inject is not None
        context = inject.current()
        if not inject.fields(context):
            self._bare = context
        return inject(headers)

    def flush(self) -> None:
        """Return when everything sent so far is stored, or has failed."""
        self._core.check_usable()
        self._run(self._core.flush())

    def close(self) -> None:
        """Flush; raises if a message could not be stored and nobody asked its handle."""
        self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        if self._core.fork == forks.generation and not self._core.is_closed:
            self._run(self._core.leave(error))

    def __del__(self) -> None:
        if getattr(self, "_is_own", False):
            _dropped(self, self._core)


def _dropped(producer: AsyncProducer | Producer, core: ProducerCore) -> None:
    """The last reference to the producer is gone. One that is not closed is flushed in the background."""
    if not core.is_closed and core.fork == forks.generation:
        core.let_go()
        text = f"unclosed {type(producer).__name__}: use it in a `with` block, or call its close()"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=producer)


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)


NO_BATCH = Batch(PartitionQueue("", -1), 0)
"""Where a handle stands before it is added."""
