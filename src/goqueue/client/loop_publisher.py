"""Pumps the publish engine from an event loop, for any number of senders.

Senders add messages in their own threads, under a lock; the event loop sends them. The loop never waits for that
lock: a thread that is preempted while it holds the lock would stop every request of the client. So sealed batches
reach the loop over a deque, and a linger timer that finds the lock taken comes back a millisecond later.

Ctrl-C may raise in a sender between any two calls, also between sealing a batch and waking the loop. The next sender,
the linger timer and `flush` all look for sealed batches, so none is left unsent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from goqueue.client import exits, forks, telemetry
from goqueue.client.accumulator import (
    AnyHandle,
    MessageBatch,
    MessageColumns,
    OutgoingRequest,
    PartitionQueue,
    ProducerConfig,
)
from goqueue.client.connections import Connections
from goqueue.client.exits import Unstored
from goqueue.client.handles import call_all, when_done
from goqueue.client.publish_engine import TOPIC_GONE, PublishEngine
from goqueue.client.session import Session, decode
from goqueue.clock import SECOND, Clock
from goqueue.errors import Conflict, GoQueueError, TopicNotFound
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.verbs import Verb

LOCKED_WAIT_S = 0.001

_finishing: set[asyncio.Task[None]] = set()
"""Flushes of producers that the application has dropped; a task that nothing refers to may be collected."""


class LoopPublisher:
    """A publish engine, the lock of its senders, and the event loop that sends."""

    # More than 40 methods: senders in their threads, the event loop and the end of the producer all work on one engine,
    # and share the flags that keep a sealed batch from staying unsent (`_is_woken`, `_is_lingering`, `_connecting`,
    # `_waiting`). The decisions are in `PublishEngine`; most of these methods are a few lines between threads.

    def __init__(
        self,
        connections: Connections,
        config: ProducerConfig,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        telemetry: bool = True,
    ) -> None:
        self.engine = PublishEngine(config, connections.entropy)
        self.lock = Lock()
        self.fork = forks.generation
        forks.tell(self.forked)
        self.wall_ns = clock.wall_ns
        self._has_telemetry = telemetry
        self._connections = connections
        self._clock = clock
        self._loop = loop
        self._wake: Callable[[Callable[[], None]], object] = loop.call_soon
        self._is_woken = False
        self._is_lingering = False
        self._connecting: set[PartitionQueue] = set()
        self._waiting: set[PartitionQueue] = set()  # pumped again at a time that is set
        self._tasks: set[asyncio.Task[None]] = set()
        self._room: deque[Callable[[], None]] = deque()  # called when there is room again

    # --- senders, in any thread ----------------------------------------------------------------

    @property
    def inject(self) -> telemetry.Injector | None:
        """What puts contexts of OpenTelemetry into headers, if there can be any."""
        return telemetry.injector() if self._has_telemetry else None

    @property
    def context(self) -> Callable[[], object] | None:
        """What tells the context that is current."""
        return None if self.inject is None else self.inject.current

    def share(self) -> None:
        """From now on, other threads than that of the loop add messages."""
        self._wake = self._loop.call_soon_threadsafe

    def forked(self) -> None:
        """This is a child process now. Without an open batch every `send` comes by `check_usable`, which refuses."""
        self.engine.open.clear()

    def check_usable(self) -> None:
        """Raise `Conflict` if no message can be added."""
        if self.fork != forks.generation:
            raise Conflict("a producer cannot be used after a fork: its connection belongs to the parent process")
        self.engine.check_usable()

    def add(self, topic: str, handle: AnyHandle, partition: int | None) -> None:
        """Add a message that is more than a small value, or for which no batch is open."""
        engine = self.engine
        now_ns = None if engine.lingers else self._clock.monotonic_ns()
        with self.lock:
            if engine.unusable:
                engine.check_usable()
            if not engine.add(topic, handle, partition, now_ns=now_ns):
                engine.add(topic, handle, partition, now_ns=self._clock.monotonic_ns())
            if engine.sealed:
                self._wake_pump()
            if not self._is_lingering and not handle.batch.is_sealed:
                self._wake_linger()

    def add_bulk(self, topic: str, columns: MessageColumns, partitions: Sequence[int | None] | None) -> None:
        """Add messages that come together. They have no handles."""
        now_ns = self._clock.monotonic_ns()
        pieces = self.engine.cut(topic, columns, partitions)
        with self.lock:
            self.check_usable()
            self.engine.add_bulk(topic, pieces, now_ns=now_ns)
            self._wake_pump()

    def seal(self, batch: MessageBatch) -> None:
        """The batch is full."""
        self.check_usable()
        with self.lock:
            if not batch.is_sealed:
                self.engine.seal(batch.queue)
            self._wake_pump()

    def made_it(self, handle: AnyHandle) -> bool:
        """Whether a handle that was added while its batch was being sealed is in it."""
        with self.lock:
            return handle.batch.holds(handle)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call once there is room."""
        self._room.append(callback)
        self._tell_room()

    async def room(self) -> None:
        """Return when there is room."""
        if self.engine.is_full:
            found = asyncio.Event()
            self.when_room(found.set)
            await found.wait()

    def _wake_pump(self) -> None:
        """Have the loop send what is sealed. The lock is held."""
        if not self._is_woken and self.engine.sealed:
            self._is_woken = True
            try:
                self._wake(self._pump)
            except BaseException:
                self._is_woken = False
                raise

    def _wake_linger(self) -> None:
        """Have the loop seal the open batch when it has lingered. The lock is held."""
        self._is_lingering = True
        try:
            self._wake(self._linger)
        except BaseException:
            self._is_lingering = False
            raise

    def _tell_room(self) -> None:
        if self._room and (not self.engine.is_full or self.engine.is_closed):
            call_all(self._room)

    # --- the loop ------------------------------------------------------------------------------

    def pump_now(self) -> None:
        """Send what is sealed without another turn of the loop, unless it can share a request with what follows."""
        sealed = self.engine.sealed
        if len(sealed) == 1 and not sealed[0].queue.in_flight:
            self._pump()

    async def learn(self, topic: str) -> None:
        """Ask the broker what the engine has to know of a topic, or whether that has changed."""
        engine, connections = self.engine, self._connections
        if topic in engine.topics:
            connections.forget_topic(topic)
        metadata = await connections.retrying(lambda: connections.topic(topic))
        if engine.needs_identity:
            engine.identified(await connections.retrying(self._identity))
        engine.learned(topic, metadata)

    async def _identity(self) -> verbs.ProducerIdentity:
        session = await self._connections.any()
        return await session.ask(Verb.INIT_PRODUCER, verbs.Empty(), verbs.ProducerIdentity)

    def send_now(self) -> None:
        """Send everything that was added, without lingering."""
        with self.lock:
            self.engine.seal_all()
        self._pump()

    def send_rest(self) -> int | None:
        """Send all that is left of the transaction: how many records it has sent; None if some have to wait."""
        self.send_now()
        if self._connecting or self._waiting or any(queue.has_more for queue in self.engine.queues):
            return None
        return self.engine.sent_count

    async def flush(self) -> None:
        """Send everything that was added, and return when it is settled."""
        self.send_now()
        for queue in self.engine.queues:
            if queue.has_more:  # the end of the loop may have cancelled the task that was to connect for it
                self._pump_queue(queue)
        done = asyncio.Event()
        remaining = 1

        def settled() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                done.set()

        for batch in self.engine.unsettled():
            remaining += 1
            when_done(batch, settled)
        settled()
        await done.wait()

    def _linger(self) -> None:
        """Seal what has lingered; come back when the next batch has."""
        if not self.lock.acquire(blocking=False):  # its holder may have been preempted: see above
            self._loop.call_later(LOCKED_WAIT_S, self._linger)
            return
        now_ns = self._clock.monotonic_ns()
        try:
            next_ns = self.engine.seal_lingered(now_ns)
            self._is_lingering = next_ns is not None
        finally:
            self.lock.release()
        if next_ns is not None:
            self._loop.call_later((next_ns - now_ns) / SECOND, self._linger)
        self._pump()

    def _pump(self) -> None:
        """Send what was sealed."""
        self._is_woken = False  # first: a batch that is sealed from here on wakes the loop again
        for queue in self.engine.take_sealed():
            self._pump_queue(queue)

    def _pump_queue(self, queue: PartitionQueue) -> None:
        engine = self.engine
        if queue in self._connecting or queue in self._waiting or engine.is_closed:
            return
        now_ns = self._clock.monotonic_ns()
        self._announce(engine.expire(queue, now_ns))
        if queue.is_empty:
            return
        session = self._connections.leader_now(queue.topic, queue.partition)
        if session is None:
            self._connecting.add(queue)
            self._spawn(self._connect(queue))
            return
        while request := engine.next_request(queue, now_ns):
            self._send(session, queue, request)
        wait_ns = queue.wait_ns(now_ns)
        if wait_ns is not None:
            self._waiting.add(queue)
            self._loop.call_later(wait_ns / SECOND, self._pump_again, queue)

    def _pump_again(self, queue: PartitionQueue) -> None:
        self._waiting.discard(queue)
        self._pump_queue(queue)

    def _send(self, session: Session, queue: PartitionQueue, request: OutgoingRequest) -> None:
        def answered(frame: Frame | None, error: GoQueueError | None) -> None:
            self._answered(queue, request, frame, error)

        try:
            meta, records = self.engine.encode(queue, request)
            session.send(Verb.PUBLISH, meta, records, answered, in_time=True)
        except GoQueueError as error:  # later: `_pump_queue` is still iterating over the requests of this queue
            self._loop.call_soon(self._answered, queue, request, None, error)

    def _answered(
        self, queue: PartitionQueue, request: OutgoingRequest, frame: Frame | None, error: GoQueueError | None
    ) -> None:
        if request not in queue.in_flight:  # given up
            return
        if frame is not None:
            self._announce(self.engine.stored(queue, request, decode(frame.meta, verbs.PublishAnswer)))
        else:
            assert error is not None
            self._connections.forget_leader(error)
            self._announce(self.engine.failed(queue, request, error, self._clock.monotonic_ns()))
        if isinstance(error, TOPIC_GONE):
            self._drop_topic(queue)
        else:
            self._pump_queue(queue)

    def _drop_topic(self, queue: PartitionQueue) -> None:
        """The topic was deleted, or replaced: what is left for it fails, and the next message learns it anew."""
        topic = queue.topic
        with self.lock:
            dropped = self.engine.drop_topic(topic) if self.engine.is_current(queue) else None
        if dropped is None:
            return
        self._connections.forget_topic(topic)
        for other in self.engine.take_sealed():
            if other.topic != topic:
                self._pump_queue(other)
        self._announce(self.engine.give_up(dropped, TopicNotFound(topic)))

    def _announce(self, settled: Iterable[MessageBatch]) -> None:
        """Wake the threads and call the callbacks that wait for these batches, and the senders that wait for room."""
        for batch in settled:
            if batch.callbacks:
                call_all(batch.callbacks)
        self._tell_room()

    async def _connect(self, queue: PartitionQueue) -> None:
        """Reach the leader of the partition, however long it takes; batches whose timeout is over are given up."""
        attempt = 0
        try:
            while not self.engine.is_closed:
                try:
                    await self._connections.leader(queue.topic, queue.partition)
                    self.engine.last_error = None
                    break
                except GoQueueError as error:
                    self._connections.forget_leader(error)  # a node that is gone may have been named as the leader
                    self.engine.last_error = error
                    attempt += 1
                    self._not_connected(queue, error)
                    if queue.is_empty:
                        break
                    await asyncio.sleep(self._connections.retry_policy.wait_s(attempt))
        finally:
            self._connecting.discard(queue)
        self._pump_queue(queue)

    def _not_connected(self, queue: PartitionQueue, error: GoQueueError) -> None:
        if error.retryable:
            self._announce(self.engine.expire(queue, self._clock.monotonic_ns()))
        else:
            self._announce(self.engine.give_up((queue,), error))
            if isinstance(error, TOPIC_GONE):
                self._drop_topic(queue)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- transactions --------------------------------------------------------------------------

    def seal_transaction(self) -> None:
        """Accept no more messages; those that were added are still sent."""
        with self.lock:
            self.engine.seal_transaction()

    def end_transaction(self) -> tuple[GoQueueError | None, bool]:
        """Send no more of it. Why a message of it was not stored, and whether the sequence numbers have no gap."""
        self.seal_transaction()
        self._pump()
        given_up, error = self.engine.end_transaction()
        self._announce(given_up)
        return error, error is None and not given_up

    # --- the end -------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.engine.is_closed

    async def close(self, *, flush: bool = True, raises: bool = True) -> None:
        """Flush, then raise why a message was not stored if the application was not told."""
        if not flush:
            self._shut()
            return
        unstored = await self.finish(None)
        if raises and unstored.error is not None:
            raise unstored.error

    async def leave(self, error: BaseException | None) -> None:
        """The block of the producer is left: flush. What could not be stored never replaces the error that leaves."""
        if error is None:
            await self.close()
        elif not self.is_closed:
            (await self.finish(exits.FLUSH_TIMEOUT_S)).note_on(error)

    async def finish(self, timeout_s: float | None) -> Unstored:
        """Flush for so long, and close; what is not stored, as far as the application was not told.

        If that is cut short, by a second Ctrl-C or a cancelled task, a warning says it.
        """
        try:
            if not self.is_closed:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
        except TimeoutError:
            pass
        except BaseException:
            self._shut().warn()
            raise
        return self._shut()

    def unstored(self) -> Unstored:
        """What is not stored now, as far as the application was not told."""
        return Unstored(*self.engine.unstored())

    def finish_dropped(self) -> None:
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
        """Accept no more messages and send no more; what is not stored fails. What the application was not told."""
        engine = self.engine
        if engine.is_closed:
            return Unstored()
        engine.close()
        with self.lock:
            engine.seal_all()
        engine.take_sealed()
        reason = f": {engine.last_error}" if engine.last_error else ""
        closed = Conflict(f"the producer was closed before the message was stored{reason}")
        self._announce(engine.give_up(engine.queues, closed))
        for task in list(self._tasks):
            task.cancel()
        unstored = self.unstored()
        failed = engine.unreported()
        engine.forget_failures()
        if failed is not None and failed.batch.error is not None:
            failed.batch.is_seen = True
            unstored.error = failed.batch.error
            unstored.error.handle = failed  # type: ignore[attr-defined]
        return unstored
